/* SPDX-License-Identifier: Apache-2.0 */
/* read.c - reads the lines of --metrics (docs/training.md) for cmd_report.c. */
#include "cli/report/report.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"

#include <math.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 30, POINTS_MAX = 1 << 20 };

const char *const report_phases[REPORT_PHASES] = {"data", "forward", "backward", "communication",
                                                  "optimizer"};

/* Greater numbers than any that is measured would overflow the axes. */
static double number_of(const json_value *v, double otherwise)
{
    const double x = json_as_real(v, otherwise);

    return fabs(x) < 1e18 ? x : otherwise;
}

static double real_of(const json_value *o, const char *key)
{
    return number_of(json_get(o, key), (double)NAN);
}

/* Grows the list for one more element of `size` bytes. */
static ls_status reserve(void **list, int n, int *max, size_t size)
{
    const int more = *max == 0 ? 64 : *max * 2;
    void *grown;

    if (n < *max)
        return LS_OK;
    if (n >= POINTS_MAX)
        return ls_fail(LS_EFORMAT, "more than %d lines", POINTS_MAX);
    grown = ls_realloc(*list, (size_t)more, size);
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the metrics of a run");
    *list = grown;
    *max = more;
    return LS_OK;
}

static void read_run(const json_value *o, report_run *r)
{
    text_printable(r->command, sizeof(r->command), json_as_string(json_get(o, "command"), ""));
    text_printable(r->version, sizeof(r->version), json_as_string(json_get(o, "version"), ""));
    text_printable(r->host, sizeof(r->host), json_as_string(json_get(o, "host"), ""));
    text_printable(r->device, sizeof(r->device), json_as_string(json_get(o, "device"), ""));
    r->cores = real_of(o, "cores");
    r->memory_bytes = real_of(o, "memory_bytes");
    r->ranks = real_of(o, "ranks");
    r->batch_size = real_of(o, "batch_size");
    r->started = json_as_int(json_get(o, "started"), 0);
}

/* Its number; -1: there are too many. */
static int value_index(report_run *r, const char *name)
{
    char printable[sizeof(r->value_names[0])];

    text_printable(printable, sizeof(printable), name);
    for (int i = 0; i < r->n_values; i++)
        if (text_equal(r->value_names[i], printable))
            return i;
    if (r->n_values == REPORT_VALUES)
        return -1;
    memcpy(r->value_names[r->n_values], printable, sizeof(printable));
    return r->n_values++;
}

static void read_values(const json_value *o, report_run *r, double out[REPORT_VALUES])
{
    void *cursor = NULL;
    const char *name;
    json_value *v;

    for (int i = 0; i < REPORT_VALUES; i++)
        out[i] = (double)NAN;
    while (json_kind_of(o) == JSON_IS_OBJECT && json_next(o, &cursor, &name, &v)) {
        const int i = value_index(r, name);

        if (i >= 0)
            out[i] = number_of(v, (double)NAN);
    }
}

static ls_status read_ranks(const json_value *list, report_point *p)
{
    const size_t n = json_size(list);

    if (n == 0 || n > REPORT_RANKS)
        return LS_OK;
    LS_TRY(LS_NEW(&p->ranks, n * REPORT_PHASES, "for the times of %zu ranks", n));
    p->n_ranks = (int)n;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < REPORT_PHASES; k++)
            p->ranks[i * REPORT_PHASES + k] = number_of(json_at(json_at(list, i), k), 0);
    return LS_OK;
}

static ls_status read_steps(const json_value *list, report_run *r)
{
    for (size_t i = 0; i < json_size(list) && r->n_steps < REPORT_STEPS - 1; i++) {
        const double s = number_of(json_at(list, i), (double)NAN);

        LS_TRY(reserve((void **)&r->steps, r->n_steps, &r->max_steps, sizeof(*r->steps)));
        if (isfinite(s) && s >= 0)
            r->steps[r->n_steps++] = s;
    }
    return LS_OK;
}

static ls_status read_training(const json_value *o, report_run *r)
{
    report_point *p;

    LS_TRY(reserve((void **)&r->points, r->n_points, &r->max_points, sizeof(*r->points)));
    p = &r->points[r->n_points++];
    *p = (report_point){.step = real_of(o, "step"),
                        .loss = real_of(o, "loss"),
                        .top1 = real_of(o, "top1"),
                        .samples_per_s = real_of(o, "samples_per_s")};
    for (int k = 0; k < REPORT_PHASES; k++)
        p->seconds[k] = number_of(json_get(json_get(o, "seconds"), report_phases[k]), 0);
    read_values(json_get(o, "values"), r, p->values);
    LS_TRY(read_ranks(json_get(o, "rank_seconds"), p));
    return read_steps(json_get(o, "step_s"), r);
}

static ls_status read_test(const json_value *o, report_run *r)
{
    report_test *t;

    LS_TRY(reserve((void **)&r->tests, r->n_tests, &r->max_tests, sizeof(*r->tests)));
    t = &r->tests[r->n_tests++];
    *t = (report_test){.step = real_of(o, "step"),
                       .epoch = real_of(o, "epoch") + (json_get(o, "loss") != NULL),
                       .loss = real_of(o, "test_loss"),
                       .top1 = real_of(o, "accuracy"),
                       .top5 = real_of(o, "accuracy5")};
    read_values(json_get(o, "test_values"), r, t->values);
    return LS_OK;
}

static ls_status read_line(const char *line, size_t bytes, const char *what, report_run *r)
{
    json_value *o;
    ls_status st;

    LS_TRY(json_parse(line, bytes, what, &o));
    st = isfinite(real_of(o, "step"))
             ? LS_OK
             : ls_fail(LS_EFORMAT, "%s: not a line of --metrics: no step", what);
    if (st == LS_OK && json_get(o, "run") != NULL)
        read_run(json_get(o, "run"), r);
    if (st == LS_OK && json_get(o, "loss") != NULL)
        st = read_training(o, r);
    if (st == LS_OK && json_get(o, "test_samples") != NULL)
        st = read_test(o, r);
    json_free(o);
    return st;
}

static ls_status read_lines(const char *path, const char *text, size_t bytes, report_run *r)
{
    const char *line = text;
    const char *end;
    int number = 0;

    for (; (end = memchr(line, '\n', bytes - (size_t)(line - text))) != NULL; line = end + 1) {
        char what[512];

        text_format(what, sizeof(what), "%.400s, line %d", path, ++number);
        if (end > line)
            LS_TRY(read_line(line, (size_t)(end - line), what, r));
    }
    return r->n_points + r->n_tests > 0
               ? LS_OK
               : ls_fail(LS_EFORMAT, "%s has no whole line of --metrics", path);
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

ls_status report_read(const char *path, report_run *out)
{
    char *text;
    size_t bytes;
    ls_status st;

    *out = (report_run){.cores = (double)NAN,
                        .memory_bytes = (double)NAN,
                        .ranks = (double)NAN,
                        .batch_size = (double)NAN};
    text_printable(out->name, sizeof(out->name), file_name(path));
    LS_TRY(file_read_input(path, FILE_BYTES_MAX, &text, &bytes));
    st = read_lines(path, text, bytes, out);
    ls_free(text);
    if (st != LS_OK)
        report_free(out);
    return st;
}

void report_free(report_run *r)
{
    for (int i = 0; i < r->n_points; i++)
        ls_free(r->points[i].ranks);
    ls_free(r->points);
    ls_free(r->tests);
    ls_free(r->steps);
    *r = (report_run){.n_points = 0};
}
