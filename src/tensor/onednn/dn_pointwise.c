/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_pointwise.c - copies, sums, ReLU and other activations. The layout does not matter if all
 * tensors have the same; the padding of the last block of channels is 0 and stays 0.
 */
#include "tensor/onednn/dn.h"

#include <string.h>

/* The common layout of two tensors: the one that is not plain, if there is one. */
static const layout *common_layout(device_state *self, const ls_tensor *a, const ls_tensor *b)
{
    return a->storage->layout != NULL ? a->storage->layout : layout_of(self, b);
}

static ls_status no_memory(void)
{
    return dn_fail(LS_ENOMEM, "no memory for a layout");
}

/* --- copies --- */

static size_t element_bytes(const ls_tensor *t, const layout *l)
{
    static const size_t sizes[LS_DTYPE_COUNT] = {1, 1, 4, 8, 2, 2, 4, 8};
    size_t bytes = sizes[t->dtype];

    if (l != NULL)
        return l->bytes;
    for (int i = 0; i < t->n_dims; i++)
        bytes *= (size_t)t->dims[i];
    return bytes;
}

ls_status dn_copy(device_state *self, const op_call *call)
{
    const ls_tensor *src = call->in[0];
    const ls_tensor *dst = call->out[0];
    const layout *from;
    const layout *to;

    if (src->storage->layout == dst->storage->layout) {
        memmove(dn_data(dst), dn_data(src), element_bytes(src, src->storage->layout));
        return LS_OK;
    }
    from = layout_of(self, src);
    to = layout_of(self, dst);
    return layout_reorder(self, from, dn_data(src), to, dn_data(dst), 0);
}

/* --- sums --- */

typedef struct add_work {
    const simd_table *simd;
    const float *a;
    const float *b;
    float *y;
} add_work;

static void add_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const add_work *w = arg;

    LS_UNUSED(thread);
    w->simd->add(w->a + begin, w->b + begin, w->y + begin, end - begin);
}

static void add_relu_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const add_work *w = arg;

    LS_UNUSED(thread);
    w->simd->add_relu(w->a + begin, w->b + begin, w->y + begin, end - begin);
}

static void add(const device_state *self, add_work w, size_t n, range_fn fn)
{
    w.simd = self->simd;
    threads_for(self, n, 1, fn, &w);
}

ls_status dn_add_into(device_state *self, const op_call *call)
{
    const ls_tensor *src = call->in[0];
    const ls_tensor *dst = call->out[0];
    const layout *from = layout_of(self, src);
    const layout *to = layout_of(self, dst);

    if (from != to || from == NULL)
        return layout_reorder(self, from, dn_data(src), to, dn_data(dst), REORDER_ADDS);
    add(self, (add_work){.a = dn_data(dst), .b = dn_data(src), .y = dn_data(dst)},
        from->bytes / sizeof(float), add_range);
    return LS_OK;
}

static ls_status add_two(device_state *self, const op_call *call, range_fn fn)
{
    const layout *l = common_layout(self, call->in[0], call->in[1]);
    ls_tensor *moved[2] = {NULL, NULL};
    void *in[2] = {NULL, NULL};
    ls_status st;

    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place(call->out[0], l));
    st = layout_arrange(self, call->in[0], l, &moved[0], &in[0]);
    if (st == LS_OK)
        st = layout_arrange(self, call->in[1], l, &moved[1], &in[1]);
    if (st == LS_OK)
        add(self, (add_work){.a = in[0], .b = in[1], .y = dn_data(call->out[0])},
            l->bytes / sizeof(float), fn);
    dn_host->tensor_destroy(moved[0]);
    dn_host->tensor_destroy(moved[1]);
    return st;
}

ls_status dn_add(device_state *self, const op_call *call)
{
    return add_two(self, call, add_range);
}

ls_status dn_add_relu(device_state *self, const op_call *call)
{
    return add_two(self, call, add_relu_range);
}

