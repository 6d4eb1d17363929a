/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_kernels.c - Lockstep's own convolution kernels against oneDNN's, for the convolutions of our
 * networks. bench/kernels runs it and prints its lines as a table.
 *
 *     conv_kernels [--net NAME] [--rounds N]
 *
 * One thread. Two devices take turns: one with all kernels, one with oneDNN's only. Inputs lie in
 * the layout that the device's own operators give, weights change between two runs, as in training.
 * A line of JSON for each convolution and direction in which the two differ has all times in ms,
 * and the rounding errors: of some elements the L2 norm of the distance from sums in float64,
 * relative to the norm of those.
 */
#include "tensor/device.h"
#include "tensor/devices/onednn/conv2d_choice.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_CONVS = 64, MAX_ROUNDS = 64, CANDIDATES = 2 };

/* A sample is the mean of as many runs as take this long. */
#define SAMPLE_MS 5.0

/* A convolution takes part in fewer rounds where they take longer than this. */
#define BUDGET_MS  3000.0
#define MIN_ROUNDS 5

typedef struct conv {
    int in;
    int out;
    int side; /* of the input */
    int kernel;
    int stride;
    int count; /* how many equal ones the network has */
} conv;

typedef struct net {
    const char *name;
    int side;
    int batch;
    conv convs[MAX_CONVS];
    int n;
} net;

/* The tensors of one convolution on one device. */
typedef struct candidate {
    ls_device *device;
    ls_tensor *x;
    ls_tensor *w;
    ls_tensor *dy;
    ls_tensor *dw;
    double ms[MAX_ROUNDS];
} candidate;

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void check(ls_status st)
{
    if (st == LS_OK)
        return;
    fprintf(stderr, "conv_kernels: %s\n", ls_last_error());
    exit(1);
}

/* --- networks --- */

static void add(net *n, conv c)
{
    for (int i = 0; i < n->n; i++) {
        conv *old = &n->convs[i];

        if (old->in == c.in && old->out == c.out && old->side == c.side &&
            old->kernel == c.kernel && old->stride == c.stride) {
            old->count++;
            return;
        }
    }
    c.count = 1;
    n->convs[n->n++] = c;
}

static int out_side(const conv *c)
{
    return (c->side + 2 * (c->kernel / 2) - c->kernel) / c->stride + 1;
}

static void add_convnet(net *n)
{
    add(n, (conv){1, 16, n->side, 5, 1, 0});
    add(n, (conv){16, 32, n->side / 2, 5, 1, 0});
}

static void add_resnet(net *n, const int *depth, bool has_bottlenecks)
{
    const int expansion = has_bottlenecks ? 4 : 1;
    int side = (n->side + 3) / 4;
    int in = 64;

    add(n, (conv){3, 64, n->side, 7, 2, 0});
    for (int stage = 0; stage < 4; stage++) {
        const int width = 64 << stage;

        for (int i = 0; i < depth[stage]; i++) {
            const int stride = stage > 0 && i == 0 ? 2 : 1;
            const int small = (side + stride - 1) / stride;

            if (has_bottlenecks)
                add(n, (conv){in, width, side, 1, 1, 0});
            add(n, (conv){has_bottlenecks ? width : in, width, side, 3, stride, 0});
            add(n, (conv){width, width * expansion, small, has_bottlenecks ? 1 : 3, 1, 0});
            if (in != width * expansion)
                add(n, (conv){in, width * expansion, side, 1, stride, 0});
            in = width * expansion;
            side = small;
        }
    }
}

static void add_vgg16(net *n)
{
    static const int depth[] = {2, 2, 3, 3, 3};
    int in = 3;

    for (int stage = 0; stage < 5; stage++) {
        const int out = stage < 3 ? 64 << stage : 512;

        for (int i = 0; i < depth[stage]; i++, in = out)
            add(n, (conv){in, out, n->side >> stage, 3, 1, 0});
    }
}

/* The i-th network; false past the last. */
static bool net_at(int i, net *out)
{
    static const int resnet18[] = {2, 2, 2, 2};
    static const int resnet50[] = {3, 4, 6, 3};
    static const net all[] = {
        {.name = "convnet", .side = 28, .batch = 100},
        {.name = "resnet18", .side = 32, .batch = 64},
        {.name = "resnet50", .side = 32, .batch = 64},
        {.name = "vgg16", .side = 32, .batch = 64},
        {.name = "resnet18", .side = 224, .batch = 16},
        {.name = "resnet50", .side = 224, .batch = 16},
        {.name = "vgg16", .side = 224, .batch = 4},
    };

    if (i >= (int)LS_COUNT_OF(all))
        return false;
    *out = all[i];
    if (strcmp(out->name, "convnet") == 0)
        add_convnet(out);
    else if (strcmp(out->name, "vgg16") == 0)
        add_vgg16(out);
    else
        add_resnet(out, strcmp(out->name, "resnet50") == 0 ? resnet50 : resnet18,
                   strcmp(out->name, "resnet50") == 0);
    return true;
}

