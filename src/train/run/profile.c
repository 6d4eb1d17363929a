/* SPDX-License-Identifier: Apache-2.0 */
/* profile.c - records steps for --profile and writes them as a trace. loop.c and run.c call it. */
#include "train/run/run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/report/trace_events.h"
#include "comm/comm.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define STEP_MOST INT64_C(1000000000000000)

enum { SPANS_MAX = 100000, PROFILE_PATH_BYTES = 4096, NAME_BYTES = 64 };

/* Lines of a rank. */
enum { LINE_STEPS, LINE_PHASES, LINE_OPERATORS, LINE_OPERATIONS };

// --- the flags ---

static const char *file_of_rank(char *out, const ls_train_flags *f, int rank)
{
    return text_format(out, PROFILE_PATH_BYTES, "%s.rank%d.json",
                       f->profile_file != NULL ? f->profile_file : "profile", rank);
}

static ls_status read_steps(run_profile *p, const char *text)
{
    const char *colon = strchr(text, ':');
    char first[NAME_BYTES];

    if (colon == NULL || (size_t)(colon - text) >= sizeof(first))
        return ls_fail(LS_EINVAL, "--profile %.40s: give the first and the last step, as 10:12",
                       text);
    text_format(first, sizeof(first), "%.*s", (int)(colon - text), text);
    LS_TRY(text_parse_int(first, "--profile", 1, STEP_MOST, &p->first));
    LS_TRY(text_parse_int(colon + 1, "--profile", 1, STEP_MOST, &p->last));
    if (p->last >= p->first)
        return LS_OK;
    return ls_fail(LS_EINVAL, "--profile %s: the last step comes before the first one", text);
}

ls_status profile_open(run_profile *p, const ls_train_flags *flags)
{
    char path[PROFILE_PATH_BYTES];

    if (flags->profile == NULL)
        return flags->profile_file == NULL
                   ? LS_OK
                   : ls_fail(LS_EINVAL, "--profile-file needs --profile N:M");
    LS_TRY(read_steps(p, flags->profile));
    if (flags->profile_file != NULL &&
        strlen(flags->profile_file) > PROFILE_PATH_BYTES - NAME_BYTES)
        return ls_fail(LS_EINVAL, "--profile-file: more than %d bytes",
                       PROFILE_PATH_BYTES - NAME_BYTES);
    return ls_context(file_atomic_probe(file_of_rank(path, flags, log_rank())), "--profile");
}

// --- recording ---

/* Without memory the trace lacks the span. */
static void add_span(run_profile *p, const profile_span *span)
{
    if (p->n_spans == p->spans_capacity && p->n_spans < SPANS_MAX) {
        const int wanted = p->spans_capacity == 0 ? 256 : 2 * p->spans_capacity;
        profile_span *grown = ls_realloc(p->spans, (size_t)wanted, sizeof(*grown));

        if (grown != NULL) {
            p->spans = grown;
            p->spans_capacity = wanted;
        }
    }
    if (p->n_spans < p->spans_capacity)
        p->spans[p->n_spans++] = *span;
}

void profile_add_phase(run_profile *p, const char *name, int64_t start_ns, int64_t end_ns)
{
    if (p->is_on && end_ns > start_ns)
        add_span(p, &(profile_span){.name = name,
                                    .step = p->operators.step,
                                    .start_ns = start_ns,
                                    .end_ns = end_ns});
}

/* The measurement is not a part of the step. */
static ls_status begin(ls_run *run)
{
    run_profile *p = &run->profile;

    LS_TRY(ls_context(op_ceilings_measure(run->device, ls_tape_compute(run->tape), &p->ceilings),
                      "--profile"));
    p->is_on = true;
    p->start_ns = p->step_ns = ls_now_ns();
    run->device->profile = &p->operators;
    if (run->is_in_epoch)
        run->report.mark_ns = run->step_ns = p->start_ns;
    return LS_OK;
}

// --- writing ---

typedef struct profile_writer {
    json_writer json;
    const run_profile *profile;
    int rank;
} profile_writer;

