/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - a tape that records operators as they run, and runs them backward.
 *
 *     ls_tensor *h = ls_max_pool2d(tape, ls_relu(tape, ls_conv2d(tape, x, w, b, NULL)), &pool);
 *
 * Errors     An operator gives NULL when it fails or gets NULL; the first failure stays in the tape
 *            with the operator's name and shapes, and ls_backward() and ls_tape_status() report it.
 * Ownership  What operators give belongs to the tape until ls_tape_reset(), and its memory may be
 *            reused as soon as backward has passed it (see ls_tape_keep). What they are given by the
 *            caller must stay as it is until backward or the reset: a backward that reads a tensor
 *            that was written or destroyed since is LS_EINVAL and names operator and input. (What
 *            is written later through a pointer of ls_tensor_data() or ls_tensor_wrap() is not
 *            seen.)
 * Threads    A tape is used by one thread.
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

typedef struct ls_tape ls_tape;

/* --- life of a tape --- */

LS_API LS_MUST_USE ls_status ls_tape_create(ls_device *device, ls_tape **out);
LS_API void ls_tape_destroy(ls_tape *tape); /* NULL is allowed */

/* Forgets all operators and values, clears a failure; the memory is kept for the next step. */
LS_API void ls_tape_reset(ls_tape *tape);

/* Training (the default) records operators and uses batch statistics; evaluation does neither. Changing
 * the mode resets the tape. */
LS_API void ls_tape_set_training(ls_tape *tape, int training);
LS_API int ls_tape_training(const ls_tape *tape);

/* The first failure since the last reset, LS_OK if none; its text is made this thread's last error. */
LS_API LS_MUST_USE ls_status ls_tape_status(ls_tape *tape);

/* Keeps a value (and, if it has one, its gradient) valid after backward, until reset. To later operators it
 * is a constant then. Other tensors and NULL are left alone. */
LS_API void ls_tape_keep(ls_tape *tape, ls_tensor *value);

/* Says that no later operator reads the value: its memory is used again at once, or as soon as backward has passed what
 * reads it; a batch norm's output is made again for that. Kept values, other tensors and NULL are left alone. */
LS_API void ls_tape_done(ls_tape *tape, ls_tensor *value);

/* --- gradients --- */

/* Makes `t`, owned by the caller, float32 or float64, a leaf whose gradient backward computes. */
LS_API LS_MUST_USE ls_status ls_require_grad(ls_tensor *t);

/* The gradient of a leaf, row-major, or of a kept value; NULL when there is none. Borrowed: lives as long
 * as the leaf (or until the tape's reset). */
LS_API ls_tensor *ls_grad(const ls_tensor *t);

/* Forgets a leaf's gradient: the next backward writes it, later ones before the next call add to it. */
LS_API void ls_zero_grad(ls_tensor *t);

/* d(seed * loss)/d(leaf) for all leaves; `loss` has one element and stays readable until the
 * reset. With mean losses, seeding with the number of rows gives sums over samples. A parameter
 * that an ls_ddp reduces is LS_EINVAL: its backward is ls_ddp_backward(). Everything recorded so
 * far is used up, whether the loss depends on it or not; operators may follow, for another
 * backward. Reports the tape's first failure; a failure of its own becomes it, and leaves
 * gradients undefined. */
LS_API LS_MUST_USE ls_status ls_backward(ls_tape *tape, ls_tensor *loss, double seed);

/* Called during ls_backward() in the order in which leaves' gradients become complete, once per leaf and
 * backward; never for leaves that the loss does not depend on. A failure ends the backward. */
typedef ls_status (*ls_grad_ready_fn)(void *arg, ls_tensor *leaf);
LS_API void ls_tape_on_grad_ready(ls_tape *tape, ls_grad_ready_fn fn, void *arg); /* NULL: none */

/* --- operators; N rows may be 0 --- */

typedef struct ls_conv2d_params {
    int stride[2];   /* height, width; 0 means 1 */
    int padding[2];  /* zeros on both sides */
    int dilation[2]; /* 0 means 1 */
    int groups;      /* 0 means 1 */
} ls_conv2d_params;

/* (N,C,H,W) * (O,C/groups,KH,KW) + (O) -> (N,O,H',W'); bias and params may be NULL. */
LS_API ls_tensor *ls_conv2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv2d_params *params);

