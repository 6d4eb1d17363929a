/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape_overhead.c - what an operator on tensors of 4 elements costs, in a chain of ReLUs and
 * additions on a host device, one thread, and how much of that is overhead of the tape.
 *
 *     whole     the time of an operator with the tape: forward with recording (and the reset
 *               before it), or its part of the backward
 *     kernel    the time of the same kernels, which the device's table has given before, called
 *               directly on tensors of the same shapes; they place results in memory of the pool
 *     overhead  whole - kernel
 *
 * A repetition measures all of them, so that a slow period of the machine affects all; a result is
 * a median over the repetitions, with quartiles. tape_torch.py is the same chain in PyTorch, where
 * only the whole can be measured, and compare_tape runs both.
 */
#include "tensor/device.h"

#include <lockstep/autograd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP = 3, SHAPE_DIMS = 2 };

static const int64_t shape[SHAPE_DIMS] = {1, 4};

/* Measured values of one direction, of all repetitions. */
typedef enum series { WHOLE, KERNEL, OVERHEAD, SERIES } series;
typedef struct direction {
    const char *name;
    double *ns[SERIES]; /* an operator's; `repetitions` elements */
} direction;

/* A kernel and the call that it gets, whose tensors change. */
typedef struct direct {
    kernel_fn run;
    device_state *state;
    op_call call;
} direct;

typedef struct bench {
    const char *device_name;
    int operators;
    int repetitions;
    int json;
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x; /* a leaf */
    ls_tensor *w; /* a leaf */
    /* of the direct calls */
    ls_tensor **y;    /* the operators' results */
    ls_tensor **dx;   /* the gradients of their inputs */
    ls_tensor *dy;    /* of the last result */
    ls_tensor *x_sum; /* the gradient of x */
    direct relu;
    direct add;
    direct relu_backward;
    direct add_into;
    direction forward;
    direction backward;
} bench;

static double now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* --- with the tape --- */

/* One forward and one backward; *forward and *backward: their ns. */
static ls_status run_tape(const bench *b, double *forward, double *backward)
{
    const double begin = now_ns();
    double middle;
    ls_tensor *y;

    ls_tape_reset(b->tape);
    ls_zero_grad(b->x);
    ls_zero_grad(b->w);
    y = b->x;
    for (int i = 0; i < b->operators; i++)
        y = i % 2 == 0 ? ls_relu(b->tape, y) : ls_add(b->tape, y, b->x);
    y = ls_linear(b->tape, y, b->w, NULL);
    LS_TRY(ls_tape_status(b->tape));
    middle = now_ns();
    LS_TRY(ls_backward(b->tape, y, 1));
    *forward = middle - begin;
    *backward = now_ns() - middle;
    return LS_OK;
}

/* --- the kernels --- */

static ls_status run_direct(direct *d, ls_tensor *first, ls_tensor *second, ls_tensor *out)
{
    d->call.in[0] = first;
    d->call.in[1] = second;
    d->call.out[0] = out;
    return d->run(d->state, &d->call);
}

static ls_status kernels_forward(bench *b)
{
    ls_tensor *y = b->x;

    for (int i = 0; i < b->operators; i++) {
        LS_TRY(i % 2 == 0 ? run_direct(&b->relu, y, NULL, b->y[i])
                          : run_direct(&b->add, y, b->x, b->y[i]));
        y = b->y[i];
    }
    return LS_OK;
}

/* The gradient of a sum is that of its inputs: no kernel computes it, but one adds it to x_sum. */
static ls_status kernels_backward(bench *b)
{
    ls_tensor *dy = b->dy;

    for (int i = b->operators - 1; i >= 0; i--) {
        LS_TRY(i % 2 == 0 ? run_direct(&b->relu_backward, b->y[i], dy, b->dx[i])
                          : run_direct(&b->add_into, dy, NULL, b->x_sum));
        if (i % 2 == 0)
            dy = b->dx[i];
    }
    return LS_OK;
}

