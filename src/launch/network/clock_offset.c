/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/network/clock_offset.h"

#define LATEST_NS (INT64_MAX / 2) /* in the year 2116; twice a difference of two fits */

static bool makes_sense(int64_t ns)
{
    return ns >= 0 && ns <= LATEST_NS;
}

bool clock_offset_add(clock_offset *c, int64_t asked_ns, int64_t heard_ns, int64_t told_ns,
                      int64_t answered_ns)
{
    int64_t way_ns;

    if (!makes_sense(asked_ns) || !makes_sense(heard_ns) || !makes_sense(told_ns) ||
        !makes_sense(answered_ns) || answered_ns < asked_ns || told_ns < heard_ns)
        return false;
    way_ns = (answered_ns - asked_ns) - (told_ns - heard_ns);
    if (way_ns < 0)
        return false;
    if (c->n == 0 || way_ns < c->way_ns) {
        c->way_ns = way_ns;
        c->offset_ns = ((heard_ns - asked_ns) + (told_ns - answered_ns)) / 2;
    }
    c->n++;
    return true;
}

bool clock_offset_is_apart(const clock_offset *c, int64_t limit_ns)
{
    const int64_t off_ns = c->offset_ns < 0 ? -c->offset_ns : c->offset_ns;

    return c->n > 0 && off_ns - c->way_ns / 2 > limit_ns;
}
