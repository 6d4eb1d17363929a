/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - a tape that records operators as they run, and runs them backward.
 *
 *     ls_tensor *h = ls_max_pool2d(tape, ls_relu(tape, ls_conv2d(tape, x, w, b, NULL)), &pool);
 *
 * Errors     An operator gives NULL when it fails or gets NULL (one with several results writes
 *            NULL to all of them); the first failure stays in the tape with the operator's name and
 *            shapes, and ls_backward() and ls_tape_status() report it.
 * Ownership  Results of operators belong to the tape until ls_tape_reset(); their memory may be
 *            reused as soon as backward has passed it (see ls_tape_keep). The caller's own tensors
 *            must not change until backward or the reset: a backward that reads a tensor that was
 *            written or destroyed since forward is LS_EINVAL and names operator and input. (Later
 *            writes through a pointer of ls_tensor_data() or ls_tensor_wrap() are not detected.)
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

/* Forgets all operators and values, and clears a failure; the next step reuses the memory. */
LS_API void ls_tape_reset(ls_tape *tape);

/* Training (the default) records operators and uses batch statistics; evaluation does neither. A
 * change of the mode resets the tape. */
LS_API void ls_tape_set_training(ls_tape *tape, int training);
LS_API int ls_tape_training(const ls_tape *tape);

/*
 * Mixed precision: the type of activations, LS_F32 (the default), LS_BF16 or LS_F16. Parameters
 * (weights, biases, running statistics) and their gradients stay float32. With a 16-bit type, as
 * with torch.autocast,
 *   - convolutions, ls_linear, ls_matmul, ls_attention and recurrent cells convert their float32
 *     inputs, such as the batch, to it, but not cell states of LSTMs (which PyTorch converts as
 *     well);
 *   - losses, softmax, sums, means, cumulative sums, exp, log, pow, rsqrt, reciprocal and softplus
 *     convert 16-bit inputs to float32, and give float32;
 *   - all other operators have the type of their inputs; if these differ, float32.
 * Sums, means and variances are always computed in float32 or float64. The gradient of a value has
 * the value's type. An input that is converted twice in a row is converted once. float64 is never
 * converted. In LS_F16 gradients below 6e-8 become 0: the seed of ls_backward() should be large
 * (ls_grad_scaler of <lockstep/optim.h>).
 * A change resets the tape. LS_EINVAL: another type.
 */
LS_API LS_MUST_USE ls_status ls_tape_set_compute(ls_tape *tape, ls_dtype type);
LS_API ls_dtype ls_tape_compute(const ls_tape *tape); /* LS_F32 for NULL */

/* The first failure since the last reset, LS_OK if none; its text is made this thread's last
 * error. / */
LS_API LS_MUST_USE ls_status ls_tape_status(ls_tape *tape);

/* Retains a value, and its gradient if it has one, after backward until the reset. Later operators
 * treat it as a constant. Other tensors and NULL are ignored. */
LS_API void ls_tape_keep(ls_tape *tape, ls_tensor *value);

/* Declares that no later operator reads the value: its memory is reused at once, or as soon as
 * backward has passed the operators that read it. On host devices a batch norm's output is freed
 * at once, and recomputed for backward. Retained values, other tensors and NULL are ignored. */
LS_API void ls_tape_done(ls_tape *tape, ls_tensor *value);

/* 1: an operator whose result has NaN or infinity fails with LS_EFORMAT, and so does a backward
 * that makes such a gradient. The text names operator, tensor, element and, with layers of
 * <lockstep/nn.h>, the layer; so the first failure is the cause of a loss that is NaN. Gradients
 * are not checked on a tape that computes in LS_F16: ls_grad_scaler skips steps that overflow. Each
 * result is copied and read, which is slow, but does not change results. 0 (the default): no
 * check. */
LS_API void ls_tape_check_nan(ls_tape *tape, int on);

/* --- gradients --- */

/* Makes `t`, owned by the caller, float32 or float64, a leaf whose gradient backward computes; also
 * one that ls_model_freeze() has frozen. */
LS_API LS_MUST_USE ls_status ls_require_grad(ls_tensor *t);

/* The gradient of a leaf, row-major, or of a retained value; NULL when there is none. Borrowed:
 * valid until the leaf is destroyed (the tape is reset). */
