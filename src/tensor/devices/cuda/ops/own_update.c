/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_update.c - the operators of optimizers, clipping and gradient scaling: the arrays of many
 * calls in few launches. Calls of equal type and rates share a launch; the table of arrays is an
 * argument of the kernel, so nothing is copied to the card before it.
 */
#include "tensor/devices/cuda/ops/own.h"

static bool have_equal_rates(const op_update *a, const op_update *b)
{
    if (a == b)
        return true;
    if (a == NULL || b == NULL)
        return false;
    return a->lr == b->lr && a->momentum == b->momentum && a->dampening == b->dampening &&
           a->weight_decay == b->weight_decay && a->nesterov == b->nesterov &&
           a->first == b->first && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->step_size == b->step_size && a->root_scale == b->root_scale &&
           a->added_decay == b->added_decay && a->decay_factor == b->decay_factor;
}

/* The scalar that a call reads or writes beside its arrays; NULL: none. */
static const ls_tensor *scalar_of(const op_call *call)
{
    switch (call->op) {
    case OP_SGD:
    case OP_ADAM:
    case OP_SCALE_BY:
        return call->in[1];
    case OP_UNSCALE:
        return call->out[1];
    default:
        return NULL;
    }
}

static bool can_share_launch(const op_call *a, const op_call *b)
{
    return a->in[0]->dtype == b->in[0]->dtype && have_equal_rates(a->update, b->update) &&
           scalar_of(a) == scalar_of(b) && a->attrs.value == b->attrs.value &&
           a->attrs.scale == b->attrs.scale;
}

static update_array array_of(const op_call *call)
{
    update_array array = {.grad = NULL};

    switch (call->op) {
    case OP_SQUARES:
        array.grad = own_data(call->in[0]);
        array.state[0] = (double *)own_data(call->out[0]) + call->attrs.begin;
        break;
    case OP_SGD:
    case OP_ADAM:
        array.grad = own_data(call->in[0]);
        array.value = own_data(call->out[0]);
        for (int i = 1; i < call->n_out; i++)
            array.state[i - 1] = own_data(call->out[i]);
        break;
    default:
        array.value = own_data(call->out[0]);
    }
    return array;
}

static void add_array(update_args *a, update_array array, size_t count)
{
    array.first_chunk = (uint32_t)a->n_chunks;
    array.tail = count == 0 ? 0 : (uint32_t)((count - 1) % UPDATE_CHUNK + 1);
    a->n_chunks += (count + UPDATE_CHUNK - 1) / UPDATE_CHUNK;
    a->arrays[a->n++] = array;
}

/* What the calls of a launch have in common. */
static update_args args_of(const device_state *self, const op_call *call)
{
    update_args a = {.ticket = self->tickets};
    void *scalar = own_data(scalar_of(call));

    if (call->update != NULL)
        a.rates = *call->update;
    if (call->op == OP_SGD || call->op == OP_ADAM)
        a.skip = scalar;
    if (call->op == OP_SCALE_BY)
        a.factor = scalar;
    if (call->op == OP_UNSCALE)
        a.found = scalar;
    a.value = call->op == OP_UNSCALE ? call->attrs.scale : call->attrs.value;
    return a;
}

static const gpu_kernel *kernel_of(const op_call *call)
{
    static const gpu_kernel *const kernels[][2] = {
        [OP_SGD] = {&update_sgd_f32, &update_sgd_f64},
        [OP_ADAM] = {&update_adam_f32, &update_adam_f64},
        [OP_SQUARES] = {&squares_f32, &squares_f64},
        [OP_SCALE_BY] = {&scale_by_f32, &scale_by_f64},
        [OP_CLAMP] = {&clamp_f32, &clamp_f64},
        [OP_UNSCALE] = {&unscale_f32, &unscale_f64},
    };

    return kernels[call->op][call->in[0]->dtype == LS_F64];
}

static ls_status launch(device_state *self, const op_call *call, update_args *a)
{
    own_operands o = own_begin(self);
    const unsigned blocks = own_blocks(self, a->n_chunks * OWN_THREADS);

    if (call->op == OP_SQUARES)
        a->partial = own_memory(&o, LS_F64, a->n_chunks);
    // A sum of no elements is written too.
    if (o.status == LS_OK && (a->n_chunks > 0 || call->op == OP_SQUARES))
        o.status = cu_launch(self, kernel_of(call), blocks == 0 ? 1 : blocks, OWN_THREADS, a);
    return own_end(&o);
}

_Static_assert(sizeof(update_args) <= GPU_ARGS_MAX, "the arguments of a kernel have a limit");

bool own_is_update(op_kind op)
{
    return op == OP_SGD || op == OP_ADAM || op == OP_SQUARES || op == OP_SCALE_BY ||
           op == OP_CLAMP || op == OP_UNSCALE;
}

ls_status own_run_updates(device_state *self, const op_call *calls, int n)
{
    int i = 0;

    while (i < n) {
        const op_call *first = &calls[i];
        update_args a = args_of(self, first);

        for (; i < n && a.n < UPDATE_ARRAYS && can_share_launch(first, &calls[i]); i++)
            add_array(&a, array_of(&calls[i]), calls[i].in[0]->count);
        LS_TRY(launch(self, first, &a));
    }
    return LS_OK;
}

/* A function for each operator, for the table of kernels. */
#define UPDATE(name)                                                                               \
    void cuda_##name(own_operands *o, const op_call *call)                                         \
    {                                                                                              \
        o->status = own_run_updates(o->self, call, 1);                                             \
    }

UPDATE(sgd)
UPDATE(adam)
UPDATE(squares)
UPDATE(scale_by)
UPDATE(clamp)
UPDATE(unscale)

void cuda_clip_factor(own_operands *o, const op_call *call)
{
    const clip_factor_args a = {.squares = own_data(call->in[0]),
                                .n = call->in[0]->count,
                                .limit = call->attrs.value,
                                .norm = own_data(call->out[0]),
                                .factor = own_data(call->out[1])};

    o->status = cu_launch(o->self, &clip_factor, 1, 64, &a);
}
