/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate_text.c - traces, links and reports as terms of a forecast. */
#include "cli/plan/calibrate.h"

#include "base/alloc.h"
#include "base/median.h"
#include "base/report/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An Ethernet frame of 1500 bytes takes 1538 with preamble and gap, and has 1448 bytes of data
 * behind the headers of IP and TCP with time stamps (IEEE 802.3, RFC 7323). */
static const double tcp_share = 1448.0 / 1538;

/* --- events of a trace --- */

typedef enum event_kind { EVENT_BACKWARD, EVENT_BUFFERS, EVENT_BUCKET, EVENT_END } event_kind;

typedef struct event {
    double at_us;
    double bytes;
    event_kind kind;
    int bucket;
} event;

typedef struct event_list {
    event *items;
    size_t n;
} event_list;

static int by_time(const void *a, const void *b)
{
    const event *x = a;
    const event *y = b;

    if (x->at_us < y->at_us || x->at_us > y->at_us)
        return x->at_us < y->at_us ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

/* False: it has no part in a forecast. */
static bool classify(const json_value *from, event *e)
{
    const json_value *details = json_get(from, "args");
    const char *site = json_as_string(json_get(details, "site"), "");
    const char *name = json_as_string(json_get(from, "name"), "");

    e->at_us = json_as_real(json_get(from, "ts"), -1);
    e->bytes = json_as_real(json_get(details, "bytes"), 0);
    if (json_as_int(json_get(from, "pid"), -1) != 0 || !(e->at_us >= 0 && e->at_us < 1e15) ||
        !(e->bytes >= 0 && e->bytes < 1e13))
        return false;
    if (text_equal(json_as_string(json_get(from, "cat"), ""), "phase")) {
        e->kind = EVENT_BACKWARD;
        return text_equal(name, "backward");
    }
    e->kind = EVENT_BUFFERS;
    if (text_equal(site, "ddp buffers"))
        return true;
    e->kind = EVENT_END;
    if (text_equal(site, "ddp step"))
        return true;
    e->kind = EVENT_BUCKET;
    return text_starts(site, "bucket ") && (e->bucket = (int)strtol(site + 7, NULL, 10)) > 0 &&
           e->bucket <= CALIBRATE_BUCKETS;
}

static ls_status list_events(const json_value *trace, event_list *list)
{
    const json_value *all = json_get(trace, "traceEvents");
    const size_t n = json_size(all);

    LS_TRY(LS_NEW(&list->items, n + 1, "for %zu events of a trace", n));
    for (size_t i = 0; i < n; i++)
        list->n += classify(json_at(all, i), &list->items[list->n]);
    qsort(list->items, list->n, sizeof(*list->items), by_time);
    return LS_OK;
}

/* --- steps --- */

/* A step is from the end of one to that of the next. */
typedef struct step_times {
    double *other_us;
    double *backward_us;
    double *ready_us; /* n_buckets of each step */
    int n;
} step_times;

static int count_kind(const event_list *list, event_kind kind)
{
    int n = 0;

    for (size_t i = 0; i < list->n; i++)
        n += list->items[i].kind == kind;
    return n;
}

static int count_buckets(const event_list *list)
{
    int most = 0;

    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].kind == EVENT_BUCKET && list->items[i].bucket > most)
            most = list->items[i].bucket;
    return most;
}

/* Adds the events between two ends; a step without backward is left out. */
static void add_step(const event *first, const event *end, forecast_step *step,
                     forecast_bucket *buckets, step_times *t)
{
    double *ready_us = t->ready_us + (size_t)t->n * (size_t)step->n_buckets;
    double begin_us = -1;

    for (const event *e = first + 1; e < end; e++) {
        if (e->kind == EVENT_BACKWARD)
            begin_us = e->at_us; // of the last one, with --accumulate
        else if (e->kind == EVENT_BUFFERS)
            step->buffer_bytes = e->bytes;
    }
    if (begin_us < 0)
        return;
    for (const event *e = first + 1; e < end; e++)
        if (e->kind == EVENT_BUCKET) {
            buckets[e->bucket - 1].bytes = e->bytes;
            ready_us[e->bucket - 1] = e->at_us > begin_us ? e->at_us - begin_us : 0;
        }
    t->backward_us[t->n] = end->at_us - begin_us;
    t->other_us[t->n] = begin_us - first->at_us;
    t->n++;
    step->end_bytes = end->bytes;
}

