/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.c - building and running lists of operators.
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

/* The new operator reads op.in and makes a value of that many channels (or features). */
static int add(network *n, net_op op, int channels)
{
    assert(n->n_ops < NET_MAX_OPS);
    for (int i = 0; i < op.n_in; i++)
        n->readers[op.in[i]]++;
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

/* Starts the layer anew where its family does not start it as torch.nn does. */
static void start(network *n, ls_layer *layer, const net_init *how, double fan_in)
{
    ls_tensor *weight = ls_layer_tensor(layer, "weight");
    ls_tensor *bias = ls_layer_tensor(layer, "bias");

    switch (how->weight) {
    case NET_DEFAULT:
    case NET_FAN_OUT: /* the layer does */
        break;
    case NET_FAN_IN:
        ls_model_fill(n->model, weight, LS_FILL_NORMAL, sqrt(2 / fan_in));
        break;
    case NET_UNIFORM_FAN_IN:
        ls_model_fill(n->model, weight, LS_FILL_UNIFORM, sqrt(6 / fan_in));
        break;
    case NET_NORMAL:
        ls_model_fill(n->model, weight, LS_FILL_NORMAL, how->scale);
        break;
    case NET_UNIFORM:
        ls_model_fill(n->model, weight, LS_FILL_UNIFORM, how->scale);
        break;
    case NET_ZERO:
        ls_model_fill(n->model, weight, LS_FILL_CONSTANT, 0);
        break;
    }
    if (how->zero_bias && bias != NULL)
        ls_model_fill(n->model, bias, LS_FILL_CONSTANT, 0);
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
        .init = n->conv.weight == NET_FAN_OUT ? LS_INIT_KAIMING_NORMAL : LS_INIT_DEFAULT};
    const int in = n->channels[x];
    char full[NET_NAME_BYTES];
    ls_layer *layer = ls_nn_conv2d(n->model, full_name(n, name, full, sizeof(full)), in, out, &o);

    start(n, layer, &n->conv, (double)height * width * in / groups);
    return add_layer(n, x, layer, out);
}

int net_batch_norm(network *n, int x, const char *name, bool relu)
{
    ls_nn_batch_norm_options o = n->norm;
    char full[NET_NAME_BYTES];

    o.relu = relu;
    return add_layer(
        n, x,
        ls_nn_batch_norm2d(n->model, full_name(n, name, full, sizeof(full)), n->channels[x], &o),
        n->channels[x]);
}

int net_linear(network *n, int x, const char *name, int out)
{
    const int in = n->channels[x];
    char full[NET_NAME_BYTES];
    ls_layer *layer = ls_nn_linear(n->model, full_name(n, name, full, sizeof(full)), in, out, 0);

    start(n, layer, &n->linear, in);
    return add_layer(n, x, layer, out);
}

/* --- operators --- */

static ls_tensor *run_relu(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_relu(tape, in[0]);
}

int net_relu(network *n, int x)
{
    return add(n, (net_op){.run = run_relu, .n_in = 1, .in = {x}}, n->channels[x]);
}

static ls_tensor *run_add_relu(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_add_relu(tape, in[0], in[1]);
}

int net_add_relu(network *n, int x, int y)
{
    return add(n, (net_op){.run = run_add_relu, .n_in = 2, .in = {x, y}}, n->channels[x]);
}

static ls_tensor *run_dropout(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_dropout(tape, in[0], op->rate);
}

int net_dropout(network *n, int x, double rate)
{
    return add(n, (net_op){.run = run_dropout, .n_in = 1, .in = {x}, .rate = rate}, n->channels[x]);
}

static ls_tensor *run_max_pool(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_max_pool2d(tape, in[0], &op->pool);
}

int net_max_pool(network *n, int x, ls_pool2d_params how)
{
    return add(n, (net_op){.run = run_max_pool, .n_in = 1, .in = {x}, .pool = how}, n->channels[x]);
}

static ls_tensor *run_adaptive(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    return ls_adaptive_avg_pool2d(tape, in[0], op->side, op->side);
}

static ls_tensor *run_flatten(ls_tape *tape, const net_op *op, ls_tensor *const *in)
{
    (void)op;
    return ls_flatten(tape, in[0]);
}

int net_pool_features(network *n, int x, int side)
{
    const int pooled =
        add(n, (net_op){.run = run_adaptive, .n_in = 1, .in = {x}, .side = side}, n->channels[x]);

    return add(n, (net_op){.run = run_flatten, .n_in = 1, .in = {pooled}},
               n->channels[x] * side * side);
}

/* --- running --- */

/* An operator may give the tensor that it got, as dropout does in evaluation. */
static void note_value(network *n, int value, const net_op *op)
{
    n->source[value] = value;
    n->left[value] = n->readers[value];
    for (int i = 0; i < op->n_in; i++) {
        if (n->values[op->in[i]] == n->values[value]) {
            n->source[value] = n->source[op->in[i]];
            n->left[n->source[value]] += n->readers[value];
            return;
        }
    }
}

static ls_tensor *run_op(network *n, ls_tape *tape, const net_op *op, int value)
{
    ls_tensor *in[NET_MAX_IN];

    for (int i = 0; i < op->n_in; i++)
        in[i] = n->values[op->in[i]];
    n->values[value] = op->run(tape, op, in);
    note_value(n, value, op);
    for (int i = 0; i < op->n_in; i++) {
        if (--n->left[n->source[op->in[i]]] == 0)
            ls_tape_done(tape, in[i]);
    }
    return n->values[value];
}

ls_tensor *net_forward(void *arg, ls_tape *tape, ls_tensor *images)
{
    network *n = arg;

    n->values[0] = images;
    n->source[0] = 0;
    n->left[0] = n->readers[0];
    for (int i = 0; i < n->n_ops; i++)
        (void)run_op(n, tape, &n->ops[i], i + 1);
    return n->values[n->n_ops];
}
