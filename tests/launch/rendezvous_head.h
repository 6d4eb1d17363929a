/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_head.h - a job's head for tests of the rendezvous machine: events in few words,
 * actions by kind and connection.
 */
#ifndef TESTS_LAUNCH_RENDEZVOUS_HEAD_H
#define TESTS_LAUNCH_RENDEZVOUS_HEAD_H

#include "base/unit.h"

#include "base/alloc.h"
#include "base/text.h"
#include "launch/head/rendezvous/rendezvous.h"

#include <signal.h>

enum { S = 1000 };

typedef struct head {
    rdzv *m;
    int64_t now;
    rdzv_result r;
} head;

static inline void open_head(head *h, const rdzv_options *given)
{
    rdzv_options opt = *given;

    opt.version = "1.0";
    opt.host = "a";
    *h = (head){.now = 50 * S};
    assert_ok(rdzv_create(&opt, h->now, &h->m));
}

static inline void close_head(head *h)
{
    rdzv_destroy(h->m);
}

static inline void step(head *h, const rdzv_event *e)
{
    h->r = rdzv_step(h->m, e, h->now);
    assert_true(h->r.wake_at_ms > h->now);
}

#define STEP(h, ...) step(h, &(rdzv_event){__VA_ARGS__})

static inline void pass(head *h, int64_t ms)
{
    h->now += ms;
    STEP(h, .kind = RDZV_TICK);
}

static inline void arrive(head *h, uint64_t conn, int id, rdzv_hello hello)
{
    static const char *const hosts[] = {"?", "a", "b", "c", "d", "e"};

    hello.id = id;
    if (hello.host == NULL)
        hello.host = hosts[conn % LS_COUNT_OF(hosts)];
    if (hello.version == NULL)
        hello.version = "1.0";
    if (hello.n_local == 0)
        hello.n_local = 1;
    STEP(h, .kind = RDZV_ARRIVED, .conn = conn, .hello = &hello);
}

#define NODE(...) ((rdzv_hello){__VA_ARGS__})

static const rdzv_action *find(const head *h, rdzv_action_kind kind, uint64_t conn)
{
    for (int i = 0; i < h->r.n_actions; i++)
        if (h->r.actions[i].kind == kind && h->r.actions[i].conn == conn)
            return &h->r.actions[i];
    return NULL;
}

static const rdzv_action *must(const head *h, rdzv_action_kind kind, uint64_t conn)
{
    const rdzv_action *a = find(h, kind, conn);

    if (a == NULL)
        fail_msg("no action %d for connection %d", (int)kind, (int)conn);
    return a;
}

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (strstr(text, part) == NULL)                                                            \
            fail_msg("\"%s\" does not say \"%s\"", text, part);                                    \
    } while (0)

static inline void assert_place(const head *h, uint64_t conn, int node, int base, int world)
{
    const rdzv_place *p = must(h, RDZV_DO_WELCOME, conn)->place;

    assert_int_equal(p->node, node);
    assert_int_equal(p->rank_base, base);
    assert_int_equal(p->world_size, world);
    assert_int_equal(p->conn, conn);
}

static inline uint32_t generation(const head *h)
{
    int n;
    const rdzv_place *places = rdzv_places(h->m, &n);

    assert_true(n > 0);
    return places[0].generation;
}

static inline void ready(head *h, uint64_t conn)
{
    STEP(h, .kind = RDZV_READY, .conn = conn, .generation = generation(h));
}

static inline void all_ready(head *h)
{
    uint64_t conns[16];
    int n;
    const rdzv_place *places = rdzv_places(h->m, &n);

    for (int i = 0; i < n; i++)
        conns[i] = places[i].conn;
    for (int i = 0; i < n; i++)
        ready(h, conns[i]);
    assert_int_equal(rdzv_phase_now(h->m), RDZV_RUN);
}

/* By themselves, n_well of its ranks with 0. */
static inline void ended(head *h, uint64_t conn, int n_well)
{
    STEP(h, .kind = RDZV_FINISHED, .conn = conn, .generation = generation(h), .n_well = n_well);
}

/* By themselves, all with 0; or after a stop, abort or kill. */
static inline void finished(head *h, uint64_t conn, bool stopped)
{
    int n;
    int n_well = 0;
    const rdzv_place *places = rdzv_places(h->m, &n);

    for (int i = 0; i < n; i++)
        if (places[i].conn == conn)
            n_well = places[i].n_local;
    if (!stopped)
        ended(h, conn, n_well);
    else
        STEP(h, .kind = RDZV_FINISHED, .conn = conn, .generation = generation(h), .stopped = true);
}

static inline void failed(head *h, uint64_t conn, int local_rank, int code, const char *text)
{
    STEP(h, .kind = RDZV_FAILED, .conn = conn, .generation = generation(h),
         .local_rank = local_rank, .exit_code = code, .crashed = code > 128, .text = text);
}

static inline void gone(head *h, uint64_t conn, const char *why)
{
    STEP(h, .kind = RDZV_GONE, .conn = conn, .last_seen_ms = h->now, .text = why);
}

/* Connections 1..n, of which 1 is the head's own node; in RDZV_RUN afterwards. */
static inline void run_job(head *h, const rdzv_options *opt, int n)
{
    open_head(h, opt);
    for (int i = 1; i <= n; i++)
        arrive(h, (uint64_t)i, opt->by_id ? i - 1 : -1, NODE(.is_head = i == 1, .n_local = 2));
    if (rdzv_phase_now(h->m) == RDZV_COLLECT)
        pass(h, 30 * S);
    all_ready(h);
}

static const rdzv_options two_by_id = {.by_id = true, .min_nodes = 2, .max_nodes = 2};
static const rdzv_options two = {.min_nodes = 2, .max_nodes = 2, .max_spares = 2};
static const rdzv_options two_to_four = {.min_nodes = 2, .max_nodes = 4, .max_spares = 1};
static const rdzv_options elastic = {
    .min_nodes = 2, .max_nodes = 4, .max_spares = 1, .min_ranks = 1};

#endif
