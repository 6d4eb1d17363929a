/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - prints the rows in the format of nccl-tests, and writes them as an array of JSON
 * objects.
 *
 * time is the time of one operation, algbw = bytes / time, busbw = algbw times the share of the
 * bytes that the link of every rank must carry with any algorithm (nccl-tests, doc/PERFORMANCE.md).
 */
#include "cli/bench/bench.h"

#include "base/file.h"
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>

double bench_algbw(const bench_case *c, const bench_time *t)
{
    return bench_traffic(c) / t->time_us * 1e-3;
}

double bench_busbw(const bench_case *c, const bench_time *t)
{
    return bench_algbw(c, t) * bench_bus_factor(c->kind, c->n);
}

double bench_variation(const bench_stats *s)
{
    return s->mean_us > 0 ? 100 * s->deviation_us / s->mean_us : 0;
}

/* --- header --- */

static void append_columns(text_buf *line, const bench_table *t, const char *const names[5],
                           const char *const intervals[4])
{
    text_append(line, " %8s %7s %7s %6s", names[0], names[1], names[2], names[3]);
    if (t->opt->intervals > 0)
        text_append(line, " %8s %8s %8s %7s", intervals[0], intervals[1], intervals[2],
                    intervals[3]);
}

static void print_columns(const bench_table *t, const char *const first[5],
                          const char *const names[5], const char *const intervals[4])
{
    text_buf line = {0};

    text_append(&line, "# %11s %13s %9s %7s %7s", first[0], first[1], first[2], first[3], first[4]);
    append_columns(&line, t, names, intervals);
    append_columns(&line, t, names, intervals);
    print_out("%s\n", text_str(&line));
    text_free(&line);
}

static void print_own_header(const bench_table *t)
{
    static const char *const first[] = {"size", "count", "type", "redop", "root"};
    static const char *const units[] = {"(B)", "(elements)", "", "", ""};
    const char *const names[] = {t->opt->cpu_time > 0 ? "cputime" : "time", "algbw", "busbw",
                                 "#wrong", ""};
    static const char *const name_units[] = {"(us)", "(GB/s)", "(GB/s)", "", ""};
    static const char *const intervals[] = {"i_min", "i_max", "i_p99", "i_cv%"};
    static const char *const interval_units[] = {"(us)", "(us)", "(us)", ""};
    const int width = t->opt->intervals > 0 ? 66 : 31;

    print_out("# %11s %13s %9s %7s %7s  %*s  %*s\n", "", "", "", "", "", width, "out-of-place",
              width, "in-place");
    print_columns(t, first, names, intervals);
    print_columns(t, units, name_units, interval_units);
}

static void print_vs_header(const bench_table *t)
{
    print_out("# time of %s (ours) and of ", t->backend);
    for (int i = 0; i < t->n_peers; i++)
        print_out("%s%s", i > 0 ? ", " : "", t->peers[i].backend);
    print_out(
        " (theirs%s), medians of %lld turn%s each; ratio: median of theirs / ours per turn\n#\n",
        t->n_peers > 1 ? ", one line each" : "", (long long)t->opt->cycles,
        text_plural(t->opt->cycles));
    print_out("# %11s %13s %9s %7s %7s  %38s  %38s\n", "", "", "", "", "", "out-of-place",
              "in-place");
    print_out("# %11s %13s %9s %7s %7s", "size", "count", "type", "redop", "root");
    for (int side = 0; side < 2; side++)
        print_out(" %9s %9s %6s %5s %6s", "ours", "theirs", "ratio", "+-%", "#wrong");
    print_out("\n# %11s %13s %9s %7s %7s", "(B)", "(elements)", "", "", "");
    for (int side = 0; side < 2; side++)
        print_out(" %9s %9s %6s %5s %6s", "(us)", "(us)", "", "", "");
    print_out("\n");
}

