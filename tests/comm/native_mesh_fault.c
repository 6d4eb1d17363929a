/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_fault.c - failures between ranks: mismatches, ends, garbage, unauthenticated peers.
 * The error must name each, and no rank may hang.
 */
#include "comm/native_mesh_ranks.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/backends/native/link/message.h"
#include "comm/backends/native/team/team.h"
#include "net/socket.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ELEMENTS 100000
#define FEW      10

// --- mismatches ---

/* What the ranks call in their first operation, and the words that the error must contain. */
typedef struct mismatch {
    coll ops[2];
    const char *words[2];
    bool ends_alone; /* one side's call may end well before the other begins */
} mismatch;

typedef struct quarreling {
    const mismatch *q;
    atomic_int n_named;
    atomic_int n_over;
} quarreling;

static int disagree(mesh_rank *r, void *arg)
{
    quarreling *now = arg;
    const mismatch *q = now->q;
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
    const char *text = r->world.cause.text;
    coll op = q->ops[r->rank];
    mesh_work w = {0};
    float *src = ls_calloc(2 * ELEMENTS, sizeof(float));
    float *dst = ls_calloc(2 * ELEMENTS, sizeof(float));

    MESH_CHECK(src != NULL && dst != NULL);
    op.src = src;
    op.dst = dst;
    mesh_start(&r->world, &w, &op);
    while (!r->world.is_broken && atomic_load(&now->n_named) == 0 &&
           ls_deadline_left(deadline_ms) != 0) {
        struct pollfd nothing = {.fd = -1};

        (void)native_backend_ops.progress(r->state);
        (void)poll(&nothing, 1, 1);
    }
    if (r->world.is_broken) {
        atomic_fetch_add(&now->n_named, 1);
        if (strstr(text, q->words[0]) == NULL || strstr(text, q->words[1]) == NULL)
            fprintf(stderr, "reported: %s\n", text);
        MESH_CHECK(strstr(text, q->words[0]) != NULL);
        MESH_CHECK(strstr(text, q->words[1]) != NULL);
        MESH_CHECK(r->world.cause.kind == CAUSE_MISMATCH);
    }
    // Every rank stays until all have checked, so that no end of a rank is taken for the cause.
    atomic_fetch_add(&now->n_over, 1);
    mesh_drive_until(r, &now->n_over, 2);
    native_backend_ops.abort_group(r->world.group, LS_ECANCELED, "over");
    MESH_CHECK(w.is_done);
    MESH_CHECK(w.status == LS_ECANCELED || q->ends_alone);
    ls_free(src);
    ls_free(dst);
    return 0;
}

#define REDUCE(n)  .kind = COLL_ALL_REDUCE, .dtype = LS_F32, .redop = LS_SUM, .count = (n)
#define CAST(n, r) .kind = COLL_BROADCAST, .dtype = LS_F32, .count = (n), .root = (r)
#define SEND(n)    .kind = COLL_SEND, .dtype = LS_F32, .count = (n), .root = 1
#define RECV(n)    .kind = COLL_RECV, .dtype = LS_F32, .count = (n), .root = 0
#define EXCHANGE(from, to)                                                                         \
    .kind = COLL_ALL_TO_ALL, .dtype = LS_U8, .src_counts = (from), .dst_counts = (to)

