/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence.c - tensors (N,C,T) seen as (N,C,1,T), and weights (O,I,K) as (O,I,1,K), while a kernel
 * runs. Only device.c calls it; outside of it no tensor has the additional dimension.
 */
#include "tensor/sequence.h"

/* What an operator's kernels can do with (N,C,1,T) in place of (N,C,T). */
typedef enum image_use {
    NEEDS_PLAIN, /* nothing: the number of dimensions has a meaning */
    BY_ELEMENT,  /* the same result, in any layout */
    OF_IMAGES    /* they require images */
} image_use;

static const image_use uses[OP_COUNT] = {
#define OPERATOR(KIND, name, rule, moved, n, on_sequences) on_sequences,
#include "tensor/operators.inc"
};

static bool is_arranged(const ls_tensor *t)
{
    return t != NULL && t->n_dims == SEQUENCE_DIMS && t->storage != NULL &&
           t->storage->layout != NULL;
}

bool sequence_matters(const op_call *call)
{
    const ls_tensor *typed = device_typed(call);

    if (typed != NULL && typed->n_dims == SEQUENCE_DIMS && uses[call->op] == OF_IMAGES)
        return true;
    for (int i = 0; i < call->n_in; i++) {
        if (is_arranged(call->in[i]))
            return true;
    }
    for (int i = 0; i < call->n_out; i++) {
        if (is_arranged(call->out[i]))
            return true;
    }
    return false;
}

/* Tensor `i` of the inputs and outputs. */
static ls_tensor *tensor_at(const op_call *call, int i)
{
    return i < call->n_in ? call->in[i] : call->out[i - call->n_in];
}

/* Whether the dimensions of the operands stay aligned with those of the sequences. */
static bool can_insert(const op_call *call)
{
    const image_use use = uses[call->op];

    for (int i = 0; i < call->n_in + call->n_out; i++) {
        const ls_tensor *t = tensor_at(call, i);

        if (use == BY_ELEMENT && t != NULL && t->n_dims > SEQUENCE_DIMS)
            return false;
    }
    return use != NEEDS_PLAIN;
}

/* In front of the last dimension. Broadcast operands of two dimensions get it as well. */
static void insert(ls_tensor *t, sequence_view *view)
{
    if (t == NULL || t->n_dims < 2 || t->n_dims > SEQUENCE_DIMS)
        return;
    for (int i = 0; i < view->n; i++) {
        if (view->t[i] == t)
            return;
    }
    t->dims[t->n_dims] = t->dims[t->n_dims - 1];
    t->dims[t->n_dims - 1] = 1;
    t->n_dims++;
    view->t[view->n++] = t;
}

bool sequence_open(const op_call *call, sequence_view *view)
{
    view->n = 0;
    if (!can_insert(call))
        return false;
    for (int i = 0; i < call->n_in + call->n_out; i++)
        insert(tensor_at(call, i), view);
    return true;
}

void sequence_close(sequence_view *view)
{
    for (int i = 0; i < view->n; i++) {
        ls_tensor *t = view->t[i];
        const int at = t->n_dims - 2;

        LS_ASSERT(at >= 1 && t->dims[at] == 1);
        t->dims[at] = t->dims[at + 1];
        t->n_dims--;
    }
    view->n = 0;
}
