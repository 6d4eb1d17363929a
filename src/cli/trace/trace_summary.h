/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_summary.h - what `lockstep trace summarize` prints about traces of --profile and of
 * `lockstep run --trace`: the costliest operators and what bounds them, communication, and ranks
 * that are slower than the others.
 *
 * The files are not trusted: numbers that are negative or huge count as 0, texts are cut and made
 * printable, and there are limits on ranks, operators and the size of a file.
 */
#ifndef LS_CLI_TRACE_TRACE_SUMMARY_H
#define LS_CLI_TRACE_TRACE_SUMMARY_H

#include "base/map.h"
#include "base/report/json.h"

enum {
    SUMMARY_RANKS = 4096,
    SUMMARY_OPERATORS = 8192, /* of different names, phases and shapes */
    SUMMARY_KINDS = 64        /* of operations of communication */
};

#define SUMMARY_FILE_BYTES ((size_t)256 << 20)

/* The phases of a step, and what else a rank does in it. */
typedef enum summary_phase {
    SUMMARY_DATA,
    SUMMARY_FORWARD,
    SUMMARY_BACKWARD,
    SUMMARY_OPTIMIZER,
    SUMMARY_WAIT, /* for other ranks */
    SUMMARY_PHASES
} summary_phase;

/* Operators of one name, phase and shape, of all ranks. */
typedef struct summary_operator {
    char name[48];
    char phase[16];
    char shapes[96];
    char layer[40];
    bool has_layers; /* several */
    int64_t calls;
    double us;
    double flops;
    double bytes;
    double compute_us; /* that the operations take at the ceiling of the rank; 0: unknown */
    double memory_us;  /* the same of the bytes */
    double limit_us;   /* the larger one of each call */
} summary_operator;

/* Operations of one kind, of all ranks. */
typedef struct summary_kind {
    char name[48];
    int64_t calls;
    double us;
    double bytes;
    double late_us; /* behind the first rank; traces of lockstep run --trace only */
} summary_kind;

typedef struct summary_rank {
    int rank;
    int file; /* from 1 */
    char name[80];
    int64_t steps;
    double phase_us[SUMMARY_PHASES];
    int64_t n_late;
    double late_us;
    int64_t n_awaited;     /* operations in which another rank waited for this one last */
    double ceiling_gflops; /* 0: unknown */
    double ceiling_gb;
} summary_rank;

/* Zero-initialise. */
typedef struct trace_summary {
    summary_operator **operators;
    int n_operators;
    int operators_capacity;
    byte_map by_key;
    summary_kind kinds[SUMMARY_KINDS];
    int n_kinds;
    summary_rank *ranks; /* by number */
    int n_ranks;
    int n_files;
    char device[96];    /* of the first profile; "": none */
    int64_t first_step; /* of profiles; 0: unknown */
    int64_t last_step;
    int64_t n_missing; /* operators that did not fit into their profiles */
    int64_t n_skipped; /* events beyond the limits above */
} trace_summary;

/* Adds a trace. LS_EFORMAT: it is none; LS_EINVAL: one of its ranks is in an earlier file, too.
 * Both name `what`. */
LS_MUST_USE ls_status trace_summary_add(trace_summary *s, const char *text, size_t bytes,
                                        const char *what);

/* Adds a file of at most SUMMARY_FILE_BYTES. */
LS_MUST_USE ls_status trace_summary_add_file(trace_summary *s, const char *path);

/* Appends the text, with at most `most` operators. Sorts operators. */
void trace_summary_text(trace_summary *s, int most, text_buf *out);

void trace_summary_free(trace_summary *s);

#endif
