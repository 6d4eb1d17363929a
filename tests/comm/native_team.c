/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_team.c - teams: every collective in every kind of memory against the oracle, and failures.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/backends/native/memory/copy.h"
#include "comm/backends/native/memory/segment_map.h"
#include "comm/backends/native/team/team_internal.h"
#include "comm/backends/native/team/algorithms.h"
#include "comm/comm.h"
#include "comm/native_oracle.h"
#include "comm/native_team_rank.h"

#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SEED        UINT64_C(77001)
#define PIECE_BYTES 8192 /* small, so that few elements make many pieces */
#define GUARD       64

#if defined(__SANITIZE_THREAD__)
#define IS_TSAN 1
#else
#define IS_TSAN 0
#endif

typedef enum where { USER = 0, SHARED, MIXED, WHERES } where;

static const char *const where_names[] = {"user memory", "shared memory", "mixed memory"};

/* The buffers of all cases of one rank: for the largest operation, in both kinds of memory. */
typedef struct bench {
    team_rank r;
    size_t bytes;
    char *user[2];   /* source, destination */
    char *shared[2]; /* the same from segment_create */
    char *all_src;   /* every rank's source, made here from the same seeds */
    char *want;
    int failures;
} bench;

typedef struct plan {
    ranks_kind kind;
    int n;
} plan;

/* What the teams of a test are like, by rank; the arrays begin again behind their end. */
typedef struct setup {
    const algorithm_table *table; /* NULL: the defaults */
    bool shares_cores;
    const char *sockets; /* "001": ranks 0 and 1 in one socket, rank 2 in another; NULL: one */
    const char *caches;  /* "012": each has a last cache of its own; NULL: not known */
    size_t piece_bytes;  /* 0: PIECE_BYTES */
} setup;

/* Without gates, with them, and with two levels and three. */
static const setup gate_setups[] = {{.table = NULL},
                                    {.shares_cores = true},
                                    {.sockets = "001"},
                                    {.sockets = "0011111", .caches = "0013355"}};

static void apply_setup(team_rank *r, const comm_boot *boot, const setup *s)
{
    const size_t rank = (size_t)boot->rank;

    r->table = s->table;
    r->shares_cores = s->shares_cores;
    r->place =
        (topology_place){.socket = s->sockets == NULL ? 0 : s->sockets[rank % strlen(s->sockets)],
                         .cache = s->caches == NULL ? -1 : s->caches[rank % strlen(s->caches)]};
}

static int open_bench(const comm_boot *boot, bench *b, const setup *s, size_t bytes)
{
    const size_t n = (size_t)boot->size;

    apply_setup(&b->r, boot, s);
    RANK_CHECK(team_rank_open(&b->r, boot, s->piece_bytes != 0 ? s->piece_bytes : PIECE_BYTES) ==
               LS_OK);
    b->bytes = bytes * n + 2 * GUARD;
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;

        b->user[i] = ls_alloc_aligned(64, b->bytes);
        RANK_CHECK(segment_create(b->r.l, SEGMENT_KEY_NONE, b->bytes, &memory) == LS_OK);
        b->shared[i] = memory;
    }
    b->all_src = ls_alloc_aligned(64, bytes * n * n);
    b->want = ls_alloc_aligned(64, bytes * n);
    RANK_CHECK(b->user[0] != NULL && b->user[1] != NULL && b->all_src != NULL && b->want != NULL);
    return 0;
}

static void close_bench(bench *b)
{
    for (int i = 0; i < 2; i++) {
        ls_free(b->user[i]);
        (void)segment_destroy(b->r.l, b->shared[i]);
    }
    ls_free(b->all_src);
    ls_free(b->want);
    team_rank_close(&b->r);
}

/* Bytes of src and dst as the public header defines them. */
static size_t src_bytes(const coll *op, int n)
{
    const bool cut =
        op->kind == COLL_SCATTER || op->kind == COLL_ALL_TO_ALL || op->kind == COLL_REDUCE_SCATTER;

    return op->count * ls_dtype_size(op->dtype) * (cut ? (size_t)n : 1);
}

