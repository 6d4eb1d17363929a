/* SPDX-License-Identifier: Apache-2.0 */
/* squeezenet.c - SqueezeNet 1.0 and 1.1. */
#include "models/net.h"

enum { N_FIRES = 8 };

typedef struct squeezenet {
    const char *name;
    int stem; /* channels */
    int stem_kernel;
    int pools; /* bit i: a pool is before fire i */
} squeezenet;

static const squeezenet archs[] = {
    {"squeezenet1_0", 96, 7, 1 << 0 | 1 << 3 | 1 << 7},
    {"squeezenet1_1", 64, 3, 1 << 0 | 1 << 2 | 1 << 4},
};

static int add_fire(network *n, int x, int at, int squeezed)
{
    int expanded[2];

    net_enter(n, "%d", at);
    x = net_relu(n, net_conv2d(n, x, "squeeze", squeezed, (net_conv){.bias = 1}));
    expanded[0] = net_conv2d(n, x, "expand1x1", 4 * squeezed, (net_conv){.bias = 1});
    expanded[0] = net_relu(n, expanded[0]);
    expanded[1] = net_conv2d(n, x, "expand3x3", 4 * squeezed, (net_conv){.kernel = 3, .bias = 1});
    expanded[1] = net_relu(n, expanded[1]);
    net_leave(n);
    return net_concat(n, 2, expanded);
}

static void build(network *n, const void *entry, int classes)
{
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = 1};
    const squeezenet *arch = entry;
    int at = 2;
    int x;

    n->conv = (net_init){.weight = {.kind = LS_INIT_KAIMING_UNIFORM}, .zero_bias = true};
    net_enter(n, "features");
    x = net_conv2d(
        n, 0, "0", arch->stem,
        (net_conv){.kernel = arch->stem_kernel, .stride = 2, .pad = NET_NO_PADDING, .bias = 1});
    x = net_relu(n, x);
    for (int i = 0; i < N_FIRES; i++) {
        if ((arch->pools >> i & 1) != 0) {
            x = net_max_pool(n, x, pool);
            at++;
        }
        x = add_fire(n, x, at++, 16 * (i / 2 + 1));
    }
    net_leave(n);
    n->conv = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.01}, .zero_bias = true};
    x = net_dropout(n, x, 0.5);
    x = net_relu(n, net_conv2d(n, x, "classifier.1", classes, (net_conv){.bias = 1}));
    (void)net_pool_features(n, x, 1);
}

const net_family squeezenet_family = NET_FAMILY(archs, build);