/* --- one convolution --- */

static op_attrs attrs_of(const conv *c)
{
    return (op_attrs){.stride = {c->stride, c->stride},
                      .padding = {c->kernel / 2, c->kernel / 2},
                      .dilation = {1, 1},
                      .groups = 1,
                      .kernel = {c->kernel, c->kernel}};
}

static ls_tensor *noise(ls_device *device, const int64_t *dims, float scale)
{
    uint32_t state = 1;
    ls_tensor *t;
    float *data;

    check(ls_tensor_create(device, LS_F32, 4, dims, &t));
    data = ls_tensor_data(t);
    for (size_t i = 0; i < ls_tensor_count(t); i++) {
        state = state * 1664525U + 1013904223U;
        data[i] = scale * ((float)(state >> 8) / (float)(1 << 23) - 1);
    }
    return t;
}

static ls_tensor *unplaced(ls_device *device, const int64_t *dims)
{
    ls_tensor *t;

    check(tensor_shape(device, LS_F32, 4, dims, &t));
    return t;
}

static void forward(const candidate *s, const conv *c, ls_tensor *x, ls_tensor *w, ls_tensor *y)
{
    check(device_run(s->device, &(op_call){.op = OP_CONV2D,
                                           .attrs = attrs_of(c),
                                           .n_in = 3,
                                           .n_out = 1,
                                           .in = {x, w},
                                           .out = {y}}));
}

/* Images as they come; activations as a convolution of the same device leaves them. */
static ls_tensor *make_input(const candidate *s, const conv *c, const int64_t *dims)
{
    const conv same = {c->in, c->in, c->side, 1, 1, 1};
    ls_tensor *x = noise(s->device, dims, 1);
    ls_tensor *w;
    ls_tensor *y;

    if (c->in <= CONV2D_FEW_CHANNELS)
        return x;
    w = noise(s->device, (int64_t[]){c->in, c->in, 1, 1}, 0.1F);
    y = unplaced(s->device, dims);
    forward(s, &same, x, w, y);
    ls_tensor_destroy(x);
    ls_tensor_destroy(w);
    return y;
}

static void setup(candidate *s, const conv *c, const int64_t *x, const int64_t *w, const int64_t *y)
{
    s->x = make_input(s, c, x);
    s->w = noise(s->device, w, 0.1F);
    check(ls_tensor_create(s->device, LS_F32, 4, w, &s->dw));
    s->dy = unplaced(s->device, y);
    forward(s, c, s->x, s->w, s->dy);
}

static void teardown(candidate *s)
{
    ls_tensor_destroy(s->x);
    ls_tensor_destroy(s->w);
    ls_tensor_destroy(s->dy);
    ls_tensor_destroy(s->dw);
}

/* The result; the caller destroys it, but dw. */
static ls_tensor *result_of(const candidate *s, const conv *c, conv2d_direction direction)
{
    op_call call = {.attrs = attrs_of(c), .n_in = 2, .n_out = 1};
    ls_tensor *out = NULL;

    if (direction == CONV2D_BACKWARD_WEIGHTS) {
        call.op = OP_CONV2D_BACKWARD_WEIGHTS;
        call.n_out = 2;
        call.in[0] = s->x;
        call.in[1] = s->dy;
        call.out[0] = s->dw;
        check(device_run(s->device, &call));
        return s->dw;
    }
    tensor_written(s->w, "conv_kernels");
    if (direction == CONV2D_FORWARD) {
        out = unplaced(s->device, s->dy->dims);
        forward(s, c, s->x, s->w, out);
    } else {
        out = unplaced(s->device, s->x->dims);
        call.op = OP_CONV2D_BACKWARD_DATA;
        call.in[0] = s->dy;
        call.in[1] = s->w;
        call.out[0] = out;
        check(device_run(s->device, &call));
    }
    return out;
}

static void run(const candidate *s, const conv *c, conv2d_direction direction)
{
    ls_tensor *const out = result_of(s, c, direction);

    if (out != s->dw)
        ls_tensor_destroy(out);
}

/* The mean time of `runs` runs. */
static double time_runs(const candidate *s, const conv *c, conv2d_direction direction, int runs)
{
    const double begin = now_ms();

    for (int i = 0; i < runs; i++)
        run(s, c, direction);
    return (now_ms() - begin) / runs;
}

