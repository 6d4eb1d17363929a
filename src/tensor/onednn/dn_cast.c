/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_cast.c - conversions between float32 and 16-bit floats. The result keeps the layout, so that
 * operators between casts (tensor/widen.h) reorder nothing.
 */
#include "tensor/onednn/dn.h"

typedef struct cast_work {
    void (*widen)(const uint16_t *from, float *to, size_t n);
    void (*narrow)(const float *from, uint16_t *to, size_t n);
    const void *from;
    void *to;
} cast_work;

static void cast_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const cast_work *w = arg;

    LS_UNUSED(thread);
    if (w->widen != NULL)
        w->widen((const uint16_t *)w->from + begin, (float *)w->to + begin, end - begin);
    else
        w->narrow((const float *)w->from + begin, (uint16_t *)w->to + begin, end - begin);
}

void cast_elements(const device_state *self, ls_dtype from, const void *src, ls_dtype to, void *dst,
                   size_t n)
{
    const simd_table *simd = self->simd;
    cast_work w = {.from = src, .to = dst};

    if (to == LS_F32)
        w.widen = from == LS_BF16 ? simd->widen_bf16 : simd->widen_f16;
    else
        w.narrow = to == LS_BF16 ? simd->narrow_bf16 : simd->narrow_f16;
    threads_for(self, n, 1, cast_range, &w);
}

ls_status dn_cast(device_state *self, const op_call *call)
{
    ls_tensor *const x = call->in[0];
    ls_tensor *const y = call->out[0];
    const layout *from = layout_of(self, x);
    void *data;

    if (from != NULL && from->kind == LAYOUT_OTHER) {
        LS_TRY(dn_host->tensor_plain(x, &data));
        from = layout_of(self, x);
    }
    if (from == NULL)
        return dn_fail(LS_ENOMEM, "no memory for a layout");
    LS_TRY(layout_place(y, layout_as(self, from, y->dtype)));
    cast_elements(self, x->dtype, dn_data(x), y->dtype, dn_data(y),
                  from->bytes / (x->dtype == LS_F32 ? sizeof(float) : sizeof(uint16_t)));
    return LS_OK;
}
