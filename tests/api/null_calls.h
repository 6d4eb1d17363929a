/* SPDX-License-Identifier: Apache-2.0 */
/* null_calls.h - calls of the public functions with NULL, made by null_calls.py. */
#ifndef TESTS_API_NULL_CALLS_H
#define TESTS_API_NULL_CALLS_H

#include <lockstep/lockstep.h>

typedef struct null_call {
    const char *function;
    const char *parameter; /* the one that is NULL */
    int (*call)(void);     /* 1: it gave what it must */
} null_call;

extern const null_call null_calls[];
extern const int n_null_calls;

/* Puts a text of the test's own in front of a call, so that gives_status() sees whether the call
   makes one. */
void forget_error(void);

/* Whether `got` is `wanted` and a failure has a text. */
int gives_status(ls_status got, ls_status wanted);

/* Arguments of the calls beside those of values.h. */
extern const int64_t twos[], fours[], eight[];
extern const int ones[];
extern const size_t counts[];
extern float eight_floats[];
extern const ls_meta meta;
extern const ls_schedule schedule;
extern const ls_conv2d_params conv;
extern const ls_pool2d_params pool;
extern const ls_nn_conv1d_options nn_conv1;
extern const ls_nn_conv2d_options nn_conv;
extern const ls_nn_init_options nn_init;
extern const ls_nn_conv_transpose1d_options nn_up1;
extern const ls_nn_conv_transpose2d_options nn_up;
extern const ls_sgd_options sgd;
extern const ls_local_sgd_options local_sgd;
extern const ls_group_options group;
extern const ls_adam_options adam;
extern const ls_sampler_options sampling;
const ls_loader_options *loading(void);
const char *mnist_folder(void);
ls_dataset *folder_set(void);
ls_tensor *other_tensor(void);

#endif
