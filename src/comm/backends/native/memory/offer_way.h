/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer_way.h - how a receiver takes a message whose payload it could read from the sender's
 * memory: it reads it, or requests it in pieces, through the ring.
 *
 * Reading copies once, but by a system call that pins each page, or from lines that the sender
 * takes back when it writes them again. Which way is faster depends on where the two cores are, and
 * by factors of 2 to 5. So now and then a receiver times one message of each way, and compares.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_OFFER_WAY_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_OFFER_WAY_H

#include "comm/backends/native/memory/copy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of messages of one kind from one sender. All zero at first. Not thread-safe. */
typedef struct offer_way {
    copy_way way; /* is_around: in pieces */
    enum { OFFER_WAY_IDLE, OFFER_WAY_READS, OFFER_WAY_HAS_READ, OFFER_WAY_TAKES } step;
    double read_ns; /* of a byte, from OFFER_WAY_HAS_READ on */
} offer_way;

/* Whether the next message is taken in pieces; *is_timed: offer_way_ended() is due at its end. */
bool offer_way_takes_pieces(offer_way *w, bool *is_timed);
/* A timed message of so many bytes has come, from the choice on in so many nanoseconds. */
void offer_way_ended(offer_way *w, size_t bytes, int64_t ns);
/* A timed message has failed, or could not be read: the comparison counts for nothing. */
void offer_way_gave_up(offer_way *w);

/* The ways of all messages from one sender: by size, and whether its memory is mapped. */
#define OFFER_CLASSES    6
#define OFFER_LEAST_BITS 16 /* a class ends with each power of two above */

typedef struct offer_ways {
    offer_way of[2][OFFER_CLASSES];
} offer_ways;

/* NULL: a message of that size is always read. */
offer_way *offer_ways_find(offer_ways *w, size_t bytes, bool is_mapped);

#endif
