/* SPDX-License-Identifier: Apache-2.0 */
/* mnasnet.c - MNASNet B1. */
#include "models/net.h"

#include <math.h>

typedef struct mnasnet {
    const char *name;
    double width; /* multiplies all channels but those of the last convolution */
} mnasnet;

static const mnasnet archs[] = {
    {"mnasnet0_5", 0.5},
    {"mnasnet0_75", 0.75},
    {"mnasnet1_0", 1.0},
    {"mnasnet1_3", 1.3},
};

/* 1x1, depthwise and 1x1 convolution, with a shortcut where the shape stays. */
static int add_block(network *n, int x, int factor, int kernel, int out, int stride)
{
    const int width = n->channels[x] * factor;
    int h;

    net_enter(n, "layers");
    h = net_conv2d(n, x, "0", width, (net_conv){.kernel = 1});
    h = net_batch_norm(n, h, "1", true);
    h = net_conv2d(n, h, "3", width,
                   (net_conv){.kernel = kernel, .stride = stride, .groups = width});
    h = net_batch_norm(n, h, "4", true);
    h = net_conv2d(n, h, "6", out, (net_conv){.kernel = 1});
    h = net_batch_norm(n, h, "7", false);
    net_leave(n);
    return stride == 1 && n->channels[x] == out ? net_add(n, h, x) : h;
}

static int add_stem(network *n, double width)
{
    const int stem = net_round_channels(32 * width);
    int x = net_conv2d(n, 0, "0", stem, (net_conv){.kernel = 3, .stride = 2});

    x = net_batch_norm(n, x, "1", true);
    x = net_conv2d(n, x, "3", stem, (net_conv){.kernel = 3, .groups = stem});
    x = net_batch_norm(n, x, "4", true);
    x = net_conv2d(n, x, "6", net_round_channels(16 * width), (net_conv){.kernel = 1});
    return net_batch_norm(n, x, "7", false);
}

static void build(network *n, const void *entry, int classes)
{
    static const struct {
        int out, kernel, stride, factor, repeats;
    } stages[] = {{24, 3, 2, 3, 3}, {40, 5, 2, 3, 3},  {80, 5, 2, 6, 3},
                  {96, 3, 1, 6, 2}, {192, 5, 2, 6, 4}, {320, 3, 1, 6, 1}};
    const mnasnet *arch = entry;
    int x;

    n->conv.weight = (ls_nn_init_options){.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1};
    n->linear = (net_init){.weight = {.kind = LS_INIT_UNIFORM,
                                      .low = -sqrt(3.0 / classes),
                                      .high = sqrt(3.0 / classes)},
                           .zero_bias = true};
    n->norm.momentum = 1 - 0.9997;
    net_enter(n, "layers");
    x = add_stem(n, arch->width);
    for (int stage = 0; stage < 6; stage++) {
        for (int i = 0; i < stages[stage].repeats; i++) {
            net_enter(n, "%d.%d", stage + 8, i);
            x = add_block(n, x, stages[stage].factor, stages[stage].kernel,
                          net_round_channels(stages[stage].out * arch->width),
                          i == 0 ? stages[stage].stride : 1);
            net_leave(n);
        }
    }
    x = net_conv2d(n, x, "14", 1280, (net_conv){.kernel = 1});
    x = net_batch_norm(n, x, "15", true);
    net_leave(n);
    x = net_dropout(n, net_pool_features(n, x, 1), 0.2);
    (void)net_linear(n, x, "classifier.1", classes);
}

const net_family mnasnet_family = NET_FAMILY(archs, build);
