/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_slice.c - concat and slice as copies of contiguous runs, along the channels in any layout
 * whose blocks are not split; permute as copies of rows where the last dimension stays, else as a
 * reorder of oneDNN between two row-major orders. Elements are float32 or 16-bit floats.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/axis.h"
#include "tensor/formulas/broadcast.h"

#include <string.h>

/* --- concat and slice --- */

/* Whether a tensor in layout `l` can be split after `at` positions of the axis. */
static bool can_cut(const layout *l, int axis, int64_t at)
{
    if (l == NULL || axis != 1)
        return false;
    return l->kind == LAYOUT_NHWC || (l->kind == LAYOUT_BLOCKED && at % l->block == 0);
}

/* A part of a whole, from `begin` on, in the same kind of layout; sizes in bytes. */
typedef struct copy_work {
    size_t outer;
    size_t run;   /* of the part */
    size_t step;  /* of the whole */
    size_t first; /* where the part begins in the whole */
    char *part;
    char *whole;
    bool into_whole;
    size_t fill; /* what is not of the part becomes elements of so many bytes; 0: it stays */
    char element[sizeof(float)];
} copy_work;

/* Both are placed. */
static copy_work work_for(const ls_tensor *part, const ls_tensor *whole, int axis, int64_t begin)
{
    const layout *l = whole->storage->layout;
    axis_parts p = axis_split(part, axis);
    const size_t n = (size_t)whole->dims[axis];
    const size_t size = float_bytes(whole->dtype);

    if (l != NULL && l->kind == LAYOUT_NHWC) {
        p.outer *= p.inner;
        p.inner = 1;
    }
    return (copy_work){.outer = p.outer,
                       .run = p.n * p.inner * size,
                       .step = n * p.inner * size,
                       .first = (size_t)begin * p.inner * size,
                       .part = dn_data(part),
                       .whole = dn_data(whole)};
}

static void copy_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const copy_work *w = arg;

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        char *part = w->part + i * w->run;
        char *whole = w->whole + i * w->step;

        for (size_t k = 0; k < w->step && w->fill > 0; k += w->fill)
            memcpy(whole + k, w->element, w->fill);
        memcpy(w->into_whole ? whole + w->first : part, w->into_whole ? part : whole + w->first,
               w->run);
    }
}

static void copy_part(const device_state *self, copy_work w)
{
    threads_for(self, w.outer, (w.fill > 0 ? w.step : w.run) / sizeof(float), copy_range, &w);
}

/* The layout of the result: that of the first input that is not plain, if all parts fit it. */
static const layout *joint_layout(device_state *self, const op_call *call)
{
    const ls_tensor *y = call->out[0];
    const layout *like = NULL;

    for (int i = 0; i < call->n_in && like == NULL; i++)
        like = call->in[i]->storage->layout;
    for (int i = 0; i < call->n_in; i++) {
        if (!can_cut(like, call->attrs.axis, call->in[i]->dims[call->attrs.axis]))
            return layout_plain_as(self, y->dtype, y->n_dims, y->dims);
    }
    return layout_like(self, like, y->n_dims, y->dims);
}

ls_status dn_concat(device_state *self, const op_call *call)
{
    const layout *l = joint_layout(self, call);
    ls_tensor *const y = call->out[0];
    int64_t begin = 0;

    LS_TRY(layout_place(y, l));
    for (int i = 0; i < call->n_in; i++) {
        ls_tensor *const x = call->in[i];
        ls_tensor *moved = NULL;
        void *data;
        ls_status st =
            layout_arrange(self, x, layout_like(self, l, x->n_dims, x->dims), &moved, &data);

        if (st == LS_OK) {
            copy_work w = work_for(x, y, call->attrs.axis, begin);

            w.part = data;
            w.into_whole = true;
            copy_part(self, w);
        }
        dn_host->tensor_destroy(moved);
        LS_TRY(st);
        begin += x->dims[call->attrs.axis];
    }
    return LS_OK;
}

/* Places `to` in the layout of `from` (one is a part of the other), or makes both plain. */
static ls_status place_alike(device_state *self, const op_call *call, ls_tensor *from,
                             ls_tensor *to)
{
    const layout *l = from->storage->layout;
    const int axis = call->attrs.axis;
    void *data;

    if (!can_cut(l, axis, call->attrs.begin) || !can_cut(l, axis, from->dims[axis]) ||
        !can_cut(l, axis, to->dims[axis]) || call->attrs.value != 0)
        LS_TRY(dn_host->tensor_plain(from, &data));
    l = layout_of(self, from);
    return layout_place(to, l == NULL ? NULL : layout_like(self, l, to->n_dims, to->dims));
}

