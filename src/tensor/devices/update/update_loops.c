/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update_loops.c - the loops of optimizers, clipping and gradient scaling, compiled once per
 * instruction set: the build defines UPDATE_TABLE, the table's name, and UPDATE_ISA, the set's name
 * as text.
 */
#include "tensor/devices/update/update_loops.h"

#include <math.h>

/* In the .inc files OF(name) is the function's name for the element type REAL. */
#define GLUE(name, type)   name##_##type
#define EXPAND(name, type) GLUE(name, type)
#define OF(name)           EXPAND(name, REAL)

typedef enum sgd_kind {
    SGD_PLAIN, /* no momentum */
    SGD_FIRST, /* the momentum buffer begins as the gradient */
    SGD_FIRST_NESTEROV,
    SGD_NEXT,
    SGD_NEXT_NESTEROV
} sgd_kind;

static sgd_kind kind_of(const op_update *u)
{
    if (u->momentum == 0)
        return SGD_PLAIN;
    if (u->first)
        return u->nesterov ? SGD_FIRST_NESTEROV : SGD_FIRST;
    return u->nesterov ? SGD_NEXT_NESTEROV : SGD_NEXT;
}

/* Adam's weight decay: none, added to the gradient, or (AdamW) a factor of the value. */
typedef enum adam_decay { ADAM_DECAY_NONE, ADAM_DECAY_ADDED, ADAM_DECAY_FACTOR } adam_decay;

/* Number of partial sums of a sum of squares. It decides the bits, so it is equal for all
 * instruction sets. */
#define SQUARE_LANES 16

#define REAL float
#define ROOT sqrtf
#include "tensor/devices/update/adam_loop.inc"
#include "tensor/devices/update/grad_loop.inc"
#include "tensor/devices/update/sgd_loop.inc"
#undef REAL
#undef ROOT

#define REAL double
#define ROOT sqrt
#include "tensor/devices/update/adam_loop.inc"
#include "tensor/devices/update/grad_loop.inc"
#include "tensor/devices/update/sgd_loop.inc"

#define LOOPS(type)                                                                                \
    {                                                                                              \
        .sgd = GLUE(sgd, type), .adam = GLUE(adam, type),                                          \
        .sum_of_squares = GLUE(sum_of_squares, type), .scale = GLUE(scale, type),                  \
        .clamp = GLUE(clamp, type), .scale_finite = GLUE(scale_finite, type)                       \
    }

const update_isa UPDATE_TABLE = {.name = UPDATE_ISA, .f32 = LOOPS(float), .f64 = LOOPS(double)};
