/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_cache.c - finds or makes the plan of a graph, measures candidates with events, and runs it.
 * Called by cuda_conv2d.c; plan_file.c stores the choice.
 *
 * In deterministic mode nothing is measured or read from files: two runs choose the same plan.
 */
#include "tensor/devices/cuda/dnn/dnn_cache.h"

#include "tensor/devices/cuda/dnn/cuda_math.h"
#include "tensor/devices/cuda/dnn/plan_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { BUCKETS = 256 };

typedef struct entry {
    struct entry *next;
    uint64_t hash; /* of the graph */
    uint64_t last_use;
    dnn_graph graph;
    dnn_plan *plan;
} entry;

struct dnn_cache {
    device_state *device;
    dnn_planner *planner;
    dnn_limits limits;
    bool autotune;
    char folder[PATH_MAX];
    char card[160]; /* what plans in files depend on besides the graph */
    entry *buckets[BUCKETS];
    int n_entries;
    uint64_t n_lookups;
};

/* --- life --- */

ls_status dnn_cache_open(device_state *device, const dnn_cache_options *options, dnn_cache **out)
{
    dnn_cache *c = cu_host->alloc(1, sizeof(*c));
    ls_status st;

    if (c == NULL)
        return cu_fail(LS_ENOMEM, "no memory for the cache of plans");
    c->device = device;
    c->limits = options->limits;
    c->autotune = options->autotune && !options->limits.deterministic;
    st = dnn_planner_open(cu_stream(device), &c->planner);
    if (st != LS_OK) {
        dnn_cache_close(c);
        return st;
    }
    if (c->autotune)
        (void)snprintf(c->folder, sizeof(c->folder), "%s", options->folder);
    (void)snprintf(c->card, sizeof(c->card), "%s sm_%d%d, %d processors, %s%s", device->card.name,
                   device->card.major, device->card.minor, device->card.n_processors,
                   dnn_planner_version(c->planner), c->limits.tf32 ? ", tf32" : "");
    *out = c;
    return LS_OK;
}

static void destroy_entry(entry *e)
{
    dnn_plan_destroy(e->plan);
    cu_host->free(e);
}

void dnn_cache_close(dnn_cache *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        while (c->buckets[i] != NULL) {
            entry *e = c->buckets[i];

            c->buckets[i] = e->next;
            destroy_entry(e);
        }
    }
    dnn_planner_close(c->planner);
    cu_host->free(c);
}

/* --- entries --- */

static entry *find(dnn_cache *c, const dnn_graph *g, uint64_t hash)
{
    entry *e = c->buckets[hash % BUCKETS];

    while (e != NULL && memcmp(&e->graph, g, sizeof(*g)) != 0)
        e = e->next;
    if (e != NULL)
        e->last_use = ++c->n_lookups;
    return e;
}

/* Destroys the entry that was used least recently, when no kernel of its plan can be running. */
static ls_status drop_oldest(dnn_cache *c)
{
    entry **oldest = NULL;
    entry *e;

    LS_TRY(cu_call(c->device, stream_synchronize, cu_stream(c->device)));
    cuda_accel_forget_graphs(c->device->accel);
    for (int i = 0; i < BUCKETS; i++) {
        for (entry **at = &c->buckets[i]; *at != NULL; at = &(*at)->next) {
            if (oldest == NULL || (*at)->last_use < (*oldest)->last_use)
                oldest = at;
        }
    }
    e = *oldest;
    *oldest = e->next;
    destroy_entry(e);
    c->n_entries--;
    return LS_OK;
}

/* Takes the plan, also when it fails. */
static ls_status add(dnn_cache *c, const dnn_graph *g, uint64_t hash, dnn_plan *plan_take)
{
    entry *e = cu_host->alloc(1, sizeof(*e));
    ls_status st = LS_OK;

    if (e == NULL)
        st = cu_fail(LS_ENOMEM, "no memory for the cache of plans");
    else if (c->n_entries == DNN_PLANS_MOST)
        st = drop_oldest(c);
    if (st != LS_OK) {
        dnn_plan_destroy(plan_take);
        cu_host->free(e);
        return st;
    }
    e->graph = *g;
    e->hash = hash;
    e->plan = plan_take;
    e->last_use = ++c->n_lookups;
    e->next = c->buckets[hash % BUCKETS];
    c->buckets[hash % BUCKETS] = e;
    c->n_entries++;
    return LS_OK;
}

/* --- measuring --- */

/* `hash`: of the plan's graph. */
static ls_status run(dnn_cache *c, const dnn_plan *plan, uint64_t hash, void *const *data)
{
    const graph_node node = {.kind = GRAPH_PLAN, .code = hash};
    cuda_accel *a = c->device->accel;
    void *workspace;
    ls_status queued;
    ls_status st;

    LS_TRY(cu_workspace(c->device, dnn_plan_workspace_bytes(plan), &workspace));
    LS_TRY(cuda_accel_begin(a, &node));
    st = dnn_plan_run(c->planner, plan, data, workspace);
    queued = cuda_accel_end(a, 0, "cuDNN");
    if (st == LS_OK)
        c->device->n_launches++;
    return queued == LS_OK ? st : queued;
}

/* Runs that are measured together, after one that is not. */
enum { TUNED_RUNS = 3 };

