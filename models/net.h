/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - networks as lists of operators. A family's file builds the list: each call below adds a
 * layer to the model and an operator to the list, and returns the number of the operator's result.
 * net_forward() (architectures.h) runs any list.
 *
 * Names      Layers are named as in torchvision: net_enter() adds a prefix to all names until
 *            net_leave(), so "conv1" within "layer1" and "0" is "layer1.0.conv1".
 * Errors     The model stores them (ls_model_status()) or, in forward, the tape.
 * Memory     The net owns its list, the model its layers, the tape all values. A value's memory
 * returns
 *            to the tape after the last operator that reads it.
 */
#ifndef MODELS_NET_H
#define MODELS_NET_H

#include "models/architectures.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct net_init {
    ls_nn_init_options weight; /* LS_INIT_DEFAULT: that of torch.nn */
    bool zero_bias;
    double bias_deviation; /* of a normal distribution, instead of zeros */
} net_init;

enum { NET_MAX_OPS = 2048, NET_MAX_IN = 4, NET_MAX_DEPTH = 8, NET_NAME_BYTES = 128 };

typedef struct net_op net_op;
typedef ls_tensor *(*net_run_fn)(ls_tape *tape, const net_op *op, ls_tensor *const *in);

struct net_op {
    net_run_fn run;
    ls_layer *layer;
    int n_in;
    int in[NET_MAX_IN]; /* numbers of the values that it reads */
    ls_pool2d_params pool;
    int side;    /* height and width of the result of a pool */
    double rate; /* of dropout and of stochastic depth */
    ls_activation function;
    bool relu;            /* of a sum */
    bool takes_sum;       /* a batch norm without ReLU */
    bool is_moved;        /* into the sum behind it, which alone may read its value */
    int groups;           /* of a channel shuffle */
    int begin, length;    /* of a slice of channels */
    int order[4];         /* of dimensions */
    ls_tensor *parameter; /* that is part of no layer */
};

struct network {
    ls_model *model;
    int side; /* height and width of the images */

    /* Set by a family before it adds layers. */
    net_init conv;
    net_init linear;
    ls_nn_batch_norm_options norm; /* without .relu */

    char name[NET_NAME_BYTES]; /* prefix of net_enter(), with a dot after each part */
    size_t parts[NET_MAX_DEPTH];
    int depth;

    net_op ops[NET_MAX_OPS];
    int n_ops;

    /* Of value 0, the images, and of the result of operator i - 1. */
    int channels[NET_MAX_OPS + 1];
    int readers[NET_MAX_OPS + 1];
};

/* --- names --- */

void net_enter(network *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
void net_leave(network *n);

/* --- operators; x is the number of a value --- */

enum { NET_NO_PADDING = -1 };

/* Every field may be 0, which means the default. */
typedef struct net_conv {
    int kernel; /* height; default 1 */
    int width;  /* default: the height */
    int stride; /* default 1 */
    int pad;    /* default: half the kernel, so that stride 1 keeps the size */
    int groups; /* default 1 */
    int bias;   /* default: no bias */
} net_conv;

int net_conv2d(network *n, int x, const char *name, int out, net_conv how);
int net_batch_norm(network *n, int x, const char *name, bool relu);
int net_linear(network *n, int x, const char *name, int out);
/* Over the channels of (N,C,H,W), or over the last dimension. */
int net_layer_norm(network *n, int x, const char *name, double eps, bool channels_first);

int net_self_attention(network *n, int x, const char *name, int heads);

int net_relu(network *n, int x);
int net_activate(network *n, int x, ls_activation function);
/* A sum is a part of the batch norm without ReLU that makes x or y, if there is one; then no later
 * operator can read the value of that batch norm. */
int net_add(network *n, int x, int y);
int net_add_relu(network *n, int x, int y);
int net_scale(network *n, int x, int factors); /* factors (N,C,1,1) */
int net_dropout(network *n, int x, double rate);
int net_stochastic_depth(network *n, int x, double rate);
int net_max_pool(network *n, int x, ls_pool2d_params how);
int net_avg_pool(network *n, int x, ls_pool2d_params how);
int net_global_pool(network *n, int x);                  /* (N,C,1,1): means of the channels */
int net_concat(network *n, int n_in, const int *in);     /* of channels */
int net_slice(network *n, int x, int begin, int length); /* of channels */
/* Channel g * C / groups + i becomes channel i * groups + g. */
int net_shuffle(network *n, int x, int groups);
int net_permute(network *n, int x, const int order[4]);
int net_flatten(network *n, int x);

/* Parameters that are part of no layer: created by net_parameter(), added or multiplied with
 * broadcast. */
ls_tensor *net_parameter(network *n, const char *name, int n_dims, const int64_t *dims);
void net_init_parameter(network *n, const char *name, ls_nn_init_options how);
int net_add_parameter(network *n, int x, ls_tensor *parameter);
int net_scale_parameter(network *n, int x, ls_tensor *parameter);

/* (N,T + 1,C): `first` (1,1,C) before the T positions of (N,C,H,W). */
int net_tokens(network *n, int x, ls_tensor *first);
int net_first_token(network *n, int x); /* (N,C) of (N,T,C) */

/* --- common parts --- */

/* The activation after a norm: one of these or an ls_activation. */
typedef enum net_act { NET_NONE = 0, NET_RELU = -1 } net_act;

/* Convolution, batch norm and activation with the names "NAME.0" and "NAME.1". */
int net_conv_norm(network *n, int x, const char *name, int out, net_conv how, int act);

/* Scales the channels by the result of two 1x1 convolutions ("NAME.fc1", "NAME.fc2") of their means
 * (Hu et al., "Squeeze-and-Excitation Networks", 2018). */
int net_squeeze_excite(network *n, int x, const char *name, int squeezed, int act,
                       ls_activation gate);

/* The multiple of 8 next to `channels`, at least 8 and no less than 9/10 of it. */
int net_round_channels(double channels);

/* Means of side x side parts of each channel, as rows of channels * side * side features. */
int net_pool_features(network *n, int x, int side);

/* --- families --- */

/* Architectures that one function builds. Each entry of the table begins with its name. */
typedef struct net_family {
    const void *table;
    size_t entry_bytes;
    int n_entries;
    void (*build)(network *n, const void *entry, int classes);
} net_family;

#define NET_FAMILY(table, build)                                                                   \
    {                                                                                              \
        table, sizeof((table)[0]), sizeof(table) / sizeof((table)[0]), build                       \
    }

extern const net_family alexnet_family, convnext_family, densenet_family, efficientnet_family,
    googlenet_family, inception_family, mnasnet_family, mobilenet_v2_family, mobilenet_v3_family,
    regnet_family, resnet_family, shufflenet_family, squeezenet_family, vgg_family, vit_family;

#endif