static void mismatched_ranks_are_named_with_their_calls(void **state)
{
    static const size_t one_one[2] = {1, 1};
    static const size_t one_five[2] = {1, 5};
    static const size_t five_one[2] = {5, 1};
    static const size_t one_many[2] = {1, 70000};
    static const size_t many_one[2] = {70000, 1};
    static const mismatch mismatches[] = {
        {{{REDUCE(FEW)}, {CAST(FEW, 1)}}, {"rank 0: all_reduce #1", "rank 1: broadcast #1"}, true},
        {{{REDUCE(ELEMENTS)}, {CAST(ELEMENTS, 0)}}, {"rank 0: all_reduce", "rank 1: broadc"}, true},
        {{{REDUCE(FEW)}, {REDUCE(FEW + 1)}}, {"10 float32", "11 float32"}, true},
        {{{REDUCE(FEW)}, {REDUCE(ELEMENTS)}}, {"10 float32", "100000 float32"}, true},
        {{{REDUCE(ELEMENTS)}, {REDUCE(ELEMENTS - 1)}}, {"100000 float", "99999 float"}, true},
        {{{REDUCE(FEW)}, {.kind = COLL_ALL_REDUCE, .dtype = LS_I32, .redop = LS_SUM, .count = FEW}},
         {"float32", "int32"},
         true},
        {{{REDUCE(FEW)}, {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .redop = LS_MAX, .count = FEW}},
         {"sum", "max"},
         true},
        {{{.kind = COLL_BARRIER}, {REDUCE(ELEMENTS)}}, {"barrier #1", "all_reduce #1"}, true},
        {{{CAST(FEW, 0)}, {CAST(FEW, 1)}}, {"root 0", "root 1"}, true},
        {{{EXCHANGE(one_many, one_five)}, {EXCHANGE(five_one, one_one)}},
         {"70000", "all_to_all_v #1"},
         true},
        {{{EXCHANGE(one_five, one_five)}, {EXCHANGE(five_one, many_one)}},
         {"70000", "all_to_all_v #1"},
         true},
        {{{SEND(FEW)}, {RECV(FEW + 1)}},
         {"rank 0: send #1 (to 1, 10 float32", "(from 0, 11 "},
         true},
        {{{SEND(ELEMENTS)}, {RECV(ELEMENTS + 1)}}, {"100000 float32", "100001 float32"}, false},
        {{{SEND(ELEMENTS)}, {RECV(FEW)}}, {"100000 float32", "10 float32"}, false},
        {{{SEND(FEW)}, {.kind = COLL_RECV, .dtype = LS_I32, .count = FEW, .root = LS_ANY_SOURCE}},
         {"to 1, 10 float32", "from any, 10 int32"},
         true},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(mismatches); i++) {
        for (int shared = 0; shared < 2; shared++) {
            quarreling now = {.q = &mismatches[i]};
            const mesh_job job = {
                .size = 2, .transport = shared ? "auto" : "tcp", .fn = disagree, .arg = &now};

            if (shared && mismatches[i].ops[0].kind != COLL_SEND)
                continue; // teams have tests of their own
            assert_int_equal(mesh_run(&job), 0);
            assert_true(atomic_load(&now.n_named) > 0);
        }
    }
}

// --- ranks that leave ---

static int leave(mesh_rank *r, void *arg)
{
    float value = 1;
    const coll op = {REDUCE(1), .src = &value, .dst = &value};

    LS_UNUSED(arg);
    MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    if (r->rank == 1)
        return 0; // and closes
    MESH_CHECK(mesh_do(&r->world, &op) == LS_EPEER);
    MESH_CHECK(r->world.cause.kind == CAUSE_FAULT);
    MESH_CHECK(r->world.cause.rank == 1);
    MESH_CHECK(strstr(r->world.cause.text, "rank 1") != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "all_reduce #2") != NULL);
    return 0;
}

static void operation_that_needs_a_rank_that_left_fails_with_its_number(void **state)
{
    const mesh_job two = {.size = 2, .transport = "tcp", .fn = leave};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&two), 0);
}

// Rank 1 sends, small and large, and leaves; rank 0 receives late.
static int send_and_go(mesh_rank *r, void *arg)
{
    enum { LARGE = 3 << 20 };
    atomic_int *has_gone = arg;
    uint8_t *data = ls_calloc(1, LARGE);
    mesh_work w = {0};
    mesh_work large = {0};
    coll op = {.kind = r->rank == 1 ? COLL_SEND : COLL_RECV,
               .dtype = LS_U8,
               .root = 1 - r->rank,
               .src = data,
               .dst = data};

    MESH_CHECK(data != NULL);
    data[6] = r->rank == 1 ? 99 : 0;
    op.count = LARGE;
    op.tag = 1;
    mesh_start(&r->world, &large, &op);
    op.tag = 0;
    op.count = 7;
    if (r->rank == 1) {
        for (int i = 0; i < 100; i++)
            MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
        MESH_CHECK(mesh_wait(&large) == LS_OK);
        mesh_close_group(&r->world);
        native_backend_ops.close(r->state, 5000);
        atomic_store(has_gone, 1);
        r->state = NULL;
        ls_free(data);
        return 0;
    }
    MESH_CHECK(mesh_wait(&large) == LS_OK);
    MESH_CHECK(data[6] == 99);
    mesh_drive_until(r, has_gone, 1);
    for (int i = 0; i < 100; i++) {
        data[6] = 0;
        mesh_start(&r->world, &w, &op);
        MESH_CHECK(mesh_wait(&w) == LS_OK);
        MESH_CHECK(data[6] == 99);
    }
    MESH_CHECK(mesh_do(&r->world, &op) == LS_EPEER); // there is no more
    ls_free(data);
    return 0;
}

