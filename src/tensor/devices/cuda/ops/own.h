/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h - what the files own_*.c, which launch the device's own kernels, share: how they see
 * tensors, copies of operands in other arrangements, sums over rows; and the operators.
 *
 * tensor/devices/cuda/ops/: operators by our own kernels. cuda_device.c and dnn/ call it.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_OPS_OWN_H
#define LS_TENSOR_DEVICES_CUDA_OPS_OWN_H

#include "tensor/devices/cuda/kernels/kernel_args.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"
#include "tensor/formulas/axis.h"
#include "tensor/formulas/batch_sync.h"
#include "tensor/formulas/broadcast.h"

#define OWN_THREADS 256 /* of a block, unless a row needs fewer; KERNEL_THREADS at most */

/* The kernels of one name, by kernel_type. */
typedef const gpu_kernel *const own_kernels[4];
#define OWN_KERNELS(NAME) ((own_kernels){&NAME##_f32, &NAME##_f64, &NAME##_bf16, &NAME##_f16})

/* --- tensors --- */

kernel_type own_type(ls_dtype type);
size_t own_element_bytes(ls_dtype type);
void *own_data(const ls_tensor *t); /* of a placed one; NULL for NULL */

/* Whether a placed tensor is (N,H,W,C) in memory, and not row-major. */
bool own_is_nhwc(const ls_tensor *t);

/* Whether a placed tensor has padded channels (cuda_nhwc8). */
bool own_is_padded(const ls_tensor *t);

/* The bytes of its memory are a multiple of 16, as those of its address. */
static inline bool own_is_aligned(const void *p)
{
    return (uintptr_t)p % PACK_BYTES == 0;
}

/* Elements of PACK_BYTES. */
static inline size_t own_pack(kernel_type type)
{
    return type == KERNEL_F64 ? 2 : type == KERNEL_F32 ? 4 : 8;
}

/* Whether elements at p are those of `t` itself, aligned, and any aligned access of PACK_BYTES that
 * has one of them stays within the memory of `t`. */
bool own_has_whole_packs(const ls_tensor *t, const void *p);

/* Blocks of OWN_THREADS for `n` units of one thread each; 0 for none. */
unsigned own_blocks(const device_state *self, size_t n);

/* --- operands: temporary memory of one call, given back in the order of the queue --- */

#define OWN_OPERANDS 8

typedef struct own_operands {
    device_state *self;
    ls_status status; /* the first failure; after it the functions do nothing */
    int n;
    ls_tensor *temporary[OWN_OPERANDS];
} own_operands;

own_operands own_begin(device_state *self);

/* Frees the temporary memory; the status. */
LS_MUST_USE ls_status own_end(own_operands *o);

/* The elements of `t` in this arrangement: its own memory, or that of a copy. NULL for NULL. */
void *own_operand(own_operands *o, const ls_tensor *t, bool nhwc);

/* Undefined memory; NULL after a failure. */
void *own_memory(own_operands *o, ls_dtype type, size_t count);

/* Places an output, unless it is NULL; its memory. */
void *own_output(own_operands *o, ls_tensor *t, bool nhwc);

/* The same, in the memory of the gradient in[1] if the call allows that. */
void *own_output_over_grad(own_operands *o, const op_call *call, ls_tensor *t, bool nhwc);

void own_launch(own_operands *o, own_kernels kernels, kernel_type type, unsigned n_blocks,
                unsigned n_threads, const void *args);

void own_zero(own_operands *o, void *p, size_t bytes);

/* A block for each row, with a thread for up to four units of so many columns. */
void own_launch_rows(own_operands *o, own_kernels kernels, kernel_type type, const row_args *a,
                     size_t unit);

/* --- moves --- */

/* Elements at the address plus the sum of index[d] * step[d] elements. */
typedef struct own_view {
    void *data;
    size_t element_bytes;
    int n_dims;
    size_t dims[MOVE_DIMS];
    size_t step[MOVE_DIMS];
} own_view;

own_view own_view_of(const ls_tensor *t);

/* Copies between views of equal dims. */
void own_move(own_operands *o, const own_view *dst, const own_view *src);

/* OP_BINARY of equal shapes. */
void own_binary_alike(own_operands *o, const op_call *call);

/* --- sums over rows --- */

/* Divides n matrices of rows x columns for the kernels of columns.cu that sum; memory for the parts
 * comes from `o`. `wide`: all arrays are aligned to 16 bytes. */
column_split own_sum_split(own_operands *o, size_t n, size_t rows, size_t columns, kernel_type type,
                           bool wide);

/* The same for kernels that apply something to all rows. */
column_split own_apply_split(size_t rows, size_t columns, kernel_type type, bool wide);

unsigned own_split_blocks(const column_split *by);

/* The arguments of column_sum for the gradient of a bias: out[1] of the call = the sums of the
 * columns of x (rows, columns) of this type; memory comes from `o`. */
column_args own_bias_sums(own_operands *o, const op_call *call, const void *x, kernel_type type,
                          size_t rows, size_t columns);

void own_launch_sums(own_operands *o, const column_args *a, kernel_type type);

/* --- updates --- */

/* The operators that own_run_updates() takes. */
bool own_is_update(op_kind op);

/* Runs calls of one such operator in as few launches as their types and rates allow. */
LS_MUST_USE ls_status own_run_updates(device_state *self, const op_call *calls, int n);

/* --- the kernels: cuda_copy(), cuda_conv2d(), ... --- */

#define OPERATOR(KIND, name, ...) void cuda_##name(own_operands *o, const op_call *call);
#include "tensor/operators.inc"

#endif
