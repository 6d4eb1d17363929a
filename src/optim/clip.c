/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clip.c - clips gradients before a step, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_
 * do.
 */
#include "optim/optimizer.h"
#include "tensor/tensor.h"

typedef struct grad_calls {
    ls_device *device; /* of all parameters */
    op_call *calls;    /* one for each gradient */
    int n;
} grad_calls;

static ls_status check(const char *name, const ls_named *parameters, int n, ls_grad_of_fn grad_of)
{
    if (grad_of == NULL || n < 0 || (n > 0 && parameters == NULL))
        return ls_fail(LS_EINVAL, "%s: grad_of and parameters must not be NULL", name);
    for (int i = 0; i < n; i++) {
        if (parameters[i].name == NULL || parameters[i].tensor == NULL)
            return ls_fail(LS_EINVAL, "%s: parameter %d has no %s", name, i,
                           parameters[i].name == NULL ? "name" : "tensor");
    }
    return LS_OK;
}

static ls_status check_parameter(const ls_named *p, const ls_named *first)
{
    const ls_dtype type = ls_tensor_dtype(p->tensor);

    if (type != LS_F32 && type != LS_F64)
        return ls_fail(LS_EUNSUPPORTED, "gradient of %s is %s; it must be float32 or float64",
                       p->name, ls_dtype_name(type));
    if (p->tensor->device != first->tensor->device)
        return ls_fail(LS_EINVAL, "parameters %s and %s are on different devices", first->name,
                       p->name);
    return LS_OK;
}

/* A call like `like` for every gradient: in place, of gradient `begin`. */
static ls_status collect(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                         const op_call *like, grad_calls *out)
{
    *out = (grad_calls){.device = ls_tensor_device(parameters[0].tensor)};
    LS_TRY(device_calls(out->device, n, &out->calls));
    for (int i = 0; i < n; i++) {
        op_call *call = &out->calls[out->n];
        bool has_grad;

        LS_TRY(optimizer_grad_call(parameters[i].name, parameters[i].tensor, grad_of, like, call,
                                   &has_grad));
        if (!has_grad)
            continue;
        LS_TRY(check_parameter(&parameters[i], &parameters[0]));
        call->out[0] = call->in[0];
        call->attrs.begin = out->n++;
    }
    return LS_OK;
}

/* --- by norm --- */

/* Values of one clipping in the device's memory, in float64. */
typedef struct norm_values {
    ls_tensor *squares; /* of each gradient */
    ls_tensor *norm;
    ls_tensor *factor;
} norm_values;

static ls_status make_value(ls_device *device, int n_dims, int64_t count, ls_tensor **out)
{
    LS_TRY(tensor_shape(device, LS_F64, n_dims, &count, out));
    return tensor_place(*out, NULL, 0);
}

static ls_status make_values(const grad_calls *g, norm_values *v)
{
    LS_TRY(make_value(g->device, 1, g->n, &v->squares));
    LS_TRY(make_value(g->device, 0, 1, &v->norm));
    return make_value(g->device, 0, 1, &v->factor);
}

static void free_values(norm_values *v)
{
    ls_tensor_destroy(v->squares);
    ls_tensor_destroy(v->norm);
    ls_tensor_destroy(v->factor);
}

static ls_status find_factor(grad_calls *g, const norm_values *v, double max_norm)
{
    const op_call call = {.op = OP_CLIP_FACTOR,
                          .attrs = {.value = max_norm},
                          .n_in = 1,
                          .n_out = 2,
                          .in = {v->squares},
                          .out = {v->norm, v->factor}};

    for (int i = 0; i < g->n; i++)
        g->calls[i].out[0] = v->squares;
    LS_TRY(device_run_many(g->device, g->calls, g->n));
    return device_run(g->device, &call);
}

/* A host device leaves the gradients alone where the factor is 1; a stream device does not wait to
 * know that. */
static ls_status scale_grads(grad_calls *g, const norm_values *v)
{
    if (g->device->accel == NULL && *(const double *)tensor_host_elements(v->factor) == 1)
        return LS_OK;
    for (int i = 0; i < g->n; i++) {
        op_call *call = &g->calls[i];

        call->op = OP_SCALE_BY;
        call->n_in = 2;
        call->in[1] = v->factor;
        call->out[0] = call->in[0];
    }
    return device_run_many(g->device, g->calls, g->n);
}

static ls_status clip_norm(grad_calls *g, norm_values *v, double max_norm, double *norm)
{
    LS_TRY(make_values(g, v));
    LS_TRY(find_factor(g, v, max_norm));
    LS_TRY(scale_grads(g, v));
    return norm == NULL ? LS_OK
                        : device_read(g->device, norm, tensor_elements(v->norm), sizeof(*norm));
}

ls_status ls_clip_grad_norm(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                            double max_norm, double *norm)
{
    const op_call like = {.op = OP_SQUARES, .n_in = 1, .n_out = 1};
    norm_values values = {.squares = NULL};
    grad_calls g = {.n = 0};
    ls_status st;

    LS_TRY(check("clip_grad_norm", parameters, n, grad_of));
    if (!(max_norm > 0))
        return ls_fail(LS_EINVAL, "clip_grad_norm: max_norm is %g; it must be over 0", max_norm);
    if (n > 0)
        LS_TRY(collect(parameters, n, grad_of, &like, &g));
    if (g.n == 0) {
        if (norm != NULL)
            *norm = 0;
        return LS_OK;
    }
    st = clip_norm(&g, &values, max_norm, norm);
    free_values(&values);
    return st;
}

/* --- by value --- */

ls_status ls_clip_grad_value(const ls_named *parameters, int n, ls_grad_of_fn grad_of, double limit)
{
    const op_call like = {.op = OP_CLAMP, .attrs = {.value = limit}, .n_in = 1, .n_out = 1};
    grad_calls g;

    LS_TRY(check("clip_grad_value", parameters, n, grad_of));
    if (!(limit >= 0))
        return ls_fail(LS_EINVAL, "clip_grad_value: limit is %g; it must be at least 0", limit);
    if (n == 0)
        return LS_OK;
    LS_TRY(collect(parameters, n, grad_of, &like, &g));
    return device_run_many(g.device, g.calls, g.n);
}
