/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn_ops.h - operators of networks on a tape: convolutions, normalisation, products with weights,
 * attention, losses, dropout and recurrent cells. autograd.h, which includes this header, has their
 * rules. N rows may be 0.
 */
#ifndef LOCKSTEP_NN_OPS_H
#define LOCKSTEP_NN_OPS_H

#include <lockstep/ops.h>

LS_BEGIN_DECLS

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
 * (C). Training uses the batch's statistics and updates the running ones (variance: unbiased);
 * evaluation uses the running ones. With N = 0 the running statistics do not change. Training needs
 * more than one value per channel, as in PyTorch: one is LS_EINVAL. params may be NULL. */
LS_API ls_tensor *ls_batch_norm(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                ls_tensor *running_mean, ls_tensor *running_var,
                                const ls_batch_norm_params *params);

/* ls_batch_norm with .relu = 1. */
LS_API ls_tensor *ls_bn_relu(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                             ls_tensor *running_mean, ls_tensor *running_var,
                             const ls_batch_norm_params *params);

/* ls_batch_norm of x, plus `added`, then the ReLU with .relu: the end of a residual block in one
 * pass, rounded once. added has the shape of x, else LS_EINVAL. */
LS_API ls_tensor *ls_bn_add(ls_tape *tape, ls_tensor *x, ls_tensor *added, ls_tensor *weight,
                            ls_tensor *bias, ls_tensor *running_mean, ls_tensor *running_var,
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

/* (N,C,H,W) -> (N,C,height,width): means over windows, as torch.nn.AdaptiveAvgPool2d. */
LS_API ls_tensor *ls_adaptive_avg_pool2d(ls_tape *tape, ls_tensor *x, int height, int width);

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

/* Normalises each row of the last dimension: x: (...,D), weight, bias: (D) or NULL; eps 0: 1e-5. */
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

/* Mean over all targets of -log softmax(logits)[target]; logits (...,K), targets int64 (...) in
 * [0,K). 0 without targets. The classes are the last dimension, where PyTorch has them second. */
LS_API ls_tensor *ls_cross_entropy(ls_tape *tape, ls_tensor *logits, ls_tensor *targets);

typedef struct ls_cross_entropy_params {
    /* 0 to 1: this share of each target is spread evenly over all K classes */
    double label_smoothing;
} ls_cross_entropy_params;

/* The same with parameters, which may be NULL. */
LS_API ls_tensor *ls_cross_entropy_with(ls_tape *tape, ls_tensor *logits, ls_tensor *targets,
                                        const ls_cross_entropy_params *params);

LS_API ls_tensor *ls_log_softmax(ls_tape *tape, ls_tensor *x); /* (N,K), over K */

/* Mean over N of -log_probabilities[target]: after ls_log_softmax() it is ls_cross_entropy(). */
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

/* A step of torch.nn.GRUCell: the state (N,H). Gates are r, z, n: w_ih (3H,I), w_hh (3H,H). */
LS_API ls_tensor *ls_gru_cell(ls_tape *tape, ls_tensor *x, ls_tensor *h, ls_tensor *w_ih,
                              ls_tensor *w_hh, ls_tensor *b_ih, ls_tensor *b_hh);

LS_END_DECLS

#endif
