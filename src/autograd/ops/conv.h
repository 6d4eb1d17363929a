/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv.h - what convolutions and transposed convolutions of sequences and images have in common:
 * their parameters, and the checks of them. op_conv.c and op_conv_transpose.c use it.
 */
#ifndef LS_AUTOGRAD_OPS_CONV_H
#define LS_AUTOGRAD_OPS_CONV_H

#include "autograd/tape.h"

/* The parameters of any convolution: those of a sequence are those of an image's width. */
typedef struct conv_settings {
    int n_axes;         /* 1: (N,C,T), 2: (N,C,H,W) */
    const char *shapes; /* of input and weight, for messages */
    int stride[2];
    int padding[2];
    int output_padding[2];
    int dilation[2];
    int groups;
} conv_settings;

#define CONV_TEXT_BYTES 48

/* "(1, 2)" for an image's values, "2" for a sequence's. Returns buf. */
const char *conv_pair_text(char *buf, const conv_settings *s, const int *values);

/* Checks the settings and the numbers of dimensions of x and weight, of which all but N must be at
 * least 1, and fills in the attributes of kernels. */
LS_MUST_USE ls_status conv_resolve(const conv_settings *s, const ls_tensor *x,
                                   const ls_tensor *weight, op_attrs *a);

/* The bias, which may be NULL, has `channels` elements. */
LS_MUST_USE ls_status conv_check_bias(const ls_tensor *bias, const ls_tensor *weight,
                                      int64_t channels);

#endif
