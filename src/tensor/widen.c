/* SPDX-License-Identifier: Apache-2.0 */
/* widen.c - see widen.h. The float32 tensors are temporary: their memory comes from the pool. */
#include "tensor/widen.h"

bool widen_needed(const op_call *call)
{
    for (int i = 0; i < call->n_in; i++) {
        if (tensor_is_half(call->in[i]))
            return true;
    }
    for (int i = 0; i < call->n_out; i++) {
        if (tensor_is_half(call->out[i]))
            return true;
    }
    return false;
}

/* A device, and how it runs operators. */
typedef struct runner {
    ls_device *device;
    device_run_fn run;
} runner;

static ls_status run_one(const runner *r, op_kind op, ls_tensor *from, ls_tensor *to)
{
    const op_call call = {.op = op, .n_in = 1, .n_out = 1, .in = {from}, .out = {to}};

    return r->run(r->device, &call);
}

/* *out: a tensor of t's shape in that type, unplaced. */
static ls_status shape_as(const ls_tensor *t, ls_dtype type, ls_tensor **out)
{
    return tensor_shape(t->device, type, t->n_dims, t->dims, out);
}

/* Replaces the 16-bit tensors of `tensors` by float32 ones with the same elements; those that are
 * unplaced stay unplaced. */
static ls_status widen_all(const runner *r, ls_tensor **tensors, int n)
{
    for (int i = 0; i < n; i++) {
        ls_tensor *t = tensors[i];

        if (!tensor_is_half(t))
            continue;
        tensors[i] = NULL;
        LS_TRY(shape_as(t, LS_F32, &tensors[i]));
        if (t->storage != NULL)
            LS_TRY(run_one(r, OP_CAST, t, tensors[i]));
    }
    return LS_OK;
}

/* Rounds `wide` to `out`. One that is placed keeps its storage and layout. */
static ls_status round_into(const runner *r, ls_tensor *wide, ls_tensor *out)
{
    ls_tensor *rounded;
    ls_status st;

    if (out->storage == NULL)
        return run_one(r, OP_CAST, wide, out);
    LS_TRY(shape_as(out, out->dtype, &rounded));
    st = run_one(r, OP_CAST, wide, rounded);
    if (st == LS_OK)
        st = run_one(r, OP_COPY, rounded, out);
    ls_tensor_destroy(rounded);
    return st;
}

/* Destroys what widen_all() has made: what differs from the call's own tensors. */
static void drop(ls_tensor *const *own, ls_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        if (tensors[i] != own[i])
            ls_tensor_destroy(tensors[i]);
    }
}

ls_status widen_run(ls_device *device, const op_call *call, device_run_fn run)
{
    const runner r = {device, run};
    op_call wide = *call;
    ls_status st = widen_all(&r, wide.in, wide.n_in);

    if (st == LS_OK)
        st = widen_all(&r, wide.out, wide.n_out);
    if (st == LS_OK)
        st = run(device, &wide);
    for (int i = 0; i < call->n_out && st == LS_OK; i++) {
        if (tensor_is_half(call->out[i]))
            st = round_into(&r, wide.out[i], call->out[i]);
    }
    drop(call->in, wide.in, call->n_in);
    drop(call->out, wide.out, call->n_out);
    return st;
}
