/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_packed.c - copies of parameters in the layouts and types of primitives. The parameters are
 * plain, for optimizers and buckets; the copies are cached with the storage, each with the version
 * it was made from.
 */
#include "tensor/devices/onednn/dn.h"

struct packed {
    packed *next;
    const layout *layout;
    size_t offset; /* several parameters may live in one storage */
    uint64_t version;
    void *data;
};

void packed_free(device_state *self, packed *p)
{
    LS_UNUSED(self);
    while (p != NULL) {
        packed *next = p->next;

        layout_use(p->layout, -1);
        dn_host->free(p->data);
        dn_host->free(p);
        p = next;
    }
}

static packed *find(const ls_tensor *weights, const layout *want)
{
    packed *p = weights->storage->packed;

    while (p != NULL && (p->layout != want || p->offset != weights->offset))
        p = p->next;
    return p;
}

/* A copy that is still to be filled; NULL without memory. */
static packed *make(const ls_tensor *weights, const layout *want)
{
    packed *p = dn_host->alloc(1, sizeof(*p));

    if (p == NULL)
        return NULL;
    p->data = dn_host->alloc_aligned(64, want->bytes);
    if (p->data == NULL) {
        dn_host->free(p);
        return NULL;
    }
    p->layout = want;
    layout_use(want, 1);
    p->offset = weights->offset;
    p->version = weights->storage->version - 1;
    p->next = weights->storage->packed;
    weights->storage->packed = p;
    return p;
}

/* With so many multiplications per weight, a reorder is less than a hundredth of the work. */
#define MANY_USES 256

/* A copy for one call: cached ones would need the memory of all weights again. */
static ls_status pack_once(device_state *self, const ls_tensor *weights, const layout *want,
                           ls_tensor **temporary, void **data)
{
    const void *plain = *data;
    float *copy;

    LS_TRY(dn_floats(weights->device, (want->bytes + sizeof(float) - 1) / sizeof(float), temporary,
                     &copy));
    *data = copy;
    return layout_reorder(self, layout_plain(self, want->n_dims, want->dims), plain, want, copy,
                          REORDER_PARAMETER);
}

ls_status packed_weights(device_state *self, ls_tensor *weights, const layout *want, size_t uses,
                         ls_tensor **temporary, void **out)
{
    const layout *plain;
    packed *p;

    LS_TRY(dn_host->tensor_plain(weights, out));
    if (want->kind == LAYOUT_PLAIN && want->type == LS_F32)
        return LS_OK;
    if (uses >= MANY_USES)
        return pack_once(self, weights, want, temporary, out);
    p = find(weights, want);
    if (p == NULL)
        p = make(weights, want);
    if (p == NULL)
        return dn_fail(LS_ENOMEM, "no memory for %zu bytes of packed weights", want->bytes);
    // Writes to borrowed memory do not change the version.
    if (p->version != weights->storage->version || weights->storage->borrowed) {
        plain = layout_plain(self, want->n_dims, want->dims);
        LS_TRY(layout_reorder(self, plain, *out, want, p->data, REORDER_PARAMETER));
        p->version = weights->storage->version;
    }
    *out = p->data;
    return LS_OK;
}

/* --- gradients of parameters --- */

ls_status gradient_begin(device_state *self, const op_call *call, ls_tensor *gradient,
                         const layout *l, ls_tensor **temporary, void **out)
{
    float *data;

    LS_UNUSED(self);
    if (l->kind == LAYOUT_PLAIN && !call->accumulate) {
        *out = dn_data(gradient);
        return LS_OK;
    }
    LS_TRY(dn_floats(gradient->device, l->bytes / sizeof(float), temporary, &data));
    *out = data;
    return LS_OK;
}

ls_status gradient_end(device_state *self, const op_call *call, ls_tensor *gradient,
                       const layout *l, ls_tensor *temporary)
{
    float *sum = dn_data(gradient);

    if (temporary == NULL)
        return LS_OK;
    if (l->kind != LAYOUT_PLAIN)
        return layout_reorder(self, l, dn_data(temporary), layout_plain(self, l->n_dims, l->dims),
                              sum, REORDER_PARAMETER | (call->accumulate ? REORDER_ADDS : 0));
    self->simd->add(sum, dn_data(temporary), sum, l->bytes / sizeof(float));
    return LS_OK;
}