LS_API ls_tensor *ls_grad(const ls_tensor *t);

/* Forgets a leaf's gradient: the next backward writes it, later ones before the next call add to
 * it. */
LS_API void ls_zero_grad(ls_tensor *t);

/* d(seed * loss)/d(leaf) for all leaves; `loss` has one element and stays readable until the
 * reset. With mean losses, seeding with the number of rows gives sums over samples. A parameter
 * that an ls_ddp reduces is LS_EINVAL: call ls_ddp_backward(). Backward consumes all operators
 * recorded so far, also those that the loss does not depend on; operators of another backward may
 * follow. Returns the tape's first failure; after a failure the gradients are undefined. */
LS_API LS_MUST_USE ls_status ls_backward(ls_tape *tape, ls_tensor *loss, double seed);

/* Called during ls_backward() in the order in which the gradients of leaves become complete, once
 * per leaf and backward; never for leaves that the loss does not depend on. A failure ends the
 * backward. */
typedef ls_status (*ls_grad_ready_fn)(void *arg, ls_tensor *leaf);
LS_API void ls_tape_on_grad_ready(ls_tape *tape, ls_grad_ready_fn fn, void *arg); /* NULL: none */

/* --- operators; N rows may be 0 --- */

typedef struct ls_conv1d_params {
    int stride;   /* 0 means 1 */
    int padding;  /* zeros on both sides */
    int dilation; /* 0 means 1 */
    int groups;   /* 0 means 1 */
} ls_conv1d_params;

/* (N,C,T) * (O,C/groups,K) + (O) -> (N,O,T'); bias and params may be NULL. As fast as ls_conv2d of
 * height 1: results keep the layout of images up to an operator that needs them row-major. */
LS_API ls_tensor *ls_conv1d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv1d_params *params);

typedef struct ls_conv2d_params {
    int stride[2];   /* height, width; 0 means 1 */
    int padding[2];  /* zeros on both sides */
    int dilation[2]; /* 0 means 1 */
    int groups;      /* 0 means 1 */
} ls_conv2d_params;

/* (N,C,H,W) * (O,C/groups,KH,KW) + (O) -> (N,O,H',W'); bias and params may be NULL. */
LS_API ls_tensor *ls_conv2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv2d_params *params);

typedef struct ls_conv_transpose1d_params {
    int stride; /* 0 means 1 */
    int padding;
    int output_padding; /* more positions at the end; smaller than stride or dilation */
    int dilation;       /* 0 means 1 */
    int groups;         /* 0 means 1 */
} ls_conv_transpose1d_params;

typedef struct ls_conv_transpose2d_params {
    int stride[2]; /* height, width; 0 means 1 */
    int padding[2];
    int output_padding[2]; /* more positions at the end; smaller than stride or dilation */
    int dilation[2];       /* 0 means 1 */
    int groups;            /* 0 means 1 */
} ls_conv_transpose2d_params;

/* Transposed convolutions, as torch.nn.functional's: (N,C,T) and weight (C,O/groups,K) -> (N,O,T')
 * with T' = (T - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1, and the same of
 * height and width. bias: (O); bias and params may be NULL. */
LS_API ls_tensor *ls_conv_transpose1d(ls_tape *tape, ls_tensor *x, ls_tensor *weight,
                                      ls_tensor *bias, const ls_conv_transpose1d_params *params);
LS_API ls_tensor *ls_conv_transpose2d(ls_tape *tape, ls_tensor *x, ls_tensor *weight,
                                      ls_tensor *bias, const ls_conv_transpose2d_params *params);

/* A batch that several processes share: sum() adds up values[0..n) over all of them, in place, and
 * gives each process the same result. Batch norm calls it once in each training forward and once in
 * its backward, also with N = 0; values[0] is the number of values per channel in this process. On
 * a stream device `values` is its memory, which the host must not read: sum() queues its work
 * behind ls_device_queue(), and makes that queue wait for the result, or waits itself. */
typedef struct ls_batch_norm_sync {
    ls_status (*sum)(void *arg, double *values, size_t n);
    void *arg;
} ls_batch_norm_sync;

