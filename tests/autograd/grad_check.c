/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_check.c - checks a case. Each function ends in a mean square against fixed random numbers,
 * so that no gradient is constant.
 */
#include "autograd/grad_check.h"

/* The mean square distance of y from seeded numbers of its shape; they are kept beside
 * the inputs. */
typedef struct check_run {
    const check_case *c;
    ls_tensor *goal;
} check_run;

static ls_tensor *distance(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    check_run *run = arg;
    ls_tensor *y = run->c->op(tape, in, run->c);

    if (y != NULL && run->goal == NULL)
        run->goal =
            random_tensor(ls_tensor_device(y), LS_F64, ls_tensor_n_dims(y), ls_tensor_dims(y), 99);
    return ls_mse_loss(tape, y, run->goal);
}

void check(const check_case *c)
{
    ls_device *device = open_reference();
    ls_tensor *in[MAX_INPUTS];
    check_run run = {.c = c};
    double worst = 0;
    ls_status st;

    for (int i = 0; i < c->n_inputs; i++) {
        in[i] = random_tensor(device, LS_F64, c->in[i].n_dims, c->in[i].dims, (uint64_t)i + 1);
        if (i < c->n_leaves)
            assert_status(LS_OK, ls_require_grad(in[i]));
    }
    st = ls_grad_check(distance, &run, in, c->n_inputs, TOLERANCE, &worst);
    if (st != LS_OK)
        fail_msg("%s: %s (worst %g)", c->name, ls_last_error(), worst);
    destroy_all(in, c->n_inputs);
    ls_tensor_destroy(run.goal);
    ls_device_close(device);
}

void check_each(const check_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check(&cases[i]);
}
