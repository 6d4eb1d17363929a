/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convnext.c - ConvNeXt. Between the two permutations of a block channels are the last dimension.
 */
#include "models/net.h"

typedef struct convnext {
    const char *name;
    int width; /* of the first stage; each stage doubles it */
    int depth[4];
    double rate; /* of stochastic depth in the last block */
} convnext;

static const convnext archs[] = {
    {"convnext_tiny", 96, {3, 3, 9, 3}, 0.1},
    {"convnext_small", 96, {3, 3, 27, 3}, 0.4},
    {"convnext_base", 128, {3, 3, 27, 3}, 0.5},
    {"convnext_large", 192, {3, 3, 27, 3}, 0.5},
};

static const double eps = 1e-6;

static int add_block(network *n, int x, double rate)
{
    static const int channels_last[] = {0, 2, 3, 1};
    static const int channels_first[] = {0, 3, 1, 2};
    const int width = n->channels[x];
    ls_tensor *scale = net_parameter(n, "layer_scale", 3, (int64_t[]){width, 1, 1});
    int h;

    net_init_parameter(n, "layer_scale",
                       (ls_nn_init_options){.kind = LS_INIT_CONSTANT, .value = 1e-6});
    net_enter(n, "block");
    h = net_conv2d(n, x, "0", width, (net_conv){.kernel = 7, .groups = width, .bias = 1});
    h = net_permute(n, h, channels_last);
    h = net_layer_norm(n, h, "2", eps, false);
    h = net_activate(n, net_linear(n, h, "3", 4 * width), LS_ACT_GELU);
    h = net_permute(n, net_linear(n, h, "5", width), channels_first);
    net_leave(n);
    h = net_scale_parameter(n, h, scale);
    return net_add(n, rate > 0 ? net_stochastic_depth(n, h, rate) : h, x);
}

static void build(network *n, const void *entry, int classes)
{
    const convnext *arch = entry;
    const int total = arch->depth[0] + arch->depth[1] + arch->depth[2] + arch->depth[3];
    int done = 0;
    int x = 0;

    n->conv = n->linear =
        (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.02}, .zero_bias = true};
    for (int stage = 0; stage < 4; stage++) {
        const int side = stage == 0 ? 4 : 2;
        const net_conv patches = {.kernel = side, .stride = side, .pad = NET_NO_PADDING, .bias = 1};

        net_enter(n, "features.%d", 2 * stage);
        if (stage > 0)
            x = net_layer_norm(n, x, "0", eps, true);
        x = net_conv2d(n, x, stage > 0 ? "1" : "0", arch->width << stage, patches);
        if (stage == 0)
            x = net_layer_norm(n, x, "1", eps, true);
        net_leave(n);
        for (int i = 0; i < arch->depth[stage]; i++) {
            net_enter(n, "features.%d.%d", 2 * stage + 1, i);
            x = add_block(n, x, arch->rate * done++ / (total - 1.0));
            net_leave(n);
        }
    }
    x = net_layer_norm(n, net_global_pool(n, x), "classifier.0", eps, true);
    (void)net_linear(n, net_flatten(n, x), "classifier.2", classes);
}

const net_family convnext_family = NET_FAMILY(archs, build);
