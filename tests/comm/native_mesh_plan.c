/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_plan.c - the plans of all ranks, run in one process in random order without any
 * network.
 */
#include "comm/native_oracle.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/backends/native/team/algorithm_table.h"
#include "comm/backends/native/plan/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define RANKS_MAX    64
#define RANKS_FEW    17
#define RANKS_ALL    4096
#define MESSAGES_MAX 4096

/* A message under way: the bytes that were there when it was sent. */
typedef struct flying {
    int from;
    int to;
    size_t chunk;
    uint32_t tag;
    size_t bytes;
    size_t total;
    uint8_t *data;
    bool is_taken;
} flying;

/* One chunk of one rank. */
typedef struct actor {
    int rank;
    size_t chunk;
    plan steps;
    uint8_t *scratch;
    int round;
    bool *is_received; /* by step */
} actor;

typedef struct world {
    int n;
    coll op;
    size_t src_bytes; /* of every rank */
    size_t dst_bytes;
    uint8_t *src[RANKS_MAX];
    uint8_t *dst[RANKS_MAX];
    size_t counts[RANKS_MAX];
    size_t pairs[RANKS_MAX][RANKS_MAX]; /* all_to_all_v: what row sends to column */
    size_t columns[RANKS_MAX][RANKS_MAX];
    bool is_vector;
    bool has_layout;
    plan_layout layout;
    flying *messages;
    size_t n_messages;
    ls_rng rng;
} world;

static coll op_of(const world *w, int rank)
{
    coll op = w->op;

    op.src = w->src[rank];
    op.dst = w->dst[rank];
    if (!w->is_vector)
        return op;
    op.count = 0;
    switch (op.kind) {
    case COLL_ALL_TO_ALL:
        op.src_counts = w->pairs[rank];
        op.dst_counts = w->columns[rank];
        break;
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER:
        op.src_counts = w->counts;
        break;
    default:
        op.dst_counts = w->counts;
        break;
    }
    return op;
}

static uint8_t *place(const world *w, const actor *a, plan_ref ref, size_t bytes)
{
    switch (ref.space) {
    case PLAN_SRC:
        assert_true(ref.offset + bytes <= w->src_bytes);
        return w->src[a->rank] + ref.offset;
    case PLAN_DST:
        assert_true(ref.offset + bytes <= w->dst_bytes);
        return w->dst[a->rank] + ref.offset;
    case PLAN_SCRATCH:
        break;
    }
    assert_true(ref.offset + bytes <= a->steps.scratch_bytes);
    return a->scratch + ref.offset;
}

static flying *find(world *w, int from, int to, size_t chunk, uint32_t tag)
{
    for (size_t i = 0; i < w->n_messages; i++) {
        flying *f = &w->messages[i];

        if (f->from == from && f->to == to && f->chunk == chunk && f->tag == tag)
            return f;
    }
    return NULL;
}

static void send_step(world *w, const actor *a, const plan_step *s)
{
    flying *f = &w->messages[w->n_messages];

    assert_null(find(w, a->rank, s->peer, a->chunk, s->tag)); // a tag serves once
    assert_true(w->n_messages < MESSAGES_MAX);
    assert_true(s->peer != a->rank && s->peer >= 0 && s->peer < w->n);
    w->n_messages++;
    *f = (flying){.from = a->rank,
                  .to = s->peer,
                  .chunk = a->chunk,
                  .tag = s->tag,
                  .bytes = s->bytes,
                  .total = s->total,
                  .data = ls_calloc(1, s->bytes + 1)};
    memcpy(f->data, place(w, a, s->from, s->bytes), s->bytes);
}

static void reduce_step(world *w, const actor *a, const plan_step *s)
{
    const size_t width = ls_dtype_size(w->op.dtype);
    const size_t partial = ls_dtype_size(reduce_partial_type(w->op.dtype));
    reduce_operand operands[RANKS_MAX];

    for (int i = 0; i < s->n_operands; i++) {
        const plan_operand *o = &a->steps.operands[s->first_operand + (size_t)i];

        operands[i] = (reduce_operand){
            .data = place(w, a, o->data, s->count * (o->is_partial ? partial : width)),
            .first = o->first,
            .n_ranks = o->n_ranks,
            .partial = o->is_partial};
    }
    reduce_tree(place(w, a, s->to, s->count * (s->is_final ? width : partial)), operands,
                s->n_operands, s->count, w->op.dtype, w->op.redop, s->is_final, w->n);
}

