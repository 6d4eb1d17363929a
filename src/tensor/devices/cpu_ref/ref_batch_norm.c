/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_batch_norm.c - batch normalisation of (N,C,H,W) or (N,C), channel by channel.
 *
 *     xhat = (x - mean) / sqrt(variance + eps),  y = weight xhat + bias (+ added)
 *
 * With m values per channel, S = sum dy and T = sum dy xhat:
 *     dbias = S,  dweight = T,  dx = weight / sqrt(variance + eps) (dy - S / m - xhat T / m)
 *
 * With attrs.sync mean, variance, and the S, T and m in dx are those of all ranks' rows.
 */
#include "tensor/devices/cpu_ref/ref.h"

#include "tensor/formulas/batch_sync.h"

#include <math.h>

/* One channel of x, y, dx, ...: n_rows runs of `area` neighbours, `step` apart. */
typedef struct channel {
    size_t first;
    size_t n_rows;
    size_t area;
    size_t step;
} channel;

static size_t area_of(const ls_tensor *x)
{
    return x->n_dims == 4 ? (size_t)(x->dims[2] * x->dims[3]) : 1;
}

static channel channel_of(const ls_tensor *x, size_t c)
{
    const size_t area = area_of(x);

    return (channel){.first = c * area,
                     .n_rows = (size_t)x->dims[0],
                     .area = area,
                     .step = (size_t)x->dims[1] * area};
}

REF_INLINE size_t value_at(const channel *ch, size_t n, size_t i)
{
    return ch->first + n * ch->step + i;
}

typedef struct moments {
    double mean;
    double variance; /* biased */
} moments;

/* Two passes: the mean, then the mean square distance from it. Both are 0 without values. */
REF_INLINE moments moments_of(const channel *ch, const void *x, bool wide)
{
    const double count = (double)(ch->n_rows * ch->area);
    moments m = {0, 0};

    if (ch->n_rows * ch->area == 0)
        return m;
    for (size_t n = 0; n < ch->n_rows; n++) {
        for (size_t i = 0; i < ch->area; i++)
            m.mean += ref_get(x, value_at(ch, n, i), wide);
    }
    m.mean /= count;
    for (size_t n = 0; n < ch->n_rows; n++) {
        for (size_t i = 0; i < ch->area; i++) {
            const double distance = ref_get(x, value_at(ch, n, i), wide) - m.mean;

            m.variance += distance * distance;
        }
    }
    m.variance /= count;
    return m;
}

/* Moves the running statistics towards those of the batch, of whose variance the divisor is count
 * - 1. */
REF_INLINE void move_running(const op_call *call, size_t c, moments m, double count, bool wide)
{
    void *mean = tensor_elements(call->in[3]);
    void *variance = tensor_elements(call->in[4]);
    const double k = call->attrs.momentum;
    const double unbiased = m.variance * count / (count - 1);

    if (count < 2)
        return;
    ref_put(mean, c, (1 - k) * ref_get(mean, c, wide) + k * m.mean, wide);
    ref_put(variance, c, (1 - k) * ref_get(variance, c, wide) + k * unbiased, wide);
}

/* The statistics that normalise channel c; training also saves them and updates the
 * running ones. */
REF_INLINE moments statistics(const op_call *call, const channel *ch, size_t c,
                              const double *shared, bool wide)
{
    double count = (double)(ch->n_rows * ch->area);
    moments m;

    if (!call->attrs.training)
        return (moments){.mean = ref_get(tensor_elements(call->in[3]), c, wide),
                         .variance = ref_get(tensor_elements(call->in[4]), c, wide)};
    if (shared == NULL) {
        m = moments_of(ch, tensor_elements(call->in[0]), wide);
    } else {
        count = shared[0];
        batch_sync_get(shared, (size_t)call->in[0]->dims[1], c, &m.mean, &m.variance);
    }
    move_running(call, c, m, count, wide);
    if (call->out[1] != NULL)
        ref_put(tensor_elements(call->out[1]), c, m.mean, wide);
    if (call->out[2] != NULL)
        ref_put(tensor_elements(call->out[2]), c, m.variance, wide);
    // Rounded as they are saved: backward and a recomputation read these bits.
    if (!wide)
        m = (moments){.mean = (double)(float)m.mean, .variance = (double)(float)m.variance};
    return m;
}

