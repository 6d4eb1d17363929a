/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_ring.h - what the agent needs of flight recorders: a running rank's part of the job's view,
 * and the last operations of a dead rank for its report of a failure.
 */
#ifndef LS_LAUNCH_STATUS_VIEW_RING_H
#define LS_LAUNCH_STATUS_VIEW_RING_H

#include "launch/status/view.h"

/* Adds what the recorder has to the view of its rank, and its operations to `job`; NULL: they are
 * not wanted. Nothing if the rank has not joined a job. The agent's thread only. */
void view_ring_add(int fd, view_rank *out, job_view *job);

/* Appends the last operations. */
void view_ring_describe(int fd, text_buf *out);

#endif
