/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet_primitives.c - the sum of oneDNN's primitives in one training step of ResNet-50, each
 * timed alone.
 *
 *     resnet_primitives [--batch N] [--side N] [--json]
 *
 * Convolutions, batch norms and pools in the layouts that oneDNN likes best, one thread; the median
 * of some runs on warm memory. The last linear layer, sums of branches, the loss and the optimizer
 * are not in it.
 */
#include "bench/dnnl_parts.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void omp_set_num_threads(int n);

enum { MAX_RUNS = 40, MAX_ARGS = 12 };

#define POOL_BYTES ((size_t)3 << 30)

typedef struct bench {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    char *memory;
    int batch;
    part_desc activation; /* of the last convolution's results */
    double conv_ms[3];
    double norm_ms[2];
    double pool_ms[2];
} bench;

typedef struct argument {
    int id;
    part_desc desc;
} argument;

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void stop(const char *what)
{
    fprintf(stderr, "resnet_primitives: oneDNN cannot do %s\n", what);
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Memory for every argument that there is, one behind another. Gives their number. */
static int bind(bench *b, const argument *args, int n, dnnl_exec_arg_t *bound)
{
    size_t at = 0;
    int count = 0;

    for (int i = 0; i < n; i++) {
        const size_t bytes = args[i].desc == NULL ? 0 : dnnl_memory_desc_get_size(args[i].desc);

        if (bytes == 0)
            continue;
        if (at + bytes > POOL_BYTES ||
            dnnl_memory_create(&bound[count].memory, args[i].desc, b->engine, b->memory + at) !=
                dnnl_success)
            stop("so much memory");
        bound[count++].arg = args[i].id;
        at += (bytes + 8191) / 4096 * 4096 + 64;
    }
    return count;
}

/* The median time of the primitive, in ms. */
static double time_part(bench *b, part p, const char *what, const argument *args, int n)
{
    dnnl_exec_arg_t bound[MAX_ARGS];
    dnnl_primitive_t primitive;
    double ms[MAX_RUNS];
    double total = 0;
    int runs = 0;
    int n_bound;

    if (p == NULL || dnnl_primitive_create(&primitive, p) != dnnl_success)
        stop(what);
    n_bound = bind(b, args, n, bound);
    for (int i = -1; i < MAX_RUNS && !(runs >= 5 && total > 50) && !(runs >= 3 && total > 400);
         i++) {
        const double begin = now_ms();

        if (dnnl_primitive_execute(primitive, b->stream, n_bound, bound) != dnnl_success)
            stop(what);
        dnnl_stream_wait(b->stream);
        if (i < 0)
            continue;
        ms[runs] = now_ms() - begin;
        total += ms[runs++];
    }
    for (int i = 0; i < n_bound; i++)
        dnnl_memory_destroy(bound[i].memory);
    dnnl_primitive_destroy(primitive);
    qsort(ms, (size_t)runs, sizeof(*ms), by_size);
    return ms[runs / 2];
}

static part_desc images(const bench *b, int channels, int side)
{
    return part_desc_of(4, (dnnl_dim_t[]){b->batch, channels, side, side}, dnnl_format_tag_any);
}

static int halved(int side, int stride)
{
    return (side + stride - 1) / stride;
}

static part_window window_of(int side, int kernel, int stride)
{
    const int padding = kernel / 2;
    const int after = (halved(side, stride) - 1) * stride + kernel - padding - side;

    return (part_window){.kernel = {kernel, kernel},
                         .stride = {stride, stride},
                         .before = {padding, padding},
                         .after = {after, after}};
}

/* `count` equal convolutions; the first of the network needs no gradient of its input. */
static void conv(bench *b, int in, int out, int side, int kernel, int stride, int count)
{
    const part_window w = window_of(side, kernel, stride);
    const part_desc any =
        part_desc_of(4, (dnnl_dim_t[]){out, in, kernel, kernel}, dnnl_format_tag_any);
    const part f = part_conv(b->engine, dnnl_forward_training, images(b, in, side), any,
                             images(b, out, halved(side, stride)), &w, NULL);
    const part_desc x = part_query(f, dnnl_query_src_md);
    const part_desc y = part_query(f, dnnl_query_dst_md);
    const part g = part_conv(b->engine, dnnl_backward_weights, x, any, y, &w, f);

    b->conv_ms[0] +=
        count * time_part(b, f, "a convolution",
                          (argument[]){{DNNL_ARG_SRC, x},
                                       {DNNL_ARG_WEIGHTS, part_query(f, dnnl_query_weights_md)},
                                       {DNNL_ARG_DST, y}},
                          3);
    if (in > 3) {
        const part d = part_conv(b->engine, dnnl_backward_data, x, any, y, &w, f);

        b->conv_ms[1] +=
            count * time_part(b, d, "a convolution backward",
                              (argument[]){{DNNL_ARG_DIFF_SRC, x},
                                           {DNNL_ARG_WEIGHTS, part_query(d, dnnl_query_weights_md)},
                                           {DNNL_ARG_DIFF_DST, y}},
                              3);
    }
    b->conv_ms[2] +=
        count *
        time_part(b, g, "a convolution's weights backward",
                  (argument[]){{DNNL_ARG_SRC, x},
                               {DNNL_ARG_DIFF_WEIGHTS, part_query(g, dnnl_query_diff_weights_md)},
                               {DNNL_ARG_DIFF_DST, y}},
                  3);
    b->activation = y;
}

/* Behind the last convolution. */
static void norm(bench *b, int channels, int relu, int count)
{
    const part_desc x = b->activation;
    const part_desc c = part_desc_of(1, (dnnl_dim_t[]){channels}, dnnl_a);
    const part f = part_norm(b->engine, x, relu, NULL);
    const part g = f == NULL ? NULL : part_norm(b->engine, x, relu, f);
    const part_desc mask = part_query(f, dnnl_query_workspace_md);
    const part_desc shift = DNNL_VERSION_MAJOR == 2 ? c : NULL; // 3.x refuses it backward

    b->norm_ms[0] += count * time_part(b, f, "a batch norm",
                                       (argument[]){{DNNL_ARG_SRC, x},
                                                    {DNNL_ARG_DST, x},
                                                    {DNNL_ARG_SCALE, c},
                                                    {DNNL_ARG_SHIFT, c},
                                                    {DNNL_ARG_MEAN, c},
                                                    {DNNL_ARG_VARIANCE, c},
                                                    {DNNL_ARG_WORKSPACE, mask}},
                                       7);
    b->norm_ms[1] += count * time_part(b, g, "a batch norm backward",
                                       (argument[]){{DNNL_ARG_SRC, x},
                                                    {DNNL_ARG_DIFF_DST, x},
                                                    {DNNL_ARG_DIFF_SRC, x},
                                                    {DNNL_ARG_SCALE, c},
                                                    {DNNL_ARG_SHIFT, shift},
                                                    {DNNL_ARG_MEAN, c},
                                                    {DNNL_ARG_VARIANCE, c},
                                                    {DNNL_ARG_DIFF_SCALE, c},
                                                    {DNNL_ARG_DIFF_SHIFT, c},
                                                    {DNNL_ARG_WORKSPACE, mask}},
                                       10);
}

static void pool(bench *b, dnnl_alg_kind_t kind, int channels, int out, const part_window *w)
{
    const part_desc x = b->activation;
    const part f = part_pool(b->engine, kind, x, images(b, channels, out), w, NULL);
    const part_desc y = part_query(f, dnnl_query_dst_md);
    const part_desc where = part_query(f, dnnl_query_workspace_md);
    const part g = f == NULL ? NULL : part_pool(b->engine, kind, x, y, w, f);

    b->pool_ms[0] += time_part(
        b, f, "a pool",
        (argument[]){{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}, {DNNL_ARG_WORKSPACE, where}}, 3);
    b->pool_ms[1] += time_part(
        b, g, "a pool backward",
        (argument[]){{DNNL_ARG_DIFF_SRC, x}, {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WORKSPACE, where}},
        3);
}

/* One of the four stages: `depth` blocks, the first of which has another input and, but for the
 * first stage, halves the image. */
static void stage(bench *b, int in, int width, int side, int stride, int depth)
{
    const int out = 4 * width;
    const int small = halved(side, stride);

    conv(b, in, width, side, 1, 1, 1);
    norm(b, width, 1, 1);
    conv(b, out, width, small, 1, 1, depth - 1);
    norm(b, width, 1, depth - 1);
    conv(b, width, width, side, 3, stride, 1);
    norm(b, width, 1, 1);
    conv(b, width, width, small, 3, 1, depth - 1);
    norm(b, width, 1, depth - 1);
    conv(b, width, out, small, 1, 1, depth);
    norm(b, out, 0, depth);
    conv(b, in, out, side, 1, stride, 1);
    norm(b, out, 0, 1);
}

static void resnet50(bench *b, int side)
{
    static const int depth[] = {3, 4, 6, 3};
    const int stem = halved(side, 2);
    part_window w = window_of(stem, 3, 2);
    int in = 64;

    conv(b, 3, 64, side, 7, 2, 1);
    norm(b, 64, 1, 1);
    side = halved(stem, 2);
    pool(b, dnnl_pooling_max, 64, side, &w);
    for (int i = 0; i < 4; i++) {
        stage(b, in, 64 << i, side, i == 0 ? 1 : 2, depth[i]);
        side = halved(side, i == 0 ? 1 : 2);
        in = 256 << i;
    }
    w = (part_window){.kernel = {side, side}, .stride = {side, side}};
    pool(b, dnnl_pooling_avg_exclude_padding, in, 1, &w);
}

static void report(const bench *b, int side, int json)
{
    const dnnl_version_t *v = dnnl_version();
    const double conv_ms = b->conv_ms[0] + b->conv_ms[1] + b->conv_ms[2];
    const double sum = conv_ms + b->norm_ms[0] + b->norm_ms[1] + b->pool_ms[0] + b->pool_ms[1];

    if (json)
        printf("{\"name\": \"onednn %d.%d.%d\", \"step_ms\": %.3f, \"conv_ms\": %.3f, \"norm_ms\": "
               "%.3f, \"pool_ms\": %.3f}\n",
               v->major, v->minor, v->patch, sum, conv_ms, b->norm_ms[0] + b->norm_ms[1],
               b->pool_ms[0] + b->pool_ms[1]);
    else
        printf("oneDNN %d.%d.%d, batch %d of %dx%d: convolutions %.0f + %.0f + %.0f ms, batch "
               "norms %.0f + %.0f, pools %.0f + %.0f: "
               "%.0f ms, %.2f samples/s\n",
               v->major, v->minor, v->patch, b->batch, side, side, b->conv_ms[0], b->conv_ms[1],
               b->conv_ms[2], b->norm_ms[0], b->norm_ms[1], b->pool_ms[0], b->pool_ms[1], sum,
               1e3 * b->batch / sum);
}

int main(int argc, char **argv)
{
    bench b = {.batch = 16};
    int side = 224;
    int json = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = 1;
        else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc)
            b.batch = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--side") == 0 && i + 1 < argc)
            side = (int)strtol(argv[++i], NULL, 10);
        else
            b.batch = 0;
    }
    if (b.batch < 1 || side < 32) {
        fprintf(stderr, "usage: resnet_primitives [--batch N] [--side N, at least 32] [--json]\n");
        return 2;
    }
    omp_set_num_threads(1);
    b.memory = aligned_alloc((size_t)2 << 20, POOL_BYTES);
    if (b.memory == NULL || dnnl_engine_create(&b.engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&b.stream, b.engine, dnnl_stream_default_flags) != dnnl_success)
        stop("anything here");
    resnet50(&b, side);
    report(&b, side, json);
    free(b.memory);
    return 0;
}