// The messages of the round that have come; true when all have.
static bool receive(world *w, actor *a)
{
    bool all = true;

    for (size_t i = 0; i < a->steps.n_steps; i++) {
        const plan_step *s = &a->steps.steps[i];
        flying *f;

        if (s->action != PLAN_RECV || s->round != a->round || a->is_received[i])
            continue;
        f = find(w, s->peer, a->rank, a->chunk, s->tag);
        if (f == NULL) {
            all = false;
            continue;
        }
        assert_int_equal(f->bytes, s->bytes);
        assert_int_equal(f->total, s->total);
        memcpy(place(w, a, s->to, s->bytes), f->data, s->bytes);
        f->is_taken = true;
        a->is_received[i] = true;
    }
    return all;
}

// As far as the actor's round can go; true when it moved on.
static bool act(world *w, actor *a, bool *has_begun)
{
    if (a->round == a->steps.n_rounds)
        return false;
    for (size_t i = 0; i < a->steps.n_steps && !*has_begun; i++) {
        const plan_step *s = &a->steps.steps[i];

        if (s->round != a->round)
            continue;
        if (s->action == PLAN_SEND)
            send_step(w, a, s);
        else if (s->action == PLAN_REDUCE)
            reduce_step(w, a, s);
        else if (s->action == PLAN_COPY)
            memmove(place(w, a, s->to, s->bytes), place(w, a, s->from, s->bytes), s->bytes);
    }
    *has_begun = true;
    if (!receive(w, a))
        return false;
    a->round++;
    *has_begun = false;
    return true;
}

static const plan_layout *layout_of(const world *w)
{
    return w->has_layout && layout_helps(&w->layout) ? &w->layout : NULL;
}

static size_t make_actors(world *w, size_t segment_bytes, actor **out)
{
    actor *all = ls_calloc(4096, sizeof(*all));
    size_t n = 0;

    assert_non_null(all);
    for (int rank = 0; rank < w->n; rank++) {
        const coll op = op_of(w, rank);
        const plan_choice choice = plan_choose(&op, w->n, layout_of(w), segment_bytes, NULL);
        plan_input in = plan_input_of(&op, w->n, rank, layout_of(w), &choice);

        for (size_t c = 0; c < choice.n_chunks; c++, n++) {
            assert_true(n < 4096);
            all[n].rank = rank;
            all[n].chunk = c;
            in.first = c * choice.chunk;
            choice.rule->fn(&all[n].steps, &in);
            assert_false(all[n].steps.failed);
            all[n].scratch = ls_calloc(1, all[n].steps.scratch_bytes + 1);
            all[n].is_received = ls_calloc(all[n].steps.n_steps + 1, sizeof(bool));
        }
    }
    *out = all;
    return n;
}

static void run_plans(world *w, size_t segment_bytes)
{
    actor *actors;
    const size_t n = make_actors(w, segment_bytes, &actors);
    bool *has_begun = ls_calloc(n, sizeof(bool));
    size_t idle = 0;

    w->messages = ls_calloc(MESSAGES_MAX, sizeof(*w->messages));
    while (idle < 40 * n) {
        const size_t i = ls_rng_below(&w->rng, n);

        idle = act(w, &actors[i], &has_begun[i]) ? 0 : idle + 1;
    }
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(actors[i].round, actors[i].steps.n_rounds);
        plan_free(&actors[i].steps);
        ls_free(actors[i].scratch);
        ls_free(actors[i].is_received);
    }
    for (size_t i = 0; i < w->n_messages; i++) {
        assert_true(w->messages[i].is_taken);
        ls_free(w->messages[i].data);
    }
    w->n_messages = 0;
    ls_free(w->messages);
    ls_free(has_begun);
    ls_free(actors);
}