static void open_event(profile_writer *w, const char *name, const char *category, int line,
                       int64_t start_ns, int64_t end_ns)
{
    trace_open_event(&w->json, name, category, w->rank, line,
                     (double)(start_ns - w->profile->start_ns) * 1e-3,
                     (double)(end_ns - start_ns) * 1e-3);
    json_open(&w->json, "args", '{');
}

static void close_event(profile_writer *w)
{
    json_close(&w->json, '}');
    json_close(&w->json, '}');
}

static void put_line(profile_writer *w, int line, const char *name)
{
    trace_put_label(&w->json, "thread_name", w->rank, line, "name", name);
}

static void put_spans(profile_writer *w)
{
    const run_profile *p = w->profile;

    for (int i = 0; i < p->n_spans; i++) {
        const profile_span *s = &p->spans[i];
        char name[NAME_BYTES];

        text_format(name, sizeof(name), "step %" PRId64, s->step);
        open_event(w, s->name != NULL ? s->name : name, s->name != NULL ? "phase" : "step",
                   s->name != NULL ? LINE_PHASES : LINE_STEPS, s->start_ns, s->end_ns);
        json_put_int(&w->json, "step", s->step);
        close_event(w);
    }
}

static void put_operator(profile_writer *w, const op_record *r)
{
    const double ns = (double)(r->end_ns - r->start_ns);
    json_writer *j = &w->json;

    open_event(w, device_op_name(r->op), "operator", LINE_OPERATORS, r->start_ns, r->end_ns);
    json_put_int(j, "step", r->step);
    json_put_string(j, "phase", r->phase != NULL ? r->phase : phase_name(PHASE_FORWARD));
    if (r->layer[0] != '\0')
        json_put_string(j, "layer", r->layer);
    if (r->shapes[0] != '\0')
        json_put_string(j, "shapes", r->shapes);
    if (r->n_calls > 1)
        json_put_int(j, "calls", r->n_calls);
    json_put_real(j, "flops", r->cost.flops);
    json_put_real(j, "bytes", r->cost.bytes);
    if (ns > 0) {
        json_put_real(j, "gflops_per_s", r->cost.flops / ns);
        json_put_real(j, "gb_per_s", r->cost.bytes / ns);
    }
    close_event(w);
}

static void put_operation(profile_writer *w, const recorder_entry *e, int line)
{
    json_writer *j = &w->json;

    open_event(w, coll_name((coll_kind)e->stamp.kind), "operation", line, e->start_ns, e->end_ns);
    json_put_int(j, "sequence", (int64_t)e->stamp.sequence);
    json_put_int(j, "group", e->stamp.group);
    json_put_int(j, "bytes", (int64_t)e->bytes);
    json_put_string(j, "site", e->stamp.site);
    close_event(w);
}

