/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_streams.c - pairs of ranks with several connections: how many there are, what happens
 * when one fails or is never made, and which peer may make one.
 */
#include "comm/native_mesh_ranks.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/backends/native/link/message.h"
#include "net/socket.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT   100000 /* of float32: some 6 blocks */
#define FDS_MAX 256
#define STREAMS 3

// --- this process's sockets ---

static int port_of(int fd, int (*name)(int fd, struct sockaddr *at, socklen_t *bytes))
{
    struct sockaddr_in at = {0};
    socklen_t bytes = sizeof(at);

    if (name(fd, (struct sockaddr *)&at, &bytes) != 0 || at.sin_family != AF_INET)
        return -1;
    return ntohs(at.sin_port);
}

static int peer_port(int fd)
{
    return port_of(fd, getpeername);
}

static int own_port(int fd)
{
    return port_of(fd, getsockname);
}

/* Counts the ends of TCP connections, of all ranks. */
static int find_connections(int fds[FDS_MAX])
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    for (const struct dirent *e = readdir(d); e != NULL && n < FDS_MAX; e = readdir(d)) {
        const int fd = (int)strtol(e->d_name, NULL, 10);

        if (e->d_name[0] != '.' && peer_port(fd) >= 0)
            fds[n++] = fd;
    }
    (void)closedir(d);
    return n;
}

// --- operations that use all of them ---

static ls_status sum_up(mesh_rank *r, float *data)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(r->rank + i % 7);
    return mesh_do(&r->world, &(coll){.kind = COLL_ALL_REDUCE,
                                      .dtype = LS_F32,
                                      .redop = LS_SUM,
                                      .count = COUNT,
                                      .src = data,
                                      .dst = data});
}

static bool is_sum(const mesh_rank *r, const float *data)
{
    for (int i = 0; i < COUNT; i++)
        if (data[i] != (float)(r->size * (r->size - 1) / 2 + r->size * (i % 7)))
            return false;
    return true;
}

// --- how many there are ---

typedef struct census {
    atomic_int n_ready;
    atomic_int n_counted;
    int n;
} census;

static int count_connections(mesh_rank *r, void *arg)
{
    float *data = ls_calloc(COUNT, sizeof(*data));
    census *c = arg;
    int fds[FDS_MAX];

    MESH_CHECK(data != NULL);
    for (int i = 0; i < 3; i++) {
        MESH_CHECK(sum_up(r, data) == LS_OK);
        MESH_CHECK(is_sum(r, data));
    }
    atomic_fetch_add(&c->n_ready, 1);
    mesh_drive_until(r, &c->n_ready, r->size);
    if (r->rank == 0) {
        c->n = find_connections(fds);
        atomic_fetch_add(&c->n_counted, 1);
    }
    mesh_drive_until(r, &c->n_counted, 1);
    ls_free(data);
    return 0;
}

static void each_pair_has_the_requested_number_of_connections(void **state)
{
    LS_UNUSED(state);
    for (int k = 1; k <= 8; k += k < 2 ? 1 : 6) {
        for (int size = 2; size <= 3; size++) {
            census c = {0};
            const mesh_job job = {.size = size,
                                  .transport = "tcp",
                                  .fn = count_connections,
                                  .arg = &c,
                                  .connections = k};

            assert_int_equal(mesh_run(&job), 0);
            assert_int_equal(c.n, size * (size - 1) * k);
        }
    }
}

// --- a connection that fails ---

typedef struct cut {
    int which; /* the connection, in the order of ports; either end of it */
    bool is_reset;
    atomic_int n_over;
} cut;

static int by_port(const void *a, const void *b)
{
    return own_port(*(const int *)a) - own_port(*(const int *)b);
}

/* A middlebox cuts one of the connections: both ends get a reset, or one an orderly end and the
 * other nothing. */