static size_t dst_bytes(const coll *op, int n)
{
    const bool joined =
        op->kind == COLL_GATHER || op->kind == COLL_ALL_TO_ALL || op->kind == COLL_ALL_GATHER;

    return op->count * ls_dtype_size(op->dtype) * (joined ? (size_t)n : 1);
}

/* Each rank's source is a function of (case, rank), so every rank can compute every result. */
static void fill_sources(bench *b, const coll *op, int n, uint64_t seed)
{
    const size_t bytes = src_bytes(op, n);

    for (int k = 0; k < n; k++) {
        ls_rng rng;

        ls_rng_seed(&rng, ls_hash3(seed, (uint64_t)k, SEED));
        oracle_fill(b->all_src + (size_t)k * bytes, bytes / ls_dtype_size(op->dtype), op->dtype,
                    &rng);
    }
}

static void expect_reduction(bench *b, const coll *op, int n, int rank)
{
    const void *src[64];
    const size_t bytes = src_bytes(op, n);
    const size_t skip =
        op->kind == COLL_REDUCE_SCATTER ? (size_t)rank * op->count * ls_dtype_size(op->dtype) : 0;

    for (int k = 0; k < n; k++)
        src[k] = b->all_src + (size_t)k * bytes + skip;
    oracle_reduce(b->want, src, 0, n, op->count, op->dtype, op->redop, true);
}

/* False: this rank gets nothing. */
static bool expect(bench *b, const coll *op, int n, int rank)
{
    const size_t block = op->count * ls_dtype_size(op->dtype);
    const size_t bytes = src_bytes(op, n);

    if ((op->kind == COLL_REDUCE || op->kind == COLL_GATHER) && rank != op->root)
        return false;
    switch (op->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_REDUCE_SCATTER:
        expect_reduction(b, op, n, rank);
        break;
    case COLL_BROADCAST:
        memcpy(b->want, b->all_src + (size_t)op->root * bytes, block);
        break;
    case COLL_SCATTER:
        memcpy(b->want, b->all_src + (size_t)op->root * bytes + (size_t)rank * block, block);
        break;
    default:
        for (int k = 0; k < n; k++) {
            const size_t from = op->kind == COLL_ALL_TO_ALL ? (size_t)rank * block : 0;

            memcpy(b->want + (size_t)k * block, b->all_src + (size_t)k * bytes + from, block);
        }
    }
    return true;
}

/* Places source and destination, in place or not, and fills both. */
static void place(bench *b, coll *op, int n, int rank, bool in_place, bool shared)
{
    char *const *memory = shared ? b->shared : b->user;
    const size_t block = op->count * ls_dtype_size(op->dtype);
    char *src = memory[0] + GUARD;
    char *dst = memory[1] + GUARD;

    if (in_place && (op->kind == COLL_ALL_GATHER || op->kind == COLL_GATHER))
        src = dst + (size_t)rank * block;
    else if (in_place && (op->kind == COLL_SCATTER || op->kind == COLL_REDUCE_SCATTER))
        dst = src + (size_t)rank * block;
    else if (in_place)
        dst = src;
    memset(memory[0], 0x5A, b->bytes);
    memset(memory[1], 0x5A, b->bytes);
    memcpy(src, b->all_src + (size_t)rank * src_bytes(op, n), src_bytes(op, n));
    op->src = src;
    op->dst = dst;
}

static bool guards_hold(const coll *op, int n, bool in_place)
{
    const char *dst = op->dst;

    for (int i = 1; i <= GUARD && !in_place; i++) {
        if (dst[-i] != 0x5A || dst[dst_bytes(op, n) + (size_t)i - 1] != 0x5A)
            return false;
    }
    return true;
}

