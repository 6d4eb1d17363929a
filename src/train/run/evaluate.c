/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.c - evaluates the test set, which is divided among the ranks so that every sample counts
 * once. loop.c calls it after each epoch, and once with --evaluate.
 */
#include "train/finite.h"
#include "train/run/run.h"

#include "base/clock.h"

#include <math.h>

static ls_status check_logits(const ls_tensor *logits, int64_t rows)
{
    if (logits == NULL || ls_tensor_dtype(logits) != LS_F32 || ls_tensor_n_dims(logits) != 2 ||
        ls_tensor_dim(logits, 0) != rows)
        return ls_fail(LS_EINVAL,
                       "the forward function must return float32 logits (rows, classes)");
    return LS_OK;
}

static ls_status test_logits(ls_run *run, const ls_batch *batch, ls_tensor **pending)
{
    ls_tensor *logits = run->forward(run->forward_arg, run->tape, batch->x);

    logits = run_read_logits(run, logits);
    LS_TRY(ls_tape_status(run->tape));
    LS_TRY(check_logits(logits, batch->rows));
    return rank_sums_add_logits(&run->report.test, pending, logits, batch->y, true);
}

/* With the program's function. */
static ls_status test_values(ls_run *run, const ls_batch *batch)
{
    LS_TRY(run->evaluate(run->evaluate_arg, run, batch));
    if (run->failure != LS_OK) // of ls_run_add()
        return ls_fail(run->failure, "%s", run->failure_text);
    return ls_tape_status(run->tape);
}

static ls_status test_batches(ls_run *run, ls_loader *loader, ls_tensor **pending)
{
    ls_batch batch;

    LS_TRY(ls_loader_start(loader, 0, 0));
    for (;;) {
        LS_TRY(ls_loader_next(loader, &batch));
        if (batch.rows == 0)
            return LS_OK;
        ls_tape_reset(run->tape);
        LS_TRY(run->evaluate != NULL ? test_values(run, &batch)
                                     : test_logits(run, &batch, pending));
        run->report.test.samples += (double)batch.rows;
    }
}

/* Of a part of this rank, in run->report.test. */
static ls_status sum_batches(ls_run *run, int part)
{
    ls_tensor *pending = NULL;
    ls_status st;

    run->report.test = (rank_sums){.loss = 0};
    run->is_testing = true;
    st = test_batches(run, run->test.parts[part].loader, &pending);
    run->is_testing = false;
    if (st == LS_OK)
        st = rank_sums_read(&run->report.test, pending, true);
    if (st == LS_OK)
        st = losses_collect(&run->losses);
    ls_tensor_destroy(pending);
    return st;
}

static void store_accuracy(ls_run *run, const rank_sums *sum)
{
    const double n = sum->ranked > 0 ? sum->ranked : 1;
    ls_run_state *s = &run->state;

    s->accuracy = sum->top1 / n;
    s->accuracy5 = sum->top5 / n;
    s->test_loss = finite_mean(sum->loss, n);
}

static void add_to_history(ls_run *run)
{
    const bool has_accuracy = run->evaluate == NULL;
    const ls_run_state *s = &run->state;
    history_test t = {.epoch = (double)run->at.epoch,
                      .step = (double)run->at.step,
                      .loss = has_accuracy ? s->test_loss : (double)NAN,
                      .top1 = has_accuracy ? s->accuracy : (double)NAN,
                      .top5 = has_accuracy ? s->accuracy5 : (double)NAN};

    values_copy(&run->values, OF_TEST, t.values);
    history_add_test(&run->history, &t);
}

static void store_result(ls_run *run, const rank_sums *sum)
{
    run->report.test_samples = (int64_t)sum->samples;
    run->report.bad_images += (int64_t)sum->bad;
    run->state.bad_images = run->report.bad_images;
    values_update(&run->values, OF_TEST, sum);
    if (run->evaluate == NULL)
        store_accuracy(run, sum);
    add_to_history(run);
}

ls_status evaluate(ls_run *run)
{
    const int64_t begin_ns = ls_now_ns();
    rank_sums sum;

    ls_tape_set_training(run->tape, 0);
    for (int i = 0; i < run->partition.n; i++) {
        LS_TRY(sum_batches(run, i));
        run->report.tests[i] = run->report.test;
    }
    ls_tape_reset(run->tape);
    run->report.tests[0].bad = report_bad_images(&run->test, &run->report.bad_seen[1]);
    LS_TRY(partition_sums(&run->partition, run->comm, run->report.tests, &sum));
    store_result(run, &sum);
    run->evaluate_s = (double)(ls_now_ns() - begin_ns) * 1e-9;
    return LS_OK;
}
