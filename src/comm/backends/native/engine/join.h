/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h - connects a rank with the others when the job starts.
 *
 * comm/backends/native/engine/: the functions of native_backend_ops: open, start, progress, close.
 * Called by comm/engine through comm/backends/backend.h.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_ENGINE_JOIN_H
#define LS_COMM_BACKENDS_NATIVE_ENGINE_JOIN_H

#include "comm/backends/native/native.h"

/* Connects with the ranks of this host and listens for the others (mesh.h); the listeners of boot
 * are closed or taken in any case. */
LS_MUST_USE ls_status native_join(native_state *s, const comm_boot *boot);

/* Collective over the job, once connected: finds out which ranks share a host. */
LS_MUST_USE ls_status native_exchange_hosts(native_state *s, const comm_boot *boot);

#endif
