/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.h - TCP connections with ranks of other hosts, each made when something is first to be sent.
 *
 * A rank that has something to send connects to its peer, which may connect at the same time. The
 * lower of the two ranks selects the connection: it sends over the first one that is authenticated
 * in either direction and closes the other, and the higher rank sends nothing before it has
 * received from the lower. So two crossing attempts end in one connection, whatever their timing,
 * and no byte of a message is ever on a connection that is closed. With several connections per
 * pair (LOCKSTEP_CONNECTIONS) this is the first of them, and the rank that made it makes the others
 * (mesh_streams.h).
 *
 * Nothing blocks: everything moves in mesh_progress(). A peer whose kernel has accepted the
 * connection may answer late, because a rank that computes does not look at its connections. A peer
 * that refuses the connection, or does not accept it for MESH_CONNECT_MS, has failed.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_LINK_MESH_H
#define LS_COMM_BACKENDS_NATIVE_LINK_MESH_H

#include "comm/backends/native/link/link.h"
#include "comm/join/boot.h"

#define MESH_CONNECT_MS 10000

typedef struct mesh mesh;

/* Upcalls to the owner, per peer (world rank). Called when connections are made or lost, from
 * mesh_progress() alone. */
typedef struct mesh_events {
    void *self;
    /* The link has its stream: its descriptor can be polled. A failure ends the link. */
    ls_status (*connected)(void *self, int rank);
    /* The link may take more: flush it. */
    void (*flush)(void *self, int rank);
    /* Queue an empty message: the lower rank selects the connection by sending. */
    void (*send_empty)(void *self, int rank);
    /* Whether a message from the peer, or an answer to one, is awaited. */
    bool (*is_expecting)(void *self, int rank);
    /* The link has ended. why: the reason, printable; NULL: the peer has closed it in good
     * order. */
    void (*ended)(void *self, int rank, const char *why);
} mesh_events;

/* Listens for the other ranks: takes boot->listen_fd, also on failure. boot is borrowed until
 * mesh_close(). */
LS_MUST_USE ls_status mesh_open(const comm_boot *boot, const mesh_events *events, mesh **out);
void mesh_close(mesh *m);        /* gives up unfinished connections; NULL is allowed */
void mesh_forked(const mesh *m); /* closes what a forked child inherited */

/* A rank of another host. The link is idle, and borrowed until mesh_close(). */
LS_MUST_USE ls_status mesh_add_peer(mesh *m, int rank, peer_link *link);

/* Something is queued for a peer whose link is idle: connects. A failure ends the link later. */
void mesh_connect(mesh *m, int rank);

/* Something is awaited from a peer whose link may be idle. The peer connects when it sends; if that
 * takes long, this rank connects, to find out whether the peer still runs. m NULL: does nothing. */
void mesh_expect(mesh *m, int rank);

bool mesh_progress(mesh *m); /* true when something moved */

/* mesh_progress() has something to do when the descriptor is readable, or from the given time on
 * (INT64_MAX: never). */
int mesh_fd(const mesh *m);
int64_t mesh_due_ms(const mesh *m);

#endif
