/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.c - measures one row: warm-up, n timed operations back to back, then operations whose
 * results are checked.
 *
 * With --touch and -I single operations are timed: every rank reads its clock around each
 * operation, and the largest time of all ranks counts.
 *
 * Operations on device memory are queued one after another, as in nccl-tests; the host waits for
 * the last one only (with -z for each), and -I takes the times from events in the queue.
 */
#include "cli/bench/bench.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compute/accel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    const bench_options *opt;
    ls_comm *world;
    ls_comm *split; /* NULL: the world */
    int rank;       /* in the measured group */
    bench_memory memory;
    ls_queue *queue; /* in which operations follow one another; NULL: the host waits for each */
    void *first;
    void *second;
    void *mirror;       /* device memory: host memory of the size of a buffer */
    accel_event **ends; /* device memory with -I: of the warm-up, then of each iteration */
    int color;          /* of the measured group */
    bench_buffers at;   /* of the current row */
    int64_t *issue_ns;  /* &issued_ns with -C, else NULL */
    int64_t issued_ns;  /* time until the calls have returned, sum over one side */
    double *samples[2]; /* us per iteration, of each side; NULL: single ones are not timed */
    double *rows[2];    /* on rank 0 for the report: the samples of rank 0, rank 1, ... */
};

/* --- memory --- */

static ls_status split_world(bench *b)
{
    const char *split = getenv("NCCL_TESTS_SPLIT");     // NOLINT(concurrency-mt-unsafe)
    const char *mask = getenv("NCCL_TESTS_SPLIT_MASK"); // NOLINT(concurrency-mt-unsafe)
    const int rank = ls_comm_rank(b->world);

    if (split == NULL && mask == NULL)
        return LS_OK;
    LS_TRY(bench_split_color(split, mask, rank, &b->color));
    return ls_comm_split(b->world, b->color, rank, &b->split);
}

/* Allocates the samples of single operations, and of all ranks for the report. */
static ls_status take_samples(bench *b)
{
    const size_t n = (size_t)b->opt->iterations;
    const bool has_rows = b->opt->output_file != NULL && ls_comm_rank(b->world) == 0;

    for (int side = 0; side < 2; side++) {
        LS_TRY(LS_NEW(&b->samples[side], n, "for %zu samples", n));
        if (has_rows)
            LS_TRY(
                LS_NEW(&b->rows[side], n * (size_t)ls_comm_size(b->world), "for %zu samples", n));
    }
    return LS_OK;
}

static ls_status take_events(bench *b)
{
    const size_t n = (size_t)b->opt->iterations + 1;

    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    LS_TRY(LS_NEW(&b->ends, n, "for %zu events", n));
    for (size_t i = 0; i < n; i++)
        LS_TRY(accel_event_create(b->queue->accel, true, &b->ends[i]));
    return LS_OK;
}

static ls_status take_buffers(bench *b)
{
    const bench_options *opt = b->opt;
    const size_t bytes = bench_buffer_bytes(opt->max_bytes) + (size_t)opt->unalign * sizeof(double);

    b->memory.comm = bench_comm(b);
    LS_TRY(bench_memory_take(&b->memory, bytes, &b->first));
    LS_TRY(bench_memory_take(&b->memory, bytes, &b->second));
    if (opt->memory_report > 0) { // a page is resident after the first write
        LS_TRY(bench_memory_set(&b->memory, b->first, 0, bytes));
        LS_TRY(bench_memory_set(&b->memory, b->second, 0, bytes));
    }
    if (b->memory.queue == NULL)
        return LS_OK;
    b->mirror = accel_alloc_host(b->memory.queue->accel, bytes);
    return b->mirror != NULL ? LS_OK
                             : ls_fail(LS_ENOMEM, "no page-locked memory for %zu bytes", bytes);
}

