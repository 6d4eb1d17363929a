/* SPDX-License-Identifier: Apache-2.0 */
/*
 * summary.c - prints the last lines of a run on rank 0: a plot of the loss, the time of each phase,
 * and the result. ls_run_close() calls it after success.
 */
#include "train/run/run.h"

#include "base/clock.h"
#include "train/state/state_file.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PLOT_COLUMNS = 60, PLOT_ROWS = 8, PLOT_POINTS_MIN = 4 };

typedef struct plot {
    double value[PLOT_COLUMNS]; /* mean loss of the column; NAN: none */
    int n;
    double low;
    double high;
} plot;

/* A column is the mean of its points. */
static void fill_plot(plot *p, const history *h)
{
    p->n = h->n_points < PLOT_COLUMNS ? h->n_points : PLOT_COLUMNS;
    p->low = HUGE_VAL;
    p->high = -HUGE_VAL;
    for (int c = 0; c < p->n; c++) {
        const int begin = (int)((int64_t)c * h->n_points / p->n);
        const int end = (int)((int64_t)(c + 1) * h->n_points / p->n);
        double sum = 0;
        for (int i = begin; i < end; i++)
            sum += h->points[i].loss;
        p->value[c] = sum / (end - begin);
        if (!isfinite(p->value[c]))
            continue;
        p->low = fmin(p->low, p->value[c]);
        p->high = fmax(p->high, p->value[c]);
    }
}

/* Row 0 is the lowest. */
static int row_of(const plot *p, double value)
{
    if (!isfinite(value))
        return -1;
    if (p->high <= p->low)
        return 0;
    return (int)lround((value - p->low) / (p->high - p->low) * (PLOT_ROWS - 1));
}

static void print_plot(ls_run *run)
{
    const history *h = &run->history;
    plot p;

    if (h->n_points < PLOT_POINTS_MIN)
        return;
    fill_plot(&p, h);
    if (!isfinite(p.low)) {
        progress_line(&run->progress, "no plot: no loss is a finite number (NaN or infinite)");
        return;
    }
    for (int row = PLOT_ROWS - 1; row >= 0; row--) {
        char line[PLOT_COLUMNS + 1];
        memset(line, ' ', sizeof(line));
        for (int c = 0; c < p.n; c++)
            line[c] = row_of(&p, p.value[c]) == row ? '*' : ' ';
        line[p.n] = 0;
        progress_line(&run->progress, "%10.4f |%s",
                      p.low + (p.high - p.low) * row / (PLOT_ROWS - 1), line);
    }
    progress_line(&run->progress, "      loss +%.*s step %.0f", p.n,
                  "------------------------------------------------------------",
                  h->points[h->n_points - 1].step);
}

static void print_times(ls_run *run)
{
    const history *h = &run->history;
    double seconds[PHASES];
    const double all = history_total_seconds(h, seconds);
    text_buf t = {0};

    if (all <= 0 || h->n_points < PLOT_POINTS_MIN)
        return;
    text_append(&t, "time:");
    for (int k = 0; k < PHASES; k++)
        text_append(&t, "  %s %.1f %%", phase_name((phase)k), 100 * seconds[k] / all);
    progress_line(&run->progress, "%s", text_str(&t));
    text_free(&t);
}

/* " in bf16"; nothing for fp32. */
static const char *precision_text(const ls_run *run, char text[16])
{
    const char *name = hyperparameters_precision(run->flags);

    return text_equal(name, "fp32") ? "" : text_format(text, 16, " in %s", name);
}

static void print_skipped(ls_run *run)
{
    const int64_t n = run->scaler == NULL ? 0 : ls_grad_scaler_skipped(run->scaler);

    if (n > 0)
        progress_line(&run->progress,
                      "skipped %" PRId64 " step%s whose gradients in fp16 were not finite", n,
                      text_plural(n));
}

/* The result of the program's own evaluation. */
static void print_values(ls_run *run)
{
    const run_values *v = &run->values;
    text_buf t = {0};

    values_append(v, OF_TEST, &t);
    if (v->has_best)
        text_append(&t, "  (best %s %.4f after %lld epoch%s)", v->names[v->best], v->best_mean,
                    (long long)run->state.best_epoch, text_plural(run->state.best_epoch));
    if (t.length > 0)
        progress_line(&run->progress, "test:%s", text_str(&t));
    text_free(&t);
}

/* After a stop signal: how to go on. */
static void print_how_to_go_on(ls_run *run)
{
    const char *save = run->flags->save;

    if (!run->state.stopping)
        return;
    if (!state_path_is_set(save))
        progress_line(&run->progress,
                      "nothing is saved: a run with --save FILE can be continued with --resume");
    else if (run->saver.saved_step == run->at.step)
        progress_line(&run->progress,
                      "to go on from step %" PRId64 ": the same command with --resume %s",
                      run->at.step, save);
}

void summary_print(ls_run *run)
{
    const double seconds = (double)(ls_now_ms() - run->start_ms) * 1e-3;
    const ls_run_state *s = &run->state;
    const int ranks = run_size(run);
    char buffer[16];
    const char *precision = precision_text(run, buffer);

    if (!run->progress.is_enabled || (run->train.set == NULL && !run->flags->evaluate))
        return;
    history_add_seconds(&run->history, run->report.window.seconds);
    print_plot(run);
    print_times(run);
    if (s->bad_images > 0)
        progress_line(&run->progress, "skipped %lld broken image%s", (long long)s->bad_images,
                      text_plural(s->bad_images));
    if (run->n_healed > 0)
        progress_line(&run->progress, "--heal: %lld rank%s got the state of the majority",
                      (long long)run->n_healed, text_plural(run->n_healed));
    print_skipped(run);
    run_balance_print(run);
    audit_print(run);
    if (run->evaluate != NULL)
        print_values(run);
    if (run->flags->evaluate && run->evaluate != NULL)
        progress_line(&run->progress, "%" PRId64 " sample%s on %d rank%s%s, %.1f s",
                      run->report.test_samples, text_plural(run->report.test_samples), ranks,
                      text_plural(ranks), precision, seconds);
    else if (run->flags->evaluate)
        progress_line(&run->progress,
                      "test accuracy %.4f  top-5 %.4f  loss %.4f  of %" PRId64
                      " sample%s on %d rank%s%s, %.1f s",
                      s->accuracy, s->accuracy5, s->test_loss, run->report.test_samples,
                      text_plural(run->report.test_samples), ranks, text_plural(ranks), precision,
                      seconds);
    else if (s->accuracy >= 0)
        progress_line(&run->progress,
                      "test accuracy %.4f after %lld epoch%s on %d rank%s%s, %.1f s", s->accuracy,
                      (long long)run->at.epoch, text_plural(run->at.epoch), ranks,
                      text_plural(ranks), precision, seconds);
    else
        progress_line(&run->progress, "%lld step%s on %d rank%s%s, loss %.4f, %.1f s",
                      (long long)run->at.step, text_plural(run->at.step), ranks, text_plural(ranks),
                      precision, s->loss, seconds);
    if (!run->flags->evaluate && s->best_accuracy > s->accuracy)
        progress_line(&run->progress, "best test accuracy %.4f after %lld epoch%s",
                      s->best_accuracy, (long long)s->best_epoch, text_plural(s->best_epoch));
    print_how_to_go_on(run);
}
