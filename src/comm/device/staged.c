/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.c - runs operations on device memory through host memory, in pieces (staged.h). engine.c
 * starts and ends the works, drive.c progresses them.
 *
 * A piece is a range of elements of every part: it is copied to a block of page-locked memory, the
 * backend runs the operation on it in place, and the result is copied back. The blocks of a group
 * form a ring, so the copies of a piece overlap the host operation of the next. The results have
 * the bits of the same operation in host memory, because no reduction depends on the size of
 * pieces. Messages and all_to_all_v, whose sizes not all ranks know, are one piece in a block of
 * their own.
 */
#include "comm/device/staged_pieces.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <time.h>

#define SEGMENTS      4 /* of LOCKSTEP_SEGMENT in a block */
#define SEGMENT_BYTES ((size_t)256 << 10)
#define ABORT_MS      1000
#define ABORT_STEP_NS (100 * INT64_C(1000))

/* --- preparing --- */

static staging *make_staging(const ls_comm *comm)
{
    const join *j = comm->engine->parts.join;
    const size_t segment =
        j == NULL || j->boot.segment_bytes == 0 ? SEGMENT_BYTES : j->boot.segment_bytes;
    // one element for each rank, on two sides
    const size_t least = 2 * (size_t)comm->info.size * sizeof(double) + STAGING_ALIGN;
    staging *s = ls_calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    list_init(&s->collectives);
    list_init(&s->sends);
    list_init(&s->others);
    list_init(&s->free_ops);
    list_init(&s->idle);
    s->ring_bytes = SEGMENTS * segment;
    if (s->ring_bytes < least)
        s->ring_bytes = least;
    return s;
}

static void free_op(staged_op *op)
{
    accel_event_destroy(op->start);
    accel_event_destroy(op->began);
    accel_event_destroy(op->end);
    ls_free(op->counts);
    ls_free(op);
}

static ls_status take_op(staging *s, accel *owner, staged_op **out)
{
    staged_op *op;
    staged_op kept = {0};

    if (list_empty(&s->free_ops)) {
        LS_TRY(LS_NEW(&op, 1, "for an operation"));
    } else {
        op = list_entry(s->free_ops.next, staged_op, node);
        list_remove(&op->node);
        kept = *op;
    }
    *op = (staged_op){.owner = owner,
                      .start = kept.start,
                      .began = kept.began,
                      .end = kept.end,
                      .counts = kept.counts,
                      .counts_capacity = kept.counts_capacity};
    list_init(&op->node);
    *out = op;
    return LS_OK;
}

/* The event of an op that was used before may belong to another accelerator. */
static ls_status make_event(const staged_op *op, bool is_timed, accel_event **event)
{
    if (*event != NULL && (*event)->accel == op->owner)
        return LS_OK;
    accel_event_destroy(*event);
    *event = NULL;
    return accel_event_create(op->owner, is_timed, event);
}

static ls_status make_events(staged_op *op, bool is_traced)
{
    LS_TRY(make_event(op, false, &op->start));
    if (is_traced)
        LS_TRY(make_event(op, true, &op->began));
    return make_event(op, is_traced, &op->end);
}

static ls_status reserve_counts(staged_op *op, int size)
{
    const size_t n = 2 * (size_t)size;
    size_t *grown;

    if (op->counts_capacity >= n)
        return LS_OK;
    grown = ls_realloc(op->counts, n, sizeof(*grown));
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the counts of %d ranks", size);
    op->counts = grown;
    op->counts_capacity = n;
    return LS_OK;
}

/* The most elements of a part, known to all ranks: of a side that this rank may not use. */
static size_t elements_of_all(const coll *c, int size)
{
    const size_t *counts = c->src_counts != NULL ? c->src_counts : c->dst_counts;

    return counts == NULL ? c->count
                          : staging_most_elements(&(coll_side){.n_parts = size, .counts = counts});
}

static bool is_one_piece(const coll *c)
{
    return stamp_is_message(&c->stamp) || (c->src_counts != NULL && c->dst_counts != NULL);
}

