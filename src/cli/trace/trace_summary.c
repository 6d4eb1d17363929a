/* SPDX-License-Identifier: Apache-2.0 */
/* trace_summary.c - reads the events of traces and adds them up for trace_summary_text.c. */
#include "cli/trace/trace_summary.h"

#include "base/alloc.h"
#include "base/file.h"

#include <string.h>

enum { RANK_LAST = 1 << 20 };

/* One file that is added. */
typedef struct reader {
    trace_summary *s;
    const char *what;
    double ceiling_gflops; /* of its ranks; 0: unknown */
    double ceiling_gb;
} reader;

// --- values ---

/* A number from 0 to 1e18. */
static double amount(const json_value *object, const char *key)
{
    const double v = json_as_real(json_get(object, key), 0);

    return v > 0 && v < 1e18 ? v : 0;
}

static int64_t whole(const json_value *object, const char *key)
{
    const int64_t v = json_as_int(json_get(object, key), 0);

    return v > 0 && v < INT64_C(1000000000000000) ? v : 0;
}

static void read_text(char *out, size_t n, const json_value *object, const char *key)
{
    text_printable(out, n, json_as_string(json_get(object, key), ""));
}

// --- ranks ---

/* The rank with this number, or the place where it belongs. */
static int find_rank(const trace_summary *s, int rank)
{
    int low = 0;
    int high = s->n_ranks;

    while (low < high) {
        const int middle = low + (high - low) / 2;

        if (s->ranks[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ls_status insert_rank(reader *r, int at, int rank)
{
    trace_summary *s = r->s;
    summary_rank *added;

    LS_TRY(LS_RESIZE(&s->ranks, (size_t)s->n_ranks + 1, "for %d ranks of a trace", s->n_ranks + 1));
    added = &s->ranks[at];
    memmove(added + 1, added, (size_t)(s->n_ranks - at) * sizeof(*added));
    *added = (summary_rank){.rank = rank,
                            .file = s->n_files,
                            .ceiling_gflops = r->ceiling_gflops,
                            .ceiling_gb = r->ceiling_gb};
    s->n_ranks++;
    return LS_OK;
}

/* The rank of an event; *out is NULL beyond the limit. */
static ls_status take_rank(reader *r, const json_value *event, summary_rank **out)
{
    const int64_t pid = json_as_int(json_get(event, "pid"), -1);
    int at;

    *out = NULL;
    if (pid < 0 || pid > RANK_LAST)
        return LS_OK;
    at = find_rank(r->s, (int)pid);
    if (at == r->s->n_ranks || r->s->ranks[at].rank != pid) {
        if (r->s->n_ranks == SUMMARY_RANKS)
            return LS_OK;
        LS_TRY(insert_rank(r, at, (int)pid));
    }
    if (r->s->ranks[at].file != r->s->n_files)
        return ls_fail(LS_EINVAL, "%s: rank %d is in another of the traces, too", r->what,
                       (int)pid);
    *out = &r->s->ranks[at];
    return LS_OK;
}

// --- events ---

static ls_status reserve_operator(trace_summary *s)
{
    const int wanted = s->operators_capacity == 0 ? 64 : 2 * s->operators_capacity;

    if (s->n_operators < s->operators_capacity)
        return LS_OK;
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    LS_TRY(LS_RESIZE(&s->operators, (size_t)wanted, "for %d operators of a trace", wanted));
    s->operators_capacity = wanted;
    return LS_OK;
}

/* The sums of operators like this one; *out is NULL beyond the limit. */
static ls_status find_operator(trace_summary *s, const summary_operator *like,
                               summary_operator **out)
{
    char key[sizeof(like->name) + sizeof(like->phase) + sizeof(like->shapes)];
    size_t bytes;
    ls_status st;

    text_format(key, sizeof(key), "%s\n%s\n%s", like->name, like->phase, like->shapes);
    bytes = strlen(key);
    *out = byte_map_get(&s->by_key, key, bytes);
    if (*out != NULL || s->n_operators == SUMMARY_OPERATORS)
        return LS_OK;
    LS_TRY(reserve_operator(s));
    LS_TRY(LS_NEW(out, 1, "for an operator of a trace"));
    st = byte_map_set(&s->by_key, key, bytes, *out, NULL);
    if (st != LS_OK) {
        ls_free(*out);
        return st;
    }
    **out = *like;
    s->operators[s->n_operators++] = *out;
    return LS_OK;
}

static void add_limits(summary_operator *o, const summary_rank *rank, double flops, double bytes)
{
    const double compute_us = rank->ceiling_gflops > 0 ? flops / rank->ceiling_gflops * 1e-3 : 0;
    const double memory_us = rank->ceiling_gb > 0 ? bytes / rank->ceiling_gb * 1e-3 : 0;

    o->compute_us += compute_us;
    o->memory_us += memory_us;
    o->limit_us += compute_us > memory_us ? compute_us : memory_us;
}

static ls_status add_operator(trace_summary *s, const json_value *event, const summary_rank *rank)
{
    const json_value *args = json_get(event, "args");
    const int64_t calls = whole(args, "calls");
    const double flops = amount(args, "flops");
    const double bytes = amount(args, "bytes");
    summary_operator like = {.calls = 0};
    summary_operator *o;

    read_text(like.name, sizeof(like.name), event, "name");
    read_text(like.phase, sizeof(like.phase), args, "phase");
    read_text(like.shapes, sizeof(like.shapes), args, "shapes");
    read_text(like.layer, sizeof(like.layer), args, "layer");
    LS_TRY(find_operator(s, &like, &o));
    if (o == NULL) {
        s->n_skipped++;
        return LS_OK;
    }
    o->has_layers = o->has_layers || !text_equal(o->layer, like.layer);
    o->calls += calls > 1 ? calls : 1;
    o->us += amount(event, "dur");
    o->flops += flops;
    o->bytes += bytes;
    add_limits(o, rank, flops, bytes);
    return LS_OK;
}

static summary_kind *find_kind(trace_summary *s, const char *name)
{
    for (int i = 0; i < s->n_kinds; i++)
        if (text_equal(s->kinds[i].name, name))
            return &s->kinds[i];
    if (s->n_kinds == SUMMARY_KINDS)
        return NULL;
    text_format(s->kinds[s->n_kinds].name, sizeof(s->kinds[0].name), "%s", name);
    return &s->kinds[s->n_kinds++];
}

static void add_awaited(trace_summary *s, int64_t rank)
{
    const int at = rank < 0 || rank > RANK_LAST ? s->n_ranks : find_rank(s, (int)rank);

    if (at < s->n_ranks && s->ranks[at].rank == rank)
        s->ranks[at].n_awaited++;
}

static void add_operation(trace_summary *s, const json_value *event, summary_rank *rank)
{
    const json_value *args = json_get(event, "args");
    char name[sizeof(s->kinds[0].name)];
    summary_kind *k;

    read_text(name, sizeof(name), event, "name");
    k = find_kind(s, name);
    if (k == NULL) {
        s->n_skipped++;
        return;
    }
    k->calls++;
    k->us += amount(event, "dur");
    k->bytes += amount(args, "bytes");
    if (json_get(args, "late_us") == NULL)
        return;
    k->late_us += amount(args, "late_us");
    rank->late_us += amount(args, "late_us");
    rank->n_late++;
    add_awaited(s, json_as_int(json_get(args, "waited_for_rank"), -1));
}

static void add_phase(const json_value *event, summary_rank *rank)
{
    static const struct {
        const char *name;
        summary_phase phase;
    } phases[] = {{"data", SUMMARY_DATA},          {"forward", SUMMARY_FORWARD},
                  {"backward", SUMMARY_BACKWARD},  {"optimizer", SUMMARY_OPTIMIZER},
                  {"communication", SUMMARY_WAIT}, {"wait for gradients", SUMMARY_WAIT}};
    const char *name = json_as_string(json_get(event, "name"), "");

    for (size_t i = 0; i < LS_COUNT_OF(phases); i++)
        if (text_equal(name, phases[i].name))
            rank->phase_us[phases[i].phase] += amount(event, "dur");
    if (text_equal(name, "optimizer")) // once in each step
        rank->steps++;
}

static ls_status add_event(reader *r, const json_value *event)
{
    const char *category = json_as_string(json_get(event, "cat"), "");
    const char *name = json_as_string(json_get(event, "name"), "");
    summary_rank *rank;

    LS_TRY(take_rank(r, event, &rank));
    if (rank == NULL) {
        r->s->n_skipped++;
        return LS_OK;
    }
    if (text_equal(category, "operator"))
        return add_operator(r->s, event, rank);
    if (text_equal(category, "operation"))
        add_operation(r->s, event, rank);
    else if (text_equal(category, "phase"))
        add_phase(event, rank);
    else if (text_equal(name, "process_name"))
        read_text(rank->name, sizeof(rank->name), json_get(event, "args"), "name");
    return LS_OK;
}

// --- files ---

static void read_facts(reader *r, const json_value *facts)
{
    trace_summary *s = r->s;
    const int64_t first = whole(facts, "first_step");
    const int64_t last = whole(facts, "last_step");

    r->ceiling_gflops = amount(facts, "ceiling_gflops_per_s");
    r->ceiling_gb = amount(facts, "ceiling_gb_per_s");
    if (s->device[0] == '\0')
        read_text(s->device, sizeof(s->device), facts, "device");
    if (first > 0 && (s->first_step == 0 || first < s->first_step))
        s->first_step = first;
    s->last_step = last > s->last_step ? last : s->last_step;
    s->n_missing += whole(facts, "operators_missing");
}

static ls_status add_events(reader *r, const json_value *root)
{
    const json_value *events = json_get(root, "traceEvents");

    if (json_kind_of(events) != JSON_IS_ARRAY)
        return ls_fail(LS_EFORMAT, "%s: no trace: it has no list \"traceEvents\"", r->what);
    read_facts(r, json_get(root, "otherData"));
    for (size_t i = 0; i < json_size(events); i++) { // an event may name a later rank
        summary_rank *rank;

        LS_TRY(take_rank(r, json_at(events, i), &rank));
    }
    for (size_t i = 0; i < json_size(events); i++)
        LS_TRY(add_event(r, json_at(events, i)));
    return LS_OK;
}

ls_status trace_summary_add(trace_summary *s, const char *text, size_t bytes, const char *what)
{
    reader r = {.s = s, .what = what};
    json_value *root;
    ls_status st;

    LS_TRY(json_parse(text, bytes, what, &root));
    s->n_files++;
    st = add_events(&r, root);
    json_free(root);
    return st;
}

ls_status trace_summary_add_file(trace_summary *s, const char *path)
{
    char *text;
    size_t bytes;
    ls_status st;

    LS_TRY(file_read_input(path, SUMMARY_FILE_BYTES, &text, &bytes));
    st = trace_summary_add(s, text, bytes, path);
    ls_free(text);
    return st;
}

void trace_summary_free(trace_summary *s)
{
    for (int i = 0; i < s->n_operators; i++)
        ls_free(s->operators[i]);
    ls_free(s->operators);
    ls_free(s->ranks);
    byte_map_free(&s->by_key);
    *s = (trace_summary){0};
}