REF_INLINE void normalise(const op_call *call, size_t c, const double *shared, bool wide)
{
    const channel ch = channel_of(call->in[0], c);
    const moments m = statistics(call, &ch, c, shared, wide);
    const void *x = tensor_elements(call->in[0]);
    const double scale =
        ref_get(tensor_elements(call->in[1]), c, wide) / sqrt(m.variance + call->attrs.eps);
    const double bias = ref_get(tensor_elements(call->in[2]), c, wide);
    void *y = tensor_elements(call->out[0]);
    const void *added = call->in[5] == NULL ? NULL : tensor_elements(call->in[5]);
    int32_t *mask = call->out[3] == NULL ? NULL : tensor_elements(call->out[3]);

    for (size_t n = 0; n < ch.n_rows; n++) {
        for (size_t i = 0; i < ch.area; i++) {
            const size_t at = value_at(&ch, n, i);
            const double more = added == NULL ? -0.0 : ref_get(added, at, wide); // v + -0 is v
            const double v = (ref_get(x, at, wide) - m.mean) * scale + bias + more;
            const bool cut = call->attrs.relu && v <= 0;

            ref_put(y, at, cut ? 0 : v, wide);
            if (mask != NULL)
                mask[at] = !cut;
        }
    }
}

/* Memory for the sums over ranks, in *memory, which the caller destroys. */
static ls_status shared_values(const op_call *call, ls_tensor **memory, double **out)
{
    const int64_t n = (int64_t)batch_sync_count((size_t)call->in[0]->dims[1]);

    LS_TRY(ls_tensor_create(call->in[0]->device, LS_F64, 1, &n, memory));
    *out = tensor_elements(*memory);
    return LS_OK;
}

/* The sums over the rows of all ranks, from the moments of each. */
static ls_status share_moments(const op_call *call, double *values)
{
    const ls_tensor *x = call->in[0];
    const size_t n_channels = (size_t)x->dims[1];

    for (size_t c = 0; c < n_channels; c++) {
        const channel ch = channel_of(x, c);
        const double count = (double)(ch.n_rows * ch.area);
        const moments m = ref_wide(x) ? moments_of(&ch, tensor_elements(x), true)
                                      : moments_of(&ch, tensor_elements(x), false);

        batch_sync_put(values, n_channels, c, count, m.mean, count * m.variance);
    }
    LS_TRY(batch_sync_sum(call, values, n_channels));
    if (values[0] == 1)
        return ls_fail(LS_EINVAL, "training needs more than one value per channel over all ranks");
    return LS_OK;
}

/* The counter changes with the running statistics. */
static void count_batch(const op_call *call, const double *shared)
{
    const channel ch = channel_of(call->in[0], 0);
    const double count = shared == NULL ? (double)(ch.n_rows * ch.area) : shared[0];

    if (call->attrs.training && call->in[6] != NULL && count >= 2)
        ++*(int64_t *)tensor_elements(call->in[6]);
}

static void normalise_all(const op_call *call, const double *shared)
{
    for (size_t c = 0; c < (size_t)call->in[0]->dims[1]; c++)
        REF_RUN(call->in[0], normalise, call, c, shared);
    count_batch(call, shared);
}

ls_status ref_batch_norm(const op_call *call)
{
    ls_tensor *memory = NULL;
    double *shared = NULL;
    ls_status st = LS_OK;

    if (batch_sync_needed(call)) {
        LS_TRY(shared_values(call, &memory, &shared));
        st = share_moments(call, shared);
    }
    if (st == LS_OK)
        normalise_all(call, shared);
    ls_tensor_destroy(memory);
    return st;
}

/* The inputs of one channel's backward. */
typedef struct back_channel {
    channel ch;
    const void *x;
    const void *dy;
    const void *dy2;     /* NULL: there is none */
    const int32_t *mask; /* NULL without a fused ReLU */
    double mean;
    double inverse; /* 1 / sqrt(variance + eps) */
} back_channel;

REF_INLINE double dy_at(const back_channel *b, size_t at, bool wide)
{
    const double more = b->dy2 == NULL ? -0.0 : ref_get(b->dy2, at, wide);

    return b->mask != NULL && b->mask[at] == 0 ? 0 : ref_get(b->dy, at, wide) + more;
}

REF_INLINE double xhat_at(const back_channel *b, size_t at, bool wide)
{
    return (ref_get(b->x, at, wide) - b->mean) * b->inverse;
}

REF_INLINE void write_dx(const back_channel *b, void *dx, double weight, double mean_dy,
                         double mean_dy_xhat, bool wide)
{
    for (size_t n = 0; n < b->ch.n_rows; n++) {
        for (size_t i = 0; i < b->ch.area; i++) {
            const size_t at = value_at(&b->ch, n, i);
            const double rest = dy_at(b, at, wide) - mean_dy - xhat_at(b, at, wide) * mean_dy_xhat;

            ref_put(dx, at, weight * b->inverse * rest, wide);
        }
    }
}