static ls_status prepare(bench *b)
{
    const bench_options *opt = b->opt;
    size_t n;

    LS_TRY(split_world(b));
    b->rank = ls_comm_rank(bench_comm(b));
    n = (size_t)ls_comm_size(bench_comm(b));
    LS_TRY(take_buffers(b));
    LS_TRY(LS_NEW(&b->at.src_counts, 2 * n, "for the counts of %zu ranks", n));
    b->at.dst_counts = b->at.src_counts + n;
    if (b->queue != NULL && opt->intervals > 0)
        LS_TRY(take_events(b));
    return opt->touch || opt->intervals > 0 ? take_samples(b) : LS_OK;
}

ls_status bench_open(ls_comm *world, ls_queue *queue, const bench_options *opt, bench **out)
{
    bench *b;
    ls_status st;

    LS_TRY(LS_NEW(&b, 1, "to measure with"));
    b->opt = opt;
    b->world = world;
    b->memory =
        (bench_memory){.queue = queue, .is_registered = text_equal(opt->memory, "registered")};
    b->queue = opt->blocking == 0 ? queue : NULL;
    // a blocking call returns when the operation has ended
    b->issue_ns = opt->cpu_time > 0 && opt->blocking == 0 ? &b->issued_ns : NULL;
    st = prepare(b);
    if (st == LS_OK)
        *out = b;
    else
        bench_close(b);
    return st;
}

void bench_close(bench *b)
{
    if (b == NULL)
        return;
    bench_memory_give(&b->memory, b->first);
    bench_memory_give(&b->memory, b->second);
    if (b->memory.queue != NULL)
        accel_free_host(b->memory.queue->accel, b->mirror);
    for (int64_t i = 0; b->ends != NULL && i <= b->opt->iterations; i++)
        accel_event_destroy(b->ends[i]);
    ls_free(b->ends);
    ls_free(b->at.src_counts);
    for (int side = 0; side < 2; side++) {
        ls_free(b->samples[side]);
        ls_free(b->rows[side]);
    }
    ls_comm_destroy(b->split);
    ls_free(b);
}

ls_comm *bench_comm(const bench *b)
{
    return b->split != NULL ? b->split : b->world;
}

ls_comm *bench_world(const bench *b)
{
    return b->world;
}

int bench_color(const bench *b)
{
    return b->color;
}

const double *bench_samples(const bench *b, int side)
{
    return b->samples[side];
}

const double *bench_rank_samples(const bench *b, int side)
{
    return b->rows[side];
}

/* --- time --- */

static void produce(void *src, size_t bytes)
{
    static int value = 0x3c;

    value ^= 1;
    memset(src, value, bytes); // finite numbers in every type
}

static void consume(const void *dst, size_t bytes)
{
    const char *at = dst; // -u may unalign it
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes / sizeof(sum); i++) {
        uint64_t word;
        memcpy(&word, at + i * sizeof(word), sizeof(word));
        sum += word;
    }
    __asm__ volatile("" : : "r"(sum)); // keeps the reads
}

/* One iteration: -m operations, waited for by the mode of -z. Adds its time to *ns, if not NULL. */
static ls_status iterate(bench *b, const bench_case *c, int64_t *ns)
{
    const bench_options *o = b->opt;
    const bool each = o->blocking == 1 || o->blocking == 2;
    const int64_t start_ns = ns != NULL ? ls_now_ns() : 0;

    for (int64_t i = 0; i < (each ? o->aggregate : 1); i++) {
        LS_TRY(
            bench_call(bench_comm(b), c, &b->at, each ? 1 : o->aggregate, b->queue, b->issue_ns));
        if (o->blocking == 1)
            LS_TRY(ls_barrier(b->world, NULL));
    }
    if (ns != NULL)
        *ns += ls_now_ns() - start_ns;
    return o->blocking == 3 ? ls_barrier(b->world, NULL) : LS_OK;
}

/* Waits for the iterations in the queue, and gives their failure. */
static ls_status finish_queue(const bench *b)
{
    if (b->queue == NULL)
        return LS_OK;
    LS_TRY(accel_synchronize(b->queue->accel, "bench: end of the operations"));
    return ls_comm_status(bench_comm(b));
}

