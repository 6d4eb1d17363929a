/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.c - see forecast.h. */
#include "cli/plan/forecast.h"

#include <math.h>

/* Of algorithm_defaults.c and link.h. */
#define ANNOUNCED_BYTES 65536.0 /* messages above are announced by their receiver */
#define PAIR_BYTES      65536.0
#define FEW_RANKS       8
#define FEW_BYTES       8192.0
#define MANY_RANKS      17
#define SOME_BYTES      512.0
#define DOUBLING_BYTES  2048.0
#define TREE_BYTES      16384.0

/* A step is bound by communication from this share on. */
static const double bound_share = 0.1;

static const char *const bound_texts[] = {"compute", "slowest machine", "bandwidth", "latency",
                                          "copying"};

const char *forecast_bound_text(forecast_bound b)
{
    return bound_texts[b];
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double log2_up(int n)
{
    return ceil(log2((double)n));
}

static forecast_exchange make_exchange(double rounds, double sent, double message)
{
    return (forecast_exchange){.rounds = message > ANNOUNCED_BYTES ? 2 * rounds : rounds,
                               .sent = sent};
}

forecast_exchange forecast_all_reduce(double bytes, int n)
{
    const double slices = 2 * bytes * (n - 1) / n;
    const bool is_whole = n == 2           ? bytes <= PAIR_BYTES
                          : n <= FEW_RANKS ? bytes <= FEW_BYTES
                                           : n < MANY_RANKS && bytes <= SOME_BYTES;

    if (n < 2)
        return (forecast_exchange){.rounds = 0};
    if (is_whole)
        return make_exchange(1, bytes * (n - 1), bytes);
    if (bytes <= DOUBLING_BYTES && n >= FEW_RANKS)
        return make_exchange(log2_up(n), bytes * log2_up(n), bytes);
    if (bytes <= TREE_BYTES && n >= MANY_RANKS) // up and down; the root sends most
        return make_exchange(2 * log2_up(n), bytes * log2_up(n), bytes);
    if (n >= MANY_RANKS)
        return make_exchange(2 * log2_up(n), slices, bytes / 2);
    return make_exchange(2, slices, bytes / n);
}

/* In the memory of a host all ranks meet once, and each reads and writes its slice. */
static forecast_exchange exchange_on(const forecast_link *link, double bytes, int n)
{
    if (n > 1 && link->bytes_per_s <= 0)
        return (forecast_exchange){.rounds = 1, .sent = 2 * bytes * (n - 1) / n};
    return forecast_all_reduce(bytes, n);
}

/* Seconds that the link is busy. */
static double wire_s(const forecast_link *link, double bytes)
{
    return link->bytes_per_s > 0 ? bytes / link->bytes_per_s : 0;
}

/* The factor of compute times by the speeds of the ranks. */
static double factor_of(const forecast_case *c, bool is_balanced)
{
    double sum = 0;
    double least = INFINITY;

    if (c->speeds == NULL)
        return c->compute;
    for (int r = 0; r < c->n; r++) {
        const double speed = c->speeds[r % c->n_speeds];

        sum += speed;
        least = speed < least ? speed : least;
    }
    return c->compute * (is_balanced ? c->n / sum : 1 / least);
}

/* The communication of a step. */
typedef struct traffic {
    double wire_s;
    double copy_s;
    double latency_s; /* that overlaps with nothing else */
    double sent;
    double end_s; /* from the begin of backward: backward and all-reduces are complete */
} traffic;

static traffic follow_backward(const forecast_step *s, const forecast_link *link,
                               const forecast_case *c, double factor)
{
    traffic t = {.wire_s = 0};
    double free_s = 0;   // when the link has sent all buckets before
    double copied_s = 0; // processor time before backward ends
    double latency_s = 0;
    forecast_exchange e;

    for (int i = 0; i < s->n_buckets; i++) {
        const double ready_s = s->buckets[i].ready_s * factor + copied_s;
        double copy_s;

        e = exchange_on(link, s->buckets[i].bytes * (c->has_half_bytes ? 0.5 : 1), c->n);
        copy_s = link->copy_s_per_byte * e.sent;
        latency_s = e.rounds * link->latency_s;
        free_s = larger(ready_s, free_s) + larger(wire_s(link, e.sent), copy_s);
        t.end_s = larger(t.end_s, free_s + latency_s);
        t.wire_s += wire_s(link, e.sent);
        t.copy_s += copy_s;
        t.sent += e.sent;
        if (i + 1 < s->n_buckets)
            copied_s += copy_s;
    }
    e = exchange_on(link, s->end_bytes, c->n);
    latency_s = larger(latency_s, e.rounds * link->latency_s);
    t.sent += e.sent;
    t.end_s = larger(t.end_s, s->backward_s * factor + copied_s + e.rounds * link->latency_s);
    t.latency_s = latency_s;
    return t;
}

static void add_broadcast(const forecast_step *s, const forecast_link *link, int n, traffic *t)
{
    const double hops = s->buffer_bytes > 0 ? log2_up(n) : 0;

    t->latency_s += hops * link->latency_s;
    t->wire_s += hops * wire_s(link, s->buffer_bytes);
    t->end_s += hops * (link->latency_s + wire_s(link, s->buffer_bytes));
}

static forecast_bound find_bound(const traffic *t, double step_s, double exposed_s, bool is_slowest)
{
    if (exposed_s < bound_share * step_s)
        return is_slowest ? FORECAST_SLOWEST : FORECAST_COMPUTE;
    if (t->latency_s >= t->wire_s && t->latency_s >= t->copy_s)
        return FORECAST_LATENCY;
    return t->wire_s >= t->copy_s ? FORECAST_BANDWIDTH : FORECAST_COPYING;
}

forecast_result forecast_make(const forecast_step *s, const forecast_link *link,
                              const forecast_case *c)
{
    const double alone_s = s->other_s + s->backward_s;
    const double balanced = factor_of(c, true);
    const double factor = factor_of(c, c->is_balanced);
    traffic t = follow_backward(s, link, c, factor);
    forecast_result r = {.sent_bytes = t.sent};

    add_broadcast(s, link, c->n, &t);
    r.step_s = s->other_s * factor + t.end_s;
    r.batches_per_s = c->n / r.step_s;
    r.efficiency = alone_s * balanced / c->compute / r.step_s;
    r.bound = find_bound(&t, r.step_s, r.step_s - alone_s * factor,
                         factor > (1 + bound_share) * balanced);
    return r;
}

int forecast_knee(const forecast_result *results, int count)
{
    int i = 0;

    while (i + 1 < count && results[i + 1].efficiency >= 0.75 * results[i].efficiency)
        i++;
    return i;
}
