/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape_overhead.c - what an operator costs besides its arithmetic: a chain of operators on tensors
 * of 4 elements, forward with recording and backward, in ns an operator. tape_torch.py is the same
 * program in PyTorch, and compare_tape runs both.
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const ls_status status_ = (expr);                                                          \
        if (status_ != LS_OK)                                                                      \
            return status_;                                                                        \
    } while (0)

typedef struct bench {
    const char *device_name;
    int operators;
    int repetitions;
    int json;
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x; /* (4), a leaf */
    ls_tensor *w; /* (1,4), a leaf */
} bench;

static double now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static ls_status prepare(bench *b)
{
    const ls_device_options options = {
        .size = sizeof(options), .name = b->device_name, .threads = 1};

    TRY(ls_device_open(&options, &b->device));
    TRY(ls_tape_create(b->device, &b->tape));
    TRY(ls_tensor_create(b->device, LS_F32, 2, (int64_t[]){1, 4}, &b->x));
    TRY(ls_tensor_create(b->device, LS_F32, 2, (int64_t[]){1, 4}, &b->w));
    TRY(ls_tensor_write(b->x, (float[]){1, -1, 2, -2}, 4));
    TRY(ls_require_grad(b->x));
    return ls_require_grad(b->w);
}

/* One forward and one backward; *forward_ns and *backward_ns: their times. */
static ls_status run_once(const bench *b, double *forward_ns, double *backward_ns)
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
    TRY(ls_tape_status(b->tape));
    middle = now_ns();
    TRY(ls_backward(b->tape, y, 1));
    *forward_ns = middle - begin;
    *backward_ns = now_ns() - middle;
    return LS_OK;
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;

    return (left > right) - (left < right);
}

static void print_times(const bench *b, double *forward, double *backward)
{
    const int n = b->repetitions;

    qsort(forward, (size_t)n, sizeof(*forward), compare);
    qsort(backward, (size_t)n, sizeof(*backward), compare);
    printf(b->json ? "{\"name\": \"lockstep\", \"forward_ns\": %.1f, \"backward_ns\": %.1f, "
                     "\"best_forward_ns\": %.1f, \"best_backward_ns\": %.1f, \"operators\": %d, "
                     "\"device\": \"%s\"}\n"
                   : "an operator: forward %.0f ns, backward %.0f ns (best %.0f and %.0f; %d "
                     "operators; %s)\n",
           forward[n / 2] / b->operators, backward[n / 2] / b->operators, forward[0] / b->operators,
           backward[0] / b->operators, b->operators, ls_device_fingerprint(b->device));
}

static ls_status measure(bench *b)
{
    double *times = calloc((size_t)b->repetitions * 2, sizeof(*times));
    ls_status st = times == NULL ? LS_ENOMEM : prepare(b);
    double ignored;

    for (int i = 0; i < 3 && st == LS_OK; i++)
        st = run_once(b, &ignored, &ignored); // allocates memory
    for (int i = 0; i < b->repetitions && st == LS_OK; i++)
        st = run_once(b, &times[i], &times[b->repetitions + i]);
    if (st == LS_OK)
        print_times(b, times, times + b->repetitions);
    free(times);
    ls_tape_destroy(b->tape);
    ls_tensor_destroy(b->x);
    ls_tensor_destroy(b->w);
    return st == LS_OK ? ls_device_close(b->device) : st;
}

int main(int argc, char **argv)
{
    bench b = {.device_name = "cpu", .operators = 1000, .repetitions = 300};

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
    if (measure(&b) == LS_OK)
        return 0;
    fprintf(stderr, "tape_overhead: %s\n", ls_last_error());
    return 1;
}
