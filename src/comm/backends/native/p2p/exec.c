/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec.c - carries out collectives: each chunk's plan runs in a lane, several lanes at a time, so
 * that the messages of one chunk move while another is added up.
 *
 * The operations of a group run in a window in the order of their start, and the chunks of an
 * operation in order. Every rank always works on its oldest operation and chunk, so the oldest one
 * of all can always go on. native.c calls it.
 */
#include "comm/backends/native/p2p/exec.h"

#include "comm/backends/native/p2p/match.h"

#include "base/alloc.h"

#include <string.h>

#define WINDOW        4 /* operations of one group under way */
#define SCRATCH_ALIGN 64
#define TAG_BITS      24
#define OPERANDS_FEW  32

static const uint8_t *source_at(const lane *l, plan_ref ref)
{
    const coll *op = &l->work->work->op;

    switch (ref.space) {
    case PLAN_SRC:
        return (const uint8_t *)op->src + ref.offset;
    case PLAN_DST:
        return (const uint8_t *)op->dst + ref.offset;
    case PLAN_SCRATCH:
        break;
    }
    return l->scratch + ref.offset;
}

// Plans write to DST and SCRATCH only.
static uint8_t *target_at(const lane *l, plan_ref ref)
{
    LS_ASSERT(ref.space != PLAN_SRC);
    return ref.space == PLAN_DST ? (uint8_t *)l->work->work->op.dst + ref.offset
                                 : l->scratch + ref.offset;
}

static void make_runnable(lane *l)
{
    native_state *s = l->work->group->state;

    if (l->is_queued)
        return;
    l->is_queued = true;
    list_append(&s->runnable, &l->node);
}

static void message_done(transfer *t)
{
    lane *l = t->owner;

    if (!t->is_send)
        l->work->work->awaited = t->peer->rank; // the last receive to finish
    message_pool_free_transfer(&t->group->state->pool, t);
    if (--l->pending == 0)
        make_runnable(l);
}

// Messages of the operation may be under way: only breaking the whole group cancels them.
static void no_memory(native_work *w)
{
    char text[200];

    native_break(w->group, CAUSE_FAULT, w->group->state->rank, "rank %d has no memory for %s",
                 w->group->state->rank, stamp_text(text, sizeof(text), &w->work->op.stamp));
}

static void begin_message(lane *l, const plan_step *step)
{
    native_work *w = l->work;
    native_group *g = w->group;
    native_peer *p = g->peers[step->peer];
    transfer *t = native_link(p) == LS_OK ? message_pool_new_transfer(&g->state->pool) : NULL;

    if (t == NULL) {
        no_memory(w);
        return;
    }
    LS_ASSERT(step->tag < 1U << TAG_BITS);
    t->group = g;
    t->peer = p;
    t->is_send = step->action == PLAN_SEND;
    t->announce = step->announce;
    t->sequence = w->work->op.stamp.sequence;
    t->step = ((uint64_t)l->chunk << TAG_BITS) | step->tag;
    t->bytes = step->bytes;
    t->total = step->total;
    t->stamp = w->stamp;
    t->finished = message_done;
    t->owner = l;
    l->pending++;
    if (t->is_send) {
        t->from = source_at(l, step->from);
        match_send(t);
    } else {
        t->to = target_at(l, step->to);
        match_receive(t);
    }
}

static void do_reduce(lane *l, const plan_step *step)
{
    const coll *op = &l->work->work->op;
    reduce_operand few[OPERANDS_FEW];
    reduce_operand *operands = few;

    if (step->n_operands > OPERANDS_FEW)
        operands = ls_calloc((size_t)step->n_operands, sizeof(*operands));
    if (operands == NULL) {
        no_memory(l->work);
        return;
    }
    for (int i = 0; i < step->n_operands; i++) {
        const plan_operand *o = &l->steps.operands[step->first_operand + (size_t)i];

        operands[i] = (reduce_operand){.data = source_at(l, o->data),
                                       .first = o->first,
                                       .n_ranks = o->n_ranks,
                                       .partial = o->is_partial};
    }
    reduce_tree(target_at(l, step->to), operands, step->n_operands, step->count, op->dtype,
                op->redop, step->is_final, op->divisor);
    if (operands != few)
        ls_free(operands);
}

