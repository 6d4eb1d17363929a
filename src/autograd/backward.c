/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward.c - runs the recorded operators backward; ls_backward() and ls_ddp_backward() call it.
 *
 * A first pass finds the nodes that the loss depends on and counts the uses of each leaf. A second
 * pass runs the operators' backwards; a leaf's gradient is complete after its last use, and memory
 * that only a passed operator needed is released at once.
 */
#include "autograd/tape.h"

#include "tensor/op_profile.h"

bool node_is_reached(const ls_tape *tape, const node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        if (tape->values[n->first_value + i]->is_reached)
            return true;
    }
    return false;
}

/* --- functions for the operators' backwards --- */

bool grad_may_be_reused(const node *n)
{
    const value *v = node_value(n);

    return !v->is_retained && v->grad->storage->n_refs == 1;
}

ls_status node_grad_or_zeros(ls_tape *tape, const node *n, int i, ls_tensor **out)
{
    value *v = tape->values[n->first_value + i];

    if (v->grad == NULL) {
        LS_TRY(tensor_like(v->tensor, &v->grad));
        LS_TRY(tensor_place(v->grad, NULL, 0));
        LS_TRY(tensor_zero(v->grad));
    }
    *out = v->grad;
    return LS_OK;
}

static ls_status run_pair(ls_tape *tape, op_kind op, ls_tensor *src, ls_tensor *dst)
{
    const op_call call = {.op = op, .n_in = 1, .n_out = 1, .in = {src}, .out = {dst}};

    return device_run(tape->device, &call);
}

ls_status leaf_passed(ls_tape *tape, ls_tensor *t, int n_uses)
{
    leaf *l = leaf_of(t);

    LS_ASSERT(l != NULL && l->n_pending >= n_uses + l->collected.n_uses);
    l->has_grad = true;
    l->n_pending -= n_uses;
    if (l->n_pending > l->collected.n_uses)
        return LS_OK;
    if (l->n_pending > 0)
        return weights_flush(tape, t);
    LS_TRY(check_nan_leaf(tape, t));
    if (l->owner != NULL)
        LS_TRY(l->owner->ready(l->owner->arg, t));
    return tape->on_ready == NULL ? LS_OK : tape->on_ready(tape->on_ready_arg, t);
}

static ls_status give_to_leaf(ls_tape *tape, ls_tensor *in, ls_tensor *g)
{
    const leaf *l = leaf_of(in);
    ls_tensor *memory;

    LS_ASSERT(l != NULL);
    LS_TRY(leaf_grad_memory(in, &memory));
    LS_TRY(run_pair(tape, l->has_grad ? OP_ADD_INTO : OP_COPY, g, memory));
    return leaf_passed(tape, in, 1);
}

/* v->grad += g; in new memory when another tensor shares the old one. */
static ls_status add_to_value(ls_tape *tape, value *v, ls_tensor *g)
{
    op_call call = {.op = OP_BINARY,
                    .attrs = {.binary = BINARY_ADD},
                    .n_in = 2,
                    .n_out = 1,
                    .in = {v->grad, g}};
    ls_status st;

    if (v->grad->storage->n_refs == 1)
        return run_pair(tape, OP_ADD_INTO, g, v->grad);
    LS_TRY(tensor_like(v->tensor, &call.out[0]));
    st = device_run(tape->device, &call);
    if (st != LS_OK) {
        ls_tensor_destroy(call.out[0]);
        return st;
    }
    ls_tensor_destroy(v->grad);
    v->grad = call.out[0];
    return LS_OK;
}

/* Adds v->more_grad to v->grad. */
static ls_status add_pending(ls_tape *tape, value *v)
{
    ls_tensor *g = v->more_grad;
    ls_status st;

    if (g == NULL)
        return LS_OK;
    v->more_grad = NULL;
    st = add_to_value(tape, v, g);
    ls_tensor_destroy(g);
    return st;
}

/* Whether the backward of the value's operator adds the second gradient. Stream devices save a
 * kernel and a pass over memory; host devices free the memory of a gradient early instead. */
static bool waits_for_backward(const ls_tape *tape, const value *v)
{
    return tape->nodes[v->node].class->adds_gradients && tape->device->accel != NULL &&
           !v->is_retained && !tape->checks_nan;
}

