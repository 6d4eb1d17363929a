/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - rows as nccl-tests prints them, and the same as an array of JSON objects.
 *
 * time is that of one operation, algbw = bytes / time, busbw = algbw times the share of the bytes that every rank's link must carry
 * whatever the algorithm (nccl-tests, doc/PERFORMANCE.md).
 */
#include "cli/bench/bench.h"

#include "base/file.h"
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

static double algorithm_bandwidth(const bench_case *c, const bench_time *t)
{
    return bench_traffic(c) / t->time_us * 1e-3;
}

static double bus_bandwidth(const bench_case *c, const bench_time *t)
{
    return algorithm_bandwidth(c, t) * bench_bus_factor(c->kind, c->n);
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
    static const char *const names[] = {"time", "algbw", "busbw", "#wrong", ""};
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
    for (int i = 0; i < t->n_rivals; i++)
        print_out("%s%s", i > 0 ? ", " : "", t->rivals[i].backend);
    print_out(" (theirs%s), medians of %lld turn%s each; ratio: theirs / ours, inside a turn\n#\n",
              t->n_rivals > 1 ? ", a line each" : "", (long long)t->opt->cycles,
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
    print_out("# lockstep %s %s, %d rank%s, backend %s, transport %s, memory %s%s\n", ls_version(),
              bench_kind_name(t->opt->kind), n_ranks, text_plural(n_ranks), t->backend,
              t->transport, t->opt->memory, t->opt->touch ? ", touched" : "");
    if (t->n_rivals > 0) {
        print_vs_header(t);
    } else {
        print_out("#\n");
        print_own_header(t);
    }
    json_begin(&t->writer, &t->json);
    json_open(&t->writer, NULL, '[');
}

/* --- rows --- */

static const char *redop_text(const bench_case *c)
{
    return bench_reduces(c->kind) ? bench_redop_name(c->redop) : "none";
}

static void append_case(text_buf *line, const bench_case *c)
{
    text_append(line, "  %11zu %13zu %9s %7s %7d", bench_size(c), c->count,
                bench_type_name(c->type), redop_text(c), c->root);
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
    if (m->time_us <= 0) { // there is no such side
        text_append(line, " %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        if (t->opt->intervals > 0)
            text_append(line, " %8s %8s %8s %7s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    text_append(line, " %8.*f %7.2f %7.2f", m->time_us < 10 ? 2 : 1, m->time_us,
                algorithm_bandwidth(c, m), bus_bandwidth(c, m));
    append_wrong(line, m->wrong);
    if (t->opt->intervals > 0)
        text_append(line, " %8.2f %8.2f %8.2f %7.1f", m->min_us, m->max_us, m->p99_us,
                    m->cv_percent);
}

static void append_clock(text_buf *line)
{
    const time_t now = time(NULL);
    struct tm parts;
    char text[32];

    if (localtime_r(&now, &parts) != NULL && strftime(text, sizeof(text), "%F %T", &parts) > 0)
        text_append(line, "  %s", text);
}

/* rival: whose time it is, NULL: ours. */
static void add_json(bench_table *t, const bench_case *c, bool in_place, const bench_time *m,
                     const bench_rival *rival)
{
    json_writer *w = &t->writer;

    json_open(w, NULL, '{');
    json_put_string(w, "op", bench_kind_name(c->kind));
    json_put_int(w, "size", (int64_t)bench_size(c));
    json_put_int(w, "count", (int64_t)c->count);
    json_put_string(w, "type", bench_type_name(c->type));
    json_put_string(w, "redop", redop_text(c));
    json_put_int(w, "root", c->root);
    json_put_int(w, "ranks", c->n);
    json_put_bool(w, "in_place", in_place);
    json_put_string(w, "backend", rival != NULL ? rival->backend : t->backend);
    json_put_string(w, "transport", rival != NULL ? rival->transport : t->transport);
    json_put_string(w, "memory", t->opt->memory);
    json_put_real(w, "time_us", m->time_us);
    json_put_real(w, "algbw_gbs", algorithm_bandwidth(c, m));
    json_put_real(w, "busbw_gbs", bus_bandwidth(c, m));
    if (m->wrong >= 0)
        json_put_int(w, "wrong", m->wrong);
    else
        json_put_real(w, "wrong", (double)NAN); // null: nobody has looked
    if (rival != NULL)
        json_put_real(w, "ratio", rival->ratio[in_place]);
    json_close(w, '}');
}

static void count_in(bench_table *t, const bench_case *c, const bench_time *m)
{
    t->busbw_sum += bus_bandwidth(c, m);
    t->n_measured++;
    t->wrong += m->wrong > 0 ? m->wrong : 0;
}

void bench_table_row(bench_table *t, const bench_case *c, const bench_result *r)
{
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
        append_clock(&line);
    print_out("%s\n", text_str(&line));
    text_free(&line);
}

static int64_t wrong_of_both(const bench_time *a, const bench_time *b)
{
    return a->wrong < 0 || b->wrong < 0 ? -1 : a->wrong + b->wrong;
}

static void append_versus(text_buf *line, const bench_time *ours, const bench_rival *rival,
                          int side)
{
    const bench_time *theirs = &rival->result.side[side];

    if (ours->time_us <= 0) {
        text_append(line, " %9s %9s %6s %5s %6s", "N/A", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    text_append(line, " %9.2f %9.2f %6.2f %5.0f", ours->time_us, theirs->time_us,
                rival->ratio[side], rival->spread[side]);
    append_wrong(line, wrong_of_both(ours, theirs));
}

void bench_table_vs_row(bench_table *t, const bench_case *c, const bench_result *ours)
{
    for (int side = 0; side < 2; side++) {
        if (ours->side[side].time_us <= 0)
            continue;
        count_in(t, c, &ours->side[side]);
        add_json(t, c, side == 1, &ours->side[side], NULL);
        for (int i = 0; i < t->n_rivals; i++) {
            const bench_time *theirs = &t->rivals[i].result.side[side];

            t->wrong += theirs->wrong > 0 ? theirs->wrong : 0;
            add_json(t, c, side == 1, theirs, &t->rivals[i]);
        }
    }
    for (int i = 0; i < t->n_rivals; i++) {
        text_buf line = {0};

        append_case(&line, c);
        for (int side = 0; side < 2; side++)
            append_versus(&line, &ours->side[side], &t->rivals[i], side);
        if (t->n_rivals > 1)
            text_append(&line, "  %s", t->rivals[i].backend);
        print_out("%s\n", text_str(&line));
        text_free(&line);
    }
}

/* --- footer --- */

/* The array of objects, whole or not at all. */
static ls_status write_json(bench_table *t)
{
    file_atomic file;
    ls_status st;

    json_close(&t->writer, ']');
    text_append(&t->json, "\n");
    LS_TRY(text_status(&t->json));
    LS_TRY(file_atomic_begin(&file, t->opt->json));
    st = file_write_all(file.fd, t->opt->json, text_str(&t->json), t->json.length);
    if (st == LS_OK)
        st = file_atomic_commit(&file);
    file_atomic_cancel(&file);
    return st;
}

static ls_status check_bandwidth(double reached)
{
    const char *text = getenv("NCCL_TESTS_MIN_BW"); // NOLINT(concurrency-mt-unsafe)
    double wanted;

    if (text == NULL || *text == '\0')
        return LS_OK;
    LS_TRY(text_parse_double(text, "NCCL_TESTS_MIN_BW", 0, 1e9, &wanted));
    if (reached < 0.9 * wanted)
        return ls_fail(LS_EINTERNAL, "%g GB/s are less than 0.9 times NCCL_TESTS_MIN_BW, %g GB/s",
                       reached, wanted);
    return LS_OK;
}

ls_status bench_table_end(bench_table *t)
{
    const double mean = t->n_measured > 0 ? t->busbw_sum / (double)t->n_measured : 0;

    print_out("# Out of bounds values : %lld %s\n", (long long)t->wrong,
              t->wrong == 0 ? "OK" : "FAILED");
    print_out("# Avg bus bandwidth    : %g\n", mean);
    if (t->opt->json != NULL)
        LS_TRY(write_json(t));
    if (t->wrong > 0)
        return ls_fail(LS_EINTERNAL, "%lld element%s wrong", (long long)t->wrong,
                       t->wrong == 1 ? " is" : "s are");
    return check_bandwidth(mean);
}

void bench_table_free(bench_table *t)
{
    text_free(&t->json);
}