static void make_world(world *w, int n, coll_kind kind, size_t count, bool is_vector, uint64_t seed)
{
    *w = (world){.n = n,
                 .is_vector = is_vector,
                 .op = {.kind = kind,
                        .dtype = seed % 2 == 0 ? LS_F32 : LS_F16,
                        .redop = LS_SUM,
                        .root = (int)(seed % (uint64_t)n),
                        .count = count}};
    ls_rng_seed(&w->rng, seed);
    for (int i = 0; i < n; i++) {
        w->counts[i] = is_vector ? ls_rng_below(&w->rng, count + 1) : count;
        for (int k = 0; k < n; k++) {
            w->pairs[i][k] = is_vector ? ls_rng_below(&w->rng, count + 1) : count;
            w->columns[k][i] = w->pairs[i][k];
        }
    }
    w->src_bytes = (count + 1) * (size_t)n * ls_dtype_size(w->op.dtype);
    w->dst_bytes = w->src_bytes;
    for (int i = 0; i < n; i++) {
        w->src[i] = ls_calloc(1, w->src_bytes);
        w->dst[i] = ls_calloc(1, w->dst_bytes);
        assert_true(w->src[i] != NULL && w->dst[i] != NULL);
        oracle_fill(w->src[i], (count + 1) * (size_t)n, w->op.dtype, &w->rng);
    }
}

static void free_world(world *w)
{
    layout_free(&w->layout);
    for (int i = 0; i < w->n; i++) {
        ls_free(w->src[i]);
        ls_free(w->dst[i]);
    }
}

static void expect(const world *w, int rank, size_t dst_first, const void *wanted, size_t count)
{
    const size_t width = ls_dtype_size(w->op.dtype);

    assert_int_equal(
        oracle_differs(w->dst[rank] + dst_first * width, wanted, count, w->op.dtype, true), count);
}

// What the reduction of elements [first, first + count) of all src is.
static void *reduced(const world *w, size_t first, size_t count)
{
    const size_t width = ls_dtype_size(w->op.dtype);
    const void *parts[RANKS_MAX];
    void *out = ls_calloc(count + 1, width);

    for (int i = 0; i < w->n; i++)
        parts[i] = w->src[i] + first * width;
    oracle_reduce(out, parts, 0, w->n, count, w->op.dtype, w->op.redop, true);
    return out;
}

static void check_reduction(const world *w)
{
    size_t start = 0;

    for (int rank = 0; rank < w->n; rank++) {
        const bool is_scatter = w->op.kind == COLL_REDUCE_SCATTER;
        const size_t count = is_scatter ? w->counts[rank] : w->op.count;
        void *wanted = reduced(w, is_scatter ? start : 0, count);

        if (w->op.kind != COLL_REDUCE || rank == w->op.root)
            expect(w, rank, 0, wanted, count);
        start += count;
        ls_free(wanted);
    }
}

static void check_moves(const world *w)
{
    const size_t width = ls_dtype_size(w->op.dtype);
    const int root = w->op.root;
    size_t start = 0;

    for (int i = 0; i < w->n; i++) {
        switch (w->op.kind) {
        case COLL_BROADCAST:
            expect(w, i, 0, w->src[root], w->op.count);
            break;
        case COLL_SCATTER:
            expect(w, i, 0, w->src[root] + start * width, w->counts[i]);
            break;
        case COLL_GATHER:
            expect(w, root, start, w->src[i], w->counts[i]);
            break;
        default:
            for (int rank = 0; rank < w->n; rank++)
                expect(w, rank, start, w->src[i], w->counts[i]);
            break;
        }
        start += w->counts[i];
    }
}

static void check_exchange(const world *w)
{
    const size_t width = ls_dtype_size(w->op.dtype);

    for (int to = 0; to < w->n; to++) {
        size_t dst = 0;

        for (int from = 0; from < w->n; from++) {
            size_t src = 0;

            for (int k = 0; k < to; k++)
                src += w->pairs[from][k];
            expect(w, to, dst, w->src[from] + src * width, w->pairs[from][to]);
            dst += w->pairs[from][to];
        }
    }
}

