/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_k.c - ls_top_k_correct(): in how many rows the target is among the k largest. A row is read
 * once for all k: the number of classes before the target decides. On stream devices an operator
 * counts.
 */
#include "autograd/autograd.h"

#include "tensor/device.h"
#include "tensor/formulas/class_rank.h"

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

ls_status class_sums_add(const ls_tensor *logits, const ls_tensor *targets, const int *k,
                         ls_tensor *sums)
{
    ls_tensor seen[2];
    op_call call = {.op = OP_CLASS_SUMS, .n_in = 2, .n_out = 1, .out = {sums}};
    const int n = (int)sums->dims[0] - 2;
    void *ignored;

    LS_TRY(check(logits, targets, k, n));
    seen[0] = *logits;
    seen[1] = *targets;
    for (int i = 0; i < 2; i++) {
        LS_TRY(tensor_plain(&seen[i], &ignored));
        call.in[i] = &seen[i];
    }
    for (int i = 0; i < n; i++)
        call.attrs.top_k[i] = k[i];
    return device_run(logits->device, &call);
}

static ls_status add_pair(const ls_tensor *logits, const ls_tensor *targets, const int *k, int n,
                          int64_t *correct)
{
    double values[2 + OP_MAX_TOP_K];
    ls_tensor *sums;
    ls_status st;

    LS_TRY(ls_tensor_create(logits->device, LS_F64, 1, (int64_t[]){2 + n}, &sums));
    st = class_sums_add(logits, targets, k, sums);
    if (st == LS_OK)
        st = ls_tensor_read(sums, values, (size_t)n + 2);
    for (int i = 0; i < n && st == LS_OK; i++)
        correct[i] = (int64_t)values[2 + i];
    ls_tensor_destroy(sums);
    return st;
}

/* The logits stay on the device. */
static ls_status count_on_device(const ls_tensor *logits, const ls_tensor *targets, const int *k,
                                 int n, int64_t *correct)
{
    for (int i = 0; i < n; i += OP_MAX_TOP_K) {
        const int left = n - i;

        LS_TRY(add_pair(logits, targets, k + i, left < OP_MAX_TOP_K ? left : OP_MAX_TOP_K,
                        correct + i));
    }
    return LS_OK;
}

static ls_status count_on_host(const ls_tensor *logits, const ls_tensor *targets, const int *k,
                               int n, int64_t *correct)
{
    const int64_t n_classes = logits->dims[1];
    const void *rows = ls_tensor_data_const(logits);
    const int64_t *wanted = ls_tensor_data_const(targets);

    if (logits->dims[0] > 0 && (rows == NULL || wanted == NULL))
        return LS_ENOMEM;
    for (int i = 0; i < n; i++)
        correct[i] = 0;
    for (int64_t row = 0; row < logits->dims[0]; row++) {
        int64_t place;

        if (wanted[row] < 0 || wanted[row] >= n_classes)
            return ls_fail(LS_EINVAL, "target %lld of row %lld is outside [0, %lld)",
                           (long long)wanted[row], (long long)row, (long long)n_classes);
        place = class_rank(rows, (size_t)(row * n_classes), n_classes, wanted[row],
                           logits->dtype == LS_F64);
        for (int i = 0; i < n; i++)
            correct[i] += place < k[i];
    }
    return LS_OK;
}

ls_status ls_top_k_correct(const ls_tensor *logits, const ls_tensor *targets, const int *k, int n,
                           int64_t *correct)
{
    LS_TRY(LS_GIVEN(correct));
    LS_TRY(check(logits, targets, k, n));
    return logits->device->accel == NULL ? count_on_host(logits, targets, k, n, correct)
                                         : count_on_device(logits, targets, k, n, correct);
}
