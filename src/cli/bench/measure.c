/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.c - for one row: warm up, time n operations back to back, check one of them.
 *
 * Where single operations are timed (--touch, -I) every rank reads its clock around each, and what the ranks have read for the same
 * operation is combined (-a).
 */
#include "cli/bench/bench.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

struct bench {
    const bench_options *opt;
    ls_comm *world;
    ls_comm *split; /* NULL: the world */
    int rank;       /* in the measured group */
    bool registered;
    void *first;
    void *second;
    bench_buffers at; /* of the row that is measured */
    double *samples;  /* us, one an iteration; NULL: single ones are not timed */
};

/* --- memory --- */

/* On huge pages where the system has them, whatever the engine. */
static ls_status take_buffer(const bench *b, size_t bytes, void **out)
{
    const size_t whole = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;

    if (b->registered)
        return ls_comm_alloc(bench_comm(b), bytes, out);
    *out = ls_alloc_aligned(HUGE_BYTES, whole);
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes", bytes);
    (void)madvise(*out, whole, MADV_HUGEPAGE);
    return LS_OK;
}

static void give_buffer(const bench *b, void *buffer)
{
    if (b->registered)
        ls_comm_free(bench_comm(b), buffer);
    else
        ls_free(buffer);
}

/* "AND 0x7", "OR 1", "MOD 8", "DIV 4", or the mask alone in NCCL_TESTS_SPLIT_MASK: ranks with the same result measure together. */
static ls_status split_world(bench *b)
{
    const char *how = getenv("NCCL_TESTS_SPLIT");       // NOLINT(concurrency-mt-unsafe)
    const char *mask = getenv("NCCL_TESTS_SPLIT_MASK"); // NOLINT(concurrency-mt-unsafe)
    const int rank = ls_comm_rank(b->world);
    const char *number = how != NULL ? how + strcspn(how, " 0123456789") : mask;
    char *end;
    long value;
    int color;

    if (number == NULL)
        return LS_OK;
    value = strtol(number, &end, 0);
    if (*end != '\0' || end == number || value < 0 || value > INT32_MAX)
        return ls_fail(LS_EINVAL, "NCCL_TESTS_SPLIT: \"%.40s\" has no number", number);
    if (how == NULL || text_starts(how, "AND"))
        color = rank & (int)value;
    else if (text_starts(how, "OR"))
        color = rank | (int)value;
    else if (text_starts(how, "MOD") && value > 0)
        color = rank % (int)value;
    else if (text_starts(how, "DIV") && value > 0)
        color = rank / (int)value;
    else
        return ls_fail(LS_EINVAL, "NCCL_TESTS_SPLIT: \"%.40s\": AND, OR, MOD or DIV with a number",
                       how);
    return ls_comm_split(b->world, color, rank, &b->split);
}

static ls_status prepare(bench *b)
{
    const bench_options *opt = b->opt;
    const size_t bytes = bench_room(opt->max_bytes);
    size_t n;

    LS_TRY(split_world(b));
    b->rank = ls_comm_rank(bench_comm(b));
    n = (size_t)ls_comm_size(bench_comm(b));
    LS_TRY(take_buffer(b, bytes, &b->first));
    LS_TRY(take_buffer(b, bytes, &b->second));
    b->at.src_counts = ls_calloc(2 * n, sizeof(size_t));
    if (opt->touch || opt->intervals > 0)
        b->samples = ls_calloc((size_t)opt->iterations, sizeof(double));
    if (b->at.src_counts == NULL || ((opt->touch || opt->intervals > 0) && b->samples == NULL))
        return ls_fail(LS_ENOMEM, "no memory for %lld samples", (long long)opt->iterations);
    b->at.dst_counts = b->at.src_counts + n;
    return LS_OK;
}

ls_status bench_open(ls_comm *world, const bench_options *opt, bench **out)
{
    bench *b = ls_calloc(1, sizeof(*b));
    ls_status st;

    if (b == NULL)
        return ls_fail(LS_ENOMEM, "no memory to measure with");
    b->opt = opt;
    b->world = world;
    b->registered = text_equal(opt->memory, "registered");
    st = prepare(b);
    if (st != LS_OK) {
        bench_close(b);
        return st;
    }
    *out = b;
    return LS_OK;
}

void bench_close(bench *b)
{
    if (b == NULL)
        return;
    give_buffer(b, b->first);
    give_buffer(b, b->second);
    ls_free(b->at.src_counts);
    ls_free(b->samples);
    ls_comm_destroy(b->split);
    ls_free(b);
}

ls_comm *bench_comm(const bench *b)
{
    return b->split != NULL ? b->split : b->world;
}

/* --- time --- */

static void produce(void *src, size_t bytes)
{
    static int value = 0x3c;

    value ^= 1;
    memset(src, value, bytes); // ordinary numbers in every type
}

static void consume(const void *dst, size_t bytes)
{
    const uint64_t *words = dst;
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes / sizeof(*words); i++)
        sum += words[i];
    __asm__ volatile("" : : "r"(sum)); // so that nothing is left out
}

