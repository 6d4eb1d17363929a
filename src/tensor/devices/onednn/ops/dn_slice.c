/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_slice.c - concat and slice as copies of contiguous runs, along the channels in any layout
 * whose blocks are not split; permute as a reorder of oneDNN between two row-major orders.
 */
#include "tensor/devices/onednn/dn.h"
#include "tensor/formulas/axis.h"

#include <string.h>

/* --- concat and slice --- */

/* Whether a tensor in layout `l` can be split after `at` positions of the axis. */
static bool can_cut(const layout *l, int axis, int64_t at)
{
    if (l == NULL || axis != 1)
        return false;
    return l->kind == LAYOUT_NHWC || (l->kind == LAYOUT_BLOCKED && at % l->block == 0);
}

/* A part of a whole, from `begin` on, in the same kind of layout. */
typedef struct copy_work {
    size_t outer;
    size_t run;   /* floats of the part */
    size_t step;  /* floats of the whole */
    size_t first; /* float of the whole that the part begins at */
    float *part;
    float *whole;
    bool into_whole;
    bool clears; /* what is not of the part becomes `value` */
    float value;
} copy_work;

/* Both are placed. */
static copy_work work_for(const ls_tensor *part, const ls_tensor *whole, int axis, int64_t begin)
{
    const layout *l = whole->storage->layout;
    axis_parts p = axis_split(part, axis);
    const size_t n = (size_t)whole->dims[axis];

    if (l != NULL && l->kind == LAYOUT_NHWC) {
        p.outer *= p.inner;
        p.inner = 1;
    }
    return (copy_work){.outer = p.outer,
                       .run = p.n * p.inner,
                       .step = n * p.inner,
                       .first = (size_t)begin * p.inner,
                       .part = dn_data(part),
                       .whole = dn_data(whole)};
}

static void copy_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const copy_work *w = arg;
    const size_t bytes = w->run * sizeof(float);

    LS_UNUSED(thread);
    for (size_t i = begin; i < end; i++) {
        float *part = w->part + i * w->run;
        float *whole = w->whole + i * w->step;

        for (size_t k = 0; k < w->step && w->clears; k++)
            whole[k] = w->value;
        memcpy(w->into_whole ? whole + w->first : part, w->into_whole ? part : whole + w->first,
               bytes);
    }
}

static void copy_part(const device_state *self, copy_work w)
{
    threads_for(self, w.outer, w.clears ? w.step : w.run, copy_range, &w);
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
            return layout_plain(self, y->n_dims, y->dims);
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
    copy_work w;

    LS_TRY(place_alike(self, call, call->in[0], call->out[0]));
    w = work_for(call->in[0], call->out[0], call->attrs.axis, call->attrs.begin);
    w.into_whole = true;
    w.clears = true;
    w.value = (float)call->attrs.value;
    copy_part(self, w);
    return LS_OK;
}

/* --- permute --- */

/* x's dimensions with their strides in y. */
static const layout *permuted_layout(device_state *self, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    int64_t strides[COMPAT_MAX_DIMS];
    compat_list list = {0};
    const layout *l;

    for (int i = 0; i < x->n_dims; i++)
        strides[call->attrs.order[i]] = (int64_t)axis_split(call->out[0], i).inner;
    l = layout_intern(self, compat_desc_strided(&list, LS_F32, x->n_dims, x->dims, strides));
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