static int cut_connection(const cut *c)
{
    const struct sockaddr unspecified = {.sa_family = AF_UNSPEC};
    int fds[FDS_MAX];
    const int n = find_connections(fds);
    int fd;

    if (n != 2 * STREAMS)
        return -1;
    qsort(fds, (size_t)n, sizeof(*fds), by_port);
    fd = fds[c->which];
    // TSan takes connect() for the creation of a descriptor, and then its use by others for a race.
    return c->is_reset ? (int)syscall(SYS_connect, fd, &unspecified, sizeof(unspecified))
                       : shutdown(fd, SHUT_RDWR);
}

static int go_on_until_cut(mesh_rank *r, void *arg)
{
    cut *c = arg;
    const char *other = r->rank == 0 ? "rank 1" : "rank 0";
    float *data = ls_calloc(COUNT, sizeof(float));
    const int64_t started_ms = ls_now_ms();
    ls_status st = LS_OK;

    MESH_CHECK(data != NULL);
    for (int i = 0; i < 1000 && st == LS_OK; i++) {
        if (i == 3 && r->rank == 0)
            MESH_CHECK(cut_connection(c) == 0);
        st = sum_up(r, data);
        MESH_CHECK(st != LS_OK || is_sum(r, data));
    }
    if (st != LS_EPEER || strstr(r->world.cause.text, other) == NULL)
        fprintf(stderr, "reported: %s\n", r->world.cause.text);
    MESH_CHECK(st == LS_EPEER);
    MESH_CHECK(strstr(r->world.cause.text, other) != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "all_reduce") != NULL);
    MESH_CHECK(ls_now_ms() - started_ms < 10000);
    // Neither rank leaves before both know.
    atomic_fetch_add(&c->n_over, 1);
    mesh_drive_until(r, &c->n_over, 2);
    ls_free(data);
    return 0;
}

static void connection_cut_in_mid_transfer_is_reported_with_the_peer(void **state)
{
    LS_UNUSED(state);
    for (int which = 0; which < 2 * STREAMS; which++) {
        for (int reset = 0; reset < 2; reset++) {
            cut c = {.which = which, .is_reset = reset != 0};
            const mesh_job job = {.size = 2,
                                  .transport = "tcp",
                                  .segment_bytes = 65536,
                                  .fn = go_on_until_cut,
                                  .arg = &c,
                                  .connections = STREAMS};

            assert_int_equal(mesh_run(&job), 0);
        }
    }
}

/* Rank 1 sleeps in a receive when its end of a connection gets a reset; rank 0 does nothing. */
static int wait_while_cut(mesh_rank *r, void *arg)
{
    cut *c = arg;
    float *data = ls_calloc(COUNT, sizeof(float));
    uint8_t byte = 0;
    const coll op = {.kind = COLL_RECV, .dtype = LS_U8, .count = 1, .root = 0, .dst = &byte};
    int64_t started_ms;

    MESH_CHECK(data != NULL);
    MESH_CHECK(sum_up(r, data) == LS_OK);
    MESH_CHECK(sum_up(r, data) == LS_OK);
    if (r->rank == 0) {
        const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
        struct pollfd nothing = {.fd = -1};

        (void)poll(&nothing, 1, 20); // so that it sleeps, most of the time
        MESH_CHECK(cut_connection(c) == 0);
        while (atomic_load(&c->n_over) == 0 && ls_deadline_left(deadline_ms) != 0)
            (void)poll(&nothing, 1, 1);
        MESH_CHECK(atomic_load(&c->n_over) == 1);
        ls_free(data);
        return 0;
    }
    started_ms = ls_now_ms();
    MESH_CHECK(mesh_do(&r->world, &op) == LS_EPEER);
    MESH_CHECK(strstr(r->world.cause.text, "connection to rank 0 (here) lost") != NULL);
    MESH_CHECK(ls_now_ms() - started_ms < 5000);
    atomic_fetch_add(&c->n_over, 1);
    ls_free(data);
    return 0;
}

