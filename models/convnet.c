/* SPDX-License-Identifier: Apache-2.0 */
/* convnet.c - the ConvNet of examples/mnist.c, written with the public functions only. */
#include "convnet.h"

void convnet_create(ls_model *model, int classes, convnet *net)
{
    const ls_nn_conv2d_options conv = {.kernel = {5, 5}, .padding = {2, 2}};
    const ls_nn_batch_norm_options bn_relu = {.relu = 1};

    net->conv1 = ls_nn_conv2d(model, "layer1.0", 1, 16, &conv);
    net->bn1 = ls_nn_batch_norm2d(model, "layer1.1", 16, &bn_relu);
    net->conv2 = ls_nn_conv2d(model, "layer2.0", 16, 32, &conv);
    net->bn2 = ls_nn_batch_norm2d(model, "layer2.1", 32, &bn_relu);
    net->fc = ls_nn_linear(model, "fc", 7 * 7 * 32, classes, 0);
}

ls_tensor *convnet_forward(void *arg, ls_tape *tape, ls_tensor *images)
{
    const ls_pool2d_params half = {.kernel = {2, 2}};
    const convnet *net = arg;
    ls_tensor *h;

    h = ls_forward(tape, net->bn1, ls_forward(tape, net->conv1, images)); /* (N, 16, 28, 28) */
    h = ls_max_pool2d(tape, h, &half);                                    /* (N, 16, 14, 14) */
    h = ls_forward(tape, net->bn2, ls_forward(tape, net->conv2, h));      /* (N, 32, 14, 14) */
    h = ls_max_pool2d(tape, h, &half);                                    /* (N, 32, 7, 7) */
    return ls_forward(tape, net->fc, ls_flatten(tape, h));                /* (N, classes) */
}
