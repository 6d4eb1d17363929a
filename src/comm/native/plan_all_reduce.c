/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_all_reduce.c - two ways to give every rank the reduction of all, both in aligned-tree order.
 * schedule.c selects them.
 *
 * slices  Every rank owns one slice of the chunk: it collects all contributions to it, adds them in
 *         tree order and sends the result to all. 2 rounds, 2(n-1)/n * B bytes sent per rank, which
 *         is optimal for any n (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC
 *         2009, section 3); direct exchange instead of their ring keeps the order of additions
 *         fixed and the latency at two hops.
 * whole   Every rank sends its vector to all and adds all of them itself. 1 round, (n-1) * B bytes
 *         per rank: for vectors whose latency counts (Thakur, Rabenseifner and Gropp, "Optimization
 *         of collective communication operations in MPICH", 2005, section 4.5 also selects by
 *         size).
 */
#include "comm/native/schedule.h"

void plan_all_reduce_slices(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t width = in->element_bytes;
    size_t own_first;
    size_t own;
    size_t scratch;

    plan_slice(count, in->n, in->rank, &own_first, &own);
    scratch = plan_scratch(p, own * width * (size_t)(in->n - 1)).offset;
    for (int i = 0; i < in->n; i++) {
        size_t first;
        size_t n_elements;

        plan_slice(count, in->n, i, &first, &n_elements);
        if (i == in->rank)
            continue;
        if (own > 0)
            plan_message(
                p, PLAN_RECV, 0, i,
                plan_at(PLAN_SCRATCH, scratch + own * width * (size_t)(i < in->rank ? i : i - 1)),
                own * width);
        if (n_elements > 0)
            plan_message(p, PLAN_SEND, 0, i, plan_at(PLAN_SRC, (in->first + first) * width),
                         n_elements * width);
    }
    if (own > 0) {
        plan_reduce(p, 1, plan_at(PLAN_DST, (in->first + own_first) * width), own, true);
        for (int i = 0; i < in->n; i++)
            plan_operand_add(
                p,
                i == in->rank ? plan_at(PLAN_SRC, (in->first + own_first) * width)
                              : plan_at(PLAN_SCRATCH,
                                        scratch + own * width * (size_t)(i < in->rank ? i : i - 1)),
                i, 1, false);
    }
    for (int i = 0; i < in->n; i++) {
        size_t first;
        size_t n_elements;
        plan_step *s;

        plan_slice(count, in->n, i, &first, &n_elements);
        if (i == in->rank)
            continue;
        if (n_elements > 0) {
            s = plan_message(p, PLAN_RECV, 1, i, plan_at(PLAN_DST, (in->first + first) * width),
                             n_elements * width);
            if (s != NULL)
                s->tag = 1;
        }
        if (own > 0) {
            s = plan_message(p, PLAN_SEND, 1, i, plan_at(PLAN_DST, (in->first + own_first) * width),
                             own * width);
            if (s != NULL)
                s->tag = 1;
        }
    }
}

void plan_all_reduce_whole(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t bytes = count * in->element_bytes;
    const plan_ref own = plan_at(PLAN_SRC, in->first * in->element_bytes);
    const size_t scratch = plan_scratch(p, bytes * (size_t)(in->n - 1)).offset;

    for (int i = 0; i < in->n; i++) {
        const size_t slot = scratch + bytes * (size_t)(i < in->rank ? i : i - 1);

        if (i == in->rank)
            continue;
        plan_message(p, PLAN_RECV, 0, i, plan_at(PLAN_SCRATCH, slot), bytes);
        plan_message(p, PLAN_SEND, 0, i, own, bytes);
    }
    plan_reduce(p, 1, plan_at(PLAN_DST, in->first * in->element_bytes), count, true);
    for (int i = 0; i < in->n; i++)
        plan_operand_add(
            p,
            i == in->rank
                ? own
                : plan_at(PLAN_SCRATCH, scratch + bytes * (size_t)(i < in->rank ? i : i - 1)),
            i, 1, false);
}
