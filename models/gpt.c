/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt.c - GPT-2: its parameters and forward, for examples/gpt.c. As in the files of Hugging Face,
 * matrices are (in, out), and the logits use the embedding's matrix.
 */
#include "models/gpt.h"

#include <math.h>
#include <stdio.h>

enum { NORM_1 = 0, ATTENTION = 2, ATTENTION_OUT = 4, NORM_2 = 6, MLP = 8, MLP_OUT = 10 };

/* The tensors of a block: sizes in multiples of the width, 0 rows for a vector. */
static const struct {
    const char *name;
    int rows, columns;
} parts[GPT_BLOCK_TENSORS] = {
    {"ln_1.weight", 0, 1},      {"ln_1.bias", 0, 1},          {"attn.c_attn.weight", 1, 3},
    {"attn.c_attn.bias", 0, 3}, {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 0, 1},
    {"ln_2.weight", 0, 1},      {"ln_2.bias", 0, 1},          {"mlp.c_fc.weight", 1, 4},
    {"mlp.c_fc.bias", 0, 4},    {"mlp.c_proj.weight", 4, 1},  {"mlp.c_proj.bias", 0, 1},
};

static ls_tensor *add(ls_model *model, const char *prefix, const char *name, int64_t rows,
                      int64_t columns)
{
    const int64_t dims[] = {rows, columns};
    char full[128];

    (void)snprintf(full, sizeof(full), "%s%s", prefix, name);
    return ls_nn_parameter(model, full, rows > 0 ? 2 : 1, rows > 0 ? dims : dims + 1);
}

void gpt_create(ls_model *model, const gpt_config *c, gpt *out)
{
    const double small = 0.02 / sqrt(2.0 * (double)c->layers); /* of parts that add to x */
    char prefix[64];

    out->config = *c;
    out->tokens = add(model, c->prefix, "wte.weight", c->vocab, c->width);
    out->positions = add(model, c->prefix, "wpe.weight", c->context, c->width);
    for (int i = 0; i < c->layers; i++) {
        (void)snprintf(prefix, sizeof(prefix), "%.40sh.%d.", c->prefix, i);
        for (int j = 0; j < GPT_BLOCK_TENSORS; j++)
            out->blocks[i][j] = add(model, prefix, parts[j].name, parts[j].rows * c->width,
                                    parts[j].columns * c->width);
    }
    out->norm[0] = add(model, c->prefix, "ln_f.weight", 0, c->width);
    out->norm[1] = add(model, c->prefix, "ln_f.bias", 0, c->width);
    ls_model_init(model, "*.weight", &(ls_nn_init_options){LS_INIT_NORMAL, .std = 0.02});
    ls_model_init(model, "*.c_proj.weight", &(ls_nn_init_options){LS_INIT_NORMAL, .std = small});
    ls_model_init(model, "*ln_?.weight", &(ls_nn_init_options){LS_INIT_CONSTANT, .value = 1});
}

static ls_tensor *norm(ls_tape *tape, ls_tensor *const *part, ls_tensor *x)
{
    return ls_layer_norm(tape, x, part[0], part[1], 0);
}

static ls_tensor *linear(ls_tape *tape, ls_tensor *const *part, ls_tensor *x)
{
    return ls_linear(tape, x, ls_transpose(tape, part[0], 0, 1), part[1]);
}

/* Queries, keys and values (N,T,3 width) to (N,T,width): no position reads a later one. */
static ls_tensor *attend(const gpt_config *c, ls_tape *tape, ls_tensor *x)
{
    const ls_attention_params causal = {.causal = 1, .dropout = c->dropout};
    const int64_t n = ls_tensor_dim(x, 0), t = ls_tensor_dim(x, 1), d = c->width / c->heads;
    ls_tensor *qkv[3];

    ls_split(tape, x, 2, (int64_t[]){c->width, c->width, c->width}, 3, qkv);
    for (int i = 0; i < 3; i++) {
        qkv[i] = ls_reshape(tape, qkv[i], 4, (int64_t[]){n, t, c->heads, d});
        qkv[i] = ls_transpose(tape, qkv[i], 1, 2);
    }
    x = ls_attention(tape, qkv[0], qkv[1], qkv[2], &causal);
    return ls_reshape(tape, ls_transpose(tape, x, 1, 2), 3, (int64_t[]){n, t, c->width});
}

/* The last hidden states (N,T,width). */
static ls_tensor *hidden(const gpt *net, ls_tape *tape, ls_tensor *ids)
{
    const gpt_config *c = &net->config;
    ls_tensor *x = ls_embedding(tape, net->tokens, ids, -1), *y;

    x = ls_add(tape, x, ls_slice(tape, net->positions, 0, 0, ls_tensor_dim(ids, 1)));
    x = ls_dropout(tape, x, c->dropout);
    for (int i = 0; i < c->layers; i++) {
        ls_tensor *const *block = net->blocks[i];

        y = linear(tape, block + ATTENTION, norm(tape, block + NORM_1, x));
        y = linear(tape, block + ATTENTION_OUT, attend(c, tape, y));
        x = ls_add(tape, x, ls_dropout(tape, y, c->dropout));
        y = linear(tape, block + MLP, norm(tape, block + NORM_2, x));
        y = linear(tape, block + MLP_OUT, ls_activate(tape, y, LS_ACT_GELU_TANH));
        x = ls_add(tape, x, ls_dropout(tape, y, c->dropout));
    }
    return norm(tape, net->norm, x);
}

ls_tensor *gpt_forward(const gpt *net, ls_tape *tape, ls_tensor *ids)
{
    ls_tensor *x = ls_linear(tape, hidden(net, tape, ids), net->tokens, NULL);

    return ls_reshape(tape, x, 2, (int64_t[]){-1, net->config.vocab});
}

ls_tensor *gpt_next(void *net, ls_tape *tape, ls_tensor *ids)
{
    const gpt *g = net;
    ls_tensor *last = ls_slice(tape, hidden(g, tape, ids), 1, ls_tensor_dim(ids, 1) - 1, 1);

    return ls_cast(tape, ls_linear(tape, last, g->tokens, NULL), LS_F32);
}
