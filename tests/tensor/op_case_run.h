/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_case_run.h - a case that runs: its tensors and results, for the files with the functions of
 * operators. After a failure, which `status` holds, all functions here do nothing.
 */
#ifndef TESTS_TENSOR_OP_CASE_RUN_H
#define TESTS_TENSOR_OP_CASE_RUN_H

#include "tensor/op_cases.h"

#include "base/rng.h"

#define MAX_TENSORS 64

typedef struct case_run {
    ls_device *device;
    const op_case *c;
    ls_dtype type;
    ls_dtype parameters; /* type of parameters and statistics */
    op_attrs attrs;      /* without zeros for defaults */
    ls_rng rng;
    op_results *out;
    ls_tensor *tensors[MAX_TENSORS];
    int n_tensors;
    ls_status status; /* the first failure */
} case_run;

/* Shaped and unplaced: what kernels place. */
ls_tensor *unplaced(case_run *r, ls_dtype type, int n_dims, const int64_t *dims);

void write_values(case_run *r, ls_tensor *t, const double *values);

/* Memory for the elements of `t`, at least one; NULL after a failure. */
double *values_for(case_run *r, const ls_tensor *t);

/* A tensor with memory. */
ls_tensor *created(case_run *r, ls_dtype type, int n_dims, const int64_t *dims);

/* One value everywhere. */
ls_tensor *filled(case_run *r, ls_dtype type, int n_dims, const int64_t *dims, double value);

/* Values in (-1, 1) * scale + shift. */
ls_tensor *noise_of(case_run *r, ls_dtype type, int n_dims, const int64_t *dims, double scale,
                    double shift);

/* An activation. */
ls_tensor *noise(case_run *r, int n_dims, const int64_t *dims, double scale, double shift);

/* The same of the parameters' type. */
ls_tensor *parameter(case_run *r, int n_dims, const int64_t *dims, double scale, double shift);

/* Random classes. */
ls_tensor *targets(case_run *r, int64_t n_rows, int64_t n_classes);

/* Reads a result, each element of which is a sum of `k` terms. */
void result(case_run *r, const char *name, ls_tensor *t, double k);

/* Runs it with the attributes of the case. */
void run_op(case_run *r, op_call call);

/* Runs a kernel of weight gradients twice: over NaN, then on top of 0.5. Its placed outputs are
 * `first` and maybe the next. */
void run_gradients(case_run *r, op_call call, int first, const char *const *names, double k);

/* Names of the results of run_gradients(): weights, then biases. */
extern const char *const gradient_names[];

/* op_case_attention.c */
void run_attention(case_run *r);

/* op_case_step.c: the operators of a training step around the network. */
void run_sgd(case_run *r);
void run_adam(case_run *r);
void run_clip(case_run *r);
void run_unscale(case_run *r);
void run_fill(case_run *r);
void run_class_sums(case_run *r);
void run_normalize(case_run *r);

/* op_case_recurrent.c */
void run_lstm(case_run *r);
void run_gru(case_run *r);

#endif
