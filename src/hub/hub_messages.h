/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_messages.h - the frames between a hub and its clients, written with net/wire.h. "key" and
 * "value" are bytes with their length (u32) in front.
 */
#ifndef LS_HUB_HUB_MESSAGES_H
#define LS_HUB_HUB_MESSAGES_H

#include <lockstep/store.h>

typedef enum hub_message_type {
    /* A rank's first frame: rank u32, world size u32, pid u32. */
    HUB_MESSAGE_HELLO = 1,
    HUB_MESSAGE_WELCOME = 2, /* empty */
    HUB_MESSAGE_REFUSED = 3, /* text; then the hub closes */

    /* Requests begin with an id u64. A newer request ends an open wait of the same connection. */
    HUB_MESSAGE_SET = 10,         /* key, value */
    HUB_MESSAGE_GET = 11,         /* timeout i64 (ms, -1: none), key */
    HUB_MESSAGE_ADD = 12,         /* key, delta i64 */
    HUB_MESSAGE_COMPARE_SET = 13, /* key, expected, desired */
    HUB_MESSAGE_WAIT = 14,        /* timeout i64, n u32, n keys */
    HUB_MESSAGE_CHECK = 15,       /* n u32, n keys */
    HUB_MESSAGE_DELETE = 16,      /* key */
    HUB_MESSAGE_COUNT = 17,       /* empty */
    /* timeout i64, n u32, prefix, first u32: the values of prefix "0" to "n-1", from the first on,
     * a multiple of HUB_MESSAGE_VALUES; at most so many, when all n exist */
    HUB_MESSAGE_GATHER = 19,

    /* id u64, status u32, then for LS_OK: GET value; ADD and COUNT i64; COMPARE_SET, CHECK and
     * DELETE u8; GATHER values (values.h); otherwise text. */
    HUB_MESSAGE_REPLY = 18,

    /* From ranks. The answer to WAITING is LEFT_GROUP, if members have left the group, and then
     * ACKNOWLEDGED. The others have no answer. */
    /* stamp, number u64, report in i64 (ms), waited i64 (ms), n u32, n members u32; n 0: all */
    HUB_MESSAGE_WAITING = 20,
    HUB_MESSAGE_ARRIVED = 21,     /* stamp, number u64 */
    HUB_MESSAGE_FAIL = 22,        /* cause */
    HUB_MESSAGE_LEAVE_JOB = 23,   /* empty */
    HUB_MESSAGE_CALLS = 24,       /* n u32, n times: stamp, digest u64 */
    HUB_MESSAGE_LEAVE_GROUP = 25, /* group u32, sequence u64, number of members u32 */
    /* ticket u64, group u32, timeout i64 (ms), report in i64 (ms), what, n u32, n members u32. The
     * answer is MET, when all members have sent it with the same `what`. */
    HUB_MESSAGE_MEET = 26,
    HUB_MESSAGE_STACK = 27, /* text, after ASK_STACK */

    /* To ranks, at any time after WELCOME. */
    HUB_MESSAGE_CAUSE = 30,        /* cause */
    HUB_MESSAGE_LEFT = 31,         /* rank u32 */
    HUB_MESSAGE_ACKNOWLEDGED = 32, /* empty */
    HUB_MESSAGE_LEFT_GROUP = 33,   /* group u32, n u32, n times: rank u32, sequence u64 */
    HUB_MESSAGE_ASK_STACK = 35,    /* empty */
    HUB_MESSAGE_MET = 34           /* ticket u64, status u32, id of a new group u32, text */
} hub_message_type;

/* The largest request is a compare_set; a wait's keys share the same bound. */
#define HUB_MESSAGE_BODY_MAX ((size_t)2 * LS_STORE_VALUE_MAX + (size_t)64 * 1024)
/* More queued bytes end the connection of a client that does not read. */
#define HUB_MESSAGE_QUEUE_MAX ((size_t)16 * 1024 * 1024 + (size_t)64 * 1024)
#define HUB_MESSAGE_RANKS_MAX (64 * 1024)
#define HUB_MESSAGE_VALUES    512
#define HUB_MESSAGE_TEXT_MAX  512
#define HUB_BARRIER_BYTES     96 /* of `what`, terminated */

#endif
