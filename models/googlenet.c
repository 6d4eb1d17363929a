/* SPDX-License-Identifier: Apache-2.0 */
/* googlenet.c - GoogLeNet and Inception v3, without auxiliary classifiers. */
#include "models/net.h"

/* --- common --- */

/* Convolution, batch norm and ReLU. */
static int add_conv(network *n, int x, const char *name, int out, net_conv how)
{
    net_enter(n, "%s", name);
    x = net_conv2d(n, x, "conv", out, how);
    x = net_batch_norm(n, x, "bn", true);
    net_leave(n);
    return x;
}

/* Convolutions one after the other; ends with an entry of 0 channels. */
typedef struct conv_step {
    const char *name;
    int out;
    net_conv how;
} conv_step;

static int add_convs(network *n, int x, const conv_step *steps)
{
    for (; steps->out > 0; steps++)
        x = add_conv(n, x, steps->name, steps->out, steps->how);
    return x;
}

static int halve(network *n, int x, int kernel, int ceil_mode)
{
    return net_max_pool(
        n, x,
        (ls_pool2d_params){.kernel = {kernel, kernel}, .stride = {2, 2}, .ceil_mode = ceil_mode});
}

static void start(network *n, double deviation)
{
    n->conv = n->linear = (net_init){.weight = {.kind = LS_INIT_NORMAL, .std = deviation}};
    n->norm.eps = 0.001;
}

/* --- GoogLeNet --- */

static const char *const googlenet_archs[] = {"googlenet"};

typedef struct inception {
    const char *name;
    int one, three_in, three, five_in, five, pool;
} inception;

static int add_inception(network *n, int x, const inception *b)
{
    const ls_pool2d_params pool = {
        .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .ceil_mode = 1};
    int branch[4];

    net_enter(n, "%s", b->name);
    branch[0] = add_conv(n, x, "branch1", b->one, (net_conv){.kernel = 1});
    branch[1] = add_conv(n, x, "branch2.0", b->three_in, (net_conv){.kernel = 1});
    branch[1] = add_conv(n, branch[1], "branch2.1", b->three, (net_conv){.kernel = 3});
    branch[2] = add_conv(n, x, "branch3.0", b->five_in, (net_conv){.kernel = 1});
    branch[2] = add_conv(n, branch[2], "branch3.1", b->five, (net_conv){.kernel = 3});
    branch[3] =
        add_conv(n, net_max_pool(n, x, pool), "branch4.1", b->pool, (net_conv){.kernel = 1});
    net_leave(n);
    return net_concat(n, 4, branch);
}

static void build_googlenet(network *n, const void *entry, int classes)
{
    static const inception blocks[] = {
        {"inception3a", 64, 96, 128, 16, 32, 32},     {"inception3b", 128, 128, 192, 32, 96, 64},
        {"inception4a", 192, 96, 208, 16, 48, 64},    {"inception4b", 160, 112, 224, 24, 64, 64},
        {"inception4c", 128, 128, 256, 24, 64, 64},   {"inception4d", 112, 144, 288, 32, 64, 64},
        {"inception4e", 256, 160, 320, 32, 128, 128}, {"inception5a", 256, 160, 320, 32, 128, 128},
        {"inception5b", 384, 192, 384, 48, 128, 128}};
    int x;

    (void)entry;
    start(n, 0.01);
    x = add_conv(n, 0, "conv1", 64, (net_conv){.kernel = 7, .stride = 2});
    x = halve(n, x, 3, 1);
    x = add_conv(n, x, "conv2", 64, (net_conv){.kernel = 1});
    x = add_conv(n, x, "conv3", 192, (net_conv){.kernel = 3});
    x = halve(n, x, 3, 1);
    for (int i = 0; i < 9; i++) {
        x = add_inception(n, x, &blocks[i]);
        if (i == 1 || i == 6)
            x = halve(n, x, i == 1 ? 3 : 2, 1);
    }
    x = net_dropout(n, net_pool_features(n, x, 1), 0.2);
    (void)net_linear(n, x, "fc", classes);
}

const net_family googlenet_family = NET_FAMILY(googlenet_archs, build_googlenet);

/* --- Inception v3 --- */

static const char *const inception_archs[] = {"inception_v3"};

#define VALID_2                                                                                    \
    {                                                                                              \
        .kernel = 3, .stride = 2, .pad = NET_NO_PADDING                                            \
    }

static int add_average(network *n, int x, int out)
{
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}};

    return add_conv(n, net_avg_pool(n, x, pool), "branch_pool", out, (net_conv){.kernel = 1});
}

static int add_a(network *n, int x, int pooled)
{
    static const conv_step five[] = {
        {"branch5x5_1", 48, {.kernel = 1}}, {"branch5x5_2", 64, {.kernel = 5}}, {.name = NULL}};
    static const conv_step three[] = {{"branch3x3dbl_1", 64, {.kernel = 1}},
                                      {"branch3x3dbl_2", 96, {.kernel = 3}},
                                      {"branch3x3dbl_3", 96, {.kernel = 3}},
                                      {.name = NULL}};
    int branch[4];

    branch[0] = add_conv(n, x, "branch1x1", 64, (net_conv){.kernel = 1});
    branch[1] = add_convs(n, x, five);
    branch[2] = add_convs(n, x, three);
    branch[3] = add_average(n, x, pooled);
    return net_concat(n, 4, branch);
}