typedef struct ls_batch_norm_params {
    double momentum; /* of the running statistics, PyTorch's meaning; 0 means 0.1 */
    double eps;      /* 0 means 1e-5 */
    int relu;        /* 1: max(0, result), in one pass */
    /* with sum: statistics and their gradients are those of the shared batch, as in
     * torch.nn.SyncBatchNorm; the gradients of weight and bias are this process's share */
    ls_batch_norm_sync sync;
    /* an int64 scalar that is incremented with the running statistics; may be NULL */
    ls_tensor *num_batches_tracked;
} ls_batch_norm_params;

/* Normalises each channel of (N,C,H,W), (N,C,T) or (N,C). weight, bias, running_mean, running_var:
 * (C).
 * Training uses the batch's statistics and updates the running ones (variance: unbiased);
 * evaluation uses the running ones. With N = 0 the running statistics do not change. Training needs
 * more than one value per channel, as in PyTorch: one is LS_EINVAL. params may be NULL. */
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
    /* 1: a last window that begins inside the image or its leading padding counts, even if it
     * extends past the end; as in PyTorch */
    int ceil_mode;
} ls_pool2d_params;

/* Max over windows; of equal values the first in row order gets the gradient, as PyTorch. */
LS_API ls_tensor *ls_max_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params);

/* Mean over windows; padding counts as zeros, as with PyTorch's defaults. */
LS_API ls_tensor *ls_avg_pool2d(ls_tape *tape, ls_tensor *x, const ls_pool2d_params *params);

/* (N,C,H,W) -> (N,C,height,width): means over windows that cover the whole image, as
 * torch.nn.AdaptiveAvgPool2d. */
LS_API ls_tensor *ls_adaptive_avg_pool2d(ls_tape *tape, ls_tensor *x, int height, int width);

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
/* Element i is the sum of elements 0 to i along the dimension; a negative one counts from the end.
 * */
LS_API ls_tensor *ls_cumsum(ls_tape *tape, ls_tensor *x, int axis);

/* x repeated to that shape, under the same rule; no dimension may be -1. */
LS_API ls_tensor *ls_expand(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);

/* The same elements in another type: LS_F32 or the tape's compute type. x itself if it has it. For
 * results that the program reads. */
LS_API ls_tensor *ls_cast(ls_tape *tape, ls_tensor *x, ls_dtype type);

/* The same elements in another shape; one dimension may be -1. Also for integers, as targets. */
LS_API ls_tensor *ls_reshape(ls_tape *tape, ls_tensor *x, int n_dims, const int64_t *dims);
LS_API ls_tensor *ls_flatten(ls_tape *tape, ls_tensor *x); /* (N, ...) -> (N, rest) */

/* Dimension i of the result is dimension order[i] of x; order names each of x's dimensions once. */
LS_API ls_tensor *ls_permute(ls_tape *tape, ls_tensor *x, const int *order);

/* x with padding[0] positions of `value` before and padding[1] behind its last dimension,
 * padding[2] and [3] around the one before it, ..., n numbers in all, as torch.nn.functional.pad.
 * */
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

/* Positions begin to begin + length - 1 of x along dimension `axis`; length >= 1. */
LS_API ls_tensor *ls_slice(ls_tape *tape, ls_tensor *x, int axis, int64_t begin, int64_t length);

/* x cut along dimension `axis` into n >= 1 pieces of sizes[i] >= 0 positions, which add up to the
 * dimension, as torch.split: out[0..n). All are NULL on failure. Backward computes one gradient of
 * x from those of all pieces; where the loss does not depend on a piece it is 0. */
LS_API void ls_split(ls_tape *tape, ls_tensor *x, int axis, const int64_t *sizes, int n,
                     ls_tensor **out);

/* (...,I) * (O,I)^T + (O) -> (...,O), of 2 dimensions or more; bias may be NULL. */
LS_API ls_tensor *ls_linear(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias);

/* (...,M,K) * (...,K,N) -> (...,M,N); the leading dimensions are broadcast as in ls_add(). With
 * transpose_b b is (...,N,K) and each of its matrices is transposed first. */
LS_API ls_tensor *ls_matmul(ls_tape *tape, ls_tensor *a, ls_tensor *b, int transpose_b);

