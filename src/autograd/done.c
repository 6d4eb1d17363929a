/* SPDX-License-Identifier: Apache-2.0 */
/*
 * done.c - ls_tape_done(): releases values that forward does not read again. A value that backward
 * reads is released only if its operator can recompute it, on a host device; backward.c calls
 * done_restore() before it reads such a value.
 */
#include "autograd/tape.h"

/* Whether to recompute the operator's output for backward. On a GPU that is one more pass over its
 * memory in a step that memory traffic limits, and one more launch: stream devices keep the output,
 * as PyTorch does. */
static bool is_recomputed(const ls_tape *tape, const op_class *maker)
{
    return maker != NULL && maker->recompute != NULL && tape->device->accel == NULL;
}

void ls_tape_done(ls_tape *tape, ls_tensor *t)
{
    value *v = value_of(t);
    const op_class *maker;
    bool needed;

    if (v == NULL || v->tape != tape || v->is_retained || t->storage == NULL)
        return;
    if (tape->n_functions > 0 && v->number < tape->first_inside) // the function runs once more
        return;
    maker = v->node >= tape->n_passed ? tape->nodes[v->node].class : NULL;
    needed = v->n_readers > 0;
    if (maker != NULL && class_reads(maker, NODE_OUT))
        return;
    if (needed && !is_recomputed(tape, maker))
        return;
    v->is_dropped = needed;
    tape->has_dropped = tape->has_dropped || needed;
    tensor_release(t);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as chains of such values
static ls_status restore(ls_tape *tape, value *v)
{
    const node *maker = &tape->nodes[v->node];

    LS_TRY(done_restore(tape, maker));
    v->is_dropped = false;
    v->is_recomputed = true;
    return maker->class->recompute(tape, maker);
}

// NOLINTNEXTLINE(misc-no-recursion): see restore()
ls_status done_restore(ls_tape *tape, const node *n)
{
    for (int i = 0; i < node_input_count(n); i++) {
        value *v = value_of(node_input(n, i));

        if (v != NULL && v->is_dropped && node_input_is_read(n, i))
            LS_TRY(restore(tape, v));
    }
    return LS_OK;
}