static void run_and_check(world *w, coll_kind kind)
{
    run_plans(w, 256);
    switch (kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_REDUCE_SCATTER:
        check_reduction(w);
        break;
    case COLL_ALL_TO_ALL:
        check_exchange(w);
        break;
    case COLL_BARRIER:
        break;
    default:
        check_moves(w);
        break;
    }
}

static void try_one(int n, coll_kind kind, size_t count, bool is_vector, uint64_t seed)
{
    static world w;

    make_world(&w, n, kind, count, is_vector, seed);
    run_and_check(&w, kind);
    free_world(&w);
}

static void every_plan_gives_the_result_of_its_operation(void **state)
{
    static const size_t counts[] = {1, 5, 63, 333, 2049};

    LS_UNUSED(state);
    for (int n = 2; n <= RANKS_FEW; n++) {
        for (coll_kind kind = COLL_ALL_REDUCE; kind <= COLL_BARRIER; kind++) {
            const bool is_broad = kind == COLL_ALL_TO_ALL || kind == COLL_ALL_GATHER ||
                                  kind == COLL_REDUCE_SCATTER || kind == COLL_SCATTER;

            for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
                if (n > 8 && is_broad && counts[c] > 100)
                    continue; // more messages than the test saves
                try_one(n, kind, counts[c], false, (uint64_t)n + c);
            }
        }
    }
}

// Many ranks have plans of their own, in which each exchanges messages with few others. 55 ranks
// are blocks of 32, 16, 4, 2 and 1; 33 are the least of two blocks.
static void plans_of_many_ranks_give_the_results_of_their_operations(void **state)
{
    static const int sizes[] = {18, 32, 33, 48, 55, 64};
    static const size_t counts[] = {1, 63, 500, 3000};
    static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_REDUCE, COLL_ALL_GATHER, COLL_BROADCAST,
                                      COLL_BARRIER};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
            for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
                const bool is_reduction = kinds[k] == COLL_ALL_REDUCE || kinds[k] == COLL_REDUCE;

                if (counts[c] > 250 && !is_reduction &&
                    (kinds[k] == COLL_ALL_GATHER || sizes[i] > 33))
                    continue; // more messages than the test saves
                if (counts[c] > 250 && kinds[k] == COLL_ALL_REDUCE && sizes[i] == 18)
                    continue; // all with all
                try_one(sizes[i], kinds[k], counts[c], false, (uint64_t)i + c);
            }
            if (kinds[k] == COLL_ALL_GATHER)
                try_one(sizes[i], kinds[k], 100, true, (uint64_t)i);
        }
    }
}

// Roots in each block, at its ends and inside.
static void reduction_reaches_every_root(void **state)
{
    static const int roots[] = {0, 1, 21, 31, 32, 41, 47, 48, 51, 52, 53, 54};
    static world w;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(roots); i++) {
        make_world(&w, 55, COLL_REDUCE, i % 3 != 2 ? 1500 : 20, false, 1000);
        w.op.root = roots[i];
        run_and_check(&w, COLL_REDUCE);
        free_world(&w);
    }
}

/* Ranks of a group: names[i] is the host of rank i. */
typedef struct crowd {
    int n;
    int names[RANKS_ALL];
    plan_layout layout;
    bool is_peer[RANKS_ALL];
} crowd;

// Adds the ranks of other hosts with which `rank` exchanges messages.
static void add_peers(crowd *c, int rank, const coll *op)
{
    const plan_layout *layout = layout_helps(&c->layout) ? &c->layout : NULL;
    const plan_choice choice = plan_choose(op, c->n, layout, 256 << 10, NULL);
    plan_input in = plan_input_of(op, c->n, rank, layout, &choice);
    plan p = {0};

    for (int last = 0; last < 2; last++) {
        in.first = last == 0 ? 0 : (choice.n_chunks - 1) * choice.chunk;
        plan_reset(&p);
        choice.rule->fn(&p, &in);
        assert_false(p.failed);
        for (size_t i = 0; i < p.n_steps; i++)
            if (p.steps[i].action == PLAN_SEND || p.steps[i].action == PLAN_RECV)
                c->is_peer[p.steps[i].peer] |= c->names[p.steps[i].peer] != c->names[rank];
    }
    plan_free(&p);
}

