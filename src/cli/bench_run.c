/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_run.c - the loop of nccl-tests: for each size, warm up, time n operations back to back, check one of them.
 *
 * time is the mean over ranks of the mean over iterations; algbw = size / time; busbw = algbw * 2(n-1)/n, the traffic that every
 * rank's link must carry whatever the algorithm (nccl-tests, doc/PERFORMANCE.md).
 */
#include "cli/bench.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"

#include <math.h>
#include <string.h>

typedef struct measurement {
    double time_us;
    double algbw_gbs;
    double busbw_gbs;
    int64_t wrong;
} measurement;

typedef struct bench {
    ls_comm *comm;
    const bench_options *opt;
    int rank;
    int size;
    bool registered;
    void *src;
    void *dst;
    text_buf json;
    json_writer writer;
    double busbw_sum;
    int64_t n_measured;
    int64_t wrong;
} bench;

/* --- memory --- */

static ls_status take_buffer(const bench *b, size_t bytes, void **out)
{
    if (b->registered)
        return ls_comm_alloc(b->comm, bytes, out);
    *out = ls_alloc_aligned(4096, bytes);
    return *out != NULL ? LS_OK : ls_fail(LS_ENOMEM, "no memory for %zu bytes", bytes);
}

static void give_buffer(const bench *b, void *buffer)
{
    if (b->registered)
        ls_comm_free(b->comm, buffer);
    else
        ls_free(buffer);
}

/* --- one measurement --- */

static ls_status check_result(bench *b, size_t count, ls_dtype type, ls_reduce_op op, void *dst,
                              int64_t *wrong)
{
    bench_fill(b->src, count, type, op, b->rank);
    if (dst != b->src)
        memset(dst, 0xee, count * ls_dtype_size(type)); /* what is not written must be seen */
    LS_TRY(ls_all_reduce(b->comm, b->src, dst, count, type, op, NULL));
    *wrong = bench_count_wrong(dst, count, type, op, b->size);
    return ls_all_reduce(b->comm, wrong, wrong, 1, LS_I64, LS_SUM, NULL);
}

static ls_status time_loop(bench *b, int64_t iterations, size_t count, ls_dtype type,
                           ls_reduce_op op, void *dst, double *mean_us)
{
    int64_t start_ns;

    LS_TRY(ls_barrier(b->comm, NULL));
    start_ns = ls_now_ns();
    for (int64_t i = 0; i < iterations; i++)
        LS_TRY(ls_all_reduce(b->comm, b->src, dst, count, type, op, NULL));
    *mean_us = (double)(ls_now_ns() - start_ns) * 1e-3 / (double)iterations;
    return ls_all_reduce(b->comm, mean_us, mean_us, 1, LS_F64, LS_AVG, NULL);
}

static ls_status measure(bench *b, size_t count, ls_dtype type, ls_reduce_op op, bool in_place,
                         measurement *m)
{
    const double bytes = (double)(count * ls_dtype_size(type));
    void *dst = in_place ? b->src : b->dst;
    double ignored;

    *m = (measurement){.wrong = -1};
    bench_fill(b->src, count, type, op, b->rank);
    if (b->opt->warmup > 0)
        LS_TRY(time_loop(b, b->opt->warmup, count, type, op, dst, &ignored));
    LS_TRY(time_loop(b, b->opt->iterations, count, type, op, dst, &m->time_us));
    if (b->opt->check > 0)
        LS_TRY(check_result(b, count, type, op, dst, &m->wrong));
    m->algbw_gbs = bytes / m->time_us * 1e-3;
    m->busbw_gbs = m->algbw_gbs * 2.0 * (b->size - 1) / b->size;
    b->busbw_sum += m->busbw_gbs;
    b->n_measured++;
    b->wrong += m->wrong > 0 ? m->wrong : 0;
    return LS_OK;
}

/* --- printing, on rank 0 --- */

