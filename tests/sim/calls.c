/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - the calls by which the launcher talks to the kernel, answered by the simulation. The
 * linker puts them in the place of the real ones (ld --wrap, CMakeLists.txt). Files do not exist,
 * but memfds do. Here: clocks, descriptors, waits, transfers.
 */
#include "sim/sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

int __real_memfd_create(const char *name, unsigned flags);
int __real_ftruncate(int fd, off_t bytes);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __real_fstat(int fd, struct stat *out);
ssize_t __real_pread(int fd, void *data, size_t bytes, off_t at);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __real_read(int fd, void *data, size_t bytes);
ssize_t __real_write(int fd, const void *data, size_t bytes);
int __real_munmap(void *at, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_fcntl(int fd, int command, ...);
int __real_close(int fd);
int __real_clock_gettime(clockid_t clock, struct timespec *out);

#define IS_OUTSIDE (W == NULL || W->current == NULL)

/* --- every call --- */

machine *own_host(void)
{
    return &W->hosts[W->current->host];
}

void begin_call(void)
{
    machine *h = own_host();

    if (W->current == h->agent && h->calls_left > 0 && --h->calls_left == 0) {
        h->was_killed = true;
        W->last_kill = W->now;
        process_die(W->current, SIGKILL);
    }
    if (W->current->calls_left > 0 && --W->current->calls_left == 0) {
        W->last_kill = W->now;
        process_die(W->current, SIGKILL);
    }
}

bool call_fails(call c)
{
    machine *h = own_host();

    if (W->current != h->agent || h->call_fails[c] == 0)
        return false;
    if (h->call_skips[c] > 0) {
        h->call_skips[c]--;
        return false;
    }
    h->call_fails[c]--;
    W->last_failed_call = W->now;
    world_log("%s: a call of kind %d fails", W->current->name, (int)c);
    return true;
}

int fail(int error)
{
    errno = error;
    return -1;
}

static int64_t until_of(int timeout_ms)
{
    return timeout_ms < 0 ? NEVER : W->now + timeout_ms * MS;
}

/* Time passes, and others run. */
static void pass_time(void)
{
    const bool is_slow = W->now < own_host()->slow_until;

    process_wait(W->now + (int64_t)(1000 + world_random(is_slow ? 3000000 : 20000)));
}

/* --- clocks --- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int64_t ns;

    if (IS_OUTSIDE)
        return __real_clock_gettime(clock, out);
    W->now += W->current->role == ROLE_RANK ? 2000 : 30; /* ranks that spin sleep soon */
    ns = W->now + own_host()->clock + (clock == CLOCK_REALTIME ? EPOCH_S * SECOND : 0);
    *out = (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
    return 0;
}

time_t __wrap_time(time_t *out)
{
    const time_t s = EPOCH_S + (time_t)(W->now / SECOND);

    if (out != NULL)
        *out = s;
    return s;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    process_wait(W->now + t->tv_sec * SECOND + t->tv_nsec);
    return 0;
}

/* Long, so that waiting for another process takes few of them. */
int __wrap_sched_yield(void)
{
    process_wait(W->now + (int64_t)(100000 + world_random(900000)));
    return 0;
}

/* --- descriptors --- */

int __wrap_close(int fd)
{
    object *o;

    if (IS_OUTSIDE)
        return __real_close(fd);
    o = object_of(fd);
    if (o == NULL)
        return -1;
    W->current->fds[fd] = NULL;
    object_drop(o);
    return 0;
}

int __wrap_open(const char *path, int flags, ...)
{
    (void)flags;
    return strcmp(path, "/dev/null") == 0 ? fd_of(object_new(OBJECT_NULL)) : fail(ENOENT);
}

int __wrap_openat(int folder, const char *path, int flags, ...)
{
    (void)folder;
    (void)path;
    (void)flags;
    return fail(ENOENT);
}

int __wrap_mkostemp(char *path, int flags)
{
    (void)path;
    (void)flags;
    return fail(EACCES);
}

int __wrap_access(const char *path, int mode)
{
    (void)path;
    (void)mode;
    return fail(ENOENT);
}

FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    (void)path;
    (void)mode;
    errno = ENOENT;
    return NULL;
}

DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
    (void)path;
    errno = ENOENT;
    return NULL;
}

ssize_t __wrap_readlink(const char *path, char *buf, size_t n)
{
    (void)path;
    (void)buf;
    (void)n;
    return fail(ENOENT);
}

