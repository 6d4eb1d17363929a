/* SPDX-License-Identifier: Apache-2.0 */
/* op_ceilings.h - what a device can reach at most: --profile shows operators beside it. */
#ifndef LS_TENSOR_OP_CEILINGS_H
#define LS_TENSOR_OP_CEILINGS_H

#include "tensor/device.h"

/* What the device reaches with these threads, while other processes do what they do. */
typedef struct op_ceilings {
    double flops; /* of a product of matrices, per second */
    double bytes; /* read and written by ReLU of 64 MiB, per second */
} op_ceilings;

/* Measures for about a third of a second, and takes the fastest runs. Needs
 * 128 MiB of the device's memory, which stay in its pool. `compute`: the type of activations. */
LS_MUST_USE ls_status op_ceilings_measure(ls_device *device, ls_dtype compute, op_ceilings *out);

#endif
