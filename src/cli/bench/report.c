/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the JSON report of nccl-tests' --output_file, with its keys in its order, for programs
 * that read such reports. The file is created under a free name when the run begins, and written
 * when the run ends.
 */
#include "cli/bench/bench.h"
#include "cli/cli.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { REPORT_VERSION = 3, NAMES_MOST = 10000, HOST_BYTES = 64 };

struct bench_report {
    const bench_options *opt;
    char path[4096];
    bool is_written;
    text_buf text;
    json_writer writer;
};

/* Sent by each rank. */
typedef struct rank_facts {
    int32_t pid;
    int32_t color;
    int32_t local_rank;
    char host[HOST_BYTES];
} rank_facts;

/* --- values in the format of nccl-tests --- */

const char *bench_time_text(char buf[BENCH_TIME_BYTES])
{
    const time_t now = time(NULL);
    struct tm parts;

    if (localtime_r(&now, &parts) == NULL || strftime(buf, BENCH_TIME_BYTES, "%F %T", &parts) == 0)
        buf[0] = '\0';
    return buf;
}

static void put_time(json_writer *w, const char *key)
{
    char text[BENCH_TIME_BYTES];

    json_put_string(w, key, bench_time_text(text));
}

static void put_truth(json_writer *w, const char *key, bool value)
{
    json_put_string(w, key, value ? "true" : "false");
}

static void put_null(json_writer *w, const char *key)
{
    json_put_real(w, key, (double)NAN);
}

/* --- the file --- */

