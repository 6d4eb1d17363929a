/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_profile.h - records the operators that a device runs, with times and shapes: --profile.
 *
 * While ls_device.profile points to a profile, device_run() and device_run_many() add a record for
 * each call. On a stream device they wait for each operator then, so that its time is its own;
 * operators do not overlap. Otherwise the cost is one branch.
 *
 * Threads    One: that of the device.
 */
#ifndef LS_TENSOR_OP_PROFILE_H
#define LS_TENSOR_OP_PROFILE_H

#include "tensor/op_cost.h"

#define OP_PROFILE_RECORDS 100000 /* at most; later operators are counted only */

/* One call of device_run(), or device_run_many() of `n_calls` calls. */
typedef struct op_record {
    op_kind op;
    int n_calls;
    int64_t step;
    int64_t start_ns; /* ls_now_ns() */
    int64_t end_ns;
    op_cost cost;
    const char *phase; /* a constant */
    char layer[40];    /* "": none */
    char shapes[96];   /* "(64, 3, 32, 32) x (16, 3, 5, 5) -> (64, 16, 28, 28)" */
} op_record;

/* Zero-initialise; the first three members are for the functions below. */
typedef struct op_profile {
    op_record *records;
    int n;
    int capacity;
    uint64_t n_dropped; /* without memory for them, or beyond the maximum */
    /* of the operators from now on: */
    const char *phase; /* a constant; NULL: none */
    const char *layer; /* borrowed; NULL: none */
    int64_t step;
    int64_t suspended_ns; /* of the current operator, while others ran (ddp/shards_together.h) */
} op_profile;

/* For device_run() and device_run_many(): runs the calls and adds one record for all. Returns
 * their status; failed calls have no record. */
LS_MUST_USE ls_status op_profile_run(ls_device *device, const op_call *calls, int n);

void op_profile_free(op_profile *p); /* the records; not of a device that uses the profile */

/* What the device reaches with these threads, while other processes do what they do. */
typedef struct op_ceilings {
    double flops; /* of a product of matrices, per second */
    double bytes; /* read and written by ReLU of 64 MiB, per second */
} op_ceilings;

/* Measures for about a third of a second, and takes the fastest runs. Needs
 * 128 MiB of the device's memory, which stay in its pool. `compute`: the type of activations. */
LS_MUST_USE ls_status op_ceilings_measure(ls_device *device, ls_dtype compute, op_ceilings *out);

#endif
