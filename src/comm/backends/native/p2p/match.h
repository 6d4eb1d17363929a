/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.h - sends and receives of messages: which message belongs to which receive, and the credit
 * that bounds the memory for those that have none yet.
 *
 * comm/backends/native/p2p/: messages between two ranks, and the execution of plans. Called by
 * engine/ through match.h, direct.h and exec.h.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_P2P_MATCH_H
#define LS_COMM_BACKENDS_NATIVE_P2P_MATCH_H

#include "comm/backends/native/native.h"

void match_init(native_peer *p);
void match_free(native_peer *p); /* its unexpected messages */
link_sink match_sink(native_peer *p);
void match_send(transfer *t);
void match_receive(transfer *t);
/* Drops all transfers of the group; nothing touches its buffers afterwards. */
void match_cancel(native_group *g);
/* The peer's link has ended: breaks the groups that wait for it. */
void match_peer_gone(native_peer *p);
/* Whether the links of all other ranks of the group have ended. */
bool match_all_ended(const native_group *g);
/* Before an operation starts: its unexpected messages must have its stamp. */
void match_check_unexpected(native_work *w);
/* After it has ended: no message of it may be left over. */
void match_check_leftover(native_work *w);
/* Queues an empty message, which carries the credit. */
void match_send_credit(native_peer *p);
/* This rank closes the group: queues the notice behind all messages for the peer. */
void match_queue_left(native_peer *p, const native_group *g);
/* Whether the peer's notice has come; *next_sequence is then of its first collective that has not
 * ended there. */
bool match_has_left(const native_group *g, const native_peer *p, uint64_t *next_sequence);
/* Frees the unexpected messages of a group that is closed. */
void match_free_group(native_state *s, uint32_t id);
/* Whether a message from the peer, or an answer to one, is awaited. */
bool match_is_expecting(const native_peer *p);

/* --- for direct.c --- */

void match_queue_control(native_peer *p, message_type type, const transfer *t);
void match_queue_payload(transfer *t, const uint8_t *from, size_t bytes, message_type type,
                         bool is_charged);
/* Charges a payload to the peer's credit; false: there is not enough. */
bool match_charge(native_peer *p, size_t bytes);
/* Charges and posts a message that needs no queue; false: neither. */
bool match_post(native_peer *p, const message *m, const uint8_t *payload);
/* Takes the peer's next message if it has come and is the requested one; credits are filled in. */
bool match_take(native_peer *p, link_request *request, uint8_t *to);
/* The message has found its receive. */
void match_return_credit(native_peer *p, const message *m);
/* Saves a message until its receive is posted; *target is where its payload goes. */
LS_MUST_USE ls_status match_save_unexpected(native_peer *p, const message *m, list_node *list,
                                            uint8_t **target);
void match_free_unexpected(unexpected_message *u); /* a payload still coming in is dropped */

#endif
