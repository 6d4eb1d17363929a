/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence.h - runs operators on sequences (N,C,T) with the kernels of images: these see (N,C,1,T).
 * So results of 1-D convolutions keep the layout that the device gives images, up to an operator
 * that needs them plain. device.c calls it for each operator.
 */
#ifndef LS_TENSOR_SEQUENCE_H
#define LS_TENSOR_SEQUENCE_H

#include "tensor/device.h"

enum { SEQUENCE_DIMS = 3 };

/* The tensors of a call that have a dimension of size 1 more than before. */
typedef struct sequence_view {
    int n;
    ls_tensor *t[2 * OP_MAX_TENSORS];
} sequence_view;

/* Whether a call that has tensors of SEQUENCE_DIMS has a sequence that is not plain, or is
 * an operator of images on sequences. */
bool sequence_matters(const op_call *call);

/* The same of any call: device_run() asks for each operator. */
static inline bool sequence_occurs(const op_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        if (call->in[i] != NULL && call->in[i]->n_dims == SEQUENCE_DIMS)
            return sequence_matters(call);
    }
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] != NULL && call->out[i]->n_dims == SEQUENCE_DIMS)
            return sequence_matters(call);
    }
    return false;
}

/* Inserts dimensions for the kernel of such a call, until sequence_close(). False: its kernels know
 * no images, and need all sequences in plain layout. */
bool sequence_open(const op_call *call, sequence_view *view);
void sequence_close(sequence_view *view);

#endif
