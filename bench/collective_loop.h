/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective_loop.h - what every engine of bench/collectives measures, so that only the
 * operation itself differs.
 *
 * Each rank reads commands from a pipe of its own (DIR/NAME.RANK), one a line, and sleeps in
 * between:
 *
 *   OP BYTES MEMORY MILLISECONDS     measures; rank 0 writes "GROSS_US USE_US CALIB_US SWITCHES"
 *                                     to DIR/NAME.out
 *   quit
 *
 * Below LOOP_NET_FROM operations run back to back, as there is little to fetch. From there on each
 * pass writes the source, runs the operation and reads the destination, because training does so
 * and a loop over idle buffers leaves every slice in its owner's cache; USE_US is the time of the
 * writes and reads: that of the same pass with a barrier in place of the operation, less that of
 * barriers back to back. CALIB_US is the time of a fixed copy just before, by
 * which slow spells of the machine are found. C and C++.
 */
#ifndef BENCH_COLLECTIVE_LOOP_H
#define BENCH_COLLECTIVE_LOOP_H

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define LOOP_NET_FROM    16384
#define LOOP_BATCHES     3
#define LOOP_CALIB_BYTES ((size_t)8 << 20)
#define LOOP_HUGE_BYTES  ((size_t)2 << 20)

typedef struct loop_op {
    const char *name;
    int src_is_part; /* the source is one part of BYTES, else all of it */
    int dst_is_part;
    int is_in_place;
} loop_op;

enum {
    LOOP_ALL_REDUCE,
    LOOP_BROADCAST,
    LOOP_ALL_GATHER,
    LOOP_REDUCE_SCATTER,
    LOOP_ALL_TO_ALL,
    LOOP_SENDRECV, /* ping-pong of ranks 0 and 1; the time is that of one way */
    LOOP_BARRIER,
    LOOP_COPY, /* no operation: a copy on every rank at once, to compare memory traffic with */
    LOOP_OPS
};

static const loop_op loop_ops[LOOP_OPS] = {
    {"all_reduce", 0, 0, 1},     {"broadcast", 0, 0, 1},  {"all_gather", 1, 0, 0},
    {"reduce_scatter", 0, 1, 0}, {"all_to_all", 0, 0, 0}, {"sendrecv", 0, 0, 1},
    {"barrier", 0, 0, 1},        {"copy", 0, 0, 0},
};

/* A engine. Counts are floats: of the part for all_gather, reduce_scatter and all_to_all, else
 * of everything. 0: well. */
typedef struct loop_engine {
    void *self;
    int (*run)(void *self, int op, float *src, float *dst, size_t count);
    double (*slowest)(void *self, double value); /* the largest of all ranks, on all of them */
    float *(*memory)(void *self, const char *kind, int which, size_t bytes); /* NULL: none */
    int rank;
    int size;
} loop_engine;

static inline double loop_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Context switches of this process until now, voluntary or not. */
static inline double loop_switches(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_nvcsw + (double)usage.ru_nivcsw;
}

/* One rank a core where there are enough; otherwise the system places them. */
static inline void loop_bind(int rank, int size)
{
    cpu_set_t all;
    cpu_set_t one;
    int wanted = rank;

    if (getenv("COLLECTIVES_UNBOUND") != NULL)
        return;
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

/* The program's own memory, in huge pages, the same for all engines. */
static inline float *loop_user_memory(size_t bytes)
{
    const size_t whole = (bytes + LOOP_HUGE_BYTES - 1) / LOOP_HUGE_BYTES * LOOP_HUGE_BYTES;
    void *memory = aligned_alloc(LOOP_HUGE_BYTES, whole);

    if (memory == NULL)
        return NULL;
    (void)madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, 0, whole);
    return (float *)memory;
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
        for (size_t k = 0; k < 32; k++)
            sums[k] += data[i + k];
    }
    for (; i < count; i++)
        sum += data[i];
    for (size_t k = 0; k < 32; k++)
        sum += sums[k];
    return sum;
}