static ls_status run_kernels(bench *b, double *forward, double *backward)
{
    double begin;
    double middle;

    for (int i = 0; i < b->operators; i++) {
        tensor_release(b->y[i]);
        tensor_release(b->dx[i]);
    }
    begin = now_ns();
    LS_TRY(kernels_forward(b));
    middle = now_ns();
    LS_TRY(kernels_backward(b));
    *forward = middle - begin;
    *backward = now_ns() - middle;
    return LS_OK;
}

/* --- tensors and kernels --- */

static ls_status make(const bench *b, ls_tensor **out)
{
    return ls_tensor_create(b->device, LS_F32, SHAPE_DIMS, shape, out);
}

static ls_status find(const bench *b, direct *d, op_call call)
{
    kernel_fn reference = cpu_ref_device_ops.find_kernel(NULL, &call);

    d->run = b->device->ops->find_kernel(b->device->state, &call);
    d->state = d->run == NULL ? NULL : b->device->state;
    d->run = d->run == NULL ? reference : d->run;
    d->call = call;
    return d->run != NULL ? LS_OK : ls_fail(LS_EUNSUPPORTED, "no %s", device_op_name(call.op));
}

static ls_status find_kernels(bench *b)
{
    ls_tensor *const in = b->x;
    ls_tensor *const out = b->y[0];

    LS_TRY(find(b, &b->relu,
                (op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {in}, .out = {out}}));
    LS_TRY(find(b, &b->add,
                (op_call){.op = OP_BINARY,
                          .attrs = {.binary = BINARY_ADD},
                          .n_in = 2,
                          .n_out = 1,
                          .in = {in, in},
                          .out = {out}}));
    LS_TRY(find(b, &b->relu_backward,
                (op_call){.op = OP_RELU_BACKWARD,
                          .may_reuse_grad = true,
                          .n_in = 3,
                          .n_out = 1,
                          .in = {in, in},
                          .out = {out}}));
    return find(b, &b->add_into,
                (op_call){.op = OP_ADD_INTO, .n_in = 1, .n_out = 1, .in = {in}, .out = {in}});
}

static ls_status prepare(bench *b)
{
    const ls_device_options options = {
        .size = sizeof(options), .name = b->device_name, .threads = 1};

    LS_TRY(ls_device_open(&options, &b->device));
    if (b->device->accel != NULL)
        return ls_fail(LS_EUNSUPPORTED, "%s queues its kernels; --device needs a host device",
                       b->device_name);
    LS_TRY(ls_tape_create(b->device, &b->tape));
    LS_TRY(make(b, &b->x));
    LS_TRY(make(b, &b->w));
    LS_TRY(make(b, &b->dy));
    LS_TRY(make(b, &b->x_sum));
    LS_TRY(ls_tensor_write(b->x, (float[]){1, -1, 2, -2}, 4));
    LS_TRY(ls_require_grad(b->x));
    LS_TRY(ls_require_grad(b->w));
    for (int i = 0; i < b->operators; i++) {
        LS_TRY(tensor_shape(b->device, LS_F32, SHAPE_DIMS, shape, &b->y[i]));
        LS_TRY(tensor_shape(b->device, LS_F32, SHAPE_DIMS, shape, &b->dx[i]));
    }
    return find_kernels(b);
}

/* --- results --- */

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;

    return (left > right) - (left < right);
}

static double quartile(const bench *b, const double *sorted, int k)
{
    return sorted[(size_t)(b->repetitions - 1) * (size_t)k / 4];
}

static void print_direction(const bench *b, const direction *d)
{
    const double *overhead = d->ns[OVERHEAD];

    for (int i = 0; i < SERIES; i++)
        qsort(d->ns[i], (size_t)b->repetitions, sizeof(double), compare);
    printf(b->json ? "\"%s\": {\"whole_ns\": %.1f, \"kernel_ns\": %.1f, \"overhead_ns\": %.1f, "
                     "\"overhead_quartiles_ns\": [%.1f, %.1f]}, "
                   : "%-8s  an operator %.0f ns, its kernel alone %.0f ns, overhead %.0f ns "
                     "(quartiles %.0f to %.0f)\n",
           d->name, quartile(b, d->ns[WHOLE], 2), quartile(b, d->ns[KERNEL], 2),
           quartile(b, overhead, 2), quartile(b, overhead, 1), quartile(b, overhead, 3));
}

