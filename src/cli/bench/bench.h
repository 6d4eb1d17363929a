/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - lockstep bench: what is asked for, and how its parts hang together.
 *
 *   cmd_bench.c   flags; starts the ranks, or one set of ranks an engine (--vs)
 *   case.h        one row: what each rank gives and gets (pure)
 *   call.c        carries a row's operation out
 *   measure.c     times it and checks what came out
 *   sweep.c       all rows: on the ranks, and beside them for --vs
 *   table.c       prints rows, writes JSON
 *   report.c      the report that nccl-tests' --output_file names
 *   split.c       NCCL_TESTS_SPLIT (pure)
 *   turn.c, vs.c  --vs: ranks that measure when it is their turn, and who gives the turns
 *   watch.c       sendrecv --watch
 */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/bench/case.h"

enum { BENCH_UNUSED_FLAGS = 6 };

typedef struct bench_options {
    bench_kind kind;
    /* nccl-tests' */
    int64_t min_bytes;
    int64_t max_bytes;
    int64_t step_bytes; /* used when factor is 0 */
    int64_t factor;
    const char *redop; /* "sum", ..., "all" */
    const char *type;  /* "float", ..., "all" */
    const char *root;  /* a rank, or "all" */
    int64_t iterations;
    int64_t warmup;
    int64_t aggregate; /* operations started together */
    int64_t cycles;    /* of the whole table; with vs: of each row */
    int64_t average;   /* bench_average */
    int64_t check;     /* 0: do not look at the results */
    int64_t threads;   /* ranks to start here: threads * ranks */
    int64_t ranks;     /* 0: as no launcher has, one */
    int64_t timeout_s; /* of one operation; 0: the library's */
    int64_t blocking; /* 1, 2: wait for each operation of -m, and 1: barrier; 3: barrier after -m */
    int64_t intervals;    /* 1: columns about single iterations */
    int64_t skip;         /* leading iterations that these leave out */
    int64_t cpu_time;     /* 1: the column "time" is that until the calls have returned */
    int64_t timestamps;   /* 1: a column with the time of day */
    int64_t registration; /* 1, 2: as memory "registered" */
    int64_t memory_report;
    int64_t unalign;         /* elements between the buffers' begin and the data */
    const char *output_file; /* nccl-tests' report, NULL: none */
    const char
        *unused[BENCH_UNUSED_FLAGS]; /* as given: what has no effect on CPUs; NULL: not given */
    /* ours */
    const char *backend;
    const char *transport;
    const char *json;   /* file, NULL: none */
    const char *memory; /* "user", "registered"; from the command line "0", "1", too: as -M */
    const char *bind;   /* "none", "core" */
    const char *vs;     /* NULL, or the other backends: "mpi:openmpi,gloo" */
    const char *watch;  /* NULL: no; "": until interrupted; else so many reports */
    int touch; /* write the source before each operation and read the destination after it */
    int show_algorithms; /* print the choice of the native backend, and nothing else */
    const char *turn;    /* where a rank of --vs is given its turns */
    /* the command line */
    int argc; /* the program or the operation, and flags */
    char **argv;
    const char *notes; /* lines for the table's header: flags that have no effect */
} bench_options;

typedef enum bench_average {
    BENCH_RANK_0 = 0,
    BENCH_MEAN = 1,
    BENCH_LEAST = 2,
    BENCH_MOST = 3
} bench_average;

/* Of single operations, the slowest rank's time of each. */
typedef struct bench_stats {
    double mean_us;
    double min_us;
    double max_us;
    double p50_us;
    double p95_us;
    double p99_us;
    double deviation_us;
} bench_stats;

/* One side of a row. time_us 0: this operation has no such side. */
typedef struct bench_time {
    double time_us;     /* of one operation */
    double cpu_us;      /* with -C: until its call has returned */
    bench_stats single; /* with -I */
    int64_t wrong;      /* -1: not checked */
} bench_time;

/* Out of place, in place. */
typedef struct bench_result {
    bench_time side[2];
} bench_result;

/* --- a rank --- */

typedef struct bench bench;

/* Takes memory for the largest row. `world` is borrowed; it is split as NCCL_TESTS_SPLIT says. Collective. */
LS_MUST_USE ls_status bench_open(ls_comm *world, const bench_options *opt, bench **out);
void bench_close(bench *b);          /* NULL is allowed */
ls_comm *bench_comm(const bench *b); /* the group that is measured */
ls_comm *bench_world(const bench *b);
int bench_color(const bench *b); /* the group's in NCCL_TESTS_SPLIT */
/* Of the row that was measured last, in place or not: us of each iteration, of the slowest rank;
 * NULL without -I. And those of rank 0, of rank 1, ...; NULL without -J and on other ranks than 0. */
const double *bench_samples(const bench *b, int side);
const double *bench_rank_samples(const bench *b, int side);

/* Measures one row. `check` beside the options'. Collective over the world; all ranks get the same result. */
LS_MUST_USE ls_status bench_measure(bench *b, const bench_case *c, bool check, bench_result *out);

/* --- call.c --- */

#define BENCH_AGGREGATE_MAX 256

/* What the operation is carried out with, beside the case. */
typedef struct bench_buffers {
    void *src;
    void *dst;
    size_t *src_counts; /* BENCH_ALL_TO_ALL_V: n each */
    size_t *dst_counts;
} bench_buffers;

