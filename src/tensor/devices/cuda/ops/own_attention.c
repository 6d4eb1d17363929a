/* SPDX-License-Identifier: Apache-2.0 */
/* own_attention.c - scaled dot-product attention. */
#include "tensor/devices/cuda/ops/own.h"
#include "tensor/formulas/attention.h"

#include <math.h>
#include <string.h>

_Static_assert(LS_MAX_DIMS <= MOVE_DIMS, "dimensions of attention_args");

/* Blocks for the rows of all attentions, with `columns` columns each. */
static unsigned part_blocks(const own_operands *o, size_t n, size_t rows, size_t columns)
{
    const size_t parts = n * ((rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS) *
                         ((columns + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH);
    const size_t most = 32 * (size_t)o->self->card.n_processors;

    return (unsigned)(parts < most ? parts : most);
}

static attention_args args_of(own_operands *o, const op_call *call, const ls_tensor *k,
                              const ls_tensor *v, const ls_tensor *mask)
{
    const ls_tensor *q = call->in[0];
    const attention_sizes z = attention_sizes_of(q, k, v, mask);
    const double drop = call->attrs.drop;
    attention_args a = {.q = own_operand(o, q, false),
                        .k = own_operand(o, k, false),
                        .v = own_operand(o, v, false),
                        .mask = own_operand(o, mask, false),
                        .mask_bytes = mask != NULL && mask->dtype == LS_U8,
                        .causal = call->attrs.causal,
                        .n = z.n,
                        .queries = z.queries,
                        .keys = z.keys,
                        .width = z.width,
                        .values = z.values,
                        .n_leading = z.n_leading,
                        .mask_row = z.mask_row,
                        .mask_column = z.mask_column,
                        .scale = call->attrs.scale,
                        .random = call->attrs.random,
                        .drop_limit = (uint64_t)ceil(drop * 0x1p53),
                        .kept = drop < 1 ? 1 / (1 - drop) : 0};

    memcpy(a.leading, z.leading, sizeof(z.leading));
    memcpy(a.mask_leading, z.mask_leading, sizeof(z.mask_leading));
    return a;
}

void cuda_attention(own_operands *o, const op_call *call)
{
    attention_args a = args_of(o, call, call->in[1], call->in[2], call->in[3]);

    a.y = own_output(o, call->out[0], false);
    a.norms = own_output(o, call->out[1], false);
    own_launch(o, OWN_KERNELS(attention), own_type(call->in[0]->dtype),
               part_blocks(o, a.n, a.queries, a.values), OWN_THREADS, &a);
}

void cuda_attention_backward(own_operands *o, const op_call *call)
{
    const kernel_type type = own_type(call->in[0]->dtype);
    attention_args a = args_of(o, call, call->in[2], call->in[3], call->in[4]);
    const size_t columns = a.width > a.values ? a.width : a.values;

    a.dy = own_operand(o, call->in[1], false);
    a.y = own_operand(o, call->in[5], false);
    a.norms = own_operand(o, call->in[6], false);
    a.totals = own_memory(o, type == KERNEL_F64 ? LS_F64 : LS_F32, a.n * a.queries);
    a.dq = own_output(o, call->out[0], false);
    a.dk = own_output(o, call->out[1], false);
    a.dv = own_output(o, call->out[2], false);
    own_launch(o, OWN_KERNELS(attention_totals), type, own_blocks(o->self, a.n * a.queries),
               OWN_THREADS, &a);
    if (a.dq != NULL)
        own_launch(o, OWN_KERNELS(attention_queries), type, part_blocks(o, a.n, a.queries, a.width),
                   OWN_THREADS, &a);
    if (a.dk != NULL || a.dv != NULL)
        own_launch(o, OWN_KERNELS(attention_keys), type, part_blocks(o, a.n, a.keys, columns),
                   OWN_THREADS, &a);
}
