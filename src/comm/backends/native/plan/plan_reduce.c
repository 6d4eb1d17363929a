/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_reduce.c - reduce to one root, and reduce_scatter, in aligned-tree order. schedule.c selects
 * them.
 *
 * direct          Every rank sends its vector to the root, which adds them. 1 round, B bytes sent
 *                 per rank, (n-1) * B received at the root: for short vectors and two ranks.
 * slices          Every rank adds one slice of the chunk and sends it to the root. 2 rounds, at
 *                 most B bytes sent per rank, 2(n-1)/n * B received at the root (Thakur,
 *                 Rabenseifner and Gropp, 2005, section 4.3: reduce_scatter and gather).
 * reduce_scatter  Part r goes from every rank to rank r, which adds. 1 round, (n-1)/n of the vector
 *                 per rank, which is optimal (their section 4.4).
 */
#include "comm/backends/native/plan/schedule.h"

void plan_reduce_direct(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t offset = in->first * in->element_bytes;

    if (in->rank == in->root)
        plan_collect(p, in, plan_at(PLAN_SRC, offset), plan_at(PLAN_DST, offset), count);
    else
        plan_message(p, PLAN_SEND, 0, in->root, 0, plan_at(PLAN_SRC, offset),
                     count * in->element_bytes);
}

void plan_reduce_slices(plan *p, const plan_input *in)
{
    const size_t count = plan_part(in, in->count);
    const size_t width = in->element_bytes;
    size_t own_at;
    size_t own;
    plan_ref result;

    plan_slice(count, in->n, in->rank, &own_at, &own);
    own_at = (in->first + own_at) * width;
    // Only the root has a dst.
    result = in->rank == in->root ? plan_at(PLAN_DST, own_at) : plan_scratch(p, own * width);
    for (int i = 0; i < in->n; i++) {
        size_t at;
        size_t n_elements;

        plan_slice(count, in->n, i, &at, &n_elements);
        at = (in->first + at) * width;
        if (i == in->rank || n_elements == 0)
            continue;
        plan_message(p, PLAN_SEND, 0, i, 0, plan_at(PLAN_SRC, at), n_elements * width);
        if (in->rank == in->root)
            plan_message(p, PLAN_RECV, 1, i, 1, plan_at(PLAN_DST, at), n_elements * width);
    }
    plan_collect(p, in, plan_at(PLAN_SRC, own_at), result, own);
    if (in->rank != in->root && own > 0)
        plan_message(p, PLAN_SEND, 1, in->root, 1, result, own * width);
}

void plan_reduce_scatter_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    size_t start = 0;
    size_t own_start = 0;
    size_t own_count = 0;

    for (int i = 0; i < in->n; i++) {
        const size_t count = plan_count(in, in->src_counts, i);
        const size_t n_elements = plan_part(in, count);

        if (i == in->rank) {
            own_start = start;
            own_count = n_elements;
        } else if (n_elements > 0) {
            plan_message(p, PLAN_SEND, 0, i, 0, plan_at(PLAN_SRC, (start + in->first) * width),
                         n_elements * width);
        }
        start += count;
    }
    plan_collect(p, in, plan_at(PLAN_SRC, (own_start + in->first) * width),
                 plan_at(PLAN_DST, in->first * width), own_count);
}
