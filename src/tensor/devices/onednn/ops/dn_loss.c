/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_loss.c - cross-entropy, as one operator and in two parts, and mean squared error. The tensors
 * are small: one thread, plain layouts; log-softmax alone uses all threads.
 */
#include "tensor/devices/onednn/dn.h"

#include <math.h>
#include <string.h>

static ls_status check_targets(const int64_t *targets, size_t n_rows, int64_t n_classes)
{
    for (size_t n = 0; n < n_rows; n++) {
        if (targets[n] < 0 || targets[n] >= n_classes)
            return dn_fail(LS_EINVAL, "target %lld of row %zu is outside [0, %lld)",
                           (long long)targets[n], n, (long long)n_classes);
    }
    return LS_OK;
}

/* --- cross-entropy --- */

/* out = exp(row - top). Returns log(sum exp(row - top)), and the sum. */
static double log_sum(const simd_table *simd, const float *row, size_t n, float top, float *out,
                      double *sum)
{
    simd->exp_below(row, top, out, n);
    *sum = simd->sum(out, n);
    return log(*sum);
}

/* The loss of one row; `out` gets its probabilities. */
static double row_loss(const simd_table *simd, const float *row, size_t n, size_t target,
                       double smoothing, float *out)
{
    const float top = simd->largest(row, n);
    double below = (1 - smoothing) * ((double)top - (double)row[target]);
    double sum;
    const double norm = log_sum(simd, row, n, top, out, &sum);

    simd->shift_scale(out, 0, (float)(1 / sum), out, n);
    if (smoothing > 0)
        below += smoothing * ((double)top - simd->sum(row, n) / (double)n);
    return norm + below;
}

ls_status dn_cross_entropy(device_state *self, const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const bool keep = call->out[1] != NULL;
    const float *logits = dn_data(call->in[0]);
    const int64_t *targets = dn_data(call->in[1]);
    float *probabilities = dn_data(call->out[1]);
    ls_tensor *row = NULL;
    double sum = 0;

    LS_TRY(check_targets(targets, n_rows, call->in[0]->dims[1]));
    if (!keep)
        LS_TRY(dn_floats(call->in[0]->device, n_classes, &row, &probabilities));
    for (size_t n = 0; n < n_rows; n++)
        sum += row_loss(self->simd, logits + n * n_classes, n_classes, (size_t)targets[n],
                        call->attrs.label_smoothing, probabilities + (keep ? n * n_classes : 0));
    *(float *)dn_data(call->out[0]) = (float)(sum / (double)n_rows);
    dn_host->tensor_destroy(row);
    return LS_OK;
}

/* dlogits = (probabilities - the smoothed target) dloss / N */
ls_status dn_cross_entropy_backward(device_state *self, const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const double smoothing = call->attrs.label_smoothing;
    const float spread = (float)(smoothing / (double)n_classes);
    const float hit = (float)(1 - smoothing);
    const float *probabilities = dn_data(call->in[0]);
    const int64_t *targets = dn_data(call->in[1]);
    const float factor = (float)((double)*(const float *)dn_data(call->in[2]) / (double)n_rows);
    float *dlogits = dn_data(call->out[0]);

    for (size_t n = 0; n < n_rows; n++) {
        float *row = dlogits + n * n_classes;
        const float *p = probabilities + n * n_classes;

        self->simd->shift_scale(p, spread, factor, row, n_classes);
        row[targets[n]] = (p[targets[n]] - spread - hit) * factor;
    }
    return LS_OK;
}

/* --- its two parts --- */

typedef struct softmax_work {
    const simd_table *simd;
    size_t n_classes;
    const float *in; /* x; backward: y */
    const float *dy;
    float *out;
} softmax_work;

static void log_softmax_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const softmax_work *w = arg;
    const size_t n = w->n_classes;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        const float *x = w->in + i * n;
        float *y = w->out + i * n;
        const float top = w->simd->largest(x, n);
        double sum;
        double norm;

        // A row of -infinity, as masked ones are, stays so.
        if (top == -INFINITY) {
            memcpy(y, x, n * sizeof(*y));
            continue;
        }
        norm = log_sum(w->simd, x, n, top, y, &sum);
        // The larger number first: rounding their sum could change more than the difference.
        w->simd->shift(x, top, (float)norm, y, n);
    }
}

