/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_update.c - the operators of optimizers, clipping and gradient scaling, in place on parameters
 * and gradients, with the loops of tensor/devices/update/.
 */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/devices/update/update_loops.h"

#include <math.h>

static const update_loops *loops_for(const ls_tensor *t)
{
    const update_isa *best = update_isa_at(0);

    return ref_wide(t) ? &best->f64 : &best->f32;
}

static bool is_skipped(const op_call *call)
{
    return call->in[1] != NULL && *(const float *)tensor_host_elements(call->in[1]) != 0;
}

/* The arrays of OP_SGD and OP_ADAM. */
static update_arrays arrays_of(const op_call *call)
{
    update_arrays a = {.count = ls_tensor_count(call->in[0]),
                       .value = tensor_host_elements(call->out[0]),
                       .grad = tensor_host_elements(call->in[0])};

    for (int i = 1; i < call->n_out; i++)
        a.state[i - 1] = call->out[i] == NULL ? NULL : tensor_host_elements(call->out[i]);
    return a;
}

ls_status ref_sgd(const op_call *call)
{
    const update_arrays a = arrays_of(call);

    if (!is_skipped(call))
        loops_for(call->in[0])->sgd(&a, call->update);
    return LS_OK;
}

ls_status ref_adam(const op_call *call)
{
    const update_arrays a = arrays_of(call);

    if (!is_skipped(call))
        loops_for(call->in[0])->adam(&a, call->update);
    return LS_OK;
}

ls_status ref_squares(const op_call *call)
{
    const ls_tensor *g = call->in[0];
    double *squares = tensor_host_elements(call->out[0]);

    squares[call->attrs.begin] =
        loops_for(g)->sum_of_squares(tensor_host_elements(g), ls_tensor_count(g));
    return LS_OK;
}

ls_status ref_clip_factor(const op_call *call)
{
    const double *squares = tensor_host_elements(call->in[0]);
    double sum = 0;
    double norm;
    double factor;

    for (size_t i = 0; i < ls_tensor_count(call->in[0]); i++)
        sum += squares[i];
    norm = sqrt(sum);
    factor = call->attrs.value / (norm + 1e-6);
    *(double *)tensor_host_elements(call->out[0]) = norm;
    *(double *)tensor_host_elements(call->out[1]) = factor >= 1 ? 1 : factor;
    return LS_OK;
}

ls_status ref_scale_by(const op_call *call)
{
    ls_tensor *g = call->out[0];
    const double factor = *(const double *)tensor_host_elements(call->in[1]);

    loops_for(g)->scale(tensor_host_elements(g), ls_tensor_count(g), factor);
    return LS_OK;
}

ls_status ref_clamp(const op_call *call)
{
    ls_tensor *g = call->out[0];

    loops_for(g)->clamp(tensor_host_elements(g), ls_tensor_count(g), call->attrs.value);
    return LS_OK;
}

ls_status ref_unscale(const op_call *call)
{
    ls_tensor *g = call->out[0];
    float *found = tensor_host_elements(call->out[1]);

    if (!loops_for(g)->scale_finite(tensor_host_elements(g), ls_tensor_count(g), call->attrs.scale))
        *found = 1;
    return LS_OK;
}
