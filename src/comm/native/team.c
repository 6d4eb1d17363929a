/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.c - the life of a team, and the life of its current operation up to the point where an algorithm takes over:
 * publish, wait until all have published, compare, resolve the buffers' addresses, run, end.
 */
#include "comm/native/team.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/core.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/native/team_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FUTEX_WAIT_NS  1000000
#define SCRATCH_BYTES  ((size_t)512 << 10) /* of all blocks read from others at a time */
#define TEAM_BLOCK_MAX ((size_t)256 << 10)
#define TEAM_BLOCK_MIN ((size_t)16 << 10)

#define CHECK_MS 20 /* between looks at whether waiting is in vain */

/* --- telling and reading --- */

void team_publish(team *t, _Atomic uint64_t *counter, uint64_t value)
{
    // Pairs with the seq_cst loads of the other members' team_progress(), and with local_prepare_sleep().
    atomic_store_explicit(counter, value, memory_order_seq_cst);
    for (int k = 0; k < t->n; k++) {
        if (k != t->rank)
            local_ring(t->l, t->info->members[k]);
    }
}

team_slot *team_slot_of(const team *t, int member)
{
    return &t->parts[member]->slots[t->number % TEAM_SLOTS];
}

void team_break(team *t, cause_kind kind, int rank, const char *text)
{
    job_cause cause = {
        .kind = kind, .group = t->info->id, .rank = rank < 0 ? -1 : t->info->members[rank]};

    text_format(cause.text, sizeof(cause.text), "%s", text);
    t->is_stuck = true;
    t->host->broken(t->host->self, &cause);
}

/* --- choosing --- */

/* memory: what is true of all members' buffers. may_inline: the data can still come, or has come, with the stamp. */
static const team_algorithm *choose(const team *t, team_memory memory, bool may_inline)
{
    const size_t bytes = team_contribution(t->op, t->n);
    const team_row *row = t->rows[t->op->kind];

    // The last row takes everything.
    while (bytes > row->max_bytes || (row->memory & ~(unsigned)memory) != 0 ||
           (row->algorithm == &team_inline && !may_inline))
        row++;
    return row->algorithm;
}

static const team_algorithm *find_algorithm(const char *name)
{
    static const team_algorithm *const all[] = {&team_inline, &team_staged, &team_shared,
                                                &team_direct};

    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    }
    LS_ASSERT(false);
    return NULL;
}

static bool takes_everything(const team_row *row)
{
    return row->max_bytes == SIZE_MAX && row->memory == TEAM_ANY_MEMORY;
}

static bool has_row_for(const team *t, const team_algorithm *algorithm)
{
    for (size_t k = 0; k < LS_COUNT_OF(t->rows); k++) {
        for (size_t i = 0; i < TEAM_ROWS_MAX; i++) {
            if (t->rows[k][i].algorithm == algorithm)
                return true;
        }
    }
    return false;
}

/* What of the table concerns a team of this size, by kind. What stands behind a row that hides it is left out. */
static void fill_rows(team *t, const algorithm_table *table)
{
    int n[COLL_BARRIER + 1] = {0};
    team_rule rule;

    for (int i = 0; algorithm_table_row(table, i, &rule); i++) {
        team_row *rows = t->rows[rule.kind];
        const int at = n[rule.kind];

        if (t->n > rule.max_ranks || (at > 0 && takes_everything(&rows[at - 1])))
            continue;
        LS_ASSERT(at < TEAM_ROWS_MAX);
        rows[at] = (team_row){.algorithm = find_algorithm(rule.algorithm),
                              .max_bytes = rule.max_bytes,
                              .memory = rule.memory};
        n[rule.kind]++;
    }
}

/* --- publishing --- */

static void publish_refs(team *t, team_slot *s)
{
    const coll *op = t->op;
    const bool swaps = op->kind == COLL_ALL_TO_ALL && op->src == op->dst;

    s->src.id = 0;
    s->dst.id = 0;
    s->src_at = 0;
    s->dst_at = 0;
    // Readers of an all_to_all in place would see what its owner has written already.
    if (team_needs_src(op, t->rank) && !swaps) {
        (void)segment_find(t->l, op->src, team_contribution(op, t->n), &s->src);
        s->src_at = (uintptr_t)op->src;
    }
    if (team_needs_dst(op, t->rank) || (team_can_push(op->kind) && team_is_reader(op, t->rank))) {
        (void)segment_find(t->l, op->dst, team_result(op, t->n), &s->dst);
        s->dst_at = (uintptr_t)op->dst;
    }
}

