/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_counts.h - numbers the messages of a group: by direction, peer and tag, from 1.
 *
 * Memory is bounded (below 600 KiB), however many tags a program uses. Beyond some thousands of
 * them, a tag that has not been used for a while may go on with a higher number than its next one:
 * the numbers of one tag always grow. Nothing compares the numbers of two ranks.
 *
 * Threads    Under the engine's lock.
 */
#ifndef LS_COMM_RECORD_MESSAGE_COUNTS_H
#define LS_COMM_RECORD_MESSAGE_COUNTS_H

#include "base/status.h"

#include <stdint.h>

typedef struct message_count {
    int32_t is_send;
    int32_t peer;
    int32_t tag;
    uint64_t last; /* 0: unused */
} message_count;

/* Zero-initialise. */
typedef struct message_counts {
    message_count
        current[2]; /* the last used one of each direction; `slots` lacks its last numbers */
    message_count *slots;
    uint32_t n_slots; /* a power of two, or 0 */
    uint64_t floor;   /* at least the last number of all that were dropped */
} message_counts;

/* The number of the next message. LS_ENOMEM: nothing has changed. */
LS_MUST_USE ls_status message_counts_next(message_counts *m, const message_count *key,
                                          uint64_t *number);
void message_counts_free(message_counts *m);

#endif
