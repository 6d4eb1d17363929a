/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticks.h - the system clock at a third of its price, for stamps on paths that take a hundred nanoseconds.
 *
 * Reads the processor's counter and continues from the last look at the system clock, at least every 2 ms taken anew. Where the kernel
 * itself does not trust the counter (its clocksource is another), every read is one of the system clock. Differs from it by less
 * than a microsecond and may step back by as much; for stamps, not for ordering. One thread at a time.
 */
#ifndef LS_BASE_TICKS_H
#define LS_BASE_TICKS_H

#include <stdint.h>

typedef struct ls_ticks {
    uint64_t anchor; /* counter at the last look at the clock */
    int64_t anchor_ns;
    uint64_t valid;       /* ticks that the anchor is good for; 0: not known yet, or no counter */
    uint64_t ns_per_tick; /* times 2^32 */
    int has_counter;
} ls_ticks;

void ls_ticks_init(ls_ticks *t);

/* As ls_now_ns(). */
int64_t ls_ticks_now_ns(ls_ticks *t);

#endif
