/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv.c - layers of convolutions of sequences and images: their tensors, initial values and
 * forward.
 *
 * Initial values are torch.nn's kaiming_uniform(a = sqrt(5)), whose bound sqrt(6 / ((1 + 5)
 * fan_in)) is 1 / sqrt(fan_in), and the bias within the same bound. fan_in is as in torch.nn.init
 * the second dimension of the weight times the kernel's positions.
 */
#include "nn/model.h"

#include <math.h>

/* What the layers have in common: those of a sequence are those of an image's width. */
typedef struct conv_options {
    int n_axes;
    int kernel[2];
    int stride[2];
    int padding[2];
    int output_padding[2];
    int dilation[2];
    int groups;
    int no_bias;
    ls_nn_init init;
    bool transposed; /* the weight is (in, out/groups, ...), else (out, in/groups, ...) */
} conv_options;

static ls_status check_sizes(const char *name, int in, int out, const conv_options *o)
{
    if (in >= 1 && out >= 1 && o->kernel[0] >= 1 && o->kernel[1] >= 1)
        return LS_OK;
    if (o->n_axes == 1)
        return ls_fail(LS_EINVAL, "layer %s: %d to %d channels, kernel %d; all must be at least 1",
                       name, in, out, o->kernel[1]);
    return ls_fail(LS_EINVAL,
                   "layer %s: %d to %d channels, kernel (%d, %d); all must be at least 1", name, in,
                   out, o->kernel[0], o->kernel[1]);
}

static ls_status check_options(const char *name, int in, int out, const conv_options *o)
{
    LS_TRY(check_sizes(name, in, out, o));
    if (o->groups < 1 || in % o->groups != 0 || out % o->groups != 0)
        return ls_fail(LS_EINVAL, "layer %s: %d and %d channels cannot be split into %d groups",
                       name, in, out, o->groups);
    if (o->init != LS_INIT_DEFAULT && o->init != LS_INIT_KAIMING_NORMAL)
        return ls_fail(LS_EINVAL, "layer %s: %d is not an ls_nn_init", name, (int)o->init);
    for (int i = 0; i < 2; i++) {
        if (o->stride[i] < 0 || o->padding[i] < 0 || o->dilation[i] < 0 || o->output_padding[i] < 0)
            return ls_fail(LS_EINVAL, "layer %s: stride, padding and dilation must not be negative",
                           name);
    }
    return LS_OK;
}

enum { WEIGHT, BIAS };

static void fill(ls_model *model, const ls_layer *layer, const conv_options *o)
{
    const int64_t *dims = ls_tensor_dims(layer->tensors[WEIGHT]);
    const double positions = (double)o->kernel[0] * o->kernel[1];
    const double bound = 1 / sqrt((double)dims[1] * positions);

    if (o->init == LS_INIT_KAIMING_NORMAL)
        model_fill_normal(model, layer->tensors[WEIGHT], sqrt(2 / ((double)dims[0] * positions)));
    else
        model_fill_uniform(model, layer->tensors[WEIGHT], bound);
    if (!o->no_bias)
        model_fill_uniform(model, layer->tensors[BIAS], bound);
}

/* A layer without parameters of its forward. */
static ls_layer *add_layer(ls_model *model, const char *name, int in, int out, conv_options *o)
{
    layer_slot slots[] = {{"weight", false, LS_F32, 2 + o->n_axes, {o->transposed ? in : out}},
                          {"bias", false, LS_F32, 1, {out}}};
    ls_layer *layer;
    ls_status st;

    if (!model_can_add(model))
        return NULL;
    o->groups = o->groups == 0 ? 1 : o->groups;
    st = check_options(name == NULL ? "NULL" : name, in, out, o);
    if (st != LS_OK)
        return model_fail(model, st);
    slots[WEIGHT].dims[1] = (o->transposed ? out : in) / o->groups;
    for (int i = 2 - o->n_axes; i < 2; i++)
        slots[WEIGHT].dims[i + o->n_axes] = o->kernel[i];
    layer = model_add(model, name, slots, o->no_bias ? 1 : 2);
    if (layer != NULL)
        fill(model, layer, o);
    return layer;
}

static ls_tensor *conv1d_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_conv1d(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS], &layer->conv1d);
}

