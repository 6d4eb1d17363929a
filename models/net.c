/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.c - builds and runs lists of operators. The family files call the functions that build,
 * programs net_forward().
 */
#include "models/net.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names --- */

void net_enter(network *n, const char *format, ...)
{
    const size_t used = strlen(n->name);
    va_list args;
    size_t end;

    assert(n->depth < NET_MAX_DEPTH);
    va_start(args, format);
    (void)vsnprintf(n->name + used, sizeof(n->name) - used, format, args);
    va_end(args);
    end = strlen(n->name);
    assert(end + 1 < sizeof(n->name));
    n->name[end] = '.';
    n->name[end + 1] = '\0';
    n->parts[n->depth++] = used;
}

void net_leave(network *n)
{
    assert(n->depth > 0);
    n->name[n->parts[--n->depth]] = '\0';
}

static const char *full_name(const network *n, const char *name, char *full, size_t size)
{
    (void)snprintf(full, size, "%s%s", n->name, name);
    return full;
}

/* --- the list --- */

/* Appends an operator whose result has `channels` channels (or features). */
static int add(network *n, net_op op, int channels)
{
    assert(n->n_ops < NET_MAX_OPS);
    for (int i = 0; i < op.n_in; i++) {
        assert(op.in[i] == 0 || !n->ops[op.in[i] - 1].is_moved);
        n->readers[op.in[i]]++;
    }
    n->ops[n->n_ops++] = op;
    n->channels[n->n_ops] = channels;
    return n->n_ops;
}

static ls_tensor *run_layer(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_forward(tape, op->layer, in[0]);
}

static int add_layer(network *n, int x, ls_layer *layer, int channels)
{
    return add(n, (net_op){.run = run_layer, .layer = layer, .n_in = 1, .in = {x}}, channels);
}

/* --- layers --- */

static void init_tensor(network *n, const char *layer, const char *tensor, ls_nn_init_options how)
{
    char name[NET_NAME_BYTES + 8];

    (void)snprintf(name, sizeof(name), "%s.%s", layer, tensor);
    ls_model_init(n->model, name, &how);
}

/* Initializes the layer where its family differs from torch.nn. */
static void init_layer(network *n, const char *name, const ls_layer *layer, const net_init *how)
{
    const bool has_bias = ls_layer_tensor(layer, "bias") != NULL;

    if (how->weight.kind != LS_INIT_DEFAULT && !how->weight.fan_out) // else done by the layer
        init_tensor(n, name, "weight", how->weight);
    if (how->bias_deviation > 0 && has_bias)
        init_tensor(n, name, "bias",
                    (ls_nn_init_options){.kind = LS_INIT_NORMAL, .std = how->bias_deviation});
    else if (how->zero_bias && has_bias)
        init_tensor(n, name, "bias", (ls_nn_init_options){.kind = LS_INIT_CONSTANT});
}

static int padding_of(int kernel, int pad)
{
    if (pad == NET_NO_PADDING)
        return 0;
    return pad > 0 ? pad : kernel / 2;
}

int net_conv2d(network *n, int x, const char *name, int out, net_conv how)
{
    const int height = how.kernel > 0 ? how.kernel : 1;
    const int width = how.width > 0 ? how.width : height;
    const int groups = how.groups > 0 ? how.groups : 1;
    const ls_nn_conv2d_options o = {
        .kernel = {height, width},
        .stride = {how.stride, how.stride},
        .padding = {padding_of(height, how.pad), padding_of(width, how.pad)},
        .groups = groups,
        .no_bias = !how.bias,
        .init = n->conv.weight.fan_out ? LS_INIT_KAIMING_NORMAL : LS_INIT_DEFAULT};
    const int in = n->channels[x];
    char full[NET_NAME_BYTES];
    ls_layer *layer = ls_nn_conv2d(n->model, full_name(n, name, full, sizeof(full)), in, out, &o);

    init_layer(n, full, layer, &n->conv);
    return add_layer(n, x, layer, out);
}

int net_batch_norm(network *n, int x, const char *name, bool relu)
{
    ls_nn_batch_norm_options o = n->norm;
    char full[NET_NAME_BYTES];

    o.relu = relu;
    x = add_layer(
        n, x,
        ls_nn_batch_norm2d(n->model, full_name(n, name, full, sizeof(full)), n->channels[x], &o),
        n->channels[x]);
    n->ops[x - 1].takes_sum = !relu;
    return x;
}

