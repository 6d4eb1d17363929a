/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_offset.h - how far another clock is from this one, from questions that carry four times, as NTP does. Pure.
 *
 *     here   asked ------------------------------> answered
 *     there          \--> heard ... told --/
 *
 * The answer with the shortest way says most: the other clock is off by its offset, give or take half of that way.
 */
#ifndef LS_LAUNCH_CLOCK_OFFSET_H
#define LS_LAUNCH_CLOCK_OFFSET_H

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct clock_offset {
    int n;                 /* answers that made sense */
    int64_t offset_ns;     /* there minus here; positive: it is ahead */
    int64_t round_trip_ns; /* there and back, without what the other one took between */
} clock_offset;

/* Nanoseconds, asked and answered by the clock here, heard and told by the one there. An answer that makes no sense (a clock was set meanwhile) changes nothing; false then. */
bool clock_offset_add(clock_offset *c, int64_t sent_ns, int64_t received_ns, int64_t replied_ns,
                      int64_t returned_ns);

/* Whether it is certainly more than this far away. */
bool clock_offset_exceeds(const clock_offset *c, int64_t limit_ns);

#endif