static void messages_of_a_rank_that_left_can_be_received(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        atomic_int has_gone = 0;
        const mesh_job job = {
            .size = 2, .transport = transports[i], .fn = send_and_go, .arg = &has_gone};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static int receive_from_any(mesh_rank *r, void *arg)
{
    uint8_t byte = 0;
    const coll op = {
        .kind = COLL_RECV, .dtype = LS_U8, .count = 1, .root = LS_ANY_SOURCE, .dst = &byte};

    LS_UNUSED(arg);
    // A rank that was never connected cannot be noticed here when it leaves: the hub reports it to
    // the engine.
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    if (r->rank != 0)
        return 0;
    MESH_CHECK(mesh_do(&r->world, &op) == LS_EPEER);
    return 0;
}

static void receive_from_any_fails_when_all_others_have_left(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        const mesh_job job = {.size = 3, .transport = transports[i], .fn = receive_from_any};

        assert_int_equal(mesh_run(&job), 0);
    }
}

// --- malicious peers ---

/* Rank 1 is simulated: a connection that knows the key, and then writes `bytes`. */
typedef struct impostor {
    uint8_t bytes[2 * MESSAGE_HEADER_BYTES];
    size_t n_bytes;
    const char *words;
    atomic_int is_over;
} impostor;

static int meet_impostor(mesh_rank *r, void *arg)
{
    impostor *i = arg;
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
    float value = 1;

    if (r->rank == 1) {
        handshake_claim claim = {
            .purpose = NET_PURPOSE_DATA, .from = 1, .to = 0, .generation = r->boot.generation};
        seal_pair seals;
        char byte;
        int fd;

        memcpy(claim.job, r->boot.job, sizeof(claim.job));
        MESH_CHECK(net_connect(&r->boot.records[0].addresses[0], NET_STREAM, deadline_ms, &fd) ==
                   LS_OK);
        MESH_CHECK(handshake_connect(fd, r->boot.key, &claim, "rank 0", deadline_ms, NULL,
                                     &seals) == LS_OK);
        MESH_CHECK(net_send_all(fd, "rank 0", i->bytes, i->n_bytes, deadline_ms) == LS_OK);
        // Rank 0 closes it, or it ended at the bytes sent.
        if (i->n_bytes < MESSAGE_HEADER_BYTES)
            MESH_CHECK(shutdown(fd, SHUT_WR) == 0);
        while (net_wait(fd, POLLIN, deadline_ms) == LS_OK && read(fd, &byte, 1) > 0)
            continue;
        close(fd);
        close(r->boot.listen_fd);
        return 0;
    }
    MESH_CHECK(native_backend_ops.open(&r->boot, &r->host, &r->state) == LS_OK);
    MESH_CHECK(mesh_open_group(r, &r->world, 0, NULL, 2) == LS_OK);
    MESH_CHECK(mesh_do(&r->world, &(coll){REDUCE(1), .src = &value, .dst = &value}) != LS_OK);
    if (strstr(r->world.cause.text, i->words) == NULL)
        fprintf(stderr, "reported: %s\n", r->world.cause.text);
    MESH_CHECK(strstr(r->world.cause.text, i->words) != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "rank 1") != NULL);
    mesh_close_group(&r->world);
    native_backend_ops.close(r->state, 1000);
    return 0;
}

static void play(impostor *i, const char *words)
{
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = meet_impostor, .arg = i, .no_world = true};

    i->words = words;
    assert_int_equal(mesh_run(&job), 0);
}

static void play_message(const message *m, const char *words)
{
    impostor i = {.n_bytes = MESSAGE_HEADER_BYTES};

    message_encode(m, i.bytes);
    play(&i, words);
}