static int measure(candidate *candidates, const conv *c, conv2d_direction direction, int rounds)
{
    const double begin = now_ms();
    int runs[CANDIDATES];
    int done = 0;

    for (int i = 0; i < CANDIDATES; i++) {
        run(&candidates[i], c, direction);
        runs[i] = 1 + (int)(SAMPLE_MS / (1e-3 + time_runs(&candidates[i], c, direction, 1)));
    }
    while (done < rounds && (done < MIN_ROUNDS || now_ms() - begin < BUDGET_MS)) {
        for (int i = 0; i < CANDIDATES; i++)
            candidates[i].ms[done] = time_runs(&candidates[i], c, direction, runs[i]);
        done++;
    }
    return done;
}

/* --- rounding errors --- */

enum { SAMPLES = 500 };

/* What the sums are of. Of an image n, an output channel o and an input channel k, `at` is the row
 * and the column of a result, then those of a tap. */
typedef struct terms {
    const conv *c;
    const int64_t *x; /* dimensions */
    const int64_t *y;
    const float *x_data;
    const float *w_data;
    const float *dy_data;
} terms;

/* The element of x that is read there; false: it is in the padding. */
static bool reads(const terms *t, int64_t n, int64_t k, const int64_t at[4], int64_t *index)
{
    const int64_t h = at[0] * t->c->stride + at[2] - t->c->kernel / 2;
    const int64_t w = at[1] * t->c->stride + at[3] - t->c->kernel / 2;

    *index = ((n * t->x[1] + k) * t->x[2] + h) * t->x[3] + w;
    return h >= 0 && h < t->x[2] && w >= 0 && w < t->x[3];
}

static int64_t in_y(const terms *t, int64_t n, int64_t o, const int64_t at[4])
{
    return ((n * t->y[1] + o) * t->y[2] + at[0]) * t->y[3] + at[1];
}

static int64_t in_w(const terms *t, int64_t o, int64_t k, const int64_t at[4])
{
    return ((o * t->x[1] + k) * t->c->kernel + at[2]) * t->c->kernel + at[3];
}

/* Element `i` of y. */
static double exact_y(const terms *t, int64_t i)
{
    const int64_t o = i / (t->y[2] * t->y[3]) % t->y[1];
    const int64_t n = i / (t->y[1] * t->y[2] * t->y[3]);
    int64_t at[4] = {i / t->y[3] % t->y[2], i % t->y[3], 0, 0};
    int64_t from;
    double sum = 0;

    for (int64_t k = 0; k < t->x[1]; k++) {
        for (at[2] = 0; at[2] < t->c->kernel; at[2]++) {
            for (at[3] = 0; at[3] < t->c->kernel; at[3]++) {
                if (reads(t, n, k, at, &from))
                    sum += (double)t->x_data[from] * (double)t->w_data[in_w(t, o, k, at)];
            }
        }
    }
    return sum;
}

/* Element `i` of dx. */
static double exact_dx(const terms *t, int64_t i)
{
    const int64_t k = i / (t->x[2] * t->x[3]) % t->x[1];
    const int64_t n = i / (t->x[1] * t->x[2] * t->x[3]);
    int64_t from;
    double sum = 0;

    for (int64_t p = 0; p < t->y[2] * t->y[3] * t->c->kernel * t->c->kernel; p++) {
        const int64_t tap = p % (t->c->kernel * t->c->kernel);
        const int64_t result = p / (t->c->kernel * t->c->kernel);
        const int64_t at[4] = {result / t->y[3], result % t->y[3], tap / t->c->kernel,
                               tap % t->c->kernel};

        for (int64_t o = 0; reads(t, n, k, at, &from) && from == i && o < t->y[1]; o++)
            sum += (double)t->dy_data[in_y(t, n, o, at)] * (double)t->w_data[in_w(t, o, k, at)];
    }
    return sum;
}

/* Element `i` of dw. */
static double exact_dw(const terms *t, int64_t i)
{
    const int64_t taps = t->c->kernel * t->c->kernel;
    const int64_t k = i / taps % t->x[1];
    const int64_t o = i / (taps * t->x[1]);
    int64_t at[4] = {0, 0, i % taps / t->c->kernel, i % t->c->kernel};
    int64_t from;
    double sum = 0;

    for (int64_t n = 0; n < t->x[0]; n++) {
        for (at[0] = 0; at[0] < t->y[2]; at[0]++) {
            for (at[1] = 0; at[1] < t->y[3]; at[1]++) {
                if (reads(t, n, k, at, &from))
                    sum += (double)t->x_data[from] * (double)t->dy_data[in_y(t, n, o, at)];
            }
        }
    }
    return sum;
}

