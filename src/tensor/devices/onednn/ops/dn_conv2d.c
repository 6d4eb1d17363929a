/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d.c - convolutions: runs one of our kernels where conv2d_choose() selects one, else
 * oneDNN's.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* x: (N,C,H,W), w: (O,C/groups,KH,KW); only their dimensions count. */
static primitive_key key_of(const op_call *call, compat_prop prop, const ls_tensor *x,
                            const ls_tensor *w)
{
    primitive_key key;

    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_CONV2D;
    key.prop = prop;
    key.type = call->in[0]->dtype;
    key.groups = call->attrs.groups;
    for (int i = 0; i < 2; i++) {
        key.stride[i] = call->attrs.stride[i];
        key.padding[i] = call->attrs.padding[i];
        key.dilation[i] = call->attrs.dilation[i];
    }
    memcpy(key.src, x->dims, sizeof(key.src));
    memcpy(key.weights, w->dims, sizeof(key.weights));
    return key;
}

/* Sets the layout of input i. False without memory. */
static bool note_layout(device_state *self, primitive_key *key, int i, const ls_tensor *t)
{
    key->layouts[i] = layout_of(self, t);
    return key->layouts[i] != NULL;
}

static ls_status no_memory(void)
{
    return dn_fail(LS_ENOMEM, "no memory for a layout");
}

/* How often each weight is multiplied: once for each position of y. */
static size_t uses_of(const ls_tensor *y)
{
    return (size_t)(y->dims[0] * y->dims[2] * y->dims[3]);
}

/* By kernel and direction. */
static const kernel_fn own_kernels[CONV2D_KERNELS][3] = {
    [CONV2D_FEW] = {conv2d_few, NULL, conv2d_few_backward_weights},
    [CONV2D_ROWS] = {conv2d_rows, conv2d_rows_backward_data, conv2d_rows_backward_weights},
    [CONV2D_WINOGRAD] = {conv2d_winograd, conv2d_winograd_backward_data,
                         conv2d_winograd_backward_weights},
    [CONV2D_PRODUCT] = {NULL, conv2d_product_backward_data, conv2d_product_backward_weights},
#ifdef SIMD_HAS_X86_TABLES
    [CONV2D_PAIRS] = {NULL, conv2d_pairs_backward_data, conv2d_pairs_backward_weights},
#endif
};

/* Our kernel for this call; NULL: oneDNN's. */
static kernel_fn own_kernel(const device_state *self, const op_call *call,
                            conv2d_direction direction, const ls_tensor *x, const ls_tensor *w,
                            const ls_tensor *y)
{
    const conv2d_kernel kernel = conv2d_choose(self->isa, self->convolutions, call->in[0]->dtype,
                                               direction, &call->attrs, x->dims, w->dims, y->dims);
    const bool has_bias = direction == CONV2D_BACKWARD_WEIGHTS && call->out[1] != NULL;

    return (kernel == CONV2D_PRODUCT || kernel == CONV2D_PAIRS) && has_bias
               ? NULL
               : own_kernels[kernel][direction];
}

/* oneDNN's convolution in[0] -> out[0] with the weights in[1]: forward, or backward by data. */
static ls_status run_onednn(device_state *self, const op_call *call, primitive_key *key)
{
    const bool is_forward = key->prop == COMPAT_FORWARD;
    ls_tensor *const in = call->in[0];
    ls_tensor *const out = call->out[0];
    ls_tensor *moved = NULL;
    ls_tensor *weights = NULL;
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL}; // x or dx, weights, y or dy, bias
    ls_status st;

    if (!note_layout(self, key, 0, in))
        return no_memory();
    LS_TRY(primitive_for(self, key, &p));
    if (key->has_bias)
        LS_TRY(dn_host->tensor_plain(call->in[2], &data[3]));
    LS_TRY(layout_place(out, is_forward ? p->dst : p->src));
    data[is_forward ? 2 : 0] = dn_data(out);
    st = packed_weights(self, call->in[1], p->weights, uses_of(is_forward ? out : in), &weights,
                        &data[1]);
    if (st == LS_OK)
        st = layout_arrange(self, in, is_forward ? p->src : p->dst, &moved,
                            &data[is_forward ? 0 : 2]);
    if (st == LS_OK)
        st = primitive_run(self, p, data);
    dn_host->tensor_destroy(weights);
    dn_host->tensor_destroy(moved);
    return st;
}

ls_status dn_conv2d(device_state *self, const op_call *call)
{
    const kernel_fn own =
        own_kernel(self, call, CONV2D_FORWARD, call->in[0], call->in[1], call->out[0]);
    primitive_key key = key_of(call, COMPAT_FORWARD, call->in[0], call->in[1]);

    key.has_bias = call->in[2] != NULL;
    return own != NULL ? own(self, call) : run_onednn(self, call, &key);
}

ls_status dn_conv2d_backward_data(device_state *self, const op_call *call)
{
    const kernel_fn own =
        own_kernel(self, call, CONV2D_BACKWARD_DATA, call->out[0], call->in[1], call->in[0]);
    primitive_key key = key_of(call, COMPAT_BACKWARD_DATA, call->out[0], call->in[1]);

    return own != NULL ? own(self, call) : run_onednn(self, call, &key);
}

/* The temporaries of a backward by weights. */
typedef struct weights_work {
    ls_tensor *x;
    ls_tensor *dy;
    ls_tensor *dw;
    ls_tensor *db;
} weights_work;

static ls_status run_backward_weights(device_state *self, const op_call *call, primitive *p,
                                      const layout *bias, weights_work *t)
{
    void *data[4] = {NULL, NULL, NULL, NULL};

    LS_TRY(layout_arrange(self, call->in[0], p->src, &t->x, &data[0]));
    LS_TRY(gradient_begin(self, call, call->out[0], p->weights, &t->dw, &data[1]));
    LS_TRY(layout_arrange(self, call->in[1], p->dst, &t->dy, &data[2]));
    if (call->out[1] != NULL)
        LS_TRY(gradient_begin(self, call, call->out[1], bias, &t->db, &data[3]));
    LS_TRY(primitive_run(self, p, data));
    LS_TRY(gradient_end(self, call, call->out[0], p->weights, t->dw));
    if (call->out[1] != NULL)
        LS_TRY(gradient_end(self, call, call->out[1], bias, t->db));
    return LS_OK;
}

ls_status dn_conv2d_backward_weights(device_state *self, const op_call *call)
{
    const kernel_fn own =
        own_kernel(self, call, CONV2D_BACKWARD_WEIGHTS, call->in[0], call->out[0], call->in[1]);
    primitive_key key = key_of(call, COMPAT_BACKWARD_WEIGHTS, call->in[0], call->out[0]);
    const layout *bias = layout_plain(self, 1, &call->out[0]->dims[0]);
    weights_work temporaries = {NULL, NULL, NULL, NULL};
    primitive *p;
    ls_status st;

    if (own != NULL)
        return own(self, call);
    key.has_bias = call->out[1] != NULL;
    if (!note_layout(self, &key, 0, call->in[0]) || !note_layout(self, &key, 1, call->in[1]) ||
        bias == NULL)
        return no_memory();
    LS_TRY(primitive_for(self, &key, &p));
    st = run_backward_weights(self, call, p, bias, &temporaries);
    dn_host->tensor_destroy(temporaries.x);
    dn_host->tensor_destroy(temporaries.dy);
    dn_host->tensor_destroy(temporaries.dw);
    dn_host->tensor_destroy(temporaries.db);
    return st;
}
