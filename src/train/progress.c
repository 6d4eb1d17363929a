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

static void append_facts(text_buf *t, const ls_run_state *s)
{
    text_append(t, "step %lld", (long long)s->step);
    if (s->samples_per_s > 0) /* otherwise nothing has been measured yet */
        text_append(t, "  loss %.4f  lr %.3g  %.0f samples/s", s->loss, s->lr, s->samples_per_s);
}

static void draw_bar(progress *p, const ls_run_state *s, int64_t epochs, int64_t at,
                     int64_t epoch_steps)
{
    const int full = epoch_steps > 0 ? (int)(at * BAR_CELLS / epoch_steps) : 0;
    text_buf t = {0};

    text_append(&t, "\repoch %lld/%lld [", (long long)s->epoch + 1, (long long)epochs);
    for (int i = 0; i < BAR_CELLS; i++)
        text_append(&t, i < full ? "=" : " ");
    text_append(&t, "] ");
    append_facts(&t, s);
    text_append(&t, "\x1b[K");
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    p->bar_shown = true;
}

void progress_step(progress *p, const ls_run_state *s, int64_t epochs, int64_t at,
                   int64_t epoch_steps)
{
    const int64_t now_ms = ls_now_ms();
    text_buf t = {0};

    if (!p->speaks || now_ms - p->last_ms < (p->is_terminal ? REDRAW_MS : LINE_MS))
        return;
    p->last_ms = now_ms;
    if (p->is_terminal) {
        draw_bar(p, s, epochs, at, epoch_steps);
        return;
    }
    text_append(&t, "epoch %lld/%lld  ", (long long)s->epoch + 1, (long long)epochs);
    append_facts(&t, s);
    progress_line(p, "%s", text_str(&t));
    text_free(&t);
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
