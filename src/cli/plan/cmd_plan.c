/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_plan.c - lockstep plan: how fast a program would train on 1 to 64 machines. */
#include "cli/cli.h"
#include "cli/plan/calibrate.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"
#include "host/cores.h"

#include <string.h>

enum { PLAN_N_FLAGS = 9, ROWS_MOST = 13, SPEEDS_MOST = 64, VARIANTS = 4 };

#define CHECK_BYTES ((size_t)64 << 20)

typedef struct plan_flags {
    const char *link;
    const char *check; /* a report */
    const char *speeds_text;
    int64_t batch; /* 0: samples are not known */
    int64_t most;
    int one_host;
    int compress;
    int json;
    int help;
} plan_flags;

typedef struct plan {
    plan_flags flags;
    double speeds[SPEEDS_MOST];
    int n_speeds;
    bool is_one_host;
    calibration cost;
    forecast_link link;
    int n_rows;
    forecast_result rows[ROWS_MOST]; /* of a variant */
} plan;

/* --- flags --- */

static ls_status read_speeds(plan *p)
{
    const char *at = p->flags.speeds_text;
    char item[32];

    while (at != NULL && text_next_item(&at, item, sizeof(item))) {
        if (p->n_speeds == SPEEDS_MOST)
            return ls_fail(LS_EINVAL, "--speeds: more than %d numbers", SPEEDS_MOST);
        LS_TRY(text_parse_double(item, "--speeds", 1e-3, 1e3, &p->speeds[p->n_speeds]));
        p->n_speeds++;
    }
    return p->flags.speeds_text == NULL || p->n_speeds > 0
               ? LS_OK
               : ls_fail(LS_EINVAL, "--speeds is empty: relative speeds such as 1,0.5");
}

static ls_status read_link(plan *p)
{
    const plan_flags *f = &p->flags;
    char *text;
    size_t bytes;
    ls_status st;

    if (f->link != NULL && f->check != NULL)
        return ls_fail(LS_EINVAL, "--link and --check exclude each other");
    p->is_one_host = f->one_host != 0 || (f->link == NULL && f->check == NULL);
    if (f->link != NULL)
        return calibrate_read_link(f->link, &p->link);
    if (f->check == NULL)
        return LS_OK;
    LS_TRY(file_read(f->check, CHECK_BYTES, &text, &bytes));
    st = calibrate_read_check(text, bytes, f->check, &p->link);
    ls_free(text);
    return st;
}

/* --- the table --- */

static int ranks_of(int row)
{
    return 1 << row;
}

static bool has_variant(const plan *p, int variant)
{
    return ((variant & 1) == 0 || p->flags.compress != 0) &&
           ((variant & 2) == 0 || p->n_speeds > 0);
}

static void variant_text(int variant, char buf[64])
{
    text_format(buf, 64, "%s%s", (variant & 1) != 0 ? "--compress" : "",
                variant == 3   ? " --balance"
                : variant == 2 ? "--balance"
                               : "");
}

/* Ranks of one host share its memory, and its cores where there are more ranks. */
static double compute_factor(const plan *p, int n)
{
    const int cores = ls_usable_cores(NULL);

    if (!p->is_one_host || n < 2)
        return 1;
    return p->cost.beside * (n > cores ? (double)n / cores : 1);
}

static void compute_rows(plan *p, int variant)
{
    for (int i = 0; i < p->n_rows; i++) {
        const forecast_case c = {.n = ranks_of(i),
                                 .compute = compute_factor(p, ranks_of(i)),
                                 .has_half_bytes = (variant & 1) != 0,
                                 .is_balanced = (variant & 2) != 0,
                                 .speeds = p->n_speeds > 0 ? p->speeds : NULL,
                                 .n_speeds = p->n_speeds};

        p->rows[i] = forecast_make(&p->cost.step, &p->link, &c);
    }
}

static double rate_of(const plan *p, const forecast_result *r)
{
    return r->batches_per_s * (double)(p->flags.batch > 0 ? p->flags.batch : 1);
}

