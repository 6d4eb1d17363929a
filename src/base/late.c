/* SPDX-License-Identifier: Apache-2.0 */
#include "base/late.h"

#include "base/clock.h"
#include "base/config.h"

#define STANDARD_MS 10000
#define STOPPED_MS  3000 /* awake so much later than asked: this process was stopped */

int64_t late_setting_ms(void)
{
    char kept[LS_ERROR_BYTES];
    int64_t ms = STANDARD_MS;

    ls_error_keep(kept);
    if (config_int(CONFIG_LATE_MS, &ms) != LS_OK)
        ls_error_restore(kept);
    return ms;
}

late_notice late_begin(int64_t after_ms)
{
    const int64_t now_ms = ls_now_ms();

    return (late_notice){.since_ms = now_ms, .next_ms = now_ms + after_ms};
}

bool late_is_due(late_notice *n)
{
    const int64_t now_ms = ls_now_ms();

    if (now_ms < n->next_ms)
        return false;
    if (now_ms - n->next_ms > STOPPED_MS) {
        *n = late_begin(n->next_ms - n->since_ms);
        return false;
    }
    n->next_ms = now_ms + (now_ms - n->since_ms);
    return true;
}

int64_t late_deadline_ms(const late_notice *n, int64_t deadline_ms)
{
    return n->next_ms < deadline_ms ? n->next_ms : deadline_ms;
}

double late_seconds(const late_notice *n)
{
    return (double)(ls_now_ms() - n->since_ms) / 1e3;
}
