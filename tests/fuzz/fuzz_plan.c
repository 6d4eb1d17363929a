/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_plan.c - arbitrary input of lockstep plan: a trace, a report of lockstep check, a --link;
 * the first byte selects which. What is accepted gives forecasts that are numbers.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "base/text.h"
#include "cli/plan/calibrate.h"

#include <math.h>
#include <string.h>

static void check_forecasts(const forecast_step *step, const forecast_link *link)
{
    for (int n = 1; n <= 64; n *= 4) {
        const forecast_case c = {.n = n, .compute = 1};
        const forecast_result r = forecast_make(step, link, &c);

        if (isnan(r.step_s) || r.step_s < 0 || !(r.sent_bytes >= 0) ||
            strlen(forecast_bound_text(r.bound)) == 0)
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const forecast_bucket bucket = {.ready_s = 0.1, .bytes = 1e6};
    forecast_step step = {.other_s = 1, .backward_s = 1, .buckets = &bucket, .n_buckets = 1};
    forecast_link link = {.bytes_per_s = 1e8};
    text_buf text = {0};
    ls_status st;

    if (size == 0)
        return 0;
    text_append(&text, "%.*s", (int)(size - 1), (const char *)data + 1);
    if (data[0] == 't')
        st = calibrate_read_trace(text_str(&text), strlen(text_str(&text)), "a trace", &step);
    else if (data[0] == 'c')
        st = calibrate_read_check(text_str(&text), strlen(text_str(&text)), "a report", &link);
    else
        st = calibrate_read_link(text_str(&text), &link);
    if (st == LS_OK)
        check_forecasts(&step, &link);
    else if (strlen(ls_last_error()) == 0)
        __builtin_trap();
    if (data[0] == 't')
        ls_free((forecast_bucket *)(uintptr_t)step.buckets);
    text_free(&text);
    return 0;
}
