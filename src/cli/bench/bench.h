/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - lockstep bench: its options, and the functions of its files.
 *
 *   cmd_bench.c   flags; starts the ranks, or one set of ranks per backend (--vs)
 *   case.h        one row: what each rank sends and receives (pure)
 *   call.c        runs the operation of a row
 *   memory.c      the memory that it works on, of the host or of a device
 *   measure.c     times it and checks the results
 *   sweep.c       all rows: on the ranks, and in the process of --vs
 *   table.c       prints rows, writes JSON
 *   report.c      the report of nccl-tests' --output_file
 *   split.c       NCCL_TESTS_SPLIT (pure)
 *   turn.c, vs.c  --vs: the ranks, which measure in turns, and the process that starts the turns
 *   watch.c       sendrecv --watch
 *
 * cli/bench/: lockstep bench.
 */
#ifndef LS_CLI_BENCH_BENCH_H
#define LS_CLI_BENCH_BENCH_H

#include "base/report/json.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/bench/case.h"

enum { BENCH_UNUSED_FLAGS = 6 };

typedef struct bench_options {
    bench_kind kind;
    /* Of nccl-tests. */
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
    int64_t check;     /* operations whose results are checked, 0: none */
    int64_t threads;   /* ranks to start here: threads * ranks */
    int64_t ranks;
    int64_t timeout_s; /* of one operation; 0: the library's default */
    /* 1, 2: wait for each operation of -m, and 1: barrier; 3: barrier after -m. */
    int64_t blocking;
    int64_t intervals;    /* 1: columns about single iterations */
    int64_t skip;         /* first iterations that these columns skip */
    int64_t cpu_time;     /* 1: the column "time" is the time until the calls have returned */
    int64_t timestamps;   /* 1: a column with the time of day */
    int64_t registration; /* 1, 2: same as memory "registered" */
    int64_t memory_report;
    int64_t unalign;         /* elements between the start of a buffer and the data */
    const char *output_file; /* nccl-tests' report, NULL: none */
    double min_bandwidth;    /* NCCL_TESTS_MIN_BW in GB/s; negative: not set */
    /* Flags that have no effect on CPUs, as given; NULL: not given. */
    const char *unused[BENCH_UNUSED_FLAGS];
    /* Lockstep's own. */
    const char *backend;
    const char *transport;
    const char *json; /* file, NULL: none */
    const char
        *memory; /* "user", "registered"; on the command line also "0" and "1", which mean -M */
    const char *device;  /* NULL: host memory; "cuda", "cuda:N" */
    int share_gpu;       /* ranks may share a card */
    const char *bind;    /* "none", "core" */
    const char *vs;      /* NULL, or the other backends: "mpi:openmpi,gloo" */
    const char *watch;   /* NULL: not given; "": until interrupted; else the number of reports */
    int touch;           /* write the source before each operation, read the destination after it */
    int show_algorithms; /* print the algorithms of the native backend and exit */
    const char *turn;    /* of a rank of --vs: the address of the process of vs.c */
    int argc;            /* the program or the operation, and flags */
    char **argv;
    const char *notes; /* lines for the table's header: flags that have no effect */
} bench_options;

typedef enum bench_average {
    BENCH_RANK_0 = 0,
    BENCH_MEAN = 1,
    BENCH_LEAST = 2,
    BENCH_MOST = 3
} bench_average;

/* Statistics of single operations: of each, the time of the slowest rank. */
typedef struct bench_stats {
    double mean_us;
    double min_us;
    double max_us;
    double p50_us;
    double p95_us;
    double p99_us;
    double deviation_us;
} bench_stats;

/* One side (out of place or in place) of a row. time_us 0: the operation has no such side. */
typedef struct bench_time {
    double time_us;     /* of one operation */
    double cpu_us;      /* with -C: time until its call has returned */
    bench_stats single; /* with -I */
    int64_t wrong;      /* -1: not checked */
} bench_time;

