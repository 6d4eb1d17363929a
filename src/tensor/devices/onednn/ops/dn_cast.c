/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_cast.c - conversions between float32 and 16-bit floats: as an operator, whose result keeps the
 * layout, and piece by piece for kernels that compute in float32.
 */
#include "tensor/devices/onednn/dn.h"

converter converter_of(const device_state *self, ls_dtype type)
{
    const simd_table *simd = self->simd;

    if (type == LS_BF16)
        return (converter){.widen = simd->widen_bf16, .narrow = simd->narrow_bf16};
    if (type == LS_F16)
        return (converter){.widen = simd->widen_f16, .narrow = simd->narrow_f16};
    return (converter){.widen = NULL};
}

const float *convert_in(const converter *c, const void *elements, size_t at, float *buffer,
                        size_t n)
{
    if (c->widen == NULL)
        return (const float *)elements + at;
    c->widen((const uint16_t *)elements + at, buffer, n);
    return buffer;
}

float *convert_begin(const converter *c, void *elements, size_t at, float *buffer)
{
    return c->narrow == NULL ? (float *)elements + at : buffer;
}

void convert_out(const converter *c, const float *buffer, void *elements, size_t at, size_t n)
{
    if (c->narrow != NULL)
        c->narrow(buffer, (uint16_t *)elements + at, n);
}

ls_status plane_buffers_make(const device_state *self, const ls_tensor *like, size_t in, size_t out,
                             plane_buffers *b)
{
    *b = (plane_buffers){.c = converter_of(self, like->dtype), .in = in, .both = in + out};
    if (b->c.widen == NULL)
        return LS_OK;
    return dn_floats(like->device, (size_t)self->threads * b->both, &b->memory, &b->floats);
}

const float *plane_read(const plane_buffers *b, size_t thread, const void *elements, size_t at,
                        size_t n)
{
    return convert_in(&b->c, elements, at, b->floats == NULL ? NULL : b->floats + thread * b->both,
                      n);
}

float *plane_begin(const plane_buffers *b, size_t thread, void *elements, size_t at)
{
    return convert_begin(&b->c, elements, at,
                         b->floats == NULL ? NULL : b->floats + thread * b->both + b->in);
}

typedef struct cast_work {
    converter of_from;
    converter of_to;
    const void *from;
    void *to;
} cast_work;

static void cast_range(void *arg, size_t begin, size_t end, size_t thread)
{
    const cast_work *w = arg;

    LS_UNUSED(thread);
    if (w->of_from.widen != NULL)
        w->of_from.widen((const uint16_t *)w->from + begin, (float *)w->to + begin, end - begin);
    else
        w->of_to.narrow((const float *)w->from + begin, (uint16_t *)w->to + begin, end - begin);
}

void cast_elements(const device_state *self, ls_dtype from, const void *src, ls_dtype to, void *dst,
                   size_t n)
{
    cast_work w = {.of_from = converter_of(self, from),
                   .of_to = converter_of(self, to),
                   .from = src,
                   .to = dst};

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
    cast_elements(self, x->dtype, dn_data(x), y->dtype, dn_data(y), layout_elements(from));
    return LS_OK;
}