/* The operations of the flight recorder that began during the profile and have ended. */
static ls_status put_operations(profile_writer *w, ls_comm *comm)
{
    recorder_entry *entries = ls_calloc(RECORDER_ENTRIES, sizeof(*entries));
    trace_lines lines = {.n = 0};
    int n = 0;
    ls_status st;

    if (entries == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the operations of a profile");
    st = comm_operations(comm, entries, RECORDER_ENTRIES, &n);
    for (int i = 0; i < n && st == LS_OK; i++) {
        const recorder_entry *e = &entries[i];

        if (e->start_ns >= w->profile->start_ns && e->end_ns != 0)
            put_operation(w, e, LINE_OPERATIONS + trace_take_line(&lines, e->start_ns, e->end_ns));
    }
    for (int i = 0; i < lines.n && st == LS_OK; i++)
        put_line(w, LINE_OPERATIONS + i, "operations");
    ls_free(entries);
    return st;
}

static void put_names(profile_writer *w)
{
    char host[NAME_BYTES + 1] = "?";
    char text[2 * NAME_BYTES];

    if (gethostname(host, sizeof(host) - 1) != 0)
        text_format(host, sizeof(host), "?");
    text_printable(host, sizeof(host), host);
    text_format(text, sizeof(text), "rank %d (%s)", w->rank, host);
    trace_put_label(&w->json, "process_name", w->rank, LINE_STEPS, "name", text);
    put_line(w, LINE_STEPS, "steps");
    put_line(w, LINE_PHASES, "program");
    put_line(w, LINE_OPERATORS, "operators");
}

/* What `lockstep trace summarize` needs besides the events. */
static void put_facts(profile_writer *w, const char *device)
{
    const run_profile *p = w->profile;
    json_writer *j = &w->json;

    json_open(j, "otherData", '{');
    json_put_int(j, "rank", w->rank);
    json_put_string(j, "device", device);
    json_put_int(j, "first_step", p->first);
    json_put_int(j, "last_step", p->operators.step);
    json_put_real(j, "ceiling_gflops_per_s", p->ceilings.flops * 1e-9);
    json_put_real(j, "ceiling_gb_per_s", p->ceilings.bytes * 1e-9);
    json_put_int(j, "operators_missing", (int64_t)p->operators.n_dropped);
    json_close(j, '}');
}

static ls_status append_trace(ls_run *run, text_buf *out)
{
    profile_writer w = {.profile = &run->profile, .rank = run_rank(run)};

    trace_begin(&w.json, out);
    put_names(&w);
    put_spans(&w);
    for (int i = 0; i < run->profile.operators.n; i++)
        put_operator(&w, &run->profile.operators.records[i]);
    if (run->comm != NULL)
        LS_TRY(put_operations(&w, run->comm));
    json_close(&w.json, ']');
    put_facts(&w, ls_device_fingerprint(run->device));
    json_close(&w.json, '}');
    text_append(out, "\n");
    return text_status(out);
}

static void end(ls_run *run)
{
    run_profile *p = &run->profile;
    char path[PROFILE_PATH_BYTES];
    char renamed[FILE_EARLIER_BYTES];
    text_buf trace = {0};
    ls_status st;

    p->is_on = false;
    run->device->profile = NULL;
    file_of_rank(path, run->flags, run_rank(run));
    st = append_trace(run, &trace);
    if (st == LS_OK)
        st = file_keep_earlier(path, renamed);
    if (st == LS_OK)
        st = file_replace(path, text_str(&trace), trace.length);
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "train", "--profile: %s", ls_last_error());
    else
        progress_line(&run->progress, "profile of steps %" PRId64 " to %" PRId64 ": %s", p->first,
                      p->operators.step, path);
    text_free(&trace);
    op_profile_free(&p->operators);
    p->first = 0;
}

// --- steps ---

/* True for a program with a loop of its own, which may have more. */
static bool has_more_steps(const ls_run *run)
{
    return run->train.set == NULL || run_steps_left(run) > 0;
}

ls_status profile_step(ls_run *run)
{
    run_profile *p = &run->profile;

    if (p->first == 0)
        return LS_OK;
    if (p->is_on) {
        const int64_t now_ns = ls_now_ns();

        add_span(p, &(profile_span){
                        .step = p->operators.step, .start_ns = p->step_ns, .end_ns = now_ns});
        p->step_ns = now_ns;
        if (run->at.step >= p->last) {
            end(run);
            return LS_OK;
        }
    } else if (run->at.step + 1 >= p->first && run->at.step < p->last && has_more_steps(run)) {
        p->first = run->at.step + 1; // a resumed run may begin after it
        LS_TRY(begin(run));
    }
    p->operators.step = run->at.step + 1;
    return LS_OK;
}

void profile_close(ls_run *run)
{
    run_profile *p = &run->profile;

    if (p->is_on)
        end(run);
    else if (p->first > 0 && run->is_started)
        ls_log(LS_LOG_WARN, "train",
               "--profile %s: nothing was recorded, the run ended at step %" PRId64,
               run->flags->profile, run->at.step);
    ls_free(p->spans);
    p->spans = NULL;
}