/* All ranks have the same pieces. */
static ls_status divide(staging *s, staged_op *op, const ls_comm *comm, const coll *c)
{
    const size_t size = ls_dtype_size(c->dtype);
    const bool is_divided = coll_divides_src(c->kind) || coll_divides_dst(c->kind);
    const size_t parts = is_divided ? (size_t)comm->info.size : 1;
    const size_t sides = coll_is_pairwise(c->kind) ? 2 : 1;
    const size_t all = elements_of_all(c, comm->info.size);

    if (is_one_piece(c)) {
        op->n_pieces = 1;
        op->piece = SIZE_MAX;
        return staging_block_take(s, op->owner, c->bytes + STAGING_ALIGN, &op->own);
    }
    op->piece = (s->ring_bytes - STAGING_ALIGN) / (size * parts * sides);
    op->n_pieces = all == 0 ? 1 : (all - 1) / op->piece + 1;
    for (int i = 0; i < STAGING_RING; i++) {
        if (s->ring[i].owner == NULL)
            LS_TRY(staging_block_fit(&s->ring[i], op->owner, s->ring_bytes));
    }
    return LS_OK;
}

/* In a group of one rank most operations are copies at most, which need no host. */
static bool is_plain_copy(const ls_comm *comm, const coll *c)
{
    return comm->backend == NULL &&
           !(c->kind == COLL_ALL_REDUCE && c->redop == LS_AVG && c->divisor != 1);
}

static ls_status prepare_op(ls_comm *comm, staged_op *op, const coll *c)
{
    const int rank = comm->info.rank;
    const int size = comm->info.size;

    LS_TRY(make_events(op, c->is_traced));
    LS_TRY(reserve_counts(op, size));
    op->src = check_src_side(c, rank, size);
    op->dst = check_dst_side(c, rank, size);
    if (!is_plain_copy(comm, c))
        LS_TRY(divide(comm->staging, op, comm, c));
    return accel_event_record(op->start, c->queue);
}

bool staged_concerns(const ls_comm *comm, const coll *op)
{
    const backend_ops *ops = comm->engine->parts.ops;
    const staging *s = comm->staging;

    if (op->accelerator != NULL)
        return comm->backend == NULL || ops->takes_device == NULL ||
               !ops->takes_device(comm->backend, op);
    if (s == NULL || op->kind == COLL_RECV || comm->backend == NULL)
        return false;
    return !list_empty(op->kind == COLL_SEND ? &s->sends : &s->collectives);
}

ls_status staged_attach(ls_comm *comm, ls_work *w, uint64_t *n_pieces)
{
    accel *owner = w->b.op.accelerator;
    staged_op *op = NULL;
    ls_status st;

    if (comm->staging == NULL)
        comm->staging = make_staging(comm);
    if (comm->staging == NULL)
        return ls_fail(LS_ENOMEM, "no memory for operations on %s", owner->name);
    LS_TRY(take_op(comm->staging, owner, &op));
    LS_ASSERT(op != NULL);
    op->work = w;
    w->staged = op;
    comm->engine->n_staged++;
    st = owner != NULL ? prepare_op(comm, op, &w->b.op) : LS_OK;
    if (st != LS_OK)
        staged_detach(w);
    else if (op->n_pieces > 1)
        *n_pieces = op->n_pieces;
    return st;
}

void staged_detach(ls_work *w)
{
    staging *s = w->comm->staging;
    staged_op *op = w->staged;

    w->staged = NULL;
    w->b.event = NULL;
    w->comm->engine->n_staged--;
    list_remove(&op->node);
    if (op->own != NULL)
        staging_block_give(s, op->own);
    op->own = NULL;
    list_append(&s->free_ops, &op->node);
}

void staged_start(ls_work *w)
{
    staging *s = w->comm->staging;
    staged_op *op = w->staged;
    const coll_kind kind = w->b.op.kind;

    list_append(kind == COLL_RECV   ? &s->others
                : kind == COLL_SEND ? &s->sends
                                    : &s->collectives,
                &op->node);
    (void)staged_progress(w->comm->engine);
}

/* --- progress of one op --- */

static void fail(staged_op *op, ls_status status, const char *what)
{
    engine *e = op->work->comm->engine;
    char text[LS_ERROR_BYTES];
    char stamp[200];

    op->has_failed = true;
    if (op->work->comm->status != LS_OK) // the work is about to end with the group's
        return;
    text_format(text, sizeof(text), "%s: %s: %s",
                stamp_text(stamp, sizeof(stamp), &op->work->b.op.stamp), what, ls_last_error());
    e->host.done(e, &op->work->b, status, text);
}

