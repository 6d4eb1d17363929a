/* SPDX-License-Identifier: Apache-2.0 */
/* optim_scene.h - small tensors with gradients that a test chooses, on the reference device. */
#ifndef TESTS_OPTIM_OPTIM_SCENE_H
#define TESTS_OPTIM_OPTIM_SCENE_H

#include "base/unit.h"

#include <lockstep/optim.h>

/* Open from open_device() to close_device(), which cmocka calls around a suite. */
extern ls_device *device;

int open_device(void **state);
int close_device(void **state);

/* Memory that was allocated so far: of the host, or of a device with queues its own. */
uint64_t count_allocations(void);

/* Zeros. */
ls_tensor *make_tensor(ls_dtype type, int64_t n);
/* Of float32 or float64; at most 16 elements. */
void set_values(ls_tensor *t, const double *values);
double value_at(const ls_tensor *t, size_t i);

/* Which gradient belongs to which parameter: an optimizer asks by a function without context. */
#define MAX_PARAMS 4
typedef struct scene_grad {
    const ls_tensor *parameter;
    ls_tensor *grad;
} scene_grad;
extern scene_grad grads[MAX_PARAMS];
ls_tensor *grad_of(const ls_tensor *parameter);

/* Copies the values of one list into the places of another, which has the same names. */
void copy_items(const ls_named *src, int n, const ls_named *dst, int n_dst);
/* Copies all of one state list into the places of another, as a checkpoint does. */
void copy_state(ls_optimizer *from, ls_optimizer *to);

/* Makes an optimizer over one parameter; arg is the caller's. */
typedef ls_status (*make_optimizer_fn)(const ls_named *parameter, const void *arg,
                                       ls_optimizer **out);

/* One parameter "p" of three elements, its gradient, and an optimizer. */
typedef struct fixture {
    ls_tensor *p;
    ls_tensor *g;
    ls_optimizer *o;
} fixture;

fixture setup(ls_dtype type, const double start[3], make_optimizer_fn make, const void *arg);
void teardown(fixture *f);

/* Four steps; an optimizer that loads a copy of the state after any of them gives the same bits,
 * and the same rate. */
void check_continuing(const double start[3], const double gradients[4][3], make_optimizer_fn make,
                      const void *arg);

#endif