/* Takes g on success. */
static ls_status give_to_value(ls_tape *tape, value *v, ls_tensor *g)
{
    if (v->grad == NULL) {
        v->grad = g;
        return LS_OK;
    }
    LS_TRY(add_pending(tape, v));
    if (waits_for_backward(tape, v)) {
        v->more_grad = g;
        return LS_OK;
    }
    LS_TRY(add_to_value(tape, v, g));
    ls_tensor_destroy(g);
    return LS_OK;
}

ls_status grad_give(ls_tape *tape, ls_tensor *in, ls_tensor *g)
{
    value *v = value_of(in);
    ls_status st = LS_OK;

    if (v != NULL && value_is_live(v)) {
        st = give_to_value(tape, v, g);
        if (st == LS_OK)
            return LS_OK;
    } else if (leaf_of(in) != NULL) {
        st = give_to_leaf(tape, in, g);
    }
    ls_tensor_destroy(g);
    return st;
}

ls_status grad_give_same(ls_tape *tape, ls_tensor *in, ls_tensor *g)
{
    const value *v = value_of(in);
    ls_tensor *shared;

    if (v == NULL && leaf_of(in) != NULL)
        return give_to_leaf(tape, in, g);
    LS_TRY(tensor_like(in, &shared));
    tensor_share(shared, g);
    return grad_give(tape, in, shared);
}

void value_forget_grad(value *v)
{
    ls_tensor_destroy(v->grad);
    ls_tensor_destroy(v->more_grad);
    v->grad = NULL;
    v->more_grad = NULL;
}

ls_status grad_run(ls_tape *tape, op_call *call, int i, ls_tensor *in)
{
    ls_status st;

    LS_TRY(tensor_like(in, &call->out[i]));
    st = device_run(tape->device, call);
    if (st != LS_OK) {
        ls_tensor_destroy(call->out[i]);
        return st;
    }
    return grad_give(tape, in, call->out[i]);
}

ls_status grad_run_op(ls_tape *tape, const node *n, op_kind op, ls_tensor *a, ls_tensor *b)
{
    op_call call = {.op = op,
                    .attrs = n->attrs,
                    .may_reuse_grad = b == node_value(n)->grad && grad_may_be_reused(n),
                    .n_in = b == NULL ? 1 : 2,
                    .n_out = 1,
                    .in = {a, b}};

    return grad_run(tape, &call, 0, n->in[0]);
}

/* --- the walks --- */

/* Marks the values that the node reads, and counts the uses of leaves. */
static ls_status reach_inputs(ls_tape *tape, const node *n)
{
    for (int i = 0; i < node_input_count(n); i++) {
        value *v = value_of(node_input(n, i));
        leaf *l;

        if (!node_input_has_grad(n, i))
            continue;
        if (v != NULL) {
            v->is_reached = v->is_reached || value_is_live(v);
            continue;
        }
        l = leaf_of(node_input(n, i));
        if (l == NULL)
            continue;
        if (l->owner != NULL && l->owner != tape->by)
            return ls_fail(LS_EINVAL, "backward: the gradient of %s belongs to %s", l->owner_name,
                           l->owner->reason);
        if (l->backward != tape->backward)
            l->n_pending = 0;
        l->backward = tape->backward;
        l->n_pending++;
    }
    return LS_OK;
}

ls_status reach_nodes(ls_tape *tape, int first, int last)
{
    for (int i = last; i >= first; i--) {
        const node *n = &tape->nodes[i];

        if (node_is_reached(tape, n))
            LS_TRY(reach_inputs(tape, n));
    }
    return LS_OK;
}

void node_release(ls_tape *tape, node *n)
{
    for (int i = 0; i < node_input_count(n); i++) {
        value *v = node_input_is_read(n, i) ? value_of(node_input(n, i)) : NULL;

        if (v != NULL)
            v->n_readers--;
    }
    if (n->n_saved > 0 || n->extra != NULL)
        node_drop(n);
    for (int i = 0; i < n->n_out; i++) {
        value *v = tape->values[n->first_value + i];

        if (v->is_retained)
            continue;
        tensor_release(v->tensor);
        value_forget_grad(v);
    }
}

/* Whether the tensor has the contents of forward. */
static bool is_unchanged(const ls_tensor *t, const contents *seen)
{
    const value *v = value_of(t);

    return (t->storage == seen->storage && t->storage->version == seen->version) ||
           (v != NULL && v->is_recomputed);
}

