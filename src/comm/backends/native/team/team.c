/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.c - runs the operations of a team one after the other: publish the stamp, wait until all
 * members have published, compare the stamps, resolve the addresses of the buffers, let the
 * algorithm run, end the work. No member touches another's buffer before their stamps have been
 * compared. native.c calls it for groups whose ranks are all on this host.
 */
#include "comm/backends/native/team/team.h"

#include "base/alloc.h"
#include "base/core.h"
#include "base/text.h"
#include "comm/backends/native/team/team_internal.h"

#include <stddef.h>
#include <string.h>

void team_publish(team *t, _Atomic uint64_t *counter, uint64_t value)
{
    // Pairs with the seq_cst loads in the other members' team_progress() and local_prepare_sleep().
    atomic_store_explicit(counter, value, memory_order_seq_cst);
    for (int k = 0; k < t->n; k++) {
        if (k != t->rank)
            local_ring(t->l, t->info->members[k]);
    }
}

static team_slot *slot_of(const team *t, int member, uint64_t number)
{
    return &t->parts[member]->slots[number % TEAM_SLOTS];
}

team_slot *team_slot_of(const team *t, int member)
{
    return slot_of(t, member, t->number);
}

void team_break(team *t, cause_kind kind, int rank, const char *text)
{
    job_cause cause = {
        .kind = kind, .group = t->info->id, .rank = rank < 0 ? -1 : t->info->members[rank]};

    text_format(cause.text, sizeof(cause.text), "%s", text);
    t->is_stuck = true;
    t->host->broken(t->host->self, &cause);
}

/* --- publishing --- */

static void publish_refs(team *t, team_slot *s)
{
    const coll *op = t->op;

    s->src.id = 0;
    s->dst.id = 0;
    s->src_at = 0;
    s->dst_at = 0;
    if (team_is_source(op, t->rank)) {
        (void)segment_find(t->l, op->src, team_contribution(op, t->n), &s->src);
        s->src_at = (uintptr_t)op->src;
    }
    if (team_needs_dst(op, t->rank) || (team_can_push(op->kind) && team_is_reader(op, t->rank))) {
        (void)segment_find(t->l, op->dst, team_result(op, t->n), &s->dst);
        s->dst_at = (uintptr_t)op->dst;
    }
}

static uint64_t pack_signature(const op_stamp *s)
{
    return (uint64_t)(uint32_t)s->root | (uint64_t)s->kind << 32 | (uint64_t)s->dtype << 40 |
           (uint64_t)s->redop << 48 | (uint64_t)s->form << 56;
}

/* Copies the data first: its loads may miss the cache, and the stores to the line that the others
 * poll then follow each other at once. */
static void publish_head(team *t, team_slot *s, const op_stamp *stamp)
{
    const size_t bytes = team_contribution(t->op, t->n);

    if (t->is_inline && team_is_source(t->op, t->rank)) {
        if (bytes == sizeof(uint64_t))
            memcpy(s->head.small, t->op->src, sizeof(uint64_t));
        else if (bytes <= TEAM_SMALL_BYTES)
            memcpy(s->head.small, t->op->src, bytes);
        else
            (void)copy_string(s->data, t->op->src, bytes);
    }
    s->head.sequence = stamp->sequence;
    s->head.count = stamp->count;
    s->head.signature = t->signature;
}

bool team_futex_wait(team *t)
{
    return t->uses_futex && gate_futex_wait(t);
}

/*
 * This rank's next slot was used some operations ago, but the others' caches still hold its lines.
 * This rank fetches them while it has to wait anyway: as many as this operation took, since the
 * next one is often alike.
 */
static void prefetch_next_slot(const team *t)
{
    const char *next = (const char *)slot_of(t, t->rank, t->number + 1);
    const size_t bytes = team_contribution(t->op, t->n);

    core_prefetch_write(next);
    for (size_t at = 0; t->is_inline && bytes > TEAM_SMALL_BYTES && at < bytes; at += 64)
        core_prefetch_write(next + offsetof(team_slot, data) + at);
}

/* Whether this rank takes nothing from others, in an operation in which each member takes what the
 * others have published. Not with gates, which ranks pass together. */