static void print_header(const bench *b)
{
    if (b->rank != 0)
        return;
    print_out("# lockstep %s all_reduce, %d ranks, backend %s, transport %s, memory %s\n#\n",
              ls_version(), b->size, ls_comm_backend(b->comm), ls_comm_transport(b->comm),
              b->opt->memory);
    print_out("# %11s %13s %9s %7s %7s  %33s %34s\n", "", "", "", "", "", "out-of-place",
              "in-place");
    print_out("# %11s %13s %9s %7s %7s %8s %7s %7s %6s %8s %7s %7s %6s\n", "size", "count", "type",
              "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
              "#wrong");
    print_out("# %11s %13s %9s %7s %7s %8s %7s %7s %6s %8s %7s %7s\n", "(B)", "(elements)", "", "",
              "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

static void append_measurement(text_buf *line, const measurement *m)
{
    text_append(line, " %8.*f %7.2f %7.2f", m->time_us < 10 ? 2 : 1, m->time_us, m->algbw_gbs,
                m->busbw_gbs);
    if (m->wrong >= 0)
        text_append(line, " %6lld", (long long)m->wrong);
    else
        text_append(line, " %6s", "N/A");
}

static void add_json(bench *b, size_t count, ls_dtype type, ls_reduce_op op, bool in_place,
                     const measurement *m)
{
    json_writer *w = &b->writer;

    json_open(w, NULL, '{');
    json_put_string(w, "op", "all_reduce");
    json_put_int(w, "size", (int64_t)(count * ls_dtype_size(type)));
    json_put_int(w, "count", (int64_t)count);
    json_put_string(w, "type", bench_type_name(type));
    json_put_string(w, "redop", bench_redop_name(op));
    json_put_bool(w, "in_place", in_place);
    json_put_string(w, "backend", ls_comm_backend(b->comm));
    json_put_string(w, "transport", ls_comm_transport(b->comm));
    json_put_string(w, "memory", b->opt->memory);
    json_put_real(w, "time_us", m->time_us);
    json_put_real(w, "algbw_gbs", m->algbw_gbs);
    json_put_real(w, "busbw_gbs", m->busbw_gbs);
    if (b->opt->check > 0)
        json_put_int(w, "wrong", m->wrong);
    else
        json_put_real(w, "wrong", (double)NAN); /* null: nobody has looked */
    json_close(w, '}');
}

static ls_status run_row(bench *b, size_t count, ls_dtype type, ls_reduce_op op)
{
    measurement apart;
    measurement in_place;
    text_buf line = {0};

    LS_TRY(measure(b, count, type, op, false, &apart));
    LS_TRY(measure(b, count, type, op, true, &in_place));
    if (b->rank != 0)
        return LS_OK;
    text_append(&line, "  %11zu %13zu %9s %7s %7d", count * ls_dtype_size(type), count,
                bench_type_name(type), bench_redop_name(op), -1);
    append_measurement(&line, &apart);
    append_measurement(&line, &in_place);
    print_out("%s\n", text_str(&line));
    text_free(&line);
    add_json(b, count, type, op, false, &apart);
    add_json(b, count, type, op, true, &in_place);
    return LS_OK;
}

/* The size after `bytes`, -1 behind the last. No factor leads away from 0. */
static int64_t next_size(const bench_options *o, int64_t bytes)
{
    const bool by_factor = o->factor > 1;

    if (by_factor ? bytes == 0 || bytes > o->max_bytes / o->factor
                  : bytes > o->max_bytes - o->step_bytes)
        return -1;
    return by_factor ? bytes * o->factor : bytes + o->step_bytes;
}

static ls_status run_sizes(bench *b, ls_dtype type, ls_reduce_op op)
{
    for (int64_t bytes = b->opt->min_bytes; bytes >= 0; bytes = next_size(b->opt, bytes))
        LS_TRY(run_row(b, (size_t)bytes / ls_dtype_size(type), type, op));
    return LS_OK;
}

static bool is_wanted(const bench *b, int type, int op)
{
    return (text_equal(b->opt->type, "all") || bench_type(b->opt->type) == type) &&
           (text_equal(b->opt->redop, "all") || bench_redop(b->opt->redop) == op) &&
           bench_is_defined((ls_dtype)type, (ls_reduce_op)op);
}

static ls_status run_all(bench *b)
{
    for (int type = 0; type < LS_DTYPE_COUNT; type++)
        for (int op = 0; op < LS_REDUCE_OP_COUNT; op++)
            if (is_wanted(b, type, op))
                LS_TRY(run_sizes(b, (ls_dtype)type, (ls_reduce_op)op));
    return LS_OK;
}

/* The array of objects, whole or not at all. */
static ls_status write_json(bench *b)
{
    file_atomic file;
    ls_status st;

    LS_TRY(text_status(&b->json));
    LS_TRY(file_atomic_begin(&file, b->opt->json));
    st = file_write_all(file.fd, b->opt->json, text_str(&b->json), b->json.length);
    if (st == LS_OK)
        st = file_atomic_commit(&file);
    file_atomic_cancel(&file);
    return st;
}

static ls_status finish(bench *b)
{
    if (b->rank != 0)
        return LS_OK;
    json_close(&b->writer, ']');
    text_append(&b->json, "\n");
    print_out("# Out of bounds values : %lld %s\n", (long long)b->wrong,
              b->wrong == 0 ? "OK" : "FAILED");
    print_out("# Avg bus bandwidth    : %g\n",
              b->n_measured > 0 ? b->busbw_sum / (double)b->n_measured : 0.0);
    return b->opt->json != NULL ? write_json(b) : LS_OK;
}

ls_status bench_all_reduce(ls_comm *comm, const bench_options *opt)
{
    bench b = {.comm = comm,
               .opt = opt,
               .rank = ls_comm_rank(comm),
               .size = ls_comm_size(comm),
               .registered = text_equal(opt->memory, "registered")};
    const size_t bytes = opt->max_bytes > 0 ? (size_t)opt->max_bytes : 1;
    ls_status st;

    json_begin(&b.writer, &b.json);
    json_open(&b.writer, NULL, '[');
    st = take_buffer(&b, bytes, &b.src);
    if (st == LS_OK)
        st = take_buffer(&b, bytes, &b.dst);
    if (st == LS_OK) {
        print_header(&b);
        st = run_all(&b);
    }
    if (st == LS_OK)
        st = finish(&b);
    if (st == LS_OK && b.wrong > 0)
        st = ls_fail(LS_EINTERNAL, "%lld elements are wrong", (long long)b.wrong);
    give_buffer(&b, b.src);
    give_buffer(&b, b.dst);
    text_free(&b.json);
    return st;
}