static ls_status make_file(bench_report *r)
{
    const char *name = r->opt->output_file;

    text_format(r->path, sizeof(r->path), "%s", name);
    for (int i = 0; i < NAMES_MOST; i++) {
        int fd = open(r->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

        if (fd >= 0) {
            file_close(&fd);
            return LS_OK;
        }
        if (errno != EEXIST)
            return ls_fail_errno("%s", r->path);
        text_format(r->path, sizeof(r->path), "%s.%d", name, i);
    }
    return ls_fail(LS_EIO, "-J %s: %d files with this name exist: remove some", name, NAMES_MOST);
}

static ls_status write_file(bench_report *r)
{
    LS_TRY(text_status(&r->text));
    LS_TRY(file_replace(r->path, text_str(&r->text), r->text.length));
    r->is_written = true;
    return LS_OK;
}

/* --- options and ranks --- */

static void put_start(json_writer *w, const bench_options *o)
{
    json_put_int(w, "version", REPORT_VERSION);
    put_time(w, "start_time");
    json_open(w, "args", '[');
    for (int i = 0; i < o->argc; i++)
        json_put_string(w, NULL, o->argv[i]);
    json_close(w, ']');
    json_open(w, "env", '['); // not written: it may hold secrets
    json_close(w, ']');
    put_null(w, "nccl_version");
    json_put_string(w, "lockstep_version", ls_version());
}

static void put_options(json_writer *w, const bench_options *o)
{
    json_put_int(w, "nthreads", o->threads);
    json_put_int(w, "ngpus", o->ranks);
    json_put_int(w, "minimum_bytes", o->min_bytes);
    json_put_int(w, "maximum_bytes", o->max_bytes);
    if (o->factor > 1)
        json_put_int(w, "step_factor", o->factor);
    else
        json_put_int(w, "step_bytes", o->step_bytes);
    json_put_int(w, "warmup_iters", o->warmup);
    json_put_int(w, "iterations", o->iterations);
    json_put_int(w, "aggregated_iterations", o->aggregate);
    json_put_int(w, "validation", o->check);
    json_put_int(w, "graph", 0);
    put_truth(w, "blocking_collectives", o->blocking > 0);
    put_truth(w, "per_iter_timing", o->intervals > 0);
    json_put_int(w, "per_iter_skip", o->skip);
    put_truth(w, "parallel_init", true);
}

static void put_ranks(json_writer *w, const char *device, const rank_facts *ranks, int n)
{
    json_open(w, "devices", '[');
    for (int r = 0; r < n; r++) {
        json_open(w, NULL, '{');
        json_put_int(w, "rank", r);
        json_put_int(w, "group", ranks[r].color);
        json_put_int(w, "pid", ranks[r].pid);
        json_put_string(w, "hostname", ranks[r].host);
        json_put_int(w, "device", ranks[r].local_rank);
        json_put_string(w, "device_hex", "");
        json_put_string(w, "device_info", device != NULL ? device : "CPU");
        json_close(w, '}');
    }
    json_close(w, ']');
}

static ls_status begin(const bench_options *opt, const rank_facts *ranks, int n, bench_report **out)
{
    bench_report *r;
    json_writer *w;
    ls_status st;

    LS_TRY(LS_NEW(&r, 1, "for the report"));
    r->opt = opt;
    st = make_file(r);
    if (st != LS_OK) {
        ls_free(r);
        return st;
    }
    print_out("# Writing JSON output to %s\n", r->path);
    w = &r->writer;
    json_begin(w, &r->text);
    json_open(w, NULL, '{');
    put_start(w, opt);
    json_open(w, "config", '{');
    put_options(w, opt);
    put_ranks(w, opt->device, ranks, n);
    json_close(w, '}');
    json_open(w, "results", '[');
    *out = r;
    return LS_OK;
}

ls_status bench_report_open(ls_comm *world, int color, const bench_options *opt, bench_report **out,
                            bool *can_go_on)
{
    const int n = ls_comm_size(world);
    const bool is_writer = ls_comm_rank(world) == 0;
    rank_facts own;
    rank_facts *all = NULL;
    int32_t status;
    ls_status st;

    *out = NULL;
    *can_go_on = true;
    if (opt->output_file == NULL)
        return LS_OK;
    memset(&own, 0, sizeof(own));
    own.pid = getpid();
    own.color = color;
    own.local_rank = ls_comm_local_rank(world);
    (void)gethostname(own.host, HOST_BYTES - 1);
    if (is_writer)
        LS_TRY(LS_NEW(&all, (size_t)n, "for %d ranks", n));
    st = ls_gather(world, &own, all, sizeof(own), LS_U8, 0, NULL);
    if (st == LS_OK) {
        const ls_status begun = is_writer ? begin(opt, all, n, out) : LS_OK;

        status = begun;
        st = ls_broadcast(world, &status, &status, 1, LS_I32, 0, NULL);
        *can_go_on = status == LS_OK;
        st = begun != LS_OK ? begun : st;
    }
    ls_free(all);
    return st;
}

/* --- rows --- */

static void put_side(const bench_report *r, json_writer *w, const char *key, const bench_case *c,
                     const bench_time *t)
{
    if (t->time_us <= 0) {
        put_null(w, key);
        return;
    }
    json_open(w, key, '{');
    if (r->opt->cpu_time > 0)
        json_put_real(w, "cpu_time", t->cpu_us);
    else
        json_put_real(w, "time", t->time_us);
    json_put_real(w, "alg_bw", bench_algbw(c, t));
    json_put_real(w, "bus_bw", bench_busbw(c, t));
    if (t->wrong >= 0)
        json_put_int(w, "nwrong", t->wrong);
    else
        put_null(w, "nwrong");
    json_close(w, '}');
}

static void put_samples(json_writer *w, const char *key, const double *samples, int64_t n)
{
    json_open(w, key, '[');
    for (int64_t i = 0; i < n; i++)
        json_put_real(w, NULL, samples[i]);
    json_close(w, ']');
}

static void put_single(const bench_report *r, json_writer *w, const char *key, const bench *b,
                       int side, const bench_stats *s)
{
    const int64_t n = r->opt->iterations;
    const int n_ranks = ls_comm_size(bench_world(b));

    json_open(w, key, '{');
    json_put_int(w, "skipped_iterations", r->opt->skip);
    json_put_real(w, "min_us", s->min_us);
    json_put_real(w, "max_us", s->max_us);
    json_put_real(w, "avg_us", s->mean_us);
    json_put_real(w, "p50_us", s->p50_us);
    json_put_real(w, "p95_us", s->p95_us);
    json_put_real(w, "p99_us", s->p99_us);
    json_put_real(w, "stdev_us", s->deviation_us);
    json_put_real(w, "cv_pct", bench_variation(s));
    put_samples(w, "times_us", bench_samples(b, side), n);
    if (n_ranks > 1) {
        json_open(w, "per_process_max_times_us", '[');
        for (int rank = 0; rank < n_ranks; rank++)
            put_samples(w, NULL, bench_rank_samples(b, side) + rank * n, n);
        json_close(w, ']');
    }
    json_close(w, '}');
}

void bench_report_row(bench_report *r, const bench *b, const bench_case *c,
                      const bench_result *result)
{
    static const char *const sides[] = {"out_of_place", "in_place"};
    static const char *const singles[] = {"out_of_place_per_iter", "in_place_per_iter"};
    json_writer *w = &r->writer;
    char root[16];

    text_format(root, sizeof(root), "%6d", c->root);
    json_open(w, NULL, '{');
    json_put_int(w, "size", (int64_t)bench_size(c));
    json_put_int(w, "count", (int64_t)c->count);
    json_put_string(w, "type", bench_type_name(c->type));
    json_put_string(w, "redop", bench_redop_text(c));
    json_put_string(w, "root", root);
    for (int side = 0; side < 2; side++) {
        const bench_time *t = &result->side[side];

        put_side(r, w, sides[side], c, t);
        if (r->opt->intervals > 0 && t->time_us > 0)
            put_single(r, w, singles[side], b, side, &t->single);
    }
    json_put_int(w, "actual_iterations", r->opt->iterations);
    json_put_string(w, "experiment_name", "");
    json_close(w, '}');
}

/* --- the end --- */

ls_status bench_report_end(bench_report *r, int64_t wrong, double busbw, double min_bandwidth)
{
    json_writer *w = &r->writer;

    json_close(w, ']');
    json_open(w, "out_of_bounds", '{');
    json_put_int(w, "count", wrong);
    put_truth(w, "okay", wrong == 0);
    json_close(w, '}');
    json_open(w, "average_bus_bandwidth", '{');
    json_put_real(w, "bandwidth", busbw);
    if (min_bandwidth < 0)
        json_put_string(w, "okay", "unchecked");
    else
        put_truth(w, "okay", busbw >= 0.9 * min_bandwidth);
    json_close(w, '}');
    json_open(w, "errors", '[');
    json_close(w, ']');
    put_time(w, "end_time");
    json_close(w, '}');
    text_append(&r->text, "\n");
    return write_file(r);
}

void bench_report_close(bench_report *r)
{
    if (r == NULL)
        return;
    if (!r->is_written)
        (void)unlink(r->path);
    text_free(&r->text);
    ls_free(r);
}
