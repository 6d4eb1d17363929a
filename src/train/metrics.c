/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - --metrics FILE.jsonl, one object a line (docs/training.md lists the members):
 * {"epoch":0,"step":100,"loss":0.51,"lr":0.05,"samples_per_s":9000.0,...}, with "accuracy" and its kin in the line that ends an
 * epoch. A resumed run appends.
 */
#include "train/run.h"

#include "base/file.h"
#include "base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

ls_status metrics_open(ls_run *run)
{
    const char *path = run->flags->metrics;
    const int mode = run->flags->resume != NULL ? O_APPEND : O_TRUNC;
    struct stat info;

    if (path == NULL || run_rank(run) != 0)
        return LS_OK;
    run->metrics_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0666);
    if (run->metrics_fd < 0 || fstat(run->metrics_fd, &info) != 0)
        return ls_fail_errno("--metrics %s", path);
    run->metrics_bytes = info.st_size;
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

/* A line that did not fit is taken back, so that the file stays one of whole lines. */
static ls_status write_line(ls_run *run, const text_buf *line)
{
    ls_status st = text_status(line);

    if (st == LS_OK)
        st = file_write_all(run->metrics_fd, run->flags->metrics, text_str(line), line->length);
    if (st == LS_OK) {
        run->metrics_bytes += (int64_t)line->length;
        return LS_OK;
    }
    if (ftruncate(run->metrics_fd, run->metrics_bytes) == 0)
        LS_UNUSED(lseek(run->metrics_fd, 0, SEEK_END));
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
