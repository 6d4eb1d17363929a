/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_hosts.c - operations of groups that span hosts with several ranks each. schedule.c selects
 * them where the group's layout helps.
 *
 * Reductions: part i of the vector belongs to rank i. Inside each maximal aligned subtree that is
 * on one host, one rank adds the subtree's contributions to part i; only that partial result goes
 * to rank i, which adds all of them. Results, and the parts of all_gather, go to one rank of every
 * other host, which forwards them. The rank of a subtree or host that serves a part rotates with
 * the part, so all links between hosts carry the same load.
 *
 * With B bytes in the vector and one subtree per host, a host sends B * 2(h-1)/h for all_reduce
 * over h equal hosts, whatever the number of its ranks: the least possible (two-level algorithms:
 * Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective
 * operation performance", IPDPS 2000; Thakur et al., 2005, section 5). Rounds: 4 for all_reduce
 * (add in the subtree, add at the owner, to the hosts, in the hosts), 2 for all_gather, 3 for
 * reduce_scatter.
 *
 * broadcast: a binomial tree over the hosts (as plan_broadcast.c's over ranks), then one inside
 * each host.
 */
#include "comm/backends/native/plan/schedule.h"

/* The part that rank i owns in this chunk. */
typedef struct part {
    size_t src_offset; /* bytes, in the src of its contributors */
    size_t dst_offset;
    size_t count;
} part;

typedef part (*part_fn)(const plan_input *in, int i);

static part slice_part(const plan_input *in, int i)
{
    size_t first;
    part s;

    plan_slice(plan_part(in, in->count), in->n, i, &first, &s.count);
    s.src_offset = (in->first + first) * in->element_bytes;
    s.dst_offset = s.src_offset;
    return s;
}

// Part i of a buffer in which the parts follow each other.
static part block_part(const plan_input *in, const size_t *counts, int i)
{
    const size_t offset = (plan_start(in, counts, i) + in->first) * in->element_bytes;

    return (part){.src_offset = offset,
                  .dst_offset = offset,
                  .count = plan_part(in, plan_count(in, counts, i))};
}

static part scatter_part(const plan_input *in, int i)
{
    part p = block_part(in, in->src_counts, i);

    p.dst_offset = in->first * in->element_bytes;
    return p;
}

static part gather_part(const plan_input *in, int i)
{
    part p = block_part(in, in->dst_counts, i);

    p.src_offset = in->first * in->element_bytes;
    return p;
}

// Several parts may pass between two ranks: round and part identify them.
static void message(plan *p, plan_action action, int round, int peer, int i, plan_ref at,
                    size_t bytes)
{
    plan_message(p, action, round, peer, (uint32_t)round << PLAN_PART_BITS | (uint32_t)i, at,
                 bytes);
}

// Round 0: the adder of each subtree receives its contributions to part i. Returns where the adder
// has those of the others.
static plan_ref gather_in_tree(plan *p, const plan_input *in, int tree, int i, part at)
{
    const plan_layout *l = in->layout;
    const int adder = layout_adder(l, tree, i);
    const size_t bytes = at.count * in->element_bytes;
    plan_ref others = plan_at(PLAN_SCRATCH, 0);
    size_t next;

    if (adder != in->rank) {
        message(p, PLAN_SEND, 0, adder, i, plan_at(PLAN_SRC, at.src_offset), bytes);
        return others;
    }
    others = plan_scratch(p, bytes * (size_t)(l->tree_size[tree] - 1));
    next = others.offset;
    for (int k = l->tree_first[tree]; k < l->tree_first[tree] + l->tree_size[tree]; k++) {
        if (k == in->rank)
            continue;
        message(p, PLAN_RECV, 0, k, i, plan_at(PLAN_SCRATCH, next), bytes);
        next += bytes;
    }
    return others;
}

// The operands of this rank's subtree, in rank order.
static void add_tree(plan *p, const plan_input *in, part at, plan_ref others)
{
    const plan_layout *l = in->layout;
    const int tree = l->tree_of[in->rank];
    size_t next = others.offset;

    for (int k = l->tree_first[tree]; k < l->tree_first[tree] + l->tree_size[tree]; k++) {
        if (k == in->rank) {
            plan_operand_add(p, plan_at(PLAN_SRC, at.src_offset), k, 1, false);
            continue;
        }
        plan_operand_add(p, plan_at(PLAN_SCRATCH, next), k, 1, false);
        next += at.count * in->element_bytes;
    }
}

// Round 1, at an adder: the subtree's partial result goes to the owner of part i. A subtree of one
// rank sends its contribution.
static void send_partial(plan *p, const plan_input *in, int i, part at, plan_ref others)
{
    const plan_layout *l = in->layout;
    const int tree = l->tree_of[in->rank];
    plan_ref sum;

    if (l->tree_size[tree] == 1) {
        message(p, PLAN_SEND, 1, i, i, plan_at(PLAN_SRC, at.src_offset),
                at.count * in->element_bytes);
        return;
    }
    sum = plan_scratch(p, at.count * in->partial_bytes);
    plan_reduce(p, 1, sum, at.count, false);
    add_tree(p, in, at, others);
    message(p, PLAN_SEND, 1, i, i, sum, at.count * in->partial_bytes);
}

// Rounds 1 and 2, at the owner: receives the partial results of the other subtrees, then adds all.
static plan_ref receive_partials(plan *p, const plan_input *in, part own)
{
    const plan_layout *l = in->layout;
    const size_t slot = own.count * in->partial_bytes;
    const plan_ref partials = plan_scratch(p, slot * (size_t)l->n_trees);

    for (int t = 0; t < l->n_trees; t++) {
        const bool is_raw = l->tree_size[t] == 1;

        if (t != l->tree_of[in->rank])
            message(p, PLAN_RECV, 1, layout_adder(l, t, in->rank), in->rank,
                    plan_at(PLAN_SCRATCH, partials.offset + slot * (size_t)t),
                    own.count * (is_raw ? in->element_bytes : in->partial_bytes));
    }
    return partials;
}

static void add_all(plan *p, const plan_input *in, part own, plan_ref others, plan_ref partials)
{
    const plan_layout *l = in->layout;
    const size_t slot = own.count * in->partial_bytes;

    plan_reduce(p, 2, plan_at(PLAN_DST, own.dst_offset), own.count, true);
    for (int t = 0; t < l->n_trees; t++) {
        if (t == l->tree_of[in->rank])
            add_tree(p, in, own, others);
        else
            plan_operand_add(p, plan_at(PLAN_SCRATCH, partials.offset + slot * (size_t)t),
                             l->tree_first[t], l->tree_size[t], l->tree_size[t] > 1);
    }
}

static void reduce_parts(plan *p, const plan_input *in, part_fn part_of)
{
    const plan_layout *l = in->layout;
    const int tree = l->tree_of[in->rank];
    const part own = part_of(in, in->rank);
    plan_ref own_others = plan_at(PLAN_SCRATCH, 0);
    plan_ref partials = own_others;

    for (int i = 0; i < in->n; i++) {
        const part at = part_of(in, i);
        plan_ref others;

        if (at.count == 0)
            continue;
        others = gather_in_tree(p, in, tree, i, at);
        if (i == in->rank)
            own_others = others;
        else if (l->tree_of[i] != tree && layout_adder(l, tree, i) == in->rank)
            send_partial(p, in, i, at, others);
    }
    if (own.count > 0)
        partials = receive_partials(p, in, own);
    if (own.count > 0)
        add_all(p, in, own, own_others, partials);
}

// Part i goes from its owner to one rank of every host (and to all of the owner's) in `round`; that
// rank forwards it.
static void spread(plan *p, const plan_input *in, int round, part_fn part_of, plan_ref own_from)
{
    const plan_layout *l = in->layout;
    const int host = l->host_of[in->rank];

    for (int i = 0; i < in->n; i++) {
        const part at = part_of(in, i);
        const size_t bytes = at.count * in->element_bytes;
        const plan_ref place = plan_at(PLAN_DST, at.dst_offset);
        const int receiver = layout_receiver(l, host, i);

        if (bytes == 0)
            continue;
        if (i == in->rank) {
            for (int h = 0; h < l->n_hosts; h++)
                if (h != host)
                    message(p, PLAN_SEND, round, layout_receiver(l, h, i), i, own_from, bytes);
        } else if (receiver == in->rank || receiver == i) {
            message(p, PLAN_RECV, round, i, i, place, bytes); // from the owner
        } else {
            message(p, PLAN_RECV, round + 1, receiver, i, place, bytes);
        }
        if (receiver != in->rank)
            continue;
        // The owner, or the receiver of this host.
        for (int k = 0; k < l->host_size[host]; k++) {
            const int to = l->members[l->host_first[host] + k];

            if (to != in->rank)
                message(p, PLAN_SEND, i == in->rank ? round : round + 1, to, i,
                        i == in->rank ? own_from : place, bytes);
        }
    }
}

void plan_all_reduce_hosts(plan *p, const plan_input *in)
{
    reduce_parts(p, in, slice_part);
    spread(p, in, 2, slice_part, plan_at(PLAN_DST, slice_part(in, in->rank).dst_offset));
}

void plan_reduce_scatter_hosts(plan *p, const plan_input *in)
{
    reduce_parts(p, in, scatter_part);
}

void plan_all_gather_hosts(plan *p, const plan_input *in)
{
    const part own = gather_part(in, in->rank);

    plan_copy(p, 0, plan_at(PLAN_DST, own.dst_offset), plan_at(PLAN_SRC, own.src_offset),
              own.count * in->element_bytes);
    spread(p, in, 0, gather_part, plan_at(PLAN_SRC, own.src_offset));
}

// The rank that receives for the host at this distance from the root's host.
static int host_receiver(const plan_input *in, int64_t position)
{
    const plan_layout *l = in->layout;

    return layout_receiver(l, (int)((position + l->host_of[in->root]) % l->n_hosts), in->root);
}

static int index_on_host(const plan_layout *l, int rank)
{
    int k = 0;

    while (l->members[l->host_first[l->host_of[rank]] + k] != rank)
        k++;
    return k;
}

// The rank at this distance from the one that receives for this rank's host.
static int host_member(const plan_input *in, int64_t position)
{
    const plan_layout *l = in->layout;
    const int host = l->host_of[in->rank];
    const int first = index_on_host(l, layout_receiver(l, host, in->root));

    return l->members[l->host_first[host] + (position + first) % l->host_size[host]];
}

void plan_broadcast_hosts(plan *p, const plan_input *in)
{
    const plan_layout *l = in->layout;
    const size_t bytes = plan_part(in, in->count) * in->element_bytes;
    const plan_ref to = plan_at(PLAN_DST, in->first * in->element_bytes);
    const plan_ref from = plan_at(in->rank == in->root ? PLAN_SRC : PLAN_DST, to.offset);
    const int host = l->host_of[in->rank];
    const int host_at = (host - l->host_of[in->root] + l->n_hosts) % l->n_hosts;
    const int size = l->host_size[host];
    const int receiver = layout_receiver(l, host, in->root);
    const int own_at = (index_on_host(l, in->rank) - index_on_host(l, receiver) + size) % size;

    if (in->rank == in->root)
        plan_copy(p, 0, to, from, bytes);
    if (in->rank == receiver)
        plan_tree(p, in, host_at, l->n_hosts, host_receiver, to, from, bytes);
    plan_tree(p, in, own_at, size, host_member, to, from, bytes);
}