static void peer_that_sends_garbage_is_named(void **state)
{
    impostor garbage = {.n_bytes = sizeof(garbage.bytes)};
    impostor half = {.n_bytes = 50};
    message half_sent = {.type = MESSAGE_DATA, .total = 8, .bytes = 8};
    message last;
    uint8_t no_stamp[STAMP_BYTES];

    LS_UNUSED(state);
    memset(garbage.bytes, 0x5a, sizeof(garbage.bytes));
    play(&garbage, "sent an invalid message");
    message_encode(&half_sent, half.bytes);
    play(&half, "closed its connection");

    play_message(&(message){.type = MESSAGE_DATA, .bytes = 1U << 30, .total = 1U << 30},
                 "payload of 1073741824 bytes");
    play_message(&(message){.type = MESSAGE_CREDIT, .credit = 1U << 20}, "credit for 1048576");
    play_message(&(message){.type = MESSAGE_DATA, .sequence = 9, .bytes = 100, .total = 100},
                 "payload that was not requested");
    play_message(&(message){.type = MESSAGE_PIECE, .is_direct = true, .bytes = 9, .total = 9},
                 "piece of a message that was not requested");
    play_message(&(message){.type = MESSAGE_READY, .is_direct = true, .total = 9},
                 "answer to a message that was not announced");
    // An invalid stamp for the operation under way.
    last = (message){.type = MESSAGE_DATA, .is_charged = true, .sequence = 1, .bytes = 0};
    memset(no_stamp, 0xff, sizeof(no_stamp));
    last.stamp = no_stamp;
    play_message(&last, "an operation with an invalid stamp");
}

/* Rank 0 is simulated: its connection is authenticated, and ends before it sends anything. */
typedef struct early_end {
    atomic_int is_connected;
    atomic_int is_awaited;
} early_end;

static int meet_early_end(mesh_rank *r, void *arg)
{
    enum { PASSES = 50 }; /* in which rank 1 sees that it is authenticated */
    early_end *e = arg;
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
    handshake_claim claim = {
        .purpose = NET_PURPOSE_DATA, .to = 1, .generation = r->boot.generation};
    mesh_work w = {0};
    seal_pair seals;
    float value;
    int fd;

    if (r->rank == 0) {
        memcpy(claim.job, r->boot.job, sizeof(claim.job));
        MESH_CHECK(net_connect(&r->boot.records[1].addresses[0], NET_STREAM, deadline_ms, &fd) ==
                   LS_OK);
        MESH_CHECK(handshake_connect(fd, r->boot.key, &claim, "rank 1", deadline_ms, NULL,
                                     &seals) == LS_OK);
        atomic_store(&e->is_connected, 1);
        while (atomic_load(&e->is_awaited) == 0 && ls_deadline_left(deadline_ms) != 0)
            (void)usleep(1000);
        close(r->boot.listen_fd);
        close(fd);
        return 0;
    }
    MESH_CHECK(native_backend_ops.open(&r->boot, &r->host, &r->state) == LS_OK);
    MESH_CHECK(mesh_open_group(r, &r->world, 0, NULL, 2) == LS_OK);
    mesh_drive_until(r, &e->is_connected, 1);
    for (int i = 0; i < PASSES; i++) {
        (void)native_backend_ops.progress(r->state);
        (void)usleep(1000);
    }
    mesh_start(&r->world, &w, &(coll){RECV(1), .dst = &value});
    atomic_store(&e->is_awaited, 1);
    MESH_CHECK(mesh_wait(&w) == LS_EPEER);
    MESH_CHECK(strstr(r->world.cause.text, "rank 0 ") != NULL);
    mesh_close_group(&r->world);
    native_backend_ops.close(r->state, 1000);
    return 0;
}

static void receive_fails_when_its_sender_ends_before_it_sends(void **state)
{
    early_end e = {0};
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = meet_early_end, .arg = &e, .no_world = true};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- joining ---

