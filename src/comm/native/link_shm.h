/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_shm.h - links between ranks of one host: all are created first, then each waits for the
 * other side.
 */
#ifndef LS_NATIVE_LINK_SHM_H
#define LS_NATIVE_LINK_SHM_H

#include "comm/native/link.h"
#include "comm/native/local.h"

/* Makes this side of the link to a local peer. It must be attached before it is used. */
LS_MUST_USE ls_status link_shm_create(local *l, int peer, const link_sink *sink, peer_link **out);

/* Waits for the peer's side. LS_ETIMEOUT, LS_EPEER. */
LS_MUST_USE ls_status link_shm_attach(peer_link *l, int64_t deadline_ms);

/* The peer's channel has ended: the link ends when the rest of the ring has been read. */
void link_shm_peer_ended(peer_link *l);

#endif
