/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_open.c - the opening and closing of a team: member 0 creates the shared memory, with a part
 * for each member, the others map it, and all agree whether they can read each other's memory. No
 * member returns before all have mapped it. native.c calls it when a group of local ranks is
 * opened.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "comm/backends/native/team/team_internal.h"

#include <sys/uio.h>
#include <unistd.h>

#define SCRATCH_BYTES  ((size_t)512 << 10) /* of all blocks read from others at a time */
#define TEAM_BLOCK_MAX ((size_t)256 << 10)
#define TEAM_BLOCK_MIN ((size_t)16 << 10)
#define CHECK_MS       20 /* between two checks whether the awaited member still runs */

static ls_status allocate(team *t)
{
    const size_t n = (size_t)t->n;

    t->parts = ls_calloc(n, sizeof(team_part *));
    t->src = ls_calloc(n, sizeof(char *));
    t->dst = ls_calloc(n, sizeof(char *));
    t->sources = ls_calloc(n, sizeof(char *));
    t->views = ls_calloc(2 * n, sizeof(segment_view *));
    t->operands = ls_calloc(n, sizeof(*t->operands));
    t->level_sources = ls_calloc(n, sizeof(*t->level_sources));
    t->readers = ls_calloc(n, sizeof(*t->readers));
    t->received = ls_calloc(n, sizeof(backend_bytes *));
    if (t->parts == NULL || t->src == NULL || t->dst == NULL || t->sources == NULL ||
        t->views == NULL || t->operands == NULL || t->level_sources == NULL || t->readers == NULL ||
        t->received == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a team of %d ranks", t->n);
    for (int k = 0; k < t->n && t->host->received != NULL; k++)
        t->received[k] = t->host->received(t->host->self, t->info->members[k]);
    return LS_OK;
}

/* Pages take memory when they are first touched: each member touches its own part. The staging
 * buffers are behind the parts of all, so those lie close together and need few page tables. */
static ls_status share_parts(team *t, topology_place place, int64_t deadline_ms)
{
    const uint64_t key = SEGMENT_KEY_TEAM | t->info->id;
    const size_t n = (size_t)t->n;
    const size_t bytes = n * (TEAM_PART_BYTES + (size_t)2 * TEAM_BUFFERS * t->piece_bytes);
    team_part *own;

    if (t->rank == 0)
        LS_TRY(segment_create(t->l, key, bytes, &t->memory));
    else
        LS_TRY(
            segment_wait(t->l, t->info->members[0], key, bytes, deadline_ms, &t->view, &t->memory));
    for (int k = 0; k < t->n; k++)
        t->parts[k] = (void *)((char *)t->memory + (size_t)k * TEAM_PART_BYTES);
    t->staging = (char *)t->memory + n * TEAM_PART_BYTES;
    own = t->parts[t->rank];
    t->probe = ls_hash3((uintptr_t)t, (uint64_t)ls_now_ns(), (uint64_t)t->rank);
    own->probe_at = (uintptr_t)&t->probe;
    own->probe_value = t->probe;
    own->pid = getpid();
    own->shares_cores = t->uses_futex;
    own->place = place;
    return LS_OK;
}

static int min_timeout(int left_ms, int ms)
{
    return left_ms < 0 || left_ms > ms ? ms : left_ms;
}

static void sleep_for_missing(team *t, size_t counter, int64_t deadline_ms)
{
    struct pollfd fds[LOCAL_FDS_MAX];

    local_prepare_sleep(t->l);
    if (team_first_below(t, counter, 1) < t->n && !local_has_events(t->l))
        (void)poll(fds, (nfds_t)local_poll_fds(t->l, fds),
                   min_timeout(ls_deadline_left(deadline_ms), CHECK_MS));
    local_end_sleep(t->l);
    (void)local_receive(t->l);
}

/* Sets this member's counter and waits until no member's is 0. */
static ls_status wait_for_all(team *t, size_t counter, uint64_t value, int64_t deadline_ms)
{
    char *own = (char *)t->parts[t->rank];
    ls_status st = LS_OK;

    team_publish(t, (_Atomic uint64_t *)(void *)(own + counter), value);
    while (st == LS_OK && team_first_below(t, counter, 1) < t->n) {
        int missing;

        sleep_for_missing(t, counter, deadline_ms);
        missing = team_first_below(t, counter, 1);
        if (missing < t->n && local_has_ended(t->l, t->info->members[missing]))
            st = ls_fail(LS_EPEER, "rank %d ended while it opened the group",
                         t->info->members[missing]);
        else if (missing < t->n && ls_deadline_left(deadline_ms) == 0)
            st = ls_fail(LS_ETIMEOUT, "rank %d has not opened the group in time",
                         t->info->members[missing]);
        if (st == LS_OK)
            st = local_check(t->l);
    }
    return st;
}

/* Reads a known value from each member's memory: the only way to find out what permissions, system
 * call filters and pid namespaces allow. */
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
    // Without a row that reads, no member tries.
    const uint64_t can_read = team_has_row_for(t, &team_direct) ? probe_readers(t) : READS_SOME;

    LS_TRY(wait_for_all(t, offsetof(team_part, can_read), can_read, deadline_ms));
    t->can_read = true;
    for (int k = 0; k < t->n; k++) {
        t->can_read &=
            atomic_load_explicit(&t->parts[k]->can_read, memory_order_seq_cst) == READS_ALL;
    }
    return LS_OK;
}