/* Zero means the default. */
typedef struct ls_attention_params {
    int causal; /* 1: query t sees keys 0 to t only */
    /* NULL, numbers that are added to the scores (...,T,S), or uint8 that is not 0 where a key
     * takes no part (attn_mask of PyTorch has the opposite meaning); broadcast to the scores. Gets
     * no gradient: LS_EINVAL if it needs one. Combines with `causal`. */
    ls_tensor *mask;
    double scale;   /* 0: 1 / sqrt(D) */
    double dropout; /* of the weights, as ls_dropout() */
} ls_attention_params;

/* softmax(scale * q k^T + mask) v, as torch.nn.functional.scaled_dot_product_attention: q
 * (...,T,D), k (...,S,D) and v (...,S,E) give (...,T,E); the leading dimensions (batch, heads) are
 * broadcast. The memory, also for backward, grows with T and S and not with T * S: backward
 * computes the weights again. A query for which no key takes part gives 0. params may be NULL. */
LS_API ls_tensor *ls_attention(ls_tape *tape, ls_tensor *q, ls_tensor *k, ls_tensor *v,
                               const ls_attention_params *params);

/* Normalises each row of the last dimension: x: (...,D), weight, bias: (D), each may be NULL; eps 0
 * means 1e-5. */
LS_API ls_tensor *ls_layer_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                double eps);

/* Normalises each of `groups` equal groups of channels of each sample, and scales each channel: x:
 * (N,C,...), weight, bias: (C), each may be NULL; eps 0 means 1e-5. Computed as ls_layer_norm,
 * ls_mul and ls_add. */
LS_API ls_tensor *ls_group_norm(ls_tape *tape, ls_tensor *x, int groups, ls_tensor *weight,
                                ls_tensor *bias, double eps);

/* softmax(scale * x) over the last dimension. */
LS_API ls_tensor *ls_softmax(ls_tape *tape, ls_tensor *x, double scale);

/* Softmax and its logarithm over a dimension (negative: counted from the end) of x with a mask:
 * NULL, numbers that are added to x, or uint8 that is not 0 where elements take no part; broadcast
 * to x. Where none takes part, softmax is 0, its logarithm -infinity, where PyTorch gives NaN. */
LS_API ls_tensor *ls_softmax_over(ls_tape *tape, ls_tensor *x, int axis, ls_tensor *mask);
LS_API ls_tensor *ls_log_softmax_over(ls_tape *tape, ls_tensor *x, int axis, ls_tensor *mask);

/* Mean over N of -log softmax(logits)[target]; logits (N,K), targets int64 (N) in [0,K). 0 for N =
 * 0. */
LS_API ls_tensor *ls_cross_entropy(ls_tape *tape, ls_tensor *logits, ls_tensor *targets);

typedef struct ls_cross_entropy_params {
    /* 0 to 1: this share of each target is spread evenly over all K classes */
    double label_smoothing;
} ls_cross_entropy_params;

/* The same with parameters, which may be NULL. */
LS_API ls_tensor *ls_cross_entropy_with(ls_tape *tape, ls_tensor *logits, ls_tensor *targets,
                                        const ls_cross_entropy_params *params);

LS_API ls_tensor *ls_log_softmax(ls_tape *tape, ls_tensor *x); /* (N,K), over K */

/* Mean over N of -log_probabilities[target]: after ls_log_softmax() the same as
 * ls_cross_entropy(). / */
LS_API ls_tensor *ls_nll_loss(ls_tape *tape, ls_tensor *log_probabilities, ls_tensor *targets);

/* Mean of squared differences; equal shapes. */
LS_API ls_tensor *ls_mse_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target);

/* Losses of elements. Zero means the default. */
typedef struct ls_loss_params {
    int sum;           /* 1: the sum of the elements' losses, 0: their mean, 0 for no elements */
    ls_tensor *weight; /* NULL, or factors of the losses, broadcast to their shape */
    /* 1: with `weight` the mean is divided by the sum of the weights, 0 if that is 0, and not by
     * the number of elements as in PyTorch; so weights of 0 and 1 are a mask */
    int masked_mean;
    ls_tensor *pos_weight; /* binary cross-entropy: factors of the targets' terms; NULL: 1 */
    double beta;           /* smooth L1: where it becomes linear; 0 means 1 */
} ls_loss_params;