/* The time of one iteration on this rank. With --touch a barrier starts all ranks together, so the
 * time does not contain the touching of other ranks. */
static ls_status time_one(bench *b, const bench_case *c, double *us)
{
    const size_t size = ls_dtype_size(c->type);
    int64_t ns = 0;

    if (b->opt->touch) {
        produce(b->at.src, bench_src_count(c, b->rank) * size);
        LS_TRY(ls_barrier(bench_comm(b), NULL));
    }
    LS_TRY(iterate(b, c, &ns));
    *us = (double)ns * 1e-3 / (double)b->opt->aggregate;
    if (b->opt->touch)
        consume(b->at.dst, bench_dst_count(c, b->rank) * size);
    return LS_OK;
}

/* The times between the ends of iterations that follow one another in the queue. */
static ls_status time_queued(bench *b, const bench_case *c, double *samples)
{
    const int64_t n = b->opt->iterations;
    int64_t before_ns;
    int64_t end_ns;

    LS_TRY(accel_event_record(b->ends[0], b->queue));
    for (int64_t i = 0; i < n; i++) {
        LS_TRY(iterate(b, c, NULL));
        LS_TRY(accel_event_record(b->ends[i + 1], b->queue));
    }
    LS_TRY(finish_queue(b));
    LS_TRY(accel_event_ns(b->ends[0], &before_ns));
    for (int64_t i = 0; i < n; i++) {
        LS_TRY(accel_event_ns(b->ends[i + 1], &end_ns));
        samples[i] = (double)(end_ns - before_ns) * 1e-3 / (double)b->opt->aggregate;
        before_ns = end_ns;
    }
    return LS_OK;
}

/* Combines the measurements of all ranks by -a. */
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

/* Nearest-rank percentile: the smallest sample that `percent` of the samples do not exceed. */
static double percentile(const double *sorted, size_t n, size_t percent)
{
    return sorted[(n * percent + 99) / 100 - 1];
}

static double mean_of(const double *values, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

static ls_status describe_samples(const double *samples, size_t n, bench_stats *out)
{
    double *sorted;
    double squares = 0;

    LS_TRY(LS_NEW(&sorted, n, "for %zu samples", n));
    memcpy(sorted, samples, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), ascending);
    out->mean_us = mean_of(sorted, n);
    for (size_t i = 0; i < n; i++)
        squares += (sorted[i] - out->mean_us) * (sorted[i] - out->mean_us);
    out->min_us = sorted[0];
    out->max_us = sorted[n - 1];
    out->p50_us = sorted[n / 2];
    out->p95_us = percentile(sorted, n, 95);
    out->p99_us = percentile(sorted, n, 99);
    out->deviation_us = sqrt(squares / (double)n);
    ls_free(sorted);
    return LS_OK;
}

/* The time is combined by -a; of each single operation the maximum of all ranks counts. */
static ls_status time_each(bench *b, const bench_case *c, int side, bench_time *out)
{
    const size_t n = (size_t)b->opt->iterations;
    const size_t skipped = (size_t)b->opt->skip;
    double *samples = b->samples[side];

    if (b->ends != NULL)
        LS_TRY(time_queued(b, c, samples));
    for (size_t i = 0; b->ends == NULL && i < n; i++)
        LS_TRY(time_one(b, c, &samples[i]));
    out->time_us = mean_of(samples, n);
    if (b->opt->output_file != NULL)
        LS_TRY(ls_gather(b->world, samples, b->rows[side], n, LS_F64, 0, NULL));
    LS_TRY(ls_all_reduce(b->world, samples, samples, n, LS_F64, LS_MAX, NULL));
    return describe_samples(samples + skipped, n - skipped, &out->single);
}

