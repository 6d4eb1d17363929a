/* SPDX-License-Identifier: Apache-2.0 */
#include "train/tally.h"

#include "base/status.h"
#include "comm/comm.h"

#include <math.h>

const char *phase_name(phase which)
{
    static const char *const names[PHASES] = {
        "data", "forward", "backward", "communication", "optimizer", "evaluation", "save"};

    return names[which];
}

ls_status tally_sum(ls_comm *comm, const tally *mine, tally *out)
{
    *out = *mine;
    if (comm == NULL)
        return LS_OK;
    comm_label(comm, "report");
    return ls_all_reduce(comm, out, out, sizeof(*out) / sizeof(double), LS_F64, LS_SUM, NULL);
}

static double row_loss(const float *row, int64_t classes, int64_t target)
{
    float most = row[0];
    double sum = 0;

    for (int64_t k = 1; k < classes; k++)
        most = row[k] > most ? row[k] : most;
    for (int64_t k = 0; k < classes; k++)
        sum += exp((double)row[k] - (double)most);
    return log(sum) + (double)most - (double)row[target];
}

/* In float64, so that it does not depend on how rows are dealt out to ranks. */
static ls_status add_loss(tally *t, const ls_tensor *logits, const ls_tensor *targets)
{
    const float *scores = ls_tensor_data_const(logits);
    const int64_t *wanted = ls_tensor_data_const(targets);
    const int64_t classes = ls_tensor_dim(logits, 1);

    if (scores == NULL || wanted == NULL)
        return LS_ENOMEM;
    for (int64_t i = 0; i < ls_tensor_dim(logits, 0); i++)
        t->loss += row_loss(scores + i * classes, classes, wanted[i]);
    return LS_OK;
}

ls_status tally_logits(tally *t, const ls_tensor *logits, const ls_tensor *targets, bool with_loss)
{
    static const int k[] = {1, 5};
    int64_t correct[LS_COUNT_OF(k)];

    LS_TRY(ls_top_k_correct(logits, targets, k, LS_COUNT_OF(k), correct));
    if (with_loss)
        LS_TRY(add_loss(t, logits, targets));
    t->top1 += (double)correct[0];
    t->top5 += (double)correct[1];
    t->ranked += (double)ls_tensor_dim(logits, 0);
    return LS_OK;
}
