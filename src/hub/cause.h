/* SPDX-License-Identifier: Apache-2.0 */
/* cause.h - why a job or a group ends: one record, sent to all ranks. */
#ifndef LS_HUB_CAUSE_H
#define LS_HUB_CAUSE_H

#include "net/wire.h"

#define JOB_ID_BYTES 17         /* 16 hexadecimal digits and a 0 */
#define GROUP_ALL    UINT32_MAX /* the whole job, not one group */

/* Waits of ranks outside of groups (control_begin_stage). */
#define GROUP_JOIN    (GROUP_ALL - 1)
#define GROUP_CONNECT (GROUP_ALL - 2)
#define GROUP_ID_END  GROUP_CONNECT /* no group of a job has this or a higher id */

typedef enum cause_kind {
    CAUSE_NONE = 0,
    CAUSE_DIED,     /* a rank was killed, exited with a code, or lost its connection */
    CAUSE_LEFT,     /* a rank exited in good order while others wait for it */
    CAUSE_MISMATCH, /* ranks disagree about an operation */
    CAUSE_DEADLINE, /* an operation's timeout passed */
    CAUSE_ABORTED,  /* ls_comm_abort */
    CAUSE_FAULT     /* any other failure that a rank reports: connection lost, no memory */
} cause_kind;

typedef struct job_cause {
    cause_kind kind;
    uint32_t group; /* GROUP_ALL or a group's id */
    int rank;       /* world rank that failed, -1: unknown */
    char text[512]; /* "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)", terminated */
} job_cause;

/* The status with which calls fail. */
ls_status cause_status(cause_kind kind);

/* Wire form: kind u32, group u32, rank u32, text. Impossible values set r->failed. */
void cause_write(wire_writer *w, const job_cause *cause);
void cause_read(wire_reader *r, job_cause *out);

#endif
