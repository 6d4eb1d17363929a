/* SPDX-License-Identifier: Apache-2.0 */
/* testing.h - what the tests of tensor, autograd and nn share. */
#ifndef TESTS_TENSOR_TESTING_H
#define TESTS_TENSOR_TESTING_H

#include "tensor/device.h"
#include "tensor/suite_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Fails the test with the library's error text when the two differ. */
#define assert_status(want, got) check_status((want), (got), __FILE__, __LINE__)
void check_status(ls_status want, ls_status got, const char *file, int line);

/* test_device_name(); fails the test when it cannot. */
ls_device *open_reference(void);
ls_device *open_test_device(const char *name);

/* A tensor with these elements, float32 or float64. */
ls_tensor *tensor_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                     const double *values);

/* A tensor of seeded values in (-1, 1). */
ls_tensor *random_tensor(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                         uint64_t seed);

/* A shape without storage. */
ls_tensor *unplaced_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims);

/* A copy of all elements, of the tensor's type; ls_free(). */
void *copy_of(const ls_tensor *t);

/* All elements; ls_free(). */
double *elements_of(const ls_tensor *t);

double element_of(const ls_tensor *t, size_t i);

/* Every element within `tolerance` (absolute); NaN matches NaN. */
void assert_elements(const ls_tensor *t, const double *want, double tolerance);

void destroy_all(ls_tensor *const *tensors, int n);

#endif
