/* SPDX-License-Identifier: Apache-2.0 */
/*
 * precision.c - mixed precision: converts the inputs of an operator to the types that its rule
 * asks for, with casts that are recorded as operators. node_begin() calls it where the tape's
 * compute type is not float32.
 *
 * The rules are those of torch.autocast, but that softmax and layer norm of PyTorch give float32
 * (Micikevicius et al., "Mixed Precision Training", 2018: parameters, sums and losses in float32).
 */
#include "autograd/tape.h"

ls_status ls_tape_set_compute(ls_tape *tape, ls_dtype type)
{
    LS_TRY(LS_GIVEN(tape));
    if (type != LS_F32 && type != LS_BF16 && type != LS_F16)
        return ls_fail(LS_EINVAL,
                       "tape: activations cannot be computed in %s; float32, bfloat16 and float16 "
                       "are supported",
                       ls_dtype_name(type));
    if (tape->compute == type)
        return LS_OK;
    ls_tape_reset(tape);
    tape->compute = type;
    return LS_OK;
}

ls_dtype ls_tape_compute(const ls_tape *tape)
{
    return tape == NULL ? LS_F32 : tape->compute;
}

/* --- casts --- */

static ls_status cast_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_CAST, dy, NULL);
}

static const op_class cast_class = {
    .name = "cast", ONE_INPUT, READS_NOTHING, .backward = cast_backward};

/* The result of an earlier cast of `x`, if gradients flow through it as they would through
 * a new one. */
static ls_tensor *find_cast(const ls_tape *tape, const ls_tensor *x, ls_dtype type)
{
    for (int i = 0; i < CASTS_REMEMBERED; i++) {
        const cast_result *r = &tape->casts[i];

        if (r->from == x && r->to->dtype == type && r->to->storage != NULL &&
            r->seen.storage == x->storage && r->seen.version == x->storage->version &&
            needs_grad(r->to) == (tape->is_training && needs_grad(x)))
            return r->to;
    }
    return NULL;
}

static ls_tensor *cast_to(ls_tape *tape, ls_tensor *x, ls_dtype type)
{
    node n = {.class = &cast_class, .n_in = 1, .in = {x}};
    ls_tensor *y = find_cast(tape, x, type);

    if (y != NULL || !node_begin(tape, &n))
        return y;
    y = node_run_as(tape, &n, OP_CAST, type, x->n_dims, x->dims);
    if (y != NULL)
        tape->casts[tape->n_casts++ % CASTS_REMEMBERED] = (cast_result){
            .from = x,
            .seen = {.storage = x->storage, .version = x->storage->version},
            .to = y,
        };
    return y;
}

ls_tensor *ls_cast(ls_tape *tape, ls_tensor *x, ls_dtype type)
{
    node n = {.class = &cast_class, .n_in = 1, .in = {x}};

    if (!node_begin(tape, &n))
        return NULL;
    if (x->dtype == LS_F64 || (type != LS_F32 && type != tape->compute))
        return node_reject(tape, &n,
                           ls_fail(LS_EINVAL, "%s to %s on a tape that computes in %s",
                                   ls_dtype_name(x->dtype), ls_dtype_name(type),
                                   ls_dtype_name(tape->compute)));
    return x->dtype == type ? x : cast_to(tape, x, type);
}

/* --- rules --- */

static bool is_parameter(const node *n, int i)
{
    return (n->class->parameters >> i & 1) != 0;
}

/* The type of the operator's activations. */
static ls_dtype activation_type(const ls_tape *tape, const node *n)
{
    const ls_dtype first = n->in[0]->dtype;

    if (n->class->precision != PRECISION_OF_INPUTS)
        return n->class->precision == PRECISION_COMPUTE ? tape->compute : LS_F32;
    for (int i = 1; i < n->n_in && i < n->class->n_typed; i++) {
        if (n->in[i] != NULL && !is_parameter(n, i) && n->in[i]->dtype != first)
            return LS_F32;
    }
    return first;
}

bool precision_convert(ls_tape *tape, node *n)
{
    const ls_dtype type = activation_type(tape, n);

    for (int i = 0; i < n->n_in && i < n->class->n_typed; i++) {
        const ls_dtype want = is_parameter(n, i) ? LS_F32 : type;
        ls_tensor *t = n->in[i];

        if (t == NULL || t->dtype == want || (t->dtype != LS_F32 && !tensor_is_half(t)))
            continue;
        n->in[i] = cast_to(tape, t, want);
        if (n->in[i] == NULL)
            return false;
    }
    return true;
}

ls_status precision_check(const ls_tape *tape, const node *n, int i)
{
    char text[TENSOR_TEXT_BYTES];
    const ls_tensor *t = n->in[i];
    const ls_dtype first = n->in[0]->dtype;
    const bool mixes = tensor_is_half(n->in[0]) && is_parameter(n, i);

    if (t->dtype != (mixes ? LS_F32 : first))
        return ls_fail(LS_EINVAL, "%s is %s but %s is %s", node_tensor_name(n, i),
                       ls_dtype_name(t->dtype), node_tensor_name(n, 0), ls_dtype_name(first));
    if (t->dtype == LS_F32 || t->dtype == LS_F64 || (tensor_is_half(t) && tape->compute != LS_F32))
        return LS_OK;
    return ls_fail(LS_EINVAL, "%s %s must be float32 or float64", node_tensor_name(n, i),
                   tensor_text(text, sizeof(text), t));
}
