/* SPDX-License-Identifier: Apache-2.0 */
/* mobilenet.c - MobileNet v2 and v3: blocks of a 1x1, a depthwise and a 1x1 convolution. */
#include "models/net.h"

#include <stdio.h>

static const char *part(char *name, size_t size, int i)
{
    (void)snprintf(name, size, "%d", i);
    return name;
}

/* --- v2 --- */

static const char *const v2_archs[] = {"mobilenet_v2"};

static int add_v2_block(network *n, int x, int factor, int out, int stride)
{
    const int width = n->channels[x] * factor;
    char name[16];
    int at = 0;
    int h = x;

    net_enter(n, "conv");
    if (factor != 1)
        h = net_conv_norm(n, h, part(name, sizeof(name), at++), width, (net_conv){.kernel = 1},
                          LS_ACT_RELU6);
    h = net_conv_norm(n, h, part(name, sizeof(name), at++), width,
                      (net_conv){.kernel = 3, .stride = stride, .groups = width}, LS_ACT_RELU6);
    h = net_conv2d(n, h, part(name, sizeof(name), at++), out, (net_conv){.kernel = 1});
    h = net_batch_norm(n, h, part(name, sizeof(name), at), false);
    net_leave(n);
    return stride == 1 && n->channels[x] == out ? net_add(n, x, h) : h;
}

static void build_v2(network *n, const void *entry, int classes)
{
    static const struct {
        int factor, out, repeats, stride;
    } stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                  {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    int at = 1;
    int x;

    (void)entry;
    n->conv =
        (net_init){.weight = {.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1}, .zero_bias = true};
    n->linear = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.01}, .zero_bias = true};
    x = net_conv_norm(n, 0, "features.0", 32, (net_conv){.kernel = 3, .stride = 2}, LS_ACT_RELU6);
    for (size_t stage = 0; stage < sizeof(stages) / sizeof(stages[0]); stage++) {
        for (int i = 0; i < stages[stage].repeats; i++) {
            net_enter(n, "features.%d", at++);
            x = add_v2_block(n, x, stages[stage].factor, stages[stage].out,
                             i == 0 ? stages[stage].stride : 1);
            net_leave(n);
        }
    }
    x = net_conv_norm(n, x, "features.18", 1280, (net_conv){.kernel = 1}, LS_ACT_RELU6);
    x = net_dropout(n, net_pool_features(n, x, 1), 0.2);
    (void)net_linear(n, x, "classifier.1", classes);
}

const net_family mobilenet_v2_family = NET_FAMILY(v2_archs, build_v2);

/* --- v3 --- */

typedef struct v3_block {
    int kernel, expanded, out;
    bool squeezes, is_hard_swish;
    int stride;
} v3_block;

typedef struct v3 {
    const char *name;
    int last; /* features before the classes */
    int n_blocks;
    v3_block blocks[15];
} v3;

static const v3 v3_archs[] = {{"mobilenet_v3_large",
                               1280,
                               15,
                               {{3, 16, 16, false, false, 1},
                                {3, 64, 24, false, false, 2},
                                {3, 72, 24, false, false, 1},
                                {5, 72, 40, true, false, 2},
                                {5, 120, 40, true, false, 1},
                                {5, 120, 40, true, false, 1},
                                {3, 240, 80, false, true, 2},
                                {3, 200, 80, false, true, 1},
                                {3, 184, 80, false, true, 1},
                                {3, 184, 80, false, true, 1},
                                {3, 480, 112, true, true, 1},
                                {3, 672, 112, true, true, 1},
                                {5, 672, 160, true, true, 2},
                                {5, 960, 160, true, true, 1},
                                {5, 960, 160, true, true, 1}}},
                              {"mobilenet_v3_small",
                               1024,
                               11,
                               {{3, 16, 16, true, false, 2},
                                {3, 72, 24, false, false, 2},
                                {3, 88, 24, false, false, 1},
                                {5, 96, 40, true, true, 2},
                                {5, 240, 40, true, true, 1},
                                {5, 240, 40, true, true, 1},
                                {5, 120, 48, true, true, 1},
                                {5, 144, 48, true, true, 1},
                                {5, 288, 96, true, true, 2},
                                {5, 576, 96, true, true, 1},
                                {5, 576, 96, true, true, 1}}}};

static int add_v3_block(network *n, int x, const v3_block *b)
{
    const int act = b->is_hard_swish ? LS_ACT_HARDSWISH : NET_RELU;
    const net_conv depthwise = {.kernel = b->kernel, .stride = b->stride, .groups = b->expanded};
    char name[16];
    int at = 0;
    int h = x;

    net_enter(n, "block");
    if (b->expanded != n->channels[x])
        h = net_conv_norm(n, h, part(name, sizeof(name), at++), b->expanded,
                          (net_conv){.kernel = 1}, act);
    h = net_conv_norm(n, h, part(name, sizeof(name), at++), b->expanded, depthwise, act);
    if (b->squeezes)
        h = net_squeeze_excite(n, h, part(name, sizeof(name), at++),
                               net_round_channels(b->expanded / 4), NET_RELU, LS_ACT_HARDSIGMOID);
    h = net_conv_norm(n, h, part(name, sizeof(name), at), b->out, (net_conv){.kernel = 1},
                      NET_NONE);
    net_leave(n);
    return b->stride == 1 && n->channels[x] == b->out ? net_add(n, h, x) : h;
}

static void build_v3(network *n, const void *entry, int classes)
{
    const v3 *arch = entry;
    char name[32];
    int x;

    n->conv =
        (net_init){.weight = {.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1}, .zero_bias = true};
    n->linear = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.01}, .zero_bias = true};
    n->norm = (ls_nn_batch_norm_options){.eps = 0.001, .momentum = 0.01};
    x = net_conv_norm(n, 0, "features.0", 16, (net_conv){.kernel = 3, .stride = 2},
                      LS_ACT_HARDSWISH);
    for (int i = 0; i < arch->n_blocks; i++) {
        net_enter(n, "features.%d", i + 1);
        x = add_v3_block(n, x, &arch->blocks[i]);
        net_leave(n);
    }
    (void)snprintf(name, sizeof(name), "features.%d", arch->n_blocks + 1);
    x = net_conv_norm(n, x, name, 6 * n->channels[x], (net_conv){.kernel = 1}, LS_ACT_HARDSWISH);
    x = net_linear(n, net_pool_features(n, x, 1), "classifier.0", arch->last);
    x = net_dropout(n, net_activate(n, x, LS_ACT_HARDSWISH), 0.2);
    (void)net_linear(n, x, "classifier.3", classes);
}

const net_family mobilenet_v3_family = NET_FAMILY(v3_archs, build_v3);
