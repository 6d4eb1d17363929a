/* SPDX-License-Identifier: Apache-2.0 */
#include "train/small_run.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

ls_train_flags small_flags(const char *dir)
{
    return (ls_train_flags){.epochs = 3,
                            .batch_size = 16,
                            .lr = 0.2,
                            .momentum = 0.9,
                            .data = dir,
                            .device = "cpu_ref",
                            .schedule = "cosine"};
}

static ls_tensor *forward(void *layer, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, layer, ls_flatten(tape, x));
}

static ls_status open_sets(ls_run *run, const ls_train_flags *flags)
{
    ls_dataset *set;

    if (!flags->evaluate) {
        LS_TRY(ls_dataset_open_mnist(flags->data, "train", &set));
        LS_TRY(ls_run_train_on_take(run, set));
    }
    LS_TRY(ls_dataset_open_mnist(flags->data, "t10k", &set));
    return ls_run_test_on_take(run, set);
}

static ls_status train(ls_run *run, const small_job *job, small_result *r)
{
    const int classes = job->other_classes > 0 ? job->other_classes : SMALL_CLASSES;
    ls_batch batch;
    ls_layer *fc = ls_nn_linear(ls_run_model(run), "fc", SMALL_SIDE * SMALL_SIDE, classes, 0);
    int n;

    LS_TRY(open_sets(run, &job->flags));
    if (job->comm != NULL)
        LS_TRY(ls_run_distribute(run, job->comm, NULL));
    LS_TRY(ls_run_start(run, forward, fc));
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = forward(fc, ls_run_tape(run), batch.x);
        ls_run_get_state(run, &r->state);
        if (job->stop_at > 0 && r->state.step + 1 == job->stop_at)
            raise(SIGTERM);
        ls_run_step(run, ls_run_classify(run, logits, batch.y));
        ls_run_get_state(run, &r->state);
        r->lr[(r->state.step - 1) % SMALL_STEPS] = r->state.lr;
    }
    ls_run_get_state(run, &r->state);
    if (classes != SMALL_CLASSES)
        return LS_OK;
    return ls_tensor_read(ls_model_parameters(ls_run_model(run), &n)[0].tensor, r->weights,
                          SMALL_WEIGHTS);
}

small_result small_run(const small_job *job)
{
    small_result r;
    ls_run *run = NULL;

    memset(&r, 0, sizeof(r));
    r.status = ls_run_open(&job->flags, &run);
    if (r.status == LS_OK)
        r.status = train(run, job, &r);
    r.status = ls_run_close(run, r.status);
    if (r.status != LS_OK)
        snprintf(r.error, sizeof(r.error), "%s", ls_last_error());
    return r;
}