static ls_status fail_changed(const char *name, const ls_tensor *t, const contents *seen)
{
    char text[TENSOR_TEXT_BYTES];

    if (t->storage != seen->storage)
        return ls_fail(LS_EINVAL, "%s %s was destroyed after forward; do that after backward", name,
                       tensor_text(text, sizeof(text), t));
    return ls_fail(LS_EINVAL, "%s %s was overwritten after forward by %s; do that after backward",
                   name, tensor_text(text, sizeof(text), t),
                   t->storage->writer == NULL ? "another tensor" : t->storage->writer);
}

/* Whether the device has kept the output itself for backward, as another tensor over its memory. */
static bool is_saved(const node *n, const ls_tensor *out)
{
    for (int i = 0; i < n->n_saved; i++) {
        if (n->saved[i] != NULL && out->storage != NULL && n->saved[i]->storage == out->storage)
            return true;
    }
    return false;
}

/* Whether the tensors that the node's backward reads are unchanged since forward. */
static ls_status check_contents(const ls_tape *tape, const node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        if (n->in[i] != NULL && class_reads(n->class, i) && !is_unchanged(n->in[i], &n->seen[i]))
            return fail_changed(node_tensor_name(n, i), n->in[i], &n->seen[i]);
    }
    for (int i = 0; n->extra != NULL && i < n->extra->n_inputs; i++) {
        const dependency *d = &n->extra->inputs[i];

        if (!is_unchanged(d->tensor, &d->seen))
            return fail_changed("a tensor that the function reads,", d->tensor, &d->seen);
    }
    for (int i = 0; i < n->n_out; i++) {
        const value *v = tape->values[n->first_value + i];

        if ((class_reads(n->class, NODE_OUT) || is_saved(n, v->tensor)) &&
            !is_unchanged(v->tensor, &v->seen))
            return fail_changed(node_tensor_name(n, NODE_OUT), v->tensor, &v->seen);
    }
    return LS_OK;
}

static ls_status run_backward(ls_tape *tape, int i)
{
    const node *n = &tape->nodes[i];
    value *first = tape->values[n->first_value];
    const int outer = tape->passing; // a function that is computed again, or none

    if (tape->has_dropped)
        LS_TRY(done_restore(tape, n));
    LS_TRY(check_contents(tape, n));
    if (first->is_retained) // since the second gradient was given
        LS_TRY(add_pending(tape, first));
    tape->passing = i;
    LS_TRY(n->class->backward(tape, n, node_grad(tape, n, 0)));
    tape->passing = outer;
    // The operator's backward may have added nodes, and moved the others by that.
    return tape->checks_nan ? check_nan_gradients(tape, &tape->nodes[i]) : LS_OK;
}

static ls_status pass(ls_tape *tape, int i)
{
    const op_class *class = tape->nodes[i].class;
    const char *layer = tape->nodes[i].layer;
    ls_status st;

    if (tape->device->profile != NULL)
        tape->device->profile->layer = layer;
    st = run_backward(tape, i);
    // A failed rank, noticed while a gradient was handed over, does not concern the operator.
    if (st == LS_OK || st == LS_EPEER || st == LS_ECANCELED)
        return st;
    st = ls_context(st, "%s backward", class->name);
    return layer == NULL ? st : ls_context(st, "%s", layer);
}

ls_status pass_nodes(ls_tape *tape, int first, int last)
{
    for (int i = last; i >= first; i--) {
        if (node_is_reached(tape, &tape->nodes[i]))
            LS_TRY(pass(tape, i));
        node_release(tape, &tape->nodes[i]);
    }
    return LS_OK;
}

static ls_status check_loss(ls_tape *tape, const ls_tensor *loss)
{
    char text[TENSOR_TEXT_BYTES];
    const value *v = value_of(loss);

    LS_TRY(ls_tape_status(tape));
    if (tape->n_functions > 0)
        return ls_fail(LS_EINVAL, "backward: called by a checkpointed function");
    if (loss == NULL)
        return ls_fail(LS_EINVAL, "backward: the loss is NULL");
    if (!tape->is_training)
        return ls_fail(LS_EINVAL,
                       "backward: the tape is in evaluation mode, which records nothing");
    if (v == NULL || v->tape != tape)
        return ls_fail(LS_EINVAL, "backward: the loss %s was not made on this tape",
                       tensor_text(text, sizeof(text), loss));
    if (ls_tensor_count(loss) != 1)
        return ls_fail(LS_EINVAL, "backward: the loss %s must have exactly one element",
                       tensor_text(text, sizeof(text), loss));
    if (loss->dtype != LS_F32 && loss->dtype != LS_F64)
        return ls_fail(LS_EINVAL, "backward: the loss %s must be float32 or float64",
                       tensor_text(text, sizeof(text), loss));
    if (v->node < 0)
        return ls_fail(LS_EINVAL,
                       "backward: the loss depends on no tensor that requires a gradient");
    if (v->node < tape->n_passed)
        return ls_fail(LS_EINVAL, "backward: a backward has already passed this loss");
    return LS_OK;
}

