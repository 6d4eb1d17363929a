/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.c - what descriptors stand for, and the network of the simulated machines.
 *
 * A connection between machines delivers its bytes in order, after a random time for each piece.
 * Where the network is cut nothing arrives; when it is back, TCP sends again after up to a second.
 * A connection with a user timeout (TCP_USER_TIMEOUT) breaks at each end when the network has been
 * cut for so long, in whichever direction. Bytes within a machine arrive at once.
 */
#include "sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int __real_close(int fd);

enum { BUFFER_BYTES = 256 * 1024, PIPE_BYTES = 64 * 1024, FULL_BYTES = 2048 };

#define END_OF_STREAM 0
#define RESET         SIZE_MAX
#define RESEND        SECOND
#define CONNECT_AGAIN SECOND

/* --- descriptors --- */

object *object_new(object_kind kind)
{
    object *o = sim_alloc(sizeof(*o));

    o->kind = kind;
    o->fd = -1;
    o->next = W->objects;
    o->number = W->objects == NULL ? 1 : W->objects->number + 1;
    W->objects = o;
    if (W->current != NULL) {
        o->host = W->current->host;
        o->pid = W->current->pid;
    }
    return o;
}

static void free_segments(segment **list)
{
    while (*list != NULL) {
        segment *s = *list;

        *list = s->next;
        sim_free(s);
    }
}

void object_free(object *o)
{
    free_segments(&o->in);
    free_segments(&o->flight);
    while (o->watched != NULL) {
        watch *w = o->watched;

        o->watched = w->next_of_owner;
        sim_free(w);
    }
    sim_free(o);
}

int fd_of(object *o)
{
    process *p = W->current;

    for (int fd = 0; fd < FDS_MAX; fd++)
        if (p->fds[fd] == NULL) {
            p->fds[fd] = o;
            o->refs++;
            return fd;
        }
    errno = EMFILE;
    return -1;
}

object *object_of(int fd)
{
    object *o = fd >= 0 && fd < FDS_MAX ? W->current->fds[fd] : NULL;

    if (o == NULL)
        errno = EBADF;
    return o;
}

/* --- readiness --- */

static size_t capacity(const object *o)
{
    if (W->now < W->full_until && !o->is_packet)
        return FULL_BYTES;
    return o->is_pipe ? PIPE_BYTES : BUFFER_BYTES;
}

static size_t space(const object *o)
{
    const object *to = o->peer;
    const size_t used = to->in_bytes + to->flight_bytes;

    return used < capacity(o) ? capacity(o) - used : 0;
}

static uint32_t stream_ready(const object *o)
{
    uint32_t bits = 0;

    if (o->is_connecting)
        return 0;
    if (o->in != NULL || o->has_ended || o->error != 0)
        bits |= EPOLLIN;
    if (o->has_ended)
        bits |= EPOLLRDHUP;
    if (o->error != 0)
        bits |= EPOLLERR | EPOLLHUP | EPOLLOUT;
    else if (o->is_connected && !o->has_shut && (o->has_ended || space(o) > capacity(o) / 3))
        bits |= EPOLLOUT;
    if (o->has_ended && (o->has_shut || o->is_pipe))
        bits |= EPOLLHUP;
    return bits;
}

uint32_t object_ready(const object *o)
{
    switch (o->kind) {
    case OBJECT_STREAM:
        return stream_ready(o);
    case OBJECT_LISTENER:
        return o->n_pending > 0 ? EPOLLIN : 0;
    case OBJECT_COUNTER:
        return (o->count > 0 ? EPOLLIN : 0) | EPOLLOUT;
    case OBJECT_SIGNALS:
        return o->owner != NULL && o->owner->pending != 0 ? EPOLLIN : 0;
    case OBJECT_SOCKET:
        return EPOLLOUT | EPOLLHUP;
    case OBJECT_EPOLL:
        for (const watch *w = o->watched; w != NULL; w = w->next_of_owner)
            if ((object_ready(w->target) & (w->events | EPOLLERR | EPOLLHUP)) != 0)
                return EPOLLIN;
        return 0;
    case OBJECT_NULL:
    case OBJECT_CONSOLE:
    case OBJECT_FILE:
        break;
    }
    return EPOLLIN | EPOLLOUT;
}

