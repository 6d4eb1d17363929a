/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - the bar and the lines that rank 0 prints while it trains. The values change with
 * each report only; loop.c calls progress_step() after each step.
 */
#include "train/output/progress.h"

#include "base/clock.h"
#include "base/flags/terminal.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REDRAW_MS = 100, LINE_MS = 5000, GPU_MS = 1000 };
enum { BAR_CELLS_MIN = 8, BAR_CELLS_MAX = 24, DEFAULT_COLUMNS = 80 };

void progress_write(int fd, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        const ssize_t n = write(fd, text, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        text += n;
        left -= (size_t)n;
    }
}

/* The width of the launcher's terminal, which a rank sees through a pipe only; NULL: there is
 * none. */
static const char *launcher_columns(void)
{
    return getenv("LOCKSTEP_TTY"); // NOLINT(concurrency-mt-unsafe): no thread changes it
}

void progress_init(progress *p, bool is_enabled, int64_t print_freq, const ls_device *device)
{
    p->device = device;
    p->is_enabled = is_enabled;
    p->print_freq = print_freq;
    p->is_terminal = isatty(STDERR_FILENO) || launcher_columns() != NULL;
    p->last_ms = ls_now_ms();
}

static void append_time(text_buf *t, double seconds)
{
    const long long s = (long long)seconds;

    if (s < 3600)
        text_append(t, "%lld:%02lld", s / 60, s % 60);
    else
        text_append(t, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

/* The pieces of a progress line, in order; each begins with its separator. */
enum {
    EPOCH,
    BAR,
    STEP,
    LOSS,
    TOP,
    VALUES,
    LEARNING_RATE,
    RATE,
    RATE_PER_RANK,
    DATA,
    GPU,
    ETA,
    N_PIECES
};

typedef char piece[256];

static void make_pieces(const progress_values *v, piece pieces[N_PIECES])
{
    const ls_run_state *s = v->state;
    text_buf values = {0};
    text_buf eta = {0};

    memset(pieces, 0, N_PIECES * sizeof(piece));
    text_format(pieces[EPOCH], sizeof(piece), "epoch %lld/%lld", (long long)s->epoch + 1,
                (long long)v->epochs);
    text_format(pieces[STEP], sizeof(piece), "  step %lld", (long long)s->step);
    if (s->samples_per_s <= 0) /* before the first report */
        return;
    text_format(pieces[LOSS], sizeof(piece), "  loss %.4f", s->loss);
    if (s->top1 >= 0)
        text_format(pieces[TOP], sizeof(piece), "  top-1 %.4f  top-5 %.4f", s->top1, s->top5);
    if (v->values != NULL)
        values_append(v->values, OF_TRAINING, &values);
    text_format(pieces[VALUES], sizeof(piece), "%s", text_str(&values));
    text_format(pieces[LEARNING_RATE], sizeof(piece), "  lr %.3g", s->lr);
    text_format(pieces[RATE], sizeof(piece), "  %.0f samples/s", s->samples_per_s);
    if (v->ranks > 1)
        text_format(pieces[RATE_PER_RANK], sizeof(piece), " (%.0f per rank)",
                    s->samples_per_s / v->ranks);
    text_format(pieces[DATA], sizeof(piece), "  data %.1f %%", 100 * s->data_wait);
    if (v->gpu != NULL && v->gpu[0] != '\0')
        text_format(pieces[GPU], sizeof(piece), "  gpu %s", v->gpu);
    if (s->seconds_left >= 0) {
        append_time(&eta, s->seconds_left);
        text_format(pieces[ETA], sizeof(piece), "  ETA %s", text_str(&eta));
    }
    text_free(&eta);
    text_free(&values);
}

static void make_bar(const progress_values *v, int cells, piece out)
{
    const int64_t total = v->epoch_batches > 0 ? v->epoch_batches : 1;
    const int full = (int)(v->batch * cells / total);
    char drawn[BAR_CELLS_MAX + 1] = "";

    for (int i = 0; i < cells; i++)
        drawn[i] = i < full ? '=' : ' ';
    text_format(out, sizeof(piece), "  [%s]", drawn);
}

/* Empties the least important pieces until the line fits; the bar takes the remaining columns. */
static void fit_pieces(const progress_values *v, int columns, piece pieces[N_PIECES])
{
    static const int by_importance[N_PIECES] = {
        EPOCH, ETA, RATE, LOSS, STEP, BAR, TOP, VALUES, LEARNING_RATE, GPU, DATA, RATE_PER_RANK};
    int i = 0;
    int cells;

    make_bar(v, BAR_CELLS_MIN, pieces[BAR]);
    for (; i < N_PIECES && (int)strlen(pieces[by_importance[i]]) <= columns; i++)
        columns -= (int)strlen(pieces[by_importance[i]]);
    for (; i < N_PIECES; i++)
        pieces[by_importance[i]][0] = 0;
    if (pieces[BAR][0] == 0)
        return;
    cells = BAR_CELLS_MIN + columns;
    make_bar(v, cells < BAR_CELLS_MAX ? cells : BAR_CELLS_MAX, pieces[BAR]);
}

static void append_pieces(text_buf *t, piece pieces[N_PIECES])
{
    for (int i = 0; i < N_PIECES; i++)
        text_append(t, "%s", pieces[i]);
}

void progress_bar_text(const progress_values *v, int columns, text_buf *out)
{
    piece pieces[N_PIECES];

    make_pieces(v, pieces);
    fit_pieces(v, columns, pieces);
    append_pieces(out, pieces);
}

static int bar_columns(void)
{
    const char *given = launcher_columns();
    int64_t columns = terminal_columns(STDERR_FILENO);

    if (columns == 0 &&
        (given == NULL || text_parse_int(given, "LOCKSTEP_TTY", 1, 10000, &columns) != LS_OK))
        columns = DEFAULT_COLUMNS;
    return (int)columns;
}

static void draw_bar(const progress_values *v)
{
    text_buf t = {0};

    text_append(&t, "\r");
    progress_bar_text(v, bar_columns() - 1, &t); // a full line makes some terminals wrap
    text_append(&t, "\x1b[K");
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    (void)log_set_bar(true);
}

/* Looks at the GPU, at most once a second. */
static void update_gpu(progress *p, int64_t now_ms)
{
    device_usage usage;
    char memory[32];
    char busy[16] = "";

    if (p->device == NULL || p->device->accel == NULL || now_ms - p->gpu_ms < GPU_MS ||
        device_get_usage(p->device, &usage) != LS_OK)
        return;
    p->gpu_ms = now_ms;
    if (usage.busy_percent >= 0)
        text_format(busy, sizeof(busy), "%d %% ", usage.busy_percent);
    text_format(p->gpu, sizeof(p->gpu), "%s%s", busy,
                text_bytes(memory, sizeof(memory), usage.used_bytes));
}

static void print_values(progress *p, const progress_values *v)
{
    piece pieces[N_PIECES];
    text_buf t = {0};

    make_pieces(v, pieces);
    append_pieces(&t, pieces);
    progress_line(p, "%s", text_str(&t));
    text_free(&t);
}

void progress_step(progress *p, const progress_values *v)
{
    const int64_t now_ms = ls_now_ms();
    const bool is_line_due = p->print_freq > 0 && v->state->step % p->print_freq == 0;
    const bool is_time = now_ms - p->last_ms >= (p->is_terminal ? REDRAW_MS : LINE_MS);
    progress_values shown = *v;

    if (!p->is_enabled || !(is_line_due || is_time))
        return;
    p->last_ms = now_ms;
    update_gpu(p, now_ms);
    shown.gpu = p->gpu;
    if (is_line_due || (!p->is_terminal && p->print_freq == 0))
        print_values(p, &shown);
    if (is_time && !is_line_due && p->is_terminal)
        draw_bar(&shown);
}

void progress_line(progress *p, const char *format, ...)
{
    char line[512];
    va_list args;
    text_buf t = {0};

    if (!p->is_enabled)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (log_set_bar(false))
        progress_write(STDERR_FILENO, "\r\x1b[K");
    text_append(&t, "%s\n", line);
    progress_write(STDOUT_FILENO, text_str(&t));
    text_free(&t);
}
