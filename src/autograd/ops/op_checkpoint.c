/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_checkpoint.c - ls_tape_checkpoint(): releases the memory of a part's values and computes them
 * again in backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
 *
 * Forward records the part's operators, notes which tensors of outside they reach from the outputs,
 * and removes them from the tape again; one node with these tensors as inputs stays. Its backward
 * records the operators once more at the end of the tape, passes them as ls_backward() does, and
 * removes them. So every leaf gets its gradients in the same order, and hooks see the same.
 */
#include "autograd/tape.h"

#include "base/alloc.h"

#include <string.h>

typedef struct checkpoint {
    node_extra extra;
    ls_tape_checkpoint_fn fn;
    void *arg;
    int n_in;
    ls_tensor **in;
    int n_out;
    ls_tensor **out;
    random_state random; /* before fn */
    int capacity;        /* of extra.inputs */
    retained_results retained;
} checkpoint;

static void checkpoint_drop(node_extra *extra)
{
    retained_results *retained = &((checkpoint *)(void *)extra)->retained;

    for (int i = 0; i < retained->n; i++)
        ls_tensor_destroy(retained->list[i].tensor);
    ls_free(retained->list);
    ls_free(extra->inputs);
    ls_free(extra);
}

/* One block: the structure, pointers to inputs and outputs, and a copy of what `arg` refers to. */
static ls_status checkpoint_create(const checkpoint *of, const void *arg, size_t arg_bytes,
                                   ls_tensor *const *in, checkpoint **out)
{
    const size_t pointers = (size_t)of->n_in + (size_t)of->n_out;
    size_t bytes;
    checkpoint *c;

    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    LS_TRY(ls_mul_size(pointers, sizeof(*in), &bytes));
    bytes = (sizeof(*c) + bytes + 15) / 16 * 16;
    c = arg_bytes > SIZE_MAX - bytes ? NULL : ls_calloc(1, bytes + arg_bytes);
    if (c == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu tensors and %zu bytes of arguments", pointers,
                       arg_bytes);
    *c = *of;
    c->in = (ls_tensor **)(void *)(c + 1);
    c->out = c->in + c->n_in;
    if (c->n_in > 0)
        // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
        memcpy(c->in, in, (size_t)c->n_in * sizeof(*in));
    if (arg_bytes > 0) {
        c->arg = (char *)c + bytes;
        memcpy(c->arg, arg, arg_bytes);
    }
    *out = c;
    return LS_OK;
}

/* --- retained results --- */

/* Makes memory for one more element. */
static ls_status reserve(dependency **list, int n, int *capacity)
{
    const int wanted = *capacity == 0 ? 16 : 2 * *capacity;
    dependency *grown;

    if (n < *capacity)
        return LS_OK;
    grown = ls_realloc(*list, (size_t)wanted, sizeof(*grown));
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d tensors", wanted);
    *list = grown;
    *capacity = wanted;
    return LS_OK;
}

void ls_tape_keep_steps(ls_tape *tape, int keep)
{
    if (tape != NULL)
        tape->keeps_steps = tape->retained != NULL && keep != 0;
}

ls_status retained_add(ls_tape *tape, const ls_tensor *t)
{
    retained_results *k = tape->retained;
    ls_tensor *copy;

    LS_TRY(reserve(&k->list, k->n, &k->capacity));
    LS_TRY(tensor_shape(t->device, t->dtype, t->n_dims, t->dims, &copy));
    tensor_share(copy, t);
    k->list[k->n++] = (dependency){.tensor = copy, .seen = contents_of(t)};
    return LS_OK;
}

ls_status retained_take(ls_tape *tape, ls_tensor *t)
{
    retained_results *k = tape->retained;
    dependency *d = &k->list[k->n_taken];

    if (k->n_taken == k->n || d->tensor->dtype != t->dtype || !tensor_same_shape(d->tensor, t))
        return ls_fail(LS_EINVAL, "the function did not retain this step in forward");
    if (d->seen.version != d->tensor->storage->version)
        return ls_fail(LS_EINVAL, "a result that ls_tape_keep_steps() retained was overwritten");
    tensor_share(t, d->tensor);
    ls_tensor_destroy(d->tensor);
    d->tensor = NULL;
    k->n_taken++;
    return LS_OK;
}

/* --- running the function --- */