// A job that only reduces: joins, starts from rank 0's parameters, reduces and waits for all.
static int count_peers(crowd *c, int rank)
{
    static const size_t counts[] = {1, 300, 4096, 100000, (size_t)1 << 20, (size_t)1 << 28};
    static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_REDUCE, COLL_BROADCAST};
    const coll hosts = {.kind = COLL_ALL_GATHER, .dtype = LS_I32, .count = 1};
    const coll barrier = {.kind = COLL_BARRIER};
    int n = 0;

    memset(c->is_peer, 0, sizeof(c->is_peer));
    add_peers(c, rank, &hosts);
    add_peers(c, rank, &barrier);
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        for (size_t i = 0; i < LS_COUNT_OF(counts); i++) {
            add_peers(c, rank, &(coll){.kind = kinds[k], .dtype = LS_F32, .count = counts[i]});
            add_peers(c, rank, &(coll){.kind = kinds[k], .dtype = LS_BF16, .count = counts[i]});
        }
    }
    for (int i = 0; i < c->n; i++)
        n += c->is_peer[i];
    return n;
}

// n ranks of which `per_host` follow each other on a host; the last host may have fewer.
static int most_peers(int n, int per_host, int at_once)
{
    static crowd c;
    int most = 0;

    c.n = n;
    for (int i = 0; i < n; i++)
        c.names[i] = i / per_host * per_host;
    assert_int_equal(layout_make(n, c.names, &c.layout), LS_OK);
    for (int rank = 0; rank < n; rank += rank + at_once < n - 3 ? at_once : 1) {
        const int peers = count_peers(&c, rank);

        most = peers > most ? peers : most;
    }
    layout_free(&c.layout);
    return most;
}

static void many_ranks_exchange_messages_with_few_others(void **state)
{
    static const struct {
        int n;
        int per_host;
    } jobs[] = {{64, 1},   {64, 8},     {33, 1},   {48, 3},    {63, 8},   {100, 6},
                {513, 1},  {800, 8},    {1000, 7}, {1024, 64}, {4095, 8}, {4096, 8},
                {4096, 1}, {4096, 128}, {4090, 5}, {961, 64}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(jobs); i++) {
        const int most = most_peers(jobs[i].n, jobs[i].per_host, jobs[i].n > 64 ? 37 : 1);

        printf("%d ranks, %d a host: a rank exchanges messages with at most %d on other hosts\n",
               jobs[i].n, jobs[i].per_host, most);
        assert_true(most <= 62); // and a listener and the hub: 64 sockets
    }
}

static void plans_with_counts_per_rank_move_every_part(void **state)
{
    static const coll_kind kinds[] = {COLL_ALL_GATHER, COLL_GATHER, COLL_SCATTER,
                                      COLL_REDUCE_SCATTER, COLL_ALL_TO_ALL};

    LS_UNUSED(state);
    for (int n = 2; n <= 8; n++)
        for (size_t k = 0; k < LS_COUNT_OF(kinds); k++)
            for (uint64_t seed = 0; seed < 4; seed++)
                try_one(n, kinds[k], seed == 0 ? 3 : 300, true, seed + 10);
}

static void try_hosts(const int *names, int n, coll_kind kind, size_t count, bool is_vector,
                      uint64_t seed)
{
    static world w;

    make_world(&w, n, kind, count, is_vector, seed);
    w.has_layout = true;
    assert_int_equal(layout_make(n, names, &w.layout), LS_OK);
    run_and_check(&w, kind);
    free_world(&w);
}

