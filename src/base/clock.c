/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c - reads CLOCK_MONOTONIC, so a change of the date moves no deadline. */
#include "base/clock.h"

#include <limits.h>
#include <stdbool.h>
#include <time.h>

#define NEVER INT64_MAX

int64_t ls_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); // cannot fail for this clock
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t ls_now_ms(void)
{
    return ls_now_ns() / 1000000;
}

static int64_t system_now_ns(void *self)
{
    (void)self;
    return ls_now_ns();
}

const ls_clock *ls_clock_system(void)
{
    static const ls_clock clock = {system_now_ns, NULL};

    return &clock;
}

int64_t ls_duration_of_s(double seconds)
{
    const double most_s = 1e12; // more than ls_duration_ms() lets pass, and a product that fits

    if (seconds < 0)
        return -1;
    if (seconds < most_s)
        return ls_duration_ms((int64_t)(seconds * 1e3));
    return seconds >= most_s ? ls_duration_ms(INT64_MAX) : 0; // 0: NaN
}

int64_t ls_deadline_ns(int64_t timeout_ms)
{
    return timeout_ms < 0 ? NEVER : ls_now_ns() + ls_duration_ns(timeout_ms);
}

int64_t ls_deadline_ms(int64_t timeout_ms)
{
    const bool is_never = timeout_ms < 0 || timeout_ms >= LS_DURATION_MAX_MS;

    return is_never ? NEVER : ls_now_ms() + timeout_ms;
}

int ls_deadline_left(int64_t deadline_ms)
{
    int64_t left;

    if (deadline_ms == NEVER)
        return -1;
    left = deadline_ms - ls_now_ms();
    if (left <= 0)
        return 0;
    return left > INT_MAX ? INT_MAX : (int)left;
}
