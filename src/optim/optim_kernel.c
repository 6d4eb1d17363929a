/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim_kernel.c - the loops of optimizers and clipping, compiled once per instruction set: the
 * build defines OPTIM_TABLE, the table's name, and OPTIM_ISA, the set's name as text.
 */
#include "optim/optim_kernel.h"

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

static sgd_kind kind_of(const sgd_update *u)
{
    if (u->momentum_rate == 0)
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
#include "optim/adam_loop.inc"
#include "optim/clip_loop.inc"
#include "optim/sgd_loop.inc"
#undef REAL
#undef ROOT

#define REAL double
#define ROOT sqrt
#include "optim/adam_loop.inc"
#include "optim/clip_loop.inc"
#include "optim/sgd_loop.inc"

#define LOOPS(type)                                                                                \
    {                                                                                              \
        .sgd = GLUE(sgd, type), .adam = GLUE(adam, type),                                          \
        .sum_of_squares = GLUE(sum_of_squares, type), .scale = GLUE(scale, type),                  \
        .clamp = GLUE(clamp, type)                                                                 \
    }

const optim_kernels OPTIM_TABLE = {.name = OPTIM_ISA, .f32 = LOOPS(float), .f64 = LOOPS(double)};
