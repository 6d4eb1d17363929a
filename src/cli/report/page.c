/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.c - the page of lockstep report: charts in which each run is a line, then for each run its
 * phases, a histogram of its step times, its ranks, its evaluations, and what it ran on. Pure.
 */
#include "cli/report/report.h"

#include "base/alloc.h"
#include "cli/report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLUMNS = 48, BINS = 40, TABLE_ROWS = 30, LANES = 64, LANE_CELLS = 120 };

/* --- text --- */

/* For text and attributes. */
static void append_text(text_buf *t, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '<':
            text_append(t, "&lt;");
            break;
        case '>':
            text_append(t, "&gt;");
            break;
        case '&':
            text_append(t, "&amp;");
            break;
        case '"':
            text_append(t, "&quot;");
            break;
        default:
            text_append_bytes(t, text, 1);
        }
}

static void append_head(text_buf *t)
{
    text_append(
        t, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
           "<title>Training runs</title>\n<style>\n"
           ":root{--ink:#1d2430;--soft:#5c6675;--rule:#dfe3e9;--card:#fff;--ground:#f5f6f8;"
           "color-scheme:light dark}\n"
           "@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b4;--rule:#313945;"
           "--card:#1b2129;--ground:#12161c}}\n"
           "*{box-sizing:border-box}body{margin:0 auto;padding:24px;max-width:1360px;"
           "background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}\n"
           "h1{font-size:22px;margin:0 0 12px}h2{font-size:18px;margin:22px 0 8px;"
           "overflow-wrap:anywhere}\n"
           ".charts{display:grid;gap:14px;margin-bottom:14px;"
           "grid-template-columns:repeat(auto-fit,minmax(min(100%%,480px),1fr));"
           "align-items:start}\n"
           ".wide{overflow-x:auto}code{overflow-wrap:anywhere}\n"
           "table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums}"
           "td,th{padding:3px 0 3px 10px;text-align:right;vertical-align:top}"
           "td:first-child,th:first-child{padding-left:0;text-align:left}"
           "th{color:var(--soft);font-weight:400}.facts td{text-align:left}\n"
           ".lane{width:60%%}.lane svg{height:14px}.lane rect{fill:var(--s1)}\n"
           "@media(max-width:520px){body{padding:12px}}\n");
    text_append(t, "%s</style></head><body>\n", chart_style());
}

/* --- runs as lines --- */

/* A number of a point or of a test, by its offset. */
typedef struct column {
    size_t offset;
    double factor;
} column;

typedef struct lines {
    double *x;
    double *y;
    int n;
} lines;

static double mean_of(const char *first, size_t size, int n, size_t offset)
{
    double sum = 0;
    int known = 0;

    for (int i = 0; i < n; i++) {
        double v;

        memcpy(&v, first + (size_t)i * size + offset, sizeof(v));
        if (isfinite(v)) {
            sum += v;
            known++;
        }
    }
    return known > 0 ? sum / known : (double)NAN;
}

/* At most `most` points, each the mean of neighbours, at the step of the last one. The step is the
 * first member of both kinds of records. */
static lines make_lines(const void *records, size_t size, int n, int most, column c)
{
    const int n_lines = n < most ? n : most;
    lines l = {.x = ls_calloc((size_t)n_lines + 1, sizeof(double)),
               .y = ls_calloc((size_t)n_lines + 1, sizeof(double))};

    for (int i = 0; l.x != NULL && l.y != NULL && i < n_lines; i++) {
        const int begin = (int)((int64_t)i * n / n_lines);
        const int end = (int)((int64_t)(i + 1) * n / n_lines);
        const char *first = (const char *)records + (size_t)begin * size;

        memcpy(&l.x[i], first + (size_t)(end - 1 - begin) * size, sizeof(double));
        l.y[i] = c.factor * mean_of(first, size, end - begin, c.offset);
        l.n = i + 1;
    }
    return l;
}

typedef struct comparison {
    const char *title;
    const char *unit;
    bool of_tests;
    bool from_zero;
    column column;
} comparison;

