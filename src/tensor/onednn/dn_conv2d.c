/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_conv2d.c - convolutions by oneDNN.
 */
#include "tensor/onednn/dn.h"

#include <string.h>

/* x: (N,C,H,W), w: (O,C/groups,KH,KW); only their dimensions count. */
static primitive_key key_of(const op_call *call, compat_prop prop, const ls_tensor *x,
                            const ls_tensor *w)
{
    primitive_key key;

    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_CONV2D;
    key.prop = prop;
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

/* Notes how an input lies. False without memory. */
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

static conv2d_kernel choose(const device_state *self, const op_call *call,
                            conv2d_direction direction, const ls_tensor *x, const ls_tensor *w,
                            const ls_tensor *y)
{
    return conv2d_choose(self->isa, self->convolutions, direction, &call->attrs, x->dims, w->dims,
                         y->dims);
}

ls_status dn_conv2d(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const bias = call->in[2];
    ls_tensor *const y = call->out[0];
    primitive_key key = key_of(call, COMPAT_FORWARD, x, call->in[1]);
    ls_tensor *moved = NULL;
    ls_tensor *weights = NULL;
    primitive *p;
    void *data[4] = {NULL, NULL, NULL, NULL};
    ls_status st;

    switch (choose(self, call, CONV2D_FORWARD, x, call->in[1], y)) {
    case CONV2D_FEW:
        return conv2d_few(self, call);
    case CONV2D_ROWS:
        return conv2d_rows(self, call);
    case CONV2D_WINOGRAD:
        return conv2d_winograd(self, call);
    default:
        break;
    }
    key.has_bias = bias != NULL;
    if (!note_layout(self, &key, 0, x))
        return no_memory();
    LS_TRY(primitive_for(self, &key, &p));
    if (bias != NULL)
        LS_TRY(dn_host->tensor_plain(bias, &data[3]));
    LS_TRY(layout_place(y, p->dst));
    data[2] = dn_data(y);
    st = packed_weights(self, call->in[1], p->weights, uses_of(y), &weights, &data[1]);
    if (st == LS_OK)
        st = layout_arrange(self, x, p->src, &moved, &data[0]);
    if (st == LS_OK)
        st = primitive_run(self, p, data);
    dn_host->tensor_destroy(weights);
    dn_host->tensor_destroy(moved);
    return st;
}

ls_status dn_conv2d_backward_data(device_state *self, const op_call *call)
{
    ls_tensor *const dy = call->in[0];
    ls_tensor *const dx = call->out[0];
    primitive_key key = key_of(call, COMPAT_BACKWARD_DATA, dx, call->in[1]);
    ls_tensor *moved = NULL;
    ls_tensor *weights = NULL;
    primitive *p;
    void *data[3] = {NULL, NULL, NULL};
    ls_status st;

    switch (choose(self, call, CONV2D_BACKWARD_DATA, dx, call->in[1], dy)) {
    case CONV2D_ROWS:
        return conv2d_rows_backward_data(self, call);
    case CONV2D_WINOGRAD:
        return conv2d_winograd_backward_data(self, call);
    default:
        break;
    }
    if (!note_layout(self, &key, 0, dy))
        return no_memory();
    LS_TRY(primitive_for(self, &key, &p));
    LS_TRY(layout_place(dx, p->src));
    data[0] = dn_data(dx);
    st = packed_weights(self, call->in[1], p->weights, uses_of(dy), &weights, &data[1]);
    if (st == LS_OK)
        st = layout_arrange(self, dy, p->dst, &moved, &data[2]);
    if (st == LS_OK)
        st = primitive_run(self, p, data);
    dn_host->tensor_destroy(weights);
    dn_host->tensor_destroy(moved);
    return st;
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
    primitive_key key = key_of(call, COMPAT_BACKWARD_WEIGHTS, call->in[0], call->out[0]);
    const layout *bias = layout_plain(self, 1, &call->out[0]->dims[0]);
    weights_work temporaries = {NULL, NULL, NULL, NULL};
    primitive *p;
    ls_status st;

    switch (choose(self, call, CONV2D_BACKWARD_WEIGHTS, call->in[0], call->out[0], call->in[1])) {
    case CONV2D_FEW:
        return conv2d_few_backward_weights(self, call);
    case CONV2D_ROWS:
        return conv2d_rows_backward_weights(self, call);
    case CONV2D_WINOGRAD:
        return conv2d_winograd_backward_weights(self, call);
    default:
        break;
    }
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