/* No cast of outside is used inside, and the other way round: their lives differ. */
static void forget_casts(ls_tape *tape)
{
    memset(tape->casts, 0, sizeof(tape->casts));
}

/* Fills c->out. */
static ls_status run_function(ls_tape *tape, checkpoint *c)
{
    retained_results *const outer = tape->retained;
    const bool outer_keeps = tape->keeps_steps;
    const int outer_first = tape->first_inside;

    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    memset(c->out, 0, (size_t)c->n_out * sizeof(*c->out));
    forget_casts(tape);
    tape->n_functions++;
    tape->first_inside = tape->n_values;
    tape->retained = &c->retained;
    tape->keeps_steps = false;
    c->fn(tape, c->in, c->out, c->arg);
    tape->keeps_steps = outer_keeps;
    tape->retained = outer;
    tape->first_inside = outer_first;
    tape->n_functions--;
    c->retained.is_filled = true;
    forget_casts(tape);
    LS_TRY(ls_tape_status(tape));
    for (int i = 0; i < c->n_out; i++) {
        if (c->out[i] == NULL || c->out[i]->storage == NULL || c->out[i]->device != tape->device)
            return ls_fail(LS_EINVAL, "the function left output %d %s", i,
                           c->out[i] == NULL ? "NULL" : "without memory on the tape's device");
    }
    return LS_OK;
}

/* Whether the value was made since the tape had `first` values. */
static bool is_inside(const value *v, int first)
{
    return v != NULL && v->number >= first;
}

/* Removes the nodes from `first_node` on, which have been released, and the memory of the values
 * from `first_value` on; these become constants without readers. */
static void remove_since(ls_tape *tape, int first_node, int first_value)
{
    for (int i = first_value; i < tape->n_values; i++) {
        value *v = tape->values[i];

        v->node = -1;
        v->is_dropped = false;
        if (!v->is_retained)
            tensor_release(v->tensor);
    }
    tape->n_nodes = first_node;
}

/* --- forward --- */

static ls_status add_dependency(checkpoint *c, ls_tensor *t, bool has_grad)
{
    node_extra *e = &c->extra;

    for (int i = 0; i < e->n_inputs; i++) {
        if (e->inputs[i].tensor == t) {
            e->inputs[i].has_grad = e->inputs[i].has_grad || has_grad;
            return LS_OK;
        }
    }
    LS_TRY(reserve(&e->inputs, e->n_inputs, &c->capacity));
    e->inputs[e->n_inputs++] =
        (dependency){.tensor = t, .seen = contents_of(t), .has_grad = has_grad};
    return LS_OK;
}

/* Adds the tensors of outside that the node reads, and marks the values of inside that get a
 * gradient if one passes the node. */
static ls_status add_inputs(checkpoint *c, const node *n, int first_value, bool is_reached)
{
    for (int i = 0; i < node_input_count(n); i++) {
        ls_tensor *t = node_input(n, i);
        value *v = value_of(t);
        const bool has_grad = is_reached && node_input_has_grad(n, i) && needs_grad(t);

        if (t == NULL || (i < n->n_in && (n->class->written >> i & 1) != 0))
            continue;
        if (!is_inside(v, first_value))
            LS_TRY(add_dependency(c, t, has_grad));
        else if (has_grad)
            v->is_reached = true;
    }
    return LS_OK;
}

/* Lists what the function reads, and what of that the outputs depend on. */
static ls_status list_dependencies(ls_tape *tape, checkpoint *c, int first_node, int first_value)
{
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] != NULL)
            LS_TRY(add_dependency(c, c->in[i], false));
    }
    for (int i = 0; i < c->n_out; i++) {
        value *v = value_of(c->out[i]);

        if (is_inside(v, first_value))
            v->is_reached = tensor_is_floating(c->out[i]);
        else
            LS_TRY(add_dependency(c, c->out[i], needs_grad(c->out[i])));
    }
    for (int i = tape->n_nodes - 1; i >= first_node; i--) {
        const node *n = &tape->nodes[i];

        LS_TRY(add_inputs(c, n, first_value, node_is_reached(tape, n)));
    }
    return LS_OK;
}

static bool reaches_a_gradient(const checkpoint *c)
{
    for (int i = 0; i < c->extra.n_inputs; i++) {
        if (c->extra.inputs[i].has_grad)
            return true;
    }
    return false;
}

