/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_graph.h - graphs of operations for cuDNN, as plain data: tensors with strides, and the
 * operations between them.
 *
 * The kernels of convolutions describe a graph. dnn_plan.c makes a plan of cuDNN from it; tests on
 * machines without a GPU execute it with the loops of tests/devices/dnn_plan_host.c. All bytes of a
 * graph are defined, so that they are the key of its plan.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_DNN_GRAPH_H
#define LS_TENSOR_DEVICES_CUDA_DNN_DNN_GRAPH_H

#include <lockstep/base.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DNN_MAX_TENSORS = 6, DNN_MAX_NODES = 2, DNN_MAX_ROLES = 3 };

/* dims are N, C, H, W; of weights K, C / groups, R, S; of a bias 1, C, 1, 1. */
typedef struct dnn_tensor {
    int32_t dtype;      /* ls_dtype */
    int32_t is_virtual; /* between two operations of the graph, never in memory */
    int64_t dims[4];
    int64_t strides[4]; /* in elements */
} dnn_tensor;

/* Operations, with the roles of their tensors in order. */
typedef enum dnn_op {
    DNN_CONV,         /* x, w, y */
    DNN_CONV_DATA,    /* dx, w, dy: gradient of the data */
    DNN_CONV_WEIGHTS, /* x, dw, dy: gradient of the weights */
    DNN_ADD           /* a, b, y: b has size 1 where it is repeated */
} dnn_op;

typedef struct dnn_node {
    int32_t op;
    int32_t tensors[DNN_MAX_ROLES]; /* indices into the graph's tensors */
    int32_t stride[2];              /* of convolutions */
    int32_t padding[2];
    int32_t dilation[2];
} dnn_node;

typedef struct dnn_graph {
    int32_t n_tensors;
    int32_t n_nodes;
    dnn_tensor tensors[DNN_MAX_TENSORS];
    dnn_node nodes[DNN_MAX_NODES];
} dnn_graph;

/* An empty graph, with all bytes zero. */
void dnn_graph_begin(dnn_graph *g);

/* Adds a tensor with the channels last (in memory N, H, W, C); returns its index. */
int dnn_graph_tensor(dnn_graph *g, ls_dtype type, const int64_t *dims);

/* Adds an operation with the tensors of its roles, DNN_MAX_ROLES; the caller sets the parameters
 * of a convolution. */
dnn_node *dnn_graph_op(dnn_graph *g, dnn_op op, const int *tensors);

/* The bytes that a tensor spans in memory. */
size_t dnn_tensor_bytes(const dnn_tensor *t);

/* "convolution (256,64,56,56) bfloat16 (64,64,3,3) bfloat16 stride 1,1 padding 1,1 dilation 1,1":
 * for errors, the log and tests. */
const char *dnn_graph_text(char *buf, size_t n, const dnn_graph *g);
#define DNN_TEXT_BYTES 256

#endif
