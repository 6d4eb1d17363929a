/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_bandwidth.c - the memory bandwidth of operators that do little else than read and write,
 * beside that of a copy on the same device, for bench/gpu/bench.
 *
 *     kernel_bandwidth [--device NAME] [--mib N] [--rounds N]
 *
 * One JSON object a line for each operator and type: the bytes that it has to move at least (masks
 * and indices not counted), the median time of a call, their ratio, and its share of the copy's.
 * Each round queues CALLS calls and waits for the device once. Exits with 1 if an operator fails.
 */
#define _POSIX_C_SOURCE 200809L

#include <lockstep/autograd.h>
#include <lockstep/optim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 10, CHANNELS = 64, SIDE = 32, MOST_ROUNDS = 1000 };

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_dtype type;
    ls_tensor *x, *y;         /* (N, CHANNELS, SIDE, SIDE) of the type */
    ls_tensor *rows;          /* (N*SIDE*SIDE, CHANNELS): x as the layout of images on GPUs, NHWC */
    ls_tensor *channels[4];   /* weight, bias, running mean and variance */
    ls_optimizer *sgd, *adam; /* of a float32 parameter as large as x in float32 */
} bench;

/* --- one call of each operator --- */

static ls_status done(const bench *b, const ls_tensor *result)
{
    return result == NULL ? ls_tape_status(b->tape) : LS_OK;
}

static ls_status run_copy(bench *b)
{
    return ls_tensor_copy(b->y, b->x);
}

static ls_status run_relu(bench *b)
{
    return done(b, ls_relu(b->tape, b->x));
}

static ls_status run_gelu(bench *b)
{
    return done(b, ls_gelu(b->tape, b->x));
}

static ls_status run_add(bench *b)
{
    return done(b, ls_add(b->tape, b->x, b->y));
}

static ls_status run_add_relu(bench *b)
{
    return done(b, ls_add_relu(b->tape, b->x, b->y));
}

static ls_status run_dropout(bench *b)
{
    return done(b, ls_dropout(b->tape, b->x, 0.5));
}

static ls_status run_batch_norm(bench *b)
{
    const ls_batch_norm_params relu = {.relu = 1};

    return done(b, ls_batch_norm(b->tape, b->rows, b->channels[0], b->channels[1], b->channels[2],
                                 b->channels[3], &relu));
}

static ls_status run_max_pool(bench *b)
{
    const ls_pool2d_params window = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};

    return done(b, ls_max_pool2d(b->tape, b->x, &window));
}

static ls_status run_global_pool(bench *b)
{
    return done(b, ls_adaptive_avg_pool2d(b->tape, b->x, 1, 1));
}

static ls_status run_sgd(bench *b)
{
    return ls_optimizer_step(b->sgd);
}

static ls_status run_adam(bench *b)
{
    return ls_optimizer_step(b->adam);
}

/* `moved`: the least number of times that all of x is read and written. Training batch norms read
 * it twice; SGD has a momentum. */
static const struct kernel {
    const char *name;
    ls_status (*run)(bench *b);
    double moved;
    int is_float32; /* only */
} kernels[] = {
    {"copy", run_copy, 2, 0},
    {"relu", run_relu, 2, 0},
    {"gelu", run_gelu, 2, 0},
    {"add", run_add, 3, 0},
    {"add_relu", run_add_relu, 3, 0},
    {"dropout", run_dropout, 2, 0},
    {"batch_norm_relu", run_batch_norm, 3, 0},
    {"max_pool_nchw", run_max_pool, 1.25, 0},
    {"global_avg_pool_nchw", run_global_pool, 1, 0},
    {"sgd", run_sgd, 5, 1},
    {"adam", run_adam, 7, 1},
};

/* --- measuring --- */

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* *us: of one call, the median of the rounds; one more round is not counted. */
static ls_status measure(bench *b, const struct kernel *k, int rounds, double *us)
{
    double times[MOST_ROUNDS];
    ls_status st = LS_OK;

    for (int r = -1; r < rounds && st == LS_OK; r++) {
        const double begin = now_us();

        for (int i = 0; i < CALLS && st == LS_OK; i++) {
            ls_tape_reset(b->tape);
            ls_tape_set_random(b->tape, 1, i);
            st = k->run(b);
        }
        if (st == LS_OK)
            st = ls_device_synchronize(b->device);
        if (r >= 0)
            times[r] = (now_us() - begin) / CALLS;
    }
    qsort(times, (size_t)rounds, sizeof(times[0]), compare);
    *us = times[rounds / 2];
    return st;
}

/* --- tensors --- */

static ls_tensor *gradient;

