/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_direct.c - large operations on the caller's own memory, which the members read from each
 * other's address space (process_vm_readv; plain loads between threads of one process). team.c runs
 * it. No member ever writes another's memory, so a rank that has given up an operation may use its
 * buffers at once.
 *
 * all_reduce       in blocks, two under way: reads the block of the own slice from all others into
 *                  scratch, reduces it into the own dst, publishes that; then reads the others'
 *                  blocks from their dst. Bytes per rank: m (n - 1) / n read into scratch, m
 *                  reduced, m / n written, m (n - 1) / n read into place: Rabenseifner's
 *                  reduce-scatter and all-gather (Thakur, Rabenseifner and Gropp, 2005, section
 *                  4.5) without a copy of what is sent.
 * reduce_scatter   the first half of it.
 * the others       each reader reads the sources' memory: one copy. Bytes as the result.
 *
 * This is the single-copy exchange of KNEM (Goglin and Moreaud, 2013) with a system call of its
 * own.
 */
#include "comm/backends/native/team/team_internal.h"

#include "base/alloc.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define AHEAD 2 /* blocks reduced before they are taken by all */

/* A failed read breaks the group, unless the process has exited (ESRCH): the engine notices
 * that. */
static void fail_read(team *t, int member, int error)
{
    const int rank = t->info->members[member];
    char op[160];
    char text[320];

    if (error == ESRCH)
        t->is_stuck = true;
    if (error == ESRCH || team_break_given_up(t, member))
        return;
    if (error == EFAULT)
        text_format(text, sizeof(text),
                    "rank %d's buffer in %s is not readable memory: it was freed before the "
                    "operation ended, or is smaller than the count says",
                    rank, stamp_text(op, sizeof(op), &t->op->stamp));
    else
        text_format(text, sizeof(text), "rank %d's memory cannot be read: %s", rank,
                    ls_errno_text(error));
    team_break(t, CAUSE_FAULT, member, text);
}

/* In Yama's mode 1 only ancestors may read a process, and one process that it names. Ranks are
 * siblings, so each permits all. */
void team_allow_reading(void)
{
    const int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    char mode = '0';

    if (fd < 0)
        return;
    if (read(fd, &mode, 1) == 1 && mode == '1')
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    (void)close(fd);
}

bool team_can_read(const team *t)
{
    return t->can_read;
}

