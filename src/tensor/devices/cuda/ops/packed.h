/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.h - tensors in the form that cuDNN and cuBLASLt read. The functions do nothing after a
 * failure of `o`.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_OPS_PACKED_H
#define LS_TENSOR_DEVICES_CUDA_OPS_PACKED_H

#include "tensor/devices/cuda/ops/own.h"

/* The packed form of repack.h, with its type. */
typedef struct pack_form {
    ls_dtype type; /* of the packed elements; the row-major ones have this type or LS_F32 */
    int64_t n;
    int64_t c;
    int64_t s;
    int64_t channels;
} pack_form;

/* A parameter in packed form: its own memory where the forms are equal, else a copy that is kept
 * with its storage and renewed after writes. */
void *packed_parameter(own_operands *o, ls_tensor *t, const pack_form *form);

/* The form of a placed tensor of four dimensions in NHWC of `type` with `channels`, of which those
 * that it has in memory are c. */
pack_form packed_image_form(const ls_tensor *t, ls_dtype type, int64_t channels);

/* Row-major elements in packed form: a temporary copy, or at dst. */
void *packed_copy(own_operands *o, const void *src, ls_dtype src_type, const pack_form *form);
void packed_write(own_operands *o, const void *src, ls_dtype src_type, const pack_form *form,
                  void *dst);

/* Memory for the packed form of row-major elements that a kernel writes: dst itself, or temporary
 * memory, from which packed_finish() then writes dst, or adds to it. `sums`: NULL, or what
 * own_launch_sums() of the form's type computes, in the same launch. */
void *packed_begin(own_operands *o, void *dst, ls_dtype dst_type, const pack_form *form, bool adds);
void packed_finish(own_operands *o, void *dst, ls_dtype dst_type, const pack_form *form, bool adds,
                   const void *from, const column_args *sums);

/* device_ops.free_packed */
void packed_free(device_state *self, packed *p);

#endif