void bench_table_begin(bench_table *t, int n_ranks)
{
    static const char *const blocking[] = {
        "", "# -z 1: wait and barrier after each operation; the time includes the barrier\n",
        "# -z 2: wait after each operation\n",
        "# -z 3: wait and barrier after each iteration; the time excludes the barrier\n"};

    print_out("# lockstep %s %s, %d rank%s, backend %s, transport %s, memory %s%s%s%s\n",
              ls_version(), bench_kind_name(t->opt->kind), n_ranks, text_plural(n_ranks),
              t->backend, t->transport, t->opt->memory, t->opt->touch ? ", touched" : "",
              t->opt->device != NULL ? ", device " : "",
              t->opt->device != NULL ? t->opt->device : "");
    print_out("%s%s", blocking[t->opt->blocking], t->opt->notes);
    if (t->n_peers > 0) {
        print_vs_header(t);
    } else {
        print_out("#\n");
        print_own_header(t);
    }
    json_begin(&t->writer, &t->json);
    json_open(&t->writer, NULL, '[');
}

/* --- rows --- */

const char *bench_redop_text(const bench_case *c)
{
    return bench_reduces(c->kind) ? bench_redop_name(c->redop) : "none";
}

static void append_case(text_buf *line, const bench_case *c)
{
    text_append(line, "  %11zu %13zu %9s %7s %7d", bench_size(c), c->count,
                bench_type_name(c->type), bench_redop_text(c), c->root);
}

static void append_wrong(text_buf *line, int64_t wrong)
{
    if (wrong >= 0)
        text_append(line, " %6lld", (long long)wrong);
    else
        text_append(line, " %6s", "N/A");
}