static void several_hosts_give_the_same_bits(void **state)
{
    static const coll_kind kinds[] = {COLL_ALL_REDUCE, COLL_BROADCAST, COLL_ALL_GATHER,
                                      COLL_REDUCE_SCATTER};
    static const int fixed[][6] = {{0, 0, 1}, {0, 0, 2, 2}, {0, 0, 0, 3, 3, 3}, {0, 1, 0, 1, 0, 1}};
    static const int fixed_n[] = {3, 4, 6, 6};
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 77);
    for (size_t k = 0; k < LS_COUNT_OF(kinds); k++) {
        const bool may_be_vector = kinds[k] == COLL_ALL_GATHER || kinds[k] == COLL_REDUCE_SCATTER;

        for (size_t f = 0; f < LS_COUNT_OF(fixed); f++)
            for (uint64_t seed = 0; seed < 3; seed++)
                try_hosts(fixed[f], fixed_n[f], kinds[k], seed == 0 ? 7 : 3000, false, seed);
        for (uint64_t round = 0; round < 60; round++) {
            const int n = 2 + (int)ls_rng_below(&rng, 11);
            int names[RANKS_FEW];

            // Hosts are mostly runs of ranks, sometimes not.
            for (int i = 0; i < n; i++)
                names[i] =
                    i > 0 && ls_rng_below(&rng, 4) != 0 ? names[i - 1] : (int)ls_rng_below(&rng, 4);
            try_hosts(names, n, kinds[k], 1 + ls_rng_below(&rng, 200),
                      may_be_vector && round % 2 == 1, round);
        }
    }
}

static void check_trees(int n, const int *names, int n_trees, const int *sizes)
{
    plan_layout l;

    assert_int_equal(layout_make(n, names, &l), LS_OK);
    assert_int_equal(l.n_trees, n_trees);
    for (int t = 0; t < n_trees; t++)
        assert_int_equal(l.tree_size[t], sizes[t]);
    layout_free(&l);
}

static void hosts_hold_the_widest_subtrees(void **state)
{
    LS_UNUSED(state);
    check_trees(3, (int[]){0, 0, 2}, 2, (int[]){2, 1});
    check_trees(10, (int[]){0, 0, 0, 0, 0, 0, 0, 0, 8, 8}, 2, (int[]){8, 2});
    check_trees(6, (int[]){0, 0, 0, 3, 3, 3}, 4, (int[]){2, 1, 1, 2});
    check_trees(4, (int[]){0, 1, 0, 1}, 4, (int[]){1, 1, 1, 1});
    check_trees(5, (int[]){4, 4, 4, 4, 4}, 1, (int[]){5});
    check_trees(7, (int[]){0, 0, 0, 0, 9, 9, 9}, 2, (int[]){4, 3});
}

// Bytes that leave each host for others in one all_reduce, against what the head comment says.
static void hosts_send_each_byte_once(void **state)
{
    enum { N = 6, COUNT = 6 * 1600 };
    static const int names[N] = {0, 0, 0, 0, 4, 4};
    const coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = COUNT};
    size_t sent[2] = {0, 0};
    plan_layout l;

    LS_UNUSED(state);
    assert_int_equal(layout_make(N, names, &l), LS_OK);
    for (int rank = 0; rank < N; rank++) {
        const plan_choice choice = plan_choose(&op, N, &l, 1 << 20, NULL);
        plan_input in = plan_input_of(&op, N, rank, &l, &choice);
        plan p = {0};

        assert_int_equal(choice.n_chunks, 1);
        choice.rule->fn(&p, &in);
        for (size_t i = 0; i < p.n_steps; i++)
            if (p.steps[i].action == PLAN_SEND && names[p.steps[i].peer] != names[rank])
                sent[l.host_of[rank]] += p.steps[i].bytes;
        plan_free(&p);
    }
    assert_int_equal(sent[0], COUNT * 4);
    assert_int_equal(sent[1], COUNT * 4);
    layout_free(&l);
}

// A barrier must not end on any rank before it has begun on all: holds one rank back and checks
// that all others wait.
static void no_rank_leaves_a_barrier_that_another_has_not_entered(void **state)
{
    LS_UNUSED(state);
    for (int n = 2; n <= RANKS_FEW; n++) {
        for (int late = 0; late < n; late++) {
            static world w;
            actor *actors;
            bool has_begun[RANKS_MAX] = {false};

            make_world(&w, n, COLL_BARRIER, 0, false, 1);
            w.messages = ls_calloc(MESSAGES_MAX, sizeof(*w.messages));
            assert_int_equal(make_actors(&w, 256, &actors), n);
            for (int pass = 0; pass < 2 * n; pass++)
                for (int i = 0; i < n; i++)
                    if (i != late)
                        (void)act(&w, &actors[i], &has_begun[i]);
            for (int i = 0; i < n; i++)
                assert_true(actors[i].round < actors[i].steps.n_rounds);
            for (int i = 0; i < n; i++) {
                plan_free(&actors[i].steps);
                ls_free(actors[i].scratch);
                ls_free(actors[i].is_received);
            }
            for (size_t i = 0; i < w.n_messages; i++)
                ls_free(w.messages[i].data);
            ls_free(w.messages);
            ls_free(actors);
            free_world(&w);
        }
    }
}