static int join_among_unauthenticated(mesh_rank *r, void *arg)
{
    enum { CONNECTIONS = 200 };
    static const char nonsense[] = "GET / HTTP/1.0\r\n\r\n";
    int fds[CONNECTIONS];
    int64_t started_ms;

    LS_UNUSED(arg);
    if (r->rank == 1) { // before it joins, fills the listener of rank 0 with connections
        for (int i = 0; i < CONNECTIONS; i++) {
            MESH_CHECK(net_connect(&r->boot.records[0].addresses[0], NET_STREAM,
                                   ls_deadline_ms(MESH_TIMEOUT_MS), &fds[i]) == LS_OK);
            if (i % 2 == 0)
                (void)!write(fds[i], nonsense, sizeof(nonsense));
        }
    }
    started_ms = ls_now_ms();
    MESH_CHECK(native_backend_ops.open(&r->boot, &r->host, &r->state) == LS_OK);
    MESH_CHECK(mesh_open_group(r, &r->world, 0, NULL, r->size) == LS_OK);
    MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    // Far below the timeout of a silent connection.
    MESH_CHECK(r->rank == 0 || ls_now_ms() - started_ms < 4000);
    mesh_close_group(&r->world);
    native_backend_ops.close(r->state, 5000);
    for (int i = 0; i < CONNECTIONS && r->rank == 1; i++)
        close(fds[i]);
    return 0;
}

static void unauthenticated_connections_do_not_delay_a_rank(void **state)
{
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = join_among_unauthenticated, .no_world = true};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

typedef struct refusal {
    const char *words;
    atomic_int is_over;
} refusal;

// Rank 1 sends; rank 0 only listens until that has failed.
static int be_refused(mesh_rank *r, void *arg)
{
    refusal *now = arg;
    const int64_t started_ms = ls_now_ms();
    uint8_t byte = 1;

    if (r->rank == 0) {
        mesh_drive_until(r, &now->is_over, 1);
        return 0;
    }
    MESH_CHECK(
        mesh_do(&r->world,
                &(coll){.kind = COLL_SEND, .dtype = LS_U8, .count = 1, .root = 0, .src = &byte}) ==
        LS_EPEER);
    if (strstr(r->world.cause.text, now->words) == NULL)
        fprintf(stderr, "reported: %s\n", r->world.cause.text);
    MESH_CHECK(strstr(r->world.cause.text, now->words) != NULL);
    MESH_CHECK(strstr(r->world.cause.text, "rank 0 (here) cannot be reached for send") != NULL);
    MESH_CHECK(r->world.cause.rank == 0);
    MESH_CHECK(ls_now_ms() - started_ms < 5000); // no reason to wait for longer
    atomic_store(&now->is_over, 1);
    return 0;
}

static void rank_with_another_key_is_refused(void **state)
{
    net_key keys[2];
    refusal now = {.words = "key"};
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = be_refused, .arg = &now, .keys = keys};

    LS_UNUSED(state);
    assert_int_equal(net_key_random(&keys[0]), LS_OK);
    assert_int_equal(net_key_random(&keys[1]), LS_OK);
    assert_int_equal(mesh_run(&job), 0);
}

static void rank_in_another_security_mode_is_refused(void **state)
{
    static const net_security modes[] = {NET_ENCRYPT, NET_MAC};
    refusal now = {.words = "security is mac here, encrypt at"};
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = be_refused, .arg = &now, .modes = modes};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// The hub reports an abort while the other ranks never come: the join must end soon.
static int join_with_abort(mesh_rank *r, void *arg)
{
    int hub[2];
    const int64_t started_ms = ls_now_ms();

    if (r->rank == 1) { // takes no connection, and sends nothing
        const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);
        struct pollfd nothing = {.fd = -1};

        while (atomic_load((atomic_int *)arg) == 0 && ls_deadline_left(deadline_ms) != 0)
            (void)poll(&nothing, 1, 5);
        close(r->boot.listen_fd);
        close(r->boot.local_fd);
        return 0;
    }
    MESH_CHECK(pipe(hub) == 0 && write(hub[1], "x", 1) == 1);
    r->boot.control_fd = hub[0];
    MESH_CHECK(native_backend_ops.open(&r->boot, &r->host, &r->state) == LS_ETIMEOUT);
    MESH_CHECK(ls_now_ms() - started_ms < 20000);
    atomic_store((atomic_int *)arg, 1);
    close(hub[0]);
    close(hub[1]);
    return 0;
}