static uint64_t pack_what(const op_stamp *s)
{
    return (uint64_t)(uint32_t)s->root | (uint64_t)s->kind << 32 | (uint64_t)s->dtype << 40 |
           (uint64_t)s->redop << 48 | (uint64_t)s->vector << 56;
}

/* The data comes first: its loads may miss, and the stores to the line that others poll follow each
 * other at once. */
static void publish_head(team *t, team_slot *s, const op_stamp *stamp)
{
    const size_t bytes = team_contribution(t->op, t->n);

    if (t->is_inline && team_is_source(t->op, t->rank)) {
        if (bytes == sizeof(uint64_t))
            memcpy(s->head.small, t->op->src, sizeof(uint64_t));
        else
            memcpy(bytes <= TEAM_SMALL_BYTES ? s->head.small : s->data, t->op->src, bytes);
    }
    s->head.sequence = stamp->sequence;
    s->head.count = stamp->count;
    s->head.what = t->what;
}

/*
 * Counts this member's arrival; the last one wakes those that nap. A member counts after it has
 * published, so others may have gone on and counted their next arrival before: the count then
 * passes `all`. It reaches `all` only when every member has published this operation, as none
 * publishes the next before.
 */
static void count_arrival(team *t)
{
    team_part *first = t->parts[0];
    const uint64_t all = t->number * (uint64_t)t->n;

    if (atomic_fetch_add_explicit(&first->arrivals, 1, memory_order_seq_cst) + 1 < all)
        return;
    // Pairs with team_futex_wait(): either it sees the number or this sees the napper.
    atomic_store_explicit(&first->complete, (uint32_t)t->number, memory_order_seq_cst);
    if (atomic_load_explicit(&first->n_futex_waiters, memory_order_seq_cst) > 0)
        (void)syscall(SYS_futex, &first->complete, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool team_futex_wait(team *t)
{
    const struct timespec most = {.tv_nsec = FUTEX_WAIT_NS};
    team_part *first = t->parts[0];
    uint32_t complete;

    if (!t->uses_futex || t->phase != TEAM_GATHERING)
        return false;
    atomic_fetch_add_explicit(&first->n_futex_waiters, 1, memory_order_seq_cst);
    complete = atomic_load_explicit(&first->complete, memory_order_seq_cst);
    if ((int32_t)(complete - (uint32_t)t->number) < 0)
        (void)syscall(SYS_futex, &first->complete, FUTEX_WAIT, complete, &most, NULL, 0);
    atomic_fetch_sub_explicit(&first->n_futex_waiters, 1, memory_order_relaxed);
    return true;
}

/*
 * Nobody reads this rank's next slot any more (it was used two operations ago), but its lines still stand in the others' caches: they
 * are called back while this rank waits anyway. As many as this operation took; the next is often alike.
 */
static void prefetch_next_slot(const team *t)
{
    const char *next = (const char *)&t->parts[t->rank]->slots[(t->number + 1) % TEAM_SLOTS];
    const size_t bytes = team_contribution(t->op, t->n);

    core_prefetch_write(next);
    for (size_t at = 0; t->is_inline && bytes > TEAM_SMALL_BYTES && at < bytes; at += 64)
        core_prefetch_write(next + offsetof(team_slot, data) + at);
}

static void publish(team *t)
{
    const team_op *next = list_entry(t->queue.next, team_op, node);
    const op_stamp *stamp = &next->work->op.stamp;
    team_slot *s;

    t->op = &next->work->op;
    t->number++;
    s = team_slot_of(t, t->rank);
    // That an operation is inline depends on its size alone, so that its data can come with the stamp.
    t->is_inline = choose(t, TEAM_BEST_MEMORY, true) == &team_inline;
    if (!t->is_inline)
        publish_refs(t, s);
    // Most calls come from where the one before came from; the line then stays as it is.
    if (memcmp(s->site, stamp->site, sizeof(s->site)) != 0)
        memcpy(s->site, stamp->site, sizeof(s->site));
    t->what = pack_what(stamp);
    publish_head(t, s, stamp);
    t->arrived = 0;
    t->awaited = -1;
    t->phase = TEAM_GATHERING;
    team_publish(t, &s->ready, t->number);
    if (t->uses_futex)
        count_arrival(t);
    prefetch_next_slot(t);
}

/* --- gathering --- */

static void stamp_of_slot(const team *t, const team_slot *s, op_stamp *out)
{
    const team_head *h = &s->head;

    *out = (op_stamp){.group = t->info->id,
                      .sequence = h->sequence,
                      .kind = (uint8_t)(h->what >> 32),
                      .dtype = (uint8_t)(h->what >> 40),
                      .redop = (uint8_t)(h->what >> 48),
                      .vector = (uint8_t)(h->what >> 56),
                      .root = (int32_t)(uint32_t)h->what,
                      .count = h->count};
    memcpy(out->site, s->site, sizeof(out->site));
    out->site[sizeof(out->site) - 1] = '\0';
}

static void break_mismatch(team *t, int member)
{
    char mine[160];
    char theirs[160];
    char text[sizeof(((job_cause *)NULL)->text)];
    op_stamp stamp;

    stamp_of_slot(t, team_slot_of(t, member), &stamp);
    stamp_text(theirs, sizeof(theirs), &stamp);
    stamp_text(mine, sizeof(mine), &t->op->stamp);
    text_format(text, sizeof(text), "ranks disagree: rank %d called %s, rank %d called %s",
                t->info->members[t->rank], mine, t->info->members[member], theirs);
    team_break(t, CAUSE_MISMATCH, -1, text);
}

static bool is_same_operation(const team *t, const team_head *h)
{
    const op_stamp *mine = &t->op->stamp;

    return h->sequence == mine->sequence && h->count == mine->count && h->what == t->what;
}

/* Whether all have published; compares each once. */
static bool gather(team *t)
{
    for (; t->arrived < t->n; t->arrived++) {
        const team_slot *s = team_slot_of(t, t->arrived);

        if (t->arrived == t->rank)
            continue;
        if (atomic_load_explicit(&s->ready, memory_order_seq_cst) < t->number) {
            t->awaited = t->info->members[t->arrived]; // whom we miss last has come last
            return false;
        }
        if (!is_same_operation(t, &s->head)) {
            break_mismatch(t, t->arrived);
            return false;
        }
    }
    return true;
}

/* What is true of all members' buffers. */
static team_memory find_memory(const team *t)
{
    unsigned memory = TEAM_SHARED_MEMORY | (t->can_read ? TEAM_READABLE_MEMORY : 0U);

    for (int k = 0; k < t->n; k++) {
        const team_slot *s = team_slot_of(t, k);
        const bool needs_src = team_needs_src(t->op, k);
        const bool needs_dst = team_needs_dst(t->op, k);

        if ((needs_src && s->src_at == 0) || (needs_dst && s->dst_at == 0))
            return TEAM_ANY_MEMORY;
        if ((needs_src && s->src.id == 0) || (needs_dst && s->dst.id == 0))
            memory &= ~(unsigned)TEAM_SHARED_MEMORY;
    }
    return (team_memory)memory;
}

static ls_status resolve_member(team *t, int k)
{
    const team_slot *s = team_slot_of(t, k);
    const int rank = t->info->members[k];
    void *memory = NULL;

    // A member whose memory this rank leaves alone does not wait for it, and may have given that memory back already.
    if (k != t->rank && !team_touches(t->op, t->rank, k))
        return LS_OK;
    if (team_needs_src(t->op, k)) {
        LS_TRY(segment_resolve(t->l, rank, s->src, team_contribution(t->op, t->n),
                               &t->views[2 * (size_t)k], &memory));
        t->src[k] = memory;
    }
    t->dst[k] = NULL;
    if (team_needs_dst(t->op, k) || (team_can_push(t->op->kind) && s->dst.id != 0)) {
        LS_TRY(segment_resolve(t->l, rank, s->dst, team_result(t->op, t->n),
                               &t->views[2 * (size_t)k + 1], &memory));
        t->dst[k] = memory;
    }
    return LS_OK;
}

/* The addresses of all memory that is shared. A member that has freed its own has given up the
 * operation or ended: the engine learns of an end. */
static bool resolve_all(team *t)
{
    for (int k = 0; k < t->n; k++) {
        const ls_status st = resolve_member(t, k);

        if (st == LS_EPEER && !team_break_given_up(t, k))
            t->is_stuck = true;
        else if (st != LS_OK && st != LS_EPEER)
            team_break(t, CAUSE_FAULT, k, ls_last_error());
        if (st != LS_OK)
            return false;
    }
    return true;
}

/* The addresses in the members' own processes, and room for what is read from there. */
static bool prepare_direct(team *t)
{
    const size_t rooms = (size_t)t->n - 1;

    for (int k = 0; k < t->n; k++) {
        const team_slot *s = team_slot_of(t, k);

        t->src[k] = (char *)(uintptr_t)s->src_at;
        t->dst[k] = (char *)(uintptr_t)s->dst_at;
    }
    if (t->scratch == NULL)
        t->scratch = ls_alloc_aligned(4096, rooms * t->block_bytes);
    if (t->scratch == NULL)
        team_break(t, CAUSE_FAULT, t->rank, "no memory to read that of other ranks");
    return t->scratch != NULL;
}

/* Picks the algorithm. False: the group is broken. */
static bool prepare(team *t)
{
    t->algorithm = t->is_inline ? &team_inline : choose(t, find_memory(t), false);
    if (t->algorithm == &team_shared && !resolve_all(t))
        return false;
    if (t->algorithm == &team_direct && !prepare_direct(t))
        return false;
    t->phase = TEAM_RUNNING;
    t->stage = 0;
    t->at = 0;
    t->algorithm->begin(t);
    return true;
}

static bool all_left(const team *t)
{
    for (int k = 0; k < t->n; k++) {
        if (team_touches(t->op, k, t->rank) &&
            atomic_load_explicit(&t->parts[k]->done, memory_order_seq_cst) < t->number)
            return false;
    }
    return true;
}

/*
 * A read-modify-write that changes nothing. As a release it comes after this rank's reads of the
 * owner's buffer, and after those of the ranks that published `done` before. If it finds no mark,
 * the owner's exchange in team_abort() acquires it: all that the owner writes to its buffer
 * afterwards happens after the reads.
 */
static uint64_t read_mark(team_part *part)
{
    return atomic_fetch_add_explicit(&part->given_up, 0, memory_order_acq_rel);
}

bool team_gave_up(const team *t, int member)
{
    return read_mark(t->parts[member]) != 0;
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
    // No rank is named as the cause: the engine would ignore one that has left the job since.
    team_break(t, CAUSE_FAULT, -1, text);
    return true;
}

team_step team_leave(team *t)
{
    if (!all_left(t))
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
        segment_release(t->l, t->views[i]);
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

static void finish(team *t)
{
    backend_work *work = take_first(t);

    if (t->algorithm == &team_shared)
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
    // Looking for the others at once would take away the lines that they are about to write.
    if (!t->is_inline)
        (void)team_progress(t);
}

void team_abort(team *t, ls_status status, const char *text)
{
    if (t->status != LS_OK)
        return;
    t->status = status;
    // Before any call of this rank returns: see read_mark().
    (void)atomic_exchange_explicit(&t->parts[t->rank]->given_up,
                                   t->phase == TEAM_IDLE ? t->number + 1 : t->number,
                                   memory_order_acq_rel);
    text_format(t->text, sizeof(t->text), "%s", text != NULL ? text : ls_status_text(status));
    release_views(t);
    t->phase = TEAM_IDLE;
    t->op = NULL;
    while (!list_empty(&t->queue))
        t->host->done(t->host->self, take_first(t), t->status, t->text);
}

/* --- life --- */

static ls_status allocate(team *t)
{
    const size_t n = (size_t)t->n;

    t->parts = ls_calloc(n, sizeof(team_part *));
    t->part_views = ls_calloc(n, sizeof(segment_view *));
    t->src = ls_calloc(n, sizeof(char *));
    t->dst = ls_calloc(n, sizeof(char *));
    t->sources = ls_calloc(n, sizeof(char *));
    t->views = ls_calloc(2 * n, sizeof(segment_view *));
    t->operands = ls_calloc(n, sizeof(*t->operands));
    t->readers = ls_calloc(n, sizeof(*t->readers));
    if (t->parts == NULL || t->part_views == NULL || t->src == NULL || t->dst == NULL ||
        t->sources == NULL || t->views == NULL || t->operands == NULL || t->readers == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a team of %d ranks", t->n);
    return LS_OK;
}

static ls_status share_parts(team *t, int64_t deadline_ms)
{
    const uint64_t key = SEGMENT_KEY_TEAM | t->info->id;
    const size_t bytes = TEAM_STAGING_AT + (size_t)2 * TEAM_BUFFERS * t->piece_bytes;
    void *memory = NULL;

    LS_TRY(segment_create(t->l, key, bytes, &t->memory));
    t->parts[t->rank] = t->memory;
    t->probe = ls_hash3((uintptr_t)t, (uint64_t)ls_now_ns(), (uint64_t)t->rank);
    t->parts[t->rank]->probe_at = (uintptr_t)&t->probe;
    t->parts[t->rank]->probe_value = t->probe;
    t->parts[t->rank]->pid = getpid();
    t->parts[t->rank]->shares_cores = t->uses_futex;
    for (int k = 0; k < t->n; k++) {
        if (k == t->rank)
            continue;
        LS_TRY(segment_wait(t->l, t->info->members[k], key, bytes, deadline_ms, &t->part_views[k],
                            &memory));
        t->parts[k] = memory;
    }
    return LS_OK;
}

/* The first member whose counter is 0; n: none. */
static int first_missing(const team *t, size_t counter)
{
    int k = 0;

    for (; k < t->n; k++) {
        const char *part = (const char *)t->parts[k];
        const _Atomic uint64_t *c = (const void *)(part + counter);

        if (atomic_load_explicit(c, memory_order_seq_cst) == 0)
            break;
    }
    return k;
}

static int earlier_of(int left_ms, int ms)
{
    return left_ms < 0 || left_ms > ms ? ms : left_ms;
}

static void sleep_for_absent(team *t, size_t counter, struct pollfd *fds, int64_t deadline_ms)
{
    local_prepare_sleep(t->l);
    if (first_missing(t, counter) < t->n)
        (void)poll(fds, (nfds_t)local_poll_fds(t->l, fds, local_count(t->l)),
                   earlier_of(ls_deadline_left(deadline_ms), CHECK_MS));
    local_end_sleep(t->l);
    local_receive(t->l);
}

/* Sets this member's counter and waits for those of the others. */
static ls_status wait_for_all(team *t, size_t counter, uint64_t value, int64_t deadline_ms)
{
    struct pollfd *fds = ls_calloc((size_t)local_count(t->l), sizeof(*fds));
    ls_status st = LS_OK;

    if (fds == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a team of %d ranks", t->n);
    team_publish(t, (_Atomic uint64_t *)(void *)((char *)t->memory + counter), value);
    while (st == LS_OK && first_missing(t, counter) < t->n) {
        int absent;

        sleep_for_absent(t, counter, fds, deadline_ms);
        absent = first_missing(t, counter);
        if (absent < t->n && local_has_ended(t->l, t->info->members[absent]))
            st = ls_fail(LS_EPEER, "rank %d ended while it opened the group",
                         t->info->members[absent]);
        else if (absent < t->n && ls_deadline_left(deadline_ms) == 0)
            st = ls_fail(LS_ETIMEOUT, "rank %d has not opened the group in time",
                         t->info->members[absent]);
        if (st == LS_OK)
            st = local_check(t->l);
    }
    ls_free(fds);
    return st;
}

/* Reads a value of each member's from its memory: rights, filters and pid namespaces all show here and nowhere else. */
static uint64_t probe_readers(team *t)
{
    for (int k = 0; k < t->n; k++) {
        const team_part *part = t->parts[k];
        uint64_t value = 0;
        struct iovec here = {.iov_base = &value, .iov_len = sizeof(value)};
        struct iovec there = {.iov_base = (void *)(uintptr_t)part->probe_at,
                              .iov_len = sizeof(value)};

        t->readers[k] = (team_reader){.pid = (pid_t)part->pid,
                                      .is_thread = local_is_thread(t->l, t->info->members[k])};
        if (k == t->rank || t->readers[k].is_thread)
            continue;
        if (process_vm_readv(t->readers[k].pid, &here, 1, &there, 1, 0) != sizeof(value) ||
            value != part->probe_value)
            return READS_SOME;
    }
    return READS_ALL;
}

static ls_status agree_on_reading(team *t, int64_t deadline_ms)
{
    // Without a row for it, nobody is to try.
    const uint64_t can_read = has_row_for(t, &team_direct) ? probe_readers(t) : READS_SOME;

    LS_TRY(wait_for_all(t, offsetof(team_part, can_read), can_read, deadline_ms));
    t->can_read = true;
    for (int k = 0; k < t->n; k++) {
        t->uses_futex |= t->parts[k]->shares_cores != 0;
        t->can_read &=
            atomic_load_explicit(&t->parts[k]->can_read, memory_order_seq_cst) == READS_ALL;
    }
    return LS_OK;
}

/* Whole lines, and at least one for each member's slice. */
static void set_sizes(team *t, size_t segment_bytes)
{
    size_t block = SCRATCH_BYTES / ((size_t)t->n - 1) / 4096 * 4096;

    t->piece_bytes = segment_bytes != 0 ? segment_bytes : TEAM_PIECE_DEFAULT;
    t->piece_bytes = (t->piece_bytes + 4095) / 4096 * 4096;
    if (t->piece_bytes < (size_t)t->n * 64)
        t->piece_bytes = ((size_t)t->n * 64 + 4095) / 4096 * 4096;
    block = block > TEAM_BLOCK_MAX ? TEAM_BLOCK_MAX : block;
    t->block_bytes = block < TEAM_BLOCK_MIN ? TEAM_BLOCK_MIN : block;
    // Small pieces are asked for where many are wanted.
    if (t->block_bytes > t->piece_bytes)
        t->block_bytes = t->piece_bytes;
}

ls_status team_open(local *l, const comm_host *host, const group_info *info,
                    const team_options *opt, int64_t deadline_ms, team **out)
{
    team *t = ls_calloc(1, sizeof(*t));
    ls_status st;

    if (t == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a team of %d ranks", info->size);
    t->l = l;
    t->host = host;
    t->info = info;
    t->n = info->size;
    t->rank = info->rank;
    list_init(&t->queue);
    list_init(&t->free_ops);
    set_sizes(t, opt->segment_bytes);
    fill_rows(t, opt->table);
    if (has_row_for(t, &team_direct))
        team_allow_reading();
    t->uses_futex = opt->shares_cores;
    st = allocate(t);
    if (st == LS_OK)
        st = share_parts(t, deadline_ms);
    if (st == LS_OK)
        st = wait_for_all(t, offsetof(team_part, is_open), 1, deadline_ms);
    if (st == LS_OK)
        st = agree_on_reading(t, deadline_ms);
    if (st != LS_OK) {
        team_close(t);
        return ls_context(st, "group %u", info->id);
    }
    *out = t;
    return LS_OK;
}

void team_close(team *t)
{
    if (t == NULL)
        return;
    LS_ASSERT(list_empty(&t->queue));
    for (int k = 0; t->part_views != NULL && k < t->n; k++)
        segment_release(t->l, t->part_views[k]);
    if (t->memory != NULL)
        segment_destroy(t->l, t->memory);
    while (!list_empty(&t->free_ops)) {
        team_op *op = list_entry(t->free_ops.next, team_op, node);

        list_remove(&op->node);
        ls_free(op);
    }
    ls_free(t->parts);
    ls_free(t->part_views);
    ls_free(t->src);
    ls_free(t->dst);
    ls_free(t->sources);
    ls_free(t->views);
    ls_free(t->operands);
    ls_free(t->readers);
    ls_free(t->scratch);
    ls_free(t);
}