void object_changed(object *o)
{
    for (const watch *w = o->watchers; w != NULL; w = w->next_of_target) {
        process *p = w->waiter != NULL ? w->waiter : w->epoll->waiter;

        if ((object_ready(o) & (w->events | EPOLLERR | EPOLLHUP)) == 0)
            continue;
        if (p != NULL)
            process_wake(p);
        if (w->epoll != NULL)
            object_changed(w->epoll);
    }
}

/* --- streams --- */

static int64_t one_way(int from, int to)
{
    const scenario *s = W->spec;
    int64_t ns = from == to ? 5000 : s->latency + (int64_t)world_random((uint64_t)s->jitter);

    if (from != to && world_random(200) == 0)
        ns += 200 * MS; /* a lost packet */
    if (from != to && W->now < W->hosts[from].delay_until)
        ns += (int64_t)world_random((uint64_t)W->hosts[from].delay);
    if (from != to && W->now < W->hosts[to].delay_until)
        ns += (int64_t)world_random((uint64_t)W->hosts[to].delay);
    return ns;
}

static bool is_cut(int from, int to)
{
    return from != to && (W->is_cut[from][to] || W->hosts[from].is_off || W->hosts[to].is_off);
}

static bool crosses(const object *o)
{
    return o->family != AF_UNIX && !o->is_pipe && o->peer != NULL && o->peer->host != o->host;
}

static void append(segment **first, segment **last, segment *s)
{
    if (*first == NULL)
        *first = s;
    else
        (*last)->next = s;
    *last = s;
    s->next = NULL;
}

static void break_stream(object *o, int error)
{
    if (o->error == 0)
        o->error = error;
    o->has_ended = true;
    free_segments(&o->flight);
    o->flight_bytes = 0;
    object_changed(o);
}

static void arrive(object *o, segment *s)
{
    world_trace(o->number, s->bytes);
    if (s->bytes == RESET) {
        sim_free(s);
        break_stream(o, ECONNRESET);
        return;
    }
    if (s->bytes == END_OF_STREAM) {
        sim_free(s);
        o->has_ended = true;
    } else if (o->is_closed) { /* the sender gets a reset */
        sim_free(s);
        if (o->peer->error == 0 && !o->peer->has_ended)
            stream_pair(NULL, o);
        return;
    } else {
        append(&o->in, &o->in_last, s);
        o->in_bytes += s->bytes;
    }
    object_changed(o);
}

static void deliver(void *arg, uint64_t number);

static void deliver_later(object *o, int64_t at)
{
    if (o->is_delivering)
        return;
    o->is_delivering = true;
    world_at(at, deliver, o, 0);
}

static void deliver(void *arg, uint64_t number)
{
    object *o = arg;

    (void)number;
    o->is_delivering = false;
    while (o->flight != NULL && o->flight->due <= W->now) {
        segment *s = o->flight;

        if (crosses(o) && is_cut(o->peer->host, o->host)) {
            o->is_held = true;
            return;
        }
        o->flight = s->next;
        if (s->bytes != RESET)
            o->flight_bytes -= s->bytes;
        arrive(o, s);
    }
    if (o->flight != NULL)
        deliver_later(o, o->flight->due);
}

static void transmit(object *from, const void *data, size_t bytes)
{
    object *to = from->peer;
    segment *s = sim_alloc(sizeof(*s) + (bytes != RESET ? bytes : 0));

    s->bytes = bytes;
    if (bytes != RESET && bytes > 0)
        memcpy(s->data, data, bytes);
    if (!crosses(from)) {
        arrive(to, s);
        return;
    }
    s->due = W->now + one_way(from->host, to->host);
    if (to->flight != NULL && to->flight_last->due > s->due)
        s->due = to->flight_last->due;
    append(&to->flight, &to->flight_last, s);
    if (bytes != RESET)
        to->flight_bytes += bytes;
    if (!to->is_held)
        deliver_later(to, to->flight->due);
}

