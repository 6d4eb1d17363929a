/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.c - the part of an optimizer that does not depend on its rule (sgd.c, adam.c). A step
 * first checks every array that it will write, so that a failure leaves all parameters unchanged.
 */
#include "optim/optimizer.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/options.h"
#include "base/text.h"
#include "optim/saved_scalar.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* --- making one --- */

ls_status optimizer_check(const char *name, const ls_named *parameters, int n,
                          ls_grad_of_fn grad_of, const void *opt)
{
    if (opt == NULL || grad_of == NULL || n < 0 || (n > 0 && parameters == NULL))
        return ls_fail(LS_EINVAL, "%s: options, grad_of and parameters must not be NULL", name);
    return LS_OK;
}

ls_status optimizer_check_rate(const char *optimizer, const char *name, double value)
{
    if (isfinite(value) && value >= 0)
        return LS_OK;
    return ls_fail(LS_EINVAL, "%s: %s is %g; it must be at least 0", optimizer, name, value);
}

ls_status optimizer_check_lr(const char *optimizer, double lr)
{
    if (lr == 0)
        return ls_fail(LS_EINVAL,
                       "%s: lr is 0 or not set, and nothing would be learnt; "
                       "ls_optimizer_set_lr() sets 0 where that is meant",
                       optimizer);
    return optimizer_check_rate(optimizer, "lr", lr);
}

static ls_status check_parameters(const ls_named *parameters, int n)
{
    byte_map names = {0};
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++) {
        const ls_named *p = &parameters[i];
        void *other = NULL;

        if (p->name == NULL || p->tensor == NULL) {
            st = ls_fail(LS_EINVAL, "parameter %d has no %s", i, p->name ? "tensor" : "name");
        } else if (ls_tensor_dtype(p->tensor) != LS_F32 && ls_tensor_dtype(p->tensor) != LS_F64) {
            st = ls_fail(LS_EUNSUPPORTED, "parameter %s is %s; optimizers take float32 and float64",
                         p->name, ls_dtype_name(ls_tensor_dtype(p->tensor)));
        } else {
            st = byte_map_set(&names, p->name, strlen(p->name), p->tensor, &other);
            if (st == LS_OK && other != NULL)
                st = ls_fail(LS_EINVAL, "two parameters are named %s", p->name);
        }
    }
    byte_map_free(&names);
    return st;
}

/* "NAME.SUFFIX", owned by the caller; NULL when there is no memory. */
static char *state_name(const optimizer_param *p, const char *suffix)
{
    const size_t bytes = strlen(p->name) + strlen(suffix) + 2;
    char *name = ls_calloc(bytes, 1);

    if (name != NULL)
        (void)text_format(name, bytes, "%s.%s", p->name, suffix);
    return name;
}

