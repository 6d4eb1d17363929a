/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn.h - models: layers with named parameters, initialised as PyTorch does.
 *
 *     const ls_nn_conv2d_options five = {.kernel = {5, 5}};
 *     ls_layer *conv = ls_nn_conv2d(model, "layer1.0", 1, 16, &five);
 *     ls_layer *bn = ls_nn_batch_norm2d(model, "layer1.1", 16, NULL);
 *     h = ls_forward(tape, bn, ls_forward(tape, conv, x));
 *
 * A model owns its layers, parameters and buffers. Names are those of PyTorch's state_dict
 * ("layer1.0.weight", "layer1.1.running_mean", "layer1.1.num_batches_tracked").
 *
 * Errors     A layer that cannot be made is NULL; the first failure stays in the model, and
 *            ls_model_status() returns it. ls_forward of a NULL layer is NULL and marks the tape.
 * Threads    A model is used by one thread at a time.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/autograd.h>

LS_BEGIN_DECLS

typedef struct ls_model ls_model;
typedef struct ls_layer ls_layer;

/* An empty model; `seed` alone decides the initial values of the layers added in order. */
LS_API LS_MUST_USE ls_status ls_model_create(ls_device *device, uint64_t seed, ls_model **out);
LS_API void ls_model_destroy(ls_model *model); /* NULL is allowed */

/* The first failure while layers were made; its text becomes this thread's last error. */
LS_API LS_MUST_USE ls_status ls_model_status(ls_model *model);

/* Trained tensors, in the order of their creation (PyTorch's parameters()). The array is valid
 * until the next layer is added. */
LS_API const ls_named *ls_model_parameters(const ls_model *model, int *n);

/* Tensors that are saved but not trained: running statistics, counters (PyTorch's buffers()). */
LS_API const ls_named *ls_model_buffers(const ls_model *model, int *n);

/* Parameters and buffers together, in PyTorch's state_dict order. */
LS_API const ls_named *ls_model_state(const ls_model *model, int *n);

/*
 * Freezes the parameters whose names match `pattern`, or with frozen 0 trains them again, as
 * requires_grad_(). A pattern is one of file names: * for any characters, ? for
 * one, [12] or [a-d] for one of these, [!12] for another: "encoder.*", "*.bias", "layer[12].*".
 * Frozen parameters are constants: backward does not compute their gradients, nor what only these
 * need; ls_grad() is NULL, so that an optimizer does not change them, also not by weight decay;
 * ls_ddp does not reduce them. They stay in all lists and checkpoints, which do not record what is
 * frozen. Batch norms of frozen layers update their running statistics in training.
 * For operators from now on: call it between steps, never during a backward. With an ls_ddp, which
 * may exist already, all ranks freeze the same before the same step; otherwise its
 * ls_ddp_backward() is LS_EMISMATCH and names the parameter and the rank. LS_ENOTFOUND: no name
 * matches. *n_matched (may be NULL): how many do. Does not block; the model's thread.
 */
LS_API LS_MUST_USE ls_status ls_model_freeze(ls_model *model, const char *pattern, int frozen,
                                             int *n_matched);

/* Forgets all gradients. */
LS_API void ls_model_zero_grad(ls_model *model);

/* --- layers --- */

/* Initial values of weights. Layers take the first two, ls_model_init() all but the first. */
typedef enum ls_nn_init {
    LS_INIT_DEFAULT, /* those of the layer in torch.nn */
    /* normal, variance gain^2 / fan; of a layer 2 / fan_out: for ReLU */
    LS_INIT_KAIMING_NORMAL,
    LS_INIT_KAIMING_UNIFORM, /* uniform, with that variance */
    LS_INIT_XAVIER_NORMAL,   /* variance gain^2 2 / (fan_in + fan_out) */
    LS_INIT_XAVIER_UNIFORM,
    LS_INIT_CONSTANT,
    LS_INIT_UNIFORM,
    LS_INIT_NORMAL,
    LS_INIT_TRUNC_NORMAL,
    LS_INIT_ORTHOGONAL, /* as a matrix (dims[0], rest): orthonormal rows or columns, times gain */
    LS_INIT_EYE,        /* a matrix: 1 on the diagonal, else 0 */
} ls_nn_init;

typedef struct ls_nn_conv1d_options {
    int kernel;
    int stride; /* 0 means 1 */
    int padding;
    int dilation; /* 0 means 1 */
    int groups;   /* 0 means 1 */
    int no_bias;
    ls_nn_init init; /* of the weight */
} ls_nn_conv1d_options;