static void failed_connection_wakes_a_rank_that_waits_for_another(void **state)
{
    LS_UNUSED(state);
    for (int which = 0; which < 2 * STREAMS; which++) {
        cut c = {.which = which, .is_reset = true};
        const mesh_job job = {
            .size = 2, .transport = "tcp", .fn = wait_while_cut, .arg = &c, .connections = STREAMS};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static int wait_long(mesh_rank *r, void *arg)
{
    float *data = ls_calloc(COUNT, sizeof(float));
    struct pollfd nothing = {.fd = -1};
    struct rusage before;
    struct rusage after;
    uint8_t byte = 0;
    const coll op = {.kind = r->rank == 0 ? COLL_RECV : COLL_SEND,
                     .dtype = LS_U8,
                     .count = 1,
                     .root = 1 - r->rank,
                     .src = &byte,
                     .dst = &byte};

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL && sum_up(r, data) == LS_OK);
    getrusage(RUSAGE_THREAD, &before);
    if (r->rank == 1)
        (void)poll(&nothing, 1, 300);
    MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    getrusage(RUSAGE_THREAD, &after);
    MESH_CHECK((after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
                before.ru_stime.tv_sec) *
                       1000000 +
                   after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
                   before.ru_stime.tv_usec <
               120000);
    ls_free(data);
    return 0;
}

static void waiting_rank_uses_no_core(void **state)
{
    const mesh_job job = {.size = 2, .transport = "tcp", .fn = wait_long, .connections = STREAMS};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- ranks simulated by the test ---

static ls_status connect_as_peer(const mesh_rank *r, uint8_t number, int *fd)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
    handshake_claim claim = {.purpose = NET_PURPOSE_DATA,
                             .from = (uint32_t)r->rank,
                             .to = 0,
                             .generation = r->boot.generation,
                             .stream = number};
    seal_pair seals;

    memcpy(claim.job, r->boot.job, sizeof(claim.job));
    LS_TRY(net_connect(&r->boot.records[0].addresses[0], NET_STREAM, deadline_ms, fd));
    return handshake_connect(*fd, r->boot.key, &claim, "rank 0", deadline_ms, NULL, &seals);
}

static ls_status answer_by_hand(const mesh_rank *r, int *fd)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
    handshake_claim expected = {
        .purpose = NET_PURPOSE_DATA, .to = (uint32_t)r->rank, .generation = r->boot.generation};
    handshake h;
    short events = 0;

    memcpy(expected.job, r->boot.job, sizeof(expected.job));
    LS_TRY(net_wait(r->boot.listen_fd, POLLIN, deadline_ms));
    LS_TRY(net_accept(r->boot.listen_fd, fd));
    LS_TRY(handshake_server(&h, r->boot.key, &expected, "rank 0"));
    while (h.state == HANDSHAKE_RUNNING) {
        LS_TRY(handshake_step(&h, *fd, &events));
        if (h.state == HANDSHAKE_RUNNING)
            LS_TRY(net_wait(*fd, events, deadline_ms));
    }
    return LS_OK;
}

