/* SPDX-License-Identifier: Apache-2.0 */
/* alexnet.c - AlexNet, in the variant with one column of layers. */
#include "models/net.h"

static const char *const archs[] = {"alexnet"};

static void build(network *n, const void *entry, int classes)
{
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {2, 2}};
    int x;

    (void)entry;
    net_enter(n, "features");
    x = net_conv2d(n, 0, "0", 64, (net_conv){.kernel = 11, .stride = 4, .pad = 2, .bias = 1});
    x = net_max_pool(n, net_relu(n, x), pool);
    x = net_conv2d(n, x, "3", 192, (net_conv){.kernel = 5, .bias = 1});
    x = net_max_pool(n, net_relu(n, x), pool);
    x = net_relu(n, net_conv2d(n, x, "6", 384, (net_conv){.kernel = 3, .bias = 1}));
    x = net_relu(n, net_conv2d(n, x, "8", 256, (net_conv){.kernel = 3, .bias = 1}));
    x = net_conv2d(n, x, "10", 256, (net_conv){.kernel = 3, .bias = 1});
    x = net_max_pool(n, net_relu(n, x), pool);
    net_leave(n);
    x = net_dropout(n, net_pool_features(n, x, 6), 0.5);
    x = net_relu(n, net_linear(n, x, "classifier.1", 4096));
    x = net_dropout(n, x, 0.5);
    x = net_relu(n, net_linear(n, x, "classifier.4", 4096));
    (void)net_linear(n, x, "classifier.6", classes);
}

const net_family alexnet_family = NET_FAMILY(archs, build);
