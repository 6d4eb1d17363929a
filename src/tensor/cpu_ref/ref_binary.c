/* SPDX-License-Identifier: Apache-2.0 */
/* ref_binary.c - functions of two tensors that are broadcast, repeats of one, and sums over parts
 * of one, which are the gradients of both. */
#include "tensor/broadcast.h"
#include "tensor/cpu_ref/ref.h"

#define REAL              double
#define BINARY_FN         static
#define BINARY_NAME(name) name
#include "tensor/binary.inc"

ls_status ref_binary(device_state *self, const op_call *call)
{
    const ls_tensor *in[2] = {call->in[0], call->in[1]};
    ls_tensor *y = call->out[0];
    const broadcast_dims dims = broadcast_over(y, in, 2);
    const bool wide = ref_wide(in[0]);
    broadcast_walk w = {{0}, {0}};

    LS_UNUSED(self);
    LS_TRY(tensor_place(y, NULL, 0));
    for (size_t i = 0; i < ls_tensor_count(y); i++, broadcast_next(&dims, dims.n, &w))
        ref_put(tensor_elements(y), i,
                binary_value(call->attrs.binary, ref_get(tensor_elements(in[0]), w.at[0], wide),
                             ref_get(tensor_elements(in[1]), w.at[1], wide), call->attrs.value),
                wide);
    return LS_OK;
}

ls_status ref_expand(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *y = call->out[0];
    const broadcast_dims dims = broadcast_over(y, &x, 1);
    const bool wide = ref_wide(x);
    broadcast_walk w = {{0}, {0}};

    LS_UNUSED(self);
    LS_TRY(tensor_place(y, NULL, 0));
    for (size_t i = 0; i < ls_tensor_count(y); i++, broadcast_next(&dims, dims.n, &w))
        ref_put(tensor_elements(y), i, ref_get(tensor_elements(x), w.at[0], wide), wide);
    return LS_OK;
}

/* 0 for a tensor that is not there. */
static double operand_at(const ls_tensor *t, size_t i, bool wide)
{
    return t == NULL ? 0 : ref_get(tensor_elements(t), i, wide);
}

ls_status ref_reduce(device_state *self, const op_call *call)
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

    LS_UNUSED(self);
    LS_TRY(tensor_place(y, NULL, 0));
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
