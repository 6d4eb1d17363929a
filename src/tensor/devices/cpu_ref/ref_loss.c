/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_loss.c - cross-entropy, as one operator and in two parts, mean squared error, and the sums of
 * an evaluation. Means over no elements are 0.
 */
#include "tensor/devices/cpu_ref/ref.h"

#include "tensor/formulas/class_rank.h"

#include <math.h>

static ls_status check_targets(const int64_t *targets, size_t n_rows, int64_t n_classes)
{
    for (size_t n = 0; n < n_rows; n++) {
        if (targets[n] < 0 || targets[n] >= n_classes)
            return ls_fail(LS_EINVAL, "target %lld of row %zu is outside [0, %lld)",
                           (long long)targets[n], n, (long long)n_classes);
    }
    return LS_OK;
}

/* The largest number of a row; NaN if there is one. */
REF_INLINE double largest(const void *logits, size_t first, size_t n_classes, bool wide)
{
    double top = (double)-INFINITY;

    for (size_t k = first; k < first + n_classes; k++) {
        const double v = ref_get(logits, k, wide);

        top = v > top || isnan(v) ? v : top;
    }
    return top;
}

/* log(sum exp(row)), shifted by the maximum against overflow. */
REF_INLINE double log_sum_exp(const void *logits, size_t first, size_t n_classes, bool wide)
{
    const double top = largest(logits, first, n_classes, wide);
    double sum = 0;

    for (size_t k = 0; k < n_classes; k++)
        sum += exp(ref_get(logits, first + k, wide) - top);
    return top + log(sum);
}

/* The loss of one row: the target's share, and the smoothed rest spread over all classes. */
REF_INLINE double row_loss(const op_call *call, size_t first, size_t n_classes, size_t target,
                           double norm, bool wide)
{
    const void *logits = tensor_elements(call->in[0]);
    const double smoothing = call->attrs.label_smoothing;
    double sum = 0;

    for (size_t k = 0; smoothing > 0 && k < n_classes; k++)
        sum += norm - ref_get(logits, first + k, wide);
    return (1 - smoothing) * (norm - ref_get(logits, first + target, wide)) +
           smoothing / (double)n_classes * sum;
}

REF_INLINE void cross_entropy(const op_call *call, size_t n_rows, size_t n_classes, bool wide)
{
    const void *logits = tensor_elements(call->in[0]);
    const int64_t *targets = tensor_elements(call->in[1]);
    void *probabilities = call->out[1] == NULL ? NULL : tensor_elements(call->out[1]);
    double sum = 0;

    for (size_t n = 0; n < n_rows; n++) {
        const size_t first = n * n_classes;
        const double norm = log_sum_exp(logits, first, n_classes, wide);

        sum += row_loss(call, first, n_classes, (size_t)targets[n], norm, wide);
        if (probabilities == NULL)
            continue;
        for (size_t k = first; k < first + n_classes; k++)
            ref_put(probabilities, k, exp(ref_get(logits, k, wide) - norm), wide);
    }
    ref_put(tensor_elements(call->out[0]), 0, n_rows == 0 ? 0 : sum / (double)n_rows, wide);
}

ls_status ref_cross_entropy(const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];

    LS_TRY(check_targets(tensor_elements(call->in[1]), n_rows, call->in[0]->dims[1]));
    REF_RUN(call->in[0], cross_entropy, call, n_rows, n_classes);
    return LS_OK;
}

/* dlogits = (probabilities - the smoothed target) dloss / N */
REF_INLINE void cross_entropy_backward(const op_call *call, bool wide)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const void *probabilities = tensor_elements(call->in[0]);
    const int64_t *targets = tensor_elements(call->in[1]);
    const double dloss = ref_get(tensor_elements(call->in[2]), 0, wide);
    const double smoothing = call->attrs.label_smoothing;
    const double spread = smoothing / (double)n_classes;
    void *dlogits = tensor_elements(call->out[0]);

    for (size_t n = 0; n < n_rows; n++) {
        for (size_t k = 0; k < n_classes; k++) {
            const size_t at = n * n_classes + k;
            const double target = spread + ((size_t)targets[n] == k ? 1 - smoothing : 0);
            const double difference = ref_get(probabilities, at, wide) - target;

            ref_put(dlogits, at, difference * dloss / (double)n_rows, wide);
        }
    }
}

REF_KERNEL(ref_cross_entropy_backward, cross_entropy_backward)

/* A row of -infinity, as masked ones are, stays so. */
REF_INLINE void log_softmax(const op_call *call, bool wide)
{
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const void *x = tensor_elements(call->in[0]);
    void *y = tensor_elements(call->out[0]);

    for (size_t first = 0; first < ls_tensor_count(call->in[0]); first += n_classes) {
        const bool is_masked = largest(x, first, n_classes, wide) == (double)-INFINITY;
        const double norm = is_masked ? 0 : log_sum_exp(x, first, n_classes, wide);

        for (size_t k = first; k < first + n_classes; k++)
            ref_put(y, k, ref_get(x, k, wide) - norm, wide);
    }
}

