/* SPDX-License-Identifier: Apache-2.0 */
/* op_cost.c - operations and bytes of each operator, by one table. op_profile.c calls it. */
#include "tensor/op_cost.h"

typedef enum moved_bytes {
    ALL,     /* of all tensors */
    UPDATES, /* the outputs are read, too */
    PART     /* the input is read as far as the output needs it */
} moved_bytes;

typedef struct cost_row {
    cost_rule rule;
    moved_bytes moved;
    int per_element;
} cost_row;

static const cost_row costs[OP_COUNT] = {
#define OPERATOR(KIND, name, rule, moved, per_element, ...) {rule, moved, per_element},
#include "tensor/operators.inc"
};

cost_rule op_cost_rule(op_kind op)
{
    return costs[op].rule;
}

static double count_of(const ls_tensor *t)
{
    return t == NULL ? 0 : (double)ls_tensor_count(t);
}

static double bytes_of(const ls_tensor *t)
{
    return t == NULL ? 0 : (double)tensor_bytes(t);
}

/* Dimension `from_end` of the tensor, counted from 1 at the last one. */
static double size_at(const ls_tensor *t, int from_end)
{
    return t == NULL || t->n_dims < from_end ? 0 : (double)t->dims[t->n_dims - from_end];
}

static double largest(const op_call *call)
{
    double most = 0;

    // a table is read as far as the output needs it
    for (int i = call->op == OP_EMBEDDING; i < call->n_in; i++)
        most = count_of(call->in[i]) > most ? count_of(call->in[i]) : most;
    for (int i = 0; i < call->n_out; i++)
        most = count_of(call->out[i]) > most ? count_of(call->out[i]) : most;
    return most;
}

/* `rows` is the output side; w (O, ...): each of its elements takes part in |rows| / O products. */
static double product(const ls_tensor *rows, const ls_tensor *w)
{
    const double outputs = w == NULL || w->n_dims == 0 ? 0 : (double)w->dims[0];

    return outputs > 0 ? 2 * count_of(rows) * count_of(w) / outputs : 0;
}

/* q, k, v: (..., T, D), (..., S, D), (..., S, E). */
static double attention(const op_call *call, const ls_tensor *k, const ls_tensor *v, int products_d,
                        int products_e)
{
    const double width = size_at(call->in[0], 1);
    const double rows = width > 0 ? count_of(call->in[0]) / width : 0;
    const double pairs = rows * size_at(k, 2) * (call->attrs.causal ? 0.5 : 1);

    return 2 * pairs * (products_d * width + products_e * size_at(v, 1));
}

static double flops_of(const op_call *call)
{
    const cost_row *row = &costs[call->op];

    switch (row->rule) {
    case PRODUCT:
        return product(call->out[0], call->in[1]);
    case PRODUCT_DATA:
        return product(call->in[0], call->in[1]);
    case PRODUCT_WEIGHTS:
        return product(call->in[1], call->out[0]);
    case MATRICES:
        return 2 * count_of(call->out[0]) * size_at(call->in[0], call->attrs.transposed[0] ? 2 : 1);
    case ATTENTION:
        return attention(call, call->in[1], call->in[2], 1, 1);
    case ATTENTION_BACKWARD:
        return attention(call, call->in[2], call->in[3], 3, 2);
    default:
        return row->per_element * largest(call);
    }
}

op_cost op_cost_of(const op_call *call)
{
    const moved_bytes moved = costs[call->op].moved;
    op_cost cost = {.flops = flops_of(call)};

    for (int i = moved == PART; i < call->n_in; i++)
        cost.bytes += bytes_of(call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        cost.bytes += bytes_of(call->out[i]) * (moved == UPDATES || moved == PART ? 2 : 1);
    return cost;
}
