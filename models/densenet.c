/* SPDX-License-Identifier: Apache-2.0 */
/* densenet.c - DenseNet-BC. */
#include "models/net.h"

typedef struct densenet {
    const char *name;
    int growth;   /* channels that each layer adds */
    int depth[4]; /* layers of each block */
    int stem;     /* channels */
} densenet;

static const densenet archs[] = {
    {"densenet121", 32, {6, 12, 24, 16}, 64},
    {"densenet161", 48, {6, 12, 36, 24}, 96},
    {"densenet169", 32, {6, 12, 32, 32}, 64},
    {"densenet201", 32, {6, 12, 48, 32}, 64},
};

static int add_layer(network *n, int x, int growth)
{
    int added = net_batch_norm(n, x, "norm1", true);

    added = net_conv2d(n, added, "conv1", 4 * growth, (net_conv){.kernel = 1});
    added = net_batch_norm(n, added, "norm2", true);
    added = net_conv2d(n, added, "conv2", growth, (net_conv){.kernel = 3});
    return net_concat(n, 2, (int[]){x, added});
}

/* Half the channels, half the height and width. */
static int add_transition(network *n, int x)
{
    x = net_batch_norm(n, x, "norm", true);
    x = net_conv2d(n, x, "conv", n->channels[x] / 2, (net_conv){.kernel = 1});
    return net_avg_pool(n, x, (ls_pool2d_params){.kernel = {2, 2}});
}

static void build(network *n, const void *entry, int classes)
{
    const densenet *arch = entry;
    int x;

    n->conv.weight.kind = LS_INIT_KAIMING_NORMAL;
    n->linear.zero_bias = true;
    net_enter(n, "features");
    x = net_conv2d(n, 0, "conv0", arch->stem, (net_conv){.kernel = 7, .stride = 2});
    x = net_batch_norm(n, x, "norm0", true);
    x = net_max_pool(n, x,
                     (ls_pool2d_params){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    for (int block = 1; block <= 4; block++) {
        for (int i = 1; i <= arch->depth[block - 1]; i++) {
            net_enter(n, "denseblock%d.denselayer%d", block, i);
            x = add_layer(n, x, arch->growth);
            net_leave(n);
        }
        if (block < 4) {
            net_enter(n, "transition%d", block);
            x = add_transition(n, x);
            net_leave(n);
        }
    }
    x = net_batch_norm(n, x, "norm5", true);
    net_leave(n);
    (void)net_linear(n, net_pool_features(n, x, 1), "classifier", classes);
}

const net_family densenet_family = NET_FAMILY(archs, build);
