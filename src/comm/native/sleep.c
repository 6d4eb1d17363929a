/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleep.c - letting threads sleep until something may have moved, without losing a wake-up.
 *
 * A thread sleeps only when nothing has happened since its own last call to progress(): wake() raises a count, progress()
 * notes it for the thread, wait() compares. Towards ranks of this host the order of local.h is needed (say that we sleep, look, sleep),
 * and the look is a progress(): so the first wait() after something moved only says it and returns, and the next one sleeps.
 */
#include "comm/native/mesh.h"
#include "comm/native/native.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOCAL_FDS_MAX 1024
#define READY_MAX     32

typedef struct sleeper {
    struct sleeper *next;
    int fd; /* eventfd */
    bool is_used;
} sleeper;

struct sleepers {
    int peers_fd; /* epoll over all peers' descriptors: one entry for poll(), whatever their number */
    int control_fd;
    int n_watched; /* descriptors there; under the engine's lock */
    ls_mutex mu;   // leaf; guards what follows
    sleeper *all;
    uint64_t wakes;
    uint64_t serial;          /* tells one backend from the next at the same address */
    atomic_bool peers_ready;  /* a sleeper saw them; the next progress() asks */
    atomic_bool locals_ready; /* the same for local channels */
};

/* What this thread knows of the backend it last progressed. */
typedef struct sleep_state {
    uint64_t serial;
    uint64_t wakes;
    bool is_prepared; /* local peers have been told that it sleeps */
    bool has_checked; /* and nothing had moved after that */
    int64_t due_ms;   /* when the mesh has something to do */
} sleep_state;

static _Thread_local sleep_state thread_state;

ls_status sleep_create(int control_fd, sleepers **out)
{
    static atomic_uint_fast64_t next_serial = 1; // a name, no state
    sleepers *z = ls_calloc(1, sizeof(*z));

    if (z == NULL)
        return ls_fail(LS_ENOMEM, "no memory for sleeping");
    z->peers_fd = epoll_create1(EPOLL_CLOEXEC);
    if (z->peers_fd < 0) {
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
    close(z->peers_fd);
    ls_mutex_destroy(&z->mu);
    ls_free(z);
}

// Another thread may hold `mu` for ever in the child; the list only ever grows at its front.
void sleep_forked(const sleepers *z)
{
    close(z->peers_fd);
    for (const sleeper *place = z->all; place != NULL; place = place->next)
        close(place->fd);
}

// --- peers' descriptors ---

static ls_status watch(sleepers *z, native_peer *p, int action)
{
    struct epoll_event event = {.events = EPOLLIN | (p->watches_write ? EPOLLOUT : 0U),
                                .data = {.ptr = p}};

    if (epoll_ctl(z->peers_fd, action, p->link->fd, &event) != 0)
        return ls_fail_errno("epoll_ctl");
    return LS_OK;
}

ls_status sleep_watch(sleepers *z, native_peer *p)
{
    if (p->link->fd < 0)
        return LS_OK;
    LS_TRY(watch(z, p, EPOLL_CTL_ADD));
    p->is_watched = true;
    z->n_watched++;
    return LS_OK;
}

void sleep_unwatch(sleepers *z, native_peer *p)
{
    if (p->is_watched) {
        (void)watch(z, p, EPOLL_CTL_DEL);
        z->n_watched--;
    }
    p->is_watched = false;
}

void sleep_update(sleepers *z, native_peer *p)
{
    const bool wanted = p->link->wants_write && !p->link->is_cut;

    if (!p->is_watched || p->watches_write == wanted)
        return;
    p->watches_write = wanted;
    (void)watch(z, p, EPOLL_CTL_MOD);
}

ls_status sleep_watch_mesh(sleepers *z, const mesh *m)
{
    struct epoll_event event = {.events = EPOLLIN}; // no peer

    if (epoll_ctl(z->peers_fd, EPOLL_CTL_ADD, mesh_fd(m), &event) != 0)
        return ls_fail_errno("epoll_ctl");
    z->n_watched++;
    return LS_OK;
}

int sleep_ready(sleepers *z, native_peer **peers, int max, bool *has_calls)
{
    struct epoll_event events[READY_MAX];
    int n_events;
    int n = 0;

    *has_calls = false;
    if (z->n_watched == 0)
        return 0;
    n_events = epoll_wait(z->peers_fd, events, max < READY_MAX ? max : READY_MAX, 0);
    atomic_store_explicit(&z->peers_ready, false, memory_order_relaxed);
    for (int i = 0; i < n_events; i++) {
        if (events[i].data.ptr == NULL)
            *has_calls = true;
        else
            peers[n++] = events[i].data.ptr;
    }
    return n;
}

bool sleep_peers_ready(const sleepers *z)
{
    return atomic_load_explicit(&z->peers_ready, memory_order_relaxed);
}

bool sleep_locals_ready(sleepers *z)
{
    return atomic_load_explicit(&z->locals_ready, memory_order_relaxed) &&
           atomic_exchange_explicit(&z->locals_ready, false, memory_order_relaxed);
}

// --- threads ---

void sleep_begin_progress(native_state *s)
{
    sleepers *z = s->sleepers;

    if (thread_state.serial != z->serial)
        thread_state = (sleep_state){.serial = z->serial};
    ls_mutex_lock(&z->mu);
    thread_state.wakes = z->wakes;
    ls_mutex_unlock(&z->mu);
    thread_state.has_checked = thread_state.is_prepared;
}

static void cancel_sleep(native_state *s)
{
    if (thread_state.is_prepared)
        local_end_sleep(s->local);
    thread_state.is_prepared = false;
    thread_state.has_checked = false;
}

void sleep_end_progress(native_state *s, bool moved)
{
    thread_state.due_ms = s->mesh == NULL ? INT64_MAX : mesh_due_ms(s->mesh);
    if (moved)
        cancel_sleep(s);
}

// A place to sleep in, NULL when something has happened meanwhile or there is no memory for one.
static sleeper *sleeper_acquire(sleepers *z)
{
    sleeper *place = NULL;

    ls_mutex_lock(&z->mu);
    if (z->wakes == thread_state.wakes) {
        for (place = z->all; place != NULL && place->is_used; place = place->next)
            continue;
        if (place == NULL) {
            place = ls_calloc(1, sizeof(*place));
            if (place != NULL) {
                place->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); // -1: poll() passes over it
                place->next = z->all;
                z->all = place;
            }
        }
        if (place != NULL)
            place->is_used = true;
    }
    ls_mutex_unlock(&z->mu);
    return place;
}