/* The engine passes no all_to_all in place: it copies the source first. */
static int run_case(bench *b, coll op, where w, bool is_in_place, uint64_t seed)
{
    const bool in_place = is_in_place && op.kind != COLL_ALL_TO_ALL;
    const comm_boot *boot = b->r.boot;
    const int n = boot->size;
    const bool shared = w == SHARED || (w == MIXED && (boot->rank + (int)seed) % 2 == 0);

    fill_sources(b, &op, n, seed);
    place(b, &op, n, boot->rank, in_place, shared);
    RANK_CHECK(team_rank_run(&b->r, &op) == LS_OK);
    if (!expect(b, &op, n, boot->rank))
        return 0;
    if (memcmp(op.dst, b->want, dst_bytes(&op, n)) != 0 || !guards_hold(&op, n, in_place)) {
        fprintf(stderr, "rank %d of %d: %s, %s, op %d, root %d, %zu elements, %s%s: wrong\n",
                boot->rank, n, coll_name(op.kind), ls_dtype_name(op.dtype), (int)op.redop, op.root,
                op.count, where_names[w], in_place ? ", in place" : "");
        return 1;
    }
    return 0;
}

static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_REDUCE,         COLL_BROADCAST,
                                  COLL_ALL_GATHER, COLL_GATHER,         COLL_SCATTER,
                                  COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_BARRIER};

#define MOST_COUNT 8200
/* Inline, both sides of its limits, one piece, its end, several pieces with a rest. */
static const size_t counts[] = {1, 3, 8, 65, 4096, 4097, MOST_COUNT};

static int run_kind(bench *b, coll_kind kind, uint64_t *seed)
{
    const int n = b->r.boot->size;

    for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
        for (int w = USER; w < WHERES; w++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                const ls_dtype type = (ls_dtype)(++*seed % LS_DTYPE_COUNT);
                const ls_reduce_op redop =
                    (ls_reduce_op)(*seed / LS_DTYPE_COUNT % LS_REDUCE_OP_COUNT);
                const coll op = team_rank_op(
                    kind, type, reduce_is_defined(redop, type) ? redop : LS_MAX,
                    (int)(*seed % (uint64_t)n), NULL, NULL, kind == COLL_BARRIER ? 0 : counts[c]);

                // With more ranks each case costs more and shows less.
                if (*seed % (uint64_t)(n > 3 ? n - 1 : 1) == 0 &&
                    run_case(b, op, (where)w, in_place != 0, *seed) != 0)
                    return 1;
            }
        }
    }
    return 0;
}

static int run_all_kinds(const comm_boot *boot, void *arg)
{
    bench *b = ls_calloc(1, sizeof(*b));
    uint64_t seed = 0;
    int failed = 0;

    RANK_CHECK(b != NULL);
    RANK_CHECK(open_bench(boot, b, arg, MOST_COUNT * 8) == 0);
    for (int round = 0; round < (boot->size > 3 ? 2 : 1); round++) {
        for (size_t k = 0; k < LS_COUNT_OF(kinds) && failed == 0; k++)
            failed = run_kind(b, kinds[k], &seed);
    }
    // A rank that has failed leaves at once; the others then see its end.
    close_bench(b);
    ls_free(b);
    return failed;
}

static void every_collective_matches_the_oracle(void **state)
{
    static const plan plans[] = {{AS_THREADS, 2},   {AS_THREADS, 3},   {AS_THREADS, 5},
                                 {AS_PROCESSES, 2}, {AS_PROCESSES, 4}, {AS_PROCESSES, 7}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(plans); i++) {
        if (plans[i].kind == AS_PROCESSES && IS_TSAN)
            continue; // as below
        print_message("%d ranks as %s\n", plans[i].n,
                      plans[i].kind == AS_THREADS ? "threads" : "processes");
        assert_int_equal(ranks_run(plans[i].kind, plans[i].n, run_all_kinds, &(setup){0}), 0);
    }
}

/* Pieces whose slices are long enough for it, in all kinds of teams. */
static void stores_around_the_caches_give_the_same_bits(void **state)
{
    (void)state;
    copy_always_around(true); // for the ranks, too
    for (size_t i = 0; i < LS_COUNT_OF(gate_setups); i++) {
        static const plan plans[] = {{AS_THREADS, 2}, {AS_THREADS, 3}, {AS_PROCESSES, 7}};
        setup s = gate_setups[i];

        s.piece_bytes = 65536;
        for (size_t k = 0; k < LS_COUNT_OF(plans); k++) {
            if (plans[k].kind == AS_THREADS || !IS_TSAN)
                assert_int_equal(ranks_run(plans[k].kind, plans[k].n, run_all_kinds, &s), 0);
        }
    }
    copy_always_around(false);
}