/* Connects two ends. a NULL: the peer of b gets a reset. */
void stream_pair(object *a, object *b)
{
    if (a == NULL) {
        transmit(b, NULL, RESET);
        return;
    }
    a->kind = b->kind = OBJECT_STREAM;
    a->peer = b;
    b->peer = a;
    a->is_connected = b->is_connected = true;
}

ssize_t stream_send(object *o, const void *data, size_t bytes)
{
    size_t n;

    if (o->error != 0 && o->error != EPIPE) {
        errno = o->error;
        o->error = EPIPE;
        return -1;
    }
    if (!o->is_connected || o->has_shut || o->error != 0 || (o->peer->is_closed && !crosses(o))) {
        errno = o->is_connected ? EPIPE : ENOTCONN;
        return -1;
    }
    n = space(o);
    if (n == 0 || (o->is_packet && n < bytes)) {
        errno = EAGAIN;
        return -1;
    }
    n = n < bytes ? n : bytes;
    if (n > 0)
        transmit(o, data, n);
    return (ssize_t)n;
}

/* The sender may write again. */
static void make_space(object *o, size_t bytes)
{
    o->in_bytes -= bytes;
    if (o->peer != NULL)
        object_changed(o->peer);
}

ssize_t stream_receive(object *o, void *data, size_t bytes, bool peeks)
{
    size_t done = 0;

    if (o->in == NULL && o->error != 0 && o->error != EPIPE) {
        errno = o->error;
        o->error = EPIPE;
        return -1;
    }
    if (o->in == NULL && !o->has_ended) {
        errno = o->is_connected ? EAGAIN : ENOTCONN;
        return -1;
    }
    for (segment *s = o->in; s != NULL && done < bytes;) {
        segment *next = s->next;
        size_t n = s->bytes - s->taken;

        n = n < bytes - done ? n : bytes - done;
        memcpy((char *)data + done, s->data + s->taken, n);
        done += n;
        if (!peeks) {
            s->taken += n;
            if (s->taken == s->bytes || o->is_packet) {
                o->in = next;
                make_space(o, s->bytes);
                sim_free(s);
            }
        }
        if (o->is_packet)
            break;
        s = next;
    }
    return (ssize_t)done;
}

/* --- closing --- */

static void unwatch_all(object *o)
{
    while (o->watchers != NULL) {
        watch *w = o->watchers;
        watch **at;

        o->watchers = w->next_of_target;
        if (w->epoll == NULL)
            continue; /* of poll(), which unlinks its own */
        for (at = &w->epoll->watched; *at != w; at = &(*at)->next_of_owner)
            continue;
        *at = w->next_of_owner;
        sim_free(w);
    }
}

void stream_shut(object *o)
{
    if (o->has_shut || o->error != 0)
        return;
    o->has_shut = true;
    transmit(o, NULL, END_OF_STREAM);
}

static void close_stream(object *o)
{
    const bool has_bytes = o->in != NULL && !o->is_pipe;

    free_segments(&o->in);
    o->in_bytes = 0;
    if (o->peer == NULL || o->error != 0)
        return;
    if (has_bytes && o->family != AF_UNIX)
        transmit(o, NULL, RESET);
    else if (!o->has_shut)
        transmit(o, NULL, END_OF_STREAM);
    o->has_shut = true;
    object_changed(o->peer);
}

void object_drop(object *o)
{
    if (--o->refs > 0)
        return;
    o->is_closed = true;
    unwatch_all(o);
    if (o->kind == OBJECT_FILE)
        (void)__real_close(o->fd);
    if (o->kind == OBJECT_STREAM)
        close_stream(o);
    for (int i = 0; o->kind == OBJECT_LISTENER && i < o->n_pending; i++) {
        o->pending[i]->refs = 1;
        object_drop(o->pending[i]);
    }
    while (o->kind == OBJECT_EPOLL && o->watched != NULL) {
        watch *w = o->watched;
        watch **at = &w->target->watchers;

        while (*at != w)
            at = &(*at)->next_of_target;
        *at = w->next_of_target;
        o->watched = w->next_of_owner;
        sim_free(w);
    }
    if (o->kind == OBJECT_LISTENER)
        o->kind = OBJECT_SOCKET;
}

/* --- addresses --- */