int __wrap_stat(const char *path, struct stat *out)
{
    if (strcmp(path, "/proc/self/ns/net") != 0)
        return fail(ENOENT);
    memset(out, 0, sizeof(*out));
    out->st_dev = 4;
    out->st_ino = (ino_t)W->current->host + 1;
    return 0;
}

int __wrap_fstat(int fd, struct stat *out)
{
    const object *o = object_of(fd);

    if (o == NULL)
        return -1;
    if (o->kind == OBJECT_FILE)
        return __real_fstat(o->fd, out);
    memset(out, 0, sizeof(*out));
    out->st_mode = o->kind == OBJECT_CONSOLE ? S_IFREG : o->is_pipe ? S_IFIFO : S_IFSOCK;
    out->st_ino = o->number;
    return 0;
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    object *o;

    begin_call();
    if (call_fails(CALL_MEMFD))
        return fail(ENFILE);
    o = object_new(OBJECT_FILE);
    o->fd = __real_memfd_create(name, flags);
    return fd_of(o);
}

int __wrap_ftruncate(int fd, off_t bytes)
{
    const object *o = object_of(fd);

    return o != NULL ? __real_ftruncate(o->fd, bytes) : -1;
}

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes)
{
    const object *o = object_of(fd);

    return o != NULL ? __real_posix_fallocate(o->fd, at, bytes) : EBADF;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at)
{
    const object *o = object_of(fd);

    return o != NULL ? __real_pread(o->fd, data, bytes, at) : -1;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    const object *o = object_of(fd);

    return o != NULL ? __real_pwrite(o->fd, data, bytes, at) : -1;
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    const object *o = NULL;
    void *mapped;

    if (IS_OUTSIDE)
        return __real_mmap(at, bytes, protection, flags, fd, offset);
    if (fd >= 0 && (o = object_of(fd)) == NULL)
        return MAP_FAILED;
    mapped = __real_mmap(at, bytes, protection, flags, o != NULL ? o->fd : -1, offset);
    if (mapped != MAP_FAILED)
        process_map(mapped, bytes);
    return mapped;
}

int __wrap_munmap(void *at, size_t bytes)
{
    if (!IS_OUTSIDE)
        process_unmap(at);
    return __real_munmap(at, bytes);
}

static int duplicate(int from, int least)
{
    object *o = object_of(from);

    for (int fd = least; o != NULL && fd < FDS_MAX; fd++)
        if (W->current->fds[fd] == NULL) {
            W->current->fds[fd] = o;
            o->refs++;
            return fd;
        }
    return o != NULL ? fail(EMFILE) : -1;
}

int __wrap_dup3(int from, int to, int flags)
{
    object *o = object_of(from);

    (void)flags;
    if (o == NULL)
        return -1;
    o->refs++;
    if (W->current->fds[to] != NULL)
        object_drop(W->current->fds[to]);
    W->current->fds[to] = o;
    return to;
}

int __wrap_fcntl(int fd, int command, ...)
{
    object *o = object_of(fd);
    va_list args;
    long value;

    if (o == NULL)
        return -1;
    va_start(args, command);
    value = va_arg(args, long);
    va_end(args);
    switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        return duplicate(fd, (int)value);
    case F_GETFL:
        return o->flags | O_RDWR;
    case F_SETFL:
        o->flags = (int)value;
        return 0;
    case F_GETFD:
    case F_SETFD:
        return 0;
    default:
        return o->kind == OBJECT_FILE ? __real_fcntl(o->fd, command, value) : fail(EINVAL);
    }
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
    (void)fd;
    (void)request;
    return fail(EINVAL);
}

int __wrap_isatty(int fd)
{
    (void)fd;
    errno = ENOTTY;
    return 0;
}

/* --- waiting --- */

static void add_wait(watch *w, object *o, uint32_t events)
{
    process *p = W->current;

    *w = (watch){.target = o, .waiter = p, .events = events};
    w->next_of_target = o->watchers;
    o->watchers = w;
    w->next_of_owner = p->waits;
    p->waits = w;
}

