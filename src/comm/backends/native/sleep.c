/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleep.c - lets threads sleep until something may have moved, without losing a wake-up.
 *
 * A thread sleeps only when nothing has happened since its own last call to progress():
 * sleep_wake() raises a count, progress() saves it for the thread, sleep_wait() compares. Towards
 * ranks of this host the order of local.h is needed (announce the sleep, check, sleep), and the
 * check is a progress(): so the first sleep_wait() after something moved only announces and
 * returns, and the next one sleeps. native.c calls it.
 */
#include "comm/backends/native/sleep.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READY_MAX 32

typedef struct sleeper {
    struct sleeper *next;
    int fd; /* eventfd */
    bool is_used;
} sleeper;

struct sleepers {
    int links_fd; /* epoll over all links' descriptors */
    int control_fd;
    int n_watched; /* descriptors in links_fd; under the engine's lock */
    local *local;  /* NULL: no other rank is on this host */
    ls_mutex mu;   /* leaf; guards what follows */
    sleeper *all;
    uint64_t wakes;
    uint64_t serial;          /* distinguishes a backend from a later one at the same address */
    atomic_bool links_ready;  /* a sleeper was woken by them; the next progress() asks */
    atomic_bool locals_ready; /* the same for local channels */
};

/* What this thread knows of the backend that it last called. */
typedef struct sleep_state {
    uint64_t serial;
    uint64_t wakes;
    bool is_prepared; /* the local ranks know that it sleeps */
    bool has_checked; /* and nothing had moved after that */
    int64_t due_ms;   /* when there is something to do */
} sleep_state;

static _Thread_local sleep_state thread_state;

ls_status sleep_create(int control_fd, sleepers **out)
{
    static atomic_uint_fast64_t next_serial = 1;
    sleepers *z;

    LS_TRY(LS_NEW(&z, 1, "for sleeping"));
    z->links_fd = epoll_create1(EPOLL_CLOEXEC);
    if (z->links_fd < 0) {
        ls_free(z);
        return ls_fail_errno("epoll_create1");
    }
    z->control_fd = control_fd;
    z->serial = atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed);
    ls_mutex_init(&z->mu);
    *out = z;
    return LS_OK;
}

void sleep_destroy(sleepers *z)
{
    if (z == NULL)
        return;
    while (z->all != NULL) {
        sleeper *gone = z->all;

        z->all = gone->next;
        close(gone->fd);
        ls_free(gone);
    }
    close(z->links_fd);
    ls_mutex_destroy(&z->mu);
    ls_free(z);
}

// In the child another thread may hold `mu` for ever; the list only ever grows at its front.
void sleep_forked(const sleepers *z)
{
    close(z->links_fd);
    for (const sleeper *each = z->all; each != NULL; each = each->next)
        close(each->fd);
}

void sleep_set_local(sleepers *z, local *l)
{
    z->local = l;
}

// --- descriptors ---

static ls_status change_watch(const sleepers *z, sleep_link *w, int action)
{
    struct epoll_event event = {.events = EPOLLIN | (w->watches_write ? EPOLLOUT : 0U),
                                .data = {.ptr = w}};

    if (epoll_ctl(z->links_fd, action, w->link->fd, &event) != 0)
        return ls_fail_errno("epoll_ctl");
    return LS_OK;
}

ls_status sleep_watch(sleepers *z, sleep_link *w, peer_link *link)
{
    w->link = link;
    if (link->fd < 0)
        return LS_OK;
    LS_TRY(change_watch(z, w, EPOLL_CTL_ADD));
    w->is_watched = true;
    z->n_watched++;
    return LS_OK;
}

void sleep_unwatch(sleepers *z, sleep_link *w)
{
    if (w->is_watched) {
        (void)change_watch(z, w, EPOLL_CTL_DEL);
        z->n_watched--;
    }
    w->is_watched = false;
}

void sleep_update(const sleepers *z, sleep_link *w)
{
    if (!w->is_watched || w->watches_write == (w->link->is_full && !w->link->is_cut))
        return;
    w->watches_write = !w->watches_write;
    (void)change_watch(z, w, EPOLL_CTL_MOD);
}