/* (N,in,T) -> (N,out,T'); weight (out, in/groups, K), bias (out); uniform in +-1/sqrt(fan_in), as
 * torch.nn.Conv1d, or as opt->init selects. */
LS_API ls_layer *ls_nn_conv1d(ls_model *model, const char *name, int in, int out,
                              const ls_nn_conv1d_options *opt);

typedef struct ls_nn_conv2d_options {
    int kernel[2]; /* height, width */
    int stride[2]; /* 0 means 1 */
    int padding[2];
    int dilation[2]; /* 0 means 1 */
    int groups;      /* 0 means 1 */
    int no_bias;
    ls_nn_init init; /* of the weight */
} ls_nn_conv2d_options;

/* weight (out, in/groups, KH, KW), bias (out); uniform in +-1/sqrt(fan_in), as torch.nn.Conv2d, or
 * as opt->init selects. */
LS_API ls_layer *ls_nn_conv2d(ls_model *model, const char *name, int in, int out,
                              const ls_nn_conv2d_options *opt);

typedef struct ls_nn_conv_transpose1d_options {
    int kernel;
    int stride; /* 0 means 1 */
    int padding;
    int output_padding; /* smaller than stride or dilation */
    int dilation;       /* 0 means 1 */
    int groups;         /* 0 means 1 */
    int no_bias;
    ls_nn_init init; /* of the weight */
} ls_nn_conv_transpose1d_options;

typedef struct ls_nn_conv_transpose2d_options {
    int kernel[2]; /* height, width */
    int stride[2]; /* 0 means 1 */
    int padding[2];
    int output_padding[2]; /* smaller than stride or dilation */
    int dilation[2];       /* 0 means 1 */
    int groups;            /* 0 means 1 */
    int no_bias;
    ls_nn_init init; /* of the weight */
} ls_nn_conv_transpose2d_options;

/* weight (in, out/groups, K...), bias (out); uniform in +-1/sqrt(fan_in), as torch.nn.
 * ConvTranspose1d and 2d: fan_in is out/groups times the kernel's positions; or by opt->init. */
LS_API ls_layer *ls_nn_conv_transpose1d(ls_model *model, const char *name, int in, int out,
                                        const ls_nn_conv_transpose1d_options *opt);
LS_API ls_layer *ls_nn_conv_transpose2d(ls_model *model, const char *name, int in, int out,
                                        const ls_nn_conv_transpose2d_options *opt);

typedef struct ls_nn_batch_norm_options {
    double momentum; /* 0 means 0.1 */
    double eps;      /* 0 means 1e-5 */
    int relu;        /* 1: the layer includes the ReLU that follows */
} ls_nn_batch_norm_options;

/* Of (N,channels) or (N,channels,T), and of (N,channels,H,W): weight 1, bias 0, running_mean 0,
 * running_var 1, num_batches_tracked 0 (int64). The two are the same layer. opt may be NULL. */
LS_API ls_layer *ls_nn_batch_norm1d(ls_model *model, const char *name, int channels,
                                    const ls_nn_batch_norm_options *opt);
LS_API ls_layer *ls_nn_batch_norm2d(ls_model *model, const char *name, int channels,
                                    const ls_nn_batch_norm_options *opt);

/* From now on all batch norms of the model share their batches with other processes, as after
 * torch.nn.SyncBatchNorm.convert_sync_batchnorm; NULL ends that. ls_ddp_create calls it when
 * ls_ddp_options.sync_batch_norm is set. */
LS_API void ls_model_sync_batch_norm(ls_model *model, const ls_batch_norm_sync *sync);

/* weight (out, in), bias (out) unless no_bias; as torch.nn.Linear. */
LS_API ls_layer *ls_nn_linear(ls_model *model, const char *name, int in, int out, int no_bias);

/* int64 (...) in [0, n) -> (...,width): weight (n, width), normal with variance 1; as
 * torch.nn.Embedding. The row `padding_index` (-1: none) begins as 0 and is not trained. */
LS_API ls_layer *ls_nn_embedding(ls_model *model, const char *name, int n, int width,
                                 int64_t padding_index);

typedef struct ls_nn_layer_norm_options {
    double eps;         /* 0 means 1e-5 */
    int channels_first; /* 1: x is (N,width,H,W), as torchvision's LayerNorm2d; else (...,width) */
    int no_affine;      /* 1: without weight and bias; torch's elementwise_affine = False */
    int no_bias;        /* 1: without bias */
} ls_nn_layer_norm_options;

