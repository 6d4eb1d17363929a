/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_sums.c - counts hits and losses of a batch, and adds up the counts of all ranks in one
 * all-reduce. loop.c, report.c and evaluate.c call it.
 */
#include "train/rank_sums.h"

#include "autograd/autograd.h"
#include "base/status.h"
#include "comm/comm.h"
#include "tensor/tensor.h"

#include <math.h>

const char *phase_name(phase which)
{
    static const char *const names[PHASES] = {
        "data", "forward", "backward", "communication", "optimizer", "evaluation", "save"};

    return names[which];
}

ls_status rank_sums_reduce(ls_comm *comm, const rank_sums *own, rank_sums *out)
{
    *out = *own;
    if (comm == NULL)
        return LS_OK;
    comm_label(comm, "report");
    return ls_all_reduce(comm, out, out, sizeof(*out) / sizeof(double), LS_F64, LS_SUM, NULL);
}

static double row_loss(const float *row, int64_t classes, int64_t target)
{
    float max = row[0];
    double total = 0;

    for (int64_t k = 1; k < classes; k++)
        max = row[k] > max ? row[k] : max;
    for (int64_t k = 0; k < classes; k++)
        total += exp((double)row[k] - (double)max);
    return log(total) + (double)max - (double)row[target];
}

/* In float64, so that the mean hardly depends on how rows are divided among ranks. */
static ls_status add_loss(rank_sums *sums, const ls_tensor *logits, const ls_tensor *targets)
{
    const float *scores = ls_tensor_data_const(logits);
    const int64_t *labels = ls_tensor_data_const(targets);
    const int64_t classes = ls_tensor_dim(logits, 1);

    if (scores == NULL || labels == NULL)
        return LS_ENOMEM;
    for (int64_t i = 0; i < ls_tensor_dim(logits, 0); i++)
        sums->loss += row_loss(scores + i * classes, classes, labels[i]);
    return LS_OK;
}

static const int counted_k[] = {1, 5};

enum { PENDING_LOSS, PENDING_ROWS, PENDING_TOP1, PENDING_TOP5, N_PENDING };

static ls_status add_pending(ls_tensor **pending, const ls_tensor *logits, const ls_tensor *targets)
{
    if (*pending == NULL)
        LS_TRY(
            ls_tensor_create(ls_tensor_device(logits), LS_F64, 1, (int64_t[]){N_PENDING}, pending));
    return class_sums_add(logits, targets, counted_k, *pending);
}

ls_status rank_sums_add_logits(rank_sums *sums, ls_tensor **pending, const ls_tensor *logits,
                               const ls_tensor *targets, bool with_loss)
{
    int64_t correct[LS_COUNT_OF(counted_k)];

    if (ls_device_queue(ls_tensor_device(logits)) != NULL)
        return add_pending(pending, logits, targets);
    LS_TRY(ls_top_k_correct(logits, targets, counted_k, LS_COUNT_OF(counted_k), correct));
    if (with_loss)
        LS_TRY(add_loss(sums, logits, targets));
    sums->top1 += (double)correct[0];
    sums->top5 += (double)correct[1];
    sums->ranked += (double)ls_tensor_dim(logits, 0);
    return LS_OK;
}

ls_status rank_sums_read(rank_sums *sums, ls_tensor *pending, bool with_loss)
{
    double values[N_PENDING];

    if (pending == NULL)
        return LS_OK;
    LS_TRY(ls_tensor_read(pending, values, N_PENDING));
    LS_TRY(tensor_zero(pending));
    if (with_loss)
        sums->loss += values[PENDING_LOSS];
    sums->ranked += values[PENDING_ROWS];
    sums->top1 += values[PENDING_TOP1];
    sums->top5 += values[PENDING_TOP5];
    return LS_OK;
}