int net_linear(network *n, int x, const char *name, int out)
{
    const int in = n->channels[x];
    char full[NET_NAME_BYTES];
    ls_layer *layer = ls_nn_linear(n->model, full_name(n, name, full, sizeof(full)), in, out, 0);

    init_layer(n, full, layer, &n->linear);
    return add_layer(n, x, layer, out);
}

int net_layer_norm(network *n, int x, const char *name, double eps, bool channels_first)
{
    const ls_nn_layer_norm_options o = {.eps = eps, .channels_first = channels_first};
    char full[NET_NAME_BYTES];
    ls_layer *layer =
        ls_nn_layer_norm(n->model, full_name(n, name, full, sizeof(full)), n->channels[x], &o);

    return add_layer(n, x, layer, n->channels[x]);
}

int net_self_attention(network *n, int x, const char *name, int heads)
{
    char full[NET_NAME_BYTES];
    ls_layer *layer = ls_nn_self_attention(n->model, full_name(n, name, full, sizeof(full)),
                                           n->channels[x], heads);

    return add_layer(n, x, layer, n->channels[x]);
}

/* --- operators --- */

static int add_unary(network *n, int x, net_op op)
{
    op.n_in = 1;
    op.in[0] = x;
    return add(n, op, n->channels[x]);
}

static int add_binary(network *n, int x, int y, net_run_fn run)
{
    return add(n, (net_op){.run = run, .n_in = 2, .in = {x, y}}, n->channels[x]);
}

static ls_tensor *run_relu(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_relu(tape, in[0]);
}

int net_relu(network *n, int x)
{
    return add_unary(n, x, (net_op){.run = run_relu});
}

static ls_tensor *run_activate(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_activate(tape, in[0], op->function);
}

int net_activate(network *n, int x, ls_activation function)
{
    return add_unary(n, x, (net_op){.run = run_activate, .function = function});
}

static ls_tensor *run_add(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return op->relu ? ls_add_relu(tape, in[0], in[1]) : ls_add(tape, in[0], in[1]);
}

static ls_tensor *run_norm_add(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_forward_add(tape, op->layer, in[0], in[1], op->relu);
}

static ls_tensor *run_nothing(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)tape;
    (void)op;
    return in[0];
}

/* Whether the sum behind value x can be a part of the operator that makes x. */
static bool takes_sum(const network *n, int x)
{
    return x > 0 && n->ops[x - 1].takes_sum && n->readers[x] == 0;
}

/* The batch norm moves here, because the operators of the other value come between the two. */
static int add_to_norm(network *n, int norm, int other, bool relu)
{
    net_op *maker = &n->ops[norm - 1];
    const net_op op = {
        .run = run_norm_add, .layer = maker->layer, .n_in = 2, .in = {norm, other}, .relu = relu};
    const int sum = add(n, op, n->channels[norm]);

    maker->run = run_nothing;
    maker->is_moved = true;
    return sum;
}

static int add_sum(network *n, int x, int y, bool relu)
{
    if (takes_sum(n, x))
        return add_to_norm(n, x, y, relu);
    if (takes_sum(n, y))
        return add_to_norm(n, y, x, relu);
    return add(n, (net_op){.run = run_add, .n_in = 2, .in = {x, y}, .relu = relu}, n->channels[x]);
}

int net_add(network *n, int x, int y)
{
    return add_sum(n, x, y, false);
}

int net_add_relu(network *n, int x, int y)
{
    return add_sum(n, x, y, true);
}

static ls_tensor *run_scale(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_mul(tape, in[0], in[1]);
}

int net_scale(network *n, int x, int factors)
{
    return add_binary(n, x, factors, run_scale);
}

static ls_tensor *run_dropout(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_dropout(tape, in[0], op->rate);
}

int net_dropout(network *n, int x, double rate)
{
    return add_unary(n, x, (net_op){.run = run_dropout, .rate = rate});
}

static ls_tensor *run_stochastic_depth(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_stochastic_depth(tape, in[0], op->rate);
}

