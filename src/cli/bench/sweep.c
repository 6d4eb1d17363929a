/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - the order of the rows, and the loop over them on the ranks of cmd_bench.c. */
#include "cli/bench/bench.h"
#include "comm/comm.h"

#include <stdlib.h>

/* The size after `bytes`, -1 after the last size. A factor cannot change 0. */
static int64_t next_size(const bench_options *o, int64_t bytes)
{
    const bool by_factor = o->factor > 1;

    if (by_factor ? bytes == 0 || bytes > o->max_bytes / o->factor
                  : bytes > o->max_bytes - o->step_bytes)
        return -1;
    return by_factor ? bytes * o->factor : bytes + o->step_bytes;
}

static bool is_all(const char *choice)
{
    return text_equal(choice, "all") || text_equal(choice, "-1");
}

static bool is_selected(const bench_sweep *s)
{
    const bench_options *o = s->opt;
    const bool reduces = bench_reduces(o->kind);

    if (!is_all(o->type) && bench_type(o->type) != s->type)
        return false;
    if (bench_has_root(o->kind) ? !is_all(o->root) && strtol(o->root, NULL, 10) != s->root
                                : s->root != 0)
        return false;
    if (!reduces)
        return s->redop == 0;
    return (is_all(o->redop) || bench_redop(o->redop) == s->redop) &&
           reduce_is_defined((ls_reduce_op)s->redop, (ls_dtype)s->type);
}

bench_sweep bench_sweep_begin(const bench_options *opt, int n)
{
    return (bench_sweep){.opt = opt, .n = n, .root = -1, .bytes = -1};
}

/* Order: types, within a type reductions, within a reduction roots. */
static bool next_kind_of_row(bench_sweep *s)
{
    do {
        if (++s->root == s->n) {
            s->root = 0;
            s->redop++;
        }
        if (s->redop == LS_REDUCE_OP_COUNT) {
            s->redop = 0;
            s->type++;
        }
        if (s->type == LS_DTYPE_COUNT)
            return false;
    } while (!is_selected(s));
    s->bytes = s->opt->min_bytes;
    return true;
}

bool bench_sweep_next(bench_sweep *s, bench_case *out)
{
    if (s->bytes >= 0)
        s->bytes = next_size(s->opt, s->bytes);
    if (s->bytes < 0 && !next_kind_of_row(s))
        return false;
    *out = (bench_case){.kind = s->opt->kind,
                        .type = (ls_dtype)s->type,
                        .redop = (ls_reduce_op)s->redop,
                        .root = bench_has_root(s->opt->kind) ? s->root : -1,
                        .n = s->n};
    out->count = bench_count_for(out->kind, out->type, s->bytes, s->n);
    return true;
}

// --- on the ranks ---

static ls_status check_ranks(const bench_options *opt, int n)
{
    if (opt->kind == BENCH_SEND_RECV && n < 2)
        return ls_fail(LS_EINVAL, "sendrecv needs 2 ranks or more, but there is 1 (-g 2)");
    if (opt->kind == BENCH_HYPERCUBE && (n & (n - 1)) != 0)
        return ls_fail(LS_EINVAL, "hypercube needs a power of two of ranks, but there are %d", n);
    if (bench_has_root(opt->kind) && !is_all(opt->root) && strtol(opt->root, NULL, 10) >= n)
        return ls_fail(LS_EINVAL, "-r %s: the ranks are 0 to %d", opt->root, n - 1);
    return LS_OK;
}

static ls_status print_rows(bench *b, bench_table *t, bool is_printing)
{
    const bench_options *opt = t->opt;

    for (int64_t cycle = 0; cycle < opt->cycles || opt->cycles == 0; cycle++) {
        bench_sweep s = bench_sweep_begin(opt, ls_comm_size(bench_comm(b)));
        bench_case c;
        bench_result r;

        while (bench_sweep_next(&s, &c)) {
            LS_TRY(bench_measure(b, &c, true, &r));
            if (is_printing)
                bench_table_row(t, &c, &r);
        }
    }
    return LS_OK;
}

/* The growth of the memory in use; the maximum of all ranks. */
static ls_status count_memory(const bench *b, const ls_queue *queue, const int64_t used[3],
                              int64_t out[3])
{
    const int64_t now = bench_memory_used(queue);

    for (int i = 0; i < 3; i++) {
        const int64_t grown = (i < 2 ? used[i + 1] : now) - used[i];
        out[i] = grown > 0 ? grown : 0;
    }
    return ls_all_reduce(bench_world(b), out, out, 3, LS_I64, LS_MAX, NULL);
}

static ls_status run_alone(bench *b, const ls_queue *queue, const bench_options *opt,
                           const int64_t used[3])
{
    const bool is_printing = ls_comm_rank(bench_world(b)) == 0;
    bench_table t = {.opt = opt,
                     .bench = b,
                     .backend = ls_comm_backend(bench_comm(b)),
                     .transport = ls_comm_transport(bench_comm(b))};
    bool can_go_on;
    ls_status st;

    st = bench_report_open(bench_world(b), bench_color(b), opt, &t.report, &can_go_on);
    if (st != LS_OK || !can_go_on) {
        bench_table_free(&t);
        return st;
    }
    if (is_printing)
        bench_table_begin(&t, ls_comm_size(bench_comm(b)));
    st = print_rows(b, &t, is_printing);
    if (st == LS_OK && opt->memory_report > 0)
        st = count_memory(b, queue, used, t.memory);
    if (st == LS_OK && is_printing)
        st = bench_table_end(&t);
    bench_table_free(&t);
    return st;
}

static ls_status take_turns(bench *b, const bench_options *opt, bench_turn *turn)
{
    bench_sweep s = bench_sweep_begin(opt, ls_comm_size(bench_comm(b)));
    bool has_turn;
    bench_case c;
    bench_result r;

    while (bench_sweep_next(&s, &c))
        for (int64_t cycle = 0; cycle < opt->cycles; cycle++) {
            LS_TRY(bench_turn_wait(turn, &has_turn));
            if (!has_turn)
                return LS_OK;
            LS_TRY(bench_measure(b, &c, cycle == 0, &r));
            LS_TRY(bench_turn_end(turn, &r));
        }
    return LS_OK;
}

static ls_status run_in_turn(bench *b, const bench_options *opt)
{
    bench_turn *turn;
    ls_status st;

    LS_TRY(bench_turn_open(opt->turn, bench_comm(b), &turn));
    st = take_turns(b, opt, turn);
    bench_turn_close(turn);
    return st;
}

ls_status bench_run(ls_comm *world, ls_queue *queue, const bench_options *opt, int64_t used)
{
    int64_t memory[3] = {used, bench_memory_used(queue), 0}; // after ls_init(), with buffers
    bench *b = NULL;
    ls_status st;

    LS_TRY(check_ranks(opt, ls_comm_size(world)));
    LS_TRY(bench_open(world, queue, opt, &b));
    memory[2] = bench_memory_used(queue);
    st = opt->turn != NULL ? run_in_turn(b, opt) : run_alone(b, queue, opt, memory);
    bench_close(b);
    return st;
}
