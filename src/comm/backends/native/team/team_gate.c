/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_gate.c - gates, at which the members of a team wait for each other where some share cores,
 * or are in several sockets or core complexes. team.c and team_levels.c call it.
 *
 * Each group of each level (levels.h) has a gate. A member arrives at the gate of its innermost
 * group; the last arrival of a group arrives at the gate further out, and so on. The last arrival
 * of the outermost group opens its gate; the last arrival of each group inside it waits for that
 * and then opens the own one, for all its members. So a member reads one cache line to see whether
 * a gate is open, and one system call wakes all sleeping members of a group.
 *
 * At the gate of an operation the last arrival of each group compares the stamps of the group, and
 * adds or copies small contributions: into a partial result for each of the group's subtrees, and
 * at level 0 into the result, which comes back with the opened gates. So n members do n additions,
 * not n * n, and the last arrival waits for no rank.
 *
 * Gates follow each other: all members pass the same ones in the same order, and none arrives at a
 * gate before the one before has opened. So counts of arrivals tell when all have arrived, and what
 * stands in a gate is overwritten only when all its readers have arrived at the next.
 */
#include "comm/backends/native/team/team_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FUTEX_WAIT_NS     (100 * INT64_C(1000)) /* for each member, which take turns */
#define FUTEX_WAIT_MIN_NS (1000 * INT64_C(1000))
#define FUTEX_WAIT_MAX_NS (20 * INT64_C(1000000))

static team_gate *gate_of_group(const team *t, int level, int group)
{
    return &t->parts[levels_leader(&t->levels, level, group)]->gates[level];
}

static team_gate *own_gate(const team *t, int level)
{
    return gate_of_group(t, level, levels_group(&t->levels, level, t->rank));
}

static int innermost(const team *t)
{
    return t->levels.depth - 1;
}

// --- combining ---

static size_t partial_bytes(const team *t)
{
    return t->op->count * ls_dtype_size(reduce_partial_type(t->op->dtype));
}

bool gate_combines(const team *t)
{
    const coll_kind kind = t->op->kind;

    if (!t->is_inline)
        return false;
    if (kind == COLL_BARRIER)
        return true;
    if (team_contribution(t->op, t->n) > TEAM_COMBINED_BYTES)
        return false;
    if (kind == COLL_BROADCAST)
        return true;
    return coll_reduces_whole(kind) &&
           (size_t)t->levels.max_trees * partial_bytes(t) <= TEAM_SUMS_BYTES;
}

static const char *contribution(const team *t, int member)
{
    const team_slot *s = team_slot_of(t, member);

    return (const char *)(team_contribution(t->op, t->n) <= TEAM_SMALL_BYTES ? s->head.small
                                                                             : s->data);
}

/* What the group of this level has, in rank order: contributions, or sums of the groups inside. */
static int list_operands(const team *t, int level)
{
    const levels *v = &t->levels;
    const int group = levels_group(v, level, t->rank);
    const plan_layout *inner = &v->at[level + 1 < v->depth ? level + 1 : level];
    int n = 0;

    if (level == innermost(t)) {
        for (int i = 0; i < inner->host_size[group]; i++) {
            const int k = inner->members[inner->host_first[group] + i];

            t->operands[n++] =
                (reduce_operand){.data = contribution(t, k), .first = k, .n_ranks = 1};
        }
        return n;
    }
    for (int tree = 0; tree < inner->n_trees; tree++) {
        const int g = inner->host_of[inner->tree_first[tree]];
        const size_t at = (size_t)v->tree_index[level + 1][tree] * partial_bytes(t);

        if (v->outer[level + 1][g] == group)
            t->operands[n++] = (reduce_operand){.data = gate_of_group(t, level + 1, g)->sums + at,
                                                .first = inner->tree_first[tree],
                                                .n_ranks = inner->tree_size[tree],
                                                .partial = true};
    }
    return n;
}

static void *result_data(team_gate *gate, size_t bytes)
{
    return bytes <= TEAM_SMALL_BYTES ? gate->result.small : gate->data;
}

