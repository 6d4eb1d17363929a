/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_binary.c - functions of two tensors that are broadcast, and sums over parts of one, which are
 * the gradients of both.
 */
#include "tensor/devices/cuda/ops/own.h"

/* Dimension number d of y's memory, from the outermost, as one of y's dimensions. */
static int memory_dim(bool nhwc, int d)
{
    static const int order[4] = {0, 2, 3, 1};

    return nhwc ? order[d] : d;
}

/* The inputs of the call in any arrangement, over `shape` in the order of its memory. */
static broadcast_args inputs_over(const op_call *call, const ls_tensor *shape, bool nhwc)
{
    broadcast_args a = {.count = shape->count,
                        .binary = (int)call->attrs.binary,
                        .operand = call->attrs.operand,
                        .value = call->attrs.value};
    broadcast_dims dims = {.n = 0};

    for (int i = 0; i < shape->n_dims; i++) {
        const int d = memory_dim(nhwc, i);
        size_t step[BROADCAST_TENSORS] = {0};

        for (int k = 0; k < call->n_in; k++) {
            const int own = call->in[k] == NULL ? -1 : d - (shape->n_dims - call->in[k]->n_dims);

            if (own >= 0 && call->in[k]->dims[own] != 1)
                step[k] = own_view_of(call->in[k]).step[own];
        }
        broadcast_append(&dims, (size_t)shape->dims[d], step);
    }
    a.n_dims = dims.n;
    for (int d = 0; d < dims.n; d++)
        a.dims[d] = dims.size[d];
    for (int k = 0; k < call->n_in; k++) {
        a.in[k] = own_data(call->in[k]);
        for (int d = 0; d < dims.n; d++)
            a.step[k][d] = dims.step[k][d];
    }
    return a;
}

void cuda_binary(own_operands *o, const op_call *call)
{
    ls_tensor *y = call->out[0];
    broadcast_args a;
    bool nhwc = false;

    if (broadcast_is_whole(call->in[0], call->in[1])) {
        own_binary_alike(o, call);
        return;
    }
    for (int i = 0; i < 2; i++)
        nhwc = nhwc || (broadcast_is_whole(call->in[i], y) && own_is_nhwc(call->in[i]));
    a = inputs_over(call, y, nhwc);
    a.out = own_output(o, y, nhwc);
    own_launch(o, OWN_KERNELS(broadcast), own_type(y->dtype), own_blocks(o->self, a.count),
               OWN_THREADS, &a);
}

void cuda_select(own_operands *o, const op_call *call)
{
    ls_tensor *y = call->out[0];
    const bool nhwc = broadcast_is_whole(call->in[0], y) && own_is_nhwc(call->in[0]);
    broadcast_args a = inputs_over(call, y, nhwc);

    a.operand = call->attrs.reverse;
    a.out = own_output(o, y, nhwc);
    own_launch(o, OWN_KERNELS(broadcast_select), own_type(y->dtype), own_blocks(o->self, a.count),
               OWN_THREADS, &a);
}

/* --- sums --- */

/* The dimensions of x in the order of its memory; neighbours that are summed, or are not, are
 * one. */
typedef struct summed_dims {
    int n;
    size_t size[LS_MAX_DIMS];
    bool is_summed[LS_MAX_DIMS];
} summed_dims;

static void append_dim(summed_dims *s, size_t size, bool is_summed)
{
    if (size == 1)
        return;
    if (s->n > 0 && s->is_summed[s->n - 1] == is_summed) {
        s->size[s->n - 1] *= size;
        return;
    }
    s->size[s->n] = size;
    s->is_summed[s->n++] = is_summed;
}

static summed_dims summed_dims_of(const ls_tensor *x, const ls_tensor *sums, bool nhwc)
{
    const int lacks = x->n_dims - sums->n_dims;
    summed_dims s = {.n = 0};

    for (int i = 0; i < x->n_dims; i++) {
        const int d = memory_dim(nhwc, i);

        append_dim(&s, (size_t)x->dims[d], d < lacks || sums->dims[d - lacks] == 1);
    }
    return s;
}

/* Whether the sums keep the channels between other dimensions: NHWC would be their order too. */
static bool keeps_order_of(const ls_tensor *sums)
{
    return sums->n_dims != 3 || sums->dims[0] == 1 || sums->dims[1] * sums->dims[2] == 1;
}

