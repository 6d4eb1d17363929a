/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failure.h - how a kernel reports a failure of its operator (a target out of range): a record in
 * page-locked memory, which the host reads after each wait (cuda_accel.c).
 *
 * The first failure counts. A kernel changes `state` from FAILURE_NONE to FAILURE_WRITING with an
 * atomic compare-and-swap, writes the other fields, and then, after a fence of the system's scope,
 * sets FAILURE_WRITTEN. The host sets FAILURE_NONE when it has reported the record.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_RUNTIME_FAILURE_H
#define LS_TENSOR_DEVICES_CUDA_RUNTIME_FAILURE_H

#include <stdint.h>

enum { FAILURE_NONE, FAILURE_WRITING, FAILURE_WRITTEN };

typedef struct op_failure {
    int32_t state;
    int32_t op;    /* the op_kind */
    int64_t row;   /* of the first target that is not in [0, limit); OP_BATCH_NORM: unused */
    int64_t value; /* of the target */
    int64_t limit;
} op_failure;

#endif
