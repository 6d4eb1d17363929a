/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - the layers of transformers and ConvNeXt: layer norm and self-attention; and group
 * norm.
 *
 * Initial values are those of torch.nn.MultiheadAttention: in_proj_weight xavier_uniform, whose
 * bound is sqrt(6 / (fan_in + fan_out)), out_proj.weight as a linear layer, both biases 0.
 */
#include "nn/model.h"

#include "autograd/autograd.h"

#include <math.h>

/* --- layer norm --- */

static ls_tensor *layer_norm_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    ls_tensor *const weight = layer->tensors[0];
    ls_tensor *const bias = layer->tensors[1];
    const double eps = layer->layer_norm.eps;

    if (!layer->layer_norm.channels_first)
        return ls_layer_norm(tape, x, weight, bias, eps);
    if (x != NULL && ls_tensor_n_dims(x) != 4)
        return autograd_fail(tape, ls_fail(LS_EINVAL,
                                           "the input has %d dimensions; it must be (N, C, H, W)",
                                           ls_tensor_n_dims(x)));
    x = ls_permute(tape, x, (int[]){0, 2, 3, 1});
    return ls_permute(tape, ls_layer_norm(tape, x, weight, bias, eps), (int[]){0, 3, 1, 2});
}

ls_layer *ls_nn_layer_norm(ls_model *model, const char *name, int width,
                           const ls_nn_layer_norm_options *opt)
{
    const layer_slot slots[] = {{"weight", false, LS_F32, 1, {width}},
                                {"bias", false, LS_F32, 1, {width}}};
    const ls_nn_layer_norm_options o = opt == NULL ? (ls_nn_layer_norm_options){.eps = 0} : *opt;
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (width < 1)
        return model_fail(model, ls_fail(LS_EINVAL, "layer %s: width is %d; it must be at least 1",
                                         name == NULL ? "NULL" : name, width));
    layer = model_add(model, name, slots, o.no_affine ? 0 : o.no_bias ? 1 : 2);
    if (layer == NULL)
        return NULL;
    layer->forward = layer_norm_forward;
    layer->layer_norm = o;
    if (!o.no_affine)
        model_fill_constant(model, layer->tensors[0], 1);
    return layer;
}

static ls_tensor *group_norm_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_group_norm(tape, x, layer->group_norm.groups, layer->tensors[0], layer->tensors[1],
                         layer->group_norm.eps);
}

ls_layer *ls_nn_group_norm(ls_model *model, const char *name, int groups, int channels, double eps)
{
    const layer_slot slots[] = {{"weight", false, LS_F32, 1, {channels}},
                                {"bias", false, LS_F32, 1, {channels}}};
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (groups < 1 || channels < 1 || channels % groups != 0)
        return model_fail(model,
                          ls_fail(LS_EINVAL, "layer %s: %d channels cannot be split into %d groups",
                                  name == NULL ? "NULL" : name, channels, groups));
    layer = model_add(model, name, slots, 2);
    if (layer == NULL)
        return NULL;
    layer->forward = group_norm_forward;
    layer->group_norm.groups = groups;
    layer->group_norm.eps = eps;
    model_fill_constant(model, layer->tensors[0], 1);
    return layer;
}

/* --- self-attention --- */

enum { IN_WEIGHT, IN_BIAS, OUT_WEIGHT, OUT_BIAS };

/* softmax(Q K^T / sqrt(d)) V for each head of d features (Vaswani et al., "Attention Is All You
 * Need", 2017). heads: (3,N,heads,T,d) with Q, K, V along the first dimension. */
static ls_tensor *attend(ls_tape *tape, ls_tensor *heads)
{
    ls_tensor *parts[3];

    ls_split(tape, heads, 0, (int64_t[]){1, 1, 1}, 3, parts);
    return ls_attention(tape, parts[0], parts[1], parts[2], NULL);
}

static ls_tensor *attention_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    ls_tensor *all = ls_linear(tape, x, layer->tensors[IN_WEIGHT], layer->tensors[IN_BIAS]);
    int64_t dims[5];

    if (all == NULL)
        return NULL;
    if (ls_tensor_n_dims(x) != 3)
        return autograd_fail(tape,
                             ls_fail(LS_EINVAL, "the input has %d dimensions; it must be (N, T, D)",
                                     ls_tensor_n_dims(x)));
    dims[0] = ls_tensor_dims(x)[0];
    dims[1] = ls_tensor_dims(x)[1];
    dims[2] = 3;
    dims[3] = layer->heads;
    dims[4] = ls_tensor_dims(x)[2] / layer->heads;
    all = ls_permute(tape, ls_reshape(tape, all, 5, dims), (int[]){2, 0, 3, 1, 4});
    if (all == NULL)
        return NULL;
    all = ls_permute(tape, attend(tape, all), (int[]){1, 3, 0, 2, 4});
    dims[2] = ls_tensor_dims(x)[2];
    return ls_linear(tape, ls_reshape(tape, all, 3, dims), layer->tensors[OUT_WEIGHT],
                     layer->tensors[OUT_BIAS]);
}

ls_layer *ls_nn_self_attention(ls_model *model, const char *name, int width, int heads)
{
    const layer_slot slots[] = {{"in_proj_weight", false, LS_F32, 2, {3 * (int64_t)width, width}},
                                {"in_proj_bias", false, LS_F32, 1, {3 * (int64_t)width}},
                                {"out_proj.weight", false, LS_F32, 2, {width, width}},
                                {"out_proj.bias", false, LS_F32, 1, {width}}};
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (width < 1 || heads < 1 || width % heads != 0)
        return model_fail(model,
                          ls_fail(LS_EINVAL, "layer %s: %d features cannot be split into %d heads",
                                  name == NULL ? "NULL" : name, width, heads));
    layer = model_add(model, name, slots, (int)LS_COUNT_OF(slots));
    if (layer == NULL)
        return NULL;
    layer->forward = attention_forward;
    layer->heads = heads;
    model_fill_uniform(model, layer->tensors[IN_WEIGHT], sqrt(6 / (4 * (double)width)));
    model_fill_uniform(model, layer->tensors[OUT_WEIGHT], 1 / sqrt((double)width));
    return layer;
}
