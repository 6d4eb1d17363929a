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

/* Before and after device.c runs `n` calls: one record for all, `r`, if their status is LS_OK. */
void op_profile_begin(op_profile *p, op_record *r, const op_call *calls, int n);
void op_profile_end(op_profile *p, op_record *r, const op_call *calls, ls_status status);

void op_profile_free(op_profile *p); /* the records; not of a device that uses the profile */

#endif
