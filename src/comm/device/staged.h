/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.h - operations on the memory of accelerators over a backend that takes host memory only:
 * the engine copies the data to page-locked memory, in pieces, runs the backend's operation on
 * each piece, and copies the result back. All functions are called under the engine's lock; none
 * but staged_abort() and staged_close() blocks.
 *
 * Order   A group has at most one host operation of a collective under way. Collectives that are
 *         called after an operation on device memory start after it, as they do on all ranks; so
 *         do sends after a send.
 * Events  No copy is queued before the caller's queue has reached the call, so a queued copy never
 *         waits for anything but other copies.
 *
 * comm/device/: operations on memory of accelerators. Called by comm/engine and comm/group.
 */
#ifndef LS_COMM_DEVICE_STAGED_H
#define LS_COMM_DEVICE_STAGED_H

#include "base/compute/accel.h"
#include "comm/engine.h"

typedef struct staged_op staged_op; /* of a work */
typedef struct staging staging;     /* of a group */

/* Whether this work, whose arguments are checked, runs through staged_start(). */
bool staged_concerns(const ls_comm *comm, const coll *op);

/* Prepares the work and marks the present end of the caller's queue. *n_pieces: how many numbers of
 * operations it needs. On failure nothing has changed. */
LS_MUST_USE ls_status staged_attach(ls_comm *comm, ls_work *w, uint64_t *n_pieces);
/* Gives back what staged_attach() took; the work does not access memory any more. */
void staged_detach(ls_work *w);

/* The work is numbered and stamped. */
void staged_start(ls_work *w);
/* The backend has ended the host operation of a piece. */
void staged_host_done(ls_work *w, ls_status status, const char *text);

/* Progresses all staged works; true when any has progressed. */
bool staged_progress(engine *e);
/* Whether a staged work waits for an accelerator, which wakes no thread. */
bool staged_polls(const engine *e);

/* The group is broken and its host operations have ended: waits until the queued copies are done.
 * If they are not within a second, their staging memory is not used again. Works whose results have
 * arrived from the other ranks end without failure. */
void staged_abort(ls_comm *comm);
/* Gives back what belongs to the accelerator, on which no work is under way. */
void staged_forget(ls_comm *comm, const accel *owner);
/* Frees the group's staging memory; all works have ended. */
void staged_close(ls_comm *comm);

#endif