/* One case: counts of the buffers and of the call. */
typedef struct loop_case {
    int op;
    size_t src_count;
    size_t dst_count;
    size_t call_count;
    float *src;
    float *dst;
    int is_used; /* written before and read after */
} loop_case;

static inline int loop_once(const loop_engine *e, const loop_case *c, int real)
{
    if (real && c->op == LOOP_COPY) {
        memcpy(c->dst, c->src, c->src_count * sizeof(float));
        return e->run(e->self, LOOP_BARRIER, NULL, NULL, 0);
    }
    return e->run(e->self, real ? c->op : LOOP_BARRIER, c->src, c->dst, c->call_count);
}

/* What the operation leaves at the ends of dst when rank r's source is r + 1 everywhere. */
static inline int loop_is_right(const loop_engine *e, const loop_case *c)
{
    const float sum = (float)e->size * (float)(e->size + 1) / 2;
    const float first = c->dst[0];
    const float last = c->dst[c->dst_count - 1];

    switch (c->op) {
    case LOOP_ALL_REDUCE:
    case LOOP_REDUCE_SCATTER:
        return first == sum && last == sum;
    case LOOP_BROADCAST:
        return first == 1 && last == 1;
    case LOOP_ALL_GATHER:
    case LOOP_ALL_TO_ALL:
        return first == 1 && last == (float)e->size;
    default:
        return 1;
    }
}

/* Seconds of one pass, `passes` of them, on the slowest rank; negative: it failed. */
static inline double loop_batch(const loop_engine *e, const loop_case *c, int real, int passes)
{
    float sink = 0;
    double start;
    double end;

    if (!c->is_used && c->src_count > 0)
        loop_produce(c->src, c->src_count, real ? (float)(e->rank + 1) : 0);
    if (e->run(e->self, LOOP_BARRIER, NULL, NULL, 0) != 0)
        return -1;
    start = loop_now();
    for (int i = 0; i < passes; i++) {
        if (c->is_used)
            loop_produce(c->src, c->src_count, (float)(e->rank + 1));
        if (loop_once(e, c, real) != 0)
            return -1;
        if (c->is_used)
            sink += loop_consume(c->dst, c->dst_count);
    }
    end = loop_now();
    if (sink < 0 || (real && c->is_used && !loop_is_right(e, c)))
        return -1;
    return e->slowest(e->self, (end - start) / passes);
}

/* A copy that depends on nothing but the machine, on all ranks at once. */
static inline double loop_calibrate(const loop_engine *e)
{
    static char *from;
    static char *to;
    double start;

    if (from == NULL) {
        from = (char *)loop_user_memory(LOOP_CALIB_BYTES);
        to = (char *)loop_user_memory(LOOP_CALIB_BYTES);
    }
    if (from == NULL || to == NULL || e->run(e->self, LOOP_BARRIER, NULL, NULL, 0) != 0)
        return -1;
    start = loop_now();
    memcpy(to, from, LOOP_CALIB_BYTES);
    from[0] = to[LOOP_CALIB_BYTES - 1];
    return e->slowest(e->self, loop_now() - start);
}

static inline int loop_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline double loop_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), loop_ascending);
    return values[n / 2];
}

/* How many passes fill a batch; negative: it failed. */
static inline int loop_passes(const loop_engine *e, const loop_case *c, double milliseconds)
{
    double once = loop_batch(e, c, 1, 2);
    int passes = 2;

    while (once > 0 && once * passes < 2e-4 && passes < 64) {
        passes *= 8;
        once = loop_batch(e, c, 1, passes);
    }
    if (once < 0)
        return -1;
    passes = once > 0 ? (int)(milliseconds / 1e3 / once) : 20000;
    return passes < 2 ? 2 : passes > 20000 ? 20000 : passes;
}

