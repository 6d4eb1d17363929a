/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller.c - epoll, a sorted list of timers, and an eventfd.
 *
 * An unwatched descriptor whose event is already in the current batch must not be reported: the
 * watch is marked, and freed after the batch.
 */
#include "net/poller.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "net/socket.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BATCH           64
#define NO_FDS_PAUSE_MS 50
#define LOG_PAUSE_MS    1000

struct poll_watch {
    list_node node; /* in poller.watches or poller.dead */
    poller *owner;
    int fd;
    bool is_dead;
    poll_fn fn;
    void *arg;
    poll_timer resume;   /* of accepting after a pause */
    int64_t last_log_ms; /* about that */
};

struct poller {
    int epoll_fd;
    int wake_fd;
    bool is_running;
    list_node watches;
    list_node dead;
    list_node timers; /* earliest first */
    poll_watch *wake_watch;
};

static uint32_t epoll_bits(unsigned events)
{
    return ((events & POLL_READ) != 0 ? EPOLLIN | EPOLLRDHUP : 0U) |
           ((events & POLL_WRITE) != 0 ? EPOLLOUT : 0U);
}

static unsigned event_bits(uint32_t bits)
{
    return ((bits & (EPOLLIN | EPOLLRDHUP)) != 0 ? POLL_READ : 0U) |
           ((bits & EPOLLOUT) != 0 ? POLL_WRITE : 0U) |
           ((bits & (EPOLLERR | EPOLLHUP)) != 0 ? POLL_BROKEN : 0U);
}

/* The wait of poller_run_once() has returned, which is the purpose of a wake-up; the next wait
 * blocks again. */
static void woken(void *arg, unsigned events)
{
    const poller *p = arg;
    uint64_t count;

    LS_UNUSED(events);
    while (read(p->wake_fd, &count, sizeof(count)) < 0 && errno == EINTR)
        continue;
}

ls_status poller_create(poller **out)
{
    poller *p;
    ls_status st;

    LS_TRY(LS_NEW(&p, 1, "for a poller"));
    list_init(&p->watches);
    list_init(&p->dead);
    list_init(&p->timers);
    p->wake_fd = -1;
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->epoll_fd < 0) {
        st = ls_fail_errno("cannot make an epoll descriptor");
        goto fail;
    }
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0) {
        st = ls_fail_errno("cannot make an event descriptor");
        goto fail;
    }
    st = poller_watch(p, p->wake_fd, POLL_READ, woken, p, &p->wake_watch);
    if (st != LS_OK)
        goto fail;
    *out = p;
    return LS_OK;

fail:
    poller_destroy(p);
    return st;
}

static void free_watches(list_node *list)
{
    while (!list_empty(list)) {
        poll_watch *w = list_entry(list->next, poll_watch, node);

        list_remove(&w->node);
        ls_free(w);
    }
}

void poller_destroy(poller *p)
{
    if (p == NULL)
        return;
    LS_ASSERT(!p->is_running);
    while (!list_empty(&p->timers))
        poller_timer_cancel(list_entry(p->timers.next, poll_timer, node));
    free_watches(&p->watches);
    free_watches(&p->dead);
    file_close(&p->epoll_fd);
    file_close(&p->wake_fd);
    ls_free(p);
}

void poller_forked(const poller *p)
{
    close(p->epoll_fd);
    close(p->wake_fd);
}

ls_status poller_watch(poller *p, int fd, unsigned events, poll_fn fn, void *arg, poll_watch **out)
{
    struct epoll_event event = {.events = epoll_bits(events)};
    poll_watch *w;

    *out = NULL;
    LS_TRY(LS_NEW(&w, 1, "to watch a descriptor"));
    event.data.ptr = w;
    *w = (poll_watch){.owner = p, .fd = fd, .fn = fn, .arg = arg};
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        const ls_status st = ls_fail_errno("cannot watch descriptor %d", fd);

        ls_free(w);
        return st;
    }
    list_append(&p->watches, &w->node);
    *out = w;
    return LS_OK;
}

ls_status poller_change(poll_watch *w, unsigned events)
{
    struct epoll_event event = {.events = epoll_bits(events), .data.ptr = w};

    if (epoll_ctl(w->owner->epoll_fd, EPOLL_CTL_MOD, w->fd, &event) != 0)
        return ls_fail_errno("cannot change the events of descriptor %d", w->fd);
    return LS_OK;
}

static void resume_accepting(void *watch)
{
    if (poller_change(watch, POLL_READ) != LS_OK)
        ls_log(LS_LOG_ERROR, "net", "cannot listen: %s", ls_last_error());
}