bool team_read(const team *t, int member, const char *from, char *to, size_t bytes)
{
    if (member == t->rank || t->readers[member].is_thread) {
        if (to != from)
            memcpy(to, from, bytes);
        return true;
    }
    while (bytes > 0) {
        const struct iovec here = {.iov_base = to, .iov_len = bytes};
        struct iovec there = {.iov_len = bytes};
        ssize_t n;

        memcpy(&there.iov_base, &from, sizeof(from)); // iovec has no const; the call only reads
        n = process_vm_readv(t->readers[member].pid, &here, 1, &there, 1, 0);
        if (n <= 0) {
            errno = n < 0 ? errno : EFAULT;
            return false;
        }
        to += n;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Reads for the current operation; false: the operation cannot go on. */
static bool fetch(team *t, int k, const char *from, char *to, size_t bytes)
{
    if (team_read(t, k, from, to, bytes))
        return true;
    fail_read(t, k, errno);
    return false;
}

/* --- reductions --- */

static size_t element(const team *t)
{
    return ls_dtype_size(t->op->dtype);
}

/* The slice of member k: [*at, *end). */
static void slice_of(const team *t, int k, size_t *at, size_t *end)
{
    const size_t all = t->op->count * element(t);
    size_t length;

    team_slice(all, t->n, k, at, &length);
    *end = *at + length;
    if (!coll_reduces_whole(t->op->kind)) {
        *at = 0;
        *end = all;
    }
}

static void begin(team *t)
{
    size_t at;
    size_t end;

    t->next_reduce = 0;
    t->next_out = 0;
    t->n_pieces = 0;
    if (!coll_reduces(t->op->kind))
        return;
    slice_of(t, 0, &at, &end); // the longest
    t->n_pieces = (end - at + t->block_bytes - 1) / t->block_bytes;
}

/* Block p of member k's slice; false: it has none. */
static bool block_of(const team *t, int k, uint64_t p, size_t *at, size_t *bytes)
{
    size_t end;

    slice_of(t, k, at, &end);
    if (p * t->block_bytes >= end - *at)
        return false;
    *at += (size_t)p * t->block_bytes;
    *bytes = end - *at < t->block_bytes ? end - *at : t->block_bytes;
    return true;
}

/* Scratch for what comes from the i-th other member, to go to this address. Both have the same
 * offset in a page: else each load from one waits for a store to the other, of which the processor
 * compares only these bits. */
static char *scratch_for(const team *t, int i, const void *to)
{
    return t->scratch + (size_t)(i - 1) * t->block_bytes + (uintptr_t)to % TEAM_PAGE_BYTES;
}

static bool reduce_block(team *t, uint64_t p)
{
    const coll *op = t->op;
    const size_t skip = team_own_part(t);
    size_t at;
    size_t bytes;

    if (!block_of(t, t->rank, p, &at, &bytes))
        return true;
    for (int i = 1; i < t->n; i++) {
        // Each member begins with its neighbour, so that not all read the same memory at once.
        const int k = (t->rank + i) % t->n;
        char *block = scratch_for(t, i, (char *)op->dst + at);

        if (!fetch(t, k, t->src[k] + skip + at, block, bytes))
            return false;
        t->sources[k] = block;
    }
    t->sources[t->rank] = (const char *)op->src + skip + at;
    team_reduce(t, (char *)op->dst + at, t->sources, bytes / element(t));
    return true;
}

static bool take_block(team *t, uint64_t p)
{
    const bool around = team_result(t->op, t->n) > COPY_AROUND_BYTES;

    for (int i = 1; i < t->n; i++) {
        const int k = (t->rank + i) % t->n;
        char *to = t->op->dst;
        char *block;
        size_t at;
        size_t bytes;

        if (!block_of(t, k, p, &at, &bytes))
            continue;
        to += at;
        block = around ? scratch_for(t, 1, to) : to;
        if (!fetch(t, k, t->dst[k] + at, block, bytes))
            return false;
        if (around)
            copy_around(to, block, bytes);
    }
    return true;
}

/* False: nothing to do now. */
static bool work_on_blocks(team *t)
{
    const bool takes = coll_reduces_whole(t->op->kind);

    if (t->next_reduce < t->n_pieces && (!takes || t->next_reduce < t->next_out + AHEAD)) {
        if (!reduce_block(t, t->next_reduce))
            return false;
        t->next_reduce++;
        team_publish(t, &t->parts[t->rank]->reduced, t->pieces + t->next_reduce);
        return true;
    }
    if (!takes || t->next_out == t->next_reduce ||
        team_first_below(t, offsetof(team_part, reduced), t->pieces + t->next_out + 1) < t->n ||
        !take_block(t, t->next_out))
        return false;
    t->next_out++;
    return true;
}

static bool blocks_are_done(const team *t)
{
    return t->next_reduce == t->n_pieces &&
           (!coll_reduces_whole(t->op->kind) || t->next_out == t->n_pieces);
}

/* --- the others --- */

/* Reads a chunk from each source, of whose part `at` bytes are read; false: it cannot go on. */
static bool move_some(team *t)
{
    size_t total = 0;

    for (int i = 0; i < t->n; i++) {
        const int k = (t->rank + i) % t->n;
        team_move m;
        size_t bytes;

        if (!team_moves(t->op, k, t->rank, &m))
            continue;
        total = m.bytes;
        bytes = m.bytes - t->at < TEAM_CHUNK_BYTES ? m.bytes - t->at : TEAM_CHUNK_BYTES;
        if (!fetch(t, k, t->src[k] + m.from + t->at, (char *)t->op->dst + m.to + t->at, bytes))
            return false;
    }
    t->at += TEAM_CHUNK_BYTES;
    t->at_step = t->at >= total;
    return true;
}

/* --- the operation --- */

enum { WORKING, WORKED, WAITING };

static void leave(team *t)
{
    t->pieces += t->n_pieces;
    team_begin_leave(t);
    t->at_step = WAITING;
}

static team_step step(team *t)
{
    if (t->at_step == WORKING) {
        const bool moved = coll_reduces(t->op->kind) ? work_on_blocks(t) : move_some(t);

        if (!moved)
            return TEAM_WAITS;
        if (!coll_reduces(t->op->kind) ? t->at_step == WORKED : blocks_are_done(t))
            leave(t);
        return TEAM_MOVED;
    }
    return team_leave(t);
}

const team_algorithm team_direct = {.name = "direct", .begin = begin, .step = step};