ls_status dn_slice(device_state *self, const op_call *call)
{
    LS_TRY(place_alike(self, call, call->in[0], call->out[0]));
    copy_part(self, work_for(call->out[0], call->in[0], call->attrs.axis, call->attrs.begin));
    return LS_OK;
}

ls_status dn_slice_backward(device_state *self, const op_call *call)
{
    const float value = (float)call->attrs.value;
    copy_work w;

    LS_TRY(place_alike(self, call, call->in[0], call->out[0]));
    w = work_for(call->in[0], call->out[0], call->attrs.axis, call->attrs.begin);
    w.into_whole = true;
    w.fill = float_bytes(call->out[0]->dtype);
    memcpy(w.element, &value, sizeof(value));
    if (tensor_is_half(call->out[0]))
        cast_elements(self, LS_F32, &value, call->out[0]->dtype, w.element, 1);
    copy_part(self, w);
    return LS_OK;
}

/* --- permute --- */

/* Rows of x, in the order of y: dimensions and steps, of x, are those of y without the last. */
typedef struct rows_work {
    broadcast_dims dims;
    size_t bytes; /* of a row */
    const char *x;
    char *y;
} rows_work;

static void permute_rows(void *arg, size_t begin, size_t end, size_t thread)
{
    const rows_work *w = arg;
    const int last = w->dims.n - 1;
    const size_t run = w->dims.size[last];
    const size_t step = w->dims.step[0][last] * w->bytes;
    broadcast_walk walk = broadcast_walk_from(&w->dims, last, begin / run);
    size_t inside = begin % run;

    LS_UNUSED(thread);
    for (size_t row = begin; row < end; inside = 0) {
        const char *x = w->x + walk.at[0] * w->bytes + inside * step;

        for (; inside < run && row < end; inside++, row++, x += step)
            memcpy(w->y + row * w->bytes, x, w->bytes);
        broadcast_next(&w->dims, last, &walk);
    }
}

bool permute_keeps_rows(const op_call *call)
{
    const int last = call->in[0]->n_dims - 1;

    return call->attrs.order[last] == last && call->in[0]->storage->layout == NULL;
}

static ls_status permute_by_rows(const device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const size_t row = axis_rows(x).n;
    rows_work w = {.bytes = row * float_bytes(x->dtype), .x = dn_data(x)};

    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    w.y = dn_data(call->out[0]);
    for (int d = 0; d < x->n_dims - 1; d++) {
        const size_t step[BROADCAST_TENSORS] = {axis_split(x, call->attrs.order[d]).inner / row};

        broadcast_append(&w.dims, (size_t)call->out[0]->dims[d], step);
    }
    if (w.dims.n == 0)
        w.dims.size[w.dims.n++] = 1;
    threads_for(self, axis_rows(x).outer, row, permute_rows, &w);
    return LS_OK;
}

/* x's dimensions with their strides in y. */
static const layout *permuted_layout(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    int64_t strides[COMPAT_MAX_DIMS];
    compat_list list = {0};
    const layout *l;

    for (int i = 0; i < x->n_dims; i++)
        strides[call->attrs.order[i]] = (int64_t)axis_split(call->out[0], i).inner;
    l = layout_intern(self, compat_desc_strided(&list, x->dtype, x->n_dims, x->dims, strides));
    compat_list_free(&list);
    return l;
}

static ls_status make_permute(device_state *self, const op_call *call, const primitive_key *key,
                              primitive **out)
{
    const layout *from = key->layouts[0];
    const layout *to = permuted_layout(self, call);
    const primitive_arg args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    const int before = threads_enter(self, false);
    ls_status st;

    if (to == NULL)
        st = dn_fail(LS_ENOMEM, "no memory for a layout");
    else
        st = primitive_add(self, key, compat_pd_reorder(self->engine, from->desc, to->desc, false),
                           args, 2, out);
    threads_leave(before);
    return st;
}

ls_status dn_permute(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    primitive_key key;
    primitive *p;

    if (permute_keeps_rows(call))
        return permute_by_rows(self, call);
    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_PERMUTE;
    key.layouts[0] = layout_of(self, x);
    if (key.layouts[0] == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    for (int i = 0; i < x->n_dims; i++)
        key.src[0] = key.src[0] * LS_MAX_DIMS + call->attrs.order[i];
    p = primitive_find(self, &key);
    if (p == NULL)
        LS_TRY(make_permute(self, call, &key, &p));
    LS_TRY(dn_host->tensor_place(call->out[0], NULL, 0));
    return primitive_run(self, p, (void *const[]){dn_data(x), dn_data(call->out[0])});
}