/* False: it has not happened yet, or the op has failed. */
static bool has_happened(staged_op *op, accel_event *event, const char *what)
{
    bool done = false;
    const ls_status st = accel_event_test(event, &done);

    if (st != LS_OK)
        fail(op, st, what);
    else if (!done)
        op->polls = true;
    return st == LS_OK && done;
}

static bool try_begin(staged_op *op)
{
    if (!op->has_begun)
        op->has_begun = has_happened(op, op->start, "the work before it on the device");
    return op->has_begun;
}

static bool has_data(const staged_op *op)
{
    return op->src.n_parts > 0;
}

/* Before each copy: marks the first one for --trace. */
static ls_status mark_begin(staged_op *op)
{
    backend_work *b = &op->work->b;

    if (!b->op.is_traced || b->began != NULL)
        return LS_OK;
    b->began = op->began;
    return accel_event_record(op->began, accel_queue(op->owner, ACCEL_STAGING));
}

/* The next piece to its block, if that is free. */
static bool try_load(staging *s, staged_op *op)
{
    const coll *c = &op->work->b.op;
    const size_t at = op->n_loaded * op->piece;
    staging_block *b = staging_block_of(s, op, op->n_loaded);
    ls_status st;

    if (op->n_loaded == op->n_pieces || op->n_loaded - op->n_stored == STAGING_RING ||
        (has_data(op) && !try_begin(op)) ||
        !has_happened(op, b->event, "the copies of an earlier operation"))
        return false;
    st = op->own != NULL ? LS_OK : staging_block_fit(b, op->owner, s->ring_bytes);
    if (st == LS_OK && has_data(op)) {
        st = mark_begin(op);
        if (st == LS_OK)
            st = staging_copy_side(op, &op->src, at, (char *)(uintptr_t)c->src,
                                   b->memory + staging_places_of(op, at).src, ACCEL_TO_HOST);
        if (st == LS_OK)
            st = accel_event_record(b->event, accel_queue(op->owner, ACCEL_STAGING));
    }
    if (st != LS_OK) {
        fail(op, st, "the copy to the host");
        return false;
    }
    op->n_loaded++;
    return true;
}

/* The backend runs one piece at a time, so all ranks start the pieces in the same order. */
static bool try_host(staging *s, staged_op *op)
{
    ls_comm *comm = op->work->comm;
    const size_t piece = op->n_started;

    if (piece == op->n_loaded || op->n_started > op->n_hosted ||
        (has_data(op) &&
         !has_happened(op, staging_block_of(s, op, piece)->event, "the copy to the host")))
        return false;
    staging_describe_piece(s, op, piece);
    op->host.group = comm->backend;
    op->host.state = NULL;
    op->host.source = -1;
    op->host.awaited = -1;
    op->host.owner = op->work;
    op->n_started++;
    if (comm->backend != NULL) {
        comm->engine->parts.ops->start(comm->backend, &op->host);
    } else {
        engine_compute_alone(&op->host.op);
        op->n_hosted++;
    }
    return true;
}

/* Root's own data is in dst already. */
static bool has_result(const staged_op *op)
{
    const coll *c = &op->work->b.op;

    return op->dst.n_parts > 0 &&
           !(c->kind == COLL_BROADCAST && c->root == op->work->comm->info.rank && c->src == c->dst);
}

static bool try_store(staging *s, staged_op *op)
{
    const size_t at = op->n_stored * op->piece;
    staging_block *b = staging_block_of(s, op, op->n_stored);
    ls_status st;

    if (op->n_stored == op->n_hosted || (has_result(op) && !try_begin(op)))
        return false;
    if (has_result(op)) {
        st = mark_begin(op);
        if (st == LS_OK)
            st = staging_copy_side(op, &op->dst, at, op->work->b.op.dst,
                                   b->memory + staging_places_of(op, at).dst, ACCEL_TO_DEVICE);
        if (st == LS_OK)
            st = accel_event_record(b->event, accel_queue(op->owner, ACCEL_STAGING));
        if (st != LS_OK) {
            fail(op, st, "the copy to the device");
            return false;
        }
        op->has_copies = true;
    }
    op->n_stored++;
    return true;
}

/* In a group of one rank, without pieces. */
static ls_status copy_alone(staged_op *op)
{
    const coll *c = &op->work->b.op;
    const size_t bytes = check_side_bytes(c, &op->dst);

    if (bytes == 0 || c->src == c->dst)
        return LS_OK;
    op->has_copies = true;
    LS_TRY(mark_begin(op));
    return accel_copy(accel_queue(op->owner, ACCEL_STAGING), c->dst, c->src, bytes,
                      ACCEL_ON_DEVICE);
}