/* Out of place, in place. */
typedef struct bench_result {
    bench_time side[2];
} bench_result;

/* --- a rank --- */

typedef struct bench bench;

/* Allocates memory for the largest row, of the device of `queue`; NULL: of the host. Borrows
 * `world` and splits it by NCCL_TESTS_SPLIT. Collective. */
LS_MUST_USE ls_status bench_open(ls_comm *world, ls_queue *queue, const bench_options *opt,
                                 bench **out);
void bench_close(bench *b);          /* NULL is allowed */
ls_comm *bench_comm(const bench *b); /* the group that is measured */
ls_comm *bench_world(const bench *b);
int bench_color(const bench *b); /* of the measured group, by NCCL_TESTS_SPLIT */
/* Times (us) of each iteration of the row that was measured last, of the slowest rank; NULL without
 * -I. bench_rank_samples(): those of rank 0, then of rank 1, ...; only on rank 0 with -J, else
 * NULL. */
const double *bench_samples(const bench *b, int side);
const double *bench_rank_samples(const bench *b, int side);

/* Measures one row; checks results if `check` and the options ask for it. Collective over the
 * world; all ranks get the same result. */
LS_MUST_USE ls_status bench_measure(bench *b, const bench_case *c, bool check, bench_result *out);

/* --- call.c --- */

#define BENCH_AGGREGATE_MAX 256

/* The buffers and counts that the operation is called with. */
typedef struct bench_buffers {
    void *src;
    void *dst;
    size_t *src_counts; /* BENCH_ALL_TO_ALL_V: n each */
    size_t *dst_counts;
} bench_buffers;

/* Runs the operation `times` times: starts all, then waits for all; with a queue, that queue waits
 * for all, and the host only as long as it has part in them. The exchanges of BENCH_HYPERCUBE are
 * waited for one by one. Adds the time until all calls have returned to *issue_ns, which may be
 * NULL. */
LS_MUST_USE ls_status bench_call(ls_comm *comm, const bench_case *c, const bench_buffers *buffers,
                                 int64_t times, ls_queue *queue, int64_t *issue_ns);

/* --- memory.c --- */

typedef struct bench_memory {
    ls_comm *comm;      /* for registered memory */
    ls_queue *queue;    /* of the device; NULL: host memory */
    bool is_registered; /* with the group, by ls_comm_alloc() or comm_add_memory() */
} bench_memory;

LS_MUST_USE ls_status bench_memory_take(const bench_memory *m, size_t bytes, void **out);
void bench_memory_give(const bench_memory *m, void *memory); /* NULL is allowed */
/* On a device in its queue. dst may be NULL if bytes is 0. */
LS_MUST_USE ls_status bench_memory_set(const bench_memory *m, void *dst, int byte, size_t bytes);
/* Between device memory and page-locked host memory; waits for its end. */
LS_MUST_USE ls_status bench_memory_copy(const bench_memory *m, void *dst, const void *src,
                                        size_t bytes, bool is_to_host);
/* Memory of the queue's device that is in use, or resident memory of this process, in bytes; 0:
 * unknown. */
int64_t bench_memory_used(const ls_queue *queue);

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

/* Measures every row on all ranks of `world`; rank 0 prints. With opt->turn each row waits for its
 * turn, and vs.c prints. Collective. used: bench_memory_used() before ls_init(), for -M. */
LS_MUST_USE ls_status bench_run(ls_comm *world, ls_queue *queue, const bench_options *opt,
                                int64_t used);

/* --- table.c --- */

/* Another backend and its result in the current row; [0] out of place, [1] in place. */
typedef struct bench_peer {
    const char *backend;
    const char *transport;
    bench_result result;
    double ratio[2];  /* its time over ours */
    double spread[2]; /* interquartile range of the ratio in percent of its median */
} bench_peer;

#define BENCH_PEERS_MAX 7

typedef struct bench_report bench_report;

