/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticks.h - the system clock at a third of its cost, for time stamps on paths of about a hundred
 * nanoseconds.
 *
 * Reads the processor's counter and extrapolates from the last reading of the system clock, which
 * is repeated at least every 2 ms. Where the kernel does not trust the counter (its clocksource is
 * another), every call reads the system clock. The result differs from the system clock by less
 * than a microsecond and may step back by as much: for stamps, not for ordering. One thread at a
 * time.
 */
#ifndef LS_BASE_REPORT_TICKS_H
#define LS_BASE_REPORT_TICKS_H

#include <stdint.h>

typedef struct ls_ticks {
    uint64_t anchor; /* counter at the last reading of the clock */
    int64_t anchor_ns;
    uint64_t valid;       /* ticks for which the anchor is valid; 0 = unknown, or no counter */
    uint64_t ns_per_tick; /* times 2^32 */
    int has_counter;
} ls_ticks;

void ls_ticks_init(ls_ticks *t);

/* As ls_now_ns(). */
int64_t ls_ticks_now_ns(ls_ticks *t);

#endif
