/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet.c - ResNet, Wide ResNet and ResNeXt. The stride of a bottleneck is in its 3x3 convolution.
 */
#include "models/net.h"

typedef struct resnet {
    const char *name;
    bool bottleneck; /* blocks of 1x1, 3x3, 1x1 convolutions; else of two 3x3 ones */
    int depth[4];    /* blocks of each stage */
    int groups;      /* of the 3x3 convolutions in bottlenecks */
    int base_width;  /* of each of these groups in the first stage */
} resnet;

static const resnet archs[] = {
    {"resnet18", false, {2, 2, 2, 2}, 1, 64},
    {"resnet34", false, {3, 4, 6, 3}, 1, 64},
    {"resnet50", true, {3, 4, 6, 3}, 1, 64},
    {"resnet101", true, {3, 4, 23, 3}, 1, 64},
    {"resnet152", true, {3, 8, 36, 3}, 1, 64},
    {"resnext50_32x4d", true, {3, 4, 6, 3}, 32, 4},
    {"resnext101_32x8d", true, {3, 4, 23, 3}, 32, 8},
    {"resnext101_64x4d", true, {3, 4, 23, 3}, 64, 4},
    {"wide_resnet50_2", true, {3, 4, 6, 3}, 1, 128},
    {"wide_resnet101_2", true, {3, 4, 23, 3}, 1, 128},
};

static int add_basic(network *n, int x, int out, int stride)
{
    x = net_conv2d(n, x, "conv1", out, (net_conv){.kernel = 3, .stride = stride});
    x = net_batch_norm(n, x, "bn1", true);
    x = net_conv2d(n, x, "conv2", out, (net_conv){.kernel = 3});
    return net_batch_norm(n, x, "bn2", false);
}

static int add_bottleneck(network *n, int x, const resnet *arch, int out, int stride)
{
    const int width = out / 4 * arch->base_width / 64 * arch->groups;
    const net_conv middle = {.kernel = 3, .stride = stride, .groups = arch->groups};

    x = net_conv2d(n, x, "conv1", width, (net_conv){.kernel = 1});
    x = net_batch_norm(n, x, "bn1", true);
    x = net_conv2d(n, x, "conv2", width, middle);
    x = net_batch_norm(n, x, "bn2", true);
    x = net_conv2d(n, x, "conv3", out, (net_conv){.kernel = 1});
    return net_batch_norm(n, x, "bn3", false);
}

static int add_block(network *n, int x, const resnet *arch, int out, int stride)
{
    const int h =
        arch->bottleneck ? add_bottleneck(n, x, arch, out, stride) : add_basic(n, x, out, stride);
    int shortcut = x;

    if (stride != 1 || n->channels[x] != out) {
        shortcut = net_conv2d(n, x, "downsample.0", out, (net_conv){.stride = stride});
        shortcut = net_batch_norm(n, shortcut, "downsample.1", false);
    }
    return net_add_relu(n, h, shortcut);
}

static void build(network *n, const void *entry, int classes)
{
    const resnet *arch = entry;
    int x;

    n->conv.weight = (ls_nn_init_options){.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1};
    x = net_conv2d(n, 0, "conv1", 64, (net_conv){.kernel = 7, .stride = 2});
    x = net_batch_norm(n, x, "bn1", true);
    x = net_max_pool(n, x,
                     (ls_pool2d_params){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    for (int stage = 0; stage < 4; stage++) {
        const int width = 64 << stage;

        for (int i = 0; i < arch->depth[stage]; i++) {
            net_enter(n, "layer%d.%d", stage + 1, i);
            x = add_block(n, x, arch, arch->bottleneck ? 4 * width : width,
                          stage > 0 && i == 0 ? 2 : 1);
            net_leave(n);
        }
    }
    (void)net_linear(n, net_pool_features(n, x, 1), "fc", classes);
}

const net_family resnet_family = NET_FAMILY(archs, build);