/* A batch that several processes share: sum() adds values[0..n) up over all of them, in place, so that each gets the same
 * result. Batch norm calls it once in each training forward, and once in its backward, also with N = 0; values[0]
 * is how many values a channel has here. */
typedef struct ls_batch_norm_sync {
    ls_status (*sum)(void *arg, double *values, size_t n);
    void *arg;
} ls_batch_norm_sync;

typedef struct ls_batch_norm_params {
    double momentum; /* of the running statistics, PyTorch's meaning; 0 means 0.1 */
    double eps;      /* 0 means 1e-5 */
    int relu;        /* 1: max(0, result), in one pass */
    ls_batch_norm_sync
        sync; /* with sum: statistics and their gradients are those of the shared batch, as
                                torch.nn.SyncBatchNorm; weight's and bias's gradients are this process's share */
} ls_batch_norm_params;

/* Normalises each channel of (N,C,H,W) or (N,C). weight, bias, running_mean, running_var: (C). Training uses
 * the batch's statistics and moves the running ones (variance: unbiased); evaluation uses the running ones.
 * With N = 0 the running statistics stay; one value a channel is refused in training, as PyTorch does.
 * params may be NULL. */
LS_API ls_tensor *ls_batch_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                ls_tensor *running_mean, ls_tensor *running_var,
                                const ls_batch_norm_params *params);

/* ls_batch_norm with .relu = 1. */
LS_API ls_tensor *ls_bn_relu(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                             ls_tensor *running_mean, ls_tensor *running_var,
                             const ls_batch_norm_params *params);

typedef struct ls_pool2d_params {
    int kernel[2];  /* height, width */
    int stride[2];  /* 0 means the kernel's */
    int padding[2]; /* at most half the kernel */
    int ceil_mode;  /* 1: a last window that begins inside the image or its leading padding counts,
                       even if it reaches over the end; as PyTorch's */
} ls_pool2d_params;

/* Max over windows; of equal values the first in row order gets the gradient, as PyTorch. */
LS_API ls_tensor *ls_max_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params);

/* Mean over windows; padding counts as zeros, as with PyTorch's defaults. */
LS_API ls_tensor *ls_avg_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params);

/* (N,C,H,W) -> (N,C,height,width): means over windows that cover the whole image, as torch.nn.AdaptiveAvgPool2d. */
LS_API ls_tensor *ls_adaptive_avg_pool2d(ls_tape *tape, ls_tensor *x, int height, int width);

LS_API ls_tensor *ls_relu(ls_tape *tape, ls_tensor *x);
LS_API ls_tensor *ls_add_relu(ls_tape *tape, ls_tensor *a,
                              ls_tensor *b); /* max(0, a + b), in one pass; equal shapes */

/* The function of each element; LS_ACT_*: tensor.h. */
LS_API ls_tensor *ls_activate(ls_tape *tape, ls_tensor *x, ls_activation function);

/* a + b and a * b, element by element, of a's shape. b may lack leading dimensions of a, and may
 * have size 1 where a has more: b is repeated there. So (N,C,1,1) scales or shifts the channels of
 * each sample of (N,C,H,W), (C,1,1) those of all samples, (1,T,D) or (T,D) is added to each sample
 * of (N,T,D). */
LS_API ls_tensor *ls_add(ls_tape *tape, ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_mul(ls_tape *tape, ls_tensor *a, ls_tensor *b);

/* x repeated to that shape, under the same rule; no dimension may be -1. */
LS_API ls_tensor *ls_expand(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);

/* The same elements in another shape; one dimension may be -1. */
LS_API ls_tensor *ls_reshape(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);
LS_API ls_tensor *ls_flatten(ls_tape *tape, ls_tensor *x); /* (N, ...) -> (N, rest) */

/* Dimension i of the result is dimension order[i] of x; order names each of x's dimensions once. */
LS_API ls_tensor *ls_permute(ls_tape *tape, ls_tensor *x, const int *order);

/* x[0..n) one after the other along dimension `axis`; their other dimensions are equal. n >= 1. */
LS_API ls_tensor *ls_concat(ls_tape *tape, ls_tensor *const *x, int n, int axis);

/* Positions begin to begin + length - 1 of x along dimension `axis`; length >= 1. */
LS_API ls_tensor *ls_slice(ls_tape *tape, ls_tensor *x, int axis, int64_t begin, int64_t length);

/* (...,I) * (O,I)^T + (O) -> (...,O), of 2 dimensions or more; bias may be NULL. */
LS_API ls_tensor *ls_linear(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias);

/* (...,M,K) * (...,K,N) -> (...,M,N), for each of the leading dimensions, which are equal. With
 * transpose_b b is (...,N,K) and each of its matrices is transposed first. */
LS_API ls_tensor *ls_matmul(ls_tape *tape, ls_tensor *a, ls_tensor *b, int transpose_b);

/* Normalises each row of the last dimension: x: (...,D), weight, bias: (D); eps 0 means 1e-5. */
LS_API ls_tensor *ls_layer_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                double eps);