static void append_comparison(text_buf *t, const report_run *runs, int n, const comparison *c)
{
    chart_series series[REPORT_RUNS] = {{.n = 0}};
    lines all[REPORT_RUNS] = {{.n = 0}};
    text_buf names[REPORT_RUNS] = {{.length = 0}};
    bool has_values = false;

    for (int i = 0; i < n; i++) {
        const report_run *r = &runs[i];

        all[i] =
            c->of_tests
                ? make_lines(r->tests, sizeof(*r->tests), r->n_tests, REPORT_TESTS, c->column)
                : make_lines(r->points, sizeof(*r->points), r->n_points, REPORT_POINTS, c->column);
        append_text(&names[i], r->name);
        series[i] = (chart_series){text_str(&names[i]), all[i].x, all[i].y, all[i].n};
        for (int k = 0; k < all[i].n; k++)
            has_values |= !isnan(all[i].y[k]);
    }
    if (has_values)
        chart_append(t, &(chart){.title = c->title,
                                 .unit = c->unit,
                                 .series = series,
                                 .n_series = n,
                                 .from_zero = c->from_zero});
    for (int i = 0; i < n; i++) {
        text_free(&names[i]);
        ls_free(all[i].x);
        ls_free(all[i].y);
    }
}

static int find_value(const report_run *r, const char *name)
{
    for (int i = 0; i < r->n_values; i++)
        if (text_equal(r->value_names[i], name))
            return i;
    return -1;
}

/* The value's column differs between runs that have declared it in another order: then it is the
 * first run's order that the chart is of, and the others are shown on their own. */
static void append_values(text_buf *t, const report_run *runs, int n)
{
    for (int k = 0; k < runs[0].n_values; k++) {
        text_buf title = {0};
        int n_alike = 0;

        while (n_alike < n && find_value(&runs[n_alike], runs[0].value_names[k]) == k)
            n_alike++;
        for (int of_tests = 0; of_tests < 2; of_tests++) {
            const size_t offset =
                of_tests ? offsetof(report_test, values) : offsetof(report_point, values);

            text_free(&title);
            append_text(&title, runs[0].value_names[k]);
            text_append(&title, of_tests ? ", test" : ", training");
            append_comparison(t, runs, n_alike,
                              &(comparison){.title = text_str(&title),
                                            .of_tests = of_tests != 0,
                                            .column = {offset + (size_t)k * sizeof(double), 1}});
        }
        text_free(&title);
    }
}

static void append_comparisons(text_buf *t, const report_run *runs, int n)
{
    static const comparison charts[] = {
        {"Training loss", NULL, false, false, {offsetof(report_point, loss), 1}},
        {"Test loss", NULL, true, false, {offsetof(report_test, loss), 1}},
        {"Training top-1", "%", false, true, {offsetof(report_point, top1), 100}},
        {"Test top-1", "%", true, true, {offsetof(report_test, top1), 100}},
        {"Throughput", "samples/s", false, true, {offsetof(report_point, samples_per_s), 1}},
    };

    text_append(t, "<div class=\"charts\">\n");
    for (size_t i = 0; i < LS_COUNT_OF(charts); i++)
        append_comparison(t, runs, n, &charts[i]);
    append_values(t, runs, n);
    text_append(t, "</div>\n");
}

/* --- one run --- */

static void append_phases(text_buf *t, const report_run *r)
{
    const int n = r->n_points < COLUMNS ? r->n_points : COLUMNS;
    double x[COLUMNS];
    double y[REPORT_PHASES][COLUMNS];
    chart_series series[REPORT_PHASES];
    double before = 0;

    for (int i = 0; i < n; i++) {
        const int begin = (int)((int64_t)i * r->n_points / n);
        const int end = (int)((int64_t)(i + 1) * r->n_points / n);
        const double steps = r->points[end - 1].step - before;

        x[i] = r->points[end - 1].step;
        for (int k = 0; k < REPORT_PHASES; k++) {
            double seconds = 0;

            for (int p = begin; p < end; p++)
                seconds += r->points[p].seconds[k];
            y[k][i] = steps > 0 ? 1e3 * seconds / steps : 0;
        }
        before = x[i];
    }
    for (int k = 0; k < REPORT_PHASES; k++)
        series[k] = (chart_series){report_phases[k], x, y[k], n};
    chart_append(t, &(chart){.title = "Time of a step, mean over ranks",
                             .unit = "ms",
                             .series = series,
                             .n_series = REPORT_PHASES,
                             .from_zero = true,
                             .stacked = true});
}

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int n, double q)
{
    return sorted[(int)(q * (n - 1))];
}