/* Tensors with the elements of the function's outputs. */
static ls_status share_outputs(const checkpoint *c, ls_tensor **out)
{
    for (int i = 0; i < c->n_out; i++) {
        const ls_tensor *t = c->out[i];

        LS_TRY(tensor_like(t, &out[i]));
        tensor_share(out[i], t);
    }
    return LS_OK;
}

/* Runs the function, and removes what it has recorded. */
static ls_status run_forward(ls_tape *tape, checkpoint *c, ls_tensor **out)
{
    const int first_node = tape->n_nodes;
    const int first_value = tape->n_values;

    LS_TRY(run_function(tape, c));
    LS_TRY(list_dependencies(tape, c, first_node, first_value));
    LS_TRY(share_outputs(c, out));
    for (int i = tape->n_nodes - 1; i >= first_node; i--)
        node_release(tape, &tape->nodes[i]);
    remove_since(tape, first_node, first_value);
    return LS_OK;
}

/* --- backward --- */

/* Whether the function did the same as in forward: its outputs have their shapes, and its steps
 * took all that was retained for them. */
static ls_status check_outputs(const ls_tape *tape, const checkpoint *c, int first_output)
{
    char now[TENSOR_TEXT_BYTES];
    char then[TENSOR_TEXT_BYTES];

    if (c->retained.n_taken != c->retained.n)
        return ls_fail(LS_EINVAL,
                       "the function retained %d results of its steps in forward, but took %d now; "
                       "call ls_tape_keep_steps() at the same places",
                       c->retained.n, c->retained.n_taken);
    for (int i = 0; i < c->n_out; i++) {
        const ls_tensor *was = tape->values[first_output + i]->tensor;

        if (c->out[i]->dtype != was->dtype || !tensor_same_shape(c->out[i], was))
            return ls_fail(LS_EINVAL, "the function made output %d %s in forward, but %s now", i,
                           tensor_text(then, sizeof(then), was),
                           tensor_text(now, sizeof(now), c->out[i]));
    }
    return LS_OK;
}

/* Counts the uses of leaves inside; the checkpoint itself no longer counts as one. */
static ls_status count_uses(ls_tape *tape, const checkpoint *c, int first_node, int first_value)
{
    char text[TENSOR_TEXT_BYTES];

    for (int i = 0; i < c->n_out; i++) {
        value *v = value_of(c->out[i]);
        leaf *l = leaf_of(c->out[i]);

        if (is_inside(v, first_value))
            v->is_reached = tensor_is_floating(c->out[i]);
        if (l != NULL)
            l->n_pending++;
    }
    LS_TRY(reach_nodes(tape, first_node, tape->n_nodes - 1));
    for (int i = 0; i < c->extra.n_inputs; i++) {
        const dependency *d = &c->extra.inputs[i];
        leaf *l = leaf_of(d->tensor);

        if (l == NULL || !d->has_grad)
            continue;
        l->n_pending--;
        if (l->n_pending == l->collected.n_uses)
            return ls_fail(LS_EINVAL, "the function used the leaf %s in forward, but not now",
                           tensor_text(text, sizeof(text), d->tensor));
    }
    return LS_OK;
}

/* Moves the gradients of the checkpoint's outputs to those of the function. */
static ls_status give_to_outputs(ls_tape *tape, const checkpoint *c, int first_output)
{
    for (int i = 0; i < c->n_out; i++) {
        value *v = tape->values[first_output + i];
        ls_tensor *g = v->grad;

        if (g == NULL)
            continue;
        if (v->is_retained) {
            LS_TRY(tensor_like(v->tensor, &g));
            tensor_share(g, v->grad);
        } else {
            v->grad = NULL;
        }
        LS_TRY(grad_give(tape, c->out[i], g));
    }
    return LS_OK;
}

/* Whether each value of outside has got its gradient. */
static ls_status check_gradients(const checkpoint *c)
{
    char text[TENSOR_TEXT_BYTES];

    for (int i = 0; i < c->extra.n_inputs; i++) {
        const dependency *d = &c->extra.inputs[i];
        const value *v = value_of(d->tensor);

        if (v != NULL && d->has_grad && v->grad == NULL)
            return ls_fail(LS_EINVAL, "the function used the value %s in forward, but not now",
                           tensor_text(text, sizeof(text), d->tensor));
    }
    return LS_OK;
}