static ls_status measure(dnn_cache *c, const dnn_plan *plan, void *const *data,
                         gpu_event *const *events, float *ms)
{
    LS_TRY(run(c, plan, 0, data));
    LS_TRY(cu_call(c->device, event_record, events[0], cu_stream(c->device)));
    for (int i = 0; i < TUNED_RUNS; i++)
        LS_TRY(run(c, plan, 0, data));
    LS_TRY(cu_call(c->device, event_record, events[1], cu_stream(c->device)));
    LS_TRY(cu_call(c->device, event_synchronize, events[1]));
    return cu_call(c->device, event_elapsed_ms, events[0], events[1], ms);
}

/* *best: the fastest of plans[0..n). A plan that cannot run is passed over, if another one can. */
static ls_status choose(dnn_cache *c, dnn_plan *const *plans, int n, void *const *data, int *best)
{
    gpu_event *events[2] = {NULL, NULL};
    ls_status st = LS_OK;
    float best_ms = 0;

    *best = -1;
    for (int i = 0; i < 2 && st == LS_OK; i++)
        st = cu_call(c->device, event_create, &events[i], true);
    for (int i = 0; i < n && events[1] != NULL; i++) {
        float ms = 0;

        st = measure(c, plans[i], data, events, &ms);
        if (st == LS_OK && (*best < 0 || ms < best_ms)) {
            *best = i;
            best_ms = ms;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (events[i] != NULL)
            (void)gpu_event_destroy(events[i]);
    }
    return *best >= 0 ? LS_OK : st;
}

/* The plan that runs the graph from now on, of those that cuDNN recommends. */
static ls_status make_plan(dnn_cache *c, const dnn_graph *g, void *const *data, dnn_plan **out)
{
    dnn_plan *plans[DNN_TUNED_MOST];
    int n;
    int best = 0;
    ls_status st;

    LS_TRY(
        dnn_plans_create(c->planner, g, &c->limits, c->autotune ? DNN_TUNED_MOST : 1, plans, &n));
    st = n > 1 ? choose(c, plans, n, data, &best) : LS_OK;
    for (int i = 0; i < n; i++) {
        if (st != LS_OK || i != best)
            dnn_plan_destroy(plans[i]);
    }
    *out = st == LS_OK ? plans[best] : NULL;
    return st;
}

/* Runs the graph by the first plan that can: what the card refuses is not known before. */
static ls_status run_first_able(dnn_cache *c, const dnn_graph *g, uint64_t hash, void *const *data,
                                dnn_plan **out)
{
    dnn_plan *plans[DNN_TUNED_MOST];
    ls_status st = LS_OK;
    int n;

    *out = NULL;
    LS_TRY(dnn_plans_create(c->planner, g, &c->limits, DNN_TUNED_MOST, plans, &n));
    for (int i = 0; i < n; i++) {
        st = *out == NULL ? run(c, plans[i], hash, data) : LS_OK;
        if (st == LS_OK && *out == NULL)
            *out = plans[i];
        else
            dnn_plan_destroy(plans[i]);
    }
    return st;
}

/* --- files --- */

static plan_file file_of(const dnn_cache *c, const dnn_graph *g)
{
    return (plan_file){.folder = c->folder, .key = g, .key_bytes = sizeof(*g), .card = c->card};
}

/* NULL when no file has a usable plan. */
static dnn_plan *load_plan(dnn_cache *c, const dnn_graph *g)
{
    const plan_file f = file_of(c, g);
    dnn_plan *plan = NULL;
    char *file;
    const char *text;
    size_t bytes;

    if (c->folder[0] == '\0' || !plan_file_read(&f, &file, &text, &bytes))
        return NULL;
    if (dnn_plan_load(c->planner, g, text, bytes, &plan) != LS_OK)
        plan = NULL;
    cu_host->free(file);
    return plan;
}

/* A plan that cannot be stored is chosen again by the next process. */
static void save_plan(dnn_cache *c, const dnn_graph *g, const dnn_plan *plan)
{
    const plan_file f = file_of(c, g);
    char *text;
    size_t bytes;

    if (c->folder[0] == '\0' || dnn_plan_save(plan, &text, &bytes) != LS_OK)
        return;
    plan_file_write(&f, text, bytes);
    cu_host->free(text);
}

/* The first run of a graph. */
static ls_status find_plan_and_run(dnn_cache *c, const dnn_graph *g, uint64_t hash,
                                   void *const *data)
{
    dnn_plan *plan = load_plan(c, g);
    ls_status st;

    if (plan != NULL && run(c, plan, hash, data) == LS_OK)
        return add(c, g, hash, plan);
    dnn_plan_destroy(plan); // it ran with another driver, or with more free memory
    LS_TRY(make_plan(c, g, data, &plan));
    st = run(c, plan, hash, data);
    if (st != LS_OK) {
        dnn_plan_destroy(plan);
        LS_TRY(run_first_able(c, g, hash, data, &plan));
    }
    save_plan(c, g, plan);
    return add(c, g, hash, plan);
}

ls_status dnn_cache_run(dnn_cache *c, const dnn_graph *g, void *const *data)
{
    const uint64_t hash = plan_hash(g, sizeof(*g), 0);
    const entry *e = find(c, g, hash);
    ls_status st;

    if (e != NULL)
        return run(c, e->plan, hash, data);
    st = cuda_accel_pause(c->device->accel); // plans load code and are measured
    if (st == LS_OK)
        st = find_plan_and_run(c, g, hash, data);
    cuda_accel_resume(c->device->accel);
    return st;
}