ls_layer *ls_nn_conv1d(ls_model *model, const char *name, int in, int out,
                       const ls_nn_conv1d_options *opt)
{
    const ls_nn_conv1d_options given = opt == NULL ? (ls_nn_conv1d_options){.kernel = 0} : *opt;
    conv_options o = {.n_axes = 1,
                      .kernel = {1, given.kernel},
                      .stride = {0, given.stride},
                      .padding = {0, given.padding},
                      .dilation = {0, given.dilation},
                      .groups = given.groups,
                      .no_bias = given.no_bias,
                      .init = given.init};
    ls_layer *layer = add_layer(model, name, in, out, &o);

    if (layer == NULL)
        return NULL;
    layer->forward = conv1d_forward;
    layer->conv1d = (ls_conv1d_params){.stride = given.stride,
                                       .padding = given.padding,
                                       .dilation = given.dilation,
                                       .groups = given.groups};
    return layer;
}

static ls_tensor *conv2d_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_conv2d(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS], &layer->conv2d);
}

ls_layer *ls_nn_conv2d(ls_model *model, const char *name, int in, int out,
                       const ls_nn_conv2d_options *opt)
{
    const ls_nn_conv2d_options given =
        opt == NULL ? (ls_nn_conv2d_options){.kernel = {0, 0}} : *opt;
    conv_options o = {.n_axes = 2,
                      .kernel = {given.kernel[0], given.kernel[1]},
                      .stride = {given.stride[0], given.stride[1]},
                      .padding = {given.padding[0], given.padding[1]},
                      .dilation = {given.dilation[0], given.dilation[1]},
                      .groups = given.groups,
                      .no_bias = given.no_bias,
                      .init = given.init};
    ls_layer *layer = add_layer(model, name, in, out, &o);

    if (layer == NULL)
        return NULL;
    layer->forward = conv2d_forward;
    layer->conv2d = (ls_conv2d_params){.stride = {given.stride[0], given.stride[1]},
                                       .padding = {given.padding[0], given.padding[1]},
                                       .dilation = {given.dilation[0], given.dilation[1]},
                                       .groups = given.groups};
    return layer;
}

static ls_tensor *conv_transpose1d_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_conv_transpose1d(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS],
                               &layer->conv_transpose1d);
}

ls_layer *ls_nn_conv_transpose1d(ls_model *model, const char *name, int in, int out,
                                 const ls_nn_conv_transpose1d_options *opt)
{
    const ls_nn_conv_transpose1d_options given =
        opt == NULL ? (ls_nn_conv_transpose1d_options){.kernel = 0} : *opt;
    conv_options o = {.n_axes = 1,
                      .kernel = {1, given.kernel},
                      .stride = {0, given.stride},
                      .padding = {0, given.padding},
                      .output_padding = {0, given.output_padding},
                      .dilation = {0, given.dilation},
                      .groups = given.groups,
                      .no_bias = given.no_bias,
                      .init = given.init,
                      .transposed = true};
    ls_layer *layer = add_layer(model, name, in, out, &o);

    if (layer == NULL)
        return NULL;
    layer->forward = conv_transpose1d_forward;
    layer->conv_transpose1d = (ls_conv_transpose1d_params){.stride = given.stride,
                                                           .padding = given.padding,
                                                           .output_padding = given.output_padding,
                                                           .dilation = given.dilation,
                                                           .groups = given.groups};
    return layer;
}

static ls_tensor *conv_transpose2d_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_conv_transpose2d(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS],
                               &layer->conv_transpose2d);
}

ls_layer *ls_nn_conv_transpose2d(ls_model *model, const char *name, int in, int out,
                                 const ls_nn_conv_transpose2d_options *opt)
{
    const ls_nn_conv_transpose2d_options given =
        opt == NULL ? (ls_nn_conv_transpose2d_options){.kernel = {0, 0}} : *opt;
    conv_options o = {.n_axes = 2,
                      .kernel = {given.kernel[0], given.kernel[1]},
                      .stride = {given.stride[0], given.stride[1]},
                      .padding = {given.padding[0], given.padding[1]},
                      .output_padding = {given.output_padding[0], given.output_padding[1]},
                      .dilation = {given.dilation[0], given.dilation[1]},
                      .groups = given.groups,
                      .no_bias = given.no_bias,
                      .init = given.init,
                      .transposed = true};
    ls_layer *layer = add_layer(model, name, in, out, &o);

    if (layer == NULL)
        return NULL;
    layer->forward = conv_transpose2d_forward;
    layer->conv_transpose2d = (ls_conv_transpose2d_params){
        .stride = {given.stride[0], given.stride[1]},
        .padding = {given.padding[0], given.padding[1]},
        .output_padding = {given.output_padding[0], given.output_padding[1]},
        .dilation = {given.dilation[0], given.dilation[1]},
        .groups = given.groups};
    return layer;
}
