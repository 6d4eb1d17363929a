/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_layout.c - interned layouts, and reorders between them; all kernels of the device use it.
 *
 * Each batch shape has only a few layouts, so they are one list in the order of use: layouts of
 * shapes that no longer occur are at its end.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

/* --- interning --- */

static bool same_dims(const layout *l, int n_dims, const int64_t *dims)
{
    return l->n_dims == n_dims && memcmp(l->dims, dims, (size_t)n_dims * sizeof(*dims)) == 0;
}

static layout *list_first(device_state *self, layout **at)
{
    layout *l = *at;

    *at = l->next;
    l->next = self->layouts;
    self->layouts = l;
    return l;
}

static compat_desc desc_of(compat_list *list, ls_dtype type, layout_kind kind, int block,
                           int n_dims, const int64_t *dims)
{
    if (kind == LAYOUT_NHWC)
        return compat_desc_nhwc(list, type, dims);
    if (kind == LAYOUT_BLOCKED)
        return compat_desc_blocked(list, type, dims, block);
    return compat_desc_plain(list, type, n_dims, dims);
}

/* Finds the kind by comparison, without reading the descriptor's members. Plain is the first: with
 * one channel, or one position, several kinds are equal. False without memory. */
static bool classify(layout *l)
{
    static const struct {
        layout_kind kind;
        int block;
    } forms[] = {{LAYOUT_PLAIN, 0},
                 {LAYOUT_NHWC, 0},
                 {LAYOUT_BLOCKED, 8},
                 {LAYOUT_BLOCKED, 16},
                 {LAYOUT_BLOCKED, 4}};
    const size_t n_forms = l->n_dims == 4 ? LS_COUNT_OF(forms) : 1;
    compat_list list = {0};
    bool has_memory = true;

    l->kind = LAYOUT_OTHER;
    for (size_t i = 0; i < n_forms && has_memory && l->kind == LAYOUT_OTHER; i++) {
        const compat_desc d =
            desc_of(&list, l->type, forms[i].kind, forms[i].block, l->n_dims, l->dims);

        has_memory = d != NULL;
        if (has_memory && compat_desc_equal(d, l->desc)) {
            l->kind = forms[i].kind;
            l->block = forms[i].block;
        }
    }
    compat_list_free(&list);
    return has_memory;
}

static void layout_free(layout *l)
{
    compat_desc_destroy(l->desc);
    dn_host->free(l);
}

/* Frees the least recently used layout without users if there are too many. */
static void drop_idle(device_state *self)
{
    layout **last = NULL;
    size_t n_idle = 0;
    layout *l;

    for (layout **at = &self->layouts; *at != NULL; at = &(*at)->next) {
        if ((*at)->n_users == 0) {
            last = at;
            n_idle++;
        }
    }
    if (n_idle < LAYOUTS_IDLE_MOST)
        return;
    l = *last;
    *last = l->next;
    layout_free(l);
}

const layout *layout_intern(device_state *self, compat_desc desc)
{
    layout *l;

    if (desc == NULL)
        return NULL;
    for (layout **at = &self->layouts; *at != NULL; at = &(*at)->next) {
        if (compat_desc_equal((*at)->desc, desc))
            return list_first(self, at);
    }
    drop_idle(self);
    l = dn_host->alloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    l->type = compat_desc_type(desc);
    l->desc = compat_desc_copy(desc);
    if (l->desc != NULL)
        l->n_dims = compat_desc_dims(desc, l->dims);
    if (l->desc == NULL || !classify(l)) {
        layout_free(l);
        return NULL;
    }
    l->bytes = compat_desc_bytes(desc);
    l->next = self->layouts;
    self->layouts = l;
    return l;
}

size_t layout_elements(const layout *l)
{
    return l->bytes / float_bytes(l->type);
}

void layout_use(const layout *l, int by)
{
    if (l != NULL)
        ((layout *)(uintptr_t)l)->n_users += by; // the only write to a layout
}

static const layout *intern_kind(device_state *self, ls_dtype type, layout_kind kind, int block,
                                 int n_dims, const int64_t *dims)
{
    compat_list list = {0};
    const layout *l;

    if (kind == LAYOUT_NHWC && (dims[1] == 1 || dims[2] * dims[3] == 1))
        kind = LAYOUT_PLAIN; // as classify() calls it
    for (layout **at = &self->layouts; *at != NULL; at = &(*at)->next) {
        if ((*at)->kind == kind && (*at)->block == block && (*at)->type == type &&
            same_dims(*at, n_dims, dims))
            return list_first(self, at);
    }
    l = layout_intern(self, desc_of(&list, type, kind, block, n_dims, dims));
    compat_list_free(&list);
    return l;
}