/* Carries the operation out `times` times, all started before the first is waited for; the exchanges
 * of BENCH_HYPERCUBE are waited for one by one. issue_ns: NULL, or the time until all calls have
 * returned is added to it. */
LS_MUST_USE ls_status bench_call(ls_comm *comm, const bench_case *c, const bench_buffers *buffers,
                                 int64_t times, int64_t *issue_ns);

/* --- sweep.c --- */

/* All rows of a table with n ranks, in their order. */
typedef struct bench_sweep {
    const bench_options *opt;
    int n;
    int type;
    int redop;
    int root;
    int64_t bytes; /* -1: the next type, reduction or root */
} bench_sweep;

bench_sweep bench_sweep_begin(const bench_options *opt, int n);
bool bench_sweep_next(bench_sweep *s, bench_case *out);

/* Every row on all ranks of `world`; rank 0 prints. With opt->turn every row when its turn comes;
 * vs.c prints. Collective. resident: bench_resident() before the ranks have joined, for -M. */
LS_MUST_USE ls_status bench_run(ls_comm *world, const bench_options *opt, int64_t resident);
/* Bytes of memory that this process has resident, pages that it shares included; 0: not known. */
int64_t bench_resident(void);

/* --- table.c --- */

/* Another engine, and how it does in the present row; out of place, in place. */
typedef struct bench_rival {
    const char *backend;
    const char *transport;
    bench_result result;
    double ratio[2];  /* its time over ours */
    double spread[2]; /* the distance between the ratio's quartiles in percent of it */
} bench_rival;

#define BENCH_RIVALS_MAX 7

typedef struct bench_report bench_report;

typedef struct bench_table {
    const bench_options *opt;
    bench_report *report; /* NULL: none is written */
    const bench *bench;   /* the samples; NULL with rivals */
    const char *backend;
    const char *transport;
    bench_rival rivals[BENCH_RIVALS_MAX];
    int n_rivals; /* 0: one set of ranks */
    text_buf json;
    json_writer writer;
    double busbw_sum;
    int64_t n_measured;
    int64_t wrong;
    int64_t memory
        [3]; /* with -M: bytes of joining, of the buffers, of measuring; the most of any rank */
} bench_table;

/* GB/s. */
double bench_algbw(const bench_case *c, const bench_time *t);
double bench_busbw(const bench_case *c, const bench_time *t);
double bench_variation(const bench_stats *s);      /* standard deviation in percent of the mean */
const char *bench_redop_text(const bench_case *c); /* "none" where it does not reduce */

void bench_table_begin(bench_table *t, int n_ranks);
void bench_table_row(bench_table *t, const bench_case *c, const bench_result *r);
/* Beside the rivals' results: a line for each. */
void bench_table_vs_row(bench_table *t, const bench_case *c, const bench_result *ours);
/* The footer and the JSON file. LS_EINTERNAL when results were wrong, or less bandwidth was reached than NCCL_TESTS_MIN_BW asks. */
LS_MUST_USE ls_status bench_table_end(bench_table *t);
void bench_table_free(bench_table *t);

/* --- report.c: the report of nccl-tests' --output_file --- */

enum { BENCH_TIME_BYTES = 32 };
/* "2026-07-09 16:03:21", local time; "" when there is none. */
const char *bench_time_text(char buf[BENCH_TIME_BYTES]);

/* Makes the file at once, under a free name: FILE, FILE.0, FILE.1 ... *out is NULL without -J and on
 * other ranks than rank 0. color: of this rank's group. Collective over `world`. Where rank 0 cannot
 * make the file it fails, and *can_go_on is false on all ranks: the others end without an error. */
LS_MUST_USE ls_status bench_report_open(ls_comm *world, int color, const bench_options *opt,
                                        bench_report **out, bool *can_go_on);
/* The row that was measured last; b: its samples. */
void bench_report_row(bench_report *r, const bench *b, const bench_case *c,
                      const bench_result *result);
/* wanted: NCCL_TESTS_MIN_BW, negative: none. */
LS_MUST_USE ls_status bench_report_end(bench_report *r, int64_t wrong, double busbw, double wanted);
void bench_report_close(bench_report *r); /* removes a file that was not ended; NULL is allowed */

/* --- turn.c: a rank of --vs --- */

typedef struct bench_turn bench_turn;

/* `at` as vs.c has named it. */
LS_MUST_USE ls_status bench_turn_open(const char *at, ls_comm *comm, bench_turn **out);
void bench_turn_close(bench_turn *t); /* NULL is allowed */
/* Sleeps until it is this rank's turn. *has_turn: false when there will be none, because another set of ranks has failed. */
LS_MUST_USE ls_status bench_turn_wait(bench_turn *t, bool *has_turn);
/* Rank 0 tells what has been measured; the others have nothing to say. */
LS_MUST_USE ls_status bench_turn_end(bench_turn *t, const bench_result *r);

/* --- vs.c --- */

/* Starts a set of ranks for each of the engines and lets them measure in turn. argv: the flags, which
 * the ranks get, too. */
LS_MUST_USE ls_status bench_vs(const bench_options *opt, int argc, char **argv);

/* --- watch.c --- */

/* Throughput between each rank and the next, live, until SIGINT or SIGTERM, or as many reports as asked for. Collective. */
LS_MUST_USE ls_status bench_watch(ls_comm *comm, const bench_options *opt);

#endif
