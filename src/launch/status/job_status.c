/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - writes and reads the text of a job's status, and finds late ranks. Nothing in a text
 * that is read is trusted. Called by agents, the head, and the tool.
 */
#include "launch/status/job_status.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Counts and amounts above these are no measurements, and could not be subtracted or converted. */
#define COUNT_MAX  (INT64_C(1) << 53)
#define AMOUNT_MAX 1e18

enum { SEEN = 16 };

const char *const status_phases[STATUS_PHASES] = {"data", "forward", "backward", "communication",
                                                  "optimizer"};

void job_status_free(job_status *v)
{
    ls_free(v->ranks);
    *v = (job_status){.chosen = -1};
}

status_rank *status_add_rank(job_status *v)
{
    if (v->n_ranks == v->max_ranks) {
        const int max = v->max_ranks == 0 ? 16 : v->max_ranks * 2;
        status_rank *grown = ls_realloc(v->ranks, (size_t)max, sizeof(*grown));

        if (grown == NULL)
            return NULL;
        v->ranks = grown;
        v->max_ranks = max;
    }
    v->ranks[v->n_ranks] = (status_rank){.waits_s = -1};
    return &v->ranks[v->n_ranks++];
}

/* --- late ranks --- */

static int compare_ranks(const void *a, const void *b)
{
    const status_rank *x = a;
    const status_rank *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The rank's last operation in a group: 0 in the world if there was none, -1 in others. */
static int64_t sequence_in(const status_rank *r, int64_t group)
{
    for (int i = 0; i < r->n_groups; i++)
        if (r->groups[i].id == group)
            return r->groups[i].sequence;
    return group == 0 ? 0 : -1;
}

/* Others wait in operation `sequence` of the group. */
static void mark_behind(job_status *v, int64_t group, int64_t sequence)
{
    for (int i = 0; i < v->n_ranks; i++) {
        status_rank *r = &v->ranks[i];
        const int64_t own = sequence_in(r, group);

        if (r->has_operations && own >= 0 && own < sequence)
            r->is_late = true;
    }
}

/* Whether ranks behind this operation have been marked: in a job that hangs, most ranks wait in the
 * same operations. `seen` has the last SEEN of *n operations. */
static bool is_marked(status_group seen[SEEN], int *n, const status_group *g)
{
    for (int i = 0; i < *n && i < SEEN; i++)
        if (seen[i].id == g->id && seen[i].sequence >= g->sequence)
            return true;
    seen[(*n)++ % SEEN] = *g;
    return false;
}

/* The operation in which a rank waits for long; of several in a group the first, as its ranks pass
 * them in their order. */
void job_status_mark_late(job_status *v)
{
    status_group seen[SEEN];
    int n_seen = 0;

    if (v->n_ranks > 1)
        qsort(v->ranks, (size_t)v->n_ranks, sizeof(*v->ranks), compare_ranks);
    for (int i = 0; i < v->n_ranks; i++)
        v->ranks[i].is_late = false;
    for (int i = 0; i < v->n_ranks; i++)
        for (int k = 0; k < v->ranks[i].n_groups; k++) {
            const status_group *g = &v->ranks[i].groups[k];

            if (g->waits_s >= STATUS_LATE_S && !is_marked(seen, &n_seen, g))
                mark_behind(v, g->id, g->sequence);
        }
}

/* --- writing --- */

static void write_progress(const status_rank *r, json_writer *w)
{
    json_put_int(w, "step", r->step);
    json_put_int(w, "steps", r->steps);
    json_put_int(w, "epoch", r->epoch);
    json_put_int(w, "epochs", r->epochs);
    json_put_real(w, "step_s", r->step_s);
    json_put_real(w, "step_age_s", r->step_age_s);
    json_put_real(w, "loss", r->loss);
    json_put_real(w, "samples", r->samples);
    json_put_real(w, "device_bytes", r->device_bytes);
    json_put_int(w, "shards", r->shards);
    json_put_real(w, "shard_s", r->shard_s);
    json_put_int(w, "rows", r->rows);
    json_put_real(w, "row_s", r->row_s);
    json_open(w, "seconds", '{');
    for (int i = 0; i < STATUS_PHASES; i++)
        json_put_real(w, status_phases[i], r->seconds[i]);
    json_close(w, '}');
}

static void write_recorded(const status_rank *r, json_writer *w)
{
    json_put_real(w, "operations", r->operations);
    json_put_real(w, "operation_bytes", r->operation_bytes);
    json_put_real(w, "operation_s", r->operation_s);
    json_put_string(w, "operation", r->operation);
    json_put_real(w, "waits_s", r->waits_s);
    json_open(w, "groups", '[');
    for (int i = 0; i < r->n_groups; i++) {
        json_open(w, NULL, '{');
        json_put_int(w, "id", r->groups[i].id);
        json_put_int(w, "sequence", r->groups[i].sequence);
        json_put_real(w, "waits_s", r->groups[i].waits_s);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_put_real(w, "received_bytes", r->received_bytes);
    json_open(w, "sources", '[');
    for (int i = 0; i < r->n_sources; i++) {
        json_open(w, NULL, '{');
        json_put_int(w, "rank", r->sources[i].rank);
        json_put_real(w, "bytes", r->sources[i].bytes);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_put_string(w, "warning", r->warning);
}

static void write_rank(const status_rank *r, json_writer *w)
{
    json_open(w, NULL, '{');
    json_put_int(w, "rank", r->rank);
    json_put_string(w, "host", r->host);
    json_put_int(w, "pid", r->pid);
    json_put_string(w, "state", r->state);
    json_put_bool(w, "late", r->is_late);
    json_put_real(w, "memory_bytes", r->memory_bytes);
    json_put_real(w, "cpu_s", r->cpu_s);
    if (r->has_operations)
        write_recorded(r, w);
    if (r->has_progress)
        write_progress(r, w);
    json_close(w, '}');
}

void job_status_write_ranks(const job_status *v, int first, int n, json_writer *w)
{
    json_open(w, "ranks", '[');
    for (int i = first; i < v->n_ranks && i < first + n; i++)
        write_rank(&v->ranks[i], w);
    json_close(w, ']');
}

void job_status_write_operations(const job_status *v, json_writer *w)
{
    json_put_int(w, "chosen", v->chosen);
    json_open(w, "operations", '[');
    for (int i = 0; i < v->n_operations; i++) {
        const status_operation *o = &v->operations[i];

        json_open(w, NULL, '{');
        json_put_string(w, "text", o->text);
        json_put_real(w, "age_s", o->age_s);
        json_put_real(w, "took_s", o->took_s);
        json_put_bool(w, "failed", o->has_failed);
        json_put_real(w, "bytes", o->bytes);
        json_close(w, '}');
    }
    json_close(w, ']');
}

void job_status_write(const job_status *v, json_writer *w)
{
    json_open(w, NULL, '{');
    json_put_string(w, "name", v->name);
    json_put_string(w, "agent", v->agent);
    json_put_string(w, "host", v->host);
    json_put_string(w, "command", v->command);
    json_put_string(w, "version", v->version);
    json_put_string(w, "state", v->state);
    json_put_string(w, "warning", v->warning);
    json_put_int(w, "pid", v->pid);
    json_put_real(w, "age_s", v->age_s);
    json_put_int(w, "world_size", v->world_size);
    json_put_int(w, "nodes", v->n_nodes);
    json_put_int(w, "restarts", v->n_restarts);
    json_put_bool(w, "head", v->is_head);
    job_status_write_ranks(v, 0, v->n_ranks, w);
    if (v->chosen >= 0)
        job_status_write_operations(v, w);
    json_close(w, '}');
}

/* --- reading --- */

static void read_text(const json_value *object, const char *key, char *out, size_t n)
{
    text_printable(out, n, json_as_string(json_get(object, key), ""));
}

/* null, and other values than numbers from 0 to AMOUNT_MAX, are `otherwise`. */
static double read_amount(const json_value *object, const char *key, double otherwise)
{
    const double v = json_as_real(json_get(object, key), otherwise);

    return v >= 0 && v <= AMOUNT_MAX ? v : otherwise;
}

static int64_t read_count(const json_value *object, const char *key)
{
    const int64_t v = json_as_int(json_get(object, key), 0);

    return v < 0 ? 0 : v > COUNT_MAX ? COUNT_MAX : v;
}

static int read_int(const json_value *object, const char *key)
{
    const int64_t v = read_count(object, key);

    return v > INT32_MAX ? INT32_MAX : (int)v;
}

static void read_groups(const json_value *list, status_rank *out)
{
    for (size_t i = 0; i < json_size(list) && out->n_groups < STATUS_GROUPS; i++) {
        const json_value *g = json_at(list, i);

        out->groups[out->n_groups++] =
            (status_group){.id = json_as_int(json_get(g, "id"), -1),
                           .sequence = json_as_int(json_get(g, "sequence"), 0),
                           .waits_s = read_amount(g, "waits_s", -1)};
    }
}

static void read_sources(const json_value *list, status_rank *out)
{
    for (size_t i = 0; i < json_size(list) && out->n_sources < STATUS_SOURCES; i++) {
        const json_value *source = json_at(list, i);

        out->sources[out->n_sources++] = (status_source){.rank = read_int(source, "rank"),
                                                         .bytes = read_amount(source, "bytes", 0)};
    }
}

static void read_progress(const json_value *o, status_rank *out)
{
    const json_value *seconds = json_get(o, "seconds");

    out->has_progress = json_get(o, "step") != NULL;
    out->step = read_count(o, "step");
    out->steps = read_count(o, "steps");
    out->epoch = read_count(o, "epoch");
    out->epochs = read_count(o, "epochs");
    out->step_s = read_amount(o, "step_s", 0);
    out->step_age_s = read_amount(o, "step_age_s", 0);
    out->loss = json_as_real(json_get(o, "loss"), (double)NAN);
    out->samples = read_amount(o, "samples", 0);
    out->device_bytes = read_amount(o, "device_bytes", 0);
    out->shards = read_count(o, "shards");
    out->shard_s = read_amount(o, "shard_s", 0);
    out->rows = read_count(o, "rows");
    out->row_s = read_amount(o, "row_s", 0);
    for (int i = 0; i < STATUS_PHASES; i++)
        out->seconds[i] = read_amount(seconds, status_phases[i], 0);
}

static void read_rank(const json_value *o, status_rank *out)
{
    out->rank = read_int(o, "rank");
    read_text(o, "host", out->host, sizeof(out->host));
    out->pid = read_int(o, "pid");
    read_text(o, "state", out->state, sizeof(out->state));
    out->is_late = json_as_bool(json_get(o, "late"), false);
    out->memory_bytes = read_amount(o, "memory_bytes", 0);
    out->cpu_s = read_amount(o, "cpu_s", 0);
    out->has_operations = json_get(o, "operations") != NULL;
    out->operations = read_amount(o, "operations", 0);
    out->operation_bytes = read_amount(o, "operation_bytes", 0);
    out->operation_s = read_amount(o, "operation_s", 0);
    read_text(o, "operation", out->operation, sizeof(out->operation));
    out->waits_s = read_amount(o, "waits_s", -1);
    read_groups(json_get(o, "groups"), out);
    out->received_bytes = read_amount(o, "received_bytes", 0);
    read_sources(json_get(o, "sources"), out);
    read_text(o, "warning", out->warning, sizeof(out->warning));
    read_progress(o, out);
}

ls_status job_status_read_ranks(const json_value *array, job_status *out)
{
    if (json_kind_of(array) != JSON_IS_ARRAY ||
        json_size(array) + (size_t)out->n_ranks > STATUS_RANKS_MAX)
        return ls_fail(LS_EFORMAT, "the status of a job has no list of ranks, or too many");
    for (size_t i = 0; i < json_size(array); i++) {
        status_rank *r = status_add_rank(out);

        if (r == NULL)
            return ls_fail(LS_ENOMEM, "no memory for the status of a job");
        read_rank(json_at(array, i), r);
    }
    return LS_OK;
}

void job_status_read_operations(const json_value *object, job_status *out)
{
    const json_value *list = json_get(object, "operations");

    if (json_kind_of(list) != JSON_IS_ARRAY)
        return;
    out->chosen = read_int(object, "chosen");
    out->n_operations = 0;
    for (size_t i = 0; i < json_size(list) && out->n_operations < STATUS_OPERATIONS; i++) {
        const json_value *o = json_at(list, i);
        status_operation *op = &out->operations[out->n_operations++];

        read_text(o, "text", op->text, sizeof(op->text));
        op->age_s = read_amount(o, "age_s", 0);
        op->took_s = read_amount(o, "took_s", -1);
        op->has_failed = json_as_bool(json_get(o, "failed"), false);
        op->bytes = read_amount(o, "bytes", 0);
    }
}

static ls_status read_job(const json_value *o, job_status *out)
{
    read_text(o, "name", out->name, sizeof(out->name));
    read_text(o, "agent", out->agent, sizeof(out->agent));
    read_text(o, "host", out->host, sizeof(out->host));
    read_text(o, "command", out->command, sizeof(out->command));
    read_text(o, "version", out->version, sizeof(out->version));
    read_text(o, "state", out->state, sizeof(out->state));
    read_text(o, "warning", out->warning, sizeof(out->warning));
    out->pid = read_int(o, "pid");
    out->age_s = read_amount(o, "age_s", 0);
    out->world_size = read_int(o, "world_size");
    out->n_nodes = read_int(o, "nodes");
    out->n_restarts = read_int(o, "restarts");
    out->is_head = json_as_bool(json_get(o, "head"), false);
    job_status_read_operations(o, out);
    return job_status_read_ranks(json_get(o, "ranks"), out);
}

ls_status job_status_read(const char *text, size_t bytes, job_status *out)
{
    json_value *o;
    ls_status st;

    *out = (job_status){.chosen = -1};
    LS_TRY(json_parse(text, bytes, "the status of a job", &o));
    st = read_job(o, out);
    json_free(o);
    if (st != LS_OK)
        job_status_free(out);
    return st;
}