static inline int loop_measure(const loop_engine *e, const loop_case *c, double milliseconds,
                               FILE *out)
{
    const double ways = c->op == LOOP_SENDRECV ? 2 : 1;
    loop_case barrier;
    double gross[LOOP_BATCHES];
    double use[LOOP_BATCHES];
    double switches[LOOP_BATCHES];
    const int passes = loop_passes(e, c, milliseconds);
    const double calibration = loop_calibrate(e);

    memset(&barrier, 0, sizeof(barrier));
    barrier.op = LOOP_BARRIER;
    if (passes < 0 || calibration < 0)
        return 1;
    for (int i = 0; i < LOOP_BATCHES; i++) {
        switches[i] = loop_switches();
        gross[i] = loop_batch(e, c, 1, passes);
        switches[i] = e->slowest(e->self, (loop_switches() - switches[i]) / passes);
        use[i] = 0;
        if (c->is_used) {
            const double waits = loop_batch(e, &barrier, 1, passes);

            use[i] = loop_batch(e, c, 0, passes);
            if (waits < 0 || use[i] < 0)
                return 1;
            use[i] = use[i] > waits ? use[i] - waits : 0;
        }
        if (gross[i] < 0)
            return 1;
    }
    if (out != NULL) {
        fprintf(out, "%.4f %.4f %.1f %.2f\n", 1e6 * loop_median(gross, LOOP_BATCHES) / ways,
                1e6 * loop_median(use, LOOP_BATCHES) / ways, 1e6 * calibration,
                loop_median(switches, LOOP_BATCHES) / ways);
        fflush(out);
    }
    return 0;
}

static inline int loop_find(const char *name)
{
    int op = 0;

    while (op < LOOP_OPS && strcmp(loop_ops[op].name, name) != 0)
        op++;
    return op;
}

static inline int loop_command(const loop_engine *e, const char *name, size_t bytes,
                               const char *memory, double milliseconds, FILE *out)
{
    const int op = loop_find(name);
    const size_t all = bytes / sizeof(float);
    const size_t part = all / (size_t)e->size;
    loop_case c;

    if (op == LOOP_OPS)
        return 1;
    memset(&c, 0, sizeof(c));
    c.op = op;
    c.src_count = op == LOOP_BARRIER ? 0 : loop_ops[op].src_is_part ? part : all;
    c.dst_count = op == LOOP_BARRIER ? 0 : loop_ops[op].dst_is_part ? part : all;
    c.call_count = op >= LOOP_ALL_GATHER && op <= LOOP_ALL_TO_ALL ? part : all;
    c.is_used = bytes >= LOOP_NET_FROM;
    c.src = e->memory(e->self, memory, 0, bytes);
    c.dst = loop_ops[op].is_in_place ? c.src : e->memory(e->self, memory, 1, bytes);
    if (c.src == NULL || c.dst == NULL)
        return 1;
    return loop_measure(e, &c, milliseconds, out);
}

/* Serves commands until "quit"; 0: well. */
static inline int loop_serve(const loop_engine *e, const char *folder, const char *name)
{
    char path[512];
    char line[256];
    FILE *in;
    FILE *out = NULL;
    int failed = 0;

    snprintf(path, sizeof(path), "%s/%s.%d", folder, name, e->rank);
    in = fopen(path, "r");
    snprintf(path, sizeof(path), "%s/%s.out", folder, name);
    if (e->rank == 0)
        out = fopen(path, "w");
    if (in == NULL || (e->rank == 0 && out == NULL))
        return 1;
    while (failed == 0 && fgets(line, sizeof(line), in) != NULL) {
        char op[32];
        char memory[32];
        unsigned long long bytes;
        double milliseconds;

        if (strncmp(line, "quit", 4) == 0)
            break;
        failed = sscanf(line, "%31s %llu %31s %lf", op, &bytes, memory, &milliseconds) != 4 ||
                 loop_command(e, op, (size_t)bytes, memory, milliseconds, out) != 0;
    }
    fclose(in);
    if (out != NULL)
        fclose(out);
    return failed;
}

#endif
