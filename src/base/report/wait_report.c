/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_report.c - the timing of wait_report.h; it logs nothing itself. Joining ranks, connections
 * to the hub and the head's checks use it.
 */
#include "base/report/wait_report.h"

#include "base/clock.h"
#include "base/config.h"

#define STANDARD_MS 10000
#define STOPPED_MS  3000 /* a wake-up this late means that the process was stopped */

int64_t wait_report_setting_ms(void)
{
    char saved[LS_ERROR_BYTES];
    int64_t ms = STANDARD_MS;

    ls_error_save(saved);
    if (config_int(CONFIG_LATE_MS, &ms) != LS_OK)
        ls_error_restore(saved);
    return ms;
}

wait_report wait_report_begin(int64_t after_ms)
{
    const int64_t now_ms = ls_now_ms();

    return (wait_report){.since_ms = now_ms, .next_ms = now_ms + after_ms};
}

bool wait_report_is_due(wait_report *n)
{
    const int64_t now_ms = ls_now_ms();

    if (now_ms < n->next_ms)
        return false;
    if (now_ms - n->next_ms > STOPPED_MS) {
        *n = wait_report_begin(n->next_ms - n->since_ms);
        return false;
    }
    n->next_ms = now_ms + (now_ms - n->since_ms);
    return true;
}

int64_t wait_report_deadline_ms(const wait_report *n, int64_t deadline_ms)
{
    return n->next_ms < deadline_ms ? n->next_ms : deadline_ms;
}

double wait_report_seconds(const wait_report *n)
{
    return (double)(ls_now_ms() - n->since_ms) / 1e3;
}
