/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_dropout.c - dropout (Srivastava et al., 2014) of elements, and of rows: stochastic depth
 * (Huang et al., "Deep Networks with Stochastic Depth", 2016). Both inverted: training scales the
 * other elements, so that evaluation is the identity.
 *
 * Nothing is saved for backward: what was dropped is computed again from the same number.
 */
#include "autograd/tape.h"

#include "base/rng.h"

static ls_status dropout_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_DROPOUT, dy, NULL);
}

static const op_class dropout_class = {
    .name = "dropout", ONE_INPUT, READS_NOTHING, .backward = dropout_backward};

static const op_class stochastic_depth_class = {
    .name = "stochastic_depth", ONE_INPUT, READS_NOTHING, .backward = dropout_backward};

ls_status node_draw(ls_tape *tape, node *n, double p, bool in_evaluation)
{
    if (!(p >= 0 && p <= 1))
        return ls_fail(LS_EINVAL, "the probability is %g; it must be 0 to 1", p);
    if (p == 0 || !(tape->is_training || in_evaluation))
        return LS_OK;
    if (!tape->random.is_set)
        return ls_fail(LS_EINVAL, "call ls_tape_set_random() first: without it all ranks would "
                                  "drop the same elements");
    n->attrs.drop = p;
    n->attrs.random = ls_hash3(tape->random.hash, tape->random.n_drawn++, 0);
    return LS_OK;
}

static ls_tensor *drop(ls_tape *tape, node *n, double p, bool in_evaluation)
{
    ls_tensor *x = n->in[0];
    ls_status st;

    if (!node_begin(tape, n))
        return NULL;
    if (n->attrs.drops_rows && x->n_dims == 0)
        return node_reject(tape, n, ls_fail(LS_EINVAL, "input () has no rows"));
    st = node_draw(tape, n, p, in_evaluation);
    if (st != LS_OK)
        return node_reject(tape, n, st);
    return n->attrs.drop == 0 ? x : node_run_like(tape, n, OP_DROPOUT);
}

ls_tensor *ls_dropout(ls_tape *tape, ls_tensor *x, double p)
{
    node n = {.class = &dropout_class, .n_in = 1, .in = {x}};

    return drop(tape, &n, p, false);
}

ls_tensor *ls_dropout_always(ls_tape *tape, ls_tensor *x, double p)
{
    node n = {.class = &dropout_class, .n_in = 1, .in = {x}};

    return drop(tape, &n, p, true);
}

ls_tensor *ls_stochastic_depth(ls_tape *tape, ls_tensor *x, double p)
{
    node n = {.class = &stochastic_depth_class, .n_in = 1, .in = {x}, .attrs.drops_rows = true};

    return drop(tape, &n, p, false);
}

void ls_tape_set_random(ls_tape *tape, uint64_t seed, int64_t step)
{
    if (tape == NULL)
        return;
    tape->random = (random_state){.is_set = true, .hash = ls_hash3(seed, (uint64_t)step, 0)};
}
