/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticks.c - calibrates the processor's counter against CLOCK_MONOTONIC while it is used. An
 * interrupted or suspended reading is discarded. The flight recorder stamps operations with it.
 */
#include "base/report/ticks.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <stdbool.h>

#define CALIBRATE_NS  (1 * INT64_C(1000000)) /* between two readings that calibrate the counter */
#define VALID_NS      (2 * UINT64_C(1000000))
#define CALIBRATE_MAX 1024 /* times VALID_NS: a longer gap may include a suspend */
#define STEADY        4096 /* longest reading of the clock in ticks; a longer one was interrupted */
#define STEADY_TRIES  3

static inline uint64_t counter(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

/* The kernel uses the counter as its clock only after it has checked that all cores agree. */
static bool is_trusted(void)
{
    static const char path[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    char name[32];

    return file_read_start(path, name, sizeof(name)) > 0 &&
           (text_starts(name, "tsc\n") || text_starts(name, "arch_sys_counter\n"));
}

void ls_ticks_init(ls_ticks *t)
{
    *t = (ls_ticks){.has_counter = is_trusted()};
    t->anchor = counter();
    t->anchor_ns = ls_now_ns();
}

/* Reads both clocks at one moment; false when the thread was interrupted between them. */
static bool look(uint64_t *ticks, int64_t *now_ns)
{
    for (int i = 0; i < STEADY_TRIES; i++) {
        const uint64_t before = counter();

        *now_ns = ls_now_ns();
        *ticks = counter();
        if (*ticks - before < STEADY)
            return true;
    }
    return false;
}

static int64_t take_anchor(ls_ticks *t)
{
    uint64_t ticks = 0;
    int64_t now_ns = 0;
    const bool is_steady = look(&ticks, &now_ns);
    const int64_t gap_ns = now_ns - t->anchor_ns;

    if (!is_steady) {
        t->valid = 0; // calibrates again from the next anchor on
    } else if (gap_ns < CALIBRATE_NS) {
        return now_ns;
    } else if (gap_ns < CALIBRATE_MAX * (int64_t)VALID_NS && ticks - t->anchor < UINT32_MAX) {
        t->ns_per_tick = ((uint64_t)gap_ns << 32) / (ticks - t->anchor);
        t->valid = (VALID_NS << 32) / (t->ns_per_tick + 1);
    }
    t->anchor = ticks;
    t->anchor_ns = now_ns;
    return now_ns;
}

int64_t ls_ticks_now_ns(ls_ticks *t)
{
    uint64_t since;

    if (!t->has_counter)
        return ls_now_ns();
    since = counter() - t->anchor;
    if (since >= t->valid)
        return take_anchor(t);
    return t->anchor_ns + (int64_t)((since * t->ns_per_tick) >> 32);
}