/* Steps beyond the 99th percentile are in the last column. */
static void append_histogram(text_buf *t, const report_run *r)
{
    double x[BINS];
    double y[BINS] = {0};
    char title[160];
    double low;
    double width;
    const chart_series series = {"share of steps, %", x, y, BINS};

    if (r->n_steps == 0)
        return;
    qsort(r->steps, (size_t)r->n_steps, sizeof(*r->steps), compare_numbers);
    low = 1e3 * r->steps[0];
    width = (1e3 * quantile(r->steps, r->n_steps, 0.99) - low) / BINS;
    width = width > 0 ? width : 1e-3;
    for (int i = 0; i < BINS; i++)
        x[i] = low + (i + 1) * width;
    for (int i = 0; i < r->n_steps; i++) {
        const double bin = (1e3 * r->steps[i] - low) / width;

        y[bin < BINS - 1 ? (int)bin : BINS - 1] += 100.0 / r->n_steps;
    }
    text_format(title, sizeof(title),
                "Step times of rank 0: median %.4g ms, 90 %% up to %.4g, longest %.4g",
                1e3 * quantile(r->steps, r->n_steps, 0.5),
                1e3 * quantile(r->steps, r->n_steps, 0.9), 1e3 * r->steps[r->n_steps - 1]);
    chart_append(t, &(chart){.title = title,
                             .series = &series,
                             .n_series = 1,
                             .from_zero = true,
                             .stacked = true,
                             .x_name = "ms",
                             .begin = low});
}

/* --- ranks --- */

/* The time of a rank's own work in points [begin, end). */
static double work_of(const report_run *r, int rank, int begin, int end)
{
    double s = 0;

    for (int i = begin; i < end; i++)
        for (int k = 0; r->points[i].n_ranks > rank && k < REPORT_PHASES; k++)
            s += k == 3 ? 0 : r->points[i].ranks[rank * REPORT_PHASES + k];
    return s;
}

static double waits_of(const report_run *r, int rank)
{
    double s = 0;

    for (int i = 0; i < r->n_points; i++)
        if (r->points[i].n_ranks > rank)
            s += r->points[i].ranks[rank * REPORT_PHASES + 3];
    return s;
}

/* The ranks' mean in each cell; returns the number of cells. */
static int mean_work(const report_run *r, int n_ranks, double mean[LANE_CELLS])
{
    const int n = r->n_points < LANE_CELLS ? r->n_points : LANE_CELLS;

    for (int i = 0; i < n; i++) {
        mean[i] = 0;
        for (int k = 0; k < n_ranks; k++)
            mean[i] += work_of(r, k, (int)((int64_t)i * r->n_points / n),
                               (int)((int64_t)(i + 1) * r->n_points / n)) /
                       n_ranks;
    }
    return n;
}

static void append_lane(text_buf *t, const report_run *r, int rank, const double *mean, int n)
{
    text_append(t, "<td class=\"lane\"><svg viewBox=\"0 0 %d 1\" preserveAspectRatio=\"none\">", n);
    for (int i = 0; i < n; i++) {
        const int begin = (int)((int64_t)i * r->n_points / n);
        const int end = (int)((int64_t)(i + 1) * r->n_points / n);
        const double excess = mean[i] > 0 ? work_of(r, rank, begin, end) / mean[i] - 1 : 0;

        text_append(t, "<rect x=\"%d\" width=\"1\" height=\"1\" opacity=\"%.2f\"/>", i,
                    fmin(1, fmax(0.06, 0.06 + 2 * excess)));
    }
    text_append(t, "</svg></td>");
}

/* The most ranks that a line has times of. */
static int count_ranks(const report_run *r)
{
    int n = 0;

    for (int i = 0; i < r->n_points; i++)
        n = r->points[i].n_ranks > n ? r->points[i].n_ranks : n;
    return n;
}

