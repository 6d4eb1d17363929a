/* SPDX-License-Identifier: Apache-2.0 */
/* convnet.c - the ConvNet and its small data set, for the tests of nn. */
#include "nn/convnet.h"

#include "base/rng.h"
#include "base/status.h"

#define MAX_VALUES 512 /* of one parameter */

static const ls_pool2d_params halve = {.kernel = {2, 2}};

ls_status convnet_create(ls_device *device, uint64_t seed, convnet *out)
{
    const ls_nn_conv2d_options conv = {.kernel = {5, 5}, .padding = {2, 2}};
    const ls_nn_batch_norm_options norm = {.relu = 1};
    const int quarter = CONVNET_SIDE / 4;

    LS_TRY(ls_model_create(device, seed, &out->model));
    out->conv[0] = ls_nn_conv2d(out->model, "layer1.0", 1, 3, &conv);
    out->norm[0] = ls_nn_batch_norm2d(out->model, "layer1.1", 3, &norm);
    out->conv[1] = ls_nn_conv2d(out->model, "layer2.0", 3, 5, &conv);
    out->norm[1] = ls_nn_batch_norm2d(out->model, "layer2.1", 5, &norm);
    out->fc = ls_nn_linear(out->model, "fc", 5 * quarter * quarter, CONVNET_CLASSES, 0);
    return ls_model_status(out->model);
}

ls_tensor *convnet_forward(convnet *net, ls_tape *tape, ls_tensor *x)
{
    for (int i = 0; i < 2; i++)
        x = ls_max_pool2d(tape, ls_forward(tape, net->norm[i], ls_forward(tape, net->conv[i], x)),
                          &halve);
    return ls_forward(tape, net->fc, ls_flatten(tape, x));
}

ls_status convnet_batch(ls_device *device, int64_t rows, uint64_t seed, ls_tensor **x,
                        ls_tensor **y)
{
    const int64_t dims[] = {rows, 1, CONVNET_SIDE, CONVNET_SIDE};
    const int64_t area = CONVNET_SIDE * CONVNET_SIDE;
    ls_rng rng;
    float pixels[CONVNET_MAX_ROWS * CONVNET_SIDE * CONVNET_SIDE];
    int64_t labels[CONVNET_MAX_ROWS];

    LS_ASSERT(rows <= CONVNET_MAX_ROWS);
    LS_TRY(ls_tensor_create(device, LS_F32, 4, dims, x));
    LS_TRY(ls_tensor_create(device, LS_I64, 1, &rows, y));
    ls_rng_seed(&rng, seed);
    for (int64_t n = 0; n < rows; n++) {
        labels[n] = (int64_t)ls_rng_below(&rng, CONVNET_CLASSES);
        // The class is the bright quarter.
        for (int64_t i = 0; i < area; i++)
            pixels[n * area + i] = (float)ls_rng_double(&rng) * 0.5F +
                                   (i * CONVNET_CLASSES / area == labels[n] ? 0.5F : 0.0F);
    }
    LS_TRY(ls_tensor_write(*x, pixels, (size_t)(rows * area)));
    return ls_tensor_write(*y, labels, (size_t)rows);
}

ls_status convnet_gradients(convnet *net, ls_tape *tape, ls_tensor *x, ls_tensor *y, float *loss)
{
    ls_tensor *l;

    ls_tape_reset(tape);
    l = ls_cross_entropy(tape, convnet_forward(net, tape, x), y);
    LS_TRY(ls_backward(tape, l, 1));
    return loss == NULL ? LS_OK : ls_tensor_read(l, loss, 1);
}

ls_status convnet_descend(convnet *net, float lr)
{
    float p[MAX_VALUES];
    float g[MAX_VALUES];
    int n;
    const ls_named *parameters = ls_model_parameters(net->model, &n);

    for (int i = 0; i < n; i++) {
        ls_tensor *parameter = parameters[i].tensor;
        const size_t count = ls_tensor_count(parameter);

        LS_ASSERT(count <= MAX_VALUES);
        LS_TRY(ls_tensor_read(parameter, p, count));
        LS_TRY(ls_tensor_read(ls_grad(parameter), g, count));
        for (size_t k = 0; k < count; k++)
            p[k] -= lr * g[k];
        LS_TRY(ls_tensor_write(parameter, p, count));
    }
    return LS_OK;
}
