/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket_pack.c - fills the 16-bit elements of a bucket from its float32 gradients, and back: on a
 * host device by the loops of half_bucket.c, on a stream device by operators of the device. ddp.c
 * calls it.
 */
#include "ddp/reducer.h"

#include "ddp/half_bucket.h"
#include "tensor/device.h"

static size_t count_of(const bucket *b)
{
    return b->bytes / sizeof(float);
}

/* Multiplies the gradients by 1 / divisor. */
static ls_status scale(ls_ddp *ddp, bucket *b, double divisor)
{
    op_call fill = {.op = OP_FILL, .attrs = {.value = 1 / divisor}, .n_out = 1};
    op_call call = {.op = OP_SCALE_BY, .n_in = 2, .n_out = 1, .in = {b->values}};
    ls_tensor *factor;
    ls_status st;

    LS_TRY(tensor_shape(ddp->device, LS_F64, 0, NULL, &factor));
    st = tensor_place(factor, NULL, 0);
    fill.out[0] = factor;
    if (st == LS_OK)
        st = device_run(ddp->device, &fill);
    call.in[1] = factor;
    call.out[0] = b->values;
    if (st == LS_OK)
        st = device_run(ddp->device, &call);
    ls_tensor_destroy(factor);
    return st;
}

/* Converts `from` into the memory of `to`, which has another type. */
static ls_status cast_into(ls_ddp *ddp, ls_tensor *from, ls_tensor *to)
{
    op_call call = {.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {from}};
    ls_tensor *cast;
    void *data = NULL;
    ls_status st;

    LS_TRY(tensor_shape(ddp->device, to->dtype, to->n_dims, to->dims, &cast));
    call.out[0] = cast;
    st = device_run(ddp->device, &call);
    if (st == LS_OK)
        st = tensor_plain(cast, &data);
    if (st == LS_OK)
        st = device_copy(ddp->device, tensor_elements(to), data, tensor_bytes(to));
    if (st == LS_OK)
        tensor_written(to, "DDP");
    ls_tensor_destroy(cast);
    return st;
}

ls_status bucket_pack(ls_ddp *ddp, bucket *b, double divisor)
{
    if (b->values == NULL) {
        half_pack((const float *)(void *)b->memory, b->packed, count_of(b), (float)divisor,
                  bucket_wire_type(ddp));
        return LS_OK;
    }
    LS_TRY(scale(ddp, b, divisor));
    return cast_into(ddp, b->values, b->halves);
}

ls_status bucket_unpack(ls_ddp *ddp, bucket *b)
{
    if (b->values == NULL) {
        half_unpack(b->packed, (float *)(void *)b->memory, count_of(b), bucket_wire_type(ddp));
        return LS_OK;
    }
    return cast_into(ddp, b->halves, b->values);
}