static void append_ranks(text_buf *t, const report_run *r)
{
    const int n_ranks = count_ranks(r);
    double mean[LANE_CELLS];
    const int n_cells = mean_work(r, n_ranks, mean);

    if (n_ranks == 0)
        return;
    text_append(t, "<figure class=\"wide\"><figcaption>Ranks: the darker, the longer a rank's own "
                   "work took in comparison with the mean (full: 47 %% longer)</figcaption><table>"
                   "<tr><th>rank</th><th>work, s</th><th>waits, s</th><th></th></tr>\n");
    for (int i = 0; i < n_ranks && i < LANES; i++) {
        text_append(t, "<tr><td>%d</td><td>%.2f</td><td>%.2f</td>", i,
                    work_of(r, i, 0, r->n_points), waits_of(r, i));
        append_lane(t, r, i, mean, n_cells);
        text_append(t, "</tr>\n");
    }
    text_append(t, "</table>");
    if (n_ranks > LANES)
        text_append(t, "<p>%d more ranks are not shown.</p>", n_ranks - LANES);
    text_append(t, "</figure>\n");
}

static void append_tests(text_buf *t, const report_run *r)
{
    const int last = r->n_tests - 1;

    if (last < 0 || !isfinite(r->tests[last].loss))
        return;
    text_append(t, "<figure class=\"wide\"><figcaption>Evaluations</figcaption><table><tr>"
                   "<th>epochs</th><th>step</th><th>loss</th><th>top-1</th><th>top-5</th></tr>\n");
    for (int i = last; i >= 0 && i > last - TABLE_ROWS; i--) {
        const report_test *e = &r->tests[i];

        text_append(t,
                    "<tr><td>%.0f</td><td>%.0f</td><td>%.4f</td><td>%.2f %%</td><td>%.2f %%</td>"
                    "</tr>\n",
                    e->epoch, e->step, e->loss, 100 * e->top1, 100 * e->top5);
    }
    text_append(t, "</table></figure>\n");
}

/* --- what it ran on --- */

static void append_fact(text_buf *t, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    text_append(t, "<tr><th>%s</th><td><code>", name);
    append_text(t, value);
    text_append(t, "</code></td></tr>\n");
}

static void append_number(text_buf *t, const char *name, double value)
{
    char text[32];

    text_format(text, sizeof(text), "%.0f", value);
    if (isfinite(value))
        append_fact(t, name, text);
}

static void append_facts(text_buf *t, const report_run *r)
{
    char text[64] = "";
    const time_t started = (time_t)r->started;
    struct tm date;

    text_append(t, "<figure class=\"wide\"><figcaption>Run</figcaption><table class=\"facts\">\n");
    append_fact(t, "command", r->command);
    append_fact(t, "lockstep", r->version);
    append_fact(t, "machine of rank 0", r->host);
    append_number(t, "cores", r->cores);
    if (r->memory_bytes > 0 && r->memory_bytes < 1e18)
        append_fact(t, "memory", text_bytes(text, sizeof(text), (uint64_t)r->memory_bytes));
    append_fact(t, "device", r->device);
    append_number(t, "ranks", r->ranks);
    append_number(t, "samples per rank and step", r->batch_size);
    if (r->started > 0 && gmtime_r(&started, &date) != NULL &&
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &date) > 0)
        append_fact(t, "first line written", text);
    append_number(t, "steps", r->n_points > 0 ? r->points[r->n_points - 1].step : (double)NAN);
    text_append(t, "</table></figure>\n");
}

static void append_run(text_buf *t, const report_run *r)
{
    text_append(t, "<h2>");
    append_text(t, r->name);
    text_append(t, "</h2><div class=\"charts\">\n");
    append_facts(t, r);
    append_tests(t, r);
    if (r->n_points > 0)
        append_phases(t, r);
    append_histogram(t, r);
    append_ranks(t, r);
    text_append(t, "</div>\n");
}

void report_page(report_run *runs, int n, text_buf *out)
{
    append_head(out);
    text_append(out, "<h1>%s</h1>\n", n == 1 ? "Training run" : "Training runs");
    append_comparisons(out, runs, n);
    for (int i = 0; i < n; i++)
        append_run(out, &runs[i]);
    text_append(out, "<script>\n%s</script>\n</body></html>\n", chart_script());
}
