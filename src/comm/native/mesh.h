/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.h - TCP connections with ranks of other hosts, each made when something is to be sent over it for the first time.
 *
 * Who has something to send calls, while the other may call as well. The lower of the two ranks chooses: it sends over the first
 * connection that has proved itself in either direction and closes the other, and the higher sends nothing before it has heard
 * from the lower. So two calls that cross end in one connection, whatever their timing, and no byte of a message is ever
 * on a connection that is given up. With several connections a pair (LOCKSTEP_CONNECTIONS) this is the first of them, and whose call
 * it was calls for the others (streams.h).
 *
 * Nothing waits: everything moves in mesh_progress(). A peer whose system has taken the call may take its time to answer, as a rank
 * that computes looks at no connection; one where nobody listens any more, or nothing answers for MESH_CONNECT_MS, has failed.
 */
#ifndef LS_NATIVE_MESH_H
#define LS_NATIVE_MESH_H

#include "comm/native/native.h"

#define MESH_CONNECT_MS 10000

/* Listens for the other ranks: takes boot->listen_fd, also on failure. boot is borrowed until mesh_close(). */
LS_MUST_USE ls_status mesh_open(native_state *s, const comm_boot *boot, mesh **out);
void mesh_close(mesh *m);        /* what is not connected yet never will be; NULL is allowed */
void mesh_forked(const mesh *m); /* closes what a forked child inherited */

/* Something is queued for a peer whose link is idle: connects. A failure shows later as the end of the link. */
void mesh_connect(native_peer *p);

/* Something is awaited from a peer whose link may be idle. It will connect when it has it; if that takes long, we do, to see whether it
 * is alive. */
void mesh_expect(native_peer *p);

bool mesh_progress(mesh *m);        /* true when something moved */
int mesh_fd(const mesh *m);         /* readable when mesh_progress() has something to do */
int64_t mesh_due_ms(const mesh *m); /* ... which it also has from then on; INT64_MAX: never */

#endif
