/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.c - the test set, dealt out to the ranks so that every sample is seen by one of them and counts once.
 */
#include "train/run.h"

#include "base/clock.h"

static ls_status check_logits(const ls_tensor *logits, int64_t rows)
{
    if (logits == NULL || ls_tensor_dtype(logits) != LS_F32 || ls_tensor_n_dims(logits) != 2 ||
        ls_tensor_dim(logits, 0) != rows)
        return ls_fail(LS_EINVAL, "the program's forward gives no float32 logits (rows, classes)");
    return LS_OK;
}

static ls_status test_batches(ls_run *run, tally *t)
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
        LS_TRY(ls_tape_status(run->tape));
        LS_TRY(check_logits(logits, batch.rows));
        LS_TRY(tally_logits(t, logits, batch.y, true));
    }
}

static void keep_result(ls_run *run, const tally *sum)
{
    const double n = sum->ranked > 0 ? sum->ranked : 1;
    ls_run_state *s = &run->state;

    s->accuracy = sum->top1 / n;
    s->accuracy5 = sum->top5 / n;
    s->test_loss = sum->loss / n;
    run->tested = sum->ranked;
    run->bad_reported += (int64_t)sum->bad;
    s->bad_images = run->bad_reported;
    history_add_test(&run->history, &(history_test){.epoch = (double)run->at.epoch,
                                                    .step = (double)run->at.step,
                                                    .loss = s->test_loss,
                                                    .top1 = s->accuracy,
                                                    .top5 = s->accuracy5});
}

ls_status evaluate(ls_run *run)
{
    const int64_t begin_ns = ls_now_ns();
    tally mine = {.loss = 0};
    tally sum;

    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    ls_tape_set_training(run->tape, 0);
    LS_TRY(test_batches(run, &mine));
    ls_tape_reset(run->tape);
    mine.bad = report_bad_images(run->test.loader, &run->bad_seen[1]);
    LS_TRY(tally_sum(run->comm, &mine, &sum));
    keep_result(run, &sum);
    run->evaluate_s = (double)(ls_now_ns() - begin_ns) * 1e-9;
    return LS_OK;
}
