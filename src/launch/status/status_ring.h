/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_ring.h - what the agent needs of flight recorders: a running rank's part of the job's
 * status, and the last operations of a dead rank for its report of a failure.
 */
#ifndef LS_LAUNCH_STATUS_STATUS_RING_H
#define LS_LAUNCH_STATUS_STATUS_RING_H

#include "launch/status/job_status.h"

/* Adds what the recorder has to the status of its rank, and its operations to `job`; NULL: they are
 * not wanted. Nothing if the rank has not joined a job. The agent's thread only. */
void status_ring_add(int fd, status_rank *out, job_status *job);

/* Appends the last operations. */
void status_ring_describe(int fd, text_buf *out);

#endif
