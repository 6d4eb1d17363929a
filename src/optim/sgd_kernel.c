/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sgd_kernel.c - compiled once per instruction set; the build defines SGD_TABLE, the table's name,
 * and SGD_ISA, the set's name as text.
 */
#include "optim/sgd_kernel.h"

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

#define REAL    float
#define LOOP    loop_f32
#define BY_KIND by_kind_f32
#define UPDATE  update_f32
#include "optim/sgd_loop.inc"
#undef REAL
#undef LOOP
#undef BY_KIND
#undef UPDATE

#define REAL    double
#define LOOP    loop_f64
#define BY_KIND by_kind_f64
#define UPDATE  update_f64
#include "optim/sgd_loop.inc"

const sgd_kernels SGD_TABLE = {.name = SGD_ISA, .f32 = update_f32, .f64 = update_f64};