ls_status sleep_watch_fd(sleepers *z, int fd)
{
    struct epoll_event event = {.events = EPOLLIN}; // no link

    if (epoll_ctl(z->links_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return ls_fail_errno("epoll_ctl");
    z->n_watched++;
    return LS_OK;
}

int sleep_ready(sleepers *z, sleep_link **ready, int max, bool *is_fd_ready)
{
    struct epoll_event events[READY_MAX];
    int n_events;
    int n = 0;

    *is_fd_ready = false;
    if (z->n_watched == 0)
        return 0;
    n_events = epoll_wait(z->links_fd, events, max < READY_MAX ? max : READY_MAX, 0);
    atomic_store_explicit(&z->links_ready, false, memory_order_relaxed);
    for (int i = 0; i < n_events; i++) {
        if (events[i].data.ptr == NULL)
            *is_fd_ready = true;
        else
            ready[n++] = events[i].data.ptr;
    }
    return n;
}

bool sleep_links_ready(const sleepers *z)
{
    return atomic_load_explicit(&z->links_ready, memory_order_relaxed);
}

bool sleep_locals_ready(sleepers *z)
{
    return atomic_load_explicit(&z->locals_ready, memory_order_relaxed) &&
           atomic_exchange_explicit(&z->locals_ready, false, memory_order_relaxed);
}

// --- threads ---

void sleep_begin_progress(sleepers *z)
{
    if (thread_state.serial != z->serial)
        thread_state = (sleep_state){.serial = z->serial};
    ls_mutex_lock(&z->mu);
    thread_state.wakes = z->wakes;
    ls_mutex_unlock(&z->mu);
    thread_state.has_checked = thread_state.is_prepared;
}

static void cancel_sleep(const sleepers *z)
{
    if (thread_state.is_prepared)
        local_end_sleep(z->local);
    thread_state.is_prepared = false;
    thread_state.has_checked = false;
}

void sleep_end_progress(sleepers *z, bool moved, int64_t due_ms)
{
    thread_state.due_ms = due_ms;
    if (moved)
        cancel_sleep(z);
}

// NULL when something has happened meanwhile, or without memory.
static sleeper *sleeper_acquire(sleepers *z)
{
    sleeper *found = NULL;

    ls_mutex_lock(&z->mu);
    if (z->wakes == thread_state.wakes) {
        for (found = z->all; found != NULL && found->is_used; found = found->next)
            continue;
        if (found == NULL) {
            found = ls_calloc(1, sizeof(*found));
            if (found != NULL) {
                found->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); // -1: poll() skips it
                found->next = z->all;
                z->all = found;
            }
        }
        if (found != NULL)
            found->is_used = true;
    }
    ls_mutex_unlock(&z->mu);
    return found;
}

static void sleeper_release(sleepers *z, sleeper *own)
{
    uint64_t count;

    ls_mutex_lock(&z->mu);
    (void)!read(own->fd, &count, sizeof(count)); // empty without a wake-up
    own->is_used = false;
    ls_mutex_unlock(&z->mu);
}

static void sleep_in(sleepers *z, const sleeper *own, int timeout_ms)
{
    struct pollfd fds[LOCAL_FDS_MAX + 3];
    nfds_t n = 3;

    // poll() skips an entry of -1.
    fds[0] = (struct pollfd){.fd = own->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = z->links_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = z->control_fd, .events = POLLIN};
    if (z->local != NULL && local_count(z->local) > 1)
        n += (nfds_t)local_poll_fds(z->local, fds + 3);
    if (poll(fds, n, timeout_ms) <= 0)
        return;
    if (fds[1].revents != 0)
        atomic_store_explicit(&z->links_ready, true, memory_order_relaxed);
    for (nfds_t i = 3; i < n; i++)
        if (fds[i].revents != 0)
            atomic_store_explicit(&z->locals_ready, true, memory_order_relaxed);
}

static int until_due(int timeout_ms)
{
    const int64_t left_ms =
        thread_state.due_ms == INT64_MAX ? timeout_ms : thread_state.due_ms - ls_now_ms();

    if (left_ms >= timeout_ms)
        return timeout_ms;
    return left_ms < 0 ? 0 : (int)left_ms;
}

void sleep_wait(sleepers *z, int timeout_ms)
{
    sleeper *own;

    if (thread_state.serial != z->serial)
        return; // this thread has not called progress() yet
    if (z->local != NULL && local_count(z->local) > 1 && !thread_state.has_checked) {
        if (!thread_state.is_prepared)
            local_prepare_sleep(z->local);
        thread_state.is_prepared = true;
        return;
    }
    own = sleeper_acquire(z);
    if (own != NULL) {
        sleep_in(z, own, until_due(timeout_ms));
        sleeper_release(z, own);
    }
    cancel_sleep(z);
}

void sleep_wake(sleepers *z)
{
    const uint64_t one = 1;

    ls_mutex_lock(&z->mu);
    z->wakes++;
    for (const sleeper *each = z->all; each != NULL; each = each->next)
        if (each->is_used)
            (void)!write(each->fd, &one, sizeof(one)); // a full counter wakes as well
    ls_mutex_unlock(&z->mu);
}
