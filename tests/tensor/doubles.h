/* SPDX-License-Identifier: Apache-2.0 */
/* doubles.h - elements of floating tensors of any device, as doubles. */
#ifndef TESTS_TENSOR_DOUBLES_H
#define TESTS_TENSOR_DOUBLES_H

#include <lockstep/tensor.h>

/* All elements, row-major. Of integers NaN. */
LS_MUST_USE ls_status doubles_read(const ls_tensor *t, double *out);

/* Element i, without allocating memory. */
LS_MUST_USE ls_status doubles_read_one(const ls_tensor *t, size_t i, double *out);

/* Sets all elements. */
LS_MUST_USE ls_status doubles_write(ls_tensor *t, const double *values);

#endif
