/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_queues.h - the queues of a c10d store, by name. An empty queue takes no memory. */
#ifndef LS_C10D_C10D_QUEUES_H
#define LS_C10D_C10D_QUEUES_H

#include "store/table.h"

#define C10D_QUEUED_MAX ((size_t)1024 * 1024) /* values in all queues */

/* Zero-initialise. */
typedef struct c10d_queues {
    byte_map map;
    size_t n_items;
    size_t bytes; /* in memory, overhead included */
} c10d_queues;

typedef struct c10d_queue_item {
    list_node node;
    kv_bytes value; /* into data */
    uint8_t data[];
} c10d_queue_item;

void c10d_queues_free(c10d_queues *q);

/* LS_ENOMEM: no memory, or more than bytes_max; nothing is added. */
LS_MUST_USE ls_status c10d_queues_push(c10d_queues *q, kv_bytes name, kv_bytes value,
                                       size_t bytes_max);

/* The oldest item, which the caller frees with ls_free(); NULL when the queue is empty. */
c10d_queue_item *c10d_queues_pop(c10d_queues *q, kv_bytes name);

size_t c10d_queues_length(const c10d_queues *q, kv_bytes name);

#endif
