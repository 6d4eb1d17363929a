/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_pool.h - free lists of the objects that messages need, so that warm operations allocate
 * nothing.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MESSAGE_POOL_H
#define LS_COMM_BACKENDS_NATIVE_MESSAGE_POOL_H

#include "comm/backends/native/peer.h"

#define POOL_SIZE_CLASSES 16

typedef struct message_pool {
    list_node items;
    list_node transfers;
    list_node unexpected[POOL_SIZE_CLASSES]; /* by capacity: 64 bytes << index */
} message_pool;

void message_pool_init(message_pool *p);
void message_pool_destroy(message_pool *p);

/* Each _new returns NULL without memory. */
transfer *message_pool_new_transfer(message_pool *p);
void message_pool_free_transfer(message_pool *p, transfer *t);
/* For a transfer that will not finish: those of collectives are the pool's, the others part of
 * their work. */
void message_pool_drop_transfer(message_pool *p, transfer *t);
link_item *message_pool_new_item(message_pool *p);
void message_pool_free_item(message_pool *p, link_item *item);
unexpected_message *message_pool_new_unexpected(message_pool *p, size_t bytes);
void message_pool_free_unexpected(message_pool *p, unexpected_message *u);

#endif