static double error_of(const candidate *s, const conv *c, conv2d_direction direction)
{
    ls_tensor *const out = result_of(s, c, direction);
    const float *const data = ls_tensor_data(out);
    const int64_t count = (int64_t)ls_tensor_count(out);
    const terms t = {.c = c,
                     .x = s->x->dims,
                     .y = s->dy->dims,
                     .x_data = ls_tensor_data(s->x),
                     .w_data = ls_tensor_data(s->w),
                     .dy_data = ls_tensor_data(s->dy)};
    double distance = 0;
    double norm = 0;

    for (int64_t k = 0; k < SAMPLES; k++) {
        const int64_t i = count * k / SAMPLES + k % (count / SAMPLES > 0 ? count / SAMPLES : 1);
        const double exact = direction == CONV2D_FORWARD         ? exact_y(&t, i)
                             : direction == CONV2D_BACKWARD_DATA ? exact_dx(&t, i)
                                                                 : exact_dw(&t, i);

        distance += ((double)data[i] - exact) * ((double)data[i] - exact);
        norm += exact * exact;
    }
    if (out != s->dw)
        ls_tensor_destroy(out);
    return sqrt(distance / norm);
}

/* --- output --- */

static void print_times(const char *name, const double *ms, int n)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < n; i++)
        printf("%s%.4f", i == 0 ? "" : ", ", ms[i]);
    printf("]");
}

static void compare(const net *n, const conv *c, candidate *candidates, isa_level isa, int rounds)
{
    static const char *const directions[] = {"forward", "data", "weights"};
    const int64_t x[4] = {n->batch, c->in, c->side, c->side};
    const int64_t w[4] = {c->out, c->in, c->kernel, c->kernel};
    const int64_t y[4] = {n->batch, c->out, out_side(c), out_side(c)};
    const op_attrs attrs = attrs_of(c);

    for (conv2d_direction d = CONV2D_FORWARD; d <= CONV2D_BACKWARD_WEIGHTS; d++) {
        const conv2d_kernel kernel = conv2d_choose(isa, ~0U, LS_F32, d, &attrs, x, w, y);
        int done;

        if (kernel == CONV2D_ONEDNN)
            continue;
        for (int i = 0; i < CANDIDATES; i++)
            setup(&candidates[i], c, x, w, y);
        done = measure(candidates, c, d, rounds);
        printf(
            "{\"net\": \"%s\", \"image\": %d, \"batch\": %d, \"device\": \"%s\", \"kernel\": "
            "\"%s\", \"direction\": \"%s\", \"conv\": \"%d>%d %dx%d/%d of %dx%d\", \"count\": %d",
            n->name, n->side, n->batch, ls_device_fingerprint(candidates[0].device),
            conv2d_kernel_name(kernel), directions[d], c->in, c->out, c->kernel, c->kernel,
            c->stride, c->side, c->side, c->count);
        print_times("ours_ms", candidates[0].ms, done);
        print_times("onednn_ms", candidates[1].ms, done);
        printf(", \"ours_error\": %.2e, \"onednn_error\": %.2e}\n", error_of(&candidates[0], c, d),
               error_of(&candidates[1], c, d));
        fflush(stdout);
        for (int i = 0; i < CANDIDATES; i++)
            teardown(&candidates[i]);
    }
}

static void open_candidate(candidate *s, const char *convolutions)
{
    const ls_device_options options = {.size = sizeof(options), .name = "onednn", .threads = 1};

    if (setenv("LOCKSTEP_CONVOLUTIONS", convolutions, 1) != 0)
        exit(1);
    check(ls_device_open(&options, &s->device));
}

/* The instruction set's name follows the library's and its version. */
static isa_level isa_of(const ls_device *device)
{
    char name[64] = "";

    (void)sscanf(ls_device_fingerprint(device), "%*s %*s %63s", name);
    return isa_level_of(name);
}

int main(int argc, char **argv)
{
    candidate candidates[CANDIDATES] = {{.device = NULL}};
    const char *only = NULL;
    int rounds = 15;
    net n;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--net") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = (int)strtol(argv[++i], NULL, 10);
        else
            rounds = 0;
    }
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: conv_kernels [--net NAME] [--rounds N, 1 to %d]\n", MAX_ROUNDS);
        return 2;
    }
    open_candidate(&candidates[0], "few,rows,winograd");
    open_candidate(&candidates[1], "onednn");
    for (int i = 0; net_at(i, &n); i++) {
        for (int k = 0; k < n.n && (only == NULL || strcmp(n.name, only) == 0); k++)
            compare(&n, &n.convs[k], candidates, isa_of(candidates[0].device), rounds);
    }
    for (int i = 0; i < CANDIDATES; i++)
        (void)ls_device_close(candidates[i].device);
    return 0;
}
