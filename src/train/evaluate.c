/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.c - evaluates the test set, which is divided among the ranks so that every sample counts
 * once. loop.c calls it after each epoch, and once with --evaluate.
 */
#include "train/run.h"

#include "base/clock.h"

static ls_status check_logits(const ls_tensor *logits, int64_t rows)
{
    if (logits == NULL || ls_tensor_dtype(logits) != LS_F32 || ls_tensor_n_dims(logits) != 2 ||
        ls_tensor_dim(logits, 0) != rows)
        return ls_fail(LS_EINVAL,
                       "the forward function must return float32 logits (rows, classes)");
    return LS_OK;
}

static ls_status test_batches(ls_run *run, rank_sums *sums, ls_tensor **pending)
{
    ls_batch batch;

    LS_TRY(ls_loader_start(run->test.loader, 0, 0));
    for (;;) {
        ls_tensor *logits;
        LS_TRY(ls_loader_next(run->test.loader, &batch));
        if (batch.rows == 0)
            return LS_OK;
        ls_tape_reset(run->tape);
        logits = run->forward(run->forward_arg, run->tape, batch.x);
        logits = run_read_logits(run, logits);
        LS_TRY(ls_tape_status(run->tape));
        LS_TRY(check_logits(logits, batch.rows));
        LS_TRY(rank_sums_add_logits(sums, pending, logits, batch.y, true));
    }
}

static ls_status sum_batches(ls_run *run, rank_sums *sums)
{
    ls_tensor *pending = NULL;
    ls_status st = test_batches(run, sums, &pending);

    if (st == LS_OK)
        st = rank_sums_read(sums, pending, true);
    ls_tensor_destroy(pending);
    return st;
}

static void store_result(ls_run *run, const rank_sums *sum)
{
    const double n = sum->ranked > 0 ? sum->ranked : 1;
    ls_run_state *s = &run->state;

    s->accuracy = sum->top1 / n;
    s->accuracy5 = sum->top5 / n;
    s->test_loss = sum->loss / n;
    run->report.test_samples = (int64_t)sum->ranked;
    run->report.bad_images += (int64_t)sum->bad;
    s->bad_images = run->report.bad_images;
    history_add_test(&run->history, &(history_test){.epoch = (double)run->at.epoch,
                                                    .step = (double)run->at.step,
                                                    .loss = s->test_loss,
                                                    .top1 = s->accuracy,
                                                    .top5 = s->accuracy5});
}

ls_status evaluate(ls_run *run)
{
    const int64_t begin_ns = ls_now_ns();
    rank_sums own = {.loss = 0};
    rank_sums sum;

    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    ls_tape_set_training(run->tape, 0);
    LS_TRY(sum_batches(run, &own));
    ls_tape_reset(run->tape);
    own.bad = report_bad_images(run->test.loader, &run->report.bad_seen[1]);
    LS_TRY(rank_sums_reduce(run->comm, &own, &sum));
    store_result(run, &sum);
    run->evaluate_s = (double)(ls_now_ns() - begin_ns) * 1e-9;
    return LS_OK;
}