static const char *unit_of(const plan *p)
{
    return p->flags.batch > 0 ? "samples/s" : "batches/s";
}

static double gradient_bytes(const plan *p)
{
    double sum = 0;

    for (int i = 0; i < p->cost.step.n_buckets; i++)
        sum += p->cost.step.buckets[i].bytes;
    return sum;
}

static void print_measured(const plan *p, text_buf *out)
{
    const forecast_step *s = &p->cost.step;

    text_append(out,
                "measured: a step of %.2f ms, of which backward %.2f ms, %.3g MB of gradients in "
                "%d bucket%s;\n  beside another rank %.2f times as long; 8 bytes between two ranks "
                "in %.1f us, copying at %.2f GB/s\n",
                1e3 * (s->other_s + s->backward_s), 1e3 * s->backward_s, gradient_bytes(p) / 1e6,
                s->n_buckets, text_plural(s->n_buckets), p->cost.beside,
                1e6 * p->cost.host.latency_s,
                p->link.copy_s_per_byte > 0 ? 1e-9 / p->link.copy_s_per_byte : 0);
    if (p->link.bytes_per_s > 0)
        text_append(out, "link: %.4g MB/s of data, %.3f ms to the other machine\n",
                    p->link.bytes_per_s / 1e6, 1e3 * p->link.latency_s);
    else
        text_append(out, "link: the memory of this host; --link RATE,ROUND-TRIP: machines\n");
}

static void print_variant(plan *p, int variant, text_buf *out)
{
    char name[64];
    int knee;

    compute_rows(p, variant);
    variant_text(variant, name);
    text_append(out, "\n%8s %12s %10s %12s  %s  %s\n", p->is_one_host ? "RANKS" : "MACHINES",
                p->flags.batch > 0 ? "SAMPLES/S" : "BATCHES/S", "EFFICIENCY", "MB SENT/STEP",
                "BOUND BY", name);
    for (int i = 0; i < p->n_rows; i++)
        text_append(out, "%8d %12.2f %9.1f%% %12.3f  %s\n", ranks_of(i), rate_of(p, &p->rows[i]),
                    100 * p->rows[i].efficiency, p->rows[i].sent_bytes / 1e6,
                    forecast_bound_text(p->rows[i].bound));
    knee = ranks_of(forecast_knee(p->rows, p->n_rows));
    text_append(out, "knee: %d; %s\n", knee,
                knee < ranks_of(p->n_rows - 1)
                    ? "twice as many bring less than half of the speed of those added"
                    : "there is none in the table");
}

