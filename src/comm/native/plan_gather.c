/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_gather.c - moves parts unchanged: all_gather, gather, scatter, all_to_all, with equal counts
 * or counts per rank. schedule.c selects them.
 *
 * All are direct: every part goes once from its source to its reader, in one round, which is the
 * least that a rank can send and receive. all_gather sends (n-1) * B per rank (the volume of the
 * ring and of Bruck's algorithm: Thakur, Rabenseifner and Gropp, 2005, section 4.1), all_to_all the
 * sum of its parts (their section 4.4), gather and scatter (n-1) * B at the root.
 */
#include "comm/native/schedule.h"

static size_t count_of(const size_t *counts, int i, size_t or_else)
{
    return counts != NULL ? counts[i] : or_else;
}

void plan_all_gather_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    const size_t own = plan_part(in, count_of(in->dst_counts, in->rank, in->count)) * width;
    const plan_ref from = plan_at(PLAN_SRC, in->first * width);
    size_t start = 0; // of part i in dst, elements

    for (int i = 0; i < in->n; i++) {
        const size_t count = count_of(in->dst_counts, i, in->count);
        const size_t bytes = plan_part(in, count) * width;
        const plan_ref to = plan_at(PLAN_DST, (start + in->first) * width);

        start += count;
        if (i == in->rank) {
            plan_copy(p, 0, to, from, own);
            continue;
        }
        if (bytes > 0)
            plan_message(p, PLAN_RECV, 0, i, to, bytes);
        if (own > 0)
            plan_message(p, PLAN_SEND, 0, i, from, own);
    }
}

void plan_gather_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    const plan_ref from = plan_at(PLAN_SRC, in->first * width);
    size_t start = 0;

    if (in->rank != in->root) {
        const size_t own = plan_part(in, count_of(in->dst_counts, in->rank, in->count)) * width;

        if (own > 0)
            plan_message(p, PLAN_SEND, 0, in->root, from, own);
        return;
    }
    for (int i = 0; i < in->n; i++) {
        const size_t count = count_of(in->dst_counts, i, in->count);
        const size_t bytes = plan_part(in, count) * width;
        const plan_ref to = plan_at(PLAN_DST, (start + in->first) * width);

        start += count;
        if (i == in->rank)
            plan_copy(p, 0, to, from, bytes);
        else if (bytes > 0)
            plan_message(p, PLAN_RECV, 0, i, to, bytes);
    }
}

void plan_scatter_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    const plan_ref to = plan_at(PLAN_DST, in->first * width);
    size_t start = 0;

    if (in->rank != in->root) {
        const size_t own = plan_part(in, count_of(in->src_counts, in->rank, in->count)) * width;

        if (own > 0)
            plan_message(p, PLAN_RECV, 0, in->root, to, own);
        return;
    }
    for (int i = 0; i < in->n; i++) {
        const size_t count = count_of(in->src_counts, i, in->count);
        const size_t bytes = plan_part(in, count) * width;
        const plan_ref from = plan_at(PLAN_SRC, (start + in->first) * width);

        start += count;
        if (i == in->rank)
            plan_copy(p, 0, to, from, bytes);
        else if (bytes > 0)
            plan_message(p, PLAN_SEND, 0, i, from, bytes);
    }
}

// The message of one pair. Each side has its own counts, so the first chunk always sends a message,
// even an empty one: it shows each side the other's count.
static void exchange(plan *p, const plan_input *in, plan_action action, int peer, plan_ref at,
                     size_t count)
{
    const size_t bytes = plan_part(in, count) * in->element_bytes;
    plan_step *s;

    if (bytes == 0 && in->first > 0)
        return;
    s = plan_message(p, action, 0, peer, at, bytes);
    if (s == NULL)
        return;
    s->total = count * in->element_bytes;
    s->announce = in->src_counts != NULL;
}

void plan_all_to_all_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    size_t src_start = 0;
    size_t dst_start = 0;

    for (int i = 0; i < in->n; i++) {
        const size_t out = count_of(in->src_counts, i, in->count);
        const size_t back = count_of(in->dst_counts, i, in->count);
        const plan_ref to = plan_at(PLAN_DST, (dst_start + in->first) * width);
        const plan_ref from = plan_at(PLAN_SRC, (src_start + in->first) * width);

        src_start += out;
        dst_start += back;
        if (i == in->rank) {
            plan_copy(p, 0, to, from, plan_part(in, back) * width);
            continue;
        }
        exchange(p, in, PLAN_RECV, i, to, back);
        exchange(p, in, PLAN_SEND, i, from, out);
    }
}
