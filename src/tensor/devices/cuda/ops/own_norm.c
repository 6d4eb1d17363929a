/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_norm.c - batch norm for all shapes and types, layer norm. Batch norm reads (N,H,W,C) as a
 * matrix with a column for each channel.
 */
#include "tensor/devices/cuda/ops/own.h"

/* --- batch norm --- */

static size_t rows_of(const ls_tensor *x)
{
    return x->n_dims == 4 ? (size_t)(x->dims[0] * x->dims[2] * x->dims[3]) : (size_t)x->dims[0];
}

static ls_dtype statistics_type(const ls_tensor *x)
{
    return x->dtype == LS_F64 ? LS_F64 : LS_F32;
}

/* An optional output, or temporary memory in its place. */
static void *output_or_memory(own_operands *o, ls_tensor *t, ls_dtype type, size_t count)
{
    return t != NULL ? own_output(o, t, false) : own_memory(o, type, count);
}

/* The result says where the ReLU has cut: it takes the place of the mask, without a copy. */
static void share_as_mask(const own_operands *o, ls_tensor *mask, const ls_tensor *y)
{
    if (mask == NULL || o->status != LS_OK)
        return;
    mask->dtype = y->dtype;
    cu_host->tensor_share(mask, y);
}

static unsigned blocks_of(const column_args *a)
{
    const unsigned sums = own_split_blocks(&a->by);
    const unsigned rows = own_split_blocks(&a->apply);

    return sums > rows ? sums : rows;
}

/* What norm_moments and norm_from_shared use: the batch's statistics go into a->out. */
static void set_moments(own_operands *o, const op_call *call, column_args *a, size_t rows)
{
    const ls_tensor *x = call->in[0];
    const size_t channels = (size_t)x->dims[1];

    for (int i = 0; i < 2; i++)
        a->out[i] = output_or_memory(o, call->out[1 + i], statistics_type(x), channels);
    a->running[0] = own_data(call->in[3]);
    a->running[1] = own_data(call->in[4]);
    a->counter = own_data(call->in[6]);
    a->momentum = call->attrs.momentum;
    a->by = own_sum_split(o, 1, rows, channels, own_type(x->dtype), own_is_aligned(a->x));
    if (batch_sync_needed(call))
        a->shared = own_memory(o, LS_F64, batch_sync_count(channels));
}

/* What norm_apply uses. */
static void set_apply(own_operands *o, const op_call *call, column_args *a, size_t rows)
{
    const ls_tensor *x = call->in[0];

    a->weight = own_data(call->in[1]);
    a->bias = own_data(call->in[2]);
    a->mean = call->attrs.training ? a->out[0] : own_data(call->in[3]);
    a->variance = call->attrs.training ? a->out[1] : own_data(call->in[4]);
    a->eps = call->attrs.eps;
    a->relu = call->attrs.relu;
    a->added = own_operand(o, call->in[5], x->n_dims == 4);
    a->result = own_output(o, call->out[0], x->n_dims == 4);
    share_as_mask(o, call->out[3], call->out[0]);
    a->apply = own_apply_split(rows, (size_t)x->dims[1], own_type(x->dtype),
                               own_is_aligned(a->x) && own_is_aligned(a->added) &&
                                   own_is_aligned(a->result));
}

/* The statistics of the rows of this rank, or of all that share the batch. */
static void launch_moments(own_operands *o, const op_call *call, const column_args *a)
{
    const kernel_type type = own_type(call->in[0]->dtype);

    own_launch(o, OWN_KERNELS(norm_moments), type, own_split_blocks(&a->by), OWN_THREADS, a);
    if (a->shared == NULL || o->status != LS_OK)
        return;
    o->status = batch_sync_sum(call, a->shared, a->by.columns);
    own_launch(o, OWN_KERNELS(norm_from_shared), type, own_blocks(o->self, a->by.columns),
               OWN_THREADS, a);
}

void cuda_batch_norm(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const kernel_type type = own_type(x->dtype);
    const size_t rows = rows_of(x);
    column_args a = {.x = own_operand(o, x, x->n_dims == 4),
                     .failure = cuda_accel_failure(o->self->accel),
                     .op = call->op};

    if (call->attrs.training)
        set_moments(o, call, &a, rows);
    set_apply(o, call, &a, rows);
    if (call->attrs.training && a.shared == NULL && rows > 0) {
        own_launch(o, OWN_KERNELS(norm_train), type, blocks_of(&a), OWN_THREADS, &a);
        return;
    }
    if (call->attrs.training)
        launch_moments(o, call, &a);
    if (rows > 0)
        own_launch(o, OWN_KERNELS(norm_apply), type, own_split_blocks(&a.apply), OWN_THREADS, &a);
}