static bool gives_only(const team *t)
{
    const coll_shape *shape = &coll_shapes[t->op->kind];

    return !t->has_gates && ((shape->src_at_root && t->rank == t->op->root) ||
                             (shape->dst_at_root && t->rank != t->op->root));
}

/* What the caches hold of the team's memory depends on the operation and on its size. */
static void find_ways(team *t)
{
    const size_t bytes = team_contribution(t->op, t->n);
    int k = 0;

    while (k < TEAM_WAYS - 1 && bytes >= (size_t)65536 << 2 * k)
        k++;
    t->way = &t->ways[t->op->kind][k];
    t->sum_way = &t->sum_ways[k];
}

/* Selects the algorithm as far as that can be done before the others have published. True: this
 * rank gives its contribution at once, and each member takes its result from these without another
 * step. */
static bool select_early(team *t, team_slot *s)
{
    const team_row *row = team_select_row(t, TEAM_BEST_MEMORY, true);

    // The size alone decides whether an operation is inline, so its data can go with the stamp.
    t->is_inline = row->algorithm == &team_inline;
    t->is_put = false;
    t->is_staged = false;
    if (t->is_inline)
        return true;
    find_ways(t);
    // The others need to know this rank's memory only if it can matter. The memory of all is at
    // most this rank's: a row that needs none of it is selected by all.
    if (row->memory != TEAM_ANY_MEMORY || t->has_gates) {
        publish_refs(t, s);
        row = team_select_row(t, team_find_memory_of(t, t->rank), false);
    }
    t->is_staged =
        row->algorithm == &team_staged && row->memory == TEAM_ANY_MEMORY && !t->has_gates;
    return t->is_staged && team_put_early(t);
}

static void publish(team *t)
{
    const team_op *next = list_entry(t->queue.next, team_op, node);
    const op_stamp *stamp = &next->work->op.stamp;
    bool has_one_step;
    team_slot *s;

    t->op = &next->work->op;
    t->number++;
    s = team_slot_of(t, t->rank);
    has_one_step = select_early(t, s);
    // Most calls have the call site of the one before; the cache line then stays unmodified.
    if (memcmp(s->site, stamp->site, sizeof(s->site)) != 0)
        memcpy(s->site, stamp->site, sizeof(s->site));
    t->signature = pack_signature(stamp);
    publish_head(t, s, stamp);
    t->to_compare = t->number;
    if (has_one_step && gives_only(t))
        t->to_compare -= t->number < TEAM_AHEAD ? t->number : TEAM_AHEAD;
    t->awaited = -1;
    t->phase = TEAM_GATHERING;
    if (t->has_gates)
        gate_arrive(t, 0);
    else
        team_publish(t, &s->ready, t->number);
    prefetch_next_slot(t);
}

/* --- gathering --- */

static void stamp_of_slot(const team *t, const team_slot *s, op_stamp *out)
{
    const team_head *h = &s->head;

    *out = (op_stamp){.group = t->info->id,
                      .sequence = h->sequence,
                      .kind = (uint8_t)(h->signature >> 32),
                      .dtype = (uint8_t)(h->signature >> 40),
                      .redop = (uint8_t)(h->signature >> 48),
                      .form = (uint8_t)(h->signature >> 56),
                      .root = (int32_t)(uint32_t)h->signature,
                      .count = h->count};
    memcpy(out->site, s->site, sizeof(out->site));
    out->site[sizeof(out->site) - 1] = '\0';
}

/* The stamps of operation `number` differ. */
static void break_mismatch(team *t, int member, uint64_t number)
{
    char mine[160];
    char theirs[160];
    char text[sizeof(((job_cause *)NULL)->text)];
    op_stamp stamp;

    stamp_of_slot(t, slot_of(t, member, number), &stamp);
    stamp_text(theirs, sizeof(theirs), &stamp);
    stamp_of_slot(t, slot_of(t, t->rank, number), &stamp);
    stamp_text(mine, sizeof(mine), &stamp);
    text_format(text, sizeof(text), "ranks disagree: rank %d called %s, rank %d called %s",
                t->info->members[t->rank], mine, t->info->members[member], theirs);
    team_break(t, CAUSE_MISMATCH, -1, text);
}

