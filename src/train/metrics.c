/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - --metrics FILE.jsonl: {"epoch":0,"step":100,"loss":0.51,"lr":0.05,"samples_per_s":9000.0}, with "accuracy"
 * in the line that ends an epoch. A resumed run appends.
 */
#include "train/run.h"

#include "base/file.h"
#include "base/json.h"

#include <fcntl.h>

ls_status metrics_open(ls_run *run)
{
    const char *path = run->flags->metrics;
    const int mode = run->flags->resume != NULL ? O_APPEND : O_TRUNC;

    if (path == NULL || run_rank(run) != 0)
        return LS_OK;
    run->metrics_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0666);
    return run->metrics_fd >= 0 ? LS_OK : ls_fail_errno("--metrics %s", path);
}

ls_status metrics_write(ls_run *run, double accuracy)
{
    const ls_run_state *s = &run->state;
    text_buf t = {0};
    json_writer w;
    ls_status st;

    if (run->metrics_fd < 0)
        return LS_OK;
    json_begin(&w, &t);
    json_open(&w, NULL, '{');
    json_put_int(&w, "epoch", s->epoch);
    json_put_int(&w, "step", s->step);
    json_put_real(&w, "loss", s->loss);
    json_put_real(&w, "lr", s->lr);
    json_put_real(&w, "samples_per_s", s->samples_per_s);
    if (accuracy >= 0)
        json_put_real(&w, "accuracy", accuracy);
    json_close(&w, '}');
    text_append(&t, "\n");
    st = text_status(&t);
    if (st == LS_OK)
        st = file_write_all(run->metrics_fd, run->flags->metrics, text_str(&t), t.length);
    text_free(&t);
    return st;
}

void metrics_close(ls_run *run)
{
    file_close(&run->metrics_fd);
}