// Bytes that a rank sends in an all_reduce of float32.
static size_t bytes_sent(int n, int rank, size_t count)
{
    const coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = count};
    const plan_choice choice = plan_choose(&op, n, NULL, 256 << 10, NULL);
    plan_input in = plan_input_of(&op, n, rank, NULL, &choice);
    size_t sent = 0;
    plan p = {0};

    for (size_t c = 0; c < choice.n_chunks; c++) {
        in.first = c * choice.chunk;
        plan_reset(&p);
        choice.rule->fn(&p, &in);
        for (size_t i = 0; i < p.n_steps; i++)
            sent += p.steps[i].action == PLAN_SEND ? p.steps[i].bytes : 0;
    }
    plan_free(&p);
    return sent;
}

// The least that any algorithm must move, and what these promise in their head comments.
static void volumes_match_the_head_comments(void **state)
{
    const size_t count = 48 * 1000;
    const size_t bytes = count * 4;

    LS_UNUSED(state);
    // Slices, and halves, are rounded up to whole cache lines.
    for (int n = 2; n <= 16; n++)
        assert_true(bytes_sent(n, n - 1, count) <=
                    2 * bytes * (size_t)(n - 1) / (size_t)n + 2 * 64 * (size_t)(n * n));
    for (int n = 33; n <= 80; n++)
        for (int rank = 0; rank < n; rank++)
            assert_true(bytes_sent(n, rank, count) <= 2 * bytes + bytes / 4 + (size_t)64 * 16);
    for (int rank = 0; rank < 64; rank++)
        assert_true(bytes_sent(64, rank, count) <= 2 * bytes / 64 * 63 + (size_t)64 * 16);
}

// All messages of one chunk, first, middle and last, of an operation of 2^40 bytes and some.
static void check_huge(const coll *op, int n, int rank, const plan_layout *layout)
{
    const size_t width = ls_dtype_size(op->dtype);
    const plan_choice choice = plan_choose(op, n, layout, 256 << 10, NULL);
    plan_input in = plan_input_of(op, n, rank, layout, &choice);
    const size_t chunks[] = {0, choice.n_chunks / 2, choice.n_chunks - 1};

    // A message carries the number of its chunk, in the 64 bits beside the tag.
    assert_true(choice.n_chunks > 1 && choice.n_chunks < (size_t)1 << 32);
    assert_true((choice.n_chunks - 1) * choice.chunk < op->count);
    assert_true(choice.n_chunks * choice.chunk >= op->count);
    for (size_t c = 0; c < LS_COUNT_OF(chunks); c++) {
        plan p = {0};

        in.first = chunks[c] * choice.chunk;
        choice.rule->fn(&p, &in);
        assert_false(p.failed);
        assert_true(p.n_steps > 0 && p.n_steps < 8 * (size_t)n * (size_t)n);
        assert_true(p.scratch_bytes <= (size_t)64 << 20);
        for (size_t i = 0; i < p.n_steps; i++) {
            const plan_step *s = &p.steps[i];

            assert_true(s->bytes <= 1 << 20);
            assert_true(s->from.offset + s->bytes <= (size_t)n * op->count * width);
            assert_true(s->to.offset + s->bytes <= (size_t)n * op->count * width);
            if (s->action == PLAN_RECV && s->to.space == PLAN_DST && op->kind == COLL_ALL_REDUCE)
                assert_true(s->to.offset >= in.first * width &&
                            s->to.offset + s->bytes <= op->count * width);
        }
        plan_free(&p);
    }
}

