/* SPDX-License-Identifier: Apache-2.0 */
/* link_shm.h - links between ranks of one host. */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_LINK_SHM_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_LINK_SHM_H

#include "comm/backends/native/link/link.h"
#include "comm/backends/native/memory/local.h"

/* Makes the link to a local peer. Neither side touches its memory before the first message. */
LS_MUST_USE ls_status link_shm_create(local *l, int peer, const link_sink *sink, peer_link **out);

/* Without a link: whether the peer has sent a message; whether it will send none any more; and that
 * this rank will send none. */
bool link_shm_is_open(const local *l, int peer);
bool link_shm_is_over(const local *l, int peer);
void link_shm_finish_unused(local *l, int peer);

/* The peer has ended: the link ends when the rest of the ring has been read. */
void link_shm_peer_ended(peer_link *l);

/* Memory for one direction of a link between two of `n_ranks` ranks of a host: whole pages. */
size_t link_shm_ring_bytes(int n_ranks);

#endif