/* Several operations are started before any is waited for; the last is waited for first. */
static int queue_many(const comm_boot *boot, void *arg)
{
    bench *b = ls_calloc(1, sizeof(*b));
    float *data;

    RANK_CHECK(b != NULL);
    RANK_CHECK(open_bench(boot, b, arg, 40000) == 0);
    data = (float *)(void *)b->shared[0];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 1000; i++)
            data[i] = (float)(i % 10 + boot->rank);
        for (int i = 0; i < TEAM_RANK_WORKS; i++) {
            const coll op = team_rank_op(COLL_ALL_REDUCE, LS_F32, LS_MAX, -1, data, data,
                                         i % 3 == 0 ? 4 : 1000);

            team_rank_start(&b->r, i, &op);
        }
        for (int i = TEAM_RANK_WORKS - 1; i >= 0; i--)
            RANK_CHECK(team_rank_wait(&b->r, i) == LS_OK);
        for (int i = 0; i < 1000; i++)
            RANK_CHECK(data[i] == (float)(i % 10 + boot->size - 1));
    }
    close_bench(b);
    ls_free(b);
    return 0;
}

static void queued_operations_run_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(gate_setups); i++) {
        setup s = gate_setups[i];

        assert_int_equal(ranks_run(AS_THREADS, 3, queue_many, &s), 0);
        assert_int_equal(ranks_run(AS_PROCESSES, 4, queue_many, &s), 0);
    }
}

/* One fast rank, others late in turn: slots and staging buffers are not overwritten early. */
static int be_late_in_turn(const comm_boot *boot, void *arg)
{
    bench *b = ls_calloc(1, sizeof(*b));
    int failed = 0;
    ls_rng rng;

    RANK_CHECK(b != NULL);
    RANK_CHECK(open_bench(boot, b, arg, MOST_COUNT * 8) == 0);
    ls_rng_seed(&rng, SEED + (uint64_t)boot->rank);
    for (uint64_t i = 0; i < (IS_TSAN ? 30 : 100) && failed == 0; i++) {
        const coll_kind kind = kinds[ls_hash3(i, 1, SEED) % 8];
        const coll op = team_rank_op(kind, LS_F32, LS_SUM, (int)(i % (uint64_t)boot->size), NULL,
                                     NULL, counts[ls_hash3(i, 2, SEED) % LS_COUNT_OF(counts)]);

        if (ls_rng_below(&rng, 8) == 0)
            poll(NULL, 0, (int)ls_rng_below(&rng, 3));
        failed = run_case(b, op, (where)(ls_hash3(i, 3, SEED) % WHERES), i % 2 == 0, i);
    }
    close_bench(b);
    ls_free(b);
    return failed;
}

static void late_ranks_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(gate_setups); i++) {
        setup s = gate_setups[i];

        assert_int_equal(ranks_run(AS_THREADS, 4, be_late_in_turn, &s), 0);
        assert_int_equal(ranks_run(AS_PROCESSES, 4, be_late_in_turn, &s), 0);
    }
}

typedef struct difference {
    int what;
    setup setup;
} difference;