static bool is_closed(int fd)
{
    char byte;

    return net_wait(fd, POLLIN, ls_deadline_ms(MESH_TIMEOUT_MS)) == LS_OK &&
           recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

typedef struct scene {
    atomic_int n_over;
    int connections;
} scene;

static mesh_job job_of(mesh_fn fn, scene *s)
{
    return (mesh_job){.size = 2,
                      .transport = "tcp",
                      .fn = fn,
                      .arg = s,
                      .no_world = true,
                      .connections = s->connections};
}

static ls_status join_by_itself(mesh_rank *r)
{
    LS_TRY(native_backend_ops.open(&r->boot, &r->host, &r->state));
    return mesh_open_group(r, &r->world, 0, NULL, r->size);
}

static void leave(mesh_rank *r)
{
    mesh_close_group(&r->world);
    native_backend_ops.close(r->state, 0);
}

// Rank 1 accepts the first connection, and closes its listener.
static int miss_the_others(mesh_rank *r, void *arg)
{
    scene *s = arg;
    float *data = ls_calloc(COUNT, sizeof(float));
    const int64_t started_ms = ls_now_ms();
    int fd = -1;

    MESH_CHECK(data != NULL);
    if (r->rank == 1) {
        MESH_CHECK(answer_by_hand(r, &fd) == LS_OK);
        close(r->boot.listen_fd);
        while (!is_closed(fd)) // ignores what comes before
            continue;
        atomic_store(&s->n_over, 1);
        close(fd);
    } else {
        MESH_CHECK(join_by_itself(r) == LS_OK);
        MESH_CHECK(sum_up(r, data) == LS_EPEER);
        if (strstr(r->world.cause.text, " of 3: ") == NULL)
            fprintf(stderr, "reported: %s\n", r->world.cause.text);
        MESH_CHECK(strstr(r->world.cause.text, "rank 1 (here) cannot be reached for all_reduce"));
        MESH_CHECK(strstr(r->world.cause.text, ": connection "));
        MESH_CHECK(strstr(r->world.cause.text, " of 3: cannot connect to tcp://127.0.0.1:"));
        MESH_CHECK(ls_now_ms() - started_ms < 8000);
        mesh_drive_until(r, &s->n_over, 1); // the peer knows before this rank leaves
        MESH_CHECK(atomic_load(&s->n_over) == 1);
        leave(r);
    }
    ls_free(data);
    return 0;
}

static void connection_that_cannot_be_made_is_reported(void **state)
{
    scene s = {.connections = STREAMS};
    const mesh_job job = job_of(miss_the_others, &s);

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// Rank 1 accepts the first connection, receives a message and leaves. The error must not be that
// the other connections cannot be made then.
static int leave_early(mesh_rank *r, void *arg)
{
    const int64_t started_ms = ls_now_ms();
    float *data = ls_calloc(COUNT, sizeof(float));
    mesh_group other;
    int fd = -1;

    LS_UNUSED(arg);
    MESH_CHECK(data != NULL);
    if (r->rank == 1) {
        MESH_CHECK(answer_by_hand(r, &fd) == LS_OK);
        close(r->boot.listen_fd);
        MESH_CHECK(net_wait(fd, POLLIN, ls_deadline_ms(MESH_TIMEOUT_MS)) == LS_OK);
        MESH_CHECK(shutdown(fd, SHUT_WR) == 0);
        while (!is_closed(fd))
            continue;
        close(fd);
        ls_free(data);
        return 0;
    }
    MESH_CHECK(join_by_itself(r) == LS_OK);
    MESH_CHECK(sum_up(r, data) == LS_EPEER);
    MESH_CHECK(strstr(r->world.cause.text, "rank 1 (here) closed its connection") != NULL);
    while (ls_now_ms() - started_ms < 600) { // the last attempt has been refused
        (void)native_backend_ops.progress(r->state);
        (void)usleep(1000);
    }
    MESH_CHECK(mesh_open_group(r, &other, 5, NULL, r->size) == LS_OK);
    MESH_CHECK(mesh_do(&other, &(coll){.kind = COLL_BARRIER}) == LS_EPEER);
    if (strstr(other.cause.text, "closed") == NULL)
        fprintf(stderr, "reported: %s\n", other.cause.text);
    MESH_CHECK(strstr(other.cause.text, "rank 1 (here) closed its connection") != NULL);
    mesh_close_group(&other);
    leave(r);
    ls_free(data);
    return 0;
}

static void rank_that_leaves_before_all_are_made_is_reported_as_left(void **state)
{
    scene s = {.connections = STREAMS};
    const mesh_job job = job_of(leave_early, &s);

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// Connections that rank 0 cannot expect, with lower and higher numbers than those that it does.
static int bring_too_many(mesh_rank *r, void *arg)
{
    static const uint8_t wrong[] = {STREAMS, 8, 200, 255, 1};
    const int64_t started_ms = ls_now_ms();
    scene *s = arg;
    float *data = ls_calloc(COUNT, sizeof(float));
    int fds[STREAMS];
    int fd;

    MESH_CHECK(data != NULL);
    if (r->rank == 0) {
        mesh_work w = {0};

        MESH_CHECK(join_by_itself(r) == LS_OK);
        mesh_drive_until(r, &s->n_over, 1);
        // Five messages of 40000 bytes: three blocks and a part of one, which begins the second
        // round.
        for (int i = 0; i < 5; i++) {
            mesh_start(&r->world, &w,
                       &(coll){.kind = COLL_SEND,
                               .dtype = LS_F32,
                               .count = 10000,
                               .root = 1,
                               .tag = i,
                               .src = data});
            MESH_CHECK(mesh_wait(&w) == LS_OK);
        }
        mesh_drive_until(r, &s->n_over, 2);
        leave(r);
        ls_free(data);
        return 0;
    }
    close(r->boot.listen_fd);
    MESH_CHECK(connect_as_peer(r, 1, &fds[1]) == LS_OK); // before the first, and saved
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        MESH_CHECK(connect_as_peer(r, wrong[i], &fd) == LS_OK);
        MESH_CHECK(is_closed(fd));
        close(fd);
    }
    MESH_CHECK(connect_as_peer(r, 0, &fds[0]) == LS_OK);
    MESH_CHECK(connect_as_peer(r, 2, &fds[2]) == LS_OK);
    for (uint8_t number = 0; number < STREAMS; number++) {
        MESH_CHECK(connect_as_peer(r, number, &fd) == LS_OK); // all are there
        MESH_CHECK(is_closed(fd));
        close(fd);
    }
    atomic_store(&s->n_over, 1);
    for (int i = 0; i < STREAMS; i++) {
        const size_t all = (size_t)5 * (MESSAGE_HEADER_BYTES + 40000) + MESSAGE_HEADER_BYTES;
        const size_t expected = i == 0 ? 65536 + all - (size_t)3 * 65536 : 65536;
        size_t bytes = 0;

        while (bytes < expected && ls_now_ms() - started_ms < MESH_TIMEOUT_MS) {
            const ssize_t n = recv(fds[i], data, expected - bytes, MSG_DONTWAIT);

            bytes += n > 0 ? (size_t)n : 0;
        }
        MESH_CHECK(bytes == expected);
    }
    atomic_store(&s->n_over, 2);
    for (int i = 0; i < STREAMS; i++)
        close(fds[i]);
    ls_free(data);
    return 0;
}

static void unexpected_connections_are_closed(void **state)
{
    scene s = {.connections = STREAMS};
    const mesh_job job = job_of(bring_too_many, &s);

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// Rank 0 has one connection a pair.
static int bring_a_second(mesh_rank *r, void *arg)
{
    scene *s = arg;
    int fd;

    if (r->rank == 0) {
        MESH_CHECK(join_by_itself(r) == LS_OK);
        mesh_drive_until(r, &s->n_over, 1);
        leave(r);
        return 0;
    }
    close(r->boot.listen_fd);
    MESH_CHECK(connect_as_peer(r, 1, &fd) == LS_OK);
    MESH_CHECK(is_closed(fd));
    close(fd);
    atomic_store(&s->n_over, 1);
    return 0;
}

static void link_with_one_connection_makes_no_second(void **state)
{
    scene s = {.connections = 1};
    const mesh_job job = job_of(bring_a_second, &s);

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

/* Rank 0 leaves while its other connections are half made (rank 1 answers the first only), or while
 * one waits for the first. */
static int go_half_made(mesh_rank *r, void *arg)
{
    scene *s = arg;
    const int64_t started_ms = ls_now_ms();
    float *data = ls_calloc(COUNT, sizeof(float));
    mesh_work w = {0};
    int fd = -1;

    MESH_CHECK(data != NULL);
    if (r->rank == 0) {
        MESH_CHECK(join_by_itself(r) == LS_OK);
        mesh_start(&r->world, &w,
                   &(coll){.kind = COLL_ALL_REDUCE,
                           .dtype = LS_F32,
                           .redop = LS_SUM,
                           .count = COUNT,
                           .src = data,
                           .dst = data});
        mesh_drive_until(r, &s->n_over, 1);
        leave(r);
        MESH_CHECK(w.is_done && w.status == LS_ECANCELED);
        MESH_CHECK(ls_now_ms() - started_ms < 5000);
        ls_free(data);
        return 0;
    }
    MESH_CHECK(answer_by_hand(r, &fd) == LS_OK);
    // The first message selects the connection, and then rank 0 makes the others.
    MESH_CHECK(net_wait(fd, POLLIN, ls_deadline_ms(MESH_TIMEOUT_MS)) == LS_OK);
    MESH_CHECK(net_wait(r->boot.listen_fd, POLLIN, ls_deadline_ms(MESH_TIMEOUT_MS)) == LS_OK);
    atomic_store(&s->n_over, 1);
    ls_free(data);
    while (net_wait(fd, POLLIN, ls_deadline_ms(MESH_TIMEOUT_MS)) == LS_OK) {
        char byte[1000];

        if (recv(fd, byte, sizeof(byte), MSG_DONTWAIT) <= 0)
            break;
    }
    close(fd);
    close(r->boot.listen_fd);
    return 0;
}

static int go_before_the_first(mesh_rank *r, void *arg)
{
    scene *s = arg;
    int fd;

    if (r->rank == 0) {
        MESH_CHECK(join_by_itself(r) == LS_OK);
        mesh_drive_until(r, &s->n_over, 1);
        leave(r);
        atomic_store(&s->n_over, 2);
        return 0;
    }
    close(r->boot.listen_fd);
    MESH_CHECK(connect_as_peer(r, 2, &fd) == LS_OK);
    atomic_store(&s->n_over, 1);
    MESH_CHECK(is_closed(fd));
    close(fd);
    return 0;
}

static void rank_may_leave_while_connections_are_half_made(void **state)
{
    int before[FDS_MAX];
    int after[FDS_MAX];
    const int n = find_connections(before);

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        scene s = {.connections = STREAMS};
        const mesh_job job = job_of(i == 0 ? go_half_made : go_before_the_first, &s);

        assert_int_equal(mesh_run(&job), 0);
        assert_int_equal(find_connections(after), n);
    }
}

// --- a forked child ---

static int fork_a_child(mesh_rank *r, void *arg)
{
    scene *s = arg;
    float *data = ls_calloc(COUNT, sizeof(float));
    int fds[FDS_MAX];
    int status = -1;
    pid_t child;

    MESH_CHECK(data != NULL && sum_up(r, data) == LS_OK);
    atomic_fetch_add(&s->n_over, 1);
    mesh_drive_until(r, &s->n_over, 2); // so all are made
    if (r->rank == 0) {
        const int n = find_connections(fds);

        MESH_CHECK(n == 2 * STREAMS); // of both ranks
        child = fork();
        if (child == 0) {
            native_backend_ops.forked(r->state);
            _exit(find_connections(fds));
        }
        MESH_CHECK(waitpid(child, &status, 0) == child);
        MESH_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == STREAMS);
        atomic_fetch_add(&s->n_over, 1);
    }
    mesh_drive_until(r, &s->n_over, 3);
    MESH_CHECK(sum_up(r, data) == LS_OK); // the parent's connections still work
    MESH_CHECK(is_sum(r, data));
    ls_free(data);
    return 0;
}

static void forked_child_holds_no_connection(void **state)
{
    scene s = {.connections = STREAMS};
    mesh_job job = job_of(fork_a_child, &s);

    LS_UNUSED(state);
    job.no_world = false;
    assert_int_equal(mesh_run(&job), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pair_has_the_requested_number_of_connections),
        cmocka_unit_test(connection_cut_in_mid_transfer_is_reported_with_the_peer),
        cmocka_unit_test(failed_connection_wakes_a_rank_that_waits_for_another),
        cmocka_unit_test(waiting_rank_uses_no_core),
        cmocka_unit_test(connection_that_cannot_be_made_is_reported),
        cmocka_unit_test(rank_that_leaves_before_all_are_made_is_reported_as_left),
        cmocka_unit_test(unexpected_connections_are_closed),
        cmocka_unit_test(link_with_one_connection_makes_no_second),
        cmocka_unit_test(rank_may_leave_while_connections_are_half_made),
        cmocka_unit_test(forked_child_holds_no_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