/* All members have the same levels, and all have gates or none. */
static ls_status make_levels(team *t)
{
    topology_place *places;
    const size_t capacity = (size_t)2 * TEAM_BUFFERS * t->piece_bytes;
    ls_status st;

    LS_TRY(LS_NEW(&places, (size_t)t->n, "for the places of %d ranks", t->n));
    for (int k = 0; k < t->n; k++) {
        t->uses_futex |= t->parts[k]->shares_cores != 0;
        places[k] = t->parts[k]->place;
    }
    st = levels_make(t->n, places, &t->levels);
    ls_free(places);
    if (st != LS_OK)
        return st;
    t->has_gates = t->uses_futex || t->levels.depth > 1;
    t->gate_level = -1;
    for (int i = 0; i < 2; i++)
        t->round_bytes[i] = levels_fit(&t->levels, capacity, i + 1);
    return LS_OK;
}

/* Pieces are whole pages, with at least one cache line for each member's slice. */
static void set_sizes(team *t, size_t segment_bytes)
{
    size_t block = SCRATCH_BYTES / ((size_t)t->n - 1) / 4096 * 4096;

    t->piece_bytes = segment_bytes != 0 ? segment_bytes : TEAM_PIECE_DEFAULT;
    t->piece_bytes = (t->piece_bytes + 4095) / 4096 * 4096;
    if (t->piece_bytes < (size_t)t->n * 64)
        t->piece_bytes = ((size_t)t->n * 64 + 4095) / 4096 * 4096;
    block = block > TEAM_BLOCK_MAX ? TEAM_BLOCK_MAX : block;
    t->block_bytes = block < TEAM_BLOCK_MIN ? TEAM_BLOCK_MIN : block;
    // A test that sets small pieces wants small blocks too.
    if (t->block_bytes > t->piece_bytes)
        t->block_bytes = t->piece_bytes;
}

ls_status team_open(local *l, const comm_host *host, const group_info *info,
                    const team_options *opt, int64_t deadline_ms, team **out)
{
    team *t;
    ls_status st;

    LS_TRY(LS_NEW(&t, 1, "for a team of %d ranks", info->size));
    t->l = l;
    t->host = host;
    t->info = info;
    t->n = info->size;
    t->rank = info->rank;
    list_init(&t->queue);
    list_init(&t->free_ops);
    set_sizes(t, opt->segment_bytes);
    team_fill_rows(t, opt->table);
    if (team_has_row_for(t, &team_direct))
        team_allow_reading();
    t->uses_futex = opt->shares_cores;
    st = allocate(t);
    if (st == LS_OK)
        st = share_parts(t, opt->place, deadline_ms);
    if (st == LS_OK)
        st = wait_for_all(t, offsetof(team_part, is_open), 1, deadline_ms);
    if (st == LS_OK)
        st = make_levels(t);
    if (st == LS_OK && t->has_gates)
        team_fill_rows(t, opt->table);
    if (st == LS_OK && t->rank == 0)
        segment_close_fd(l, t->memory);
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
    segment_release(t->view);
    if (t->rank == 0)
        (void)segment_destroy(t->l, t->memory);
    while (!list_empty(&t->free_ops)) {
        team_op *op = list_entry(t->free_ops.next, team_op, node);

        list_remove(&op->node);
        ls_free(op);
    }
    levels_free(&t->levels);
    ls_free(t->parts);
    ls_free(t->src);
    ls_free(t->dst);
    ls_free(t->sources);
    ls_free(t->views);
    ls_free(t->operands);
    ls_free(t->level_sources);
    ls_free(t->readers);
    ls_free(t->received);
    ls_free(t->scratch);
    ls_free(t);
}