static int disagree(const comm_boot *boot, void *arg)
{
    bench *b = ls_calloc(1, sizeof(*b));
    const difference *d = arg;
    const int what = d->what;
    const bool odd = boot->rank == 1;
    coll op;

    RANK_CHECK(b != NULL);
    RANK_CHECK(open_bench(boot, b, &d->setup, 40000) == 0);
    op = team_rank_op(odd && what == 0 ? COLL_BROADCAST : COLL_ALL_REDUCE,
                      odd && what == 1 ? LS_I32 : LS_F32, odd && what == 2 ? LS_MAX : LS_SUM,
                      odd && what == 0 ? 0 : -1, b->user[0], b->user[1],
                      odd && what == 3 ? 1001 : 1000);
    memset(b->user[1], 0x5A, 4004);
    RANK_CHECK(team_rank_run(&b->r, &op) == LS_EMISMATCH);
    RANK_CHECK(b->r.cause.kind == CAUSE_MISMATCH && b->r.cause.group == 0);
    RANK_CHECK(strstr(b->r.text, boot->rank < 2 ? "rank 0 called all_reduce #1 ("
                                                : " called all_reduce #1 (") != NULL);
    RANK_CHECK(strstr(b->r.text, "rank 1 called") != NULL);
    RANK_CHECK(strstr(b->r.text, "a_test+0x1") != NULL);
    for (int i = 0; i < 4004; i++)
        RANK_CHECK(b->user[1][i] == 0x5A);
    // Later operations fail in the same way.
    RANK_CHECK(team_rank_run(&b->r, &op) == LS_EMISMATCH);
    close_bench(b);
    ls_free(b);
    return 0;
}

static void mismatched_ranks_are_both_named_and_no_data_moves(void **state)
{
    (void)state;
    for (int what = 0; what < 4; what++) {
        for (size_t i = 0; i < LS_COUNT_OF(gate_setups); i++) {
            difference d = {.what = what, .setup = gate_setups[i]};

            assert_int_equal(ranks_run(AS_THREADS, 2, disagree, &d), 0);
        }
        // Without gates the third rank may see the end of another before it sees the difference.
        assert_int_equal(ranks_run(AS_THREADS, 5, disagree,
                                   &(difference){.what = what, .setup = {.sockets = "00111"}}),
                         0);
    }
}

/* what: 1: in shared memory. */
static int die_in_the_middle(const comm_boot *boot, void *arg)
{
    bench *b = ls_calloc(1, sizeof(*b));
    const difference *d = arg;
    const bool shared = d->what != 0;
    char *const *memory;
    ls_status st;
    coll op;

    RANK_CHECK(b != NULL);
    RANK_CHECK(open_bench(boot, b, &d->setup, 4000000) == 0);
    memory = shared ? b->shared : b->user;
    op = team_rank_op(COLL_ALL_REDUCE, LS_F32, LS_SUM, -1, memory[0], memory[1], 1000000);
    RANK_CHECK(team_rank_run(&b->r, &op) == LS_OK);
    b->r.fails_at_end = true;
    // Starting does the first of several chunks.
    if (boot->rank == 1) {
        team_rank_start(&b->r, 0, &op);
        _exit(0);
    }
    // The dead rank's counters no longer change, and its channel ends: nothing else happens, unless
    // the third rank has aborted earlier. Without gates others reduce what it has left.
    st = team_rank_run(&b->r, &op);
    if (st == LS_OK) {
        RANK_CHECK(shared && !d->setup.shares_cores && d->setup.sockets == NULL);
    } else if (st == LS_EPEER) {
        RANK_CHECK(strstr(b->r.text, " gave up ") != NULL);
    } else {
        RANK_CHECK(st == LS_ETIMEOUT && b->r.saw_end);
        while (team_progress(b->r.t)) {
            // The third rank was late, and has done a step after this one saw the end.
        }
        RANK_CHECK(team_busy(b->r.t));
        team_abort(b->r.t, LS_EPEER, "rank 1 died");
        RANK_CHECK(b->r.is_done[0] && b->r.status[0] == LS_EPEER && !team_busy(b->r.t));
        RANK_CHECK(strcmp(b->r.text, "rank 1 died") == 0);
    }
    close_bench(b);
    ls_free(b);
    return 0;
}

static void other_ranks_wait_after_a_death_until_they_abort(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        for (size_t i = 0; i < LS_COUNT_OF(gate_setups); i++) {
            difference d = {.what = shared, .setup = gate_setups[i]};

            assert_int_equal(ranks_run(AS_PROCESSES, 3, die_in_the_middle, &d), 0);
        }
    }
}

