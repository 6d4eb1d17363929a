/* SPDX-License-Identifier: Apache-2.0 */
#include "train/run.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REDRAW_MS = 100, LINE_MS = 5000, BAR_CELLS = 24 };

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

static void append_facts(text_buf *t, const ls_run *run)
{
    const ls_run_state *s = &run->state;

    text_append(t, "step %lld", (long long)s->step);
    if (s->samples_per_s <= 0) /* nothing has been measured yet */
        return;
    text_append(t, "  loss %.4f", s->loss);
    if (s->top1 >= 0)
        text_append(t, "  top-1 %.4f  top-5 %.4f", s->top1, s->top5);
    text_append(t, "  lr %.3g  %.0f samples/s", s->lr, s->samples_per_s);
    if (run_size(run) > 1)
        text_append(t, " (%.0f a rank)", s->samples_per_s / run_size(run));
    text_append(t, "  data %.1f %%", 100 * s->data_wait);
    if (s->seconds_left >= 0) {
        text_append(t, "  ETA ");
        append_time(t, s->seconds_left);
    }
}

static void draw_bar(ls_run *run)
{
    const int64_t of = run->epoch_steps > 0 ? run->epoch_steps : 1;
    const int full = (int)(run->at.batch * BAR_CELLS / of);
    text_buf t = {0};

    text_append(&t, "\repoch %lld/%lld [", (long long)run->state.epoch + 1,
                (long long)run->flags->epochs);
    for (int i = 0; i < BAR_CELLS; i++)
        text_append(&t, i < full ? "=" : " ");
    text_append(&t, "] ");
    append_facts(&t, run);
    text_append(&t, "\x1b[K");
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    run->progress.bar_shown = true;
}

static void write_facts(ls_run *run)
{
    text_buf t = {0};

    text_append(&t, "epoch %lld/%lld  ", (long long)run->state.epoch + 1,
                (long long)run->flags->epochs);
    append_facts(&t, run);
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
