/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * convnet.h - the ConvNet of the MNIST tutorials: twice convolution 5x5, batch norm, ReLU, max
 * pool; then a linear layer.
 */
#ifndef MODELS_CONVNET_H
#define MODELS_CONVNET_H

#include <lockstep/nn.h>

typedef struct convnet {
    ls_layer *conv1, *bn1, *conv2, *bn2, *fc;
} convnet;

/* Adds its layers to `model`, with PyTorch's names; ls_model_status() returns a failure. */
void convnet_create(ls_model *model, int classes, convnet *net);

/* Logits (N, classes) for images (N, 1, 28, 28); `net` is a convnet. */
ls_tensor *convnet_forward(void *net, ls_tape *tape, ls_tensor *images);

#endif