static ls_status time_all(bench *b, const bench_case *c, bench_time *out)
{
    const bench_options *o = b->opt;
    const int64_t start_ns = ls_now_ns();
    int64_t ns = 0;

    for (int64_t i = 0; i < o->iterations; i++)
        LS_TRY(iterate(b, c, o->blocking == 3 ? &ns : NULL));
    LS_TRY(finish_queue(b));
    if (o->blocking != 3)
        ns = ls_now_ns() - start_ns;
    out->time_us = (double)ns * 1e-3 / (double)o->iterations / (double)o->aggregate;
    return LS_OK;
}

static ls_status time_side(bench *b, const bench_case *c, int side, bench_time *out)
{
    const bench_options *o = b->opt;
    double times[2];

    b->issued_ns = 0;
    LS_TRY(b->samples[side] != NULL ? time_each(b, c, side, out) : time_all(b, c, out));
    times[0] = out->time_us;
    times[1] = b->issue_ns == NULL
                   ? out->time_us
                   : (double)b->issued_ns * 1e-3 / (double)o->iterations / (double)o->aggregate;
    LS_TRY(combine(b, times, 2));
    out->time_us = times[0];
    out->cpu_us = times[1];
    return LS_OK;
}

static ls_status warm_up(bench *b, const bench_case *c)
{
    for (int64_t i = 0; i < b->opt->warmup; i++)
        LS_TRY(iterate(b, c, NULL));
    LS_TRY(finish_queue(b));
    return ls_barrier(b->world, NULL);
}

/* --- rows --- */

static ls_status fill_source(const bench *b, const bench_case *c)
{
    bench_fill(c, b->rank, b->mirror != NULL ? b->mirror : b->at.src);
    return b->mirror == NULL
               ? LS_OK
               : bench_memory_copy(&b->memory, b->at.src, b->mirror,
                                   bench_src_count(c, b->rank) * ls_dtype_size(c->type), false);
}

static ls_status check_result(bench *b, const bench_case *c, int64_t *wrong)
{
    const size_t got = bench_dst_count(c, b->rank) * ls_dtype_size(c->type);

    // detects elements that are not written
    LS_TRY(bench_memory_set(&b->memory, b->at.dst, 0xee, got));
    LS_TRY(fill_source(b, c));
    LS_TRY(bench_call(bench_comm(b), c, &b->at, 1, NULL, NULL));
    if (b->mirror != NULL)
        LS_TRY(bench_memory_copy(&b->memory, b->mirror, b->at.dst, got, true));
    *wrong = bench_count_wrong(c, b->rank, b->mirror != NULL ? b->mirror : b->at.dst);
    return ls_all_reduce(b->world, wrong, wrong, 1, LS_I64, LS_SUM, NULL);
}

static void place(bench *b, const bench_case *c, bool in_place)
{
    const size_t offset = (size_t)b->opt->unalign * ls_dtype_size(c->type);

    bench_place(c, b->rank, in_place, (char *)b->first + offset, (char *)b->second + offset,
                &b->at.src, &b->at.dst);
    if (c->kind == BENCH_ALL_TO_ALL_V)
        for (int r = 0; r < c->n; r++)
            b->at.src_counts[r] = b->at.dst_counts[r] = bench_pair_count(c, b->rank, r);
}

static ls_status measure_side(bench *b, const bench_case *c, bool in_place, bool check,
                              bench_time *out)
{
    place(b, c, in_place);
    LS_TRY(fill_source(b, c));
    LS_TRY(warm_up(b, c));
    LS_TRY(time_side(b, c, in_place, out));
    out->wrong = check && b->opt->check > 0 ? 0 : -1;
    for (int64_t i = 0; i < b->opt->check && out->wrong == 0; i++)
        LS_TRY(check_result(b, c, &out->wrong));
    return LS_OK;
}

ls_status bench_measure(bench *b, const bench_case *c, bool check, bench_result *out)
{
    *out = (bench_result){{{0}}};
    for (int in_place = 0; in_place < 2; in_place++)
        if (!in_place || bench_has_in_place(c->kind))
            LS_TRY(measure_side(b, c, in_place, check, &out->side[in_place]));
    return LS_OK;
}