/* After the last copy is queued: `end` marks it. */
static bool try_finish(staged_op *op)
{
    ls_status st = LS_OK;

    if (op->is_queued || op->n_stored < op->n_pieces || (op->n_pieces == 0 && !try_begin(op)))
        return false;
    if (op->n_pieces == 0)
        st = copy_alone(op);
    if (st == LS_OK)
        st = accel_event_record(op->end, accel_queue(op->owner, ACCEL_STAGING));
    if (st != LS_OK) {
        fail(op, st, "the copy of the result");
        return false;
    }
    op->is_queued = true;
    op->work->b.event = op->end;
    return true;
}

/* The host operation of a piece may end at once, so the stages are repeated. */
static bool advance(staging *s, staged_op *op)
{
    bool moved = false;
    bool again;

    op->polls = false;
    do {
        again = false;
        if (!op->has_failed)
            again |= try_store(s, op);
        if (!op->has_failed)
            again |= try_load(s, op);
        if (!op->has_failed)
            again |= try_host(s, op);
        if (!op->has_failed)
            again |= try_finish(op);
        moved |= again;
    } while (again);
    return moved;
}

/* --- progress of a group --- */

/* An operation on host memory whose turn has come. */
static void start_on_host(staged_op *op)
{
    ls_work *w = op->work;

    staged_detach(w);
    w->comm->engine->parts.ops->start(w->comm->backend, &w->b);
}

static void move(staging *s, staged_op *op)
{
    list_remove(&op->node);
    list_append(&s->others, &op->node);
}

static bool progress_collectives(staging *s)
{
    bool moved = false;

    while (!list_empty(&s->collectives)) {
        staged_op *op = list_entry(s->collectives.next, staged_op, node);

        if (op->owner == NULL) {
            start_on_host(op);
            moved = true;
            continue;
        }
        if (op->n_loaded == 0)
            op->first = s->next;
        moved |= advance(s, op);
        if (!op->is_queued)
            break;
        if (op->own == NULL)
            s->next = (op->first + op->n_pieces) % STAGING_RING;
        move(s, op);
    }
    return moved;
}

/* Data of all sends is copied at once; their host operations start in the order of the calls. */
static bool progress_sends(staging *s)
{
    bool moved = false;

    while (!list_empty(&s->sends)) {
        staged_op *op = list_entry(s->sends.next, staged_op, node);

        if (op->owner == NULL) {
            start_on_host(op);
            moved = true;
            continue;
        }
        moved |= advance(s, op);
        if (op->n_started == 0)
            break;
        move(s, op);
    }
    list_for_each (it, &s->sends) {
        staged_op *op = list_entry(it, staged_op, node);

        if (op->owner == NULL || op->has_failed)
            continue;
        op->polls = false;
        moved |= try_load(s, op);
    }
    return moved;
}

static bool progress_others(engine *e, staging *s)
{
    bool moved = false;

    list_for_each_safe (it, &s->others) {
        staged_op *op = list_entry(it, staged_op, node);

        moved |= advance(s, op);
        if (!op->is_queued || op->has_failed)
            continue;
        if ((op->has_copies || op->work->b.began != NULL) &&
            !has_happened(op, op->end, "the copy of the result"))
            continue;
        engine_end_work(e, op->work, LS_OK);
        moved = true;
    }
    return moved;
}

bool staged_progress(engine *e)
{
    bool moved = false;

    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        if (comm->staging == NULL || comm->status != LS_OK)
            continue;
        moved |= progress_collectives(comm->staging);
        moved |= progress_sends(comm->staging);
        moved |= progress_others(e, comm->staging);
    }
    if (moved)
        e->moved_ns = ls_now_ns();
    return moved;
}

static bool list_polls(const list_node *ops)
{
    list_for_each (it, ops) {
        if (list_entry(it, staged_op, node)->polls)
            return true;
    }
    return false;
}

bool staged_polls(const engine *e)
{
    if (e->n_staged == 0)
        return false;
    list_for_each (it, &e->groups) {
        const staging *s = list_entry(it, ls_comm, node)->staging;

        if (s != NULL &&
            (list_polls(&s->collectives) || list_polls(&s->sends) || list_polls(&s->others)))
            return true;
    }
    return false;
}

