/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.c - tensors in the form that cuDNN and cuBLASLt read: channels last, padded, in the type
 * of the activations. Copies of parameters are kept with their storage, each with the version that
 * it was made from; gradients are copied back. Called by cuda_conv2d.c and cuda_linear.c.
 *
 * An optimizer writes all parameters between two uses, so the first use of one renews the copies of
 * all others that were used since the last time, in one launch.
 */
#include "tensor/devices/cuda/ops/packed.h"

#include "tensor/devices/cuda/kernels/repack.h"

struct packed {
    packed *next; /* of the storage's */
    packed *next_of_device;
    packed **link_of_device; /* what points to this one */
    const storage *owner;
    ls_dtype plain_type;
    size_t offset;
    pack_form form;
    uint64_t version;
    bool is_used; /* since it was renewed */
    void *data;
};

static size_t packed_count(const pack_form *form)
{
    return (size_t)(form->n * form->s * form->channels);
}

static size_t plain_count(const pack_form *form)
{
    return (size_t)(form->n * form->s * form->c);
}

/* Whether row-major elements of a type at `p` are in packed form. */
static bool is_packed(const void *p, ls_dtype type, const pack_form *form)
{
    return type == form->type && form->channels == form->c && (form->c == 1 || form->s == 1) &&
           own_is_aligned(p);
}

/* --- launches --- */

static repack_part part_of(const pack_form *form, const void *src, void *dst)
{
    return (repack_part){.src = src,
                         .dst = dst,
                         .n = (size_t)form->n,
                         .s = (size_t)form->s,
                         .c = (uint32_t)form->c,
                         .channels = (uint32_t)form->channels};
}

/* Adds a part that writes the packed form. */
static void add_part(repack_args *a, const pack_form *form, const void *src, void *dst)
{
    repack_part *part = &a->parts[a->n_parts++];

    *part = part_of(form, src, dst);
    part->first_block = a->n_blocks;
    a->n_blocks += (unsigned)((packed_count(form) + REPACK_BLOCK - 1) / REPACK_BLOCK);
}

_Static_assert(sizeof(repack_args) <= GPU_ARGS_MAX, "the arguments of a kernel have a limit");

static void run_repack(own_operands *o, const repack_args *a, ls_dtype type)
{
    const unsigned blocks = own_blocks(o->self, (size_t)a->n_blocks * OWN_THREADS);

    own_launch(o, OWN_KERNELS(repack), own_type(type), blocks, OWN_THREADS, a);
}

pack_form packed_image_form(const ls_tensor *t, ls_dtype type, int64_t channels)
{
    const bool is_padded = own_is_padded(t);
    const bool is_last = is_padded || own_is_nhwc(t);
    const int64_t area = t->dims[2] * t->dims[3];

    return (pack_form){.type = type,
                       .n = is_last ? t->dims[0] * area : t->dims[0],
                       .c = is_padded ? CUDA_CHANNELS_PADDED : t->dims[1],
                       .s = is_last ? 1 : area,
                       .channels = channels};
}

void packed_write(own_operands *o, const void *src, ls_dtype src_type, const pack_form *form,
                  void *dst)
{
    repack_args a = {.of_f32 = src_type == LS_F32};

    add_part(&a, form, src, dst);
    run_repack(o, &a, form->type);
}

void *packed_copy(own_operands *o, const void *src, ls_dtype src_type, const pack_form *form)
{
    void *dst = own_memory(o, form->type, packed_count(form));

    packed_write(o, src, src_type, form, dst);
    return dst;
}

void *packed_begin(own_operands *o, void *dst, ls_dtype dst_type, const pack_form *form, bool adds)
{
    if (!adds && is_packed(dst, dst_type, form))
        return dst;
    return own_memory(o, form->type, packed_count(form));
}