static void append_time(text_buf *line, const bench_table *t, const bench_case *c,
                        const bench_time *m)
{
    const double us = t->opt->cpu_time > 0 ? m->cpu_us : m->time_us;

    if (m->time_us <= 0) { // the operation has no such side
        text_append(line, " %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        if (t->opt->intervals > 0)
            text_append(line, " %8s %8s %8s %7s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    text_append(line, " %8.*f %7.2f %7.2f", us < 10 ? 2 : 1, us, bench_algbw(c, m),
                bench_busbw(c, m));
    append_wrong(line, m->wrong);
    if (t->opt->intervals > 0)
        text_append(line, " %8.2f %8.2f %8.2f %7.1f", m->single.min_us, m->single.max_us,
                    m->single.p99_us, bench_variation(&m->single));
}

/* peer: the peer that was measured, NULL: our backend. */
static void add_json(bench_table *t, const bench_case *c, bool in_place, const bench_time *m,
                     const bench_peer *peer)
{
    json_writer *w = &t->writer;

    json_open(w, NULL, '{');
    json_put_string(w, "op", bench_kind_name(c->kind));
    json_put_int(w, "size", (int64_t)bench_size(c));
    json_put_int(w, "count", (int64_t)c->count);
    json_put_string(w, "type", bench_type_name(c->type));
    json_put_string(w, "redop", bench_redop_text(c));
    json_put_int(w, "root", c->root);
    json_put_int(w, "ranks", c->n);
    json_put_bool(w, "in_place", in_place);
    json_put_string(w, "backend", peer != NULL ? peer->backend : t->backend);
    json_put_string(w, "transport", peer != NULL ? peer->transport : t->transport);
    json_put_string(w, "memory", t->opt->memory);
    json_put_string(w, "device", t->opt->device != NULL ? t->opt->device : "cpu");
    json_put_real(w, "time_us", m->time_us);
    if (t->opt->cpu_time > 0)
        json_put_real(w, "cpu_time_us", m->cpu_us);
    json_put_real(w, "algbw_gbs", bench_algbw(c, m));
    json_put_real(w, "busbw_gbs", bench_busbw(c, m));
    if (m->wrong >= 0)
        json_put_int(w, "wrong", m->wrong);
    else
        json_put_real(w, "wrong", (double)NAN); // null: not checked
    if (peer != NULL)
        json_put_real(w, "ratio", peer->ratio[in_place]);
    json_close(w, '}');
}

static void count_in(bench_table *t, const bench_case *c, const bench_time *m)
{
    t->busbw_sum += bench_busbw(c, m);
    t->n_measured++;
    t->wrong += m->wrong > 0 ? m->wrong : 0;
}

void bench_table_row(bench_table *t, const bench_case *c, const bench_result *r)
{
    char now[BENCH_TIME_BYTES];
    text_buf line = {0};

    append_case(&line, c);
    for (int side = 0; side < 2; side++) {
        append_time(&line, t, c, &r->side[side]);
        if (r->side[side].time_us <= 0)
            continue;
        count_in(t, c, &r->side[side]);
        add_json(t, c, side == 1, &r->side[side], NULL);
    }
    if (t->opt->timestamps > 0)
        text_append(&line, "  %s", bench_time_text(now));
    print_out("%s\n", text_str(&line));
    text_free(&line);
    if (t->report != NULL)
        bench_report_row(t->report, t->bench, c, r);
}

static int64_t wrong_of_both(const bench_time *a, const bench_time *b)
{
    return a->wrong < 0 || b->wrong < 0 ? -1 : a->wrong + b->wrong;
}

static void append_versus(text_buf *line, const bench_time *ours, const bench_peer *peer, int side)
{
    const bench_time *theirs = &peer->result.side[side];

    if (ours->time_us <= 0) {
        text_append(line, " %9s %9s %6s %5s %6s", "N/A", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    text_append(line, " %9.2f %9.2f %6.2f %5.0f", ours->time_us, theirs->time_us, peer->ratio[side],
                peer->spread[side]);
    append_wrong(line, wrong_of_both(ours, theirs));
}

void bench_table_vs_row(bench_table *t, const bench_case *c, const bench_result *ours)
{
    for (int side = 0; side < 2; side++) {
        if (ours->side[side].time_us <= 0)
            continue;
        count_in(t, c, &ours->side[side]);
        add_json(t, c, side == 1, &ours->side[side], NULL);
        for (int i = 0; i < t->n_peers; i++) {
            const bench_time *theirs = &t->peers[i].result.side[side];

            t->wrong += theirs->wrong > 0 ? theirs->wrong : 0;
            add_json(t, c, side == 1, theirs, &t->peers[i]);
        }
    }
    for (int i = 0; i < t->n_peers; i++) {
        text_buf line = {0};

        append_case(&line, c);
        for (int side = 0; side < 2; side++)
            append_versus(&line, &ours->side[side], &t->peers[i], side);
        if (t->n_peers > 1)
            text_append(&line, "  %s", t->peers[i].backend);
        print_out("%s\n", text_str(&line));
        text_free(&line);
    }
}

/* --- footer --- */

/* Writes the array of objects atomically. */
static ls_status write_json(bench_table *t)
{
    json_close(&t->writer, ']');
    text_append(&t->json, "\n");
    LS_TRY(text_status(&t->json));
    return file_replace(t->opt->json, text_str(&t->json), t->json.length);
}

static void print_memory(const bench_table *t)
{
    char text[4][32];
    int64_t all = 0;

    for (int i = 0; i < 3; i++) {
        text_bytes(text[i], sizeof(text[i]), (uint64_t)t->memory[i]);
        all += t->memory[i];
    }
    print_out("# Memory usage         : Initialization %s | User-Allocated %s | Collective %s | "
              "Total %s\n",
              text[0], text[1], text[2], text_bytes(text[3], sizeof(text[3]), (uint64_t)all));
}

ls_status bench_table_end(bench_table *t)
{
    const double mean = t->n_measured > 0 ? t->busbw_sum / (double)t->n_measured : 0;
    const double min_bandwidth = t->opt->min_bandwidth;
    ls_status st = LS_OK;
    ls_status reported = LS_OK;

    print_out("# Out of bounds values : %lld %s\n", (long long)t->wrong,
              t->wrong == 0 ? "OK" : "FAILED");
    print_out("# Avg bus bandwidth    : %g\n", mean);
    if (t->opt->memory_report > 0)
        print_memory(t);
    if (t->report != NULL)
        reported = bench_report_end(t->report, t->wrong, mean, min_bandwidth);
    if (t->opt->json != NULL)
        st = write_json(t);
    LS_TRY(st);
    LS_TRY(reported);
    if (t->wrong > 0)
        return ls_fail(LS_EINTERNAL, "%lld wrong element%s", (long long)t->wrong,
                       text_plural(t->wrong));
    if (mean < 0.9 * min_bandwidth)
        return ls_fail(LS_EINTERNAL,
                       "average bus bandwidth %g GB/s is below 0.9 * NCCL_TESTS_MIN_BW (%g GB/s)",
                       mean, min_bandwidth);
    return LS_OK;
}

void bench_table_free(bench_table *t)
{
    bench_report_close(t->report);
    text_free(&t->json);
}