static ls_tensor *gradient_of(const ls_tensor *parameter)
{
    (void)parameter;
    return gradient;
}

static ls_status create(const bench *b, ls_dtype type, int n_dims, const int64_t *dims,
                        ls_tensor **out)
{
    const ls_status st = ls_tensor_create(b->device, type, n_dims, dims, out);

    return st == LS_OK ? ls_tensor_fill(*out, 1) : st;
}

/* All operators of one type; *copy_gb_s: of the first one, the copy. */
static ls_status run_type(bench *b, const int64_t *dims, int rounds)
{
    const int64_t channels = CHANNELS;
    const int64_t rows[2] = {dims[0] * SIDE * SIDE, CHANNELS};
    const double bytes = (double)dims[0] * CHANNELS * SIDE * SIDE * (double)ls_dtype_size(b->type);
    double copy_gb_s = 0;
    ls_status st = create(b, b->type, 4, dims, &b->x);

    if (st == LS_OK)
        st = create(b, b->type, 4, dims, &b->y);
    if (st == LS_OK)
        st = ls_tensor_view(b->x, 2, rows, &b->rows);
    for (int i = 0; i < 4 && st == LS_OK; i++)
        st = create(b, LS_F32, 1, &channels, &b->channels[i]);
    if (st == LS_OK)
        st = ls_tape_set_compute(b->tape, b->type);
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]) && st == LS_OK; i++) {
        const struct kernel *k = &kernels[i];
        double us;
        double gb_s;

        if (k->is_float32 && b->type != LS_F32)
            continue;
        st = measure(b, k, rounds, &us);
        gb_s = k->moved * bytes / us / 1e3;
        copy_gb_s = i == 0 ? gb_s : copy_gb_s;
        if (st == LS_OK)
            printf("{\"kernel\": \"%s\", \"type\": \"%s\", \"bytes\": %.0f, \"us\": %.2f, "
                   "\"gb_s\": %.1f, \"of_copy\": %.3f}\n",
                   k->name, ls_dtype_name(b->type), k->moved * bytes, us, gb_s, gb_s / copy_gb_s);
    }
    ls_tape_reset(b->tape);
    ls_tensor_destroy(b->rows);
    ls_tensor_destroy(b->x);
    ls_tensor_destroy(b->y);
    for (int i = 0; i < 4; i++)
        ls_tensor_destroy(b->channels[i]);
    return st;
}

static ls_status run_all(bench *b, int mib, int rounds)
{
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.1, .momentum = 0.9};
    const ls_adam_options adam = {.size = sizeof(adam), .lr = 0.001};
    const int64_t dims[4] = {(int64_t)mib * 4, CHANNELS, SIDE, SIDE}; // of float32
    ls_named parameter = {.name = "parameter"};
    ls_status st = ls_tape_create(b->device, &b->tape);

    if (st == LS_OK)
        st = create(b, LS_F32, 4, dims, &parameter.tensor);
    if (st == LS_OK)
        st = create(b, LS_F32, 4, dims, &gradient);
    if (st == LS_OK)
        st = ls_sgd_create(&parameter, 1, gradient_of, &sgd, &b->sgd);
    if (st == LS_OK)
        st = ls_adam_create(&parameter, 1, gradient_of, &adam, &b->adam);
    for (int half = 0; half < 2 && st == LS_OK; half++) {
        b->type = half ? LS_BF16 : LS_F32;
        st = run_type(b, dims, rounds);
    }
    ls_optimizer_destroy(b->sgd);
    ls_optimizer_destroy(b->adam);
    ls_tensor_destroy(gradient);
    ls_tensor_destroy(parameter.tensor);
    ls_tape_destroy(b->tape);
    return st;
}

int main(int argc, char **argv)
{
    ls_device_options options = {.size = sizeof(options), .name = "cuda"};
    bench b = {.device = NULL};
    long mib = 256;
    long rounds = 20;
    ls_status st;

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--device") == 0)
            options.name = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--mib") == 0)
            mib = strtol(argv[i + 1], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
            rounds = strtol(argv[i + 1], NULL, 10);
        else
            rounds = 0;
    }
    if (mib < 1 || mib > 65536 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: kernel_bandwidth [--device NAME] [--mib N] [--rounds N]\n");
        return 2;
    }
    st = ls_device_open(&options, &b.device);
    if (st == LS_OK)
        st = run_all(&b, (int)mib, (int)rounds);
    if (st != LS_OK)
        fprintf(stderr, "kernel_bandwidth: %s\n", ls_last_error());
    return ls_device_close(b.device) == LS_OK && st == LS_OK ? 0 : 1;
}