static void end_waits(void)
{
    process *p = W->current;

    for (watch *w = p->waits; w != NULL; w = w->next_of_owner) {
        watch **at = &w->target->watchers;

        while (*at != NULL && *at != w)
            at = &(*at)->next_of_target;
        if (*at == w)
            *at = w->next_of_target;
    }
    p->waits = NULL;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    const int64_t until = until_of(timeout_ms);
    watch waits[64];
    int n_ready = 0;

    begin_call();
    pass_time();
    for (;;) {
        for (nfds_t i = 0; i < n; i++) {
            const object *o = fds[i].fd >= 0 ? object_of(fds[i].fd) : NULL;

            fds[i].revents = 0;
            if (fds[i].fd >= 0)
                fds[i].revents = o == NULL ? POLLNVAL
                                           : (short)(object_ready(o) & ((uint32_t)fds[i].events |
                                                                        EPOLLERR | EPOLLHUP));
            n_ready += fds[i].revents != 0;
        }
        if (n_ready > 0 || W->now >= until)
            return n_ready;
        for (nfds_t i = 0; i < n && i < LS_COUNT_OF(waits); i++)
            if (fds[i].fd >= 0)
                add_wait(&waits[i], object_of(fds[i].fd), (uint32_t)fds[i].events);
        process_wait(until);
        end_waits();
    }
}

static void wait_for(object *o, uint32_t events)
{
    watch w;

    while ((object_ready(o) & (events | EPOLLERR | EPOLLHUP)) == 0) {
        add_wait(&w, o, events);
        process_wait(NEVER);
        end_waits();
    }
}

int __wrap_epoll_create1(int flags)
{
    (void)flags;
    begin_call();
    return call_fails(CALL_EPOLL) ? fail(EMFILE) : fd_of(object_new(OBJECT_EPOLL));
}

int __wrap_epoll_ctl(int fd, int op, int target_fd, struct epoll_event *event)
{
    object *e = object_of(fd);
    object *target = object_of(target_fd);
    watch **at;
    watch *w;

    if (e == NULL || target == NULL)
        return -1;
    if (target->kind == OBJECT_CONSOLE || target->kind == OBJECT_FILE)
        return fail(EPERM);
    for (at = &e->watched; *at != NULL; at = &(*at)->next_of_owner)
        if ((*at)->fd == target_fd && (*at)->target == target)
            break;
    w = *at;
    if ((op == EPOLL_CTL_ADD) == (w != NULL))
        return fail(op == EPOLL_CTL_ADD ? EEXIST : ENOENT);
    if (op == EPOLL_CTL_DEL) {
        watch **of_target = &target->watchers;

        *at = w->next_of_owner;
        while (*of_target != w)
            of_target = &(*of_target)->next_of_target;
        *of_target = w->next_of_target;
        sim_free(w);
        return 0;
    }
    if (w == NULL) {
        if (call_fails(CALL_EPOLL))
            return fail(ENOSPC);
        w = sim_alloc(sizeof(*w));
        *w = (watch){.target = target, .epoll = e, .fd = target_fd};
        w->next_of_owner = e->watched;
        e->watched = w;
        w->next_of_target = target->watchers;
        target->watchers = w;
    }
    w->events = event->events;
    w->data = event->data.u64;
    return 0;
}

/* In an order that begins anywhere: events of different connections come in any order. */
static int collect(const object *e, struct epoll_event *events, int most)
{
    watch *ready[FDS_MAX];
    int n = 0;
    int first;

    for (watch *w = e->watched; w != NULL && n < FDS_MAX; w = w->next_of_owner)
        if ((object_ready(w->target) & (w->events | EPOLLERR | EPOLLHUP)) != 0)
            ready[n++] = w;
    first = n > 1 ? (int)world_random((uint64_t)n) : 0;
    n = n < most ? n : most;
    for (int i = 0; i < n; i++) {
        const watch *w = ready[(first + i) % n];

        events[i].events = object_ready(w->target) & (w->events | EPOLLERR | EPOLLHUP);
        events[i].data.u64 = w->data;
    }
    return n;
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    object *e = object_of(fd);
    const int64_t until = until_of(timeout_ms);
    int n;

    begin_call();
    if (timeout_ms != 0)
        pass_time();
    while ((n = collect(e, events, most)) == 0 && W->now < until) {
        e->waiter = W->current;
        process_wait(until);
        e->waiter = NULL;
    }
    world_trace((uint64_t)W->current->pid, (uint64_t)n);
    return n;
}

int __wrap_eventfd(unsigned count, int flags)
{
    object *o = object_new(OBJECT_COUNTER);

    o->count = count;
    o->flags = (flags & EFD_NONBLOCK) != 0 ? O_NONBLOCK : 0;
    return fd_of(o);
}

/* --- transfers --- */

