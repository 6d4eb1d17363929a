/* SPDX-License-Identifier: Apache-2.0 */
/* op_ceilings.c - measures what a device can reach at most, for --profile. */
#include "tensor/op_ceilings.h"

#include "base/clock.h"

enum { MATRIX_FIRST = 128, MATRIX_LAST = 8192, COPY_ELEMENTS = 16 << 20 };

#define ENOUGH_NS  20000000 /* of one product */
#define MEASURE_NS 100000000

/* Runs the call, whose outputs are released again. */
static ls_status time_call(ls_device *device, op_call *call, int64_t *ns)
{
    const int64_t start_ns = ls_now_ns();

    LS_TRY(device_run(device, call));
    LS_TRY(device_synchronize(device, "device: ceilings"));
    *ns = ls_now_ns() - start_ns;
    tensor_release(call->out[0]);
    return LS_OK;
}

/* The shortest of several runs; the caller has run it once. */
static ls_status shortest(ls_device *device, op_call *call, int64_t *best_ns)
{
    const int64_t start_ns = ls_now_ns();

    *best_ns = INT64_MAX;
    do {
        int64_t ns;

        LS_TRY(time_call(device, call, &ns));
        *best_ns = ns < *best_ns ? ns : *best_ns;
    } while (ls_now_ns() - start_ns < MEASURE_NS);
    *best_ns = *best_ns > 0 ? *best_ns : 1;
    return LS_OK;
}

/* Creates n tensors of one shape: inputs with zeros, the last one unplaced. */
static ls_status open_call(ls_device *device, op_call *call, const ls_dtype *types, int n_dims,
                           const int64_t *dims)
{
    for (int i = 0; i < call->n_in; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there is a type for each
        LS_TRY(ls_tensor_create(device, types[i], n_dims, dims, &call->in[i]));
    return tensor_shape(device, types[0], n_dims, dims, &call->out[0]);
}

static void close_call(op_call *call)
{
    for (int i = 0; i < call->n_in; i++)
        ls_tensor_destroy(call->in[i]);
    ls_tensor_destroy(call->out[0]);
}

/* A product of n x n matrices. *once_ns: the first run that has packed its weight. */
static ls_status time_product(ls_device *device, ls_dtype compute, int64_t n, int64_t *once_ns,
                              int64_t *best_ns)
{
    op_call call = {.op = OP_LINEAR, .n_in = 2, .n_out = 1};
    ls_status st = open_call(device, &call, (ls_dtype[]){compute, LS_F32}, 2, (int64_t[]){n, n});

    if (st == LS_OK)
        st = time_call(device, &call, once_ns);
    if (st == LS_OK)
        st = time_call(device, &call, once_ns);
    if (st == LS_OK && (*once_ns >= ENOUGH_NS || n == MATRIX_LAST))
        st = shortest(device, &call, best_ns);
    close_call(&call);
    return st;
}

static ls_status measure_flops(ls_device *device, ls_dtype compute, double *out)
{
    int64_t once_ns = 0;
    int64_t best_ns = 1;
    int64_t n = MATRIX_FIRST / 2;

    do {
        n *= 2;
        LS_TRY(time_product(device, compute, n, &once_ns, &best_ns));
    } while (once_ns < ENOUGH_NS && n < MATRIX_LAST);
    *out = 2e9 * (double)n * (double)n * (double)n / (double)best_ns;
    return LS_OK;
}

static ls_status measure_bytes(ls_device *device, double *out)
{
    op_call call = {.op = OP_RELU, .n_in = 1, .n_out = 1};
    int64_t best_ns = 1;
    ls_status st =
        open_call(device, &call, (ls_dtype[]){LS_F32}, 2, (int64_t[]){COPY_ELEMENTS / 1024, 1024});

    if (st == LS_OK)
        st = time_call(device, &call, &best_ns);
    if (st == LS_OK)
        st = shortest(device, &call, &best_ns);
    close_call(&call);
    *out = 2e9 * COPY_ELEMENTS * sizeof(float) / (double)best_ns;
    return st;
}

ls_status op_ceilings_measure(ls_device *device, ls_dtype compute, op_ceilings *out)
{
    LS_TRY(measure_flops(device, compute, &out->flops));
    return measure_bytes(device, &out->bytes);
}