static int add_b(network *n, int x)
{
    static const conv_step three[] = {{"branch3x3", 384, VALID_2}, {.name = NULL}};
    static const conv_step twice[] = {{"branch3x3dbl_1", 64, {.kernel = 1}},
                                      {"branch3x3dbl_2", 96, {.kernel = 3}},
                                      {"branch3x3dbl_3", 96, VALID_2},
                                      {.name = NULL}};
    int branch[3];

    branch[0] = add_convs(n, x, three);
    branch[1] = add_convs(n, x, twice);
    branch[2] = halve(n, x, 3, 0);
    return net_concat(n, 3, branch);
}

static int add_c(network *n, int x, int width)
{
    const conv_step seven[] = {{"branch7x7_1", width, {.kernel = 1}},
                               {"branch7x7_2", width, {.kernel = 1, .width = 7}},
                               {"branch7x7_3", 192, {.kernel = 7, .width = 1}},
                               {.name = NULL}};
    const conv_step twice[] = {{"branch7x7dbl_1", width, {.kernel = 1}},
                               {"branch7x7dbl_2", width, {.kernel = 7, .width = 1}},
                               {"branch7x7dbl_3", width, {.kernel = 1, .width = 7}},
                               {"branch7x7dbl_4", width, {.kernel = 7, .width = 1}},
                               {"branch7x7dbl_5", 192, {.kernel = 1, .width = 7}},
                               {.name = NULL}};
    int branch[4];

    branch[0] = add_conv(n, x, "branch1x1", 192, (net_conv){.kernel = 1});
    branch[1] = add_convs(n, x, seven);
    branch[2] = add_convs(n, x, twice);
    branch[3] = add_average(n, x, 192);
    return net_concat(n, 4, branch);
}

static int add_d(network *n, int x)
{
    static const conv_step three[] = {
        {"branch3x3_1", 192, {.kernel = 1}}, {"branch3x3_2", 320, VALID_2}, {.name = NULL}};
    static const conv_step seven[] = {{"branch7x7x3_1", 192, {.kernel = 1}},
                                      {"branch7x7x3_2", 192, {.kernel = 1, .width = 7}},
                                      {"branch7x7x3_3", 192, {.kernel = 7, .width = 1}},
                                      {"branch7x7x3_4", 192, VALID_2},
                                      {.name = NULL}};
    int branch[3];

    branch[0] = add_convs(n, x, three);
    branch[1] = add_convs(n, x, seven);
    branch[2] = halve(n, x, 3, 0);
    return net_concat(n, 3, branch);
}

/* A 1x3 and a 3x1 convolution of the same input, side by side. */
static int add_cross(network *n, int x, const char *wide, const char *high)
{
    int both[2];

    both[0] = add_conv(n, x, wide, 384, (net_conv){.kernel = 1, .width = 3});
    both[1] = add_conv(n, x, high, 384, (net_conv){.kernel = 3, .width = 1});
    return net_concat(n, 2, both);
}

static int add_e(network *n, int x)
{
    static const conv_step twice[] = {{"branch3x3dbl_1", 448, {.kernel = 1}},
                                      {"branch3x3dbl_2", 384, {.kernel = 3}},
                                      {.name = NULL}};
    int branch[4];

    branch[0] = add_conv(n, x, "branch1x1", 320, (net_conv){.kernel = 1});
    branch[1] = add_conv(n, x, "branch3x3_1", 384, (net_conv){.kernel = 1});
    branch[1] = add_cross(n, branch[1], "branch3x3_2a", "branch3x3_2b");
    branch[2] = add_convs(n, x, twice);
    branch[2] = add_cross(n, branch[2], "branch3x3dbl_3a", "branch3x3dbl_3b");
    branch[3] = add_average(n, x, 192);
    return net_concat(n, 4, branch);
}

/* Kinds a to e of blocks; the number is what their function takes. */
static int add_mixed(network *n, int x, const char *name, char kind, int number)
{
    net_enter(n, "Mixed_%s", name);
    if (kind == 'a')
        x = add_a(n, x, number);
    else if (kind == 'b')
        x = add_b(n, x);
    else if (kind == 'c')
        x = add_c(n, x, number);
    else if (kind == 'd')
        x = add_d(n, x);
    else
        x = add_e(n, x);
    net_leave(n);
    return x;
}

static void build_inception(network *n, const void *entry, int classes)
{
    static const conv_step first[] = {{"Conv2d_1a_3x3", 32, VALID_2},
                                      {"Conv2d_2a_3x3", 32, {.kernel = 3, .pad = NET_NO_PADDING}},
                                      {"Conv2d_2b_3x3", 64, {.kernel = 3}},
                                      {.name = NULL}};
    static const conv_step second[] = {{"Conv2d_3b_1x1", 80, {.kernel = 1}},
                                       {"Conv2d_4a_3x3", 192, {.kernel = 3, .pad = NET_NO_PADDING}},
                                       {.name = NULL}};
    static const struct {
        const char *name;
        char kind;
        int number;
    } mixed[] = {{"5b", 'a', 32},  {"5c", 'a', 64},  {"5d", 'a', 64},  {"6a", 'b', 0},
                 {"6b", 'c', 128}, {"6c", 'c', 160}, {"6d", 'c', 160}, {"6e", 'c', 192},
                 {"7a", 'd', 0},   {"7b", 'e', 0},   {"7c", 'e', 0}};
    int x;

    (void)entry;
    start(n, 0.1);
    x = halve(n, add_convs(n, 0, first), 3, 0);
    x = halve(n, add_convs(n, x, second), 3, 0);
    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++)
        x = add_mixed(n, x, mixed[i].name, mixed[i].kind, mixed[i].number);
    x = net_dropout(n, net_pool_features(n, x, 1), 0.5);
    (void)net_linear(n, x, "fc", classes);
}

const net_family inception_family = NET_FAMILY(inception_archs, build_inception);