/* |prediction - target|; half its square over beta below beta, else itself less beta / 2; its
 * square; cross-entropy of sigmoid(logits). Equal shapes; params may be NULL. */
LS_API ls_tensor *ls_l1_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                             const ls_loss_params *params);
LS_API ls_tensor *ls_smooth_l1_loss(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                                    const ls_loss_params *params);
LS_API ls_tensor *ls_mse_loss_with(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                                   const ls_loss_params *params);
LS_API ls_tensor *ls_bce_with_logits(ls_tape *tape, ls_tensor *logits, ls_tensor *target,
                                     const ls_loss_params *params);

/* Training: each element is 0 with probability p (0 to 1), else divided by 1 - p. Evaluation, and p
 * = 0: x itself. Which elements are dropped depends only on seed and step of ls_tape_set_random(),
 * the number of calls since then, and the element's index. */
LS_API ls_tensor *ls_dropout(ls_tape *tape, ls_tensor *x, double p);

/* The same in training and in evaluation, as torch.nn.functional.dropout(x, p, training=True). */
LS_API ls_tensor *ls_dropout_always(ls_tape *tape, ls_tensor *x, double p);

/* Training: each row of (N, ...) is 0 as a whole with probability p (0 to 1), else divided by
 * 1 - p, as torchvision's StochasticDepth in mode "row". Evaluation, and p = 0: x itself. Random
 * numbers as in ls_dropout(). */
LS_API ls_tensor *ls_stochastic_depth(ls_tape *tape, ls_tensor *x, double p);

/* Sets the source of random numbers of this tape until the next call; without it ls_dropout() and
 * ls_stochastic_depth() fail in training. A program passes the number of its step and, on each
 * rank, another seed: ranks with the same seed drop the same elements. A resumed run then draws the
 * same numbers as an uninterrupted one. */
LS_API void ls_tape_set_random(ls_tape *tape, uint64_t seed, int64_t step);

/* A step of torch.nn.LSTMCell: x (N,I) and states h, c (N,H), NULL for zeros, give the states
 * *h_out and *c_out (N,H), which are NULL on failure and must not be NULL themselves. w_ih (4H,I),
 * w_hh (4H,H), and the biases (4H), which may be NULL, have the rows of the gates i, f, g and o
 * below each other. In a 16-bit compute type *h_out has that type; the cell state stays float32. */
LS_API void ls_lstm_cell(ls_tape *tape, ls_tensor *x, ls_tensor *h, ls_tensor *c, ls_tensor *w_ih,
                         ls_tensor *w_hh, ls_tensor *b_ih, ls_tensor *b_hh, ls_tensor **h_out,
                         ls_tensor **c_out);

/* A step of torch.nn.GRUCell: gives the state (N,H). The gates are r, z and n: w_ih (3H,I), w_hh
 * (3H,H). */
LS_API ls_tensor *ls_gru_cell(ls_tape *tape, ls_tensor *x, ls_tensor *h, ls_tensor *w_ih,
                              ls_tensor *w_hh, ls_tensor *b_ih, ls_tensor *b_hh);

/* --- operators of the program --- */

#define LS_OP_MAX_INPUTS  8
#define LS_OP_MAX_OUTPUTS 8

typedef struct ls_op_shape {
    ls_dtype type;
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
} ls_op_shape;

/* What a function of an ls_op gets; all pointers are valid during the call. All tensors are
 * row-major and on the tape's device. */
typedef struct ls_op_call {
    const void *attrs; /* the copy of ls_op_run()'s; NULL without */
    int n_inputs;
    const ls_tensor *const *inputs; /* elements are NULL where ls_op_run() got NULL */
    int n_outputs;
    ls_op_shape *shapes;       /* shape fills them; else NULL */
    ls_tensor *const *outputs; /* forward writes all elements, backward reads; in shape NULL */
    /* backward: gradients of the outputs, 0 where the loss does not depend on one, NULL where it
     * has integers */
    const ls_tensor *const *d_outputs;
    /* backward writes all elements of those that are not NULL: the gradients of the inputs */
    ls_tensor *const *d_inputs;
    ls_queue *queue; /* of a stream device; NULL on host devices */
} ls_op_call;

typedef ls_status (*ls_op_fn)(const ls_op_call *call);