int net_stochastic_depth(network *n, int x, double rate)
{
    return add_unary(n, x, (net_op){.run = run_stochastic_depth, .rate = rate});
}

static ls_tensor *run_max_pool(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_max_pool2d(tape, in[0], &op->pool);
}

int net_max_pool(network *n, int x, ls_pool2d_params how)
{
    return add_unary(n, x, (net_op){.run = run_max_pool, .pool = how});
}

static ls_tensor *run_avg_pool(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_avg_pool2d(tape, in[0], &op->pool);
}

int net_avg_pool(network *n, int x, ls_pool2d_params how)
{
    return add_unary(n, x, (net_op){.run = run_avg_pool, .pool = how});
}

static ls_tensor *run_adaptive(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_adaptive_avg_pool2d(tape, in[0], op->side, op->side);
}

int net_global_pool(network *n, int x)
{
    return add_unary(n, x, (net_op){.run = run_adaptive, .side = 1});
}

static ls_tensor *run_flatten(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_flatten(tape, in[0]);
}

int net_flatten(network *n, int x)
{
    return add_unary(n, x, (net_op){.run = run_flatten});
}

int net_pool_features(network *n, int x, int side)
{
    const int pooled = add_unary(n, x, (net_op){.run = run_adaptive, .side = side});

    return add(n, (net_op){.run = run_flatten, .n_in = 1, .in = {pooled}},
               n->channels[x] * side * side);
}

/* --- channels and dimensions --- */

static ls_tensor *run_concat(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_concat(tape, in, op->n_in, 1);
}

int net_concat(network *n, int n_in, const int *in)
{
    net_op op = {.run = run_concat, .n_in = n_in};
    int channels = 0;

    assert(n_in <= NET_MAX_IN);
    for (int i = 0; i < n_in; i++) {
        op.in[i] = in[i];
        channels += n->channels[in[i]];
    }
    return add(n, op, channels);
}

static ls_tensor *run_slice(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_slice(tape, in[0], 1, op->begin, op->length);
}

int net_slice(network *n, int x, int begin, int length)
{
    return add(n,
               (net_op){.run = run_slice, .n_in = 1, .in = {x}, .begin = begin, .length = length},
               length);
}

static ls_tensor *run_shuffle(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    static const int order[] = {0, 2, 1, 3, 4};
    const int64_t *d = in[0] == NULL ? NULL : ls_tensor_dims(in[0]);
    ls_tensor *parts;
    ls_tensor *permuted;

    if (d == NULL)
        return NULL;
    parts =
        ls_reshape(tape, in[0], 5, (int64_t[]){d[0], op->groups, d[1] / op->groups, d[2], d[3]});
    permuted = ls_permute(tape, parts, order);
    ls_tape_done(tape, parts);
    return ls_reshape(tape, permuted, 4, d);
}

int net_shuffle(network *n, int x, int groups)
{
    return add_unary(n, x, (net_op){.run = run_shuffle, .groups = groups});
}

static ls_tensor *run_permute(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_permute(tape, in[0], op->order);
}

int net_permute(network *n, int x, const int order[4])
{
    net_op op = {.run = run_permute};

    memcpy(op.order, order, sizeof(op.order));
    return add_unary(n, x, op);
}

/* --- parameters of no layer --- */

ls_tensor *net_parameter(network *n, const char *name, int n_dims, const int64_t *dims)
{
    char full[NET_NAME_BYTES];

    return ls_nn_parameter(n->model, full_name(n, name, full, sizeof(full)), n_dims, dims);
}

void net_init_parameter(network *n, const char *name, ls_nn_init_options how)
{
    char full[NET_NAME_BYTES];

    ls_model_init(n->model, full_name(n, name, full, sizeof(full)), &how);
}

static ls_tensor *run_add_parameter(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_add(tape, in[0], op->parameter);
}

int net_add_parameter(network *n, int x, ls_tensor *parameter)
{
    return add_unary(n, x, (net_op){.run = run_add_parameter, .parameter = parameter});
}

static ls_tensor *run_scale_parameter(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_mul(tape, in[0], op->parameter);
}

int net_scale_parameter(network *n, int x, ls_tensor *parameter)
{
    return add_unary(n, x, (net_op){.run = run_scale_parameter, .parameter = parameter});
}