/* Sums, the same over all ranks that share the batch, and dx unless it is not needed. */
static void launch_backward(own_operands *o, const op_call *call, const column_args *a)
{
    const kernel_type type = own_type(call->in[0]->dtype);
    const bool has_data = a->result != NULL && a->apply.rows > 0;

    if (has_data && !batch_sync_needed(call)) {
        own_launch(o, OWN_KERNELS(norm_backward), type, blocks_of(a), OWN_THREADS, a);
        return;
    }
    own_launch(o, OWN_KERNELS(norm_backward_sums), type, own_split_blocks(&a->by), OWN_THREADS, a);
    if (batch_sync_needed(call) && o->status == LS_OK)
        o->status = batch_sync_sum(call, a->shared, a->by.columns);
    if (has_data)
        own_launch(o, OWN_KERNELS(norm_backward_data), type, own_split_blocks(&a->apply),
                   OWN_THREADS, a);
}

/* With `added` and a ReLU norm_backward_sums masks the gradient, which is that of `added`, too. */
static void set_masked(own_operands *o, const op_call *call, column_args *a, bool nhwc)
{
    const ls_tensor *x = call->in[0];

    if (call->out[3] == NULL && call->in[7] == NULL)
        return;
    a->dy = a->y;
    a->more = own_operand(o, call->in[7], nhwc);
    a->sum = a->cut;
    a->cut = NULL;
    a->y_out = call->out[3] == NULL ? own_memory(o, x->dtype, x->count)
                                    : own_output_over_grad(o, call, call->out[3], nhwc);
    a->y = a->y_out;
}

void cuda_batch_norm_backward(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const bool nhwc = x->n_dims == 4;
    const kernel_type type = own_type(x->dtype);
    const size_t channels = (size_t)x->dims[1];
    column_args a = {.x = own_operand(o, x, nhwc),
                     .y = own_operand(o, call->in[1], nhwc),
                     .weight = own_data(call->in[2]),
                     .mean = own_data(call->in[4]),
                     .variance = own_data(call->in[5]),
                     .cut = call->attrs.relu ? own_operand(o, call->in[6], nhwc) : NULL,
                     .out = {own_data(call->out[1]), own_data(call->out[2])},
                     .accumulate = call->accumulate,
                     .eps = call->attrs.eps};
    bool wide;

    set_masked(o, call, &a, nhwc);
    wide = own_is_aligned(a.x) && own_is_aligned(a.y) && own_is_aligned(a.cut) &&
           own_is_aligned(a.dy) && own_is_aligned(a.more) && own_is_aligned(a.sum);
    a.by = own_sum_split(o, 1, rows_of(x), channels, type, wide);
    a.shared = own_memory(o, LS_F64, batch_sync_count(channels));
    a.result = own_output(o, call->out[0], nhwc);
    a.apply = own_apply_split(rows_of(x), channels, type, wide && own_is_aligned(a.result));
    launch_backward(o, call, &a);
}

/* --- layer norm --- */

/* Whether rows of x are whole packs, as the parameters are. */
static bool has_wide_rows(const row_args *a, kernel_type type)
{
    return a->columns % own_pack(type) == 0 && own_is_aligned(a->x) && own_is_aligned(a->dy) &&
           own_is_aligned(a->y) && own_is_aligned(a->weight) && own_is_aligned(a->bias);
}

void cuda_layer_norm(own_operands *o, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const kernel_type type = own_type(call->in[0]->dtype);
    row_args a = {.x = own_operand(o, call->in[0], false),
                  .y = own_output(o, call->out[0], false),
                  .n_rows = p.outer,
                  .columns = p.n,
                  .eps = call->attrs.eps,
                  .weight = own_data(call->in[1]),
                  .bias = own_data(call->in[2]),
                  .mean = own_output(o, call->out[1], false),
                  .inverse = own_output(o, call->out[2], false)};

    a.wide = has_wide_rows(&a, type);
    own_launch_rows(o, OWN_KERNELS(layer_norm), type, &a, own_pack(type));
}

void cuda_layer_norm_backward(own_operands *o, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const kernel_type type = own_type(call->in[0]->dtype);
    row_args rows = {.x = own_operand(o, call->in[0], false),
                     .dy = own_operand(o, call->in[1], false),
                     .y = own_output(o, call->out[0], false),
                     .n_rows = p.outer,
                     .columns = p.n,
                     .weight = own_data(call->in[2]),
                     .mean = own_data(call->in[3]),
                     .inverse = own_data(call->in[4])};
    column_args a = {.x = rows.x,
                     .y = rows.dy,
                     .mean = rows.mean,
                     .variance = rows.inverse,
                     .out = {own_data(call->out[1]), own_data(call->out[2])},
                     .accumulate = call->accumulate};

    rows.wide = has_wide_rows(&rows, type);
    if (rows.y != NULL)
        own_launch_rows(o, OWN_KERNELS(layer_norm_backward), type, &rows, own_pack(type));
    if (call->out[1] == NULL && call->out[2] == NULL)
        return;
    a.by = own_sum_split(o, 1, p.outer, p.n, type, own_is_aligned(a.x) && own_is_aligned(a.y));
    own_launch(o, OWN_KERNELS(layer_norm_backward_sums), type, own_split_blocks(&a.by), OWN_THREADS,
               &a);
}