/* One operation and its time on this rank. With --touch all start together, so that the clock shows no one else's touching. */
static ls_status time_one(bench *b, const bench_case *c, double *us)
{
    const size_t size = ls_dtype_size(c->type);
    int64_t start_ns;

    if (b->opt->touch) {
        produce(b->at.src, bench_src_count(c, b->rank) * size);
        LS_TRY(ls_barrier(bench_comm(b), NULL));
    }
    start_ns = ls_now_ns();
    LS_TRY(bench_call(bench_comm(b), c, &b->at, b->opt->aggregate));
    *us = (double)(ls_now_ns() - start_ns) * 1e-3 / (double)b->opt->aggregate;
    if (b->opt->touch)
        consume(b->at.dst, bench_dst_count(c, b->rank) * size);
    return LS_OK;
}

/* What all ranks have measured, made one (-a). */
static ls_status combine(const bench *b, double *values, size_t n)
{
    switch ((bench_average)b->opt->average) {
    case BENCH_RANK_0:
        return ls_broadcast(b->world, values, values, n, LS_F64, 0, NULL);
    case BENCH_LEAST:
        return ls_all_reduce(b->world, values, values, n, LS_F64, LS_MIN, NULL);
    case BENCH_MOST:
        return ls_all_reduce(b->world, values, values, n, LS_F64, LS_MAX, NULL);
    case BENCH_MEAN:
        break;
    }
    return ls_all_reduce(b->world, values, values, n, LS_F64, LS_AVG, NULL);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void describe_samples(double *samples, size_t n, bench_time *out)
{
    double sum = 0;
    double squares = 0;

    qsort(samples, n, sizeof(*samples), ascending);
    for (size_t i = 0; i < n; i++)
        sum += samples[i];
    out->time_us = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (samples[i] - out->time_us) * (samples[i] - out->time_us);
    out->min_us = samples[0];
    out->max_us = samples[n - 1];
    out->p99_us = samples[(n - 1) * 99 / 100];
    out->cv_percent = out->time_us > 0 ? 100 * sqrt(squares / (double)n) / out->time_us : 0;
}

static ls_status time_each(bench *b, const bench_case *c, int64_t iterations, bench_time *out)
{
    for (int64_t i = 0; i < iterations; i++)
        LS_TRY(time_one(b, c, &b->samples[i]));
    LS_TRY(combine(b, b->samples, (size_t)iterations));
    describe_samples(b->samples, (size_t)iterations, out);
    return LS_OK;
}

static ls_status time_all(bench *b, const bench_case *c, int64_t iterations, bench_time *out)
{
    const int64_t start_ns = ls_now_ns();

    for (int64_t i = 0; i < iterations; i++)
        LS_TRY(bench_call(bench_comm(b), c, &b->at, b->opt->aggregate));
    out->time_us =
        (double)(ls_now_ns() - start_ns) * 1e-3 / (double)iterations / (double)b->opt->aggregate;
    return combine(b, &out->time_us, 1);
}

static ls_status warm_up(bench *b, const bench_case *c)
{
    for (int64_t i = 0; i < b->opt->warmup; i++)
        LS_TRY(bench_call(bench_comm(b), c, &b->at, b->opt->aggregate));
    return ls_barrier(b->world, NULL);
}

/* --- rows --- */

static ls_status check_result(bench *b, const bench_case *c, int64_t *wrong)
{
    const size_t got = bench_dst_count(c, b->rank) * ls_dtype_size(c->type);

    if (got > 0)
        memset(b->at.dst, 0xee, got); // what is not written must be seen
    bench_fill(c, b->rank, b->at.src);
    LS_TRY(bench_call(bench_comm(b), c, &b->at, 1));
    *wrong = bench_count_wrong(c, b->rank, b->at.dst);
    return ls_all_reduce(b->world, wrong, wrong, 1, LS_I64, LS_SUM, NULL);
}

static void place(bench *b, const bench_case *c, bool in_place)
{
    bench_place(c, b->rank, in_place, b->first, b->second, &b->at.src, &b->at.dst);
    if (c->kind == BENCH_ALL_TO_ALL_V)
        for (int r = 0; r < c->n; r++)
            b->at.src_counts[r] = b->at.dst_counts[r] = bench_pair_count(c, b->rank, r);
}

static ls_status measure_side(bench *b, const bench_case *c, bool in_place, bool check,
                              bench_time *out)
{
    place(b, c, in_place);
    bench_fill(c, b->rank, b->at.src);
    LS_TRY(warm_up(b, c));
    LS_TRY(b->samples != NULL ? time_each(b, c, b->opt->iterations, out)
                              : time_all(b, c, b->opt->iterations, out));
    out->wrong = -1;
    return check && b->opt->check > 0 ? check_result(b, c, &out->wrong) : LS_OK;
}

ls_status bench_measure(bench *b, const bench_case *c, bool check, bench_result *out)
{
    *out = (bench_result){{{0}}};
    for (int in_place = 0; in_place < 2; in_place++)
        if (!in_place || bench_has_in_place(c->kind))
            LS_TRY(measure_side(b, c, in_place, check, &out->side[in_place]));
    return LS_OK;
}