static int abort_and_free(const comm_boot *boot, void *arg)
{
    team_rank *r = ls_calloc(1, sizeof(*r));
    void *memory = NULL;
    coll op;

    LS_UNUSED(arg);
    RANK_CHECK(r != NULL && team_rank_open(r, boot, PIECE_BYTES) == LS_OK);
    r->fails_at_end = true;
    RANK_CHECK(segment_create(r->l, SEGMENT_KEY_NONE, 4 << 20, &memory) == LS_OK);
    op = team_rank_op(COLL_ALL_REDUCE, LS_F32, LS_SUM, -1, memory, memory, 1 << 20);
    if (boot->rank == 0) {
        // Publishes, perhaps reduces a little, then gives up and frees memory that the other still
        // uses; or ends, if the other has reduced its share by then.
        team_rank_start(r, 0, &op);
        team_abort(r->t, LS_ECANCELED, "had enough");
        RANK_CHECK(r->is_done[0] && (r->status[0] == LS_ECANCELED || r->status[0] == LS_OK));
        (void)segment_destroy(r->l, memory);
    } else {
        team_rank_start(r, 0, &op);
        while (!r->saw_end && !r->is_done[0])
            (void)team_rank_wait(r, 0);
        if (!r->is_done[0])
            team_abort(r->t, LS_EPEER, "gone");
        (void)segment_destroy(r->l, memory);
    }
    team_rank_close(r);
    ls_free(r);
    return 0;
}

static void memory_may_be_freed_while_a_peer_still_reads_it(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(ranks_run(AS_THREADS, 2, abort_and_free, NULL), 0);
        assert_int_equal(ranks_run(AS_PROCESSES, 2, abort_and_free, NULL), 0);
    }
}

/* Each algorithm serves every size that it can, whatever the defaults are. */
static void every_algorithm_matches_the_oracle(void **state)
{
    static const struct {
        const char *rows;
        plan plan;
    } cases[] = {
        {"all:direct,all:staged", {AS_THREADS, 3}},
        {"all:direct,all:staged", {AS_PROCESSES, 2}},
        {"all:direct<=8K,all:inline<=16,all:staged", {AS_PROCESSES, 5}},
        {"all:shared,all:staged", {AS_PROCESSES, 3}},
        {"all:direct", {AS_PROCESSES, 8}}, // more than the cores of most machines that test
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        algorithm_table *t = NULL;

        // The race detector sees threads only, and is slow.
        if (cases[i].plan.kind == AS_PROCESSES && IS_TSAN)
            continue;
        print_message("%s, %d ranks\n", cases[i].rows, cases[i].plan.n);
        assert_int_equal(algorithm_table_create(cases[i].rows, &t), LS_OK);
        assert_int_equal(
            ranks_run(cases[i].plan.kind, cases[i].plan.n, run_all_kinds, &(setup){.table = t}), 0);
        algorithm_table_free(t);
    }
}

/* With gates and levels: sockets and core complexes of several sizes, in rank order or not. */
static void every_level_matches_the_oracle(void **state)
{
    static const struct {
        plan plan;
        const char *rows; /* NULL: the defaults */
        setup setup;
    } cases[] = {
        {{AS_THREADS, 2}, NULL, {.shares_cores = true}},
        {{AS_THREADS, 5}, NULL, {.shares_cores = true}},
        {{AS_THREADS, 7}, NULL, {.sockets = "0000111"}},
        {{AS_THREADS, 7}, NULL, {.sockets = "0000111", .caches = "0011444"}},
        {{AS_THREADS, 8}, "all:levels", {.sockets = "00110011", .caches = "00112233"}},
        {{AS_PROCESSES, 5}, "all:levels", {.sockets = "01100", .shares_cores = true}},
        {{AS_PROCESSES, 12}, "all:levels", {.sockets = "000000111111", .caches = "000033446666"}},
        {{AS_PROCESSES, 9}, NULL, {.sockets = "010000000", .caches = "010222223"}},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        setup s = cases[i].setup;
        algorithm_table *t = NULL;

        if (cases[i].plan.kind == AS_PROCESSES && IS_TSAN)
            continue; // as above
        print_message("%d ranks, %s, sockets %s, caches %s\n", cases[i].plan.n,
                      cases[i].rows == NULL ? "default rows" : cases[i].rows,
                      s.sockets == NULL ? "0" : s.sockets, s.caches == NULL ? "?" : s.caches);
        if (cases[i].rows != NULL)
            assert_int_equal(algorithm_table_create(cases[i].rows, &t), LS_OK);
        s.table = t;
        assert_int_equal(ranks_run(cases[i].plan.kind, cases[i].plan.n, run_all_kinds, &s), 0);
        algorithm_table_free(t);
    }
}

