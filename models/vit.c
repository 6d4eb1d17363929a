/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vit.c - vision transformers. The images' size decides how many positions there are; rows and
 * columns that do not fill a patch are left out.
 */
#include "models/net.h"

#include <math.h>

typedef struct vit {
    const char *name;
    int patch, depth, heads, width, hidden;
} vit;

static const vit archs[] = {
    {"vit_b_16", 16, 12, 12, 768, 3072},  {"vit_b_32", 32, 12, 12, 768, 3072},
    {"vit_l_16", 16, 24, 16, 1024, 4096}, {"vit_l_32", 32, 24, 16, 1024, 4096},
    {"vit_h_14", 14, 32, 16, 1280, 5120},
};

static const double eps = 1e-6;

static int add_block(network *n, int x, const vit *arch)
{
    int h = net_layer_norm(n, x, "ln_1", eps, false);

    h = net_self_attention(n, h, "self_attention", arch->heads);
    x = net_add(n, h, x);
    h = net_layer_norm(n, x, "ln_2", eps, false);
    n->linear = (net_init){.weight = {.kind = LS_INIT_XAVIER_UNIFORM}, .bias_deviation = 1e-6};
    h = net_activate(n, net_linear(n, h, "mlp.0", arch->hidden), LS_ACT_GELU);
    return net_add(n, x, net_linear(n, h, "mlp.3", arch->width));
}

static void build(network *n, const void *entry, int classes)
{
    const vit *arch = entry;
    const int columns = n->side / arch->patch;
    const net_conv patches = {
        .kernel = arch->patch, .stride = arch->patch, .pad = NET_NO_PADDING, .bias = 1};
    ls_tensor *class_token = net_parameter(n, "class_token", 3, (int64_t[]){1, 1, arch->width});
    ls_tensor *positions;
    int x;

    n->conv = (net_init){
        .weight = {.kind = LS_INIT_NORMAL, .std = 1 / sqrt(3.0 * arch->patch * arch->patch)},
        .zero_bias = true};
    x = net_conv2d(n, 0, "conv_proj", arch->width, patches);
    positions = net_parameter(n, "encoder.pos_embedding", 3,
                              (int64_t[]){1, columns * columns + 1, arch->width});
    net_init_parameter(n, "encoder.pos_embedding",
                       (ls_nn_init_options){.kind = LS_INIT_NORMAL, .std = 0.02});
    x = net_add_parameter(n, net_tokens(n, x, class_token), positions);
    for (int i = 0; i < arch->depth; i++) {
        net_enter(n, "encoder.layers.encoder_layer_%d", i);
        x = add_block(n, x, arch);
        net_leave(n);
    }
    x = net_layer_norm(n, x, "encoder.ln", eps, false);
    n->linear = (net_init){.weight = {.kind = LS_INIT_CONSTANT}, .zero_bias = true};
    (void)net_linear(n, net_first_token(n, x), "heads.head", classes);
}

const net_family vit_family = NET_FAMILY(archs, build);
