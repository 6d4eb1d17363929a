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
#include "comm/backends/native/plan/schedule.h"

void plan_all_reduce_slices(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t width = in->element_bytes;
    size_t own_at;
    size_t own;

    plan_slice(count, in->n, in->rank, &own_at, &own);
    own_at = (in->first + own_at) * width;
    plan_collect(p, in, plan_at(PLAN_SRC, own_at), plan_at(PLAN_DST, own_at), own);
    for (int i = 0; i < in->n; i++) {
        size_t at;
        size_t n_elements;

        plan_slice(count, in->n, i, &at, &n_elements);
        at = (in->first + at) * width;
        if (i == in->rank)
            continue;
        if (n_elements > 0) {
            plan_message(p, PLAN_SEND, 0, i, 0, plan_at(PLAN_SRC, at), n_elements * width);
            plan_message(p, PLAN_RECV, 1, i, 1, plan_at(PLAN_DST, at), n_elements * width);
        }
        if (own > 0)
            plan_message(p, PLAN_SEND, 1, i, 1, plan_at(PLAN_DST, own_at), own * width);
    }
}

void plan_all_reduce_whole(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t at = in->first * in->element_bytes;

    plan_collect(p, in, plan_at(PLAN_SRC, at), plan_at(PLAN_DST, at), count);
    for (int i = 0; i < in->n; i++)
        if (i != in->rank)
            plan_message(p, PLAN_SEND, 0, i, 0, plan_at(PLAN_SRC, at), count * in->element_bytes);
}
