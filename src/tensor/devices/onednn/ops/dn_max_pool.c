/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_max_pool.c - max pooling, our own on any layout: oneDNN 2.6 takes four times as long.
 *
 * The indices are bytes in the layout of y: the number of the maximum within its window. Their
 * storage has the layout of x, in which backward places dx.
 */
#include "tensor/devices/onednn/dn.h"

#define WINDOW_MAX 256 /* positions that a byte can number */

typedef struct pool_work {
    const simd_table *simd;
    pool_plane plane;
    size_t in_floats; /* of a plane */
    size_t out_floats;
    plane_buffers buffers;
    const void *from; /* x, or dy */
    void *to;         /* y, or dx */
    uint8_t *indices;
} pool_work;

/* in: x's or dx's grid, out: y's or dy's. */
static pool_work work_for(device_state *self, const op_call *call, const grid *in, const grid *out)
{
    pool_work w = {
        .simd = self->simd,
        .plane = {.h = in->h, .w = in->w, .out_h = out->h, .out_w = out->w, .lanes = in->inner},
        .in_floats = in->h * in->w * in->inner,
        .out_floats = out->h * out->w * in->inner};

    for (int i = 0; i < 2; i++) {
        w.plane.kernel[i] = (size_t)call->attrs.kernel[i];
        w.plane.stride[i] = (size_t)call->attrs.stride[i];
        w.plane.padding[i] = (size_t)call->attrs.padding[i];
    }
    return w;
}

static void max_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const pool_work *w = arg;

    for (size_t i = begin; i < end; i++) {
        const size_t at = i * w->out_floats;
        const float *x = plane_read(&w->buffers, thread, w->from, i * w->in_floats, w->in_floats);
        float *y = plane_begin(&w->buffers, thread, w->to, at);

        w->simd->pool_max(&w->plane, x, y, w->indices == NULL ? NULL : w->indices + at);
        convert_out(&w->buffers.c, y, w->to, at, w->out_floats);
    }
}

static void back_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const pool_work *w = arg;

    for (size_t i = begin; i < end; i++) {
        const size_t at = i * w->out_floats;
        const float *dy = plane_read(&w->buffers, thread, w->from, at, w->out_floats);
        float *dx = plane_begin(&w->buffers, thread, w->to, i * w->in_floats);

        w->simd->pool_max_backward(&w->plane, dy, w->indices + at, dx);
        convert_out(&w->buffers.c, dx, w->to, i * w->in_floats, w->in_floats);
    }
}

bool max_pool_fits(const op_call *call)
{
    const int64_t positions = (int64_t)call->attrs.kernel[0] * call->attrs.kernel[1];

    return positions <= WINDOW_MAX;
}

/* One byte per element of y, with x's layout: indices of a plain x are plain. */
static ls_status place_indices(ls_tensor *indices, const layout *x, const layout *y, uint8_t **out)
{
    indices->dtype = LS_U8;
    LS_TRY(layout_place_bytes(indices, x, layout_elements(y)));
    *out = dn_data(indices);
    return LS_OK;
}

ls_status dn_max_pool2d(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const y = call->out[0];
    const layout *like;
    const layout *l;
    grid in;
    grid out;
    pool_work w;

    LS_TRY(grid_walkable(x, &in));
    like = layout_of(self, x);
    l = like == NULL ? NULL : layout_like(self, like, 4, y->dims);
    if (l == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_place(y, l));
    (void)grid_of(y, &out);
    w = work_for(self, call, &in, &out);
    w.from = dn_data(x);
    w.to = dn_data(y);
    if (call->out[1] != NULL)
        LS_TRY(place_indices(call->out[1], like, l, &w.indices));
    LS_TRY(plane_buffers_make(self, x, w.in_floats, w.out_floats, &w.buffers));
    threads_for(self, in.n * in.blocks, w.in_floats, max_range, &w);
    dn_host->tensor_destroy(w.buffers.memory);
    return LS_OK;
}

ls_status dn_max_pool2d_backward(device_state *self, const op_call *call)
{
    ls_tensor *const dy = call->in[0];
    ls_tensor *const indices = call->in[1];
    ls_tensor *const dx = call->out[0];
    const layout *like = indices->storage->layout;
    const layout *l = like == NULL ? layout_plain_as(self, dx->dtype, 4, dx->dims) : like;
    ls_tensor *moved = NULL;
    void *data = NULL;
    grid in;
    grid out = {.h = (size_t)dy->dims[2], .w = (size_t)dy->dims[3]};
    ls_status st;

    if (l == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_place(dx, l));
    (void)grid_of(dx, &in);
    st = layout_arrange(self, dy, layout_like(self, l, 4, dy->dims), &moved, &data);
    if (st == LS_OK) {
        pool_work w = work_for(self, call, &in, &out);

        w.from = data;
        w.indices = dn_data(indices);
        w.to = dn_data(dx);
        st = plane_buffers_make(self, dy, w.out_floats, w.in_floats, &w.buffers);
        if (st == LS_OK)
            threads_for(self, in.n * in.blocks, w.in_floats, back_range, &w);
        dn_host->tensor_destroy(w.buffers.memory);
    }
    dn_host->tensor_destroy(moved);
    return st;
}