typedef struct bench_table {
    const bench_options *opt;
    bench_report *report; /* NULL: none is written */
    const bench *bench;   /* has the samples; NULL with peers */
    const char *backend;
    const char *transport;
    bench_peer peers[BENCH_PEERS_MAX];
    int n_peers; /* 0: one set of ranks */
    text_buf json;
    json_writer writer;
    double busbw_sum;
    int64_t n_measured;
    int64_t wrong;
    /* With -M: bytes of initialization, buffers, operations; the maximum of all ranks. */
    int64_t memory[3];
} bench_table;

/* GB/s. */
double bench_algbw(const bench_case *c, const bench_time *t);
double bench_busbw(const bench_case *c, const bench_time *t);
double bench_variation(const bench_stats *s);      /* standard deviation in percent of the mean */
const char *bench_redop_text(const bench_case *c); /* "none" where it does not reduce */

void bench_table_begin(bench_table *t, int n_ranks);
void bench_table_row(bench_table *t, const bench_case *c, const bench_result *r);
/* The row beside the results of the peers: one line for each peer. */
void bench_table_vs_row(bench_table *t, const bench_case *c, const bench_result *ours);
/* Prints the footer and writes the JSON file. LS_EINTERNAL: results were wrong, or the bandwidth is
 * below NCCL_TESTS_MIN_BW. */
LS_MUST_USE ls_status bench_table_end(bench_table *t);
void bench_table_free(bench_table *t);

/* --- report.c: the report of nccl-tests' --output_file --- */

enum { BENCH_TIME_BYTES = 32 };
/* "2026-07-09 16:03:21", local time; "" when there is none. */
const char *bench_time_text(char buf[BENCH_TIME_BYTES]);

/* Creates the file at once, under a free name: FILE, FILE.0, FILE.1 ... *out is NULL without -J and
 * on other ranks than rank 0. color: of this rank's group. Collective over `world`. If rank 0
 * cannot create the file, it fails, and *can_go_on is false on all ranks: the others end without an
 * error. */
LS_MUST_USE ls_status bench_report_open(ls_comm *world, int color, const bench_options *opt,
                                        bench_report **out, bool *can_go_on);
/* Adds the row that was measured last; `b` has its samples. */
void bench_report_row(bench_report *r, const bench *b, const bench_case *c,
                      const bench_result *result);
/* Writes the file. min_bandwidth: NCCL_TESTS_MIN_BW in GB/s, negative: not set. */
LS_MUST_USE ls_status bench_report_end(bench_report *r, int64_t wrong, double busbw,
                                       double min_bandwidth);
/* Removes the file if it was not written; NULL is allowed. */
void bench_report_close(bench_report *r);

/* --- turn.c: a rank of --vs --- */

typedef struct bench_turn bench_turn;

/* at: the value of --turn. */
LS_MUST_USE ls_status bench_turn_open(const char *at, ls_comm *comm, bench_turn **out);
void bench_turn_close(bench_turn *t); /* NULL is allowed */
/* Sleeps until it is this rank's turn. *has_turn is false when another set of ranks has failed. */
LS_MUST_USE ls_status bench_turn_wait(bench_turn *t, bool *has_turn);
/* Rank 0 sends its result; the other ranks do nothing. */
LS_MUST_USE ls_status bench_turn_end(bench_turn *t, const bench_result *r);

/* --- vs.c --- */

/* Starts a set of ranks for each backend and lets the sets measure in turns. argv: the flags, which
 * are passed on to the ranks. */
LS_MUST_USE ls_status bench_vs(const bench_options *opt, int argc, char **argv);

/* --- watch.c --- */

/* Prints the throughput between each rank and the next until SIGINT or SIGTERM, or the number of
 * reports in opt->watch. Collective. */
LS_MUST_USE ls_status bench_watch(ls_comm *comm, ls_queue *queue, const bench_options *opt);

#endif
