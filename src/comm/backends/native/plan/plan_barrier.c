/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_barrier.c - dissemination: in round k rank r sends to rank r + 2^k and receives from rank r
 * - 2^k. schedule.c selects it.
 *
 * ceil(log2 n) rounds, one empty message each (Hensgen, Finkel and Manber, "Two algorithms for
 * barrier synchronization", 1988).
 */
#include "comm/backends/native/plan/schedule.h"

void plan_barrier_dissemination(plan *p, const plan_input *in)
{
    int round = 0;

    for (int64_t distance = 1; distance < in->n; distance *= 2, round++) {
        const int to = (int)((in->rank + distance) % in->n);
        const int from = (int)((in->rank - distance + in->n) % in->n);

        plan_message(p, PLAN_RECV, round, from, (uint32_t)round, plan_at(PLAN_DST, 0), 0);
        plan_message(p, PLAN_SEND, round, to, (uint32_t)round, plan_at(PLAN_SRC, 0), 0);
    }
}