static void write_rows(plan *p, json_writer *w)
{
    json_open(w, "rows", '[');
    for (int i = 0; i < p->n_rows; i++) {
        const forecast_result *r = &p->rows[i];

        json_open(w, NULL, '{');
        json_put_int(w, "n", ranks_of(i));
        json_put_real(w, "step_s", r->step_s);
        json_put_real(w, "rate", rate_of(p, r));
        json_put_real(w, "efficiency", r->efficiency);
        json_put_real(w, "sent_bytes", r->sent_bytes);
        json_put_string(w, "bound", forecast_bound_text(r->bound));
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void write_measured(const plan *p, json_writer *w)
{
    json_open(w, "measured", '{');
    json_put_real(w, "other_s", p->cost.step.other_s);
    json_put_real(w, "backward_s", p->cost.step.backward_s);
    json_put_real(w, "gradient_bytes", gradient_bytes(p));
    json_put_int(w, "buckets", p->cost.step.n_buckets);
    json_put_real(w, "beside", p->cost.beside);
    json_put_real(w, "host_latency_s", p->cost.host.latency_s);
    json_put_real(w, "copy_s_per_byte", p->cost.host.copy_s_per_byte);
    json_put_real(w, "link_bytes_per_s", p->link.bytes_per_s);
    json_put_real(w, "link_latency_s", p->link.latency_s);
    json_close(w, '}');
}

static void write_json(plan *p, text_buf *out)
{
    json_writer w;

    json_begin(&w, out);
    json_open(&w, NULL, '{');
    write_measured(p, &w);
    json_put_string(&w, "unit", unit_of(p));
    json_open(&w, "plans", '[');
    for (int v = 0; v < VARIANTS; v++) {
        char name[64];

        if (!has_variant(p, v))
            continue;
        compute_rows(p, v);
        variant_text(v, name);
        json_open(&w, NULL, '{');
        json_put_string(&w, "flags", name);
        json_put_int(&w, "knee", ranks_of(forecast_knee(p->rows, p->n_rows)));
        write_rows(p, &w);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_close(&w, '}');
    text_append(out, "\n");
}

static ls_status print_plan(plan *p)
{
    text_buf text = {0};
    ls_status st;

    if (p->flags.json != 0) {
        write_json(p, &text);
    } else {
        print_measured(p, &text);
        for (int v = 0; v < VARIANTS; v++)
            if (has_variant(p, v))
                print_variant(p, v, &text);
    }
    st = text_status(&text);
    if (st == LS_OK)
        print_out("%s", text_str(&text));
    text_free(&text);
    return st;
}

static ls_status make_plan(plan *p, char *const *program)
{
    ls_status st;

    LS_TRY(read_speeds(p));
    LS_TRY(read_link(p));
    while (p->n_rows < ROWS_MOST && ranks_of(p->n_rows) <= p->flags.most)
        p->n_rows++;
    st = calibrate_run(program, p->link.bytes_per_s > 0, &p->cost);
    p->link.latency_s += p->cost.host.latency_s;
    p->link.copy_s_per_byte = p->cost.host.copy_s_per_byte;
    if (st == LS_OK)
        st = print_plan(p);
    ls_free((forecast_bucket *)(uintptr_t)p->cost.step.buckets);
    return st;
}

int cmd_plan(int argc, char **argv)
{
    plan p = {.flags = {.most = 64}};
    plan_flags *f = &p.flags;
    const ls_flag table[PLAN_N_FLAGS] = {
        {"link", 0, LS_FLAG_TEXT, &f->link, 0, 0,
         "`RATE,TIME` of the link of each machine, with its round trip: 1Gbit,0.2ms; without it "
         "the plan is for ranks of this host"},
        {"check", 0, LS_FLAG_TEXT, &f->check, 0, 0,
         "`FILE` the slowest path in the output of lockstep check -H HOST,HOST --json"},
        {"batch", 'b', LS_FLAG_INT, &f->batch, 1, 1e9,
         "`N` samples of a rank in a step, for samples/s; without it batches/s"},
        {"compress", 0, LS_FLAG_BOOL, &f->compress, 0, 0, "also with --compress bf16 or fp16"},
        {"speeds", 0, LS_FLAG_TEXT, &f->speeds_text, 0, 0,
         "`LIST` relative speeds of the machines, repeated: 1,0.5; also with --balance"},
        {"most", 0, LS_FLAG_INT, &f->most, 1, 4096, "`N` machines"},
        {"one-host", 0, LS_FLAG_BOOL, &f->one_host, 0, 0,
         "the ranks are on this host in spite of --link, as in network namespaces"},
        {"json", 0, LS_FLAG_BOOL, &f->json, 0, 0, "print JSON"},
        {"help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text"},
    };
    const ls_flags flags = {
        .size = sizeof(flags),
        .program = "lockstep plan",
        .usage = "[flags] PROGRAM ARGS...",
        .summary = "Forecasts how fast a program trains on 1, 2, 4, ... machines. The program, "
                   "which trains with Lockstep's DDP for a few steps (--steps 30), is run alone "
                   "and twice at the same time.",
        .tables = {table},
        .n = {PLAN_N_FLAGS},
        .takes_rest = 1};
    int rest = argc;
    ls_status st = ls_flags_parse(&flags, argc, argv, &rest);

    if (st == LS_OK && f->help)
        return print_help(&flags);
    if (st == LS_OK && rest == argc)
        st = ls_fail(LS_EINVAL, "usage: lockstep plan [flags] PROGRAM ARGS...");
    if (st == LS_OK)
        st = make_plan(&p, argv + rest);
    return st == LS_OK ? 0 : print_failure("plan", st);
}
