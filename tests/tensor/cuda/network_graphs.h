/* SPDX-License-Identifier: Apache-2.0 */
/*
 * network_graphs.h - the graphs of cuDNN that a training step of a network needs, recorded from its
 * operators on the device cudahost, which runs none of them.
 */
#ifndef TESTS_TENSOR_CUDA_NETWORK_GRAPHS_H
#define TESTS_TENSOR_CUDA_NETWORK_GRAPHS_H

#include "tensor/devices/cuda/dnn/dnn_graph.h"

#include "base/status.h"

typedef struct graph_list {
    dnn_graph *graphs; /* each once, in the order of their first use; ls_free() */
    size_t n;
    bool is_short_of_memory;
} graph_list;

/*
 * Appends those of "convnet", "gpt2", "tacotron2" or an architecture of models/architectures.h.
 * `batch`: images a step. Tacotron2 has 48 sentences of 160 symbols and 800 frames. LS_EINVAL:
 * there is no such network.
 */
LS_MUST_USE ls_status network_graphs(const char *name, ls_dtype compute, int64_t batch,
                                     graph_list *out);

/* The name of network i; NULL after the last one. */
const char *network_name(int i);

#endif