void packed_finish(own_operands *o, void *dst, ls_dtype dst_type, const pack_form *form, bool adds,
                   const void *from, const column_args *sums)
{
    const kernel_type type = own_type(form->type);
    const unsigned blocks = own_blocks(o->self, plain_count(form));
    unpack_sum_args a = {
        .unpack = {.part = part_of(form, from, dst), .of_f32 = dst_type == LS_F32, .adds = adds}};

    if (sums != NULL)
        a.sum = *sums;
    if (from != dst && sums != NULL)
        own_launch(o, OWN_KERNELS(unpack_sum), type, blocks + own_split_blocks(&a.sum.by),
                   OWN_THREADS, &a);
    else if (from != dst)
        own_launch(o, OWN_KERNELS(unpack), type, blocks, OWN_THREADS, &a.unpack);
    else if (sums != NULL)
        own_launch_sums(o, sums, type);
}

/* --- copies of parameters --- */

void packed_free(device_state *self, packed *p)
{
    accel *a = cuda_accel_base(self->accel);

    while (p != NULL) {
        packed *next = p->next;

        *p->link_of_device = p->next_of_device;
        if (p->next_of_device != NULL)
            p->next_of_device->link_of_device = p->link_of_device;
        a->ops->free(a, p->data);
        cu_host->free(p);
        p = next;
    }
}

static bool is_same_form(const pack_form *a, const pack_form *b)
{
    return a->type == b->type && a->n == b->n && a->c == b->c && a->s == b->s &&
           a->channels == b->channels;
}

static packed *find(const ls_tensor *t, const pack_form *form)
{
    packed *p = t->storage->packed;

    while (p != NULL && (p->offset != t->offset || !is_same_form(&p->form, form)))
        p = p->next;
    return p;
}

/* A copy that is still to be filled. */
static ls_status make(device_state *self, const ls_tensor *t, const pack_form *form, packed **out)
{
    packed *p = cu_host->alloc(1, sizeof(*p));
    ls_status st;

    if (p == NULL)
        return cu_fail(LS_ENOMEM, "no memory for a packed copy of a parameter");
    st = cu_host->device_alloc(self->device, packed_count(form) * own_element_bytes(form->type),
                               &p->data);
    if (st != LS_OK) {
        cu_host->free(p);
        return st;
    }
    p->owner = t->storage;
    p->plain_type = t->dtype;
    p->offset = t->offset;
    p->form = *form;
    p->version = t->storage->version - 1;
    p->next = t->storage->packed;
    t->storage->packed = p;
    p->next_of_device = self->packs;
    p->link_of_device = &self->packs;
    if (self->packs != NULL)
        self->packs->link_of_device = &p->next_of_device;
    self->packs = p;
    *out = p;
    return LS_OK;
}

/* Adds the stale copies that go into one launch with `like`, and marks them as renewed. */
static void add_stale(device_state *self, const packed *like, repack_args *a)
{
    for (packed *p = self->packs; p != NULL && a->n_parts < REPACK_PARTS_MOST;
         p = p->next_of_device) {
        if (!p->is_used || p->version == p->owner->version || p->form.type != like->form.type ||
            p->plain_type != like->plain_type)
            continue;
        add_part(a, &p->form, (const char *)p->owner->data + p->offset, p->data);
        p->version = p->owner->version;
        p->is_used = false;
    }
}

/* Renews `first` and the copies of the same types that were used since they were renewed. */
static void renew(own_operands *o, packed *first)
{
    first->is_used = true;
    while (o->status == LS_OK && first->version != first->owner->version) {
        repack_args a = {.of_f32 = first->plain_type == LS_F32};

        add_stale(o->self, first, &a);
        run_repack(o, &a, first->form.type);
    }
}

void *packed_parameter(own_operands *o, ls_tensor *t, const pack_form *form)
{
    void *plain = NULL;
    packed *p;

    if (o->status == LS_OK)
        o->status = cu_host->tensor_plain(t, &plain);
    if (o->status != LS_OK || is_packed(plain, t->dtype, form))
        return plain;
    // Writes to borrowed memory do not change the version.
    if (!t->storage->persistent || t->storage->borrowed)
        return packed_copy(o, plain, t->dtype, form);
    p = find(t, form);
    if (p == NULL)
        o->status = make(o->self, t, form, &p);
    if (o->status != LS_OK)
        return NULL;
    renew(o, p);
    p->is_used = true;
    return p->data;
}