/* Lets the kernel answer the call with EPERM, as a stricter policy or a container's filter does. */
static int forbid_reading(const comm_boot *boot)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = LS_COUNT_OF(program), .filter = program};

    char byte = 0;
    const struct iovec at = {.iov_base = &byte, .iov_len = 1};

    RANK_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        fprintf(stderr, "no filters here: %s\n", strerror(errno));
        return 0;
    }
    RANK_CHECK(process_vm_readv(getpid(), &at, 1, &at, 1, 0) < 0 && errno == EPERM);
    return 0;
}

/* One rank may not read: no rank reads, and the results are the same. */
static int run_where_one_may_not_read(const comm_boot *boot, void *arg)
{
    RANK_CHECK(boot->rank != 1 || forbid_reading(boot) == 0);
    return run_all_kinds(boot, arg);
}

static void all_ranks_stage_where_the_kernel_forbids_reading(void **state)
{
    algorithm_table *t = NULL;

    (void)state;
    assert_int_equal(algorithm_table_create("all:direct", &t), LS_OK);
    assert_int_equal(ranks_run(AS_PROCESSES, 3, run_where_one_may_not_read, &(setup){.table = t}),
                     0);
    algorithm_table_free(t);
}

/* Rank 1 is the root of a broadcast, and the second half of its buffer cannot be read. */
static int offer_unreadable_memory(const comm_boot *boot, void *arg)
{
    enum { BYTES = 1 << 20 };
    team_rank *r = ls_calloc(1, sizeof(*r));
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    coll op = team_rank_op(COLL_BROADCAST, LS_U8, LS_SUM, 1, memory, memory, BYTES);

    RANK_CHECK(r != NULL && memory != MAP_FAILED);
    r->table = arg;
    r->fails_at_end = true;
    RANK_CHECK(team_rank_open(r, boot, PIECE_BYTES) == LS_OK);
    RANK_CHECK(boot->rank != 1 || mprotect(memory + BYTES / 2, BYTES / 2, PROT_NONE) == 0);
    if (boot->rank == 0) {
        RANK_CHECK(team_rank_run(r, &op) == LS_EPEER);
        RANK_CHECK(r->cause.kind == CAUSE_FAULT && r->cause.rank == 1);
        RANK_CHECK(strstr(r->text, "rank 1's buffer in broadcast #1") != NULL);
        RANK_CHECK(strstr(r->text, "is not readable memory") != NULL);
    } else {
        RANK_CHECK(team_rank_run(r, &op) == LS_ETIMEOUT && r->saw_end);
        team_abort(r->t, LS_EPEER, "over");
    }
    team_rank_close(r);
    ls_free(r);
    return 0;
}

static void reader_fails_when_a_buffer_is_not_readable(void **state)
{
    algorithm_table *t = NULL;

    (void)state;
    assert_int_equal(algorithm_table_create("all:direct", &t), LS_OK);
    assert_int_equal(ranks_run(AS_PROCESSES, 2, offer_unreadable_memory, t), 0);
    algorithm_table_free(t);
}