/* weight 1, bias 0, both (width); as torch.nn.LayerNorm. opt may be NULL. */
LS_API ls_layer *ls_nn_layer_norm(ls_model *model, const char *name, int width,
                                  const ls_nn_layer_norm_options *opt);

/* (N,channels,...) -> the same: weight 1, bias 0; as torch.nn.GroupNorm. eps 0 means 1e-5. */
LS_API ls_layer *ls_nn_group_norm(ls_model *model, const char *name, int groups, int channels,
                                  double eps);

/* (N,T,width) -> (N,T,width), attention of each of T tokens to all of them, as
 * torch.nn.MultiheadAttention(width, heads, batch_first=True)(x, x, x), with the same initial
 * values: in_proj_weight (3 width, width), out_proj.weight (width, width), and their biases. */
LS_API ls_layer *ls_nn_self_attention(ls_model *model, const char *name, int width, int heads);

/* A parameter outside of layers: zeros, float32, with exactly this name. The model owns it. NULL
 * when it cannot be made; the failure is ls_model_status(). */
LS_API ls_tensor *ls_nn_parameter(ls_model *model, const char *name, int n_dims,
                                  const int64_t *dims);

/* A buffer of no layer, zeros of any type: saved, equal on all ranks. NULL as ls_nn_parameter(). */
LS_API ls_tensor *ls_nn_buffer(ls_model *model, const char *name, ls_dtype type, int n_dims,
                               const int64_t *dims);

/* The layer's parameter or buffer, "weight" or "out_proj.bias"; NULL: none. The model owns it. */
LS_API ls_tensor *ls_layer_tensor(const ls_layer *layer, const char *name);

/* For ls_model_init(), as the functions of torch.nn.init with their defaults; a field that is not
 * named for a kind is not read. */
typedef struct ls_nn_init_options {
    ls_nn_init kind;
    double value; /* CONSTANT */
    double low;   /* UNIFORM; both 0: 0 and 1. TRUNC_NORMAL: no values outside; both 0: -2 and 2 */
    double high;
    double mean; /* NORMAL, TRUNC_NORMAL */
    double std;  /* likewise; 0 means 1 */
    /* XAVIER, ORTHOGONAL: factor; 0 means 1. KAIMING: 0 means sqrt(2 / (1 + a^2)), for ReLU and
     * leaky ReLU. torch's calculate_gain(): linear, convolution, sigmoid 1; tanh 5/3; SELU 3/4 */
    double gain;
    double a;    /* KAIMING: slope of the leaky ReLU that follows */
    int fan_out; /* KAIMING: 1: mode "fan_out" */
} ls_nn_init_options;

/* Initial values of the parameters whose names match `pattern` (as in ls_model_freeze()), instead
 * of those of their layers. Random numbers come from the model's seed, in the order of calls. A
 * failure is ls_model_status(): LS_ENOTFOUND when no name matches; LS_EINVAL for options that are
 * wrong, and, by name, parameters with too few dimensions. Does not block; the model's thread. */
LS_API void ls_model_init(ls_model *model, const char *pattern, const ls_nn_init_options *opt);

/* y = layer(x). */
LS_API ls_tensor *ls_forward(ls_tape *tape, ls_layer *layer, ls_tensor *x);

/* y = layer(x) + added, of x's shape, or with relu 1 max(0, y), in one pass (ls_bn_add()). The
 * layer is a batch norm without the option relu, else LS_EINVAL. */
LS_API ls_tensor *ls_forward_add(ls_tape *tape, ls_layer *layer, ls_tensor *x, ls_tensor *added,
                                 int relu);

/* --- recurrent layers --- */

typedef struct ls_nn_rnn_options {
    int layers;        /* 0 means 1 */
    int bidirectional; /* 1: a second direction, from the last step to the first */
    int no_bias;
    double dropout; /* between layers, in training */
} ls_nn_rnn_options;

/*
 * torch.nn.LSTM(in, hidden, layers, batch_first=True) and torch.nn.GRU: weight_ih_l0 (4 hidden,
 * in), for the GRU (3 hidden, in), weight_hh_l0, bias_ih_l0, bias_hh_l0, then weight_ih_l0_reverse
 * and so on; layers from l1 on have directions * hidden inputs. All are uniform in
 * +-1/sqrt(hidden). ls_forward() gives what ls_forward_sequence() gives without lengths and states.
 * opt may be NULL.
 */
LS_API ls_layer *ls_nn_lstm(ls_model *model, const char *name, int in, int hidden,
                            const ls_nn_rnn_options *opt);
