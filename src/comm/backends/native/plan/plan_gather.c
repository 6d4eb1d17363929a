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
#include "comm/backends/native/plan/schedule.h"

void plan_all_gather_direct(plan *p, const plan_input *in)
{
    const size_t width = in->element_bytes;
    const size_t own = plan_part(in, plan_count(in, in->dst_counts, in->rank)) * width;
    const plan_ref from = plan_at(PLAN_SRC, in->first * width);
    size_t start = 0; // of part i in dst, elements

    for (int i = 0; i < in->n; i++) {
        const size_t count = plan_count(in, in->dst_counts, i);
        const size_t bytes = plan_part(in, count) * width;
        const plan_ref to = plan_at(PLAN_DST, (start + in->first) * width);

        start += count;
        if (i == in->rank) {
            plan_copy(p, 0, to, from, own);
            continue;
        }
        if (bytes > 0)
            plan_message(p, PLAN_RECV, 0, i, 0, to, bytes);
        if (own > 0)
            plan_message(p, PLAN_SEND, 0, i, 0, from, own);
    }
}

// gather and scatter: the parts follow each other in the root's buffer; another rank has one part.
static void move_parts(plan *p, const plan_input *in, plan_action root_action, const size_t *counts)
{
    const bool is_gather = root_action == PLAN_RECV;
    const plan_space root_space = is_gather ? PLAN_DST : PLAN_SRC;
    const plan_ref own = plan_at(is_gather ? PLAN_SRC : PLAN_DST, in->first * in->element_bytes);
    size_t start = 0;

    for (int i = 0; i < in->n; i++) {
        const size_t count = plan_count(in, counts, i);
        const size_t bytes = plan_part(in, count) * in->element_bytes;
        const plan_ref part = plan_at(root_space, (start + in->first) * in->element_bytes);

        start += count;
        if (in->rank == in->root && i == in->root)
            plan_copy(p, 0, is_gather ? part : own, is_gather ? own : part, bytes);
        else if (in->rank == in->root && bytes > 0)
            plan_message(p, root_action, 0, i, 0, part, bytes);
        else if (i == in->rank && bytes > 0)
            plan_message(p, is_gather ? PLAN_SEND : PLAN_RECV, 0, in->root, 0, own, bytes);
    }
}

void plan_gather_direct(plan *p, const plan_input *in)
{
    move_parts(p, in, PLAN_RECV, in->dst_counts);
}

void plan_scatter_direct(plan *p, const plan_input *in)
{
    move_parts(p, in, PLAN_SEND, in->src_counts);
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
    s = plan_message(p, action, 0, peer, 0, at, bytes);
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
        const size_t out = plan_count(in, in->src_counts, i);
        const size_t back = plan_count(in, in->dst_counts, i);
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
