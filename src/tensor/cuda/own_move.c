/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_move.c - the operators that move elements: copy, permute, concat, slice, broadcast. Each is a
 * copy between two views with steps, which one of the kernels of move.cu does, or the runtime when
 * both are one run of bytes.
 */
#include "tensor/cuda/own.h"

#include <string.h>

own_view own_view_of(const ls_tensor *t)
{
    const size_t nhwc_order[4] = {1, 3, 2, 0}; // from the innermost
    own_view v = {
        .data = own_data(t), .element_bytes = own_element_bytes(t->dtype), .n_dims = t->n_dims};
    size_t step = 1;

    for (int d = 0; d < t->n_dims; d++)
        v.dims[d] = (size_t)t->dims[d];
    for (int i = 0; i < t->n_dims; i++) {
        const size_t d = own_is_nhwc(t) ? nhwc_order[i] : (size_t)(t->n_dims - 1 - i);

        v.step[d] = step;
        step *= v.dims[d];
    }
    return v;
}

/* --- copies between views --- */

/* The dimensions of a copy in the order of the destination's steps, neighbours merged where both
 * sides allow it. */
typedef struct copy_plan {
    int n_dims;
    size_t count;
    size_t dims[MOVE_DIMS];
    size_t src_step[MOVE_DIMS];
    size_t dst_step[MOVE_DIMS];
} copy_plan;

/* Inserts a dimension behind those with larger steps in the destination. */
static void insert_dim(copy_plan *p, size_t size, size_t src_step, size_t dst_step)
{
    int at = p->n_dims++;

    for (; at > 0 && p->dst_step[at - 1] < dst_step; at--) {
        p->dims[at] = p->dims[at - 1];
        p->src_step[at] = p->src_step[at - 1];
        p->dst_step[at] = p->dst_step[at - 1];
    }
    p->dims[at] = size;
    p->src_step[at] = src_step;
    p->dst_step[at] = dst_step;
}

static void merge_dims(copy_plan *p)
{
    int n = 0;

    for (int d = 1; d < p->n_dims; d++) {
        const bool fits = p->src_step[n] == p->src_step[d] * p->dims[d] &&
                          p->dst_step[n] == p->dst_step[d] * p->dims[d];

        n += fits ? 0 : 1;
        p->dims[n] = fits ? p->dims[n] * p->dims[d] : p->dims[d];
        p->src_step[n] = p->src_step[d];
        p->dst_step[n] = p->dst_step[d];
    }
    p->n_dims = n + 1;
}

static copy_plan plan_of(const own_view *dst, const own_view *src)
{
    copy_plan p = {.count = 1};

    for (int d = 0; d < dst->n_dims; d++) {
        p.count *= dst->dims[d];
        if (dst->dims[d] != 1)
            insert_dim(&p, dst->dims[d], src->step[d], dst->step[d]);
    }
    if (p.n_dims == 0)
        insert_dim(&p, 1, 1, 1);
    merge_dims(&p);
    return p;
}

/* Widens the unit of the copy to the largest power of two, up to 16 bytes, that all steps and
 * addresses are multiples of; its bytes. */
static size_t widen_units(copy_plan *p, uintptr_t addresses, size_t bytes)
{
    const int inner = p->n_dims - 1;

    while (bytes < PACK_BYTES && p->src_step[inner] == 1 && p->dst_step[inner] == 1 &&
           p->dims[inner] % 2 == 0 && addresses % (2 * bytes) == 0) {
        for (int d = 0; d < inner; d++) {
            if (p->src_step[d] % 2 != 0 || p->dst_step[d] % 2 != 0)
                return bytes;
        }
        for (int d = 0; d < inner; d++) {
            p->src_step[d] /= 2;
            p->dst_step[d] /= 2;
        }
        p->dims[inner] /= 2;
        p->count /= 2;
        bytes *= 2;
    }
    return bytes;
}

static const gpu_kernel *kernel_for(size_t bytes, const gpu_kernel *const kernels[5])
{
    int i = 0;

    while ((size_t)1 << i < bytes)
        i++;
    return kernels[i];
}

static ls_status move_units(device_state *self, const own_view *dst, const own_view *src,
                            copy_plan *p)
{
    static const gpu_kernel *const kernels[5] = {&move_1, &move_2, &move_4, &move_8, &move_16};
    const size_t bytes =
        widen_units(p, (uintptr_t)dst->data | (uintptr_t)src->data, dst->element_bytes);
    move_args a = {.src = src->data, .dst = dst->data, .count = p->count, .n_dims = p->n_dims};

    for (int d = 0; d < p->n_dims; d++) {
        a.dims[d] = p->dims[d];
        a.src_step[d] = p->src_step[d];
        a.dst_step[d] = p->dst_step[d];
    }
    return cu_launch(self, kernel_for(bytes, kernels), own_blocks(self, p->count), OWN_THREADS, &a);
}

/* Whether each of the matrices in the last two dimensions is transposed. */
static bool is_transpose(const copy_plan *p)
{
    const int rows = p->n_dims - 1;
    const int columns = p->n_dims - 2;

    return (p->n_dims == 2 || p->n_dims == 3) && p->dst_step[rows] == 1 &&
           p->src_step[columns] == 1 && p->src_step[rows] == p->dims[columns] &&
           p->dst_step[columns] == p->dims[rows];
}