LS_API ls_layer *ls_nn_gru(ls_model *model, const char *name, int in, int hidden,
                           const ls_nn_rnn_options *opt);

/* torch.nn.LSTMCell, GRUCell; ls_forward_cell(): weight_ih, weight_hh, bias_ih, bias_hh. */
LS_API ls_layer *ls_nn_lstm_cell(ls_model *model, const char *name, int in, int hidden,
                                 int no_bias);
LS_API ls_layer *ls_nn_gru_cell(ls_model *model, const char *name, int in, int hidden, int no_bias);

/* The state of a recurrent layer; NULL stands for zeros. A GRU has no c. With a 16-bit compute type
 * h has that type, and c is float32. */
typedef struct ls_rnn_state {
    ls_tensor *h;
    ls_tensor *c;
} ls_rnn_state;

/*
 * x (N,T,in) -> (N,T,directions * hidden) through an LSTM or GRU, T >= 1. lengths: NULL, or int64
 * (N), each 0 to T: row n has the steps before lengths[n], as with torch's pack_padded_sequence.
 * The result behind them is 0, what x has there is not used but must be finite, and the reverse
 * direction begins with step lengths[n] - 1. With length 0, which PyTorch refuses, the states stay
 * as they are. Another length is LS_EINVAL; on a stream device that is the failure of a later wait.
 * first, *last: states (layers * directions, N, hidden) before the first and behind the last step
 * of each row; both may be NULL, or the same.
 */
LS_API ls_tensor *ls_forward_sequence(ls_tape *tape, ls_layer *layer, ls_tensor *x,
                                      ls_tensor *lengths, const ls_rnn_state *first,
                                      ls_rnn_state *last);

/* One step of a cell: x (N,in), states (N,hidden). `before` may be NULL, or the same as `after`. On
 * failure *after is NULL twice. */
LS_API void ls_forward_cell(ls_tape *tape, ls_layer *layer, ls_tensor *x,
                            const ls_rnn_state *before, ls_rnn_state *after);

/* --- layers without tensors: made of other layers and of functions --- */

/* y = fn(x), with operators on `tape` and ls_forward(). */
typedef ls_tensor *(*ls_layer_fn)(void *arg, ls_tape *tape, ls_tensor *x);

/* A layer of the program: ls_forward() calls `fn`. Its parameters are those of other layers and of
 * ls_nn_parameter(), which the program names "NAME.conv1" and the like, as PyTorch does for
 * a module. arg_bytes of arg are copied; with arg_bytes 0 it is passed as it is and must stay valid
 * as long as the model. */
LS_API ls_layer *ls_nn_layer(ls_model *model, const char *name, ls_layer_fn fn, void *arg,
                             size_t arg_bytes);

/* layers[0..n), one after the other, as torch.nn.Sequential; their names stay as they are. */
LS_API ls_layer *ls_nn_sequential(ls_model *model, const char *name, ls_layer *const *layers,
                                  int n);

/*
 * Runs y = forward(arg, tape, x) once, in evaluation mode, and prints to standard output the layers
 * in the order of their use (inner ones indented) with the shapes of their results and the numbers
 * of their parameters, in parentheses where all are frozen; then parameters outside of layers and
 * layers that did not run; and the sums of parameters, trainable ones and bytes, as torchinfo.
 * Works for layers that run by ls_forward() and the like. The model does not change. Returns the
 * failure of forward, or LS_EIO. Blocks until it is printed; the model's thread.
 */
LS_API LS_MUST_USE ls_status ls_model_summary(ls_model *model, ls_layer_fn forward, void *arg,
                                              ls_tensor *x);

/* An operator of one tensor as a layer: ls_relu, ls_gelu, ls_flatten. */
typedef ls_tensor *(*ls_unary_fn)(ls_tape *tape, ls_tensor *x);
LS_API ls_layer *ls_nn_function(ls_model *model, const char *name, ls_unary_fn fn);

/* ls_dropout(), ls_max_pool2d(), ls_avg_pool2d(), ls_adaptive_avg_pool2d(). */
LS_API ls_layer *ls_nn_dropout(ls_model *model, const char *name, double p);
LS_API ls_layer *ls_nn_max_pool2d(ls_model *model, const char *name,
                                  const ls_pool2d_params *params);
LS_API ls_layer *ls_nn_avg_pool2d(ls_model *model, const char *name,
                                  const ls_pool2d_params *params);
LS_API ls_layer *ls_nn_adaptive_avg_pool2d(ls_model *model, const char *name, int height,
                                           int width);

LS_END_DECLS

#endif
