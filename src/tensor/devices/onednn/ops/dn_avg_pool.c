/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_avg_pool.c - average pooling, plain and adaptive, on any layout; the result has the layout of
 * the input.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/window.h"

#include <string.h>

typedef struct avg_work {
    const simd_table *simd;
    const op_attrs *attrs;
    grid in; /* x's or dx's */
    grid out;
    plane_buffers buffers;
    const void *from; /* x or dy */
    void *to;         /* y or dx */
} avg_work;

/* The window of output (oh, ow). Gives its first position in the plane. */
static size_t window_at(const avg_work *w, size_t oh, size_t ow, avg_window *k)
{
    const window_span h =
        window_average(w->attrs, 0, (int64_t)w->in.h, (int64_t)w->out.h, (int64_t)oh);
    const window_span v =
        window_average(w->attrs, 1, (int64_t)w->in.w, (int64_t)w->out.w, (int64_t)ow);

    *k = (avg_window){.h = (size_t)(h.end - h.begin),
                      .w = (size_t)(v.end - v.begin),
                      .row = w->in.w * w->in.inner,
                      .lanes = w->in.inner,
                      .size = (float)(h.size * v.size)};
    return ((size_t)h.begin * w->in.w + (size_t)v.begin) * w->in.inner;
}

static size_t in_floats(const avg_work *w)
{
    return w->in.h * w->in.w * w->in.inner;
}

static size_t out_floats(const avg_work *w)
{
    return w->out.h * w->out.w * w->in.inner;
}

static void mean_plane(const avg_work *w, const float *x, float *y)
{
    avg_window k;

    for (size_t oh = 0; oh < w->out.h; oh++) {
        for (size_t ow = 0; ow < w->out.w; ow++, y += w->in.inner) {
            const size_t at = window_at(w, oh, ow, &k);

            w->simd->pool_mean(&k, x + at, y);
        }
    }
}

static void mean_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const avg_work *w = arg;
    const size_t n = out_floats(w);

    for (size_t plane = begin; plane < end; plane++) {
        const float *x =
            plane_read(&w->buffers, thread, w->from, plane * in_floats(w), in_floats(w));
        float *y = plane_begin(&w->buffers, thread, w->to, plane * n);

        mean_plane(w, x, y);
        convert_out(&w->buffers.c, y, w->to, plane * n, n);
    }
}

static void back_plane(const avg_work *w, const float *dy, float *dx)
{
    avg_window k;

    memset(dx, 0, in_floats(w) * sizeof(float));
    for (size_t oh = 0; oh < w->out.h; oh++) {
        for (size_t ow = 0; ow < w->out.w; ow++, dy += w->in.inner) {
            const size_t at = window_at(w, oh, ow, &k);

            w->simd->pool_mean_backward(&k, dy, dx + at);
        }
    }
}

static void back_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const avg_work *w = arg;
    const size_t n = in_floats(w);

    for (size_t plane = begin; plane < end; plane++) {
        const float *dy =
            plane_read(&w->buffers, thread, w->from, plane * out_floats(w), out_floats(w));
        float *dx = plane_begin(&w->buffers, thread, w->to, plane * n);

        back_plane(w, dy, dx);
        convert_out(&w->buffers.c, dx, w->to, plane * n, n);
    }
}

/* `like` has the type; the planes that are read have n floats. */
static ls_status run(const device_state *self, avg_work *w, const ls_tensor *like, size_t n,
                     range_fn fn)
{
    LS_TRY(plane_buffers_make(self, like, n, in_floats(w) + out_floats(w) - n, &w->buffers));
    threads_for(self, w->in.n * w->in.blocks, in_floats(w), fn, w);
    dn_host->tensor_destroy(w->buffers.memory);
    return LS_OK;
}

/* The channels of one position are contiguous, except in a layout with a padded last block. */
static bool is_row(const ls_tensor *t, size_t inner)
{
    return t->dims[2] == 1 && t->dims[3] == 1 && (size_t)t->dims[1] % inner == 0;
}

ls_status dn_avg_pool2d(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const y = call->out[0];
    avg_work w = {.simd = self->simd, .attrs = &call->attrs};
    const layout *like;

    LS_TRY(grid_walkable(x, &w.in));
    like = layout_of(self, x);
    if (like != NULL && is_row(y, w.in.inner))
        like = layout_plain_as(self, y->dtype, 4,
                               y->dims); // no layout change after the last pool of a network
    else if (like != NULL)
        like = layout_like(self, like, 4, y->dims);
    LS_TRY(layout_place(y, like));
    (void)grid_of(y, &w.out);
    w.from = dn_data(x);
    w.to = dn_data(y);
    return run(self, &w, x, in_floats(&w), mean_range);
}

/* The layout of dx: that of dy, which usually is that of x. If the pool's results were rows, dy is
 * plain, and the layout that most convolutions prefer is the best guess. */
static const layout *gradient_layout(device_state *self, const ls_tensor *dy, const ls_tensor *dx)
{
    const layout *like = layout_of(self, dy);
    const layout *images = layout_of_images(self, dx->dtype, dx->dims);

    if (like == NULL || images == NULL)
        return NULL;
    if (like->kind == LAYOUT_PLAIN && is_row(dy, images->block > 0 ? (size_t)images->block : 1))
        return images;
    return layout_like(self, like, 4, dx->dims);
}

ls_status dn_avg_pool2d_backward(device_state *self, const op_call *call)
{
    ls_tensor *const dy = call->in[0];
    ls_tensor *const dx = call->out[0];
    avg_work w = {.simd = self->simd, .attrs = &call->attrs};

    LS_TRY(grid_walkable(dy, &w.out));
    LS_TRY(layout_place(dx, gradient_layout(self, dy, dx)));
    (void)grid_of(dx, &w.in);
    w.from = dn_data(dy);
    w.to = dn_data(dx);
    return run(self, &w, dy, out_floats(&w), back_range);
}