static ls_status transpose(device_state *self, const own_view *dst, const own_view *src,
                           const copy_plan *p)
{
    static const gpu_kernel *const kernels[5] = {&transpose_1, &transpose_2, &transpose_4,
                                                 &transpose_8, NULL};
    const int rows = p->n_dims - 1;
    const int columns = p->n_dims - 2;
    const bool has_batch = p->n_dims == 3;
    const transpose_args a = {.src = src->data,
                              .dst = dst->data,
                              .n = has_batch ? p->dims[0] : 1,
                              .rows = p->dims[rows],
                              .columns = p->dims[columns],
                              .src_step = has_batch ? p->src_step[0] : 0,
                              .dst_step = has_batch ? p->dst_step[0] : 0};
    const size_t squares = a.n * ((a.rows + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE) *
                           ((a.columns + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE);

    return cu_launch(self, kernel_for(dst->element_bytes, kernels),
                     own_blocks(self, squares * OWN_THREADS), OWN_THREADS, &a);
}

ls_status own_move(device_state *self, const own_view *dst, const own_view *src)
{
    copy_plan p = plan_of(dst, src);

    if (p.count == 0)
        return LS_OK;
    if (p.n_dims == 1 && p.src_step[0] == 1 && p.dst_step[0] == 1)
        return cu_call(self, memcpy_async, dst->data, src->data, p.count * dst->element_bytes,
                       GPU_ON_DEVICE, cu_stream(self));
    if (is_transpose(&p))
        return transpose(self, dst, src, &p);
    return move_units(self, dst, src, &p);
}

/* --- operators --- */

ls_status cuda_copy(device_state *self, const op_call *call)
{
    const own_view src = own_view_of(call->in[0]);
    const own_view dst = own_view_of(call->out[0]);

    return own_move(self, &dst, &src);
}

ls_status cuda_permute(device_state *self, const op_call *call)
{
    const own_view x = own_view_of(call->in[0]);
    own_view src = x;
    own_view dst;

    LS_TRY(own_place(call->out[0], false));
    dst = own_view_of(call->out[0]);
    for (int d = 0; d < dst.n_dims; d++) {
        src.dims[d] = x.dims[call->attrs.order[d]];
        src.step[d] = x.step[call->attrs.order[d]];
    }
    return own_move(self, &dst, &src);
}

/* The positions of `whole` along an axis from `begin` on, as many as `part` has. */
static own_view part_of(const ls_tensor *whole, const ls_tensor *part, int axis, int64_t begin)
{
    own_view v = own_view_of(whole);

    v.data = (char *)v.data + (size_t)begin * v.step[axis] * v.element_bytes;
    v.dims[axis] = (size_t)part->dims[axis];
    return v;
}

ls_status cuda_concat(device_state *self, const op_call *call)
{
    const int axis = call->attrs.axis;
    int64_t begin = 0;

    LS_TRY(own_place(call->out[0], own_is_nhwc(call->in[0])));
    for (int i = 0; i < call->n_in; i++) {
        const own_view src = own_view_of(call->in[i]);
        const own_view dst = part_of(call->out[0], call->in[i], axis, begin);

        LS_TRY(own_move(self, &dst, &src));
        begin += call->in[i]->dims[axis];
    }
    return LS_OK;
}

ls_status cuda_slice(device_state *self, const op_call *call)
{
    own_view src;
    own_view dst;

    LS_TRY(own_place(call->out[0], own_is_nhwc(call->in[0])));
    src = part_of(call->in[0], call->out[0], call->attrs.axis, call->attrs.begin);
    dst = own_view_of(call->out[0]);
    return own_move(self, &dst, &src);
}

ls_status cuda_slice_backward(device_state *self, const op_call *call)
{
    own_operands o = own_begin(self, call);
    ls_tensor *dx = call->out[0];
    void *data = own_output(&o, dx, own_is_nhwc(call->in[0]));

    own_zero(&o, data, own_count(dx) * own_element_bytes(dx->dtype));
    if (o.status == LS_OK) {
        const own_view src = own_view_of(call->in[0]);
        const own_view dst = part_of(dx, call->in[0], call->attrs.axis, call->attrs.begin);

        o.status = own_move(self, &dst, &src);
    }
    return own_end(&o);
}

/* Dimension number d of y's memory, from the outermost, as one of y's dimensions. */
static int memory_dim(bool nhwc, int d)
{
    static const int order[4] = {0, 2, 3, 1};

    return nhwc ? order[d] : d;
}

ls_status cuda_broadcast(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(broadcast);
    const ls_tensor *b = call->in[0];
    ls_tensor *y = call->out[0];
    const bool nhwc = call->in[1] != NULL && own_is_nhwc(call->in[1]);
    const own_view view = own_view_of(b);
    const int lacks = y->n_dims - b->n_dims;
    own_operands o = own_begin(self, call);
    broadcast_args a = {.b = own_data(b),
                        .a = own_operand(&o, call->in[1], nhwc),
                        .y = own_output(&o, y, nhwc),
                        .count = own_count(y),
                        .multiplies = call->attrs.multiplies,
                        .n_dims = y->n_dims};

    for (int i = 0; i < y->n_dims; i++) {
        const int d = memory_dim(nhwc, i);

        a.dims[i] = (size_t)y->dims[d];
        a.step[i] = d < lacks || view.dims[d - lacks] == 1 ? 0 : view.step[d - lacks];
    }
    own_launch(&o, kernels, own_type(y->dtype), own_blocks(self, a.count), OWN_THREADS, &a);
    return own_end(&o);
}

/* --- broadcast's backward --- */

/* The dimensions of dy in the order of its memory; neighbours that are summed, or are not, are one.
 */
typedef struct summed_dims {
    int n;
    size_t size[LS_MAX_DIMS];
    bool is_summed[LS_MAX_DIMS];
} summed_dims;

static void append_dim(summed_dims *s, size_t size, bool is_summed)
{
    if (size == 1)
        return;
    if (s->n > 0 && s->is_summed[s->n - 1] == is_summed) {
        s->size[s->n - 1] *= size;
        return;
    }
    s->size[s->n] = size;
    s->is_summed[s->n++] = is_summed;
}

static summed_dims summed_dims_of(const ls_tensor *dy, const ls_tensor *db, bool nhwc)
{
    const int lacks = dy->n_dims - db->n_dims;
    summed_dims s = {.n = 0};

    for (int i = 0; i < dy->n_dims; i++) {
        const int d = memory_dim(nhwc, i);

        append_dim(&s, (size_t)dy->dims[d], d < lacks || db->dims[d - lacks] == 1);
    }
    return s;
}

/* Whether db keeps the channels between other dimensions, so that NHWC would be its order too. */
static bool keeps_order_of(const ls_tensor *db)
{
    return db->n_dims != 3 || db->dims[0] == 1 || db->dims[1] * db->dims[2] == 1;
}

/* Takes the innermost dimension that is summed out of the list: rows, and what is outside (n) and
 * inside (columns) of it. */
static void take_summed(summed_dims *s, size_t *n, size_t *rows, size_t *columns)
{
    summed_dims rest = {.n = 0};
    int at = s->n - 1;

    while (at >= 0 && !s->is_summed[at])
        at--;
    *n = 1;
    *rows = at >= 0 ? s->size[at] : 1;
    *columns = 1;
    for (int i = 0; i < s->n; i++) {
        if (i == at)
            continue;
        *(i < at ? n : columns) *= s->size[i];
        append_dim(&rest, s->size[i], s->is_summed[i]);
    }
    *s = rest;
}

static bool has_summed(const summed_dims *s)
{
    return s->n > 1 || (s->n == 1 && s->is_summed[0]);
}

static ls_status sum_backward(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(column_sum);
    const ls_tensor *dy = call->in[0];
    ls_tensor *db = call->out[0];
    const bool nhwc = own_is_nhwc(dy) && keeps_order_of(db);
    own_operands o = own_begin(self, call);
    summed_dims dims = summed_dims_of(dy, db, nhwc);
    column_args a = {.x = own_operand(&o, dy, nhwc), .y = own_operand(&o, call->in[1], nhwc)};
    void *out = own_output(&o, db, nhwc && db->n_dims == 4);
    kernel_type type = own_type(dy->dtype);
    bool is_last = false;

    while (!is_last && o.status == LS_OK) {
        const kernel_type sums_type = type == KERNEL_F64 ? KERNEL_F64 : KERNEL_F32;
        size_t n;
        size_t rows;
        size_t columns;

        take_summed(&dims, &n, &rows, &columns);
        is_last = !has_summed(&dims);
        a.by =
            own_sum_split(&o, n, rows, columns, type, own_is_aligned(a.x) && own_is_aligned(a.y));
        a.out_type = is_last ? own_type(db->dtype) : sums_type;
        a.out[0] =
            is_last ? out : own_memory(&o, sums_type == KERNEL_F64 ? LS_F64 : LS_F32, n * columns);
        own_launch(&o, kernels, type, own_split_blocks(&a.by), OWN_THREADS, &a);
        type = sums_type;
        a.x = a.out[0];
        a.y = NULL;
    }
    return own_end(&o);
}

static bool is_same_shape(const ls_tensor *a, const ls_tensor *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof(*a->dims)) == 0;
}

/* Where b is not repeated: db = dy, or dy * a. */
static ls_status same_shape_backward(device_state *self, const op_call *call)
{
    return cuda_broadcast(self, &(op_call){.op = OP_BROADCAST,
                                           .attrs = {.multiplies = true},
                                           .n_in = 2,
                                           .n_out = 1,
                                           .in = {call->in[0], call->in[1]},
                                           .out = {call->out[0]}});
}

ls_status cuda_broadcast_backward(device_state *self, const op_call *call)
{
    return is_same_shape(call->in[0], call->out[0]) ? same_shape_backward(self, call)
                                                    : sum_backward(self, call);
}