static void add_group(team *t, int level, team_gate *gate)
{
    const coll *op = t->op;
    const plan_layout *l = &t->levels.at[level];
    const int n = list_operands(t, level);
    char *to = (char *)gate->sums;

    for (int i = 0, next = 0; i < n; i = next) {
        const int tree = l->tree_of[t->operands[i].first];
        const bool final = level == 0;

        while (next < n && l->tree_of[t->operands[next].first] == tree)
            next++;
        if (final)
            to = result_data(gate, op->count * ls_dtype_size(op->dtype));
        reduce_tree(to, t->operands + i, next - i, op->count, op->dtype, op->redop, final,
                    op->divisor);
        to += partial_bytes(t);
    }
}

/* Passes the root's data on, if the root is in the group. */
static void pass_root(const team *t, int level, team_gate *gate)
{
    const levels *v = &t->levels;
    const int root = t->op->root;
    const size_t bytes = team_contribution(t->op, t->n);

    if (levels_group(v, level, root) != levels_group(v, level, t->rank))
        return;
    memcpy(level == 0 ? result_data(gate, bytes) : gate->sums,
           level == innermost(t)
               ? contribution(t, root)
               : (char *)gate_of_group(t, level + 1, levels_group(v, level + 1, root))->sums,
           bytes);
}

static void compare(const team *t, gate_sum *sum, uint64_t sequence, uint64_t count,
                    uint64_t signature)
{
    const op_stamp *mine = &t->op->stamp;

    sum->differs |= sequence != mine->sequence || count != mine->count || signature != t->signature;
}

static void compare_members(const team *t, int group, gate_sum *sum)
{
    const plan_layout *l = &t->levels.at[innermost(t)];

    for (int i = 0; i < l->host_size[group]; i++) {
        const int k = l->members[l->host_first[group] + i];
        const team_head *h = &team_slot_of(t, k)->head;

        compare(t, sum, h->sequence, h->count, h->signature);
        if (!t->is_inline && !sum->differs)
            sum->memory &= (uint32_t)team_find_memory_of(t, k);
    }
}

static void compare_groups(const team *t, int level, int group, gate_sum *sum)
{
    for (int g = 0; g < t->levels.at[level + 1].n_hosts; g++) {
        const gate_sum *inner = &gate_of_group(t, level + 1, g)->sum;

        if (t->levels.outer[level + 1][g] != group)
            continue;
        compare(t, sum, inner->sequence, inner->count, inner->signature);
        sum->differs |= inner->differs;
        sum->memory &= inner->memory;
    }
}

/* All members of the group have arrived with an operation. */
static void combine(team *t, int level, team_gate *gate)
{
    const int group = levels_group(&t->levels, level, t->rank);
    gate_sum sum = {.sequence = t->op->stamp.sequence,
                    .count = t->op->stamp.count,
                    .signature = t->signature,
                    .memory = TEAM_BEST_MEMORY};

    if (level == innermost(t))
        compare_members(t, group, &sum);
    else
        compare_groups(t, level, group, &sum);
    if (!sum.differs && gate_combines(t)) {
        if (coll_reduces(t->op->kind))
            add_group(t, level, gate);
        else if (t->op->kind == COLL_BROADCAST)
            pass_root(t, level, gate);
    }
    gate->sum = sum;
    if (level == 0) {
        gate->result.memory = sum.memory;
        gate->result.differs = sum.differs;
        gate->result.last = t->rank;
    }
}

// --- opening ---

static void ring(const team *t, int member)
{
    if (member != t->rank)
        local_ring(t->l, t->info->members[member]);
}

/* Rings those that wait for the gate: of the innermost level its members, else the last arrivals of
 * the groups inside. Where such a group has a newer last arrival, the one before has seen the gate
 * open. */
static void ring_waiters(const team *t, int level, int group)
{
    const plan_layout *l = &t->levels.at[level];

    if (level == innermost(t)) {
        for (int i = 0; i < l->host_size[group]; i++)
            ring(t, l->members[l->host_first[group] + i]);
        return;
    }
    for (int g = 0; g < t->levels.at[level + 1].n_hosts; g++)
        if (t->levels.outer[level + 1][g] == group)
            ring(t,
                 atomic_load_explicit(&gate_of_group(t, level + 1, g)->last, memory_order_relaxed));
}

