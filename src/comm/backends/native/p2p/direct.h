/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h - send and receive between two ranks of a group. */
#ifndef LS_COMM_BACKENDS_NATIVE_P2P_DIRECT_H
#define LS_COMM_BACKENDS_NATIVE_P2P_DIRECT_H

#include "comm/backends/native/native.h"

void direct_start(native_group *g, backend_work *work);
/* Goes on with messages that waited for a mapping; true when something moved. */
bool direct_progress(native_state *s);
/* A point to point message has come; *target is where its payload goes. g NULL: unknown group. */
LS_MUST_USE ls_status direct_on_message(native_peer *p, native_group *g, const message *m,
                                        uint8_t **target);
/* These bytes of the payload have come. */
void direct_received(transfer *t, size_t bytes);
void direct_sent(transfer *t, size_t bytes);
/* Completes a receive from a known rank whose message is already there; false: it is not there, or
 * cannot be taken at once. */
bool direct_try_receive(transfer *t);
/* The transfer takes an unexpected message that is complete. */
void direct_claim_unexpected(unexpected_message *u, transfer *t);
void direct_release(native_work *w);

#endif
