/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.c - batch norm and linear layers: their tensors, initial values and forward; and
 * ls_forward(). The initial values of linear layers are those of convolutions (conv.c).
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "tensor/device.h"

#include <math.h>
#include <string.h>

enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, NUM_BATCHES };

/* --- batch norm --- */

static ls_tensor *batch_norm_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_batch_norm(tape, x, layer->tensors[WEIGHT], layer->tensors[BIAS],
                         layer->tensors[RUNNING_MEAN], layer->tensors[RUNNING_VAR],
                         &layer->batch_norm);
}

static ls_tensor *batch_norm_add(ls_tape *tape, const ls_layer *layer, ls_tensor *x,
                                 ls_tensor *added, bool relu)
{
    ls_batch_norm_params params = layer->batch_norm;

    if (layer->forward != batch_norm_forward || params.relu)
        return autograd_fail(
            tape, ls_fail(LS_EINVAL, "ls_forward_add() needs a batch norm without relu"));
    params.relu = relu;
    return ls_bn_add(tape, x, added, layer->tensors[WEIGHT], layer->tensors[BIAS],
                     layer->tensors[RUNNING_MEAN], layer->tensors[RUNNING_VAR], &params);
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

static ls_layer *add_batch_norm(ls_model *model, const char *name, int channels,
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
    model_fill_constant(model, layer->tensors[WEIGHT], 1);
    model_fill_constant(model, layer->tensors[RUNNING_VAR], 1);
    return layer;
}

ls_layer *ls_nn_batch_norm1d(ls_model *model, const char *name, int channels,
                             const ls_nn_batch_norm_options *opt)
{
    return add_batch_norm(model, name, channels, opt);
}

ls_layer *ls_nn_batch_norm2d(ls_model *model, const char *name, int channels,
                             const ls_nn_batch_norm_options *opt)
{
    return add_batch_norm(model, name, channels, opt);
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

/* --- embedding --- */

static ls_tensor *embedding_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    return ls_embedding(tape, layer->tensors[WEIGHT], x, layer->padding_index);
}

/* Sets a row of a matrix to 0. */
static ls_status clear_row(ls_tensor *t, int64_t row)
{
    const size_t width = (size_t)t->dims[1];
    float *values;

    LS_TRY(LS_NEW(&values, ls_tensor_count(t), "for an embedding"));
    ls_status st = ls_tensor_read(t, values, ls_tensor_count(t));
    if (st == LS_OK) {
        memset(values + (size_t)row * width, 0, width * sizeof(*values));
        st = ls_tensor_write(t, values, ls_tensor_count(t));
    }
    ls_free(values);
    return st;
}

ls_layer *ls_nn_embedding(ls_model *model, const char *name, int n, int width,
                          int64_t padding_index)
{
    const layer_slot slot = {"weight", false, LS_F32, 2, {n, width}};
    ls_layer *layer;
    ls_status st;

    if (!model_can_add(model))
        return NULL;
    if (n < 1 || width < 1 || padding_index < -1 || padding_index >= n)
        return model_fail(model, ls_fail(LS_EINVAL,
                                         "layer %s: %d rows of width %d, padding_index %lld; sizes "
                                         "must be at least 1, the index -1 or a row",
                                         name == NULL ? "NULL" : name, n, width,
                                         (long long)padding_index));
    layer = model_add(model, name, &slot, 1);
    if (layer == NULL)
        return NULL;
    layer->forward = embedding_forward;
    layer->padding_index = padding_index;
    model_fill_normal(model, layer->tensors[WEIGHT], 1);
    st = padding_index < 0 ? LS_OK : clear_row(layer->tensors[WEIGHT], padding_index);
    return st == LS_OK ? layer : model_fail(model, st);
}

/* --- running --- */

bool layer_enter(ls_tape *tape, const ls_layer *layer, const char **outer)
{
    if (tape == NULL) {
        (void)ls_fail(LS_EINVAL, "forward: the tape is NULL");
        return false;
    }
    if (autograd_has_failed(tape))
        return false;
    if (layer == NULL) {
        (void)autograd_fail(
            tape,
            ls_fail(LS_EINVAL, "forward: the layer is NULL; ls_model_status() returns the reason"));
        return false;
    }
    *outer = autograd_enter(tape, layer->name);
    if (layer->model->summary != NULL)
        summary_enter(layer->model->summary, layer);
    return true;
}

void layer_leave(ls_tape *tape, const ls_layer *layer, const char *outer, const ls_tensor *y)
{
    (void)autograd_enter(tape, outer);
    if (y == NULL)
        autograd_context(tape, layer->name);
    else if (layer->model->summary != NULL)
        summary_leave(layer->model->summary, layer, y);
}

ls_tensor *ls_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    const char *outer;
    ls_tensor *y;

    if (!layer_enter(tape, layer, &outer))
        return NULL;
    y = layer->forward(tape, layer, x);
    layer_leave(tape, layer, outer, y);
    return y;
}

ls_tensor *ls_forward_add(ls_tape *tape, ls_layer *layer, ls_tensor *x, ls_tensor *added, int relu)
{
    const char *outer;
    ls_tensor *y;

    if (!layer_enter(tape, layer, &outer))
        return NULL;
    y = batch_norm_add(tape, layer, x, added, relu != 0);
    layer_leave(tape, layer, outer, y);
    return y;
}
