/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorboard.c - what a run writes for TensorBoard. Events stay in memory until the next report.
 * run.c, loop.c and report.c call it on rank 0.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "train/common_flags.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAG_BYTES = 160 };

ls_status tensorboard_probe(const char *dir)
{
    if (dir == NULL)
        return LS_OK;
    if (mkdir(dir, 0777) == 0 || access(dir, W_OK | X_OK) == 0)
        return LS_OK;
    return ls_fail_errno("--tensorboard: the folder %s", dir);
}

ls_status tensorboard_begin(tensorboard *t, const ls_train_flags *flags, int64_t step)
{
    ls_train_flags copy = *flags; // what the table refers to
    ls_flag common[COMMON_FLAGS_MOST];

    LS_TRY(ls_context(event_file_open(&t->file, flags->tensorboard), "--tensorboard"));
    if (step >= 0)
        event_restart(&t->file, step + 1);
    else
        event_flags(&t->file, common, common_flags_list(&copy, common));
    return ls_context(event_file_flush(&t->file), "--tensorboard");
}

/* Curves of training and test with the same `what` are in one group. */
static void add(tensorboard *t, const char *what, const char *of, int64_t step, double value)
{
    char tag[TAG_BYTES];

    if (isfinite(value))
        event_scalar(&t->file, text_format(tag, sizeof(tag), "%s/%s", what, of), step, value);
}

static void add_values(tensorboard *t, const run_values *v, value_of kind, const char *of,
                       int64_t step)
{
    for (int i = 0; i < v->n; i++)
        if (v->is_known[kind][i])
            add(t, v->names[i], of, step, v->mean[kind][i]);
}

static void add_training(tensorboard *t, const metrics_line *line)
{
    const ls_run_state *s = line->state;

    add(t, "loss", "train", s->step, s->loss);
    add(t, "training", "lr", s->step, s->lr);
    add(t, "training", "samples_per_s", s->step, s->samples_per_s);
    add(t, "training", "data_wait", s->step, s->data_wait);
    if (s->top1 >= 0) {
        add(t, "accuracy", "train", s->step, s->top1);
        add(t, "accuracy5", "train", s->step, s->top5);
    }
    add_values(t, line->values, OF_TRAINING, "train", s->step);
    for (int i = 0; i < PHASES; i++)
        add(t, "seconds", phase_name((phase)i), s->step, line->training->seconds[i]);
}

static void add_test(tensorboard *t, const metrics_line *line)
{
    const ls_run_state *s = line->state;

    add_values(t, line->values, OF_TEST, "test", s->step);
    if (line->has_own_test)
        return;
    add(t, "loss", "test", s->step, s->test_loss);
    add(t, "accuracy", "test", s->step, s->accuracy);
    add(t, "accuracy5", "test", s->step, s->accuracy5);
}

void tensorboard_add(tensorboard *t, const metrics_line *line)
{
    if (t->file.fd < 0)
        return;
    if (line->training != NULL)
        add_training(t, line);
    if (line->has_test)
        add_test(t, line);
}

ls_status tensorboard_flush(tensorboard *t)
{
    const bool is_repeated = t->has_failed;
    ls_status st;

    if (t->file.fd < 0)
        return LS_OK;
    st = event_file_flush(&t->file);
    t->has_failed = st != LS_OK;
    return is_repeated ? LS_OK : st;
}

/* `values`: a buffer for the elements. */
static ls_status add_histogram(tensorboard *t, int64_t step, const char *group, const char *name,
                               const ls_tensor *tensor, double scale, float *values)
{
    const size_t n = ls_tensor_count(tensor);
    char tag[TAG_BYTES];

    LS_TRY(ls_tensor_read(tensor, values, n));
    for (size_t i = 0; scale != 1.0 && i < n; i++)
        values[i] = (float)((double)values[i] / scale);
    event_histogram(&t->file, text_format(tag, sizeof(tag), "%s/%s", group, name), step, values, n);
    return LS_OK;
}

static ls_status add_parameter(tensorboard *t, int64_t step, const ls_named *p, double scale,
                               float *values)
{
    const ls_tensor *grad = ls_grad(p->tensor);

    LS_TRY(add_histogram(t, step, "weights", p->name, p->tensor, 1.0, values));
    if (grad == NULL)
        return LS_OK;
    return add_histogram(t, step, "gradients", p->name, grad, scale, values);
}

ls_status tensorboard_add_histograms(tensorboard *t, int64_t step, const ls_named *parameters,
                                     int n, double scale)
{
    size_t most = 1;
    float *values;
    ls_status st = LS_OK;

    if (t->file.fd < 0)
        return LS_OK;
    for (int i = 0; i < n; i++)
        if (ls_tensor_count(parameters[i].tensor) > most)
            most = ls_tensor_count(parameters[i].tensor);
    LS_TRY(LS_NEW(&values, most, "for histograms of parameters"));
    for (int i = 0; i < n && st == LS_OK; i++)
        if (ls_tensor_dtype(parameters[i].tensor) == LS_F32)
            st = add_parameter(t, step, &parameters[i], scale, values);
    ls_free(values);
    return st;
}

void tensorboard_close(tensorboard *t)
{
    event_file_close(&t->file);
}

/* --- the public call --- */

ls_status ls_run_image(ls_run *run, const char *name, const void *png, size_t bytes)
{
    LS_TRY(LS_GIVEN(run));
    LS_TRY(LS_GIVEN(name));
    LS_TRY(LS_GIVEN(png));
    if (run->tensorboard.file.fd < 0)
        return LS_OK;
    return event_image(&run->tensorboard.file, name, run->at.step, png, bytes);
}
