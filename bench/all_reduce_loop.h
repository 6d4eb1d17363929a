/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_loop.h - what both contestants of all_reduce_vs_mpi measure, so that only the all_reduce differs.
 *
 * Training writes a gradient bucket before the all_reduce and reads it after, so each pass does that too: a loop over idle
 * buffers would leave every slice in its owner's cache. The same pass with a barrier in place of the all_reduce is measured
 * beside it; the difference is the net time.
 */
#ifndef BENCH_ALL_REDUCE_LOOP_H
#define BENCH_ALL_REDUCE_LOOP_H

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOOP_BATCHES 5
#define LOOP_MS      12.0 /* of one batch */

typedef struct loop_calls {
    void *self;
    int (*all_reduce)(void *self, float *data, size_t count); /* in place; 0: well */
    int (*barrier)(void *self);
    double (*slowest)(void *self,
                      double value); /* the largest value of all ranks, on all of them */
} loop_calls;

static inline double loop_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One rank a core where there are enough; otherwise the system places them. */
static inline void loop_bind(int rank, int size)
{
    cpu_set_t all;
    cpu_set_t one;
    int wanted = rank;

    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < size)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && wanted-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof(one), &one);
            return;
        }
    }
}

static inline void loop_produce(float *data, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        data[i] = value;
}

static inline float loop_consume(const float *data, size_t count)
{
    float sums[32] = {0};
    float sum = 0;
    size_t i = 0;

    for (; i + 32 <= count; i += 32) {
        for (int k = 0; k < 32; k++)
            sums[k] += data[i + (size_t)k];
    }
    for (; i < count; i++)
        sum += data[i];
    for (int k = 0; k < 32; k++)
        sum += sums[k];
    return sum;
}

static inline int loop_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Seconds of one pass, `passes` of them, on the slowest rank; negative: it failed. */
static inline double loop_batch(const loop_calls *c, float *data, size_t count, int rank, int size,
                                int reduce, int passes)
{
    const float want = (float)size * (float)(size + 1) / 2;
    float sink = 0;
    double start;
    double end;

    if (c->barrier(c->self) != 0)
        return -1;
    start = loop_now();
    for (int i = 0; i < passes; i++) {
        loop_produce(data, count, (float)(rank + 1));
        if ((reduce ? c->all_reduce(c->self, data, count) : c->barrier(c->self)) != 0)
            return -1;
        sink += loop_consume(data, count);
    }
    end = loop_now();
    if (sink < 0 || (reduce && (data[0] != want || data[count - 1] != want)))
        return -1;
    return c->slowest(c->self, (end - start) / passes);
}

/* Prints "LABEL RANKS BYTES GROSS_US USE_US" for one size; 0: well. */
static inline int loop_measure(const loop_calls *c, const char *label, float *data, size_t bytes,
                               int rank, int size)
{
    const size_t count = bytes / sizeof(float);
    double gross[LOOP_BATCHES];
    double use[LOOP_BATCHES];
    double once = loop_batch(c, data, count, rank, size, 1, 2);
    int passes;

    if (once < 0)
        return 1;
    once = loop_batch(c, data, count, rank, size, 1, 2);
    passes = once > 0 ? (int)(LOOP_MS / 1e3 / once) : 1;
    passes = passes < 2 ? 2 : passes > 5000 ? 5000 : passes;
    for (int i = 0; i < LOOP_BATCHES; i++) {
        gross[i] = loop_batch(c, data, count, rank, size, 1, passes);
        use[i] = loop_batch(c, data, count, rank, size, 0, passes);
        if (gross[i] < 0 || use[i] < 0)
            return 1;
    }
    qsort(gross, LOOP_BATCHES, sizeof(*gross), loop_ascending);
    qsort(use, LOOP_BATCHES, sizeof(*use), loop_ascending);
    if (rank == 0) {
        printf("%s %d %zu %.3f %.3f\n", label, size, bytes, 1e6 * gross[LOOP_BATCHES / 2],
               1e6 * use[LOOP_BATCHES / 2]);
        fflush(stdout);
    }
    return 0;
}

#endif
