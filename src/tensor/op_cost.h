/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_cost.h - what an operator has to compute and to move, from the shapes of its tensors: for
 * profiles.
 *
 * Products of matrices and convolutions count two operations for each multiplication and addition.
 * Other operators count so many for each element, which is an estimate: they are limited by memory.
 * Bytes are those of all tensors, each read or written once.
 */
#ifndef LS_TENSOR_OP_COST_H
#define LS_TENSOR_OP_COST_H

#include "tensor/device.h"

typedef enum cost_rule {
    PER_ELEMENT,       /* of the largest tensor */
    PRODUCT,           /* x, w -> y */
    PRODUCT_DATA,      /* dy, w -> dx */
    PRODUCT_WEIGHTS,   /* x, dy -> dw */
    MATRICES,          /* a, b -> y */
    ATTENTION,         /* q k' and p v */
    ATTENTION_BACKWARD /* q k' again; dv, dp, dq, dk */
} cost_rule;

/* Of operators.inc. */
cost_rule op_cost_rule(op_kind op);

typedef struct op_cost {
    double flops;
    double bytes;
} op_cost;

/* Outputs need not be placed. */
op_cost op_cost_of(const op_call *call);

#endif
