/* SPDX-License-Identifier: Apache-2.0 */
/*
 * html_report.c - writes the history of a run as one self-contained HTML page. save.c calls it
 * after each epoch; the file is replaced atomically.
 */
#include "train/html_report.h"

#include "base/alloc.h"
#include "base/file.h"
#include "train/chart.h"
#include "train/hyperparameters.h"

#include <math.h>

enum { COLUMNS = 48, LINE_POINTS = 200, TABLE_ROWS = 30 };

/* The history as arrays, one a curve. */
typedef struct curves {
    history_point points[HISTORY_POINTS]; /* thinned out evenly */
    int n_points;
    double x[HISTORY_POINTS];
    double loss[HISTORY_POINTS];
    double top1[HISTORY_POINTS];
    double rate[HISTORY_POINTS];
    double test_x[HISTORY_TESTS];
    double test_loss[HISTORY_TESTS];
    double test_top1[HISTORY_TESTS];
    double test_top5[HISTORY_TESTS];
    double value[HISTORY_POINTS]; /* of the program, one after the other */
    double test_value[HISTORY_TESTS];
    double begin; /* the step before the first known one */
    double column_x[COLUMNS];
    double phases[PHASE_TRAINING][COLUMNS]; /* milliseconds per step */
    int n_columns;
} curves;

/* --- from history to curves --- */

static void fill_lines(curves *c, const history *h)
{
    c->n_points = history_even(h, LINE_POINTS, c->points);
    for (int i = 0; i < c->n_points; i++) {
        const history_point *p = &c->points[i];
        const double seconds = history_training_s(p);
        c->x[i] = p->step;
        c->loss[i] = p->loss;
        c->top1[i] = 100 * p->top1;
        c->rate[i] = seconds > 0 ? p->rows / seconds : -1;
    }
    for (int i = 0; i < h->n_tests; i++) {
        c->test_x[i] = h->tests[i].step;
        c->test_loss[i] = h->tests[i].loss;
        c->test_top1[i] = 100 * h->tests[i].top1;
        c->test_top5[i] = 100 * h->tests[i].top5;
    }
}

/* The first point has ceil(rows / rows_a_step) steps; a run need not start at step 0. */
static void find_begin(curves *c, double rows_a_step)
{
    if (c->n_points > 0)
        c->begin = fmax(0, c->points[0].step - ceil(c->points[0].rows / rows_a_step));
}

static void fill_column(curves *c, int column, int begin, int end)
{
    const double before = begin > 0 ? c->points[begin - 1].step : c->begin;
    const double steps = c->points[end - 1].step - before;

    c->column_x[column] = c->points[end - 1].step;
    for (int k = 0; k < PHASE_TRAINING; k++) {
        double sum = 0;
        for (int i = begin; i < end; i++)
            sum += c->points[i].seconds[k];
        c->phases[k][column] = steps > 0 ? 1e3 * sum / steps : 0;
    }
}

static void fill_columns(curves *c)
{
    c->n_columns = c->n_points < COLUMNS ? c->n_points : COLUMNS;
    for (int i = 0; i < c->n_columns; i++)
        fill_column(c, i, i * c->n_points / c->n_columns, (i + 1) * c->n_points / c->n_columns);
}

/* --- the parts of the page --- */

static void append_head(text_buf *t)
{
    text_append(
        t, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
           "<title>Training run</title>\n<style>\n"
           ":root{--ink:#1d2430;--soft:#5c6675;--rule:#dfe3e9;--card:#fff;--ground:#f5f6f8;"
           "color-scheme:light dark}\n"
           "@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b4;--rule:#313945;"
           "--card:#1b2129;--ground:#12161c}}\n"
           "*{box-sizing:border-box}body{margin:0 auto;padding:24px;max-width:1360px;"
           "background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}\n"
           "h1{font-size:22px;margin:0 0 4px}.run{color:var(--soft);margin:0 0 16px}\n"
           ".facts,.charts{display:grid;gap:14px;margin-bottom:14px}\n"
           ".facts{grid-template-columns:repeat(auto-fit,minmax(130px,1fr))}\n"
           ".charts{grid-template-columns:repeat(auto-fit,minmax(min(100%%,480px),1fr));"
           "align-items:start}\n"
           ".facts div{border:1px solid var(--rule);border-radius:8px;background:var(--card);"
           "padding:10px 14px}.facts b{display:block;font-size:20px}.facts "
           "span{color:var(--soft);font-size:13px}\n"
           "table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums}"
           "td,th{padding:3px 0 3px 10px;text-align:right;white-space:nowrap}"
           "td:first-child,th:first-child{padding-left:0;text-align:left}"
           "th{color:var(--soft);font-weight:400}\n"
           ".bar{width:40%%}.bar i{display:block;margin:0;min-width:1px}\n"
           "@media(max-width:520px){body{padding:12px}.facts{grid-template-columns:1fr 1fr}}\n");
    text_append(t, "%s</style></head><body>\n", chart_style());
}