const layout *layout_plain(device_state *self, int n_dims, const int64_t *dims)
{
    return layout_plain_as(self, LS_F32, n_dims, dims);
}

const layout *layout_plain_as(device_state *self, ls_dtype type, int n_dims, const int64_t *dims)
{
    return intern_kind(self, type, LAYOUT_PLAIN, 0, n_dims, dims);
}

const layout *layout_blocked(device_state *self, int block, const int64_t *dims)
{
    return intern_kind(self, LS_F32, LAYOUT_BLOCKED, block, 4, dims);
}

const layout *layout_of_images(device_state *self, ls_dtype type, const int64_t *dims)
{
    if (conv2d_channels_last(self->isa, self->convolutions, type))
        return intern_kind(self, type, LAYOUT_NHWC, 0, 4, dims);
    return intern_kind(self, type, LAYOUT_BLOCKED, conv2d_block(self->isa), 4, dims);
}

const layout *layout_like(device_state *self, const layout *like, int n_dims, const int64_t *dims)
{
    if (n_dims != 4 || like->kind == LAYOUT_OTHER)
        return intern_kind(self, like->type, LAYOUT_PLAIN, 0, n_dims, dims);
    return intern_kind(self, like->type, like->kind, like->block, n_dims, dims);
}

const layout *layout_as(device_state *self, const layout *like, ls_dtype type)
{
    if (like == NULL)
        return NULL;
    if (like->kind == LAYOUT_OTHER)
        return layout_plain_as(self, type, like->n_dims, like->dims);
    return intern_kind(self, type, like->kind, like->block, like->n_dims, like->dims);
}

/* The type that layouts have for the tensor's: those of masks and integers are described as if
 * they held floats. */
static ls_dtype layout_type(const ls_tensor *t)
{
    return tensor_is_half(t) ? t->dtype : LS_F32;
}

const layout *layout_of(device_state *self, const ls_tensor *t)
{
    if (t->storage->layout != NULL)
        return t->storage->layout;
    return intern_kind(self, layout_type(t), LAYOUT_PLAIN, 0, t->n_dims, t->dims);
}

void layout_free_all(device_state *self)
{
    while (self->layouts != NULL) {
        layout *l = self->layouts;

        self->layouts = l->next;
        layout_free(l);
    }
}

/* --- tensors --- */

void *dn_data(const ls_tensor *t)
{
    return t == NULL ? NULL : (char *)t->storage->data + t->offset;
}

ls_status layout_place_bytes(ls_tensor *t, const layout *l, size_t bytes)
{
    const layout *own = l->kind == LAYOUT_PLAIN ? NULL : l;

    LS_TRY(dn_host->tensor_place(t, own, bytes));
    layout_use(own, 1);
    return LS_OK;
}