static void do_copy(const lane *l, const plan_step *step)
{
    const uint8_t *from = source_at(l, step->from);
    uint8_t *to = target_at(l, step->to);

    if (from != to)
        memcpy(to, from, step->bytes);
}

static void begin_step(lane *l, const plan_step *step)
{
    switch (step->action) {
    case PLAN_SEND:
    case PLAN_RECV:
        begin_message(l, step);
        return;
    case PLAN_COPY:
        do_copy(l, step);
        return;
    case PLAN_REDUCE:
        do_reduce(l, step);
        return;
    }
}

static bool has_stopped(const native_work *w)
{
    return w->has_ended || w->group->is_broken;
}

static void begin_round(lane *l)
{
    const int round = l->next_round++;

    l->pending++; // messages that finish at once must not end the round while it begins
    for (size_t i = 0; i < l->steps.n_steps && !has_stopped(l->work); i++)
        if (l->steps.steps[i].round == round)
            begin_step(l, &l->steps.steps[i]);
    l->pending--;
}

static bool begin_chunk(lane *l, size_t chunk)
{
    native_work *w = l->work;
    native_group *g = w->group;
    plan_input in =
        plan_input_of(&w->work->op, g->info->size, g->info->rank, native_layout(g), &w->choice);

    in.first = chunk * w->choice.chunk;
    l->chunk = chunk;
    l->next_round = 0;
    plan_reset(&l->steps);
    w->choice.rule->fn(&l->steps, &in);
    if (!l->steps.failed && l->steps.scratch_bytes > l->scratch_bytes) {
        ls_free(l->scratch);
        l->scratch = ls_alloc_aligned(SCRATCH_ALIGN, l->steps.scratch_bytes);
        l->scratch_bytes = l->scratch == NULL ? 0 : l->steps.scratch_bytes;
        l->steps.failed = l->scratch == NULL;
    }
    if (l->steps.failed) {
        no_memory(w);
        return false;
    }
    return true;
}

static void run_lane(lane *l)
{
    native_work *w = l->work;

    while (l->pending == 0 && !has_stopped(w)) {
        if (l->next_round < l->steps.n_rounds) {
            begin_round(l);
            continue;
        }
        if (l->is_busy)
            w->chunks_left--;
        l->is_busy = w->next_chunk < w->choice.n_chunks;
        if (!l->is_busy) {
            if (w->chunks_left == 0)
                native_end_work(w);
            return;
        }
        if (!begin_chunk(l, w->next_chunk++))
            return;
    }
}

bool exec_run(native_state *s)
{
    bool any = false;

    while (!list_empty(&s->runnable)) {
        lane *l = list_entry(s->runnable.next, lane, node);

        list_remove(&l->node);
        l->is_queued = false;
        run_lane(l);
        any = true;
    }
    return any;
}

void exec_fill_window(native_group *g)
{
    list_for_each (node, &g->works) {
        native_work *w = list_entry(node, native_work, node);

        if (g->n_running >= WINDOW || g->is_broken)
            return;
        if (w->is_running || w->has_ended)
            continue;
        w->is_running = true;
        g->n_running++;
        for (int i = 0; i < NATIVE_LANES && (size_t)i < w->choice.n_chunks; i++)
            make_runnable(&w->lanes[i]);
    }
}

void exec_start(native_group *g, backend_work *work)
{
    native_state *s = g->state;
    native_work *w = native_new_work(g, work, &s->free_collectives, &g->works);

    if (w == NULL)
        return;
    w->is_direct = false;
    w->is_running = false;
    w->next_chunk = 0;
    w->choice = plan_choose(&work->op, g->info->size, native_layout(g), s->segment_bytes,
                            algorithm_table_plans(s->algorithms));
    w->chunks_left = w->choice.n_chunks;
    for (int i = 0; i < NATIVE_LANES; i++) {
        lane *l = &w->lanes[i];

        l->work = w;
        l->pending = 0;
        l->is_busy = false;
        l->is_queued = false;
        l->next_round = 0;
        plan_reset(&l->steps);
    }
    match_check_unexpected(w);
    exec_fill_window(g);
}

void exec_release(native_work *w)
{
    native_group *g = w->group;

    for (int i = 0; i < NATIVE_LANES; i++)
        if (w->lanes[i].is_queued)
            list_remove(&w->lanes[i].node);
    if (w->is_running)
        g->n_running--;
    list_append(&g->state->free_collectives, &w->node);
}
