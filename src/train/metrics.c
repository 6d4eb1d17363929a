/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - --metrics FILE.jsonl, one object a line (docs/training.md lists the members):
 * {"epoch":0,"step":100,"loss":0.51,"lr":0.05,"samples_per_s":9000.0,...}, with "accuracy" and its kin in the line that ends an
 * epoch. A resumed run appends behind the lines of the steps that it resumes from.
 */
#include "train/run.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ls_status metrics_open(ls_run *run)
{
    const char *path = run->flags->metrics;

    if (path == NULL)
        return LS_OK;
    run->metrics_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return run->metrics_fd >= 0 ? LS_OK : ls_fail_errno("--metrics %s", path);
}

static bool is_later(const char *line, size_t n, int64_t step)
{
    json_value *v;
    bool later;

    if (json_parse(line, n, "a line of metrics", &v) != LS_OK)
        return false;
    later = json_as_int(json_get(v, "step"), 0) > step;
    json_free(v);
    return later;
}

/* The bytes of the whole lines before the first one behind `step`: a run that crashed after its
 * last save has written those, and perhaps a torn last one. */
static ls_status find_end(const char *path, int64_t step, int64_t *bytes)
{
    char *text;
    const char *line;
    const char *end;
    size_t n;

    LS_TRY(file_read(path, SIZE_MAX, &text, &n));
    for (line = text; (end = memchr(line, '\n', n - (size_t)(line - text))) != NULL; line = end + 1)
        if (is_later(line, (size_t)(end - line), step))
            break;
    *bytes = line - text;
    ls_free(text);
    return LS_OK;
}

ls_status metrics_begin(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    struct stat info;

    if (run_rank(run) != 0)
        metrics_close(run);
    else if (run->metrics_fd < 0)
        LS_TRY(metrics_open(run));
    if (run->metrics_fd < 0)
        return LS_OK;
    if (fstat(run->metrics_fd, &info) != 0)
        return ls_fail_errno("--metrics %s", f->metrics);
    if (!S_ISREG(info.st_mode)) /* a pipe or a terminal: nothing can be taken back */
        return LS_OK;
    run->metrics_bytes = run->resumed || (f->evaluate && f->resume != NULL) ? info.st_size : 0;
    if (run->resumed)
        LS_TRY(find_end(f->metrics, run->at.step, &run->metrics_bytes));
    if (ftruncate(run->metrics_fd, run->metrics_bytes) != 0)
        return ls_fail_errno("--metrics %s", f->metrics);
    return LS_OK;
}

static void put_training(json_writer *w, const ls_run *run, const history_point *seen)
{
    const ls_run_state *s = &run->state;

    json_put_real(w, "loss", s->loss);
    json_put_real(w, "lr", s->lr);
    json_put_real(w, "samples_per_s", s->samples_per_s);
    json_put_real(w, "samples_per_s_rank", s->samples_per_s / run_size(run));
    if (s->top1 >= 0) {
        json_put_real(w, "top1", s->top1);
        json_put_real(w, "top5", s->top5);
    }
    json_put_real(w, "data_wait", s->data_wait);
    json_open(w, "seconds", '{');
    for (int i = 0; i < PHASES; i++)
        json_put_real(w, phase_name((phase)i), seen->seconds[i]);
    json_close(w, '}');
}

static void put_test(json_writer *w, const ls_run *run)
{
    const ls_run_state *s = &run->state;

    json_put_real(w, "accuracy", s->accuracy);
    json_put_real(w, "accuracy5", s->accuracy5);
    json_put_real(w, "test_loss", s->test_loss);
    json_put_real(w, "best_accuracy", s->best_accuracy);
    json_put_int(w, "test_samples", (int64_t)run->tested);
}

/* A line that did not fit is taken back, so that the file stays one of whole lines. Of several in a
 * row the first failure is reported. */
static ls_status write_line(ls_run *run, const text_buf *line)
{
    ls_status st = text_status(line);

    if (st == LS_OK)
        st = file_write_all(run->metrics_fd, run->flags->metrics, text_str(line), line->length);
    if (st == LS_OK) {
        run->metrics_bytes += (int64_t)line->length;
        run->metrics_failed = false;
        return LS_OK;
    }
    LS_UNUSED(ftruncate(run->metrics_fd, run->metrics_bytes));
    if (run->metrics_failed)
        return LS_OK;
    run->metrics_failed = true;
    return save_failed(run, st, "metrics");
}

ls_status metrics_write(ls_run *run, const history_point *seen, bool tested)
{
    text_buf line = {0};
    json_writer w;
    ls_status st;

    if (run->metrics_fd < 0)
        return LS_OK;
    json_begin(&w, &line);
    json_open(&w, NULL, '{');
    json_put_int(&w, "epoch", run->state.epoch);
    json_put_int(&w, "step", run->state.step);
    if (seen != NULL)
        put_training(&w, run, seen);
    if (tested)
        put_test(&w, run);
    json_put_int(&w, "bad_images", run->state.bad_images);
    json_close(&w, '}');
    text_append(&line, "\n");
    st = write_line(run, &line);
    text_free(&line);
    return st;
}

void metrics_close(ls_run *run)
{
    file_close(&run->metrics_fd);
}