static void print_results(const bench *b)
{
    printf(b->json ? "{\"name\": \"lockstep\", " : "");
    print_direction(b, &b->forward);
    print_direction(b, &b->backward);
    printf(b->json ? "\"operators\": %d, \"device\": \"%s\"}\n" : "%d operators; %s\n",
           b->operators, ls_device_fingerprint(b->device));
}

static void take(const bench *b, direction *d, int i, double whole, double kernel)
{
    d->ns[WHOLE][i] = whole / b->operators;
    d->ns[KERNEL][i] = kernel / b->operators;
    d->ns[OVERHEAD][i] = (whole - kernel) / b->operators;
}

static ls_status measure(bench *b)
{
    for (int i = -WARMUP; i < b->repetitions; i++) {
        double whole[2];
        double kernel[2];

        LS_TRY(run_tape(b, &whole[0], &whole[1]));
        LS_TRY(run_kernels(b, &kernel[0], &kernel[1]));
        if (i < 0)
            continue;
        take(b, &b->forward, i, whole[0], kernel[0]);
        take(b, &b->backward, i, whole[1], kernel[1]);
    }
    print_results(b);
    return LS_OK;
}

static void destroy(bench *b)
{
    ls_tape_destroy(b->tape);
    ls_tensor_destroy(b->x);
    ls_tensor_destroy(b->w);
    ls_tensor_destroy(b->dy);
    ls_tensor_destroy(b->x_sum);
    for (int i = 0; i < b->operators; i++) {
        ls_tensor_destroy(b->y[i]);
        ls_tensor_destroy(b->dx[i]);
    }
}

static ls_status run(bench *b)
{
    double *ns = calloc((size_t)b->repetitions * 2 * SERIES, sizeof(*ns));
    ls_tensor **tensors = calloc((size_t)b->operators * 2, sizeof(*tensors));
    ls_status st = ns == NULL || tensors == NULL ? ls_fail(LS_ENOMEM, "no memory") : LS_OK;

    if (st == LS_OK) {
        for (int i = 0; i < SERIES; i++) {
            b->forward.ns[i] = ns + (size_t)i * (size_t)b->repetitions;
            b->backward.ns[i] = ns + (size_t)(SERIES + i) * (size_t)b->repetitions;
        }
        b->y = tensors;
        b->dx = tensors + b->operators;
        st = prepare(b);
        if (st == LS_OK)
            st = measure(b);
        destroy(b);
        if (st == LS_OK)
            st = ls_device_close(b->device);
    }
    free(tensors);
    free(ns);
    return st;
}

int main(int argc, char **argv)
{
    bench b = {.device_name = "cpu",
               .operators = 1000,
               .repetitions = 300,
               .forward.name = "forward",
               .backward.name = "backward"};

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--json") == 0) {
            b.json = 1;
            continue;
        }
        if (strcmp(argv[i], "--device") == 0)
            b.device_name = value;
        else if (strcmp(argv[i], "--operators") == 0)
            b.operators = atoi(value);
        else if (strcmp(argv[i], "--repetitions") == 0)
            b.repetitions = atoi(value);
        else
            b.operators = 0;
        i++;
    }
    if (b.operators < 1 || b.repetitions < 1) {
        fprintf(stderr, "usage: tape_overhead [--device NAME] [--operators N] [--repetitions N] "
                        "[--json]\n");
        return 2;
    }
    if (run(&b) == LS_OK)
        return 0;
    fprintf(stderr, "tape_overhead: %s\n", ls_last_error());
    return 1;
}