static bool is_same_operation(const team_head *a, const team_head *b)
{
    return a->sequence == b->sequence && a->count == b->count && a->signature == b->signature;
}

/* gather() of a team with gates. */
static bool gather_at_gate(team *t)
{
    const gate_result *r = gate_result_of(t);

    if (!gate_is_open(t))
        return false;
    t->awaited = r->last == t->rank ? -1 : t->info->members[r->last];
    t->memory_kind = (team_memory)r->memory;
    for (int k = 0; r->differs && k < t->n; k++) {
        if (is_same_operation(&team_slot_of(t, k)->head, &team_slot_of(t, t->rank)->head))
            continue;
        break_mismatch(t, k, t->number);
        return false;
    }
    return true;
}

/* Whether all members have published operation compared + 1; compares each stamp once. */
static bool compare_next(team *t)
{
    const uint64_t number = t->compared + 1;
    const team_head *mine = &slot_of(t, t->rank, number)->head;

    for (; t->arrived < t->n; t->arrived++) {
        const team_slot *s = slot_of(t, t->arrived, number);

        if (t->arrived == t->rank)
            continue;
        if (atomic_load_explicit(&s->ready, memory_order_seq_cst) < number) {
            t->awaited = t->info->members[t->arrived]; // the last one to be missing
            return false;
        }
        if (!is_same_operation(&s->head, mine)) {
            break_mismatch(t, t->arrived, number);
            return false;
        }
    }
    t->arrived = 0;
    t->compared = number;
    return true;
}

/* Whether all members have published what this rank has to wait for. */
static bool gather(team *t)
{
    if (t->has_gates)
        return gather_at_gate(t);
    while (t->compared < t->to_compare) {
        if (!compare_next(t))
            return false;
    }
    return true;
}

/* The address of one buffer of member k, unless it is known already; *at stays NULL while its
 * memory is not mapped. */
static ls_status resolve_buffer(team *t, int k, segment_ref ref, size_t bytes, char **at)
{
    segment_view **view = &t->views[2 * (size_t)k + (at == &t->dst[k])];
    void *memory = NULL;

    if (*at != NULL)
        return LS_OK;
    LS_TRY(segment_resolve(t->l, t->info->members[k], ref, bytes, view, &memory));
    *at = memory;
    return LS_OK;
}

/* *is_mapped: all its buffers are. */
static ls_status resolve_member(team *t, int k, bool *is_mapped)
{
    const team_slot *s = team_slot_of(t, k);
    bool has_dst;

    *is_mapped = true;
    if (t->algorithm == &team_levels) {
        if (team_levels_reads(t, k)) {
            LS_TRY(resolve_buffer(t, k, s->src, team_contribution(t->op, t->n), &t->src[k]));
            *is_mapped = t->src[k] != NULL;
        }
        return LS_OK;
    }
    has_dst = team_needs_dst(t->op, k) || (team_can_push(t->op->kind) && s->dst.id != 0);
    // A member whose memory this rank does not touch does not wait for it, and may have freed it.
    if (k != t->rank && !team_touches(t->op, t->rank, k))
        return LS_OK;
    if (team_is_source(t->op, k)) {
        LS_TRY(resolve_buffer(t, k, s->src, team_contribution(t->op, t->n), &t->src[k]));
        *is_mapped = t->src[k] != NULL;
    }
    if (has_dst) {
        LS_TRY(resolve_buffer(t, k, s->dst, team_result(t->op, t->n), &t->dst[k]));
        *is_mapped &= t->dst[k] != NULL;
    }
    return LS_OK;
}

static bool all_left(const team *t)
{
    if (team_claims(t))
        return team_first_below(t, offsetof(team_part, done), t->number) == t->n;
    for (int k = 0; k < t->n; k++) {
        if (team_touches(t->op, k, t->rank) &&
            atomic_load_explicit(&t->parts[k]->done, memory_order_seq_cst) < t->number)
            return false;
    }
    return true;
}