/* Adds an entry of the parameter to the state list. */
static ls_status list_state(ls_optimizer *o, const optimizer_param *p, const char *suffix,
                            ls_named entry)
{
    entry.name = state_name(p, suffix);
    o->state[o->n_state++] = entry;
    if (entry.name == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the state of parameter %s", p->name);
    return LS_OK;
}

static ls_status add_buffer(ls_optimizer *o, optimizer_param *p, int i)
{
    const ls_tensor *t = p->tensor;
    const char *suffix = o->ops->buffer_names[i];

    LS_TRY(ls_context(ls_tensor_create(ls_tensor_device(t), ls_tensor_dtype(t), ls_tensor_n_dims(t),
                                       ls_tensor_dims(t), &p->buffers[i]),
                      "%s.%s", p->name, suffix));
    return list_state(o, p, suffix, (ls_named){.tensor = p->buffers[i]});
}

static ls_status add_param(ls_optimizer *o, const ls_named *given)
{
    optimizer_param *p = &o->params[o->n_params++];

    p->tensor = given->tensor;
    if (p->tensor->device != o->device)
        return ls_fail(LS_EINVAL,
                       "parameters %s and %s are on different devices; an optimizer "
                       "takes one device",
                       o->params[0].name, given->name);
    p->name = ls_strdup(given->name);
    if (p->name == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the name of parameter %s", given->name);
    for (int i = 0; i < o->n_buffers; i++)
        LS_TRY(add_buffer(o, p, i));
    if (o->n_buffers == 0)
        return LS_OK;
    return list_state(o, p, o->ops->count_name,
                      (ls_named){.bytes = p->saved_updates, .n_bytes = o->ops->count_bytes});
}

ls_status optimizer_init(ls_optimizer *o, const ls_named *parameters, int n, double weight_decay,
                         int n_buffers)
{
    LS_TRY(check_parameters(parameters, n));
    o->n_buffers = n_buffers;
    o->weight_decay = weight_decay;
    o->params = ls_calloc((size_t)n, sizeof(*o->params));
    o->state = ls_calloc((size_t)n * (OPTIMIZER_MAX_BUFFERS + 1) + 1, sizeof(*o->state));
    if (o->params == NULL || o->state == NULL)
        return ls_fail(LS_ENOMEM, "no memory for an optimizer of %d parameters", n);
    o->state[o->n_state++] =
        (ls_named){.name = o->ops->rate_name, .bytes = o->saved_lr, .n_bytes = sizeof(o->saved_lr)};
    if (n > 0) {
        op_call *reserved;

        o->device = parameters[0].tensor->device;
        LS_TRY(device_calls(o->device, n, &reserved));
    }
    for (int i = 0; i < n; i++) {
        LS_TRY(add_param(o, &parameters[i]));
        o->params[i].lr_factor = 1;
        o->params[i].weight_decay = weight_decay;
    }
    return LS_OK;
}

static ls_status check_group(const ls_group_options *g)
{
    LS_TRY(optimizer_check_rate("group", "lr_factor", g->lr_factor));
    LS_TRY(optimizer_check_rate("group", "weight_decay", g->weight_decay));
    if (g->no_weight_decay && g->weight_decay > 0)
        return ls_fail(LS_EINVAL, "group: weight_decay is %g, with no_weight_decay",
                       g->weight_decay);
    return LS_OK;
}

static void join_group(const ls_optimizer *o, optimizer_param *p, const ls_group_options *g)
{
    p->group = o->n_groups + 1;
    p->lr_factor = g->lr_factor == 0 ? 1 : g->lr_factor;
    p->weight_decay = o->weight_decay;
    if (g->weight_decay > 0 || g->no_weight_decay)
        p->weight_decay = g->weight_decay;
}

ls_status ls_optimizer_group(ls_optimizer *o, const char *pattern, const ls_group_options *opt)
{
    ls_group_options g;
    int n = 0;

    LS_TRY(LS_GIVEN(o));
    LS_TRY(LS_GIVEN(pattern));
    LS_TRY(LS_GIVEN(opt));
    LS_TRY(ls_context(OPTIONS_COPY(ls_group_options, opt, &g), "group"));
    LS_TRY(check_group(&g));
    for (int i = 0; i < o->n_params; i++) {
        optimizer_param *p = &o->params[i];

        if (!text_matches(p->name, pattern))
            continue;
        n++;
        join_group(o, p, &g);
    }
    if (n == 0)
        return ls_fail(LS_ENOTFOUND, "group: no parameter matches %s", pattern);
    o->n_groups++;
    return LS_OK;
}

void ls_optimizer_destroy(ls_optimizer *o)
{
    if (o == NULL)
        return;
    // The first name of the state list is a constant.
    for (int i = 1; i < o->n_state; i++)
        ls_free((void *)(uintptr_t)o->state[i].name);
    for (int i = 0; i < o->n_params; i++) {
        for (int b = 0; b < o->n_buffers; b++)
            ls_tensor_destroy(o->params[i].buffers[b]);
        ls_free(o->params[i].name);
    }
    ls_free(o->state);
    ls_free(o->params);
    ls_free(o);
}

/* --- a step --- */

static ls_status check_grad(const char *name, const ls_tensor *parameter, const ls_tensor *grad)
{
    char want[TENSOR_TEXT_BYTES];
    char have[TENSOR_TEXT_BYTES];

    if (!tensor_same_shape(parameter, grad) || parameter->dtype != grad->dtype)
        return ls_fail(LS_EINVAL, "parameter %s is %s but its gradient is %s", name,
                       tensor_text(want, sizeof(want), parameter),
                       tensor_text(have, sizeof(have), grad));
    if (parameter->device != grad->device)
        return ls_fail(LS_EINVAL, "parameter %s is on device %s but its gradient on device %s",
                       name, ls_device_name(parameter->device), ls_device_name(grad->device));
    return LS_OK;
}

ls_status optimizer_grad_call(const char *name, const ls_tensor *parameter, ls_grad_of_fn grad_of,
                              const op_call *like, op_call *call, bool *has_grad)
{
    ls_tensor *grad = grad_of(parameter);
    void *elements;

    *has_grad = grad != NULL;
    if (grad == NULL)
        return LS_OK;
    LS_TRY(check_grad(name, parameter, grad));
    LS_TRY(ls_context(tensor_plain(grad, &elements), "gradient of %s", name));
    *call = *like;
    call->in[0] = grad;
    return LS_OK;
}

/* The call that updates one parameter. */
static ls_status prepare(const ls_optimizer *o, optimizer_param *p, ls_tensor *skip, op_call *call)
{
    op_call like = {.op = o->ops->op,
                    .n_in = 2,
                    .n_out = 1 + o->n_buffers,
                    .in = {NULL, skip},
                    .out = {p->tensor},
                    .update = &p->rates};
    void *elements;

    LS_TRY(ls_context(tensor_plain(p->tensor, &elements), "parameter %s", p->name));
    for (int i = 0; i < o->n_buffers; i++) {
        LS_TRY(ls_context(tensor_plain(p->buffers[i], &elements), "%s of %s",
                          o->ops->buffer_names[i], p->name));
        like.out[1 + i] = p->buffers[i];
    }
    p->rates = o->ops->rates(o, p);
    return optimizer_grad_call(p->name, p->tensor, o->grad_of, &like, call, &p->is_updated);
}

/* Group by group: devices join neighbours with equal rates in one launch. */
ls_status optimizer_update(ls_optimizer *o, ls_tensor *skip)
{
    op_call *calls;
    int n = 0;

    if (o->n_params == 0)
        return LS_OK;
    LS_TRY(device_calls(o->device, o->n_params, &calls));
    for (int g = 0; g <= o->n_groups; g++) {
        for (int i = 0; i < o->n_params; i++) {
            if (o->params[i].group != g)
                continue;
            LS_TRY(prepare(o, &o->params[i], skip, &calls[n]));
            n += o->params[i].is_updated;
        }
    }
    return device_run_many(o->device, calls, n);
}

void optimizer_count(ls_optimizer *o)
{
    for (int i = 0; i < o->n_params; i++) {
        optimizer_param *p = &o->params[i];

        if (!p->is_updated || o->n_buffers == 0)
            continue;
        if (p->n_updates < o->ops->most_updates)
            p->n_updates++;
        save_u64(p->saved_updates, (uint64_t)p->n_updates);
    }
}

ls_status ls_optimizer_step(ls_optimizer *o)
{
    LS_TRY(LS_GIVEN(o));
    LS_TRY(optimizer_update(o, NULL));
    optimizer_count(o);
    return LS_OK;
}

void ls_optimizer_set_lr(ls_optimizer *o, double lr)
{
    if (o == NULL)
        return;
    o->lr = lr;
    save_double(o->saved_lr, lr);
}

double ls_optimizer_lr(const ls_optimizer *o)
{
    return o == NULL ? 0 : o->lr;
}

/* --- state --- */

const ls_named *ls_optimizer_state(ls_optimizer *o, int *n)
{
    if (n == NULL)
        return NULL;
    *n = o == NULL ? 0 : o->n_state;
    return o == NULL ? NULL : o->state;
}

static ls_status check_loaded(const ls_optimizer *o)
{
    const double lr = saved_double(o->saved_lr);

    if (!isfinite(lr) || lr < 0)
        return ls_fail(LS_EFORMAT, "%s is %g, not a learning rate", o->ops->rate_name, lr);
    for (int i = 0; i < o->n_params; i++) {
        const optimizer_param *p = &o->params[i];
        const uint64_t n = saved_u64(p->saved_updates);

        if (n > (uint64_t)o->ops->most_updates)
            return ls_fail(LS_EFORMAT, "%s.%s is %llu, not 0 to %lld", p->name, o->ops->count_name,
                           (unsigned long long)n, (long long)o->ops->most_updates);
    }
    return LS_OK;
}

ls_status ls_optimizer_loaded(ls_optimizer *o)
{
    ls_status st;

    LS_TRY(LS_GIVEN(o));
    st = check_loaded(o);
    if (st == LS_OK)
        o->lr = saved_double(o->saved_lr);
    else
        save_double(o->saved_lr, o->lr);
    for (int i = 0; i < o->n_params; i++) {
        optimizer_param *p = &o->params[i];

        if (st == LS_OK)
            p->n_updates = (int64_t)saved_u64(p->saved_updates);
        else
            save_u64(p->saved_updates, (uint64_t)p->n_updates);
    }
    return st;
}
