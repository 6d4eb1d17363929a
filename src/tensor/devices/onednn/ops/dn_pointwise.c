/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_pointwise.c - copies, sums, ReLU and other activations. The layout does not matter if all
 * tensors have the same; the padding of the last block of channels is 0 and stays 0.
 */
#include "tensor/devices/onednn/dn.h"

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

    return l != NULL ? l->bytes : t->count * sizes[t->dtype];
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

/* --- element by element --- */

/* Floats of a piece of 16-bit elements: three of them are on the stack. */
#define PIECE_FLOATS 1024

typedef struct point_work point_work;

struct point_work {
    const simd_table *simd;
    ls_activation function;
    float param[2];
    op_binary binary;
    float value;
    converter c;
    const void *a;
    const void *b; /* NULL: not read */
    void *out;     /* may be a or b */
    void (*run)(const point_work *w, const float *a, const float *b, float *out, size_t n);
};

static void convert_pieces(const point_work *w, size_t begin, size_t end)
{
    float a[PIECE_FLOATS];
    float b[PIECE_FLOATS];
    float out[PIECE_FLOATS];
    size_t n;

    for (size_t at = begin; at < end; at += n) {
        n = end - at < PIECE_FLOATS ? end - at : PIECE_FLOATS;
        (void)convert_in(&w->c, w->a, at, a, n);
        if (w->b != NULL)
            (void)convert_in(&w->c, w->b, at, b, n);
        w->run(w, a, b, out, n);
        convert_out(&w->c, out, w->out, at, n);
    }
}

static void run_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const point_work *w = arg;
    const float *b = w->b;

    LS_UNUSED(thread);
    if (w->c.widen != NULL)
        convert_pieces(w, begin, end);
    else
        w->run(w, (const float *)w->a + begin, b == NULL ? NULL : b + begin,
               (float *)w->out + begin, end - begin);
}

/* On n elements of that type. */
static void run_elements(const device_state *self, point_work *w, ls_dtype type, size_t n)
{
    w->simd = self->simd;
    w->c = converter_of(self, type);
    threads_for(self, n, 1, run_range, w);
}

/* All tensors have layout `l`. */
static void run_points(const device_state *self, point_work *w, const layout *l)
{
    run_elements(self, w, l->type, layout_elements(l));
}

/* Whether the tensors, of which b may be NULL, are plain. Then no layout is needed, which for small
 * tensors would take longer to look up than the operator takes. */
static bool are_plain(const ls_tensor *a, const ls_tensor *b)
{
    return a->storage->layout == NULL &&
           (b == NULL || (b->storage->layout == NULL && b->dtype == a->dtype));
}

/* out[0], which is placed, from the plain in[0] and `b`, or NULL, of the same shape. */
static void run_plain(const device_state *self, const op_call *call, point_work *w,
                      const ls_tensor *b)
{
    const ls_tensor *a = call->in[0];

    w->a = dn_data(a);
    w->b = dn_data(b);
    w->out = dn_data(call->out[0]);
    run_elements(self, w, a->dtype, a->count);
}

static void run_binary(const point_work *w, const float *a, const float *b, float *out, size_t n)
{
    w->simd->binary(w->binary, w->value, a, b, out, n);
}

static void run_add_relu(const point_work *w, const float *a, const float *b, float *out, size_t n)
{
    w->simd->add_relu(a, b, out, n);
}

static void run_relu(const point_work *w, const float *a, const float *b, float *out, size_t n)
{
    LS_UNUSED(b);
    w->simd->relu(a, out, n);
}

static void run_relu_backward(const point_work *w, const float *y, const float *dy, float *dx,
                              size_t n)
{
    w->simd->relu_backward(y, dy, dx, n);
}

static void run_activate(const point_work *w, const float *a, const float *b, float *out, size_t n)
{
    LS_UNUSED(b);
    w->simd->activate(w->function, w->param, a, out, n);
}

static void run_activate_backward(const point_work *w, const float *x, const float *dy, float *dx,
                                  size_t n)
{
    w->simd->activate_backward(w->function, w->param, x, dy, dx, n);
}

/* --- sums --- */

ls_status dn_add_into(device_state *self, const op_call *call)
{
    const ls_tensor *src = call->in[0];
    const ls_tensor *dst = call->out[0];
    point_work w = {.binary = BINARY_ADD, .run = run_binary};
    const layout *from;
    const layout *to;

    if (are_plain(src, dst)) {
        run_plain(self, call, &w, dst);
        return LS_OK;
    }
    from = layout_of(self, src);
    to = layout_of(self, dst);
    if (from != to || from == NULL)
        return layout_reorder(self, from, dn_data(src), to, dn_data(dst), REORDER_ADDS);
    w.a = dn_data(dst);
    w.b = dn_data(src);
    w.out = dn_data(dst);
    run_points(self, &w, from);
    return LS_OK;
}

