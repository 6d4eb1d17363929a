/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_activate.c - functions of single elements: one operator with a table of names and types. ReLU,
 * whose backward reads the result, is in op_pointwise.c.
 */
#include "autograd/tape.h"

static ls_status activate_backward(ls_tape *tape, const node *n, ls_tensor *dy)
{
    return grad_run_op(tape, n, OP_ACTIVATE_BACKWARD, n->in[0], dy);
}

#define FUNCTION(NAME, PRECISION)                                                                  \
    {                                                                                              \
        .name = (NAME), ONE_INPUT, .precision = (PRECISION), .unused_in_backward = 1U << NODE_OUT, \
        .backward = activate_backward                                                              \
    }
#define OF_INPUT(NAME) FUNCTION(NAME, PRECISION_OF_INPUTS)
#define WIDE(NAME)     FUNCTION(NAME, PRECISION_WIDE) /* as in torch.autocast */

static const op_class classes[] = {
    [0] = OF_INPUT("activate"), // not a function
    [LS_ACT_RELU6] = OF_INPUT("relu6"),
    [LS_ACT_SIGMOID] = OF_INPUT("sigmoid"),
    [LS_ACT_SILU] = OF_INPUT("silu"),
    [LS_ACT_HARDSIGMOID] = OF_INPUT("hardsigmoid"),
    [LS_ACT_HARDSWISH] = OF_INPUT("hardswish"),
    [LS_ACT_GELU] = OF_INPUT("gelu"),
    [LS_ACT_GELU_TANH] = OF_INPUT("gelu_tanh"),
    [LS_ACT_EXP] = WIDE("exp"),
    [LS_ACT_LOG] = WIDE("log"),
    [LS_ACT_SQRT] = OF_INPUT("sqrt"),
    [LS_ACT_RSQRT] = WIDE("rsqrt"),
    [LS_ACT_TANH] = OF_INPUT("tanh"),
    [LS_ACT_ABS] = OF_INPUT("abs"),
    [LS_ACT_SQUARE] = OF_INPUT("square"),
    [LS_ACT_RECIPROCAL] = WIDE("reciprocal"),
    [LS_ACT_SIN] = OF_INPUT("sin"),
    [LS_ACT_COS] = OF_INPUT("cos"),
    [LS_ACT_LEAKY_RELU] = OF_INPUT("leaky_relu"),
    [LS_ACT_ELU] = OF_INPUT("elu"),
    [LS_ACT_SOFTPLUS] = WIDE("softplus"),
    [LS_ACT_CLAMP] = OF_INPUT("clamp"),
    [LS_ACT_POW] = WIDE("pow"),
    [LS_ACT_LINEAR] = OF_INPUT("scale"),
};

/* `st`: whether the numbers p are allowed. */
static ls_tensor *activate(ls_tape *tape, ls_tensor *x, ls_activation f, double p0, double p1,
                           ls_status st)
{
    node n = {
        .class = &classes[f], .n_in = 1, .in = {x}, .attrs = {.activation = f, .param = {p0, p1}}};

    if (!node_begin(tape, &n))
        return NULL;
    if (st != LS_OK)
        return node_reject(tape, &n, st);
    return node_run_like(tape, &n, OP_ACTIVATE);
}

ls_tensor *ls_activate(ls_tape *tape, ls_tensor *x, ls_activation function)
{
    switch (function) {
    case LS_ACT_LEAKY_RELU:
        return ls_leaky_relu(tape, x, 0.01);
    case LS_ACT_ELU:
        return ls_elu(tape, x, 1);
    case LS_ACT_SOFTPLUS:
        return ls_softplus(tape, x, 1, 20);
    default:
        if (function >= LS_ACT_RELU6 && function < LS_ACT_LEAKY_RELU)
            return activate(tape, x, function, 0, 0, LS_OK);
        return activate(
            tape, x, 0, 0, 0,
            ls_fail(LS_EINVAL, "%d is not an ls_activation without numbers", (int)function));
    }
}

// NOLINTBEGIN(bugprone-macro-parentheses): a declared name cannot be in parentheses
#define PLAIN(NAME, FUNCTION)                                                                      \
    ls_tensor *ls_##NAME(ls_tape *tape, ls_tensor *x)                                              \
    {                                                                                              \
        return activate(tape, x, FUNCTION, 0, 0, LS_OK);                                           \
    }
// NOLINTEND(bugprone-macro-parentheses)
PLAIN(sigmoid, LS_ACT_SIGMOID)
PLAIN(silu, LS_ACT_SILU)
PLAIN(gelu, LS_ACT_GELU)
PLAIN(tanh, LS_ACT_TANH)
PLAIN(exp, LS_ACT_EXP)
PLAIN(sqrt, LS_ACT_SQRT)
PLAIN(rsqrt, LS_ACT_RSQRT)
PLAIN(abs, LS_ACT_ABS)
PLAIN(square, LS_ACT_SQUARE)
PLAIN(reciprocal, LS_ACT_RECIPROCAL)
PLAIN(sin, LS_ACT_SIN)
PLAIN(cos, LS_ACT_COS)

ls_tensor *ls_leaky_relu(ls_tape *tape, ls_tensor *x, double slope)
{
    return activate(tape, x, LS_ACT_LEAKY_RELU, slope, 0, LS_OK);
}

ls_tensor *ls_elu(ls_tape *tape, ls_tensor *x, double alpha)
{
    return activate(tape, x, LS_ACT_ELU, alpha, 0, LS_OK);
}

ls_tensor *ls_softplus(ls_tape *tape, ls_tensor *x, double beta, double threshold)
{
    return activate(tape, x, LS_ACT_SOFTPLUS, beta, threshold,
                    beta > 0 ? LS_OK : ls_fail(LS_EINVAL, "beta is %g; it must be over 0", beta));
}

ls_tensor *ls_clamp(ls_tape *tape, ls_tensor *x, double low, double high)
{
    return activate(tape, x, LS_ACT_CLAMP, low, high,
                    low <= high ? LS_OK
                                : ls_fail(LS_EINVAL, "low is %g, but high is %g", low, high));
}

ls_tensor *ls_pow(ls_tape *tape, ls_tensor *x, double exponent)
{
    return activate(tape, x, LS_ACT_POW, exponent, 0, LS_OK);
}

ls_tensor *ls_scale(ls_tape *tape, ls_tensor *x, double factor, double offset)
{
    return activate(tape, x, LS_ACT_LINEAR, factor, offset, LS_OK);
}