REF_KERNEL(ref_log_softmax, log_softmax)

/* dx = dy - softmax(x) sum dy */
REF_INLINE void log_softmax_backward(const op_call *call, bool wide)
{
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const void *y = tensor_elements(call->in[0]);
    const void *dy = tensor_elements(call->in[1]);
    void *dx = tensor_elements(call->out[0]);

    for (size_t first = 0; first < ls_tensor_count(call->in[0]); first += n_classes) {
        double sum = 0;

        for (size_t k = first; k < first + n_classes; k++)
            sum += ref_get(dy, k, wide);
        for (size_t k = first; k < first + n_classes; k++)
            ref_put(dx, k, ref_get(dy, k, wide) - exp(ref_get(y, k, wide)) * sum, wide);
    }
}

REF_KERNEL(ref_log_softmax_backward, log_softmax_backward)

ls_status ref_nll(const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const bool wide = ref_wide(call->in[0]);
    const int64_t *targets = tensor_elements(call->in[1]);
    double sum = 0;

    LS_TRY(check_targets(targets, n_rows, call->in[0]->dims[1]));
    for (size_t n = 0; n < n_rows; n++)
        sum -= ref_get(tensor_elements(call->in[0]), n * n_classes + (size_t)targets[n], wide);
    ref_put(tensor_elements(call->out[0]), 0, n_rows == 0 ? 0 : sum / (double)n_rows, wide);
    return LS_OK;
}

/* -dloss / N at the target, 0 elsewhere */
ls_status ref_nll_backward(const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const bool wide = ref_wide(call->in[0]);
    const int64_t *targets = tensor_elements(call->in[1]);
    const double dloss = ref_get(tensor_elements(call->in[2]), 0, wide);
    void *out;

    out = tensor_elements(call->out[0]);
    for (size_t i = 0; i < n_rows * n_classes; i++)
        ref_put(out, i, 0, wide);
    for (size_t n = 0; n < n_rows; n++)
        ref_put(out, n * n_classes + (size_t)targets[n], -dloss / (double)n_rows, wide);
    return LS_OK;
}

REF_INLINE void mse(const op_call *call, bool wide)
{
    const size_t count = ls_tensor_count(call->in[0]);
    const void *prediction = tensor_elements(call->in[0]);
    const void *target = tensor_elements(call->in[1]);
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        const double difference = ref_get(prediction, i, wide) - ref_get(target, i, wide);

        sum += difference * difference;
    }
    ref_put(tensor_elements(call->out[0]), 0, count == 0 ? 0 : sum / (double)count, wide);
}

REF_KERNEL(ref_mse, mse)

/* dprediction = 2 (prediction - target) dloss / count, dtarget the opposite */
REF_INLINE void mse_backward(const op_call *call, ls_tensor *out, double sign, bool wide)
{
    const size_t count = ls_tensor_count(call->in[0]);
    const void *prediction = tensor_elements(call->in[0]);
    const void *target = tensor_elements(call->in[1]);
    const double dloss = ref_get(tensor_elements(call->in[2]), 0, wide);

    for (size_t i = 0; i < count; i++) {
        const double difference = ref_get(prediction, i, wide) - ref_get(target, i, wide);

        ref_put(tensor_elements(out), i, sign * 2 * difference * dloss / (double)count, wide);
    }
}

ls_status ref_mse_backward(const op_call *call)
{
    for (int i = 0; i < 2; i++) {
        const double sign = i == 0 ? 1 : -1;

        if (call->out[i] == NULL)
            continue;
        REF_RUN(call->in[0], mse_backward, call, call->out[i], sign);
    }
    return LS_OK;
}

REF_INLINE void class_sums(const op_call *call, bool wide)
{
    const int64_t n_rows = call->in[0]->dims[0];
    const int64_t n_classes = call->in[0]->dims[1];
    const int64_t n_hits = call->out[0]->dims[0] - 2;
    const void *logits = tensor_elements(call->in[0]);
    const int64_t *targets = tensor_elements(call->in[1]);
    double *sums = tensor_elements(call->out[0]);

    for (int64_t n = 0; n < n_rows; n++) {
        const size_t first = (size_t)(n * n_classes);
        const double norm = log_sum_exp(logits, first, (size_t)n_classes, wide);
        const int64_t rank = class_rank(logits, first, n_classes, targets[n], wide);

        sums[0] += norm - ref_get(logits, first + (size_t)targets[n], wide);
        for (int64_t i = 0; i < n_hits; i++)
            sums[2 + i] += rank < call->attrs.top_k[i];
    }
    sums[1] += (double)n_rows;
}

ls_status ref_class_sums(const op_call *call)
{
    const ls_tensor *logits = call->in[0];

    LS_TRY(check_targets(tensor_elements(call->in[1]), (size_t)logits->dims[0], logits->dims[1]));
    REF_RUN(logits, class_sums, call);
    return LS_OK;
}