static void open_gate(team *t, int level)
{
    team_gate *gate = own_gate(t, level);

    // Pairs with the seq_cst loads in gate_is_open(), gate_futex_wait() and local_prepare_sleep().
    atomic_store_explicit(&gate->result.opened, (uint32_t)t->gate_number[level],
                          memory_order_seq_cst);
    if (atomic_load_explicit(&gate->n_waiters, memory_order_seq_cst) > 0)
        (void)syscall(SYS_futex, &gate->result.opened, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    ring_waiters(t, level, levels_group(&t->levels, level, t->rank));
}

/* Opens the gates further in, at which this rank was the last arrival. */
static void open_inner(team *t, int level)
{
    const bool has_result = t->phase == TEAM_GATHERING;
    const bool has_data = has_result && gate_combines(t) && t->op->kind != COLL_BARRIER;
    const size_t bytes = has_data ? team_contribution(t->op, t->n) : 0;

    for (; level < innermost(t); level++) {
        team_gate *from = own_gate(t, level);
        team_gate *to = own_gate(t, level + 1);

        if (has_result) {
            to->result.memory = from->result.memory;
            to->result.differs = from->result.differs;
            to->result.last = from->result.last;
            if (bytes > 0)
                memcpy(result_data(to, bytes), result_data(from, bytes), bytes);
        }
        open_gate(t, level + 1);
    }
    t->gate_level = -1;
}

void gate_arrive(team *t, int level)
{
    const levels *v = &t->levels;

    for (int l = level; l <= innermost(t); l++)
        t->gate_number[l]++;
    for (int l = innermost(t); l >= level; l--) {
        const int group = levels_group(v, l, t->rank);
        team_gate *gate = own_gate(t, l);

        if (atomic_fetch_add_explicit(&gate->arrivals, 1, memory_order_seq_cst) + 1 <
            t->gate_number[l] * (uint64_t)v->n_inner[l][group]) {
            t->gate_level = l;
            return;
        }
        if (t->phase == TEAM_GATHERING)
            combine(t, l, gate);
        atomic_store_explicit(&gate->last, t->rank, memory_order_relaxed);
    }
    open_gate(t, level);
    open_inner(t, level);
}

bool gate_is_open(team *t)
{
    const int level = t->gate_level;

    if (level < 0)
        return true;
    if ((int32_t)(atomic_load_explicit(&own_gate(t, level)->result.opened, memory_order_seq_cst) -
                  (uint32_t)t->gate_number[level]) < 0)
        return false;
    open_inner(t, level);
    return true;
}

bool gate_futex_wait(team *t)
{
    struct timespec most = {.tv_nsec = FUTEX_WAIT_NS * t->n};
    team_gate *gate;
    uint32_t opened;

    if (t->gate_level < 0)
        return false;
    if (most.tv_nsec < FUTEX_WAIT_MIN_NS)
        most.tv_nsec = FUTEX_WAIT_MIN_NS;
    if (most.tv_nsec > FUTEX_WAIT_MAX_NS)
        most.tv_nsec = FUTEX_WAIT_MAX_NS;
    gate = own_gate(t, t->gate_level);
    // Pairs with open_gate(): either it sees the waiter, or this load sees the number.
    atomic_fetch_add_explicit(&gate->n_waiters, 1, memory_order_seq_cst);
    opened = atomic_load_explicit(&gate->result.opened, memory_order_seq_cst);
    if ((int32_t)(opened - (uint32_t)t->gate_number[t->gate_level]) < 0)
        (void)syscall(SYS_futex, &gate->result.opened, FUTEX_WAIT, opened, &most, NULL, 0);
    atomic_fetch_sub_explicit(&gate->n_waiters, 1, memory_order_relaxed);
    return true;
}

const gate_result *gate_result_of(const team *t)
{
    return &own_gate(t, innermost(t))->result;
}

void gate_take_result(const team *t)
{
    const size_t bytes = team_contribution(t->op, t->n);

    if (team_is_reader(t->op, t->rank))
        memcpy(t->op->dst, result_data(own_gate(t, innermost(t)), bytes), bytes);
}