REF_INLINE back_channel back_channel_of(const op_call *call, size_t c, bool wide)
{
    const double variance = ref_get(tensor_elements(call->in[5]), c, wide);

    return (back_channel){.ch = channel_of(call->in[0], c),
                          .x = tensor_elements(call->in[0]),
                          .dy = tensor_elements(call->in[1]),
                          .dy2 = call->in[7] == NULL ? NULL : tensor_elements(call->in[7]),
                          .mask = call->attrs.relu ? tensor_elements(call->in[6]) : NULL,
                          .mean = ref_get(tensor_elements(call->in[4]), c, wide),
                          .inverse = 1 / sqrt(variance + call->attrs.eps)};
}

/* dweight and dbias of channel c; the sums for its dx. */
REF_INLINE void sum_channel(const op_call *call, size_t c, double *sum_dy, double *sum_dy_xhat,
                            bool wide)
{
    const back_channel b = back_channel_of(call, c, wide);

    *sum_dy = 0;
    *sum_dy_xhat = 0;
    for (size_t n = 0; n < b.ch.n_rows; n++) {
        for (size_t i = 0; i < b.ch.area; i++) {
            const size_t at = value_at(&b.ch, n, i);

            *sum_dy += dy_at(&b, at, wide);
            *sum_dy_xhat += dy_at(&b, at, wide) * xhat_at(&b, at, wide);
        }
    }
    ref_give(tensor_elements(call->out[1]), c, *sum_dy_xhat, call->accumulate, wide);
    ref_give(tensor_elements(call->out[2]), c, *sum_dy, call->accumulate, wide);
}

/* The gradient of what was added. */
REF_INLINE void write_dadded(const back_channel *b, void *dadded, bool wide)
{
    for (size_t n = 0; n < b->ch.n_rows; n++) {
        for (size_t i = 0; i < b->ch.area; i++) {
            const size_t at = value_at(&b->ch, n, i);

            ref_put(dadded, at, dy_at(b, at, wide), wide);
        }
    }
}

/* The gradients of the size of x: dx, unless it is not needed, and that of what was added. */
REF_INLINE void write_gradients(const op_call *call, size_t c, double mean_dy, double mean_dy_xhat,
                                bool wide)
{
    const back_channel b = back_channel_of(call, c, wide);

    if (call->out[0] != NULL)
        write_dx(&b, tensor_elements(call->out[0]), ref_get(tensor_elements(call->in[2]), c, wide),
                 mean_dy, mean_dy_xhat, wide);
    if (call->out[3] != NULL)
        write_dadded(&b, tensor_elements(call->out[3]), wide);
}

REF_INLINE void backward_alone(const op_call *call, bool wide)
{
    const size_t n_channels = (size_t)call->in[0]->dims[1];

    for (size_t c = 0; c < n_channels; c++) {
        const channel ch = channel_of(call->in[0], c);
        const double count = (double)(ch.n_rows * ch.area);
        double sum_dy;
        double sum_dy_xhat;

        sum_channel(call, c, &sum_dy, &sum_dy_xhat, wide);
        write_gradients(call, c, sum_dy / count, sum_dy_xhat / count, wide);
    }
}

/* The ranks exchange sum dy (x - mean), which is T / inverse. */
REF_INLINE ls_status backward_shared(const op_call *call, double *values, bool wide)
{
    const ls_tensor *x = call->in[0];
    const size_t n_channels = (size_t)x->dims[1];

    values[0] = (double)((size_t)x->dims[0] * area_of(x));
    for (size_t c = 0; c < n_channels; c++) {
        const back_channel b = back_channel_of(call, c, wide);

        sum_channel(call, c, &values[1 + c], &values[1 + n_channels + c], wide);
        values[1 + n_channels + c] /= b.inverse;
    }
    LS_TRY(batch_sync_sum(call, values, n_channels));
    for (size_t c = 0; c < n_channels; c++) {
        const back_channel b = back_channel_of(call, c, wide);

        write_gradients(call, c, values[1 + c] / values[0],
                        values[1 + n_channels + c] * b.inverse / values[0], wide);
    }
    return LS_OK;
}

static ls_status backward(const op_call *call, double *shared)
{
    const bool wide = ref_wide(call->in[0]);

    if (shared != NULL)
        return wide ? backward_shared(call, shared, true) : backward_shared(call, shared, false);
    if (wide)
        backward_alone(call, true);
    else
        backward_alone(call, false);
    return LS_OK;
}

ls_status ref_batch_norm_backward(const op_call *call)
{
    ls_tensor *memory = NULL;
    double *shared = NULL;
    ls_status st;

    if (batch_sync_needed(call))
        LS_TRY(shared_values(call, &memory, &shared));
    st = backward(call, shared);
    ls_tensor_destroy(memory);
    return st;
}