static void log_softmax_rows_back(void *arg, size_t begin, size_t end, size_t thread)
{
    const softmax_work *w = arg;
    const size_t n = w->n_classes;

    LS_UNUSED(thread);
    for (size_t i = begin * n; i < end * n; i += n) {
        const float sum = (float)w->simd->sum(w->dy + i, n);

        w->simd->log_softmax_dx(w->in + i, w->dy + i, sum, w->out + i, n);
    }
}

ls_status dn_log_softmax(device_state *self, const op_call *call)
{
    softmax_work w = {.simd = self->simd,
                      .n_classes = (size_t)call->in[0]->dims[1],
                      .in = dn_data(call->in[0]),
                      .out = dn_data(call->out[0])};

    threads_for(self, (size_t)call->in[0]->dims[0], w.n_classes, log_softmax_rows, &w);
    return LS_OK;
}

/* dx = dy - softmax(x) sum dy */
ls_status dn_log_softmax_backward(device_state *self, const op_call *call)
{
    softmax_work w = {.simd = self->simd,
                      .n_classes = (size_t)call->in[0]->dims[1],
                      .in = dn_data(call->in[0]),
                      .dy = dn_data(call->in[1]),
                      .out = dn_data(call->out[0])};

    threads_for(self, (size_t)call->in[0]->dims[0], w.n_classes, log_softmax_rows_back, &w);
    return LS_OK;
}

ls_status dn_nll(device_state *self, const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const float *x = dn_data(call->in[0]);
    const int64_t *targets = dn_data(call->in[1]);
    double sum = 0;

    LS_UNUSED(self);
    LS_TRY(check_targets(targets, n_rows, call->in[0]->dims[1]));
    for (size_t n = 0; n < n_rows; n++)
        sum -= (double)x[n * n_classes + (size_t)targets[n]];
    *(float *)dn_data(call->out[0]) = (float)(sum / (double)n_rows);
    return LS_OK;
}

/* -dloss / N at the target, 0 elsewhere */
ls_status dn_nll_backward(device_state *self, const op_call *call)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_classes = (size_t)call->in[0]->dims[1];
    const int64_t *targets = dn_data(call->in[1]);
    const double dloss = (double)*(const float *)dn_data(call->in[2]);
    float *dx = dn_data(call->out[0]);

    LS_UNUSED(self);
    memset(dx, 0, n_rows * n_classes * sizeof(*dx));
    for (size_t n = 0; n < n_rows; n++)
        dx[n * n_classes + (size_t)targets[n]] = (float)(-dloss / (double)n_rows);
    return LS_OK;
}

/* --- mean squared error --- */

ls_status dn_mse(device_state *self, const op_call *call)
{
    const size_t count = call->in[0]->count;
    const float *prediction = dn_data(call->in[0]);
    const float *target = dn_data(call->in[1]);
    double sum = 0;

    LS_UNUSED(self);
    for (size_t i = 0; i < count; i++) {
        const double difference = (double)prediction[i] - (double)target[i];

        sum += difference * difference;
    }
    *(float *)dn_data(call->out[0]) = (float)(sum / (double)count);
    return LS_OK;
}

/* dprediction = 2 (prediction - target) dloss / count, dtarget the opposite */
ls_status dn_mse_backward(device_state *self, const op_call *call)
{
    const size_t count = call->in[0]->count;
    const float *prediction = dn_data(call->in[0]);
    const float *target = dn_data(call->in[1]);
    const double factor = 2 * (double)*(const float *)dn_data(call->in[2]) / (double)count;

    LS_UNUSED(self);
    for (int side = 0; side < 2; side++) {
        const float signed_factor = (float)(side == 0 ? factor : -factor);
        float *out = dn_data(call->out[side]);

        for (size_t i = 0; i < count && out != NULL; i++)
            out[i] = (prediction[i] - target[i]) * signed_factor;
    }
    return LS_OK;
}