/* out[0] from in[0] and in[1] of equal shapes. */
static ls_status run_two(device_state *self, const op_call *call, point_work w)
{
    ls_tensor *moved[2] = {NULL, NULL};
    void *in[2] = {NULL, NULL};
    const layout *l;
    ls_status st;

    if (are_plain(call->in[0], call->in[1])) {
        LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
        run_plain(self, call, &w, call->in[1]);
        return LS_OK;
    }
    l = common_layout(self, call->in[0], call->in[1]);
    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place(call->out[0], l));
    st = layout_arrange(self, call->in[0], l, &moved[0], &in[0]);
    if (st == LS_OK)
        st = layout_arrange(self, call->in[1], l, &moved[1], &in[1]);
    w.a = in[0];
    w.b = in[1];
    w.out = dn_data(call->out[0]);
    if (st == LS_OK)
        run_points(self, &w, l);
    dn_host->tensor_destroy(moved[0]);
    dn_host->tensor_destroy(moved[1]);
    return st;
}

ls_status dn_add_relu(device_state *self, const op_call *call)
{
    return run_two(self, call, (point_work){.run = run_add_relu});
}

/* Whether the last block of channels has padding, which must stay 0. */
static bool has_filling(const ls_tensor *x)
{
    const layout *l = x->storage->layout;

    if (l == NULL || l->kind == LAYOUT_NHWC)
        return false;
    return l->kind != LAYOUT_BLOCKED || x->dims[1] % l->block != 0;
}

ls_status dn_binary_alike(device_state *self, const op_call *call)
{
    void *data;

    for (int i = 0; i < 2 && call->attrs.binary == BINARY_DIV; i++) {
        if (has_filling(call->in[i])) // 0 / 0
            LS_TRY(dn_host->tensor_plain(call->in[i], &data));
    }
    return run_two(self, call,
                   (point_work){.binary = call->attrs.binary,
                                .value = (float)call->attrs.value,
                                .run = run_binary});
}

/* --- ReLU and other activations --- */

/* out[0] from in[0]. */
static ls_status run_forward(device_state *self, const op_call *call, point_work w)
{
    const layout *l;

    if (are_plain(call->in[0], NULL)) {
        LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
        run_plain(self, call, &w, NULL);
        return LS_OK;
    }
    l = layout_of(self, call->in[0]);
    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place(call->out[0], l));
    w.a = dn_data(call->in[0]);
    w.out = dn_data(call->out[0]);
    run_points(self, &w, l);
    return LS_OK;
}

/* out[0] from in[0] and the gradient in[1]. */
static ls_status run_backward(device_state *self, const op_call *call, point_work w)
{
    ls_tensor *moved = NULL;
    void *dy = NULL;
    const layout *l;
    ls_status st;

    if (are_plain(call->in[0], call->in[1])) {
        if (call->may_reuse_grad && call->in[1]->offset == 0)
            dn_host->tensor_share(call->out[0], call->in[1]);
        else
            LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
        run_plain(self, call, &w, call->in[1]);
        return LS_OK;
    }
    l = layout_of(self, call->in[0]);
    if (l == NULL)
        return no_memory();
    LS_TRY(layout_place_over(self, call, call->out[0], l));
    st = layout_arrange(self, call->in[1], l, &moved, &dy);
    w.a = dn_data(call->in[0]);
    w.b = dy;
    w.out = dn_data(call->out[0]);
    if (st == LS_OK)
        run_points(self, &w, l);
    dn_host->tensor_destroy(moved);
    return st;
}

ls_status dn_relu(device_state *self, const op_call *call)
{
    return run_forward(self, call, (point_work){.run = run_relu});
}

ls_status dn_relu_backward(device_state *self, const op_call *call)
{
    return run_backward(self, call, (point_work){.run = run_relu_backward});
}

/* Whether f(0) is 0 and the derivative there a number, so that padding stays 0. */
static bool keeps_0(ls_activation f)
{
    static const uint32_t functions =
        1U << LS_ACT_RELU6 | 1U << LS_ACT_SILU | 1U << LS_ACT_HARDSWISH | 1U << LS_ACT_GELU |
        1U << LS_ACT_GELU_TANH | 1U << LS_ACT_TANH | 1U << LS_ACT_ABS | 1U << LS_ACT_SQUARE |
        1U << LS_ACT_SIN | 1U << LS_ACT_LEAKY_RELU | 1U << LS_ACT_ELU;

    return (functions >> f & 1) != 0;
}

/* x without padding, if the function would change that. */
static ls_status open_activation(const op_call *call, point_work *w)
{
    void *data;

    w->function = call->attrs.activation;
    w->param[0] = (float)call->attrs.param[0];
    w->param[1] = (float)call->attrs.param[1];
    return !keeps_0(w->function) && has_filling(call->in[0])
               ? dn_host->tensor_plain(call->in[0], &data)
               : LS_OK;
}

ls_status dn_activate(device_state *self, const op_call *call)
{
    point_work w = {.run = run_activate};

    LS_TRY(open_activation(call, &w));
    return run_forward(self, call, w);
}

ls_status dn_activate_backward(device_state *self, const op_call *call)
{
    point_work w = {.run = run_activate_backward};

    LS_TRY(open_activation(call, &w));
    return run_backward(self, call, w);
}