static ssize_t read_signals(object *o, void *data, size_t bytes)
{
    struct signalfd_siginfo info = {0};
    process *p = o->owner;

    if (bytes < sizeof(info) || p->pending == 0)
        return fail(EAGAIN);
    info.ssi_signo = (uint32_t)__builtin_ctzll(p->pending);
    p->pending &= p->pending - 1;
    memcpy(data, &info, sizeof(info));
    return (ssize_t)sizeof(info);
}

static ssize_t read_counter(object *o, void *data, size_t bytes)
{
    if (o->count == 0 || bytes < sizeof(o->count))
        return fail(EAGAIN);
    memcpy(data, &o->count, sizeof(o->count));
    o->count = 0;
    return (ssize_t)sizeof(o->count);
}

static ssize_t receive(int fd, void *data, size_t bytes, int flags)
{
    object *o = object_of(fd);
    ssize_t n;

    if (o == NULL)
        return -1;
    begin_call();
    switch (o->kind) {
    case OBJECT_STREAM:
        for (;;) {
            n = stream_receive(o, data, bytes, (flags & MSG_PEEK) != 0);
            if (n >= 0 || errno != EAGAIN || (o->flags & O_NONBLOCK) != 0 ||
                (flags & MSG_DONTWAIT) != 0)
                break;
            wait_for(o, EPOLLIN);
        }
        world_trace(o->number, (uint64_t)n);
        return n;
    case OBJECT_COUNTER:
        return read_counter(o, data, bytes);
    case OBJECT_SIGNALS:
        return read_signals(o, data, bytes);
    case OBJECT_FILE:
        return __real_read(o->fd, data, bytes);
    default:
        return 0;
    }
}

static ssize_t transfer(int fd, const void *data, size_t bytes, int flags)
{
    object *o = object_of(fd);
    uint64_t count = 0;
    ssize_t n;

    if (o == NULL)
        return -1;
    begin_call();
    switch (o->kind) {
    case OBJECT_STREAM:
        for (;;) {
            n = stream_send(o, data, bytes);
            if (n >= 0 || errno != EAGAIN || (o->flags & O_NONBLOCK) != 0 ||
                (flags & MSG_DONTWAIT) != 0)
                break;
            wait_for(o, EPOLLOUT);
        }
        world_trace(o->number, (uint64_t)n);
        return n;
    case OBJECT_COUNTER:
        memcpy(&count, data, bytes < sizeof(count) ? bytes : sizeof(count));
        o->count += count;
        object_changed(o);
        return (ssize_t)bytes;
    case OBJECT_FILE:
        return __real_write(o->fd, data, bytes);
    case OBJECT_CONSOLE:
        world_log("%s| %.*s", W->current->name, (int)(bytes > 0 ? bytes - 1 : 0),
                  (const char *)data);
        return (ssize_t)bytes;
    default:
        return (ssize_t)bytes;
    }
}

ssize_t __wrap_read(int fd, void *data, size_t bytes)
{
    return IS_OUTSIDE ? __real_read(fd, data, bytes) : receive(fd, data, bytes, 0);
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    return receive(fd, data, bytes, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
    ssize_t done = 0;

    for (size_t i = 0; i < m->msg_iovlen; i++) {
        const struct iovec *piece = &m->msg_iov[i];
        const ssize_t got =
            piece->iov_len == 0 ? 0 : receive(fd, piece->iov_base, piece->iov_len, flags);

        if (got < 0)
            return done > 0 ? done : -1;
        done += got;
        if ((size_t)got < piece->iov_len)
            break;
    }
    return done;
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    return IS_OUTSIDE ? __real_write(fd, data, bytes) : transfer(fd, data, bytes, 0);
}

ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    return transfer(fd, data, bytes, flags);
}

static ssize_t transfer_pieces(int fd, const struct iovec *pieces, size_t n, int flags)
{
    ssize_t done = 0;

    for (size_t i = 0; i < n; i++) {
        const ssize_t sent =
            pieces[i].iov_len == 0 ? 0 : transfer(fd, pieces[i].iov_base, pieces[i].iov_len, flags);

        if (sent < 0)
            return done > 0 ? done : -1;
        done += sent;
        if ((size_t)sent < pieces[i].iov_len)
            break;
    }
    return done;
}

ssize_t __wrap_writev(int fd, const struct iovec *pieces, int n)
{
    return transfer_pieces(fd, pieces, (size_t)n, 0);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
    return transfer_pieces(fd, m->msg_iov, m->msg_iovlen, flags);
}
