/* SPDX-License-Identifier: Apache-2.0 */
#include "train/run.h"

#include "base/clock.h"
#include "base/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REDRAW_MS = 100, LINE_MS = 5000 };
enum { BAR_CELLS_LEAST = 8, BAR_CELLS_MOST = 24, COLUMNS_USUAL = 80 };

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

void progress_init(progress *p, int rank)
{
    p->speaks = rank == 0;
    /* Under a launcher the terminal is behind its pipe. NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets the variable */
    p->is_terminal = isatty(STDERR_FILENO) || getenv("LOCKSTEP_TTY") != NULL;
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

/* What a progress line says, in its order; each piece begins with what separates it from others. */
enum { EPOCH, BAR, STEP, LOSS, TOP, RATE_OF_LEARNING, RATE, RATE_OF_RANK, DATA, ETA, N_PIECES };

typedef char piece[64];

static void make_pieces(const ls_run *run, piece pieces[N_PIECES])
{
    const ls_run_state *s = &run->state;
    text_buf eta = {0};

    memset(pieces, 0, N_PIECES * sizeof(piece));
    text_format(pieces[EPOCH], sizeof(piece), "epoch %lld/%lld", (long long)s->epoch + 1,
                (long long)run->flags->epochs);
    text_format(pieces[STEP], sizeof(piece), "  step %lld", (long long)s->step);
    if (s->samples_per_s <= 0) /* nothing has been measured yet */
        return;
    text_format(pieces[LOSS], sizeof(piece), "  loss %.4f", s->loss);
    if (s->top1 >= 0)
        text_format(pieces[TOP], sizeof(piece), "  top-1 %.4f  top-5 %.4f", s->top1, s->top5);
    text_format(pieces[RATE_OF_LEARNING], sizeof(piece), "  lr %.3g", s->lr);
    text_format(pieces[RATE], sizeof(piece), "  %.0f samples/s", s->samples_per_s);
    if (run_size(run) > 1)
        text_format(pieces[RATE_OF_RANK], sizeof(piece), " (%.0f a rank)",
                    s->samples_per_s / run_size(run));
    text_format(pieces[DATA], sizeof(piece), "  data %.1f %%", 100 * s->data_wait);
    if (s->seconds_left >= 0) {
        append_time(&eta, s->seconds_left);
        text_format(pieces[ETA], sizeof(piece), "  ETA %s", text_str(&eta));
    }
    text_free(&eta);
}

static void make_bar(const ls_run *run, int cells, piece out)
{
    const int64_t of = run->epoch_batches > 0 ? run->epoch_batches : 1;
    const int full = (int)(run->at.batch * cells / of);
    char drawn[BAR_CELLS_MOST + 1] = "";

    for (int i = 0; i < cells; i++)
        drawn[i] = i < full ? '=' : ' ';
    text_format(out, sizeof(piece), "  [%s]", drawn);
}

/* Empties the pieces that do not fit, the least important first; the bar takes what is left. */
static void fit_pieces(const ls_run *run, int columns, piece pieces[N_PIECES])
{
    static const int by_importance[N_PIECES] = {
        EPOCH, ETA, RATE, LOSS, STEP, BAR, TOP, RATE_OF_LEARNING, DATA, RATE_OF_RANK};
    int i = 0;
    int cells;

    make_bar(run, BAR_CELLS_LEAST, pieces[BAR]);
    for (; i < N_PIECES && (int)strlen(pieces[by_importance[i]]) <= columns; i++)
        columns -= (int)strlen(pieces[by_importance[i]]);
    for (; i < N_PIECES; i++)
        pieces[by_importance[i]][0] = 0;
    if (pieces[BAR][0] == 0)
        return;
    cells = BAR_CELLS_LEAST + columns;
    make_bar(run, cells < BAR_CELLS_MOST ? cells : BAR_CELLS_MOST, pieces[BAR]);
}

static void append_pieces(text_buf *t, piece pieces[N_PIECES])
{
    for (int i = 0; i < N_PIECES; i++)
        text_append(t, "%s", pieces[i]);
}

void progress_bar_text(const ls_run *run, int columns, text_buf *out)
{
    piece pieces[N_PIECES];

    make_pieces(run, pieces);
    fit_pieces(run, columns, pieces);
    append_pieces(out, pieces);
}

/* Of the terminal that shows the bar; behind a launcher's pipe it is the launcher's that knows. */
static int bar_columns(void)
{
    const char *given = getenv("LOCKSTEP_TTY"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    int64_t columns = terminal_columns(STDERR_FILENO);

    if (columns == 0 &&
        (given == NULL || text_parse_int(given, "LOCKSTEP_TTY", 1, 10000, &columns) != LS_OK))
        columns = COLUMNS_USUAL;
    return (int)columns;
}

static void draw_bar(ls_run *run)
{
    text_buf t = {0};

    text_append(&t, "\r");
    progress_bar_text(run, bar_columns() - 1, &t); // a full line makes some terminals wrap
    text_append(&t, "\x1b[K");
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    run->progress.bar_shown = true;
}

static void write_facts(ls_run *run)
{
    piece pieces[N_PIECES];
    text_buf t = {0};

    make_pieces(run, pieces);
    append_pieces(&t, pieces);
    progress_line(&run->progress, "%s", text_str(&t));
    text_free(&t);
}

void progress_step(ls_run *run)
{
    progress *p = &run->progress;
    const int64_t now_ms = ls_now_ms();
    const int64_t every = run->flags->print_freq;

    if (!p->speaks)
        return;
    if (every > 0 && run->at.step % every == 0) {
        write_facts(run);
        p->last_ms = now_ms;
    }
    if (now_ms - p->last_ms < (p->is_terminal ? REDRAW_MS : LINE_MS))
        return;
    p->last_ms = now_ms;
    if (p->is_terminal)
        draw_bar(run);
    else if (every == 0)
        write_facts(run);
}

void progress_line(progress *p, const char *format, ...)
{
    char line[512];
    va_list args;
    text_buf t = {0};

    if (!p->speaks)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (p->bar_shown)
        progress_write(STDERR_FILENO, "\r\x1b[K");
    p->bar_shown = false;
    text_append(&t, "%s\n", line);
    progress_write(STDOUT_FILENO, text_str(&t));
    text_free(&t);
}
