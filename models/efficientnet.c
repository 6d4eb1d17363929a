/* SPDX-License-Identifier: Apache-2.0 */
/* efficientnet.c - EfficientNet B0 to B7 and EfficientNet v2. */
#include "models/net.h"

#include <math.h>
#include <stdio.h>

enum { MAX_STAGES = 7 };

typedef struct stage {
    bool fused; /* one convolution instead of the 1x1 and the depthwise one; no squeeze */
    int factor, kernel, stride, out, repeats;
} stage;

typedef struct plan {
    int stem, last; /* channels; last 0: four times those of the last stage */
    int n_stages;
    stage stages[MAX_STAGES];
} plan;

typedef struct efficientnet {
    const char *name;
    const plan *plan;
    double width, depth, dropout, eps, momentum;
} efficientnet;

static const plan v1 = {32,
                        0,
                        7,
                        {{false, 1, 3, 1, 16, 1},
                         {false, 6, 3, 2, 24, 2},
                         {false, 6, 5, 2, 40, 2},
                         {false, 6, 3, 2, 80, 3},
                         {false, 6, 5, 1, 112, 3},
                         {false, 6, 5, 2, 192, 4},
                         {false, 6, 3, 1, 320, 1}}};
static const plan v2_s = {24,
                          1280,
                          6,
                          {{true, 1, 3, 1, 24, 2},
                           {true, 4, 3, 2, 48, 4},
                           {true, 4, 3, 2, 64, 4},
                           {false, 4, 3, 2, 128, 6},
                           {false, 6, 3, 1, 160, 9},
                           {false, 6, 3, 2, 256, 15}}};
static const plan v2_m = {24,
                          1280,
                          7,
                          {{true, 1, 3, 1, 24, 3},
                           {true, 4, 3, 2, 48, 5},
                           {true, 4, 3, 2, 80, 5},
                           {false, 4, 3, 2, 160, 7},
                           {false, 6, 3, 1, 176, 14},
                           {false, 6, 3, 2, 304, 18},
                           {false, 6, 3, 1, 512, 5}}};
static const plan v2_l = {32,
                          1280,
                          7,
                          {{true, 1, 3, 1, 32, 4},
                           {true, 4, 3, 2, 64, 7},
                           {true, 4, 3, 2, 96, 7},
                           {false, 4, 3, 2, 192, 10},
                           {false, 6, 3, 1, 224, 19},
                           {false, 6, 3, 2, 384, 25},
                           {false, 6, 3, 1, 640, 7}}};

static const efficientnet archs[] = {
    {"efficientnet_b0", &v1, 1.0, 1.0, 0.2, 1e-5, 0.1},
    {"efficientnet_b1", &v1, 1.0, 1.1, 0.2, 1e-5, 0.1},
    {"efficientnet_b2", &v1, 1.1, 1.2, 0.3, 1e-5, 0.1},
    {"efficientnet_b3", &v1, 1.2, 1.4, 0.3, 1e-5, 0.1},
    {"efficientnet_b4", &v1, 1.4, 1.8, 0.4, 1e-5, 0.1},
    {"efficientnet_b5", &v1, 1.6, 2.2, 0.4, 1e-3, 0.01},
    {"efficientnet_b6", &v1, 1.8, 2.6, 0.5, 1e-3, 0.01},
    {"efficientnet_b7", &v1, 2.0, 3.1, 0.5, 1e-3, 0.01},
    {"efficientnet_v2_s", &v2_s, 1, 1, 0.2, 1e-3, 0.1},
    {"efficientnet_v2_m", &v2_m, 1, 1, 0.3, 1e-3, 0.1},
    {"efficientnet_v2_l", &v2_l, 1, 1, 0.4, 1e-3, 0.1},
};

static int add_separate(network *n, int x, const stage *s, int width, int stride)
{
    const net_conv depthwise = {.kernel = s->kernel, .stride = stride, .groups = width};
    const int squeezed = n->channels[x] / 4;
    char name[16];
    int at = 0;

    if (width != n->channels[x]) {
        x = net_conv_norm(n, x, "0", width, (net_conv){.kernel = 1}, LS_ACT_SILU);
        at++;
    }
    (void)snprintf(name, sizeof(name), "%d", at++);
    x = net_conv_norm(n, x, name, width, depthwise, LS_ACT_SILU);
    (void)snprintf(name, sizeof(name), "%d", at);
    return net_squeeze_excite(n, x, name, squeezed, LS_ACT_SILU, LS_ACT_SIGMOID);
}

static int add_block(network *n, int x, const stage *s, int out, int stride, double rate)
{
    const int width = net_round_channels(n->channels[x] * s->factor);
    const net_conv fused = {.kernel = s->kernel, .stride = stride};
    const bool expands = width != n->channels[x];
    int h;

    net_enter(n, "block");
    if (s->fused)
        h = net_conv_norm(n, x, "0", expands ? width : out, fused, LS_ACT_SILU);
    else
        h = add_separate(n, x, s, width, stride);
    if (!s->fused || expands)
        h = net_conv_norm(n, h,
                          s->fused  ? "1"
                          : expands ? "3"
                                    : "2",
                          out, (net_conv){.kernel = 1}, NET_NONE);
    net_leave(n);
    if (stride != 1 || n->channels[x] != out)
        return h;
    return net_add(n, rate > 0 ? net_stochastic_depth(n, h, rate) : h, x);
}

static int repeats_of(const efficientnet *arch, int i)
{
    return (int)ceil(arch->plan->stages[i].repeats * arch->depth);
}

static int add_stages(network *n, int x, const efficientnet *arch)
{
    int total = 0;
    int done = 0;

    for (int i = 0; i < arch->plan->n_stages; i++)
        total += repeats_of(arch, i);
    for (int i = 0; i < arch->plan->n_stages; i++) {
        const stage *s = &arch->plan->stages[i];

        for (int k = 0; k < repeats_of(arch, i); k++) {
            net_enter(n, "features.%d.%d", i + 1, k);
            x = add_block(n, x, s, net_round_channels(s->out * arch->width), k == 0 ? s->stride : 1,
                          0.2 * done++ / total);
            net_leave(n);
        }
    }
    return x;
}

static void build(network *n, const void *entry, int classes)
{
    const efficientnet *arch = entry;
    const plan *p = arch->plan;
    char name[32];
    int x;

    n->conv =
        (net_init){.weight = {.kind = LS_INIT_KAIMING_NORMAL, .fan_out = 1}, .zero_bias = true};
    n->linear = (net_init){
        .weight = {.kind = LS_INIT_UNIFORM, .low = -1 / sqrt(classes), .high = 1 / sqrt(classes)},
        .zero_bias = true};
    n->norm = (ls_nn_batch_norm_options){.eps = arch->eps, .momentum = arch->momentum};
    x = net_conv_norm(n, 0, "features.0", net_round_channels(p->stem * arch->width),
                      (net_conv){.kernel = 3, .stride = 2}, LS_ACT_SILU);
    x = add_stages(n, x, arch);
    (void)snprintf(name, sizeof(name), "features.%d", p->n_stages + 1);
    x = net_conv_norm(n, x, name, p->last > 0 ? p->last : 4 * n->channels[x],
                      (net_conv){.kernel = 1}, LS_ACT_SILU);
    x = net_dropout(n, net_pool_features(n, x, 1), arch->dropout);
    (void)net_linear(n, x, "classifier.1", classes);
}

const net_family efficientnet_family = NET_FAMILY(archs, build);
