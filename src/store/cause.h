/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cause.h - why a job or a group ends: one record, from the first that knew to all that must hear
 * it.
 */
#ifndef LS_STORE_CAUSE_H
#define LS_STORE_CAUSE_H

#include "net/wire.h"

#define JOB_ID_BYTES 17         /* 16 hexadecimal digits and a 0 */
#define GROUP_ALL    UINT32_MAX /* the whole job, not one group */

/* Where ranks wait for each other besides groups (control_begin_stage). */
#define GROUP_JOIN    (GROUP_ALL - 1)
#define GROUP_CONNECT (GROUP_ALL - 2)
#define GROUP_ID_END  GROUP_CONNECT /* no group of a job has this or a higher id */

typedef enum cause_kind {
    CAUSE_NONE = 0,
    CAUSE_DIED,     /* a rank ended by signal, with a code, or without a goodbye */
    CAUSE_LEFT,     /* a rank ended well, but others still wait for it */
    CAUSE_MISMATCH, /* ranks disagree about an operation */
    CAUSE_DEADLINE, /* an operation's timeout passed */
    CAUSE_ABORTED,  /* ls_comm_abort */
    CAUSE_FAULT     /* anything else a rank reports: connection lost, no memory */
} cause_kind;

typedef struct job_cause {
    cause_kind kind;
    uint32_t group; /* GROUP_ALL or a group's id */
    int rank;       /* world rank that is guilty, -1: unknown */
    char text[512]; /* "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)", terminated */
} job_cause;

/* The status that calls fail with. */
ls_status cause_status(cause_kind kind);

/* Wire form: kind u32, group u32, rank u32, text. A reader that meets an impossible value fails. */
void cause_write(wire_writer *w, const job_cause *cause);
void cause_read(wire_reader *r, job_cause *out);

#endif
