/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_graph.c - builds graphs of operations as plain data, and describes them in text. Called by
 * the kernels of convolutions.
 */
#include "tensor/devices/cuda/dnn/dnn_graph.h"

#include <stdio.h>
#include <string.h>

void dnn_graph_begin(dnn_graph *g)
{
    memset(g, 0, sizeof(*g));
}

int dnn_graph_tensor(dnn_graph *g, ls_dtype type, const int64_t *dims)
{
    dnn_tensor *t = &g->tensors[g->n_tensors];

    t->dtype = (int32_t)type;
    memcpy(t->dims, dims, sizeof(t->dims));
    t->strides[1] = 1;
    t->strides[3] = dims[1];
    t->strides[2] = dims[1] * dims[3];
    t->strides[0] = dims[1] * dims[3] * dims[2];
    return g->n_tensors++;
}

dnn_node *dnn_graph_op(dnn_graph *g, dnn_op op, const int *tensors)
{
    dnn_node *node = &g->nodes[g->n_nodes++];

    node->op = (int32_t)op;
    for (int i = 0; i < DNN_MAX_ROLES; i++)
        node->tensors[i] = tensors[i];
    return node;
}

/* The types of graphs; the core's functions are not part of the module. */
static const struct {
    const char *name;
    size_t bytes;
} types[LS_DTYPE_COUNT] = {
    [LS_F16] = {"float16", 2},
    [LS_BF16] = {"bfloat16", 2},
    [LS_F32] = {"float32", 4},
    [LS_F64] = {"float64", 8},
};

size_t dnn_tensor_bytes(const dnn_tensor *t)
{
    int64_t last = 0;

    for (int i = 0; i < 4; i++)
        last += (t->dims[i] - 1) * t->strides[i];
    return (size_t)(last + 1) * types[t->dtype].bytes;
}

static const char *const op_names[] = {
    [DNN_CONV] = "convolution",
    [DNN_CONV_DATA] = "convolution's data gradient",
    [DNN_CONV_WEIGHTS] = "convolution's weight gradient",
    [DNN_ADD] = "add",
};

/* Appends to a text that may already be full. */
static void append(char *buf, size_t n, const char *text)
{
    const size_t used = strlen(buf);

    (void)snprintf(buf + used, n - used, "%s", text);
}

const char *dnn_graph_text(char *buf, size_t n, const dnn_graph *g)
{
    const dnn_node *c = &g->nodes[0];
    char part[160];

    (void)snprintf(buf, n, "%s", op_names[c->op]);
    for (int i = 0; i < 2; i++) {
        const dnn_tensor *t = &g->tensors[c->tensors[i]];

        (void)snprintf(part, sizeof(part), " (%lld,%lld,%lld,%lld) %s", (long long)t->dims[0],
                       (long long)t->dims[1], (long long)t->dims[2], (long long)t->dims[3],
                       types[t->dtype].name);
        append(buf, n, part);
    }
    (void)snprintf(part, sizeof(part), " stride %d,%d padding %d,%d dilation %d,%d", c->stride[0],
                   c->stride[1], c->padding[0], c->padding[1], c->dilation[0], c->dilation[1]);
    append(buf, n, part);
    for (int i = 1; i < g->n_nodes; i++) {
        append(buf, n, " + ");
        append(buf, n, op_names[g->nodes[i].op]);
    }
    return buf;
}