/* softmax(scale * x) over the last dimension. */
LS_API ls_tensor *ls_softmax(ls_tape *tape, ls_tensor *x, double scale);

/* Mean over N of -log softmax(logits)[target]; logits (N,K), targets int64 (N) in [0,K). N = 0 gives 0. */
LS_API ls_tensor *ls_cross_entropy(ls_tape *tape, ls_tensor *logits, ls_tensor *targets);

typedef struct ls_cross_entropy_params {
    double
        label_smoothing; /* 0 to 1: this share of each target is spread evenly over all K classes */
} ls_cross_entropy_params;

/* The same with parameters, which may be NULL. */
LS_API ls_tensor *ls_cross_entropy_with(ls_tape *tape, ls_tensor *logits, ls_tensor *targets,
                                        const ls_cross_entropy_params *params);

LS_API ls_tensor *ls_log_softmax(ls_tape *tape, ls_tensor *x); /* (N,K), over K */

/* Mean over N of -log_probabilities[target]: behind ls_log_softmax() the same as ls_cross_entropy(). */
LS_API ls_tensor *ls_nll_loss(ls_tape *tape, ls_tensor *log_probabilities, ls_tensor *targets);

/* Mean of squared differences; equal shapes. */
LS_API ls_tensor *ls_mse_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target);

/* Training: each element is 0 with probability p (0 to 1), else divided by 1 - p. Evaluation, and p = 0: x itself. Which elements are
 * dropped depends on what ls_tape_set_random() says, the number of the call since then, and the element: on nothing else. */
LS_API ls_tensor *ls_dropout(ls_tape *tape, ls_tensor *x, double p);

/* Training: each row of (N, ...) is 0 as a whole with probability p (0 to 1), else divided by
 * 1 - p, as torchvision's StochasticDepth in mode "row". Evaluation, and p = 0: x itself. Random as
 * ls_dropout(). */
LS_API ls_tensor *ls_stochastic_depth(ls_tape *tape, ls_tensor *x, double p);

/* Where randomness on this tape comes from, until the next call; before the first one ls_dropout()
 * and ls_stochastic_depth() fail in training. A program gives the number of its step, and each rank
 * a seed of its own: ranks with the same seed drop the same elements. Then a resumed run draws what
 * an uninterrupted one does. */
LS_API void ls_tape_set_random(ls_tape *tape, uint64_t seed, int64_t step);

/* --- measuring --- */

/* correct[i] = in how many rows the target is among the k[i] largest of logits (N,K), float32 or float64; targets int64 (N) in
 * [0,K). Of equal logits the first counts as larger, and NaN as larger than all numbers (torch.topk sees NaN so, and of
 * equal values takes any). k over K counts as K. */
LS_API LS_MUST_USE ls_status ls_top_k_correct(const ls_tensor *logits, const ls_tensor *targets,
                                              const int *k, int n, int64_t *correct);

/* --- checking derivatives --- */

/* A scalar function of its inputs, built with operators on `tape`. */
typedef ls_tensor *(*ls_grad_check_fn)(ls_tape *tape, ls_tensor *const *inputs, void *arg);

/* Compares backward with central differences, in float64 on the inputs' device, at every element of every input that
 * requires a gradient; inputs are float64. *worst (may be NULL): largest relative difference, that of
 * derivatives under 1e-3 taken against 1e-3. LS_EFORMAT names input and element when it is over `tolerance`. */
LS_API LS_MUST_USE ls_status ls_grad_check(ls_grad_check_fn fn, void *arg, ls_tensor *const *inputs,
                                           int n_inputs, double tolerance, double *worst);

LS_END_DECLS

#endif
