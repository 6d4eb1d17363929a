/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_k.c - ls_top_k_correct(): in how many rows the target is among the k largest. A row is read
 * once for all k: the number of classes before the target decides.
 */
#include <lockstep/autograd.h>

#include "tensor/tensor.h"

#include <math.h>

static double element(const void *data, size_t i, bool wide)
{
    return wide ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Whether value b ranks before a; NaN ranks before all numbers. */
static bool is_larger(double b, double a)
{
    return b > a || (isnan(b) && !isnan(a));
}

/* The number of classes of the row that rank before the target. */
static int64_t rank_of(const void *row, size_t first, int64_t n_classes, int64_t target, bool wide)
{
    const double wanted = element(row, first + (size_t)target, wide);
    int64_t before = 0;

    for (int64_t c = 0; c < n_classes; c++) {
        const double other = element(row, first + (size_t)c, wide);

        before += c < target ? !is_larger(wanted, other) : is_larger(other, wanted);
    }
    return before;
}

static ls_status check(const ls_tensor *logits, const ls_tensor *targets, const int *k, int n)
{
    char first[TENSOR_TEXT_BYTES];
    char second[TENSOR_TEXT_BYTES];

    if (logits == NULL || targets == NULL || k == NULL || n < 0)
        return ls_fail(LS_EINVAL, "top_k_correct: logits, targets and k must not be NULL");
    if ((logits->dtype != LS_F32 && logits->dtype != LS_F64) || logits->n_dims != 2 ||
        logits->dims[1] < 1 || targets->n_dims != 1 || targets->dtype != LS_I64 ||
        targets->dims[0] != logits->dims[0])
        return ls_fail(LS_EINVAL, "top_k_correct: targets %s do not fit logits %s",
                       tensor_text(second, sizeof(second), targets),
                       tensor_text(first, sizeof(first), logits));
    for (int i = 0; i < n; i++) {
        if (k[i] < 1)
            return ls_fail(LS_EINVAL, "top_k_correct: k is %d; it must be at least 1", k[i]);
    }
    return LS_OK;
}

ls_status ls_top_k_correct(const ls_tensor *logits, const ls_tensor *targets, const int *k, int n,
                           int64_t *correct)
{
    const void *rows;
    const int64_t *wanted;
    int64_t n_classes;

    LS_TRY(LS_GIVEN(correct));
    LS_TRY(check(logits, targets, k, n));
    n_classes = logits->dims[1];
    rows = ls_tensor_data_const(logits);
    wanted = ls_tensor_data_const(targets);
    if (logits->dims[0] > 0 && (rows == NULL || wanted == NULL))
        return LS_ENOMEM;
    for (int i = 0; i < n; i++)
        correct[i] = 0;
    for (int64_t row = 0; row < logits->dims[0]; row++) {
        const size_t first = (size_t)(row * n_classes);
        int64_t place;

        if (wanted[row] < 0 || wanted[row] >= n_classes)
            return ls_fail(LS_EINVAL, "target %lld of row %lld is outside [0, %lld)",
                           (long long)wanted[row], (long long)row, (long long)n_classes);
        place = rank_of(rows, first, n_classes, wanted[row], logits->dtype == LS_F64);
        for (int i = 0; i < n; i++)
            correct[i] += place < k[i];
    }
    return LS_OK;
}
