/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regnet.c - RegNet X and Y. Depths and widths are what their rule of four numbers gives
 * (Radosavovic et al., "Designing Network Design Spaces", 2020), rounded as torchvision does.
 */
#include "models/net.h"

typedef struct regnet {
    const char *name;
    bool squeezes; /* Y */
    int depth[4], width[4];
    int group; /* channels of a group, at most the width */
} regnet;

static const regnet archs[] = {
    {"regnet_x_400mf", false, {1, 2, 7, 12}, {32, 64, 160, 400}, 16},
    {"regnet_x_800mf", false, {1, 3, 7, 5}, {64, 128, 288, 672}, 16},
    {"regnet_x_8gf", false, {2, 5, 15, 1}, {80, 240, 720, 1920}, 120},
    {"regnet_x_16gf", false, {2, 6, 13, 1}, {256, 512, 896, 2048}, 128},
    {"regnet_x_32gf", false, {2, 7, 13, 1}, {336, 672, 1344, 2520}, 168},
    {"regnet_x_1_6gf", false, {2, 4, 10, 2}, {72, 168, 408, 912}, 24},
    {"regnet_x_3_2gf", false, {2, 6, 15, 2}, {96, 192, 432, 1008}, 48},
    {"regnet_y_400mf", true, {1, 3, 6, 6}, {48, 104, 208, 440}, 8},
    {"regnet_y_800mf", true, {1, 3, 8, 2}, {64, 144, 320, 784}, 16},
    {"regnet_y_8gf", true, {2, 4, 10, 1}, {224, 448, 896, 2016}, 56},
    {"regnet_y_16gf", true, {2, 4, 11, 1}, {224, 448, 1232, 3024}, 112},
    {"regnet_y_32gf", true, {2, 5, 12, 1}, {232, 696, 1392, 3712}, 232},
    {"regnet_y_128gf", true, {2, 7, 17, 1}, {528, 1056, 2904, 7392}, 264},
    {"regnet_y_1_6gf", true, {2, 6, 17, 2}, {48, 120, 336, 888}, 24},
    {"regnet_y_3_2gf", true, {2, 5, 13, 1}, {72, 216, 576, 1512}, 24},
};

static int add_block(network *n, int x, const regnet *arch, int out, int stride)
{
    const int group = out < arch->group ? out : arch->group;
    const int squeezed = n->channels[x] / 4;
    int shortcut = x;
    int h;

    if (stride != 1 || n->channels[x] != out)
        shortcut = net_conv_norm(n, x, "proj", out, (net_conv){.stride = stride}, NET_NONE);
    net_enter(n, "f");
    h = net_conv_norm(n, x, "a", out, (net_conv){.kernel = 1}, NET_RELU);
    h = net_conv_norm(n, h, "b", out,
                      (net_conv){.kernel = 3, .stride = stride, .groups = out / group}, NET_RELU);
    if (arch->squeezes)
        h = net_squeeze_excite(n, h, "se", squeezed, NET_RELU, LS_ACT_SIGMOID);
    h = net_conv_norm(n, h, "c", out, (net_conv){.kernel = 1}, NET_NONE);
    net_leave(n);
    return net_add_relu(n, h, shortcut);
}

static void build(network *n, const void *entry, int classes)
{
    const regnet *arch = entry;
    int x;

    n->conv.weight = (ls_nn_init_options){.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1};
    n->linear = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.01}, .zero_bias = true};
    x = net_conv_norm(n, 0, "stem", 32, (net_conv){.kernel = 3, .stride = 2}, NET_RELU);
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < arch->depth[stage]; i++) {
            net_enter(n, "trunk_output.block%d.block%d-%d", stage + 1, stage + 1, i);
            x = add_block(n, x, arch, arch->width[stage], i == 0 ? 2 : 1);
            net_leave(n);
        }
    }
    (void)net_linear(n, net_pool_features(n, x, 1), "fc", classes);
}

const net_family regnet_family = NET_FAMILY(archs, build);