void staged_host_done(ls_work *w, ls_status status, const char *text)
{
    engine *e = w->comm->engine;
    staged_op *op = w->staged;

    w->b.source = op->host.source;
    w->b.awaited = op->host.awaited;
    if (status == LS_OK) {
        op->n_hosted++;
        return;
    }
    op->has_failed = true;
    if (w->comm->status == LS_OK)
        e->host.done(e, &w->b, status, text);
}

/* --- the end --- */

/* Without a device there is nothing to wait for: is_quiet() finds it lost. */
static void mark_end(staged_op *op)
{
    if (accel_event_record(op->end, accel_queue(op->owner, ACCEL_STAGING)) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the copies of a broken group: %s", ls_last_error());
}

/* The other ranks may have ended the operation without failure: its result is copied back. */
static void queue_result(staging *s, staged_op *op)
{
    if (op->n_pieces == 0 || op->n_hosted < op->n_pieces)
        return;
    while (!op->has_failed && try_store(s, op))
        continue;
    if (!op->has_failed)
        (void)try_finish(op);
}

/* Ends the ops whose results have arrived. */
static void end_complete(engine *e, list_node *ops)
{
    list_for_each_safe (it, ops) {
        staged_op *op = list_entry(it, staged_op, node);
        bool done = false;

        if (op->is_queued && !op->has_failed && accel_event_test(op->end, &done) == LS_OK && done)
            engine_end_work(e, op->work, LS_OK);
    }
}

/* Whether nothing queued for the op touches memory any more; also when the device is lost. */
static bool is_quiet(const staged_op *op)
{
    bool done = false;

    return op->owner == NULL || accel_event_test(op->end, &done) != LS_OK || done;
}

static void await_copies(list_node *ops, int64_t deadline_ns)
{
    const struct timespec step = {.tv_nsec = ABORT_STEP_NS};

    list_for_each (it, ops) {
        staged_op *op = list_entry(it, staged_op, node);

        while (!is_quiet(op) && ls_now_ns() < deadline_ns)
            (void)nanosleep(&step, NULL);
        if (!is_quiet(op))
            op->own = NULL;
    }
}

void staged_abort(ls_comm *comm)
{
    staging *s = comm->staging;
    list_node *lists[3];
    const int64_t deadline_ns = ls_now_ns() + ABORT_MS * MS_NS;

    if (s == NULL)
        return;
    lists[0] = &s->collectives;
    lists[1] = &s->sends;
    lists[2] = &s->others;
    for (int i = 0; i < 3; i++) {
        list_for_each (it, lists[i]) {
            staged_op *op = list_entry(it, staged_op, node);

            if (op->owner == NULL)
                continue;
            queue_result(s, op);
            if (!op->is_queued)
                mark_end(op);
        }
        await_copies(lists[i], deadline_ns);
        end_complete(comm->engine, lists[i]);
    }
}

static bool is_block_quiet(const staging_block *b)
{
    bool done = false;

    return b->event == NULL || accel_event_test(b->event, &done) != LS_OK || done;
}

static void forget_event(accel_event **event, const accel *owner)
{
    if (*event == NULL || (*event)->accel != owner)
        return;
    accel_event_destroy(*event);
    *event = NULL;
}

void staged_forget(ls_comm *comm, const accel *owner)
{
    staging *s = comm->staging;

    if (s == NULL)
        return;
    for (int i = 0; i < STAGING_RING; i++) {
        if (s->ring[i].owner == owner)
            staging_block_empty(&s->ring[i]);
    }
    staging_block_forget(s, owner);
    list_for_each (it, &s->free_ops) {
        forget_event(&list_entry(it, staged_op, node)->start, owner);
        forget_event(&list_entry(it, staged_op, node)->began, owner);
        forget_event(&list_entry(it, staged_op, node)->end, owner);
    }
}

void staged_close(ls_comm *comm)
{
    staging *s = comm->staging;

    if (s == NULL)
        return;
    comm->staging = NULL;
    for (int i = 0; i < STAGING_RING; i++) {
        if (is_block_quiet(&s->ring[i]))
            staging_block_empty(&s->ring[i]);
    }
    staging_block_forget(s, NULL);
    while (!list_empty(&s->free_ops)) {
        staged_op *op = list_entry(s->free_ops.next, staged_op, node);

        list_remove(&op->node);
        free_op(op);
    }
    ls_free(s);
}
