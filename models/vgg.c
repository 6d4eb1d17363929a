/* SPDX-License-Identifier: Apache-2.0 */
/* vgg.c - VGG with 11, 13, 16 and 19 layers, with and without batch norms. */
#include "models/net.h"

#include <stdio.h>

typedef struct vgg {
    const char *name;
    int depth[5]; /* convolutions before each pool */
    bool norms;
} vgg;

static const vgg archs[] = {
    {"vgg11", {1, 1, 2, 2, 2}, false},   {"vgg13", {2, 2, 2, 2, 2}, false},
    {"vgg16", {2, 2, 3, 3, 3}, false},   {"vgg19", {2, 2, 4, 4, 4}, false},
    {"vgg11_bn", {1, 1, 2, 2, 2}, true}, {"vgg13_bn", {2, 2, 2, 2, 2}, true},
    {"vgg16_bn", {2, 2, 3, 3, 3}, true}, {"vgg19_bn", {2, 2, 4, 4, 4}, true},
};

/* A convolution, its batch norm and the ReLU, which count as modules of a sequence from *at. */
static int add_conv(network *n, int x, int out, bool norms, int *at)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "%d", (*at)++);
    x = net_conv2d(n, x, name, out, (net_conv){.kernel = 3, .bias = 1});
    if (norms) {
        (void)snprintf(name, sizeof(name), "%d", (*at)++);
        x = net_batch_norm(n, x, name, true);
    } else {
        x = net_relu(n, x);
    }
    (*at)++;
    return x;
}

static void build(network *n, const void *entry, int classes)
{
    const vgg *arch = entry;
    int x = 0;
    int at = 0;

    n->conv =
        (net_init){.weight = {.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1}, .zero_bias = true};
    n->linear = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = 0.01}, .zero_bias = true};
    net_enter(n, "features");
    for (int stage = 0; stage < 5; stage++) {
        for (int i = 0; i < arch->depth[stage]; i++)
            x = add_conv(n, x, stage < 3 ? 64 << stage : 512, arch->norms, &at);
        x = net_max_pool(n, x, (ls_pool2d_params){.kernel = {2, 2}});
        at++;
    }
    net_leave(n);
    x = net_pool_features(n, x, 7);
    x = net_relu(n, net_linear(n, x, "classifier.0", 4096));
    x = net_dropout(n, x, 0.5);
    x = net_relu(n, net_linear(n, x, "classifier.3", 4096));
    x = net_dropout(n, x, 0.5);
    (void)net_linear(n, x, "classifier.6", classes);
}

const net_family vgg_family = NET_FAMILY(archs, build);
