/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.c - convolution, batch norm and linear layers: their tensors, initial values and forward;
 * and ls_forward().
 *
 * Initial values of convolutions and linear layers are torch.nn's kaiming_uniform(a = sqrt(5)),
 * whose bound sqrt(6 / ((1 + 5) fan_in)) is 1 / sqrt(fan_in), and their biases within the same
 * bound.
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "tensor/device.h"

#include <math.h>

enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, NUM_BATCHES };

/* --- conv2d --- */

static ls_tensor *conv2d_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_conv2d(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS], &layer->conv2d);
}

static ls_status check_conv2d(const char *name, int in, int out, const ls_nn_conv2d_options *o)
{
    const int groups = o->groups == 0 ? 1 : o->groups;

    if (in < 1 || out < 1 || o->kernel[0] < 1 || o->kernel[1] < 1)
        return ls_fail(LS_EINVAL,
                       "layer %s: %d to %d channels, kernel (%d, %d); all must be at least 1", name,
                       in, out, o->kernel[0], o->kernel[1]);
    if (groups < 1 || in % groups != 0 || out % groups != 0)
        return ls_fail(LS_EINVAL, "layer %s: %d and %d channels cannot be split into %d groups",
                       name, in, out, groups);
    if (o->init != LS_INIT_DEFAULT && o->init != LS_INIT_KAIMING_NORMAL)
        return ls_fail(LS_EINVAL, "layer %s: %d is not an ls_nn_init", name, (int)o->init);
    for (int i = 0; i < 2; i++) {
        if (o->stride[i] < 0 || o->padding[i] < 0 || o->dilation[i] < 0)
            return ls_fail(LS_EINVAL, "layer %s: stride, padding and dilation must not be negative",
                           name);
    }
    return LS_OK;
}

static void fill_conv2d(ls_model *model, const ls_layer *layer, int group_in, int out,
                        const ls_nn_conv2d_options *o)
{
    const double positions = (double)o->kernel[0] * o->kernel[1];
    const double bound = 1 / sqrt(group_in * positions);

    if (o->init == LS_INIT_KAIMING_NORMAL)
        model_fill_normal(model, layer->tensors[WEIGHT], sqrt(2 / (out * positions)));
    else
        model_fill_uniform(model, layer->tensors[WEIGHT], bound);
    if (!o->no_bias)
        model_fill_uniform(model, layer->tensors[BIAS], bound);
}

ls_layer *ls_nn_conv2d(ls_model *model, const char *name, int in, int out,
                       const ls_nn_conv2d_options *opt)
{
    const ls_nn_conv2d_options o = opt == NULL ? (ls_nn_conv2d_options){.kernel = {0, 0}} : *opt;
    int group_in;
    ls_layer *layer;
    ls_status st;

    if (!model_can_add(model))
        return NULL;
    st = check_conv2d(name == NULL ? "NULL" : name, in, out, &o);
    if (st != LS_OK)
        return model_fail(model, st);
    group_in = in / (o.groups == 0 ? 1 : o.groups);
    layer = model_add(
        model, name,
        (layer_slot[]){{"weight", false, LS_F32, 4, {out, group_in, o.kernel[0], o.kernel[1]}},
                       {"bias", false, LS_F32, 1, {out}}},
        o.no_bias ? 1 : 2);
    if (layer == NULL)
        return NULL;
    layer->forward = conv2d_forward;
    layer->conv2d = (ls_conv2d_params){.stride = {o.stride[0], o.stride[1]},
                                       .padding = {o.padding[0], o.padding[1]},
                                       .dilation = {o.dilation[0], o.dilation[1]},
                                       .groups = o.groups};
    fill_conv2d(model, layer, group_in, out, &o);
    return layer;
}

/* --- batch norm --- */

static ls_tensor *batch_norm_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_batch_norm(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS],
                         layer->tensors[RUNNING_MEAN], layer->tensors[RUNNING_VAR],
                         &layer->batch_norm);
}

void ls_model_sync_batch_norm(ls_model *model, const ls_batch_norm_sync *sync)
{
    if (model == NULL)
        return;
    for (ls_layer *layer = model->first; layer != NULL; layer = layer->next) {
        if (layer->forward == batch_norm_forward)
            layer->batch_norm.sync = sync == NULL ? (ls_batch_norm_sync){.sum = NULL} : *sync;
    }
}

ls_layer *ls_nn_batch_norm2d(ls_model *model, const char *name, int channels,
                             const ls_nn_batch_norm_options *opt)
{
    const layer_slot slots[] = {{"weight", false, LS_F32, 1, {channels}},
                                {"bias", false, LS_F32, 1, {channels}},
                                {"running_mean", true, LS_F32, 1, {channels}},
                                {"running_var", true, LS_F32, 1, {channels}},
                                {"num_batches_tracked", true, LS_I64, 0, {0}}};
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (channels < 1)
        return model_fail(model,
                          ls_fail(LS_EINVAL, "layer %s: channels is %d; it must be at least 1",
                                  name == NULL ? "NULL" : name, channels));
    layer = model_add(model, name, slots, (int)LS_COUNT_OF(slots));
    if (layer == NULL)
        return NULL;
    layer->forward = batch_norm_forward;
    if (opt != NULL)
        layer->batch_norm =
            (ls_batch_norm_params){.momentum = opt->momentum, .eps = opt->eps, .relu = opt->relu};
    layer->batch_norm.num_batches_tracked = layer->tensors[NUM_BATCHES];
    ls_model_fill(model, layer->tensors[WEIGHT], LS_FILL_CONSTANT, 1);
    ls_model_fill(model, layer->tensors[RUNNING_VAR], LS_FILL_CONSTANT, 1);
    return layer;
}

/* --- linear --- */

static ls_tensor *linear_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_linear(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS]);
}

ls_layer *ls_nn_linear(ls_model *model, const char *name, int in, int out, int no_bias)
{
    const layer_slot slots[] = {{"weight", false, LS_F32, 2, {out, in}},
                                {"bias", false, LS_F32, 1, {out}}};
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (in < 1 || out < 1)
        return model_fail(model,
                          ls_fail(LS_EINVAL, "layer %s: %d to %d features; both must be at least 1",
                                  name == NULL ? "NULL" : name, in, out));
    layer = model_add(model, name, slots, no_bias ? 1 : 2);
    if (layer == NULL)
        return NULL;
    layer->forward = linear_forward;
    model_fill_uniform(model, layer->tensors[WEIGHT], 1 / sqrt((double)in));
    if (!no_bias)
        model_fill_uniform(model, layer->tensors[BIAS], 1 / sqrt((double)in));
    return layer;
}

/* --- running --- */

ls_tensor *ls_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    const char *outer;
    ls_tensor *y;

    if (tape == NULL) {
        (void)ls_fail(LS_EINVAL, "forward: the tape is NULL");
        return NULL;
    }
    if (autograd_has_failed(tape))
        return NULL;
    if (layer == NULL)
        return autograd_fail(
            tape,
            ls_fail(LS_EINVAL, "forward: the layer is NULL; ls_model_status() returns the reason"));
    outer = autograd_enter(tape, layer->name);
    y = layer->forward(tape, layer, x);
    (void)autograd_enter(tape, outer);
    if (y == NULL)
        autograd_context(tape, layer->name);
    return y;
}
