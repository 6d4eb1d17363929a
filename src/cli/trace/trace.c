/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - writes the timeline of `lockstep run --trace`: it merges the flight recorders of all
 * ranks on one clock and computes how late each rank came to an operation.
 */
#include "cli/trace/trace.h"

#include "base/alloc.h"
#include "base/report/trace_events.h"

#include <stdlib.h>

#define PHASES_LANE        0
#define OPERATIONS_LANE    1
#define COMPUTE_LANE       (OPERATIONS_LANE + TRACE_LINES_MAX)
#define COMMUNICATION_LANE (COMPUTE_LANE + 1)

// --- reading ---

/* Frees the unused part of a block: most jobs are short. */
static void *shrink(void *block, int n, size_t size)
{
    void *smaller = ls_realloc(block, n > 0 ? (size_t)n : 1, size);

    return smaller != NULL ? smaller : block;
}

static ls_status read_rank(trace_rank *r, int fd)
{
    LS_TRY(LS_NEW(&r->entries, RECORDER_ENTRIES, "for the timeline of rank %d", r->rank));
    LS_TRY(LS_NEW(&r->phases, RECORDER_ENTRIES, "for the timeline of rank %d", r->rank));
    LS_TRY(LS_NEW(&r->device_phases, RECORDER_ENTRIES, "for the timeline of rank %d", r->rank));
    LS_TRY(recorder_read(fd, r->entries, RECORDER_ENTRIES, &r->n_entries));
    LS_TRY(recorder_read_phases(fd, r->phases, RECORDER_ENTRIES, &r->n_phases));
    LS_TRY(recorder_read_device_phases(fd, r->device_phases, RECORDER_ENTRIES, &r->n_device_phases,
                                       &r->n_dropped));
    r->entries = shrink(r->entries, r->n_entries, sizeof(*r->entries));
    r->phases = shrink(r->phases, r->n_phases, sizeof(*r->phases));
    r->device_phases = shrink(r->device_phases, r->n_device_phases, sizeof(*r->device_phases));
    return LS_OK;
}

static void free_rank(trace_rank *r)
{
    ls_free(r->entries);
    ls_free(r->phases);
    ls_free(r->device_phases);
}

void trace_keep(void *arg, uint32_t generation, int rank, const char *host, int64_t behind_ns,
                int fd)
{
    trace *t = arg;
    trace_rank r = {.rank = rank, .behind_ns = behind_ns};
    trace_rank *ranks;

    if (generation != t->generation)
        trace_free(t);
    t->generation = generation;
    text_printable(r.host, sizeof(r.host), host);
    ranks = ls_realloc(t->ranks, (size_t)t->n + 1, sizeof(*ranks));
    if (ranks != NULL)
        t->ranks = ranks;
    if (ranks == NULL || read_rank(&r, fd) != LS_OK) {
        free_rank(&r);
        return;
    }
    ranks[t->n++] = r;
}

void trace_free(trace *t)
{
    for (int i = 0; i < t->n; i++)
        free_rank(&t->ranks[i]);
    ls_free(t->ranks);
    *t = (trace){0};
}

// --- arrivals ---

/* The start of an operation on one rank, on the common clock. */
typedef struct arrival {
    uint64_t sequence;
    int64_t start_ns;
    uint32_t group;
} arrival;

typedef struct writer {
    const trace *trace;
    json_writer json;
    arrival *arrivals; /* of all ranks, by operation and then by time */
    size_t n_arrivals;
    int64_t first_ns;
    int64_t last_ns;
} writer;

/* Messages are numbered by pair, so only collectives can be compared. */
static bool is_collective(const recorder_entry *e)
{
    return e->stamp.kind != COLL_SEND && e->stamp.kind != COLL_RECV;
}