/*
 * An operator in C. The functions run in the thread that calls ls_op_run() or the backward. On
 * host devices they read ls_tensor_data_const() and write ls_tensor_data(). On a stream device they
 * queue their work in call->queue, on ls_tensor_address_const() and ls_tensor_address(), which the
 * host must not dereference, and need not wait for it; or they copy with ls_tensor_read() and
 * ls_tensor_write(), which wait. A status other than LS_OK makes the operator fail, with the text
 * of the function of this library that gave it.
 */
typedef struct ls_op {
    size_t size;      /* sizeof(ls_op) */
    const char *name; /* in messages; borrowed until the tape's reset */
    /* Checks the inputs and fills call->shapes[0..n_outputs). NULL: all outputs have type and shape
     * of the first input. */
    ls_op_fn shape;
    ls_op_fn forward;
    /* NULL: no gradient passes the operator. ls_grad_check() compares it with differences. */
    ls_op_fn backward;
} ls_op;

/*
 * outputs = op(inputs), recorded as any operator: as torch.autograd.Function. Integer inputs and
 * outputs have no gradient. Inputs may have different types, and keep them with mixed precision.
 * attrs_bytes of attrs are copied. All outputs are NULL on failure. LS_EINVAL: op or its size or
 * functions are wrong, more than LS_OP_MAX_INPUTS or _OUTPUTS.
 */
LS_API void ls_op_run(ls_tape *tape, const ls_op *op, const void *attrs, size_t attrs_bytes,
                      ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs, int n_outputs);

/* --- checkpointing activations --- */

/* A part of a network: writes all outputs, made with operators on `tape`. Called once more by
 * backward, with the same inputs and arg, where it must do the same. It only calls operators (and
 * ls_tape_checkpoint()): no backward, no reset. */
typedef void (*ls_tape_checkpoint_fn)(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs,
                                      void *arg);

/*
 * outputs[0..n_outputs) = fn(inputs[0..n_inputs)), as torch.utils.checkpoint: the memory of all
 * values that fn makes besides the outputs is released at once (but those of ls_tape_keep()), and
 * backward runs fn again to have them. For the time of one more forward a network of n such parts
 * needs the memory of one part and of n outputs.
 * Gradients have the bits that they have without checkpointing, and become ready in the same order:
 * dropout draws the same numbers again. Batch norm updates its running statistics once (PyTorch
 * does so twice). Other state that fn changes, it changes twice.
 * The outputs of fn may be any tensors, its leaves need not be inputs. arg: arg_bytes are copied;
 * with arg_bytes 0 it is passed as it is and must stay valid until backward or the reset. An output
 * that the loss does not depend on counts as one with gradient 0. In evaluation fn runs once. All
 * outputs are NULL on failure; LS_EINVAL if fn does something else in backward.
 */
LS_API void ls_tape_checkpoint(ls_tape *tape, ls_tape_checkpoint_fn fn, void *arg, size_t arg_bytes,
                               ls_tensor *const *inputs, int n_inputs, ls_tensor **outputs,
                               int n_outputs);

/* --- measuring --- */

/* correct[i] = number of rows whose target is among the k[i] largest of logits (N,K), float32 or
 * float64; targets int64 (N) in [0,K). Of equal logits the first counts as larger (torch.topk takes
 * any of them), and NaN as larger than all numbers (as torch.topk does). k over K counts as K. */
LS_API LS_MUST_USE ls_status ls_top_k_correct(const ls_tensor *logits, const ls_tensor *targets,
                                              const int *k, int n, int64_t *correct);

/* --- checking derivatives --- */

/* A scalar function of its inputs, built with operators on `tape`. */
typedef ls_tensor *(*ls_grad_check_fn)(ls_tape *tape, ls_tensor *const *inputs, void *arg);

/* Compares backward with central differences, in float64 on the inputs' device, at every element of
 * every input that requires a gradient; inputs are float64. *worst (may be NULL): the largest
 * relative difference; derivatives below 1e-3 are compared relative to 1e-3. LS_EFORMAT names input
 * and element when the difference is over `tolerance`. */
LS_API LS_MUST_USE ls_status ls_grad_check(ls_grad_check_fn fn, void *arg, ls_tensor *const *inputs,
                                           int n_inputs, double tolerance, double *worst);

LS_END_DECLS

#endif
