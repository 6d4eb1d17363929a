/* SPDX-License-Identifier: Apache-2.0 */
/* shufflenet.c - ShuffleNet v2. */
#include "models/net.h"

typedef struct shufflenet {
    const char *name;
    int channels[4]; /* of the three stages and of the last convolution */
} shufflenet;

static const shufflenet archs[] = {
    {"shufflenet_v2_x0_5", {48, 96, 192, 1024}},
    {"shufflenet_v2_x1_0", {116, 232, 464, 1024}},
    {"shufflenet_v2_x1_5", {176, 352, 704, 1024}},
    {"shufflenet_v2_x2_0", {244, 488, 976, 2048}},
};

/* A depthwise convolution, then a 1x1 one with ReLU, named from `at` on. */
static int add_depthwise(network *n, int x, const char *const at[4], int out, int stride)
{
    const net_conv depthwise = {.kernel = 3, .stride = stride, .groups = n->channels[x]};

    x = net_conv2d(n, x, at[0], n->channels[x], depthwise);
    x = net_batch_norm(n, x, at[1], false);
    x = net_conv2d(n, x, at[2], out, (net_conv){.kernel = 1});
    return net_batch_norm(n, x, at[3], true);
}

static int add_block(network *n, int x, int out, int stride)
{
    static const char *const first[] = {"0", "1", "2", "3"};
    static const char *const later[] = {"3", "4", "5", "6"};
    const int half = out / 2;
    int branch[2] = {x, x};

    if (stride > 1) {
        net_enter(n, "branch1");
        branch[0] = add_depthwise(n, x, first, half, stride);
        net_leave(n);
    } else {
        branch[0] = net_slice(n, x, 0, half);
        branch[1] = net_slice(n, x, half, half);
    }
    net_enter(n, "branch2");
    branch[1] = net_conv2d(n, branch[1], "0", half, (net_conv){.kernel = 1});
    branch[1] = net_batch_norm(n, branch[1], "1", true);
    branch[1] = add_depthwise(n, branch[1], later, half, stride);
    net_leave(n);
    return net_shuffle(n, net_concat(n, 2, branch), 2);
}

static void build(network *n, const void *entry, int classes)
{
    static const int repeats[] = {4, 8, 4};
    const shufflenet *arch = entry;
    int x = net_conv_norm(n, 0, "conv1", 24, (net_conv){.kernel = 3, .stride = 2}, NET_RELU);

    x = net_max_pool(n, x,
                     (ls_pool2d_params){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    for (int stage = 0; stage < 3; stage++) {
        for (int i = 0; i < repeats[stage]; i++) {
            net_enter(n, "stage%d.%d", stage + 2, i);
            x = add_block(n, x, arch->channels[stage], i == 0 ? 2 : 1);
            net_leave(n);
        }
    }
    x = net_conv_norm(n, x, "conv5", arch->channels[3], (net_conv){.kernel = 1}, NET_RELU);
    (void)net_linear(n, net_pool_features(n, x, 1), "fc", classes);
}

const net_family shufflenet_family = NET_FAMILY(archs, build);