ls_status layout_place(ls_tensor *t, const layout *l)
{
    if (l == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    return layout_place_bytes(t, l, l->bytes);
}

ls_status layout_place_over(device_state *self, const op_call *call, ls_tensor *out,
                            const layout *l)
{
    if (l == NULL || !call->may_reuse_grad || layout_of(self, call->in[1]) != l ||
        call->in[1]->offset != 0)
        return layout_place(out, l);
    dn_host->tensor_share(out, call->in[1]);
    return LS_OK;
}

ls_status dn_floats(ls_device *device, size_t n, ls_tensor **temporary, float **out)
{
    const int64_t dims[1] = {(int64_t)n};
    ls_status st;

    LS_TRY(dn_host->tensor_shape(device, LS_F32, 1, dims, temporary));
    st = dn_host->tensor_place(*temporary, NULL, 0);
    if (st != LS_OK) {
        dn_host->tensor_destroy(*temporary);
        *temporary = NULL;
        return st;
    }
    *out = dn_data(*temporary);
    return LS_OK;
}

bool grid_of(const ls_tensor *t, grid *out)
{
    const layout *l = t->storage->layout;
    const bool planar = t->n_dims == 4;
    const size_t c = (size_t)t->dims[1];
    size_t inner = planar ? 1 : c;

    if (l != NULL && l->kind == LAYOUT_OTHER)
        return false;
    if (l != NULL && l->kind == LAYOUT_NHWC)
        inner = c;
    if (l != NULL && l->kind == LAYOUT_BLOCKED)
        inner = (size_t)l->block;
    *out = (grid){.n = (size_t)t->dims[0],
                  .c = c,
                  .blocks = (c + inner - 1) / inner,
                  .inner = inner,
                  .h = planar ? (size_t)t->dims[2] : 1,
                  .w = planar ? (size_t)t->dims[3] : 1};
    return true;
}

ls_status grid_walkable(ls_tensor *t, grid *out)
{
    void *data;

    if (grid_of(t, out))
        return LS_OK;
    LS_TRY(dn_host->tensor_plain(t, &data));
    (void)grid_of(t, out);
    return LS_OK;
}

/* --- moving --- */

static ls_status make_reorder(device_state *self, const primitive_key *key, primitive **out)
{
    const layout *from = key->layouts[0];
    const layout *to = key->layouts[1];
    const primitive_arg args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    const int before = threads_enter(self, false);
    const compat_pd pd = compat_pd_reorder(self->engine, from->desc, to->desc, key->prop != 0);
    const ls_status st = primitive_add(self, key, pd, args, 2, out);

    threads_leave(before);
    return st;
}

static void report_move(const device_state *self, const layout *l, unsigned how)
{
    const device_move m = {.of_parameter = (how & REORDER_PARAMETER) != 0,
                           .n_dims = l->n_dims,
                           .dims = l->dims,
                           .bytes = l->bytes};

    self->watch(self->watch_arg, &m);
}

static ls_status reorder(device_state *self, const layout *from, const void *src, const layout *to,
                         void *dst, unsigned how)
{
    primitive_key key;
    primitive *p;
    union {
        const void *in;
        void *plain;
    } source = {.in = src}; // oneDNN has one type for inputs and outputs

    memset(&key, 0, sizeof(key));
    key.kind = PRIMITIVE_REORDER;
    key.prop = (how & REORDER_ADDS) != 0;
    key.layouts[0] = from;
    key.layouts[1] = to;
    p = primitive_find(self, &key);
    if (p == NULL)
        LS_TRY(make_reorder(self, &key, &p));
    if (self->watch != NULL)
        report_move(self, from, how);
    return primitive_run(self, p, (void *const[]){source.plain, dst});
}

/* Elements of 16 bits through float32: oneDNN's reorders of them need certain processors. */
static ls_status reorder_halves(device_state *self, const layout *from, const void *src,
                                const layout *to, void *dst, unsigned how)
{
    const layout *wide[2] = {layout_as(self, from, LS_F32), layout_as(self, to, LS_F32)};
    const size_t n[2] = {layout_elements(from), layout_elements(to)};
    float *floats = dn_host->alloc_aligned(64, (n[0] + n[1]) * sizeof(*floats));
    ls_status st = LS_OK;

    if (floats == NULL || wide[0] == NULL || wide[1] == NULL)
        st = dn_fail(LS_ENOMEM, "no memory for a copy of %zu elements", n[0]);
    if (st == LS_OK) {
        cast_elements(self, from->type, src, LS_F32, floats, n[0]);
        if ((how & REORDER_ADDS) != 0)
            cast_elements(self, to->type, dst, LS_F32, floats + n[0], n[1]);
        st = reorder(self, wide[0], floats, wide[1], floats + n[0], how);
    }
    if (st == LS_OK)
        cast_elements(self, LS_F32, floats + n[0], to->type, dst, n[1]);
    dn_host->free(floats);
    return st;
}

ls_status layout_reorder(device_state *self, const layout *from, const void *src, const layout *to,
                         void *dst, unsigned how)
{
    if (from == NULL || to == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    if (from->type == LS_F32 ||
        (from->type == LS_BF16 && self->has_bf16 && (how & REORDER_ADDS) == 0))
        return reorder(self, from, src, to, dst, how);
    return reorder_halves(self, from, src, to, dst, how);
}

ls_status layout_arrange(device_state *self, ls_tensor *t, const layout *want,
                         ls_tensor **temporary, void **out)
{
    const layout *have = layout_of(self, t);

    if (have == NULL || want == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    if (have == want) {
        *out = dn_data(t);
        return LS_OK;
    }
    LS_TRY(dn_host->tensor_shape(t->device, t->dtype, t->n_dims, t->dims, temporary));
    LS_TRY(layout_place(*temporary, want));
    *out = dn_data(*temporary);
    return layout_reorder(self, have, dn_data(t), want, *out, 0);
}

ls_status layout_arrange_image(device_state *self, ls_tensor *t, ls_tensor **temporary, void **out)
{
    return layout_arrange(self, t, layout_of_images(self, t->dtype, t->dims), temporary, out);
}
