/* SPDX-License-Identifier: Apache-2.0 */
#include "train/run.h"

/* How many rows have their largest logit at the target; of equal ones the first counts. */
static ls_status count_correct(const ls_tensor *logits, const ls_tensor *targets, int64_t rows,
                               double *correct)
{
    const float *scores = ls_tensor_data_const(logits);
    const int64_t *wanted = ls_tensor_data_const(targets);
    const int64_t classes = ls_tensor_dim(logits, -1);

    if (scores == NULL || wanted == NULL)
        return LS_ENOMEM;
    for (int64_t i = 0; i < rows; i++) {
        const float *row = scores + i * classes;
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++)
            if (row[k] > row[best])
                best = k;
        *correct += best == wanted[i];
    }
    return LS_OK;
}

static ls_status test_batches(ls_run *run, double *correct, double *rows)
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
        if (logits == NULL || ls_tensor_dtype(logits) != LS_F32 || ls_tensor_n_dims(logits) != 2)
            return ls_fail(LS_EINVAL,
                           "the program's forward gives no float32 logits (rows, classes)");
        LS_TRY(count_correct(logits, batch.y, batch.rows, correct));
        *rows += (double)batch.rows;
    }
}

ls_status evaluate(ls_run *run)
{
    double sums[2] = {0, 0}; /* correct, rows */

    if (run->ddp != NULL)
        LS_TRY(ls_ddp_sync_buffers(run->ddp));
    ls_tape_set_training(run->tape, 0);
    LS_TRY(test_batches(run, &sums[0], &sums[1]));
    ls_tape_reset(run->tape);
    if (run->comm != NULL)
        LS_TRY(ls_all_reduce(run->comm, sums, sums, 2, LS_F64, LS_SUM, NULL));
    run->state.accuracy = sums[1] > 0 ? sums[0] / sums[1] : 0;
    return LS_OK;
}
