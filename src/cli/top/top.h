/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top.h - the parts of lockstep top and lockstep ps: jobs of this user (top_jobs.c), the table of a
 * job's ranks as text (top_table.c, pure), the live table (top_screen.c).
 *
 * cli/top/: lockstep top and ps.
 */
#ifndef LS_CLI_TOP_TOP_H
#define LS_CLI_TOP_TOP_H

#include "launch/status/job_status.h"
#include "launch/status/status_client.h"

enum { TOP_ANSWER_MS = 5000 };

/* --- top_jobs.c --- */

/* Asks every job of this user, and calls `found` for each that answers; a job that ends meanwhile
 * is left out. */
LS_MUST_USE ls_status top_each_job(void (*found)(void *arg, const job_status *v), void *arg);

/* Connects to the job that `name` means: the pid of `lockstep run`, the name of --rdzv-id, or the
 * beginning of the agent's name. NULL: the only job. LS_ENOTFOUND, LS_EINVAL (several match) list
 * the jobs. */
LS_MUST_USE ls_status top_connect(const char *name, status_client **out);

/* --- top_table.c --- */

typedef enum top_key {
    TOP_BY_RANK,
    TOP_BY_STEP_TIME,
    TOP_BY_DATA,
    TOP_BY_COMMUNICATION,
    TOP_BY_MEMORY,
    TOP_BY_LATE,
    TOP_KEYS
} top_key;

extern const char *const top_key_names[TOP_KEYS];
LS_MUST_USE ls_status top_key_parse(const char *text, top_key *out);

/* The same ranks at an earlier time, from which the rates follow; NULL: rates since the start. */
typedef struct top_times {
    const job_status *before;
    const job_status *now;
} top_times;

/* Printable text in a column of so many characters, cut between two of them. */
void top_column(const char *text, int width, text_buf *out);

/* A line of the table. */
typedef struct top_entry {
    double value; /* of the key */
    int index;    /* in now->ranks */
} top_entry;

/* order: now->n_ranks of them */
void top_sort(const top_times *t, top_key key, top_entry *order);
void top_head(const job_status *v, text_buf *out);      /* two lines about the job */
void top_columns(const job_status *v, text_buf *out);   /* the line above the ranks */
void top_row(const top_times *t, int i, text_buf *out); /* the rank now->ranks[i] */

/* Bytes from one rank to another: of each receiver the STATUS_SOURCES ranks that sent most. */
typedef struct top_pair {
    int from;
    int to;
    double bytes;
    double bytes_per_s;
} top_pair;

/* The pair with the highest rate first. pairs: now->n_ranks * STATUS_SOURCES of them; returns how
 * many there are. */
int top_pairs(const top_times *t, top_pair *pairs);
void top_pair_columns(text_buf *out);
void top_pair_row(const top_pair *p, text_buf *out);
/* Why the list is empty. */
extern const char top_no_pairs[];

/* The last warning of the job or of a rank; nothing if there is none. */
void top_warning(const job_status *v, text_buf *out);
void top_operation(const status_operation *o, text_buf *out);

/* --- top_screen.c --- */

/* The live table, until the user or the job ends it. LS_EUNSUPPORTED: built without ncursesw. */
LS_MUST_USE ls_status top_screen(status_client *c, int64_t interval_ms, top_key key,
                                 bool shows_pairs);

#endif
