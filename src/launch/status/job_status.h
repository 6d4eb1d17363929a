/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - what a running job looks like now: the text that an agent sends to `lockstep top` and
 * `lockstep ps`, and that agents send to the head. It is JSON, documented in docs/watching.md.
 *
 * The text comes from another process: job_status_read() takes what has the expected form, cuts
 * texts, makes them printable and leaves out the rest.
 *
 * launch/status/: what a job looks like now. Agents write it; the tool reads it through this header
 * and status_client.h.
 */
#ifndef LS_LAUNCH_STATUS_JOB_STATUS_H
#define LS_LAUNCH_STATUS_JOB_STATUS_H

#include "base/report/json.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

enum {
    STATUS_RANKS_MAX = 65536,
    STATUS_OPERATIONS = 32, /* the last ones of a rank, on request */
    STATUS_GROUPS = 4,
    STATUS_SOURCES = 8,
    STATUS_PHASES = 5, /* of a training step */
    STATUS_TEXT = 160
};

/* A group in which a rank has started operations lately. */
typedef struct status_group {
    int64_t id;       /* 0: the world */
    int64_t sequence; /* of its last operation there */
    double waits_s;   /* since it has started that one; -1: it has ended */
} status_group;

/* What a rank has received from another one. */
typedef struct status_source {
    int rank;
    double bytes;
} status_source;

typedef struct status_rank {
    int rank;
    char host[64];
    int pid;        /* 0: unknown */
    char state[16]; /* "running", "asleep", "stopped", ...; "ended", "failed" */
    bool is_late;   /* another rank has waited for it for STATUS_LATE_S: job_status_mark_late() */
    double memory_bytes;
    double cpu_s;

    /* From the flight recorder; of programs that do not use Lockstep has_operations is false. */
    bool has_operations;
    double operations;
    double operation_bytes; /* sums of those that have ended */
    double operation_s;
    char operation[STATUS_TEXT]; /* the last one */
    double waits_s;              /* since it has started; -1: it has ended */
    status_group groups[STATUS_GROUPS];
    int n_groups;
    double received_bytes;                 /* from all ranks, by the native backend */
    status_source sources[STATUS_SOURCES]; /* from which most came, those first */
    int n_sources;
    char warning[STATUS_TEXT]; /* "": none */

    bool has_progress; /* ls_run only: */
    int64_t step;
    int64_t steps; /* 0: unknown */
    int64_t epoch;
    int64_t epochs;
    double step_s;
    double step_age_s; /* since the last step has ended */
    double loss;
    double samples;
    double device_bytes; /* 0: unknown */
    int64_t shards;      /* of a step, with --balance */
    double shard_s;      /* for one; 0: unknown */
    int64_t rows;        /* of a batch, with --balance rows */
    double row_s;        /* for one; 0: unknown */
    double seconds[STATUS_PHASES];
} status_rank;

/* An operation of a rank. */
typedef struct status_operation {
    char text[STATUS_TEXT];
    double age_s;  /* since its start */
    double took_s; /* -1: it has not ended */
    bool has_failed;
    double bytes;
} status_operation;

typedef struct job_status {
    char name[64]; /* --rdzv-id; "": none */
    char agent[20];
    char host[64];
    char command[256];
    char version[32];
    char state[32]; /* "waiting for nodes", "running", "ending" */
    char warning[STATUS_TEXT];
    int pid; /* of the agent */
    double age_s;
    int world_size; /* 0: not known yet */
    int n_nodes;
    int n_restarts;
    bool is_head; /* false: of this node's ranks only */
    status_rank *ranks;
    int n_ranks;
    int max_ranks;
    int chosen; /* the rank that `operations` are of, -1: none */
    status_operation operations[STATUS_OPERATIONS]; /* oldest first */
    int n_operations;
} job_status;

#define STATUS_LATE_S 1.0

/* Names of the phases, as in metrics. */
extern const char *const status_phases[STATUS_PHASES];

void job_status_free(job_status *v);
/* Appends a rank of zeros; NULL: no memory. */
status_rank *status_add_rank(job_status *v);

/* Sorts the ranks, and marks those that others wait for: the other has started a later operation of
 * the same group and waits in it since STATUS_LATE_S. */
void job_status_mark_late(job_status *v);

void job_status_write(const job_status *v, json_writer *w);
/* The ranks `first` to `first + n - 1` of the list, as an array. */
void job_status_write_ranks(const job_status *v, int first, int n, json_writer *w);

/* LS_EFORMAT: it is not the text of a job. */
LS_MUST_USE ls_status job_status_read(const char *text, size_t bytes, job_status *out);
/* Adds the ranks of an array; with out->chosen also that rank's operations. */
LS_MUST_USE ls_status job_status_read_ranks(const json_value *array, job_status *out);

/* "operations" of an object, and the rank that they are of. */
void job_status_write_operations(const job_status *v, json_writer *w);
void job_status_read_operations(const json_value *object, job_status *out);

#endif
