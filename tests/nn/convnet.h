/* SPDX-License-Identifier: Apache-2.0 */
/* convnet.h - a ConvNet of the mnist program's shape, small enough for the reference device. */
#ifndef TESTS_NN_CONVNET_H
#define TESTS_NN_CONVNET_H

#include <lockstep/nn.h>

#define CONVNET_SIDE     8
#define CONVNET_CLASSES  4
#define CONVNET_MAX_ROWS 32

typedef struct convnet {
    ls_model *model;
    ls_layer *conv[2];
    ls_layer *norm[2];
    ls_layer *fc;
} convnet;

/* conv5x5 - bn relu - pool, twice, then a linear layer; the status is the model's. */
LS_MUST_USE ls_status convnet_create(ls_device *device, uint64_t seed, convnet *out);

/* (N,1,8,8) -> (N,4) */
ls_tensor *convnet_forward(convnet *net, ls_tape *tape, ls_tensor *x);

/* Seeded images, at most CONVNET_MAX_ROWS, and labels that can be learned from them. */
LS_MUST_USE ls_status convnet_batch(ls_device *device, int64_t rows, uint64_t seed, ls_tensor **x,
                                    ls_tensor **y);

/* Forward, loss, backward; *loss (may be NULL) gets the loss. */
LS_MUST_USE ls_status convnet_gradients(convnet *net, ls_tape *tape, ls_tensor *x, ls_tensor *y,
                                        float *loss);

/* p -= lr * g for all parameters. */
LS_MUST_USE ls_status convnet_descend(convnet *net, float lr);

#endif