/* Runs the function again, and passes what it records. */
static ls_status run_backward(ls_tape *tape, checkpoint *c, int first_output)
{
    const int first_node = tape->n_nodes;
    const int first_value = tape->n_values;
    const random_state now = tape->random;
    ls_status st;

    tape->random = c->random;
    tape->n_recomputing++;
    st = run_function(tape, c);
    tape->n_recomputing--;
    tape->random = now;
    LS_TRY(st);
    LS_TRY(check_outputs(tape, c, first_output));
    LS_TRY(count_uses(tape, c, first_node, first_value));
    LS_TRY(give_to_outputs(tape, c, first_output));
    LS_TRY(pass_nodes(tape, first_node, tape->n_nodes - 1));
    remove_since(tape, first_node, first_value);
    return check_gradients(c);
}

/* An output that the loss does not depend on counts as one whose gradient is 0: the function is
 * passed as a whole, as it was listed. */
static ls_status checkpoint_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    checkpoint *c = (checkpoint *)(void *)n->extra;
    ls_tensor *ignored;

    LS_UNUSED(dy);
    for (int i = 0; i < n->n_out; i++) {
        if (tensor_is_floating(node_output(tape, n, i)))
            LS_TRY(node_grad_or_zeros(tape, n, i, &ignored));
    }
    return run_backward(tape, c, n->first_value);
}

/* --- the operator --- */

static const op_class checkpoint_class = {
    .name = "checkpoint", .unused_in_backward = 1U << NODE_OUT, .backward = checkpoint_backward};

static ls_status check_arguments(const checkpoint *of, const void *arg, size_t arg_bytes,
                                 ls_tensor *const *in, ls_tensor **out)
{
    char text[TENSOR_TEXT_BYTES];

    if (of->fn == NULL)
        return ls_fail(LS_EINVAL, "the function is NULL");
    if (of->n_in < 0 || (of->n_in > 0 && in == NULL) || of->n_out < 1 || out == NULL ||
        (arg == NULL && arg_bytes > 0))
        return ls_fail(LS_EINVAL, "%d inputs at %s, %d outputs at %s, %zu bytes at %s", of->n_in,
                       in == NULL ? "NULL" : "inputs", of->n_out, out == NULL ? "NULL" : "outputs",
                       arg_bytes, arg == NULL ? "NULL" : "arg");
    for (int i = 0; i < of->n_in; i++) {
        if (in[i] != NULL && in[i]->storage == NULL)
            return ls_fail(LS_EINVAL, "input %d %s was released; ls_tape_keep() retains it", i,
                           tensor_text(text, sizeof(text), in[i]));
    }
    return LS_OK;
}

/* Puts the outputs on the tape; with a node if a gradient passes the function. */
static void finish(ls_tape *tape, checkpoint *c, ls_tensor **out)
{
    node n = {.class = &checkpoint_class, .extra = &c->extra, .records = reaches_a_gradient(c)};
    const int n_out = c->n_out;
    const bool records = n.records;

    if (node_finish_all(tape, &n, out, n_out) && !records)
        node_drop(&n);
}

void ls_tape_checkpoint(ls_tape *tape, ls_tape_checkpoint_fn fn, void *arg, size_t arg_bytes,
                        ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs, int n_outputs)
{
    checkpoint of = {
        .extra.drop = checkpoint_drop, .fn = fn, .arg = arg, .n_in = n_inputs, .n_out = n_outputs};
    node n = {.class = &checkpoint_class};
    checkpoint *c = NULL;
    ls_status st;

    for (int i = 0; outputs != NULL && i < n_outputs; i++)
        outputs[i] = NULL;
    if (!node_begin(tape, &n))
        return;
    of.random = tape->random;
    st = check_arguments(&of, arg, arg_bytes, inputs, outputs);
    if (st == LS_OK)
        st = checkpoint_create(&of, arg, arg_bytes, inputs, &c);
    if (st == LS_OK) {
        n.extra = &c->extra;
        st = run_forward(tape, c, outputs);
    }
    if (st == LS_OK) {
        finish(tape, c, outputs);
        return;
    }
    for (int i = 0; outputs != NULL && i < n_outputs; i++) {
        ls_tensor_destroy(outputs[i]);
        outputs[i] = NULL;
    }
    (void)node_reject(tape, &n, st);
}