static int compare_operation(const arrival *a, const arrival *b)
{
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

static int by_operation_and_time(const void *a, const void *b)
{
    const arrival *x = a;
    const arrival *y = b;
    const int order = compare_operation(x, y);

    return order != 0 ? order : (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

static void note_time(writer *w, int64_t start_ns, int64_t end_ns)
{
    if (start_ns < w->first_ns)
        w->first_ns = start_ns;
    if (end_ns > w->last_ns)
        w->last_ns = end_ns;
}

static void note_phases(writer *w, const trace_rank *r, const recorder_span *phases, int n)
{
    for (int i = 0; i < n; i++)
        note_time(w, phases[i].start_ns + r->behind_ns, phases[i].end_ns + r->behind_ns);
}

static ls_status collect(writer *w)
{
    size_t n = 0;

    for (int i = 0; i < w->trace->n; i++)
        n += (size_t)w->trace->ranks[i].n_entries;
    LS_TRY(LS_NEW(&w->arrivals, n + 1, "to compare %zu operations", n));
    for (int i = 0; i < w->trace->n; i++) {
        const trace_rank *r = &w->trace->ranks[i];

        note_phases(w, r, r->phases, r->n_phases);
        note_phases(w, r, r->device_phases, r->n_device_phases);
        for (int k = 0; k < r->n_entries; k++) {
            const recorder_entry *e = &r->entries[k];
            const int64_t start_ns = e->start_ns + r->behind_ns;

            note_time(w, start_ns, e->end_ns != 0 ? e->end_ns + r->behind_ns : start_ns);
            if (e->device_end_ns != 0)
                note_time(w, e->device_start_ns + r->behind_ns, e->device_end_ns + r->behind_ns);
            if (is_collective(e))
                w->arrivals[w->n_arrivals++] = (arrival){
                    .sequence = e->stamp.sequence, .start_ns = start_ns, .group = e->stamp.group};
        }
    }
    qsort(w->arrivals, w->n_arrivals, sizeof(*w->arrivals), by_operation_and_time);
    return LS_OK;
}

/* The earliest start of the operation on any rank. */
static int64_t first_arrival(const writer *w, const recorder_entry *e, int64_t otherwise)
{
    const arrival key = {.sequence = e->stamp.sequence, .group = e->stamp.group};
    size_t low = 0;
    size_t high = w->n_arrivals;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (compare_operation(&w->arrivals[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->n_arrivals && compare_operation(&w->arrivals[low], &key) == 0
               ? w->arrivals[low].start_ns
               : otherwise;
}

// --- writing ---

/* Leaves the event open for its args. */
static void open_event(writer *w, const char *name, const char *category, int rank, int lane,
                       int64_t start_ns, int64_t end_ns)
{
    trace_open_event(&w->json, name, category, rank, lane, (double)(start_ns - w->first_ns) * 1e-3,
                     (double)(end_ns - start_ns) * 1e-3);
}

static void put_operation(writer *w, const trace_rank *r, const recorder_entry *e, int lane)
{
    const int64_t start_ns = e->start_ns + r->behind_ns;
    const int64_t end_ns = e->end_ns != 0 ? e->end_ns + r->behind_ns : w->last_ns;
    json_writer *j = &w->json;
    char stamp[256];

    open_event(w, coll_name((coll_kind)e->stamp.kind), "operation", r->rank, lane, start_ns,
               end_ns);
    json_open(j, "args", '{');
    json_put_string(j, "operation", stamp_text(stamp, sizeof(stamp), &e->stamp));
    json_put_int(j, "sequence", (int64_t)e->stamp.sequence);
    json_put_int(j, "group", e->stamp.group);
    json_put_int(j, "bytes", (int64_t)e->bytes);
    json_put_string(j, "site", e->stamp.site);
    if (is_collective(e))
        json_put_real(j, "late_us", (double)(start_ns - first_arrival(w, e, start_ns)) * 1e-3);
    if (e->peer >= 0)
        json_put_int(j, is_collective(e) ? "waited_for_rank" : "peer_rank", e->peer);
    if (e->end_ns == 0)
        json_put_string(j, "end", "not finished");
    else if (e->status != LS_OK)
        json_put_string(j, "end", ls_status_text(e->status));
    json_close(j, '}');
    json_close(j, '}');
}

/* The same operation, as the device executed it. */
static void put_device_time(writer *w, const trace_rank *r, const recorder_entry *e, int lane)
{
    json_writer *j = &w->json;

    open_event(w, coll_name((coll_kind)e->stamp.kind), "device", r->rank, lane,
               e->device_start_ns + r->behind_ns, e->device_end_ns + r->behind_ns);
    json_open(j, "args", '{');
    json_put_int(j, "sequence", (int64_t)e->stamp.sequence);
    json_put_int(j, "group", e->stamp.group);
    json_put_int(j, "bytes", (int64_t)e->bytes);
    json_put_string(j, "site", e->stamp.site);
    json_close(j, '}');
    json_close(j, '}');
}

static void put_phases(writer *w, const trace_rank *r, int lane, const recorder_span *phases, int n)
{
    for (int i = 0; i < n; i++) {
        const recorder_span *p = &phases[i];

        open_event(w, p->name, lane == PHASES_LANE ? "phase" : "device", r->rank, lane,
                   p->start_ns + r->behind_ns, p->end_ns + r->behind_ns);
        json_close(&w->json, '}');
    }
}

static void put_operations(writer *w, const trace_rank *r)
{
    trace_lines host = {.n = 0};
    trace_lines device = {.n = 0};

    for (int i = 0; i < r->n_entries; i++) {
        const recorder_entry *e = &r->entries[i];
        const int64_t end_ns = e->end_ns != 0 ? e->end_ns : INT64_MAX;

        put_operation(w, r, e, OPERATIONS_LANE + trace_take_line(&host, e->start_ns, end_ns));
        if (e->device_end_ns != 0)
            put_device_time(w, r, e,
                            COMMUNICATION_LANE +
                                trace_take_line(&device, e->device_start_ns, e->device_end_ns));
    }
    for (int i = 0; i < host.n; i++)
        trace_put_label(&w->json, "thread_name", r->rank, OPERATIONS_LANE + i, "name",
                        "operations");
    for (int i = 0; i < device.n; i++)
        trace_put_label(&w->json, "thread_name", r->rank, COMMUNICATION_LANE + i, "name",
                        "device: communication");
}

static void put_rank(writer *w, const trace_rank *r)
{
    char text[96];

    text_format(text, sizeof(text), "rank %d (%s)", r->rank, r->host);
    trace_put_label(&w->json, "process_name", r->rank, PHASES_LANE, "name", text);
    trace_put_label(&w->json, "thread_name", r->rank, PHASES_LANE, "name", "program");
    put_phases(w, r, PHASES_LANE, r->phases, r->n_phases);
    put_operations(w, r);
    if (r->n_device_phases > 0)
        trace_put_label(&w->json, "thread_name", r->rank, COMPUTE_LANE, "name", "device: compute");
    put_phases(w, r, COMPUTE_LANE, r->device_phases, r->n_device_phases);
    if (r->n_dropped == 0)
        return;
    text_format(text, sizeof(text), "%llu phases of the device are missing",
                (unsigned long long)r->n_dropped);
    trace_put_label(&w->json, "process_labels", r->rank, PHASES_LANE, "labels", text);
}

ls_status trace_text(const trace *t, text_buf *out)
{
    writer w = {.trace = t, .first_ns = INT64_MAX, .last_ns = INT64_MIN};
    const ls_status st = collect(&w);

    if (st == LS_OK) {
        trace_begin(&w.json, out);
        for (int i = 0; i < t->n; i++)
            put_rank(&w, &t->ranks[i]);
        json_close(&w.json, ']');
        json_close(&w.json, '}');
        text_append(out, "\n");
    }
    ls_free(w.arrivals);
    return st == LS_OK ? text_status(out) : st;
}
