/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged_pieces.h - the state of operations that run through host memory (staged.h): blocks of
 * page-locked memory, and the pieces of an operation in them. staged.c alone uses it.
 */
#ifndef LS_COMM_DEVICE_STAGED_PIECES_H
#define LS_COMM_DEVICE_STAGED_PIECES_H

#include "base/compute/accel.h"
#include "comm/check.h"
#include "comm/device/staged.h"

#define STAGING_RING  4
#define STAGING_ALIGN 64 /* of the second side of all_to_all in a block */

/* Page-locked memory. The event happens after the last copy from or to it. */
typedef struct staging_block {
    list_node node; /* in staging->idle */
    accel *owner;
    uint8_t *memory;
    size_t bytes;
    accel_event *event;
} staging_block;

struct staged_op {
    list_node node;
    ls_work *work;
    accel *owner;       /* NULL: an operation on host memory, which waits for its turn */
    accel_event *start; /* the work that the caller's queue had at the call is done */
    accel_event *began; /* before the first copy; with --trace only, else NULL */
    accel_event *end;   /* the result is in device memory */
    backend_work host;  /* the operation on a piece */
    size_t *counts;     /* of the piece, by rank: src, then dst */
    size_t counts_capacity;
    coll_side src;
    coll_side dst;
    size_t piece; /* elements of each part */
    size_t n_pieces;
    size_t first;       /* block of the ring that piece 0 uses */
    staging_block *own; /* NULL: it uses the ring */
    /* Pieces by stage: n_loaded >= n_started >= n_hosted >= n_stored. */
    size_t n_loaded;
    size_t n_started;
    size_t n_hosted;
    size_t n_stored;
    bool has_begun;  /* `start` has happened */
    bool has_copies; /* copies to device memory were queued */
    bool is_queued;  /* all of them were, and `end` is recorded */
    bool has_failed;
    bool polls; /* waits for an event */
};

struct staging {
    list_node collectives; /* in the order of the calls; the first one uses the ring */
    list_node sends;       /* in the order of the calls, until their host operation has started */
    list_node others;      /* receives, started sends, collectives whose last copy is queued */
    list_node free_ops;
    list_node idle; /* blocks for messages */
    int n_idle;
    size_t ring_bytes;
    size_t next; /* block of the ring for the next collective */
    staging_block ring[STAGING_RING];
};

/* --- blocks --- */

/* Makes the block large enough; its copies are done. */
LS_MUST_USE ls_status staging_block_fit(staging_block *b, accel *owner, size_t bytes);
void staging_block_empty(staging_block *b);
/* A block for a message; gives it back. */
LS_MUST_USE ls_status staging_block_take(staging *s, accel *owner, size_t bytes,
                                         staging_block **out);
void staging_block_give(staging *s, staging_block *b);
/* Frees the idle blocks of messages of this accelerator, NULL: of all. */
void staging_block_forget(staging *s, const accel *owner);
/* The block of a piece of the op. */
staging_block *staging_block_of(staging *s, const staged_op *op, size_t piece);

/* --- pieces --- */

/* Of the largest part. */
size_t staging_most_elements(const coll_side *side);

/* Where the two sides of a piece are in its block: in the in-place form of the operation, except
 * for all_to_all, which has none. */
typedef struct staging_places {
    size_t src;
    size_t dst;
} staging_places;

/* Of the piece that starts at element `at` of each part. */
staging_places staging_places_of(const staged_op *op, size_t at);
/* Queues the copies between one side of the caller's memory and its place in a block. */
LS_MUST_USE ls_status staging_copy_side(staged_op *op, const coll_side *side, size_t at,
                                        char *device, uint8_t *host, accel_direction direction);
/* Describes the operation on a piece in host memory: op->host.op. */
void staging_describe_piece(staging *s, staged_op *op, size_t piece);

#endif
