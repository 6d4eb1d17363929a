/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_clock.h - how far another clock is from this one, from questions that carry four times, as NTP does. Pure.
 *
 *     here   asked ------------------------------> answered
 *     there          \--> heard ... told --/
 *
 * The answer with the shortest way says most: the other clock is off by its offset, give or take half of that way.
 */
#ifndef LS_LAUNCH_SURVEY_CLOCK_H
#define LS_LAUNCH_SURVEY_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct survey_clock {
    int n;             /* answers that made sense */
    int64_t offset_ns; /* there minus here; positive: it is ahead */
    int64_t way_ns;    /* there and back, without what the other one took between */
} survey_clock;

/* All in nanoseconds since 1970. An answer that makes no sense (a clock was set meanwhile) changes nothing; false then. */
bool survey_clock_add(survey_clock *c, int64_t asked_ns, int64_t heard_ns, int64_t told_ns,
                      int64_t answered_ns);

/* Whether it is certainly more than this far away. */
bool survey_clock_is_apart(const survey_clock *c, int64_t limit_ns);

#endif