static void append_fact(text_buf *t, const char *name, const char *value)
{
    text_append(t, "<div><span>%s</span><b>%s</b></div>", name, value);
}

static void append_number(text_buf *t, const char *name, int digits, double value, const char *unit)
{
    char text[64];

    text_format(text, sizeof(text), "%.*f%s", digits, value, unit);
    append_fact(t, name, text);
}

/* Three digits: 4.52, 45.2, 452. */
static void append_rate(text_buf *t, const char *name, double value)
{
    append_number(t, name, value < 10 ? 2 : value < 100 ? 1 : 0, value, "");
}

static void append_duration(text_buf *t, const char *name, int64_t seconds)
{
    char text[64];

    text_format(text, sizeof(text), "%lld:%02d:%02d", (long long)(seconds / 3600),
                (int)(seconds / 60 % 60), (int)(seconds % 60));
    append_fact(t, name, text);
}

/* The latest of each. */
static void append_values(text_buf *t, const run_values *v)
{
    static const char *const kinds[VALUE_KINDS] = {[OF_TRAINING] = "training", [OF_TEST] = "test"};
    char name[VALUE_NAME_BYTES + 16];

    for (int k = 0; k < VALUE_KINDS; k++) {
        for (int i = 0; i < v->n; i++) {
            if (!v->is_known[k][i])
                continue;
            text_format(name, sizeof(name), "%s %s", kinds[k], v->names[i]);
            append_number(t, name, 4, v->mean[k][i], "");
        }
    }
}

static void append_facts(text_buf *t, const html_report *r)
{
    const ls_train_flags *f = r->flags;
    const ls_run_state *s = r->state;

    text_append(
        t,
        "<h1>Training run</h1><p class=\"run\">%d rank%s, %lld sample%s per rank and step, %s, "
        "learning rate %g %s, %s, seed %lld, %s</p>\n<div class=\"facts\">",
        r->ranks, text_plural(r->ranks), (long long)f->batch_size, text_plural(f->batch_size),
        f->optimizer != NULL ? f->optimizer : "sgd", f->lr,
        f->schedule != NULL ? f->schedule : "constant", hyperparameters_precision(f),
        (long long)f->seed, r->device);
    append_number(t, "epochs", 0, (double)r->epochs, "");
    append_number(t, "steps", 0, (double)s->step, "");
    append_number(t, "training loss", 4, s->loss, "");
    if (s->accuracy >= 0) {
        append_number(t, "test accuracy", 2, 100 * s->accuracy, " %");
        append_number(t, "best so far", 2, 100 * s->best_accuracy, " %");
    }
    append_values(t, r->values);
    append_rate(t, "samples/s", s->samples_per_s);
    if (r->ranks > 1)
        append_rate(t, "samples/s per rank", s->samples_per_s / r->ranks);
    append_duration(t, f->resume != NULL ? "since resume" : "time", r->seconds);
    if (s->bad_images > 0)
        append_number(t, "broken images", 0, (double)s->bad_images, "");
    text_append(t, "</div>\n");
}

/* A chart of each value of the program. */
static void append_value_charts(text_buf *t, curves *c, const html_report *r)
{
    const history *h = r->history;

    for (int k = 0; k < r->values->n; k++) {
        const chart_series series[] = {{"training", c->x, c->value, c->n_points},
                                       {"test", c->test_x, c->test_value, h->n_tests}};

        for (int i = 0; i < c->n_points; i++)
            c->value[i] = c->points[i].values[k];
        for (int i = 0; i < h->n_tests; i++)
            c->test_value[i] = h->tests[i].values[k];
        chart_append(t, &(chart){.title = r->values->names[k], .series = series, .n_series = 2});
    }
}