/* An all_reduce whose result is written around the caches, from and to an odd address. */
static int reduce_around_the_caches(const comm_boot *boot, void *arg)
{
    const size_t bytes = COPY_AROUND_BYTES + 12345;
    team_rank *r = ls_calloc(1, sizeof(*r));
    uint8_t *memory = ls_calloc(1, bytes + 2);
    uint8_t *data = memory + 1;
    const coll op = team_rank_op(COLL_ALL_REDUCE, LS_U8, LS_SUM, -1, data, data, bytes);
    size_t n_wrong = 0;

    RANK_CHECK(r != NULL && memory != NULL);
    r->table = arg;
    RANK_CHECK(team_rank_open(r, boot, 256 << 10) == LS_OK);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i / 61 + (size_t)boot->rank);
    RANK_CHECK(team_rank_run(r, &op) == LS_OK);
    for (size_t i = 0; i < bytes; i++)
        n_wrong += data[i] != (uint8_t)(3 * (i / 61) + 3);
    RANK_CHECK(n_wrong == 0 && data[-1] == 0 && data[bytes] == 0);
    team_rank_close(r);
    ls_free(memory);
    ls_free(r);
    return 0;
}

static void large_results_are_written_around_the_caches(void **state)
{
    algorithm_table *t = NULL;

    (void)state;
    assert_int_equal(algorithm_table_create("all:direct", &t), LS_OK);
    assert_int_equal(ranks_run(AS_PROCESSES, 3, reduce_around_the_caches, t), 0);
    algorithm_table_free(t);
}

/* --- gates --- */

static void wait_for_all_ranks(const comm_boot *boot, atomic_int *steps, int step)
{
    atomic_fetch_add(steps, 1);
    while (atomic_load(steps) < step * boot->size)
        (void)poll(NULL, 0, 1);
}

/* The number of operations passes the largest that the futex holds. */
static int pass_the_last_number(const comm_boot *boot, void *arg)
{
    const uint64_t begin = UINT32_MAX - UINT64_C(5);
    team_rank *r = ls_calloc(1, sizeof(*r));
    const coll op = team_rank_op(COLL_BARRIER, LS_F32, LS_SUM, -1, NULL, NULL, 0);
    team_gate *gate;

    RANK_CHECK(r != NULL);
    r->shares_cores = true;
    RANK_CHECK(team_rank_open(r, boot, PIECE_BYTES) == LS_OK);
    r->t->number = begin;
    r->t->gate_number[0] = begin;
    gate = &r->t->parts[0]->gates[0];
    if (boot->rank == 0) {
        atomic_store(&gate->arrivals, begin * (uint64_t)boot->size);
        atomic_store(&gate->result.opened, (uint32_t)begin);
    }
    wait_for_all_ranks(boot, arg, 1);
    for (int i = 0; i < 12; i++) {
        team_rank_start(r, 0, &op);
        while (!r->is_done[0]) {
            if (!team_progress(r->t))
                (void)team_futex_wait(r->t);
        }
        RANK_CHECK(r->status[0] == LS_OK);
    }
    RANK_CHECK(r->t->number == begin + 12);
    wait_for_all_ranks(boot, arg, 2);
    RANK_CHECK(atomic_load(&gate->result.opened) == (uint32_t)(begin + 12));
    team_rank_close(r);
    ls_free(r);
    return 0;
}

static void operations_pass_the_last_number_of_the_futex(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run(AS_PROCESSES, 3, pass_the_last_number, ranks_shared(sizeof(atomic_int))), 0);
}

/* An argument selects tests by pattern: '*oracle*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_matches_the_oracle),
        cmocka_unit_test(stores_around_the_caches_give_the_same_bits),
        cmocka_unit_test(queued_operations_run_in_order),
        cmocka_unit_test(late_ranks_change_nothing),
        cmocka_unit_test(mismatched_ranks_are_both_named_and_no_data_moves),
        cmocka_unit_test(other_ranks_wait_after_a_death_until_they_abort),
        cmocka_unit_test(memory_may_be_freed_while_a_peer_still_reads_it),
        cmocka_unit_test(every_algorithm_matches_the_oracle),
        cmocka_unit_test(every_level_matches_the_oracle),
        cmocka_unit_test(all_ranks_stage_where_the_kernel_forbids_reading),
        cmocka_unit_test(reader_fails_when_a_buffer_is_not_readable),
        cmocka_unit_test(large_results_are_written_around_the_caches),
        cmocka_unit_test(operations_pass_the_last_number_of_the_futex),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    print_message("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests_name("native team", tests, NULL, NULL);
}