/* Takes the innermost dimension that is summed out of the list: rows, and what is outside (n) and
 * inside (columns) of it. */
static void take_summed(summed_dims *s, size_t *n, size_t *rows, size_t *columns)
{
    summed_dims rest = {.n = 0};
    int at = s->n - 1;

    while (at >= 0 && !s->is_summed[at])
        at--;
    *n = 1;
    *rows = at >= 0 ? s->size[at] : 1;
    *columns = 1;
    for (int i = 0; i < s->n; i++) {
        if (i == at)
            continue;
        *(i < at ? n : columns) *= s->size[i];
        append_dim(&rest, s->size[i], s->is_summed[i]);
    }
    *s = rest;
}

static bool has_summed(const summed_dims *s)
{
    return s->n > 1 || (s->n == 1 && s->is_summed[0]);
}

/* out = scale times the sums of x, or of x * factor. */
static void sum_dims(own_operands *o, summed_dims dims, kernel_type type, column_args a,
                     kernel_type out_type, double scale)
{
    void *out = a.out[0];
    bool is_last = false;

    while (!is_last && o->status == LS_OK) {
        const kernel_type sums_type = type == KERNEL_F64 ? KERNEL_F64 : KERNEL_F32;
        size_t n;
        size_t rows;
        size_t columns;

        take_summed(&dims, &n, &rows, &columns);
        is_last = !has_summed(&dims);
        a.by = own_sum_split(o, n, rows, columns, type, own_is_aligned(a.x) && own_is_aligned(a.y));
        a.out_type = is_last ? out_type : sums_type;
        a.scale = is_last ? scale : 1;
        a.out[0] =
            is_last ? out : own_memory(o, sums_type == KERNEL_F64 ? LS_F64 : LS_F32, n * columns);
        own_launch(o, OWN_KERNELS(column_sum), type, own_split_blocks(&a.by), OWN_THREADS, &a);
        type = sums_type;
        a.x = a.out[0];
        a.y = NULL;
    }
}

/* Each term where it is: no element of y serves several. */
static void terms_alone(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const bool nhwc = own_is_nhwc(x);
    broadcast_args a = inputs_over(call, x, nhwc);

    a.out = own_output(o, call->out[0], nhwc);
    a.out_type = own_type(x->dtype);
    own_launch(o, OWN_KERNELS(broadcast_slope), own_type(x->dtype), own_blocks(o->self, a.count),
               OWN_THREADS, &a);
}

/* Whether the terms are x, or x times a tensor of its shape: *factor. */
static bool is_product(const op_call *call, const ls_tensor **factor)
{
    const op_attrs *a = &call->attrs;

    *factor = a->binary == BINARY_MUL ? call->in[2 - a->operand] : NULL;
    if (*factor != NULL)
        return broadcast_is_whole(*factor, call->in[0]);
    return a->binary == BINARY_ADD || (a->binary == BINARY_SUB && a->operand == 0);
}

void cuda_reduce(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *y = call->out[0];
    const bool nhwc = own_is_nhwc(x) && keeps_order_of(y);
    kernel_type type = own_type(x->dtype);
    column_args a = {.out = {NULL}};
    const ls_tensor *factor;

    if (broadcast_is_whole(y, x) && call->attrs.scale == 1) {
        terms_alone(o, call);
        return;
    }
    a.out[0] = own_output(o, y, nhwc && y->n_dims == 4);
    if (is_product(call, &factor)) {
        a.x = own_operand(o, x, nhwc);
        a.y = own_operand(o, factor, nhwc);
    } else {
        broadcast_args terms = inputs_over(call, x, nhwc);
        const ls_dtype wide = x->dtype == LS_F64 ? LS_F64 : LS_F32;

        terms.out = own_memory(o, wide, terms.count);
        terms.out_type = own_type(wide);
        own_launch(o, OWN_KERNELS(broadcast_slope), type, own_blocks(o->self, terms.count),
                   OWN_THREADS, &terms);
        type = terms.out_type;
        a.x = terms.out;
    }
    sum_dims(o, summed_dims_of(x, y, nhwc), type, a, own_type(y->dtype), call->attrs.scale);
}