static void append_charts(text_buf *t, curves *c, const html_report *r)
{
    const history *h = r->history;
    const chart_series loss[] = {{"training", c->x, c->loss, c->n_points},
                                 {"test", c->test_x, c->test_loss, h->n_tests}};
    const chart_series accuracy[] = {{"training top-1", c->x, c->top1, c->n_points},
                                     {"test top-1", c->test_x, c->test_top1, h->n_tests},
                                     {"test top-5", c->test_x, c->test_top5, h->n_tests}};
    const chart_series rate[] = {{"all ranks", c->x, c->rate, c->n_points}};
    chart_series phases[PHASE_TRAINING];

    for (int k = 0; k < PHASE_TRAINING; k++)
        phases[k] = (chart_series){phase_name((phase)k), c->column_x, c->phases[k], c->n_columns};
    text_append(t, "<div class=\"charts\">\n");
    chart_append(t, &(chart){.title = "Loss", .series = loss, .n_series = 2});
    chart_append(t, &(chart){.title = "Accuracy",
                             .unit = "%",
                             .series = accuracy,
                             .n_series = 3,
                             .from_zero = true});
    chart_append(t, &(chart){.title = "Throughput",
                             .unit = "samples/s",
                             .series = rate,
                             .n_series = 1,
                             .from_zero = true});
    chart_append(t, &(chart){.title = "Time of a step",
                             .unit = "ms",
                             .series = phases,
                             .n_series = PHASE_TRAINING,
                             .from_zero = true,
                             .stacked = true,
                             .begin = c->begin});
    append_value_charts(t, c, r);
    text_append(t, "</div>\n");
}

static void append_time(text_buf *t, phase k, double seconds, double all)
{
    const double share = all > 0 ? 100 * seconds / all : 0;

    text_append(t, "<tr><th><i class=\"s%d\"></i>%s</th><td>%.2f</td><td>%.1f %%</td>", (int)k,
                phase_name(k), seconds, share);
    text_append(t, "<td class=\"bar\"><i class=\"s%d\" style=\"width:%.1f%%\"></i></td></tr>\n",
                (int)k, share);
}

static void append_times(text_buf *t, const history *h)
{
    double seconds[PHASES];
    const double all = history_total_seconds(h, seconds);

    text_append(
        t, "<figure><figcaption>Time per phase, mean over ranks</figcaption><table><tr><th></th>"
           "<th>seconds</th><th>share</th><th></th></tr>\n");
    for (int k = 0; k < PHASES; k++)
        append_time(t, (phase)k, seconds[k], all);
    text_append(t, "</table></figure>\n");
}

/* Evaluations by the program have neither loss nor accuracy: their values are charts. */
static void append_tests(text_buf *t, const history *h)
{
    if (h->n_tests == 0 || !isfinite(h->tests[h->n_tests - 1].loss))
        return;
    text_append(
        t, "<figure><figcaption>Evaluations</figcaption><table><tr><th>epochs</th><th>step</th>"
           "<th>loss</th><th>top-1</th><th>top-5</th></tr>\n");
    for (int i = h->n_tests - 1; i >= 0 && i >= h->n_tests - TABLE_ROWS; i--) {
        const history_test *e = &h->tests[i];
        text_append(t,
                    "<tr><td>%.0f</td><td>%.0f</td><td>%.4f</td><td>%.2f %%</td><td>%.2f %%</td>"
                    "</tr>\n",
                    e->epoch, e->step, e->loss, 100 * e->top1, 100 * e->top5);
    }
    text_append(t, "</table></figure>\n");
}

static ls_status make_page(const html_report *r, text_buf *t)
{
    curves *c = ls_calloc(1, sizeof(*c));

    if (c == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the page of --metrics-html");
    fill_lines(c, r->history);
    find_begin(c, (double)r->flags->batch_size * r->ranks);
    fill_columns(c);
    append_head(t);
    append_facts(t, r);
    append_charts(t, c, r);
    text_append(t, "<div class=\"charts\">\n");
    append_times(t, r->history);
    append_tests(t, r->history);
    text_append(t, "</div>\n<script>\n%s</script>\n</body></html>\n", chart_script());
    ls_free(c);
    return text_status(t);
}

ls_status html_report_write(const html_report *r)
{
    text_buf t = {0};
    ls_status st = make_page(r, &t);

    if (st == LS_OK)
        st = file_replace(r->flags->metrics_html, text_str(&t), t.length);
    text_free(&t);
    return st;
}
