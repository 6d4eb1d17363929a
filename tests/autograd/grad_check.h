/* SPDX-License-Identifier: Apache-2.0 */
/* grad_check.h - cases of operators whose backward is compared with differences. */
#ifndef TESTS_AUTOGRAD_GRAD_CHECK_H
#define TESTS_AUTOGRAD_GRAD_CHECK_H

#include "tensor/sums.h"
#include "tensor/testing.h"

#include <lockstep/autograd.h>

#define TOLERANCE  1e-6
#define MAX_INPUTS 6

typedef struct check_case check_case;

/* One call: its inputs (leaves up to n_leaves, then constants) and parameters. */
struct check_case {
    const char *name;
    ls_tensor *(*op)(ls_tape *tape, ls_tensor *const *in, const check_case *c);
    int n_leaves;
    int n_inputs;
    struct {
        int n_dims;
        int64_t dims[4];
    } in[MAX_INPUTS];
    ls_conv2d_params conv;
    ls_pool2d_params pool; /* adaptive: height and width in `kernel` */
    ls_batch_norm_params norm;
    ls_tensor *(*two)(ls_tape *tape, ls_tensor *a, ls_tensor *b);
    ls_activation function;
};

/* Compares one case, in float64 on the reference device or on cudahost. The test fails with its
 * name. */
void check(const check_case *c);
void check_each(const check_case *cases, size_t n);

#endif
