/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composite.c - layers without tensors: functions of the program, sequences of layers, and
 * operators that a sequence needs as layers. Programs create them; ls_forward() runs them.
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "base/alloc.h"

#include <string.h>

static ls_tensor *call(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    ls_tensor *y;

    if (x == NULL)
        return autograd_fail(tape, ls_fail(LS_EINVAL, "the input is NULL"));
    y = layer->fn(layer->arg, tape, x);
    if (y == NULL && !autograd_has_failed(tape))
        return autograd_fail(tape, ls_fail(LS_EINVAL, "the function returned NULL"));
    return y;
}

static ls_status copy_arg(ls_layer *layer, const void *arg, size_t arg_bytes)
{
    layer->arg = ls_calloc(1, arg_bytes);
    if (layer->arg == NULL)
        return ls_fail(LS_ENOMEM, "layer %s: no memory for %zu bytes", layer->name, arg_bytes);
    memcpy(layer->arg, arg, arg_bytes);
    layer->arg_bytes = arg_bytes;
    return LS_OK;
}

ls_layer *ls_nn_layer(ls_model *model, const char *name, ls_layer_fn fn, void *arg,
                      size_t arg_bytes)
{
    ls_layer *layer;
    ls_status st;

    if (!model_can_add(model))
        return NULL;
    if (fn == NULL || (arg == NULL && arg_bytes > 0))
        return model_fail(model, ls_fail(LS_EINVAL, "layer %s: its %s is NULL",
                                         name == NULL ? "NULL" : name,
                                         fn == NULL ? "function" : "argument"));
    layer = model_add(model, name, NULL, 0);
    if (layer == NULL)
        return NULL;
    layer->forward = call;
    layer->fn = fn;
    layer->arg = arg;
    st = arg_bytes == 0 ? LS_OK : copy_arg(layer, arg, arg_bytes);
    return st == LS_OK ? layer : model_fail(model, st);
}

/* --- sequences --- */

static ls_tensor *sequential_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x)
{
    ls_layer *const *const layers = layer->arg;

    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    for (size_t i = 0; i < layer->arg_bytes / sizeof(*layers); i++)
        x = ls_forward(tape, layers[i], x);
    return x;
}

ls_layer *ls_nn_sequential(ls_model *model, const char *name, ls_layer *const *layers, int n)
{
    ls_layer *layer;
    ls_status st = LS_OK;

    if (!model_can_add(model))
        return NULL;
    if (n < 0 || (n > 0 && layers == NULL))
        return model_fail(model,
                          ls_fail(LS_EINVAL, "layer %s: %d layers%s", name == NULL ? "NULL" : name,
                                  n, layers == NULL ? " at NULL" : ""));
    for (int i = 0; i < n; i++) {
        if (layers[i] == NULL || layers[i]->model != model)
            return model_fail(
                model, ls_fail(LS_EINVAL, "layer %s: layer %d %s", name == NULL ? "NULL" : name, i,
                               layers[i] == NULL ? "is NULL" : "belongs to another model"));
    }
    layer = model_add(model, name, NULL, 0);
    if (layer == NULL)
        return NULL;
    layer->forward = sequential_forward;
    if (n > 0)
        // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
        st = copy_arg(layer, layers, (size_t)n * sizeof(*layers));
    return st == LS_OK ? layer : model_fail(model, st);
}

/* --- operators --- */

static ls_tensor *run_function(void *arg, ls_tape *tape, ls_tensor *x)
{
    return (*(const ls_unary_fn *)arg)(tape, x);
}

ls_layer *ls_nn_function(ls_model *model, const char *name, ls_unary_fn fn)
{
    return ls_nn_layer(model, name, fn == NULL ? NULL : run_function, &fn, sizeof(fn));
}

static ls_tensor *run_dropout(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_dropout(tape, x, *(const double *)arg);
}

ls_layer *ls_nn_dropout(ls_model *model, const char *name, double p)
{
    return ls_nn_layer(model, name, run_dropout, &p, sizeof(p));
}

static ls_tensor *run_max_pool(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_max_pool2d(tape, x, arg);
}

static ls_tensor *run_avg_pool(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_avg_pool2d(tape, x, arg);
}

static ls_layer *add_pool(ls_model *model, const char *name, ls_layer_fn fn,
                          const ls_pool2d_params *params)
{
    return ls_nn_layer(model, name, fn, (void *)(uintptr_t)params, sizeof(*params));
}

ls_layer *ls_nn_max_pool2d(ls_model *model, const char *name, const ls_pool2d_params *params)
{
    return add_pool(model, name, run_max_pool, params);
}

ls_layer *ls_nn_avg_pool2d(ls_model *model, const char *name, const ls_pool2d_params *params)
{
    return add_pool(model, name, run_avg_pool, params);
}

static ls_tensor *run_adaptive_pool(void *arg, ls_tape *tape, ls_tensor *x)
{
    const int *size = arg;

    return ls_adaptive_avg_pool2d(tape, x, size[0], size[1]);
}

ls_layer *ls_nn_adaptive_avg_pool2d(ls_model *model, const char *name, int height, int width)
{
    int size[] = {height, width};

    return ls_nn_layer(model, name, run_adaptive_pool, size, sizeof(size));
}