static ls_tensor *run_tokens(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    static const int order[] = {0, 2, 1};
    const int64_t *d = in[0] == NULL ? NULL : ls_tensor_dims(in[0]);
    ls_tensor *rows;
    ls_tensor *tokens[2];

    if (d == NULL)
        return NULL;
    rows = ls_reshape(tape, in[0], 3, (int64_t[]){d[0], d[1], d[2] * d[3]});
    tokens[0] = ls_expand(tape, op->parameter, 3, (int64_t[]){d[0], 1, d[1]});
    tokens[1] = ls_permute(tape, rows, order);
    return ls_concat(tape, tokens, 2, 1);
}

int net_tokens(network *n, int x, ls_tensor *first)
{
    return add_unary(n, x, (net_op){.run = run_tokens, .parameter = first});
}

static ls_tensor *run_first_token(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_flatten(tape, ls_slice(tape, in[0], 1, 0, 1));
}

int net_first_token(network *n, int x)
{
    return add_unary(n, x, (net_op){.run = run_first_token});
}

/* --- common parts --- */

static int add_act(network *n, int x, int act)
{
    if (act == NET_RELU)
        return net_relu(n, x);
    return act == NET_NONE ? x : net_activate(n, x, (ls_activation)act);
}

int net_conv_norm(network *n, int x, const char *name, int out, net_conv how, int act)
{
    net_enter(n, "%s", name);
    x = net_conv2d(n, x, "0", out, how);
    x = net_batch_norm(n, x, "1", act == NET_RELU);
    net_leave(n);
    return act == NET_RELU ? x : add_act(n, x, act);
}

int net_squeeze_excite(network *n, int x, const char *name, int squeezed, int act,
                       ls_activation gate)
{
    int factors = net_global_pool(n, x);

    net_enter(n, "%s", name);
    factors = add_act(n, net_conv2d(n, factors, "fc1", squeezed, (net_conv){.bias = 1}), act);
    factors = net_conv2d(n, factors, "fc2", n->channels[x], (net_conv){.bias = 1});
    net_leave(n);
    return net_scale(n, x, net_activate(n, factors, gate));
}

int net_round_channels(double channels)
{
    int rounded = (int)(channels + 4) / 8 * 8;

    if (rounded < 8)
        rounded = 8;
    return rounded < 0.9 * channels ? rounded + 8 : rounded;
}

/* --- running --- */

/* A value of a forward. */
typedef struct run_value {
    ls_tensor *tensor;
    int source; /* the first value that is the same tensor */
    int left;   /* remaining reads of that tensor */
} run_value;

/* An operator may return its argument, as dropout does in evaluation. */
static void note_value(const network *n, run_value *values, int value, const net_op *op)
{
    values[value].source = value;
    values[value].left = n->readers[value];
    for (int i = 0; i < op->n_in; i++) {
        if (values[op->in[i]].tensor == values[value].tensor) {
            values[value].source = values[op->in[i]].source;
            values[values[value].source].left += n->readers[value];
            return;
        }
    }
}

static void run_op(const network *n, ls_tape *tape, run_value *values, int value)
{
    const net_op *op = &n->ops[value - 1];
    ls_tensor *in[NET_MAX_IN];

    for (int i = 0; i < op->n_in; i++)
        in[i] = values[op->in[i]].tensor;
    values[value].tensor = op->run(tape, op, in);
    note_value(n, values, value, op);
    for (int i = 0; i < op->n_in; i++) {
        if (--values[values[op->in[i]].source].left == 0)
            ls_tape_done(tape, in[i]);
    }
}

/* Shards may run it at the same time (ls_run_train()): the network does not change. NULL: the tape
 * has failed, or there is no memory. */
ls_tensor *net_forward(void *arg, ls_tape *tape, ls_tensor *images)
{
    const network *n = arg;
    run_value *values = calloc((size_t)n->n_ops + 1, sizeof(*values));
    ls_tensor *result;

    if (values == NULL)
        return NULL;
    values[0] = (run_value){images, 0, n->readers[0]};
    for (int i = 1; i <= n->n_ops; i++)
        run_op(n, tape, values, i);
    result = values[n->n_ops].tensor;
    free(values);
    return result;
}