/* Resolves the addresses of all shared buffers; false: the group is broken, or a descriptor is on
 * its way. A member that has freed its buffer has given up the operation or has exited (the engine
 * notices an exit), or members have done this rank's share. */
static bool resolve_all(team *t)
{
    bool all = true;

    if (!t->is_resolving) {
        memset(t->src, 0, (size_t)t->n * sizeof(*t->src));
        memset(t->dst, 0, (size_t)t->n * sizeof(*t->dst));
    }
    t->is_resolving = true;
    for (int k = 0; k < t->n; k++) {
        bool is_mapped;
        const ls_status st = resolve_member(t, k, &is_mapped);

        if (st == LS_EPEER && team_claims(t) && all_left(t))
            break;
        if (st == LS_EPEER && !team_break_given_up(t, k))
            t->is_stuck = true;
        else if (st != LS_OK && st != LS_EPEER)
            team_break(t, CAUSE_FAULT, k, ls_last_error());
        if (st != LS_OK)
            return false;
        all &= is_mapped;
    }
    t->is_resolving = !all;
    return all;
}

/* Takes the addresses in the members' own processes, and allocates scratch memory for reading. */
static bool prepare_direct(team *t)
{
    for (int k = 0; k < t->n; k++) {
        const team_slot *s = team_slot_of(t, k);

        t->src[k] = (char *)(uintptr_t)s->src_at;
        t->dst[k] = (char *)(uintptr_t)s->dst_at;
    }
    if (t->scratch == NULL)
        t->scratch = ls_alloc_aligned(TEAM_PAGE_BYTES,
                                      ((size_t)t->n - 1) * t->block_bytes + TEAM_PAGE_BYTES);
    if (t->scratch == NULL)
        team_break(t, CAUSE_FAULT, t->rank, "no memory for reading the buffers of other ranks");
    return t->scratch != NULL;
}

/* Selects the algorithm and begins it. False: the group is broken, or its memory is not mapped
 * yet. */
static bool prepare(team *t)
{
    if (t->is_inline || t->is_staged) {
        t->algorithm = t->is_inline ? &team_inline : &team_staged;
    } else {
        if (!t->has_gates)
            t->memory_kind = team_find_memory(t);
        t->algorithm = team_select_row(t, t->memory_kind, false)->algorithm;
    }
    if ((t->algorithm == &team_shared || t->algorithm == &team_levels) && !resolve_all(t))
        return false;
    if (t->algorithm == &team_direct && !prepare_direct(t))
        return false;
    t->phase = TEAM_RUNNING;
    t->at_step = 0;
    t->at = 0;
    t->algorithm->begin(t);
    return true;
}

/*
 * A read-modify-write that changes nothing. As a release it is ordered after this rank's reads of
 * the owner's buffer, and after those of the ranks that published `done` before. If it finds no
 * mark, the owner's exchange in team_abort() acquires it: all later writes of the owner to its
 * buffer happen after the reads.
 */
static uint64_t read_mark(team_part *part)
{
    return atomic_fetch_add_explicit(&part->given_up, 0, memory_order_acq_rel);
}

bool team_gave_up(const team *t, int member)
{
    return read_mark(t->parts[member]) != 0;
}

bool team_is_gone(const team *t, int member, bool for_messages)
{
    const uint64_t mark = read_mark(t->parts[member]);

    if (mark == 0)
        return local_has_ended(t->l, t->info->members[member]);
    return for_messages || mark <= t->number;
}

bool team_break_given_up(team *t, int member)
{
    const uint64_t mark = read_mark(t->parts[member]);
    char op[160];
    char text[sizeof(((job_cause *)NULL)->text)];

    if (mark == 0 || mark > t->number)
        return false;
    text_format(text, sizeof(text), "rank %d gave up %s before rank %d had read its buffer",
                t->info->members[member], stamp_text(op, sizeof(op), &t->op->stamp),
                t->info->members[t->rank]);
    // Names no rank as the cause: the engine would ignore one that has left the job since.
    team_break(t, CAUSE_FAULT, -1, text);
    return true;
}

/* Where all members touch each other's memory, a gate makes them wait less often. */
static bool leaves_at_gate(const team *t)
{
    return t->has_gates && coll_reduces(t->op->kind);
}

