/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the monotonic clock, and a clock interface for modules whose tests control the time. */
#ifndef LS_BASE_CLOCK_H
#define LS_BASE_CLOCK_H

#include <stdint.h>

typedef struct ls_clock {
    int64_t (*now_ns)(void *self); /* monotonic */
    void *self;
} ls_clock;

/* CLOCK_MONOTONIC. */
const ls_clock *ls_clock_system(void);

int64_t ls_now_ns(void); /* the system clock */
int64_t ls_now_ms(void);

#define LS_DURATION_MAX_MS (INT64_C(100) * 365 * 24 * 3600 * 1000) /* 100 years */

/* A duration that comes from outside (an option, a flag, the environment, the wire), at least -1
 * and at most 100 years: in nanoseconds, and added to a point in time, it still fits 64 bits. */
static inline int64_t ls_duration_ms(int64_t ms)
{
    if (ms < 0)
        return -1;
    return ms < LS_DURATION_MAX_MS ? ms : LS_DURATION_MAX_MS;
}

/* The same in nanoseconds; a negative duration, which means none, gives INT64_MAX. */
static inline int64_t ls_duration_ns(int64_t ms)
{
    return ms < 0 ? INT64_MAX : ls_duration_ms(ms) * 1000000;
}

/* Of a duration in seconds, in milliseconds; NaN gives 0. */
int64_t ls_duration_of_s(double seconds);

/* Nanoseconds of the system clock to wait until; timeout_ms < 0: INT64_MAX, which is never. */
int64_t ls_deadline_ns(int64_t timeout_ms);
/* A point in time to wait until; timeout_ms < 0, or 100 years and more = never. */
int64_t ls_deadline_ms(int64_t timeout_ms);
/* Milliseconds until `deadline_ms`, at least 0; -1 = never. Fits poll(). */
int ls_deadline_left(int64_t deadline_ms);

#endif