static void huge_operations_do_not_overflow(void **state)
{
    static const int names[5] = {0, 0, 0, 0, 4};
    plan_layout l;

    LS_UNUSED(state);
    assert_int_equal(layout_make(5, names, &l), LS_OK);
    for (coll_kind kind = COLL_ALL_REDUCE; kind < COLL_BARRIER; kind++) {
        for (ls_dtype type = LS_I8; type <= LS_F64; type++) {
            const coll op = {.kind = kind,
                             .dtype = type,
                             .count = ((size_t)1 << 40) / ls_dtype_size(type) + 7,
                             .root = 1};

            for (int rank = 0; rank < 5; rank += 4) {
                check_huge(&op, 5, rank, NULL);
                check_huge(&op, 5, rank, &l);
            }
            check_huge(&op, 2, 1, NULL);
            check_huge(&op, 32, 31, NULL);
        }
    }
    layout_free(&l);
}

static void plan_without_memory_fails(void **state)
{
    const coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = 100};
    const plan_choice choice = plan_choose(&op, 4, NULL, 4096, NULL);
    const plan_input in = plan_input_of(&op, 4, 0, NULL, &choice);

    LS_UNUSED(state);
    for (uint64_t at = 1; at <= 2; at++) {
        plan p = {0};

        ls_alloc_fail_at(at);
        choice.rule->fn(&p, &in);
        ls_alloc_fail_at(0);
        assert_true(p.failed);
        plan_free(&p);
    }
}

static void rows_between_hosts_are_parsed(void **state)
{
    const coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = 1000};
    const coll larger = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = 100000};
    algorithm_table *t = NULL;

    (void)state;
    assert_string_equal(plan_choose(&op, 4, NULL, 1 << 18, NULL).rule->name, "whole");
    assert_int_equal(algorithm_table_create("hosts/all_reduce:slices<=64K@4,"
                                            "hosts/all_reduce:halving",
                                            &t),
                     LS_OK);
    assert_int_equal(algorithm_table_user_rows(t), 0); // of a team
    assert_string_equal(plan_choose(&op, 4, NULL, 1 << 18, algorithm_table_plans(t)).rule->name,
                        "slices");
    assert_string_equal(plan_choose(&larger, 4, NULL, 1 << 18, algorithm_table_plans(t)).rule->name,
                        "halving");
    // Five is no power of two: the defaults.
    assert_string_equal(plan_choose(&op, 5, NULL, 1 << 18, algorithm_table_plans(t)).rule->name,
                        "whole");
    algorithm_table_free(t);
}

/* One exchange instead of two, of as many bytes. */
static void two_ranks_exchange_the_whole_vector(void **state)
{
    const size_t most = ((size_t)64 << 10) / sizeof(float);
    coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .count = most};

    (void)state;
    assert_string_equal(plan_choose(&op, 2, NULL, 1 << 18, NULL).rule->name, "whole");
    assert_int_equal(plan_choose(&op, 2, NULL, 4096, NULL).n_chunks, 16);
    assert_string_equal(plan_choose(&op, 3, NULL, 1 << 18, NULL).rule->name, "slices");
    op.count++;
    assert_string_equal(plan_choose(&op, 2, NULL, 1 << 18, NULL).rule->name, "slices");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_exchange_the_whole_vector),
        cmocka_unit_test(rows_between_hosts_are_parsed),
        cmocka_unit_test(every_plan_gives_the_result_of_its_operation),
        cmocka_unit_test(plans_of_many_ranks_give_the_results_of_their_operations),
        cmocka_unit_test(reduction_reaches_every_root),
        cmocka_unit_test(many_ranks_exchange_messages_with_few_others),
        cmocka_unit_test(plans_with_counts_per_rank_move_every_part),
        cmocka_unit_test(several_hosts_give_the_same_bits),
        cmocka_unit_test(hosts_hold_the_widest_subtrees),
        cmocka_unit_test(hosts_send_each_byte_once),
        cmocka_unit_test(no_rank_leaves_a_barrier_that_another_has_not_entered),
        cmocka_unit_test(volumes_match_the_head_comments),
        cmocka_unit_test(huge_operations_do_not_overflow),
        cmocka_unit_test(plan_without_memory_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
