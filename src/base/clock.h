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

/* A point in time to wait until; timeout_ms < 0 = never. */
int64_t ls_deadline_ms(int64_t timeout_ms);
/* Milliseconds until `deadline_ms`, at least 0; -1 = never. Fits poll(). */
int ls_deadline_left(int64_t deadline_ms);

#endif
