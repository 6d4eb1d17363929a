/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.c - the part of an optimizer that does not depend on its rule. A step first finds and
 * checks every array that it will touch, so that a failure leaves all parameters as they were.
 */
#include "optim/optimizer.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static void encode_lr(uint8_t out[8], double lr)
{
    uint64_t bits;

    memcpy(&bits, &lr, sizeof(bits));
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(bits >> (8 * i));
}

static double decode_lr(const uint8_t in[8])
{
    uint64_t bits = 0;
    double lr;

    for (int i = 0; i < 8; i++)
        bits |= (uint64_t)in[i] << (8 * i);
    memcpy(&lr, &bits, sizeof(lr));
    return lr;
}

/* --- making one --- */

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
            st = ls_fail(LS_EUNSUPPORTED, "parameter %s is %s, optimizers take float32 and float64",
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

/* "a", `between`, "b"; owned by the caller; NULL when there is no memory. */
static char *join(const char *a, char between, const char *b)
{
    const size_t bytes = strlen(a) + strlen(b) + 2;
    char *joined = ls_calloc(bytes, 1);

    if (joined != NULL)
        (void)text_format(joined, bytes, "%s%c%s", a, between, b);
    return joined;
}

/* Adds a parameter's buffer and its flag to the state list. */
static ls_status list_buffer(ls_optimizer *o, optimizer_param *p)
{
    const char *name = join(p->name, '.', o->ops->buffer_name);
    const char *flag = name != NULL ? join(name, '_', "set") : NULL;

    o->state[o->n_state++] = (ls_named){.name = name, .tensor = p->buffer.tensor};
    o->state[o->n_state++] =
        (ls_named){.name = flag, .bytes = &p->buffer.saved_is_set, .n_bytes = 1};
    if (flag == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the state of parameter %s", p->name);
    return LS_OK;
}

static ls_status add_param(ls_optimizer *o, const ls_named *given, bool with_buffer)
{
    optimizer_param *p = &o->params[o->n_params++];

    p->tensor = given->tensor;
    p->count = ls_tensor_count(given->tensor);
    p->name = ls_strdup(given->name);
    if (p->name == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the name of parameter %s", given->name);
    if (!with_buffer)
        return LS_OK;
    LS_TRY(ls_context(ls_tensor_create(ls_tensor_device(p->tensor), ls_tensor_dtype(p->tensor),
                                       ls_tensor_n_dims(p->tensor), ls_tensor_dims(p->tensor),
                                       &p->buffer.tensor),
                      "%s.%s", p->name, o->ops->buffer_name));
    return list_buffer(o, p);
}

ls_status optimizer_init(ls_optimizer *o, const ls_named *parameters, int n, bool with_buffers)
{
    LS_TRY(check_parameters(parameters, n));
    o->params = ls_calloc((size_t)n, sizeof(*o->params));
    o->state = ls_calloc((size_t)n * 2 + 1, sizeof(*o->state));
    if (o->params == NULL || o->state == NULL)
        return ls_fail(LS_ENOMEM, "no memory for an optimizer of %d parameters", n);
    o->state[o->n_state++] =
        (ls_named){.name = o->ops->rate_name, .bytes = o->saved_lr, .n_bytes = sizeof(o->saved_lr)};
    for (int i = 0; i < n; i++)
        LS_TRY(add_param(o, &parameters[i], with_buffers));
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
        ls_tensor_destroy(o->params[i].buffer.tensor);
        ls_free(o->params[i].name);
    }
    ls_free(o->state);
    ls_free(o->params);
    ls_free(o);
}

/* --- a step --- */

static ls_status check_gradient(const optimizer_param *p, const ls_tensor *grad)
{
    char want[TENSOR_TEXT_BYTES];
    char have[TENSOR_TEXT_BYTES];

    if (tensor_same_shape(p->tensor, grad) && ls_tensor_dtype(p->tensor) == ls_tensor_dtype(grad))
        return LS_OK;
    return ls_fail(LS_EINVAL, "parameter %s is %s, its gradient is %s", p->name,
                   tensor_text(want, sizeof(want), p->tensor),
                   tensor_text(have, sizeof(have), grad));
}

/* Finds the arrays of one parameter. */
static ls_status collect(const ls_optimizer *o, optimizer_param *p)
{
    ls_tensor *grad = o->grad_of(p->tensor);

    p->grad = NULL;
    if (grad == NULL)
        return LS_OK;
    LS_TRY(check_gradient(p, grad));
    LS_TRY(ls_context(tensor_plain(grad, &p->grad), "gradient of %s", p->name));
    LS_TRY(ls_context(tensor_plain(p->tensor, &p->value), "parameter %s", p->name));
    if (p->buffer.tensor == NULL)
        return LS_OK;
    return ls_context(tensor_plain(p->buffer.tensor, &p->buffer_data), "%s of %s",
                      o->ops->buffer_name, p->name);
}

ls_status ls_optimizer_step(ls_optimizer *o)
{
    for (int i = 0; i < o->n_params; i++)
        LS_TRY(collect(o, &o->params[i]));
    o->ops->update(o);
    for (int i = 0; i < o->n_params; i++) {
        optimizer_param *p = &o->params[i];

        if (p->grad == NULL)
            continue;
        tensor_written(p->tensor);
        tensor_written(p->buffer.tensor);
        if (p->buffer.tensor != NULL) {
            p->buffer.is_set = true;
            p->buffer.saved_is_set = 1;
        }
    }
    return LS_OK;
}

void ls_optimizer_set_lr(ls_optimizer *o, double lr)
{
    o->lr = lr;
    encode_lr(o->saved_lr, lr);
}

double ls_optimizer_lr(const ls_optimizer *o)
{
    return o->lr;
}

/* --- state --- */

const ls_named *ls_optimizer_state(ls_optimizer *o, int *n)
{
    *n = o->n_state;
    return o->state;
}

static ls_status check_loaded(const ls_optimizer *o)
{
    const double lr = decode_lr(o->saved_lr);

    if (!isfinite(lr) || lr < 0)
        return ls_fail(LS_EFORMAT, "%s is %g, not a learning rate", o->ops->rate_name, lr);
    for (int i = 0; i < o->n_params; i++) {
        const optimizer_param *p = &o->params[i];

        if (p->buffer.saved_is_set > 1)
            return ls_fail(LS_EFORMAT, "%s.%s_set is %d, not 0 or 1", p->name, o->ops->buffer_name,
                           p->buffer.saved_is_set);
    }
    return LS_OK;
}

ls_status ls_optimizer_loaded(ls_optimizer *o)
{
    const ls_status st = check_loaded(o);

    if (st == LS_OK)
        o->lr = decode_lr(o->saved_lr);
    else
        encode_lr(o->saved_lr, o->lr);
    for (int i = 0; i < o->n_params; i++) {
        optimizer_buffer *buffer = &o->params[i].buffer;

        if (st == LS_OK)
            buffer->is_set = buffer->saved_is_set != 0;
        else
            buffer->saved_is_set = buffer->is_set ? 1 : 0;
    }
    return st;
}
