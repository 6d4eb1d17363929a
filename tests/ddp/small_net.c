/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_net.c - creates a small network on each rank, fills its weights from a seed, and runs its
 * steps.
 */
#include "ddp/small_net.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <string.h>

ls_status small_net_open(small_net *n, const char *device, uint64_t seed)
{
    const ls_device_options options = {.size = sizeof(options), .name = device, .threads = 1};

    memset(n, 0, sizeof(*n));
    LS_TRY(ls_device_open(&options, &n->device));
    LS_TRY(ls_model_create(n->device, seed, &n->model));
    return ls_tape_create(n->device, &n->tape);
}

ls_status small_net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt, double lr)
{
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = lr, .momentum = 0.9};
    int count;
    const ls_named *parameters = ls_model_parameters(n->model, &count);

    if (comm != NULL)
        LS_TRY(ls_ddp_create(comm, n->model, opt, &n->ddp));
    return ls_sgd_create(parameters, count, ls_grad, &sgd, &n->sgd);
}

void small_net_close(small_net *n)
{
    ls_optimizer_destroy(n->sgd);
    ls_tape_destroy(n->tape);
    ls_ddp_destroy(n->ddp);
    ls_model_destroy(n->model);
    ls_device_close(n->device);
}

ls_status small_net_rows(small_net *n, int step, int first, int64_t *dims, int n_dims, int rows,
                         float mean, int classes, ls_tensor **x, ls_tensor **y)
{
    float *values;
    int64_t *labels;
    size_t each = 1;
    ls_status st;

    dims[0] = rows;
    for (int i = 1; i < n_dims; i++)
        each *= (size_t)dims[i];
    ls_tape_reset(n->tape);
    LS_TRY(ls_tensor_create(n->device, LS_F32, n_dims, dims, x));
    LS_TRY(ls_tensor_create(n->device, LS_I64, 1, dims, y));
    values = ls_calloc((size_t)rows * each + 1, sizeof(*values));
    labels = ls_calloc((size_t)rows + 1, sizeof(*labels));
    st = values != NULL && labels != NULL ? LS_OK : LS_ENOMEM;
    for (int row = 0; row < rows && st == LS_OK; row++) {
        float *to = values + (size_t)row * each;
        ls_rng rng;

        ls_rng_seed(&rng, (uint64_t)step * 1000 + (uint64_t)(first + row));
        for (size_t i = 0; i < each; i++)
            *to++ = mean + (float)ls_rng_normal(&rng);
        labels[row] = (int64_t)ls_rng_below(&rng, (uint64_t)classes);
    }
    if (st == LS_OK)
        st = ls_tensor_write(*x, values, (size_t)rows * each);
    if (st == LS_OK)
        st = ls_tensor_write(*y, labels, (size_t)rows);
    ls_free(values);
    ls_free(labels);
    return st;
}
