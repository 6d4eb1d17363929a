/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_offset.c - estimates the offset of another machine's clock; time stamps from other machines
 * are checked before use. Called by the head for traces and by the check of several hosts.
 */
#include "launch/network/clock_offset.h"

#define LATEST_NS (INT64_MAX / 2) /* the year 2116; sums of two differences do not overflow */

static bool is_plausible(int64_t ns)
{
    return ns >= 0 && ns <= LATEST_NS;
}

bool clock_offset_add(clock_offset *c, int64_t sent_ns, int64_t received_ns, int64_t replied_ns,
                      int64_t returned_ns)
{
    int64_t round_trip_ns;

    if (!is_plausible(sent_ns) || !is_plausible(received_ns) || !is_plausible(replied_ns) ||
        !is_plausible(returned_ns) || returned_ns < sent_ns || replied_ns < received_ns)
        return false;
    round_trip_ns = (returned_ns - sent_ns) - (replied_ns - received_ns);
    if (round_trip_ns < 0)
        return false;
    if (c->n == 0 || round_trip_ns < c->round_trip_ns) {
        c->round_trip_ns = round_trip_ns;
        c->offset_ns = ((received_ns - sent_ns) + (replied_ns - returned_ns)) / 2;
    }
    c->n++;
    return true;
}

bool clock_offset_exceeds(const clock_offset *c, int64_t limit_ns)
{
    const int64_t off_ns = c->offset_ns < 0 ? -c->offset_ns : c->offset_ns;

    return c->n > 0 && off_ns - c->round_trip_ns / 2 > limit_ns;
}
