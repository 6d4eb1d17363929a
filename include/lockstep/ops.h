/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - operators on a tape: arithmetic, reductions, and the shapes of tensors. autograd.h, which
 * includes this header, has their rules (errors, ownership, types). N rows may be 0.
 */
#ifndef LOCKSTEP_OPS_H
#define LOCKSTEP_OPS_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

typedef struct ls_tape ls_tape; /* see autograd.h */

LS_API ls_tensor *ls_relu(ls_tape *tape, ls_tensor *x);
/* max(0, a + b), in one pass; equal shapes. */
LS_API ls_tensor *ls_add_relu(ls_tape *tape, ls_tensor *a, ls_tensor *b);

/* The function of each element, with PyTorch's defaults and its derivatives at corners; LS_ACT_*:
 * tensor.h. LS_ACT_LOG is the logarithm; ls_log() writes to the log. */
LS_API ls_tensor *ls_activate(ls_tape *tape, ls_tensor *x, ls_activation function);
LS_API ls_tensor *ls_sigmoid(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_silu(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_gelu(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_tanh(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_exp(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_sqrt(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_rsqrt(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_abs(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_square(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_reciprocal(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_sin(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_cos(ls_tape *tape, ls_tensor *x);
/* x over 0, else slope * x; alpha * (exp(x) - 1). */
LS_API ls_tensor *ls_leaky_relu(ls_tape *tape, ls_tensor *x, double slope);
LS_API ls_tensor *ls_elu(ls_tape *tape, ls_tensor *x, double alpha);
/* log(1 + exp(beta * x)) / beta; x where beta * x is over the threshold. beta is over 0. */
LS_API ls_tensor *ls_softplus(ls_tape *tape, ls_tensor *x, double beta, double threshold);
/* min(max(x, low), high); low <= high. Only elements from low to high get a gradient. */
LS_API ls_tensor *ls_clamp(ls_tape *tape, ls_tensor *x, double low, double high);
LS_API ls_tensor *ls_pow(ls_tape *tape, ls_tensor *x, double exponent);
/* factor * x + offset. */
LS_API ls_tensor *ls_scale(ls_tape *tape, ls_tensor *x, double factor, double offset);

/* Functions of two tensors, element by element. Shapes are broadcast to one as in PyTorch: sizes
 * are compared from the last dimension on, and a tensor is repeated along dimensions that it lacks
 * in front or where its size is 1 and that of the other is not. So (N,C,1,1) scales or shifts the
 * channels of each sample of (N,C,H,W), (C,1,1) those of all samples, and (N,1) + (T) is (N,T). */
LS_API ls_tensor *ls_add(ls_tape *tape, ls_tensor *a, ls_tensor *b); /* a + b */
LS_API ls_tensor *ls_sub(ls_tape *tape, ls_tensor *a, ls_tensor *b); /* a - b */
LS_API ls_tensor *ls_mul(ls_tape *tape, ls_tensor *a, ls_tensor *b); /* a * b */
LS_API ls_tensor *ls_div(ls_tape *tape, ls_tensor *a, ls_tensor *b); /* a / b */
/* The larger or smaller element, NaN if one is NaN; equal ones get half of the gradient each. */
LS_API ls_tensor *ls_maximum(ls_tape *tape, ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_minimum(ls_tape *tape, ls_tensor *a, ls_tensor *b);

/* Over the dimensions axes[0..n_axes), of which negative ones count from the end; with n_axes 0
 * over all. With keepdim they stay with size 1, else they are left out. Sums are added in one
 * order, whatever the number of threads. The mean of nothing is 0, where PyTorch gives NaN: a rank
 * without rows adds nothing. ls_max() and ls_min() are amax and amin: elements that are equal to
 * the result share its gradient equally; LS_EINVAL where there are none. */
LS_API ls_tensor *ls_sum(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim);
LS_API ls_tensor *ls_mean(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim);
LS_API ls_tensor *ls_max(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim);
LS_API ls_tensor *ls_min(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim);
/* The sum of squared distances from the mean over count - correction: 1 for the unbiased variance,
 * 0 for the biased one. */
LS_API ls_tensor *ls_var(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim,
                         int correction);
/* Element i is the sum of elements 0 to i along the dimension; below 0: from the end. */
LS_API ls_tensor *ls_cumsum(ls_tape *tape, ls_tensor *x, int axis);

/* x repeated to that shape, under the same rule; no dimension may be -1. */
LS_API ls_tensor *ls_expand(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);

/* The same elements in another type: LS_F32 or the tape's compute type. x itself if it has it. For
 * results that the program reads. */
LS_API ls_tensor *ls_cast(ls_tape *tape, ls_tensor *x, ls_dtype type);

/* The same elements in another shape; one dimension may be -1. Also for integers, as targets. */
LS_API ls_tensor *ls_reshape(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);
LS_API ls_tensor *ls_flatten(ls_tape *tape, ls_tensor *x); /* (N, ...) -> (N, rest) */

/* Dimension i of the result is dimension order[i] of x; order names each of x's dimensions once,
 * and negative numbers count from the end, as in all operators with a dimension. */
LS_API ls_tensor *ls_permute(ls_tape *tape, ls_tensor *x, const int *order);

/* x with padding[0] positions of `value` before and padding[1] behind its last dimension,
 * padding[2] and [3] around the one before it, ..., n numbers in all, as torch's pad(). */
LS_API ls_tensor *ls_pad(ls_tape *tape, ls_tensor *x, const int64_t *padding, int n, double value);

/* Masks are uint8; shapes are broadcast as in ls_add(). ls_masked_fill(): `value` where the mask is
 * not 0, else x. ls_where(): a where the mask is not 0, else b. */
LS_API ls_tensor *ls_masked_fill(ls_tape *tape, ls_tensor *x, ls_tensor *mask, double value);
LS_API ls_tensor *ls_where(ls_tape *tape, ls_tensor *mask, ls_tensor *a, ls_tensor *b);

/* Rows of weight (V,D) by indices int64 of any shape: (..., D). An index outside [0, V) is
 * LS_EINVAL. The row `padding_index` (-1: none) gets no gradient. */
LS_API ls_tensor *ls_embedding(ls_tape *tape, ls_tensor *weight, ls_tensor *indices,
                               int64_t padding_index);

/* Dimensions `axis` and `other` swapped; negative ones count from the end. */
LS_API ls_tensor *ls_transpose(ls_tape *tape, ls_tensor *x, int axis, int other);

/* x[0..n) one after the other along dimension `axis`; their other dimensions are equal. n >= 1. */
LS_API ls_tensor *ls_concat(ls_tape *tape, ls_tensor *const *x, int n, int axis);

/* x[0..n), of one shape, as the positions of a new dimension `axis` of the result. n >= 1. */
LS_API ls_tensor *ls_stack(ls_tape *tape, ls_tensor *const *x, int n, int axis);

/* Positions begin to begin + length - 1 of x along dimension `axis`; length >= 1. */
LS_API ls_tensor *ls_slice(ls_tape *tape, ls_tensor *x, int axis, int64_t begin, int64_t length);

/* x cut along dimension `axis` into n >= 1 pieces of sizes[i] >= 0 positions, which add up to the
 * dimension, as torch.split: out[0..n). All are NULL on failure. Backward computes one gradient of
 * x from those of all pieces; where the loss does not depend on a piece it is 0. */
LS_API void ls_split(ls_tape *tape, ls_tensor *x, int axis, const int64_t *sizes, int n,
                     ls_tensor **out);

/* A constant of the tape: `value` everywhere, in any type; as torch.full. LS_EINVAL where an
 * integer type does not have the value. */
LS_API ls_tensor *ls_full(ls_tape *tape, ls_dtype type, int n_dims, const int64_t *dims,
                          double value);

/* (N,length) uint8: 1 where position t of row n is padding, t >= lengths[n], else 0; as a mask of
 * ls_softmax_over() or ls_masked_fill(). lengths: int64 (N), each 0 to `length`; waits for them. */
LS_API ls_tensor *ls_padding_mask(ls_tape *tape, ls_tensor *lengths, int64_t length);

LS_END_DECLS

#endif
