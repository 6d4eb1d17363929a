/* SPDX-License-Identifier: Apache-2.0 */
/* ref_binary.c - functions of two tensors that are broadcast, repeats of one, sums over parts of
 * one, which are the gradients of both, extremes and cumulative sums. */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/axis.h"
#include "tensor/formulas/broadcast.h"

#define REAL              double
#define BINARY_FN         static
#define BINARY_NAME(name) name
#include "tensor/formulas/binary.inc"

ls_status ref_binary(const op_call *call)
{
    const ls_tensor *in[2] = {call->in[0], call->in[1]};
    ls_tensor *y = call->out[0];
    const broadcast_dims dims = broadcast_over(y, in, 2);
    const bool wide = ref_wide(in[0]);
    broadcast_walk w = {{0}, {0}};

    for (size_t i = 0; i < ls_tensor_count(y); i++, broadcast_next(&dims, dims.n, &w))
        ref_put(tensor_elements(y), i,
                binary_value(call->attrs.binary, ref_get(tensor_elements(in[0]), w.at[0], wide),
                             ref_get(tensor_elements(in[1]), w.at[1], wide), call->attrs.value),
                wide);
    return LS_OK;
}

ls_status ref_expand(const op_call *call)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *y = call->out[0];
    const broadcast_dims dims = broadcast_over(y, &x, 1);
    const bool wide = ref_wide(x);
    broadcast_walk w = {{0}, {0}};

    for (size_t i = 0; i < ls_tensor_count(y); i++, broadcast_next(&dims, dims.n, &w))
        ref_put(tensor_elements(y), i, ref_get(tensor_elements(x), w.at[0], wide), wide);
    return LS_OK;
}

/* 0 for a tensor that is not there. */
static double operand_at(const ls_tensor *t, size_t i, bool wide)
{
    return t == NULL ? 0 : ref_get(tensor_elements(t), i, wide);
}

ls_status ref_reduce(const op_call *call)
{
    const op_attrs *attrs = &call->attrs;
    const ls_tensor *x = call->in[0];
    ls_tensor *y = call->out[0];
    const ls_tensor *over[3] = {y, call->in[1], call->in[2]};
    const broadcast_dims dims = broadcast_over(x, over, 3);
    const bool wide = ref_wide(x);
    broadcast_walk w = {{0}, {0}};
    ls_tensor *memory = NULL;
    double *sums;

    LS_TRY(ls_tensor_create(x->device, LS_F64, y->n_dims, y->dims, &memory));
    sums = tensor_elements(memory);
    for (size_t i = 0; i < ls_tensor_count(x); i++, broadcast_next(&dims, dims.n, &w))
        sums[w.at[0]] += binary_slope(
            attrs->binary, attrs->operand, ref_get(tensor_elements(x), i, wide),
            operand_at(over[1], w.at[1], wide), operand_at(over[2], w.at[2], wide), attrs->value);
    for (size_t i = 0; i < ls_tensor_count(y); i++)
        ref_put(tensor_elements(y), i, attrs->scale * sums[i], wide);
    ls_tensor_destroy(memory);
    return LS_OK;
}

/* --- rows --- */

ls_status ref_extreme(const op_call *call)
{
    const void *x = tensor_elements(call->in[0]);
    const axis_parts p = axis_rows(call->in[0]);
    const bool wide = ref_wide(call->in[0]);

    for (size_t row = 0; row < p.outer; row++) {
        double v = ref_get(x, row * p.n, wide);

        for (size_t i = 1; i < p.n; i++)
            v = binary_value(call->attrs.binary, v, ref_get(x, row * p.n + i, wide), 0);
        ref_put(tensor_elements(call->out[0]), row, v, wide);
    }
    return LS_OK;
}

ls_status ref_extreme_backward(const op_call *call)
{
    const void *x = tensor_elements(call->in[0]);
    const axis_parts p = axis_rows(call->in[0]);
    const bool wide = ref_wide(call->in[0]);

    for (size_t row = 0; row < p.outer; row++) {
        const double y = ref_get(tensor_elements(call->in[1]), row, wide);
        const double dy = ref_get(tensor_elements(call->in[2]), row, wide);
        double n_equal = 0;

        for (size_t i = 0; i < p.n; i++)
            n_equal += ref_get(x, row * p.n + i, wide) == y;
        for (size_t i = row * p.n; i < (row + 1) * p.n; i++)
            ref_put(tensor_elements(call->out[0]), i, ref_get(x, i, wide) == y ? dy / n_equal : 0,
                    wide);
    }
    return LS_OK;
}

ls_status ref_cumsum(const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const bool wide = ref_wide(call->in[0]);

    for (size_t row = 0; row < p.outer; row++) {
        double sum = 0;

        for (size_t k = 0; k < p.n; k++) {
            const size_t i = row * p.n + (call->attrs.reverse ? p.n - 1 - k : k);

            sum += ref_get(tensor_elements(call->in[0]), i, wide);
            ref_put(tensor_elements(call->out[0]), i, sum, wide);
        }
    }
    return LS_OK;
}

/* --- selection --- */

ls_status ref_select(const op_call *call)
{
    const ls_tensor *in[3] = {call->in[0], call->in[1], call->in[2]};
    ls_tensor *y = call->out[0];
    const broadcast_dims dims = broadcast_over(y, in, 3);
    const uint8_t *mask = tensor_elements(in[2]);
    const bool wide = ref_wide(in[0]);
    broadcast_walk w = {{0}, {0}};

    for (size_t i = 0; i < ls_tensor_count(y); i++, broadcast_next(&dims, dims.n, &w)) {
        double v = ref_get(tensor_elements(in[0]), w.at[0], wide);

        if ((mask[w.at[2]] != 0) != call->attrs.reverse)
            v = in[1] == NULL ? call->attrs.value : operand_at(in[1], w.at[1], wide);
        ref_put(tensor_elements(y), i, v, wide);
    }
    return LS_OK;
}

/* --- embedding --- */

ls_status ref_embedding(const op_call *call)
{
    const ls_tensor *weight = call->in[0];
    const int64_t *indices = tensor_elements(call->in[1]);
    const axis_parts p = axis_rows(weight);
    const bool wide = ref_wide(weight);

    for (size_t i = 0; i < ls_tensor_count(call->in[1]); i++) {
        if (indices[i] < 0 || indices[i] >= weight->dims[0])
            return ls_fail(LS_EINVAL, "index %lld at position %zu is outside [0, %lld)",
                           (long long)indices[i], i, (long long)weight->dims[0]);
        for (size_t k = 0; k < p.n; k++)
            ref_put(tensor_elements(call->out[0]), i * p.n + k,
                    ref_get(tensor_elements(weight), (size_t)indices[i] * p.n + k, wide), wide);
    }
    return LS_OK;
}

ls_status ref_embedding_backward(const op_call *call)
{
    const ls_tensor *dy = call->in[0];
    const int64_t *indices = tensor_elements(call->in[1]);
    ls_tensor *dw = call->out[0];
    const axis_parts p = axis_rows(dw);
    const bool wide = ref_wide(dy);

    for (size_t i = 0; i < ls_tensor_count(dw) && !call->accumulate; i++)
        ref_put(tensor_elements(dw), i, 0, wide);
    for (size_t i = 0; i < ls_tensor_count(call->in[1]); i++) {
        for (size_t k = 0; k < p.n && indices[i] != call->attrs.begin; k++)
            ref_give(tensor_elements(dw), (size_t)indices[i] * p.n + k,
                     ref_get(tensor_elements(dy), i * p.n + k, wide), true, wide);
    }
    return LS_OK;
}