static int host_of(const struct sockaddr_in *a, int own)
{
    const uint32_t ip = ntohl(a->sin_addr.s_addr);

    if (ip >> 24 == 127)
        return own;
    return ip >> 8 == 0x0a0000 && (ip & 255) >= 1 && (ip & 255) <= HOSTS_MAX ? (int)(ip & 255) - 1
                                                                             : -1;
}

static bool is_same(const object *o, const struct sockaddr *at)
{
    const struct sockaddr_in *a = (const void *)&o->at;
    const struct sockaddr_in *b = (const void *)at;

    if (o->at.ss_family != at->sa_family)
        return false;
    if (at->sa_family == AF_UNIX)
        return memcmp(&o->at, at, sizeof(struct sockaddr_un)) == 0;
    return a->sin_port == b->sin_port;
}

static object *find_bound(int host, const struct sockaddr *at)
{
    for (object *o = W->objects; o != NULL; o = o->next)
        if (o->refs > 0 && o->host == host && o->peer == NULL &&
            (o->kind == OBJECT_LISTENER || o->kind == OBJECT_SOCKET) && is_same(o, at))
            return o;
    return NULL;
}

static void set_address(struct sockaddr_storage *to, const struct sockaddr *from, socklen_t bytes)
{
    memset(to, 0, sizeof(*to));
    memcpy(to, from, bytes < sizeof(*to) ? bytes : sizeof(*to));
}

static int free_port(int host)
{
    return W->hosts[host].next_port++;
}

int net_bind(object *o, const struct sockaddr *at, socklen_t bytes)
{
    set_address(&o->at, at, bytes);
    if (at->sa_family == AF_INET) {
        struct sockaddr_in *in = (void *)&o->at;

        if (in->sin_port == 0)
            in->sin_port = htons((uint16_t)free_port(o->host));
    }
    o->family = at->sa_family;
    for (const object *other = W->objects; other != NULL; other = other->next)
        if (other != o && other->refs > 0 && other->host == o->host &&
            other->kind == OBJECT_LISTENER && is_same(other, (void *)&o->at)) {
            errno = EADDRINUSE;
            return -1;
        }
    return 0;
}

/* --- connecting --- */

static void finish_connect(void *arg, uint64_t error)
{
    object *o = arg;

    if (!o->is_connecting)
        return;
    o->is_connecting = false;
    o->is_connected = error == 0;
    o->error = (int)error;
    if (o->is_closed && o->peer != NULL)
        close_stream(o);
    object_changed(o);
}

/* The first packet of a connection is at the other machine. */
static void reach(void *arg, uint64_t number)
{
    object *o = arg;
    const int to = host_of((const void *)&o->to, o->host);
    object *listener;
    object *other;

    if (o->is_closed)
        return;
    if (to < 0 || is_cut(o->host, to) || is_cut(to, o->host)) {
        if (number < 7) /* it is sent again, with a pause that doubles */
            world_at(W->now + (CONNECT_AGAIN << number), reach, o, number + 1);
        else
            finish_connect(o, ETIMEDOUT);
        return;
    }
    listener = find_bound(to, (void *)&o->to);
    if (listener == NULL || listener->kind != OBJECT_LISTENER ||
        listener->n_pending == (int)LS_COUNT_OF(listener->pending)) {
        world_at(W->now + one_way(to, o->host), finish_connect, o, ECONNREFUSED);
        return;
    }
    other = object_new(OBJECT_STREAM);
    other->host = to;
    other->pid = listener->pid;
    other->family = AF_INET;
    other->at = o->to;
    other->to = o->at;
    stream_pair(o, other);
    o->is_connected = false;
    listener->pending[listener->n_pending++] = other;
    object_changed(listener);
    world_at(W->now + one_way(to, o->host), finish_connect, o, 0);
}

static int connect_unix(object *o, const struct sockaddr *to)
{
    object *listener = find_bound(o->host, to);
    object *other;

    if (listener == NULL || listener->kind != OBJECT_LISTENER) {
        errno = ECONNREFUSED;
        return -1;
    }
    if (listener->n_pending == (int)LS_COUNT_OF(listener->pending)) {
        errno = EAGAIN;
        return -1;
    }
    other = object_new(OBJECT_STREAM);
    other->family = AF_UNIX;
    other->is_packet = o->is_packet;
    other->host = o->host;
    other->pid = listener->pid;
    other->at = listener->at;
    stream_pair(o, other);
    listener->pending[listener->n_pending++] = other;
    object_changed(listener);
    return 0;
}

