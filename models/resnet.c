/* SPDX-License-Identifier: Apache-2.0 */
#include "resnet.h"

#include <stdio.h>
#include <string.h>

static const resnet_arch archs[] = {
    {"resnet18", 0, {2, 2, 2, 2}},   {"resnet34", 0, {3, 4, 6, 3}},   {"resnet50", 1, {3, 4, 6, 3}},
    {"resnet101", 1, {3, 4, 23, 3}}, {"resnet152", 1, {3, 8, 36, 3}},
};

enum { N_ARCHS = sizeof(archs) / sizeof(archs[0]) };

const resnet_arch *resnet_find(const char *name, char *error, size_t n)
{
    int used;

    for (int i = 0; i < N_ARCHS; i++) {
        if (strcmp(archs[i].name, name) == 0)
            return &archs[i];
    }
    used = snprintf(error, n, "there is no architecture \"%.40s\"; known are", name);
    for (int i = 0; i < N_ARCHS && used >= 0 && (size_t)used < n; i++)
        used += snprintf(error + used, n - (size_t)used, "%s %s", i == 0 ? "" : ",", archs[i].name);
    return NULL;
}

/* --- layers --- */

static ls_layer *conv(ls_model *model, const char *prefix, const char *name, int in, int out,
                      int kernel, int stride)
{
    const int padding = kernel / 2;
    const ls_nn_conv2d_options options = {.kernel = {kernel, kernel},
                                          .stride = {stride, stride},
                                          .padding = {padding, padding},
                                          .no_bias = 1,
                                          .init = LS_INIT_KAIMING_NORMAL};
    char full[64];

    (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
    return ls_nn_conv2d(model, full, in, out, &options);
}

static ls_layer *batch_norm(ls_model *model, const char *prefix, const char *name, int channels,
                            int relu)
{
    const ls_nn_batch_norm_options options = {.relu = relu};
    char full[64];

    (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
    return ls_nn_batch_norm2d(model, full, channels, &options);
}

/* The convolutions of a block, from `in` channels over `width` to `out`. */
static void add_block(ls_model *model, const char *prefix, int bottleneck, int in, int width,
                      int out, int stride, resnet_block *b)
{
    static const char *const convs[] = {"conv1", "conv2", "conv3"};
    static const char *const norms[] = {"bn1", "bn2", "bn3"};
    const int n = bottleneck ? 3 : 2;
    const int strided = bottleneck ? 1 : 0;

    for (int i = 0; i < n; i++) {
        const int last = i == n - 1;
        const int kernel = bottleneck && i != 1 ? 1 : 3;

        b->conv[i] = conv(model, prefix, convs[i], i == 0 ? in : width, last ? out : width, kernel,
                          i == strided ? stride : 1);
        b->bn[i] = batch_norm(model, prefix, norms[i], last ? out : width, !last);
    }
    if (stride == 1 && in == out)
        return;
    b->downsample[0] = conv(model, prefix, "downsample.0", in, out, 1, stride);
    b->downsample[1] = batch_norm(model, prefix, "downsample.1", out, 0);
}

void resnet_create(ls_model *model, const resnet_arch *arch, int num_classes, resnet *net)
{
    int in = 64;

    memset(net, 0, sizeof(*net));
    net->arch = arch;
    net->conv1 = conv(model, "", "conv1", 3, in, 7, 2);
    net->bn1 = batch_norm(model, "", "bn1", in, 1);
    for (int stage = 0; stage < 4; stage++) {
        const int width = 64 << stage;
        const int out = arch->bottleneck ? 4 * width : width;

        for (int i = 0; i < arch->depth[stage]; i++) {
            char prefix[32];

            (void)snprintf(prefix, sizeof(prefix), "layer%d.%d.", stage + 1, i);
            add_block(model, prefix, arch->bottleneck, in, width, out, stage > 0 && i == 0 ? 2 : 1,
                      &net->blocks[net->n_blocks++]);
            in = out;
        }
    }
    net->fc = ls_nn_linear(model, "fc", in, num_classes, 0);
}

/* --- running --- */

static ls_tensor *conv_bn(ls_tape *tape, ls_layer *convolution, ls_layer *norm, ls_tensor *x)
{
    ls_tensor *h = ls_forward(tape, convolution, x);
    ls_tensor *y = ls_forward(tape, norm, h);

    ls_tape_done(tape, h);
    return y;
}

/* The last reader of x and of all that lies between. */
static ls_tensor *block_forward(ls_tape *tape, const resnet_block *b, ls_tensor *x)
{
    ls_tensor *shortcut = x;
    ls_tensor *h = x;
    ls_tensor *y;

    for (int i = 0; i < 3 && b->conv[i] != NULL; i++) {
        ls_tensor *next = conv_bn(tape, b->conv[i], b->bn[i], h);

        if (h != x)
            ls_tape_done(tape, h);
        h = next;
    }
    if (b->downsample[0] != NULL)
        shortcut = conv_bn(tape, b->downsample[0], b->downsample[1], x);
    y = ls_add_relu(tape, h, shortcut);
    ls_tape_done(tape, h);
    ls_tape_done(tape, shortcut);
    ls_tape_done(tape, x);
    return y;
}

ls_tensor *resnet_forward(void *arg, ls_tape *tape, ls_tensor *images)
{
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    const resnet *net = arg;
    ls_tensor *stem = conv_bn(tape, net->conv1, net->bn1, images); /* (N, 64, H / 2, W / 2) */
    ls_tensor *h = ls_max_pool2d(tape, stem, &pool);               /* (N, 64, H / 4, W / 4) */
    ls_tensor *features;

    ls_tape_done(tape, stem);
    for (int i = 0; i < net->n_blocks; i++)
        h = block_forward(tape, &net->blocks[i], h);
    features = ls_adaptive_avg_pool2d(tape, h, 1, 1); /* (N, 512 or 2048, 1, 1) */
    ls_tape_done(tape, h);
    return ls_forward(tape, net->fc, ls_flatten(tape, features));
}