static ls_status read_steps(const event_list *list, int n_ends, forecast_step *step, step_times *t)
{
    const size_t n = (size_t)n_ends;
    const size_t n_buckets = (size_t)step->n_buckets;
    const event *last = NULL;
    forecast_bucket *buckets;
    double *column;
    int n_seen = 0;

    LS_TRY(LS_NEW(&buckets, n_buckets, "for buckets"));
    step->buckets = buckets;
    LS_TRY(LS_NEW(&t->other_us, n, "for steps"));
    LS_TRY(LS_NEW(&t->backward_us, n, "for steps"));
    LS_TRY(LS_NEW(&t->ready_us, n * n_buckets + n, "for steps"));
    for (size_t i = 0; i < list->n; i++) {
        const event *e = &list->items[i];

        if (e->kind != EVENT_END)
            continue;
        if (++n_seen > CALIBRATE_WARMUP)
            add_step(last, e, step, buckets, t);
        last = e;
    }
    column = t->ready_us + n * n_buckets;
    for (size_t b = 0; b < n_buckets && t->n > 0; b++) {
        for (int k = 0; k < t->n; k++)
            column[k] = t->ready_us[(size_t)k * n_buckets + b];
        buckets[b].ready_s = median_of(column, (size_t)t->n) * 1e-6;
    }
    return LS_OK;
}

static ls_status measure_steps(const event_list *list, const char *what, forecast_step *step)
{
    const int n_ends = count_kind(list, EVENT_END);
    step_times t = {.n = 0};
    ls_status st;

    step->n_buckets = count_buckets(list);
    if (n_ends == 0 || step->n_buckets == 0)
        return ls_fail(LS_EFORMAT,
                       "%s has no training step: the program must train with Lockstep's DDP "
                       "(ls_run_step(), ls_ddp_backward()), without --shards",
                       what);
    st = read_steps(list, n_ends, step, &t);
    if (st == LS_OK && t.n < CALIBRATE_STEPS)
        st = ls_fail(LS_EFORMAT, "%s has %d training step%s; a plan needs %d: more --steps", what,
                     n_ends, text_plural(n_ends), CALIBRATE_WARMUP + CALIBRATE_STEPS);
    if (st == LS_OK) {
        step->other_s = median_of(t.other_us, (size_t)t.n) * 1e-6;
        step->backward_s = median_of(t.backward_us, (size_t)t.n) * 1e-6;
    }
    ls_free(t.other_us);
    ls_free(t.backward_us);
    ls_free(t.ready_us);
    return st;
}

ls_status calibrate_read_trace(const char *text, size_t bytes, const char *what,
                               forecast_step *step)
{
    event_list list = {.n = 0};
    json_value *trace;
    ls_status st;

    *step = (forecast_step){.n_buckets = 0};
    LS_TRY(json_parse(text, bytes, what, &trace));
    st = list_events(trace, &list);
    json_free(trace);
    if (st == LS_OK)
        st = measure_steps(&list, what, step);
    ls_free(list.items);
    return st;
}

/* --- links --- */

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit rates[] = {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {NULL, 0}};
static const unit times[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};

/* A number and a unit, which fill the text. */
static bool read_amount(const char *text, size_t n, const unit *units, double *out)
{
    char buf[32];
    char *end;

    if (n == 0 || n >= sizeof(buf) || (*text != '.' && !(*text >= '0' && *text <= '9')))
        return false;
    memcpy(buf, text, n);
    buf[n] = '\0';
    *out = strtod(buf, &end);
    for (; units->name != NULL; units++)
        if (text_equal(end, units->name)) {
            *out *= units->factor;
            return isfinite(*out) != 0;
        }
    return false;
}

ls_status calibrate_read_link(const char *text, forecast_link *link)
{
    const char *comma = strchr(text, ',');
    double bits;
    double round_trip_s;

    if (comma == NULL || !read_amount(text, (size_t)(comma - text), rates, &bits) ||
        !read_amount(comma + 1, strlen(comma + 1), times, &round_trip_s) || bits < 1e3 ||
        bits > 1e13 || round_trip_s > 60)
        return ls_fail(LS_EINVAL,
                       "--link %.60s: must be RATE,ROUND-TRIP such as 1Gbit,0.2ms: 1 kbit to "
                       "10000 Gbit (kbit, Mbit, Gbit), 0 to 60 s (us, ms, s)",
                       text);
    *link = (forecast_link){.bytes_per_s = bits / 8 * tcp_share, .latency_s = round_trip_s / 2};
    return LS_OK;
}

ls_status calibrate_read_check(const char *text, size_t bytes, const char *what,
                               forecast_link *link)
{
    const json_value *paths;
    json_value *report;

    *link = (forecast_link){.bytes_per_s = INFINITY};
    LS_TRY(json_parse(text, bytes, what, &report));
    paths = json_get(report, "paths");
    for (size_t i = 0; i < json_size(paths); i++) {
        const json_value *path = json_at(paths, i);
        const double rate = json_as_real(json_get(path, "bytes_per_s"), 0);
        const double latency_s = json_as_real(json_get(path, "round_trip_us"), 0) / 2e6;

        if (rate > 0 && rate < link->bytes_per_s)
            link->bytes_per_s = rate;
        if (latency_s > link->latency_s && latency_s <= 30)
            link->latency_s = latency_s;
    }
    json_free(report);
    if (!(link->bytes_per_s < 1e13))
        return ls_fail(LS_EFORMAT,
                       "%s has no measured path: it must be the output of lockstep check -H "
                       "HOST,HOST --json",
                       what);
    return LS_OK;
}