int poller_accept(poll_watch *w, const char *name)
{
    int fd;

    if (net_accept(w->fd, &fd) == LS_OK)
        return fd;
    if (log_every(&w->last_log_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_ERROR, name, "cannot accept connections, and tries again: %s",
               ls_last_error());
    if (poller_change(w, 0) == LS_OK)
        poller_timer_set(w->owner, &w->resume, ls_now_ms() + NO_FDS_PAUSE_MS, resume_accepting, w);
    return -1;
}

void poller_unwatch(poll_watch **watch)
{
    struct epoll_event unused = {0};
    poll_watch *w = *watch;

    *watch = NULL;
    if (w == NULL || w->is_dead)
        return;
    epoll_ctl(w->owner->epoll_fd, EPOLL_CTL_DEL, w->fd, &unused);
    poller_timer_cancel(&w->resume);
    w->is_dead = true;
    list_remove(&w->node);
    if (w->owner->is_running)
        list_append(&w->owner->dead, &w->node);
    else
        ls_free(w);
}

void poller_close(poll_watch **watch, int *fd)
{
    poller_unwatch(watch);
    file_close(fd);
}

void poller_timer_set(poller *p, poll_timer *t, int64_t due_ms, void (*fn)(void *arg), void *arg)
{
    list_node *behind;

    poller_timer_cancel(t);
    t->due_ms = due_ms;
    t->fn = fn;
    t->arg = arg;
    t->is_set = true;
    behind = p->timers.prev; // most timers are set later than all others
    while (behind != &p->timers && list_entry(behind, poll_timer, node)->due_ms > due_ms)
        behind = behind->prev;
    list_append(behind->next, &t->node);
}

void poller_timer_cancel(poll_timer *t)
{
    if (!t->is_set)
        return;
    list_remove(&t->node);
    t->is_set = false;
}

void poller_wake(poller *p)
{
    const uint64_t one = 1;
    const int error = errno;

    // a full counter means that a wake-up is pending already
    while (write(p->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
    errno = error;
}

int poller_fd(const poller *p)
{
    return p->epoll_fd;
}

int64_t poller_due_ms(const poller *p)
{
    return list_empty(&p->timers) ? INT64_MAX
                                  : list_entry(p->timers.next, poll_timer, node)->due_ms;
}

/* The time limit of the next wait. */
static int wait_ms(const poller *p, int timeout_ms)
{
    int64_t left;

    if (list_empty(&p->timers))
        return timeout_ms;
    left = list_entry(p->timers.next, poll_timer, node)->due_ms - ls_now_ms();
    if (left < 0)
        left = 0;
    if (left > INT_MAX)
        left = INT_MAX;
    return timeout_ms < 0 || left < timeout_ms ? (int)left : timeout_ms;
}

/* Fires the due timers. A timer that its own callback sets again fires in the next round, so that
 * no timer can block the loop. */
static void fire_timers(poller *p)
{
    const int64_t now_ms = ls_now_ms();
    list_node due;

    list_init(&due);
    while (!list_empty(&p->timers)) {
        poll_timer *t = list_entry(p->timers.next, poll_timer, node);

        if (t->due_ms > now_ms)
            break;
        list_remove(&t->node);
        list_append(&due, &t->node);
    }
    while (!list_empty(&due)) { // a callback may cancel or move other due timers
        poll_timer *t = list_entry(due.next, poll_timer, node);

        poller_timer_cancel(t);
        t->fn(t->arg);
    }
}

/* How many events there are. A process that was stopped leaves its wait with EINTR, and its timers
 * have become due: what its peers have sent in the meantime comes first. */
static int wait_for_events(const poller *p, struct epoll_event *events, int timeout_ms)
{
    const int n = epoll_wait(p->epoll_fd, events, BATCH, wait_ms(p, timeout_ms));

    if (n > 0 || (n < 0 && errno != EINTR) || poller_due_ms(p) > ls_now_ms())
        return n;
    return epoll_wait(p->epoll_fd, events, BATCH, 0);
}

ls_status poller_run_once(poller *p, int timeout_ms)
{
    struct epoll_event events[BATCH];
    int n = wait_for_events(p, events, timeout_ms);

    if (n < 0) {
        if (errno != EINTR)
            return ls_fail_errno("cannot wait for events");
        n = 0;
    }
    LS_ASSERT(!p->is_running);
    p->is_running = true;
    for (int i = 0; i < n; i++) {
        poll_watch *w = events[i].data.ptr;

        if (!w->is_dead)
            w->fn(w->arg, event_bits(events[i].events));
    }
    fire_timers(p);
    p->is_running = false;
    free_watches(&p->dead);
    return LS_OK;
}