int net_start_connect(object *o, const struct sockaddr *to, socklen_t bytes)
{
    struct sockaddr_in *own = (void *)&o->at;

    set_address(&o->to, to, bytes);
    o->family = to->sa_family;
    if (to->sa_family == AF_UNIX)
        return connect_unix(o, (void *)&o->to);
    if (own->sin_family == 0) {
        const uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)to)->sin_addr.s_addr);

        own->sin_family = AF_INET;
        own->sin_addr.s_addr = htonl(ip >> 24 == 127 ? ip : 0x0a000001U + (uint32_t)o->host);
        own->sin_port = htons((uint16_t)free_port(o->host));
    }
    o->kind = OBJECT_STREAM;
    o->is_connecting = true;
    world_at(W->now + one_way(o->host, host_of((const void *)&o->to, o->host) < 0
                                           ? o->host
                                           : host_of((const void *)&o->to, o->host)),
             reach, o, 0);
    errno = EINPROGRESS;
    return -1;
}

/* --- cuts --- */

static void time_out(void *arg, uint64_t since)
{
    object *o = arg;
    const int a = o->host;
    const int b = o->peer->host;
    const bool lasts = (is_cut(a, b) && (uint64_t)W->cut_since[a][b] <= since) ||
                       (is_cut(b, a) && (uint64_t)W->cut_since[b][a] <= since);

    if (lasts && !o->is_closed && o->error == 0 && o->user_timeout > 0)
        break_stream(o, ETIMEDOUT);
}

int64_t net_silence(const object *o)
{
    const int a = o->host;
    const int b = o->peer != NULL ? o->peer->host : a;
    const int64_t there = is_cut(a, b) ? W->now - W->cut_since[a][b] : 0;
    const int64_t back = is_cut(b, a) ? W->now - W->cut_since[b][a] : 0;

    return there > back ? there : back;
}

/* Also of a connection that was made just before the network was cut. */
void net_set_user_timeout(object *o, int64_t ns)
{
    o->user_timeout = ns;
    if (ns > 0 && o->peer != NULL && crosses(o) && net_silence(o) > 0)
        world_at(W->now + ns + (int64_t)world_random(1200 * MS), time_out, o, (uint64_t)W->now);
}

static bool is_between(const object *o, int a, int b)
{
    return o->kind == OBJECT_STREAM && o->peer != NULL && crosses(o) && o->host == a &&
           o->peer->host == b;
}

/* Its idle connections notice as well, by keepalive packets. */
static void begin_cut(int a, int b)
{
    for (object *o = W->objects; o != NULL; o = o->next)
        if ((is_between(o, a, b) || is_between(o, b, a)) && o->user_timeout > 0 && !o->is_closed)
            world_at(W->now + o->user_timeout + (int64_t)world_random(1200 * MS), time_out, o,
                     (uint64_t)W->now);
}

static void end_cut(int from, int to)
{
    for (object *o = W->objects; o != NULL; o = o->next) {
        if (!is_between(o, to, from) || !o->is_held)
            continue;
        o->is_held = false;
        for (segment *s = o->flight; s != NULL; s = s->next)
            s->due = s->due > W->now ? s->due : W->now;
        deliver_later(o, W->now + (int64_t)world_random(RESEND));
    }
}

void net_cut(int from, int to, bool is_cut_now)
{
    W->n_cuts[from][to] += is_cut_now ? 1 : -1;
    if (W->is_cut[from][to] == (W->n_cuts[from][to] > 0))
        return;
    W->is_cut[from][to] = is_cut_now;
    W->cut_since[from][to] = W->now;
    if (is_cut_now)
        begin_cut(from, to);
    else
        end_cut(from, to);
}

void net_host_off(int host)
{
    for (int i = 0; i < W->spec->n_nodes; i++) {
        if (i == host)
            continue;
        net_cut(host, i, true);
        net_cut(i, host, true);
    }
}