static void abort_from_the_hub_ends_a_join_without_peers(void **state)
{
    static const int hosts[2] = {0, 1};
    atomic_int is_over = 0;
    const mesh_job job = {.size = 2,
                          .transport = "auto",
                          .fn = join_with_abort,
                          .arg = &is_over,
                          .no_world = true,
                          .hosts = hosts};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

static int join_over_shm(mesh_rank *r, void *arg)
{
    LS_UNUSED(arg);
    MESH_CHECK(native_backend_ops.open(&r->boot, &r->host, &r->state) == LS_EUNSUPPORTED);
    MESH_CHECK(strstr(ls_last_error(), r->rank == 0 ? "but rank 1 (here) is not on this host"
                                                    : "but rank 0 (here) is not on this host"));
    MESH_CHECK(strstr(ls_last_error(), "set LOCKSTEP_TRANSPORT to auto") != NULL);
    return 0;
}

static void rank_of_another_host_is_refused_with_transport_shm(void **state)
{
    static const int hosts[] = {0, 1};
    const mesh_job job = {
        .size = 2, .transport = "shm", .fn = join_over_shm, .hosts = hosts, .no_world = true};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- no memory ---

typedef struct shortage {
    uint64_t fail_at;
    atomic_int n_ready;
    atomic_int n_over;
    bool has_failed;
} shortage;

// Rank 0's n-th allocation during one operation fails: rank 0 gets an error, or the operation ends
// well; nothing else.
static int run_short(mesh_rank *r, void *arg)
{
    enum { COUNT = 50000 };
    shortage *now = arg;
    float *data = ls_calloc(COUNT, sizeof(float));
    mesh_work w = {0};

    MESH_CHECK(data != NULL);
    atomic_fetch_add(&now->n_ready, 1);
    mesh_drive_until(r, &now->n_ready, r->rank == 0 ? r->size : r->size + 1);
    if (r->rank == 0)
        ls_alloc_fail_at(now->fail_at);
    mesh_start(&r->world, &w,
               &(coll){.kind = COLL_ALL_REDUCE,
                       .dtype = LS_F32,
                       .redop = LS_SUM,
                       .count = COUNT,
                       .src = data,
                       .dst = data});
    if (r->rank == 0) {
        for (int i = 0; i < 20 && !w.is_done; i++)
            (void)native_backend_ops.progress(r->state);
        ls_alloc_fail_at(0);
        now->has_failed = r->world.is_broken || (w.is_done && w.status != LS_OK);
        if (now->has_failed)
            MESH_CHECK(strstr(r->world.cause.text, "no memory") != NULL);
        atomic_fetch_add(&now->n_ready, 1);
    }
    if (!now->has_failed && r->rank == 0)
        MESH_CHECK(mesh_wait(&w) == LS_OK);
    while (r->rank != 0 && !w.is_done && atomic_load(&now->n_over) == 0)
        (void)native_backend_ops.progress(r->state);
    atomic_fetch_add(&now->n_over, 1);
    mesh_drive_until(r, &now->n_over, r->size);
    native_backend_ops.abort_group(r->world.group, LS_ECANCELED, "over");
    ls_free(data);
    return 0;
}

static void operation_without_memory_fails_with_a_text(void **state)
{
    int n_failed = 0;

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 14; n++) {
        shortage now = {.fail_at = n};
        const mesh_job job = {
            .size = 3, .transport = "tcp", .segment_bytes = 16384, .fn = run_short, .arg = &now};

        assert_int_equal(mesh_run(&job), 0);
        n_failed += now.has_failed;
    }
    assert_true(n_failed > 8); // or the test tests nothing
}

static int join_short(mesh_rank *r, void *arg)
{
    atomic_int *has_begun = arg;
    ls_status st = LS_ENOMEM;
    comm_boot boot = r->boot; /* borrowed until close() */
    int n = 0;

    if (r->rank == 1) {
        atomic_store(has_begun, 1);
        close(r->boot.listen_fd);
        return 0;
    }
    while (atomic_load(has_begun) == 0) // no other thread allocates from now on
        (void)usleep(1000);
    for (uint64_t at = 1; st == LS_ENOMEM; at++, n++) {
        boot.listen_fd = dup(r->boot.listen_fd); // open takes it
        ls_alloc_fail_at(at);
        st = native_backend_ops.open(&boot, &r->host, &r->state);
        ls_alloc_fail_at(0);
    }
    MESH_CHECK(st == LS_OK);
    MESH_CHECK(n > 3);
    native_backend_ops.close(r->state, 0);
    close(r->boot.listen_fd);
    return 0;
}

static void join_without_memory_leaks_nothing(void **state)
{
    atomic_int has_begun = 0;
    const mesh_job job = {
        .size = 2, .transport = "tcp", .fn = join_short, .arg = &has_begun, .no_world = true};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- sleeping ---

typedef struct waking {
    mesh_rank *r;
    atomic_bool is_woken;
} waking;

static void wake_later(void *arg)
{
    waking *w = arg;

    (void)poll(NULL, 0, 50);
    atomic_store(&w->is_woken, true);
    native_backend_ops.wake(w->r->state);
}

static int sleep_and_wake(mesh_rank *r, void *arg)
{
    waking w = {.r = r};
    ls_thread waker = {0};
    int64_t started_ms = ls_now_ms();

    LS_UNUSED(arg);
    // Woken before it sleeps: the wake-up is not lost.
    while (native_backend_ops.progress(r->state))
        continue;
    native_backend_ops.wake(r->state);
    native_backend_ops.wait(r->state, MESH_TIMEOUT_MS);
    MESH_CHECK(ls_now_ms() - started_ms < MESH_TIMEOUT_MS / 2);
    // And while it sleeps. Like the engine, it checks after the pass what a pass may have taken.
    MESH_CHECK(ls_thread_start(&waker, "waker", wake_later, &w) == LS_OK);
    for (;;) {
        while (native_backend_ops.progress(r->state))
            continue;
        if (atomic_load(&w.is_woken))
            break;
        native_backend_ops.wait(r->state, MESH_TIMEOUT_MS);
    }
    ls_thread_join(&waker);
    MESH_CHECK(ls_now_ms() - started_ms < MESH_TIMEOUT_MS / 2);
    return 0;
}

static void wake_up_is_never_lost(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        const mesh_job job = {.size = 2, .transport = transports[i], .fn = sleep_and_wake};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static int idle(mesh_rank *r, void *arg)
{
    struct rusage before;
    struct rusage after;
    struct pollfd nothing = {.fd = -1};
    uint8_t byte = 0;
    const coll op = {.kind = r->rank == 0 ? COLL_RECV : COLL_SEND,
                     .dtype = LS_U8,
                     .count = 1,
                     .root = 1 - r->rank,
                     .src = &byte,
                     .dst = &byte};

    LS_UNUSED(arg);
    getrusage(RUSAGE_THREAD, &before);
    if (r->rank == 1)
        (void)poll(&nothing, 1, 700);
    MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    getrusage(RUSAGE_THREAD, &after);
    MESH_CHECK((after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec -
                   before.ru_utime.tv_usec <
               200000);
    return 0;
}

static void waiting_rank_uses_no_core(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        const mesh_job job = {.size = 2, .transport = transports[i], .fn = idle};

        assert_int_equal(mesh_run(&job), 0);
    }
}

// --- memory that the receiver cannot read ---

bool __real_team_read(const team *t, int member, const char *from, char *to, size_t bytes);
bool __wrap_team_read(const team *t, int member, const char *from, char *to, size_t bytes);

static _Thread_local bool reads_fail;

bool __wrap_team_read(const team *t, int member, const char *from, char *to, size_t bytes)
{
    return !reads_fail && __real_team_read(t, member, from, to, bytes);
}

// Rank 1 receives nothing until rank 0 has used all its credit, so that the small message is
// offered.
static int receive_without_reading(mesh_rank *r, void *arg)
{
    enum { BLOCK = 65536 - MESSAGE_HEADER_BYTES, BLOCKS = 16, SMALL = 1000 };
    atomic_int *has_sent = arg;
    uint8_t *data = ls_calloc(1, BLOCK);
    mesh_work w = {0};
    coll op = {.kind = r->rank == 0 ? COLL_SEND : COLL_RECV,
               .dtype = LS_U8,
               .root = 1 - r->rank,
               .count = BLOCK,
               .src = data,
               .dst = data};

    MESH_CHECK(data != NULL);
    reads_fail = r->rank == 1;
    if (r->rank == 1)
        mesh_drive_until(r, has_sent, 1);
    for (int i = 0; i < BLOCKS; i++)
        MESH_CHECK(mesh_do(&r->world, &op) == LS_OK);
    op.count = SMALL;
    data[SMALL - 1] = r->rank == 0 ? 99 : 0;
    mesh_start(&r->world, &w, &op);
    atomic_store(has_sent, 1);
    MESH_CHECK(mesh_wait(&w) == LS_OK);
    MESH_CHECK(data[SMALL - 1] == 99);
    ls_free(data);
    return 0;
}

static void small_message_is_sent_when_the_receiver_cannot_read_it(void **state)
{
    atomic_int has_sent = 0;
    const mesh_job job = {
        .size = 2, .transport = "auto", .fn = receive_without_reading, .arg = &has_sent};

    LS_UNUSED(state);
    assert_int_equal(mesh_run(&job), 0);
}

// --- waiting beside other processes ---

int __real_sched_yield(void);
int __wrap_sched_yield(void);

static _Thread_local int n_slow_yields = -1; /* -1: the calls of this thread are not slow */

// As on a busy machine: other processes use the core for 10 ms.
int __wrap_sched_yield(void)
{
    if (n_slow_yields < 0)
        return __real_sched_yield();
    n_slow_yields++;
    return poll(NULL, 0, 10);
}

static int rush_alone(mesh_rank *r, void *arg)
{
    backend_counter others = 0;
    atomic_int *is_over = arg;
    mesh_work w = {0};

    if (r->rank == 0) {
        mesh_start(&r->world, &w, &(coll){.kind = COLL_BARRIER});
        n_slow_yields = 0;
        native_backend_ops.spin_wait(r->world.group, CORE_OF_RANKS, &others);
        atomic_store(is_over, 1);
        MESH_CHECK(!w.is_done);
        MESH_CHECK(n_slow_yields > 0 && n_slow_yields < 50);
        n_slow_yields = -1;
    } else {
        mesh_drive_until(r, is_over, 1);
        mesh_start(&r->world, &w, &(coll){.kind = COLL_BARRIER});
    }
    MESH_CHECK(mesh_wait(&w) == LS_OK);
    return 0;
}

static void rank_that_spins_on_a_busy_machine_soon_reads_the_hub_again(void **state)
{
    static const char *const transports[] = {"tcp", "auto"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        atomic_int is_over = 0;
        const mesh_job job = {
            .size = 2, .transport = transports[i], .fn = rush_alone, .arg = &is_over};

        assert_int_equal(mesh_run(&job), 0);
    }
}

// Runs the tests that match one of the given patterns, or all.
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mismatched_ranks_are_named_with_their_calls),
        cmocka_unit_test(operation_that_needs_a_rank_that_left_fails_with_its_number),
        cmocka_unit_test(messages_of_a_rank_that_left_can_be_received),
        cmocka_unit_test(receive_from_any_fails_when_all_others_have_left),
        cmocka_unit_test(peer_that_sends_garbage_is_named),
        cmocka_unit_test(receive_fails_when_its_sender_ends_before_it_sends),
        cmocka_unit_test(unauthenticated_connections_do_not_delay_a_rank),
        cmocka_unit_test(rank_with_another_key_is_refused),
        cmocka_unit_test(rank_in_another_security_mode_is_refused),
        cmocka_unit_test(abort_from_the_hub_ends_a_join_without_peers),
        cmocka_unit_test(rank_of_another_host_is_refused_with_transport_shm),
        cmocka_unit_test(operation_without_memory_fails_with_a_text),
        cmocka_unit_test(join_without_memory_leaks_nothing),
        cmocka_unit_test(wake_up_is_never_lost),
        cmocka_unit_test(waiting_rank_uses_no_core),
        cmocka_unit_test(small_message_is_sent_when_the_receiver_cannot_read_it),
        cmocka_unit_test(rank_that_spins_on_a_busy_machine_soon_reads_the_hub_again),
    };
    int failed = 0;

    for (int i = 1; i < argc; i++) {
        cmocka_set_test_filter(argv[i]);
        failed += cmocka_run_group_tests_name(argv[i], tests, NULL, NULL);
    }
    return argc > 1 ? failed : cmocka_run_group_tests(tests, NULL, NULL);
}