void team_begin_leave(team *t)
{
    if (leaves_at_gate(t))
        gate_arrive(t, 0);
    else
        team_publish(t, &t->parts[t->rank]->done, t->number);
}

team_step team_leave(team *t)
{
    if (leaves_at_gate(t) ? !gate_is_open(t) : !all_left(t))
        return TEAM_WAITS;
    for (int k = 0; k < t->n; k++) {
        if (k != t->rank && team_is_source(t->op, k) && team_is_reader(t->op, t->rank) &&
            team_break_given_up(t, k))
            return TEAM_WAITS;
    }
    return TEAM_FINISHED;
}

/* --- ending --- */

static void release_views(team *t)
{
    for (int i = 0; i < 2 * t->n; i++) {
        segment_release(t->views[i]);
        t->views[i] = NULL;
    }
}

static backend_work *take_first(team *t)
{
    team_op *op = list_entry(t->queue.next, team_op, node);
    backend_work *work = op->work;

    list_remove(&op->node);
    list_append(&t->free_ops, &op->node);
    return work;
}

static void count_received(const team *t)
{
    const bool reduces = coll_reduces(t->op->kind);
    const size_t reduced = reduces ? team_reduced_bytes(t->op, t->n, t->rank) : 0;

    for (int k = 0; k < t->n; k++) {
        team_move move = {.bytes = reduced};

        if (k != t->rank && (reduces || team_moves(t->op, k, t->rank, &move)))
            backend_count(t->received[k], move.bytes);
    }
}

static void finish(team *t)
{
    backend_work *work = take_first(t);

    count_received(t);
    if (t->algorithm == &team_shared || t->algorithm == &team_levels)
        release_views(t);
    t->op = NULL;
    t->phase = TEAM_IDLE;
    work->awaited = t->awaited;
    t->host->done(t->host->self, work, LS_OK, NULL);
}

bool team_progress(team *t)
{
    bool moved = false;

    while (!t->is_stuck && t->status == LS_OK && !list_empty(&t->queue)) {
        team_step step;

        if (t->phase == TEAM_IDLE)
            publish(t);
        if (t->phase == TEAM_GATHERING && (!gather(t) || !prepare(t)))
            return moved || t->is_stuck;
        step = t->algorithm->step(t);
        if (step == TEAM_WAITS)
            return moved;
        moved = true;
        if (step == TEAM_MOVED)
            return true;
        finish(t);
    }
    return moved;
}

bool team_busy(const team *t)
{
    return !list_empty(&t->queue);
}

void team_start(team *t, backend_work *work)
{
    team_op *op;

    if (t->status != LS_OK) {
        t->host->done(t->host->self, work, t->status, t->text);
        return;
    }
    if (list_empty(&t->free_ops)) {
        op = ls_calloc(1, sizeof(*op));
        if (op == NULL) {
            t->host->done(t->host->self, work, LS_ENOMEM, "no memory for an operation");
            return;
        }
    } else {
        op = list_entry(t->free_ops.next, team_op, node);
        list_remove(&op->node);
    }
    op->work = work;
    list_append(&t->queue, &op->node);
    if (t->phase == TEAM_IDLE && !t->is_stuck)
        publish(t);
    // Polling the others at once would take away the cache lines that they are about to write.
    if (!t->is_inline)
        (void)team_progress(t);
}

void team_abort(team *t, ls_status status, const char *text)
{
    if (t->status != LS_OK)
        return;
    t->status = status;
    // Must precede the return of any call of this rank: see read_mark().
    (void)atomic_exchange_explicit(&t->parts[t->rank]->given_up,
                                   t->phase == TEAM_IDLE ? t->number + 1 : t->number,
                                   memory_order_acq_rel);
    text_format(t->text, sizeof(t->text), "%s", text != NULL ? text : ls_status_text(status));
    release_views(t);
    t->is_resolving = false;
    t->phase = TEAM_IDLE;
    t->op = NULL;
    while (!list_empty(&t->queue))
        t->host->done(t->host->self, take_first(t), t->status, t->text);
}