static void sleeper_release(sleepers *z, sleeper *place)
{
    uint64_t count;

    ls_mutex_lock(&z->mu);
    (void)!read(place->fd, &count, sizeof(count)); // empty when nobody woke us
    place->is_used = false;
    ls_mutex_unlock(&z->mu);
}

static void sleep_in(native_state *s, const sleeper *place, int timeout_ms)
{
    sleepers *z = s->sleepers;
    struct pollfd fds[LOCAL_FDS_MAX + 3];
    nfds_t n = 3;

    // poll() passes over an entry of -1.
    fds[0] = (struct pollfd){.fd = place->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = z->peers_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = z->control_fd, .events = POLLIN};
    if (s->local != NULL)
        n += (nfds_t)local_poll_fds(s->local, fds + 3, LOCAL_FDS_MAX);
    if (poll(fds, n, timeout_ms) <= 0)
        return;
    if (fds[1].revents != 0)
        atomic_store_explicit(&z->peers_ready, true, memory_order_relaxed);
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

void sleep_wait(native_state *s, int timeout_ms)
{
    sleepers *z = s->sleepers;
    sleeper *place;

    if (thread_state.serial != z->serial)
        return; // this thread has not looked at all
    if (s->local != NULL && local_count(s->local) > 1 && !thread_state.has_checked) {
        if (!thread_state.is_prepared)
            local_prepare_sleep(s->local);
        thread_state.is_prepared = true;
        return;
    }
    place = sleeper_acquire(z);
    if (place != NULL) {
        sleep_in(s, place, until_due(timeout_ms));
        sleeper_release(z, place);
    }
    cancel_sleep(s);
}

void sleep_wake(native_state *s)
{
    sleepers *z = s->sleepers;
    const uint64_t one = 1;

    ls_mutex_lock(&z->mu);
    z->wakes++;
    for (const sleeper *place = z->all; place != NULL; place = place->next)
        if (place->is_used)
            (void)!write(place->fd, &one, sizeof(one)); // full means awake already
    ls_mutex_unlock(&z->mu);
}