/* Whether the tape's seed has this type and value, is not the gradient of an earlier loss still,
 * and was not overwritten through ls_grad(). */
static bool has_seed(const ls_tape *tape, ls_dtype type, double seed)
{
    const ls_tensor *t = tape->seed.tensor;

    return t != NULL && t->dtype == type && tape->seed.value == seed && t->storage->n_refs == 1 &&
           t->storage->version == tape->seed.version;
}

static ls_status make_seed(ls_tape *tape, ls_dtype type, double seed)
{
    op_call call = {.op = OP_FILL, .attrs = {.value = seed}, .n_out = 1};
    ls_status st;

    ls_tensor_destroy(tape->seed.tensor);
    tape->seed.tensor = NULL;
    LS_TRY(tensor_shape(tape->device, type, 0, NULL, &call.out[0]));
    st = tensor_place(call.out[0], NULL, 0);
    if (st == LS_OK)
        st = device_run(tape->device, &call);
    if (st != LS_OK) {
        ls_tensor_destroy(call.out[0]);
        return st;
    }
    tape->seed.tensor = call.out[0];
    tape->seed.value = seed;
    tape->seed.version = call.out[0]->storage->version;
    return LS_OK;
}

/* d(loss)/d(loss), times the seed, in memory that later steps of the tape use again. */
static ls_status seed_loss(ls_tape *tape, value *v, double seed)
{
    ls_tensor *grad;

    if (!has_seed(tape, v->tensor->dtype, seed))
        LS_TRY(make_seed(tape, v->tensor->dtype, seed));
    LS_TRY(tensor_like(v->tensor, &grad));
    tensor_share(grad, tape->seed.tensor);
    ls_tensor_destroy(v->grad);
    v->grad = grad;
    return LS_OK;
}

/* Frees what grad_run_linear() has collected. */
static void forget_collected(const ls_tape *tape)
{
    for (int i = tape->n_passed; i < tape->n_nodes; i++) {
        for (int k = 0; k < node_input_count(&tape->nodes[i]); k++) {
            leaf *l = leaf_of(node_input(&tape->nodes[i], k));

            if (l != NULL)
                weights_forget(l);
        }
    }
}

/* The operators from now on are those of backward. Returns the phase before. */
static const char *begin_profile(op_profile *profile)
{
    const char *was = profile->phase;

    profile->phase = "backward";
    return was;
}

static void end_profile(op_profile *profile, const char *phase)
{
    profile->phase = phase;
    profile->layer = NULL;
}

ls_status autograd_backward(ls_tape *tape, ls_tensor *loss, double seed,
                            const autograd_owner *owner)
{
    const char *phase = NULL;
    value *v = value_of(loss);
    ls_status st;

    if (tape == NULL)
        return ls_fail(LS_EINVAL, "backward: the tape is NULL");
    LS_TRY(check_loss(tape, loss));
    v->is_retained = true; // so that the loss can be read afterwards
    v->is_reached = true;
    tape->backward = ++tape->device->n_backwards;
    tape->by = owner;
    if (tape->device->profile != NULL)
        phase = begin_profile(tape->device->profile);
    st = seed_loss(tape, v, seed);
    if (st == LS_OK)
        st = reach_nodes(tape, tape->n_passed, v->node);
    if (st == LS_OK)
        st = pass_nodes(tape, tape->n_passed, tape->n_nodes - 1);
    if (tape->device->profile != NULL)
        end_profile(tape->device->profile, phase);
    if (st == LS_OK)
        tape->n_passed = tape->n_nodes;
    if (st != LS_OK) {
        (void)autograd_fail(tape, st);
        forget_collected(tape);
    }
    return st;
}

ls_status ls_backward(ls_tape *tape, ls_tensor *loss, double seed)
{
    return autograd_backward(tape, loss, seed, NULL);
}