/* --- ReLU --- */

typedef struct relu_work {
    const simd_table *simd;
    const float *x; /* backward: y */
    const float *dy;
    float *out;
} relu_work;

static void relu_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const relu_work *w = arg;

    LS_UNUSED(thread);
    w->simd->relu(w->x + begin, w->out + begin, end - begin);
}

ls_status dn_relu(device_state *self, const op_call *call)
{
    const layout *l = layout_of(self, call->in[0]);
    relu_work w = {.simd = self->simd};

    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place(call->out[0], l));
    w.x = dn_data(call->in[0]);
    w.out = dn_data(call->out[0]);
    threads_for(self, l->bytes / sizeof(float), 1, relu_range, &w);
    return LS_OK;
}

static void relu_backward_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const relu_work *w = arg;

    LS_UNUSED(thread);
    w->simd->relu_backward(w->x + begin, w->dy + begin, w->out + begin, end - begin);
}

ls_status dn_relu_backward(device_state *self, const op_call *call)
{
    const layout *l = layout_of(self, call->in[0]);
    ls_tensor *moved = NULL;
    void *dy = NULL;
    ls_status st;

    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place_over(self, call, l));
    st = layout_arrange(self, call->in[1], l, &moved, &dy);
    if (st == LS_OK) {
        relu_work w = {
            .simd = self->simd, .x = dn_data(call->in[0]), .dy = dy, .out = dn_data(call->out[0])};

        threads_for(self, l->bytes / sizeof(float), 1, relu_backward_range, &w);
    }
    dn_host->tensor_destroy(moved);
    return st;
}

/* --- activations --- */

typedef struct activate_work {
    const simd_table *simd;
    ls_activation function;
    const float *x;
    const float *dy;
    float *out;
} activate_work;

static void activate_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const activate_work *w = arg;

    LS_UNUSED(thread);
    w->simd->activate(w->function, w->x + begin, w->out + begin, end - begin);
}

static void activate_backward_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const activate_work *w = arg;

    LS_UNUSED(thread);
    w->simd->activate_backward(w->function, w->x + begin, w->dy + begin, w->out + begin,
                               end - begin);
}

/* Whether f(0) is 0, so that the padding of a last block stays 0. */
static bool keeps_filling(ls_activation f, const ls_tensor *x)
{
    const layout *l = x->storage->layout;

    if (l == NULL || l->kind == LAYOUT_NHWC || (f != LS_ACT_SIGMOID && f != LS_ACT_HARDSIGMOID))
        return true;
    return l->kind == LAYOUT_BLOCKED && x->dims[1] % l->block == 0;
}

ls_status dn_activate(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    activate_work w = {.simd = self->simd, .function = call->attrs.activation};
    const layout *l;
    void *data;

    if (!keeps_filling(w.function, x))
        LS_TRY(dn_host->tensor_plain(x, &data));
    l = layout_of(self, x);
    LS_TRY(layout_place(call->out[0], l));
    w.x = dn_data(x);
    w.out = dn_data(call->out[0]);
    threads_for(self, l->bytes / sizeof(float), 1, activate_range, &w);
    return LS_OK;
}

ls_status dn_activate_backward(device_state *self, const op_call *call)
{
    const layout *l = layout_of(self, call->in[0]);
    activate_work w = {.simd = self->simd, .function = call->attrs.activation};
    ls_tensor *moved = NULL;
    void *dy = NULL;
    ls_status st;

    LS_TRY(layout_place_over(self, call, l));
    st = layout_arrange(self, call->in[1], l, &moved, &dy);
    if (st == LS_OK) {
        w.x = dn_data(call->in[0]);
        w.dy = dy;
        w.out = dn_data(call->out[0]);
        threads_for(self, l->bytes / sizeof(float), 1, activate_backward_range, &w);
    }
    dn_host->tensor_destroy(moved);
    return st;
}
