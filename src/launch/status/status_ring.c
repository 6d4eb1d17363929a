/* SPDX-License-Identifier: Apache-2.0 */
/* status_ring.c - reads flight recorders (comm/record/recorder.h) for the agent. */
#include "launch/status/status_ring.h"

#include "base/clock.h"
#include "comm/record/recorder.h"

#include <string.h>

enum { RING_SHOWN = 3, RING_LOOKED_AT = 256 };

void status_ring_describe(int fd, text_buf *out)
{
    recorder_entry entries[RING_SHOWN];
    int n;

    if (recorder_read(fd, entries, RING_SHOWN, &n) != LS_OK || n == 0)
        return;
    text_append(out, "  its last operations:\n");
    for (int i = 0; i < n; i++) {
        char stamp[256];
        const char *end = entries[i].status == LS_OK ? "done" : "failed";
        text_append(out, "  | %s, %s\n", stamp_text(stamp, sizeof(stamp), &entries[i].stamp),
                    entries[i].end_ns != 0 ? end : "not finished");
    }
}

/* --- the status of a rank --- */

static double seconds_since(int64_t ns, int64_t now_ns)
{
    return now_ns > ns ? (double)(now_ns - ns) * 1e-9 : 0;
}

static double waits_s(const recorder_entry *e, int64_t now_ns)
{
    return e->end_ns != 0 ? -1 : seconds_since(e->start_ns, now_ns);
}

static status_group *find_group(status_rank *out, int64_t id)
{
    for (int i = 0; i < out->n_groups; i++)
        if (out->groups[i].id == id)
            return &out->groups[i];
    if (out->n_groups == STATUS_GROUPS)
        return NULL;
    out->groups[out->n_groups] = (status_group){.id = id, .waits_s = -1};
    return &out->groups[out->n_groups++];
}

/* The newest operation of each group comes first; of those that have not ended, the oldest one
 * shows for how long the rank waits. Messages have numbers of their own. */
static void add_group(status_rank *out, const recorder_entry *e, int64_t now_ns)
{
    status_group *g;

    if (e->stamp.kind == COLL_SEND || e->stamp.kind == COLL_RECV)
        return;
    g = find_group(out, e->stamp.group);
    if (g == NULL)
        return;
    if (g->sequence == 0)
        g->sequence = (int64_t)e->stamp.sequence;
    if (e->end_ns == 0) {
        g->sequence = (int64_t)e->stamp.sequence;
        g->waits_s = waits_s(e, now_ns);
    }
}

static void add_progress(const recorder_progress *p, int64_t now_ns, status_rank *out)
{
    out->has_progress = true;
    out->step = p->step;
    out->steps = p->steps;
    out->epoch = p->epoch;
    out->epochs = p->epochs;
    out->step_s = p->step_s;
    out->step_age_s = seconds_since(p->step_ns, now_ns);
    out->loss = p->loss;
    out->samples = p->samples;
    out->device_bytes = p->device_bytes;
    out->shards = p->shards;
    out->shard_s = p->shard_s;
    out->rows = p->rows;
    out->row_s = p->row_s;
    for (int i = 0; i < STATUS_PHASES; i++)
        out->seconds[i] = p->seconds[i];
}

static void add_operation(const recorder_entry *e, int64_t now_ns, job_status *job)
{
    status_operation *o = &job->operations[job->n_operations++];

    (void)stamp_text(o->text, sizeof(o->text), &e->stamp);
    text_printable(o->text, sizeof(o->text), o->text);
    o->age_s = seconds_since(e->start_ns, now_ns);
    o->took_s = e->end_ns != 0 ? seconds_since(e->start_ns, e->end_ns) : -1;
    o->has_failed = e->end_ns != 0 && e->status != LS_OK;
    o->bytes = (double)e->bytes;
}

static void add_sources(int fd, status_rank *out)
{
    recorder_source sources[STATUS_SOURCES];
    uint64_t total;

    if (recorder_read_received(fd, sources, STATUS_SOURCES, &out->n_sources, &total) != LS_OK)
        return;
    out->received_bytes = (double)total;
    for (int i = 0; i < out->n_sources; i++)
        out->sources[i] =
            (status_source){.rank = sources[i].rank, .bytes = (double)sources[i].bytes};
}

void status_ring_add(int fd, status_rank *out, job_status *job)
{
    static recorder_entry entries[RING_LOOKED_AT]; /* the agent has one thread */
    const int64_t now_ns = ls_now_ns();
    recorder_summary summary;
    int n;

    if (recorder_read_summary(fd, &summary) != LS_OK ||
        recorder_read(fd, entries, RING_LOOKED_AT, &n) != LS_OK)
        return; /* the rank has not joined a job */
    out->has_operations = true;
    out->operations = (double)summary.n_operations;
    out->operation_bytes = (double)summary.op_bytes;
    out->operation_s = (double)summary.op_ns * 1e-9;
    text_format(out->warning, sizeof(out->warning), "%s", summary.warning);
    add_sources(fd, out);
    if (summary.has_progress)
        add_progress(&summary.progress, now_ns, out);
    for (int i = n - 1; i >= 0; i--)
        add_group(out, &entries[i], now_ns);
    if (n > 0) {
        (void)stamp_text(out->operation, sizeof(out->operation), &entries[n - 1].stamp);
        text_printable(out->operation, sizeof(out->operation), out->operation);
        out->waits_s = waits_s(&entries[n - 1], now_ns);
    }
    for (int i = n > STATUS_OPERATIONS ? n - STATUS_OPERATIONS : 0; job != NULL && i < n; i++)
        add_operation(&entries[i], now_ns, job);
}
