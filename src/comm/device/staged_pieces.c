/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged_pieces.c - the blocks of page-locked memory of a group, and where the parts of a piece are
 * in its block. A block is reused when its event has happened. staged.c calls it.
 */
#include "comm/device/staged_pieces.h"

#include "base/alloc.h"

#define IDLE_BLOCKS 8 /* of messages, kept for the next ones */

/* --- blocks --- */

void staging_block_empty(staging_block *b)
{
    if (b->memory != NULL)
        accel_free_host(b->owner, b->memory);
    accel_event_destroy(b->event);
    *b = (staging_block){0};
}

ls_status staging_block_fit(staging_block *b, accel *owner, size_t bytes)
{
    ls_status st;

    if (b->owner == owner && b->bytes >= bytes)
        return LS_OK;
    staging_block_empty(b);
    b->memory = accel_alloc_host(owner, bytes);
    if (b->memory == NULL)
        return ls_fail(LS_ENOMEM, "no page-locked memory: %zu bytes for an operation on %s", bytes,
                       owner->name);
    b->owner = owner;
    b->bytes = bytes;
    st = accel_event_create(owner, false, &b->event);
    if (st != LS_OK)
        staging_block_empty(b);
    return st;
}

static void free_block(staging_block *b)
{
    staging_block_empty(b);
    ls_free(b);
}

ls_status staging_block_take(staging *s, accel *owner, size_t bytes, staging_block **out)
{
    staging_block *b = NULL;
    ls_status st;

    list_for_each (it, &s->idle) {
        staging_block *each = list_entry(it, staging_block, node);

        if (each->owner == owner && each->bytes >= bytes)
            b = each;
    }
    if (b != NULL) {
        list_remove(&b->node);
        s->n_idle--;
        *out = b;
        return LS_OK;
    }
    LS_TRY(LS_NEW(&b, 1, "for an operation"));
    list_init(&b->node);
    st = staging_block_fit(b, owner, bytes);
    if (st != LS_OK)
        free_block(b);
    else
        *out = b;
    return st;
}

void staging_block_give(staging *s, staging_block *b)
{
    list_append(&s->idle, &b->node);
    if (++s->n_idle <= IDLE_BLOCKS)
        return;
    b = list_entry(s->idle.next, staging_block, node);
    list_remove(&b->node);
    s->n_idle--;
    free_block(b);
}

void staging_block_forget(staging *s, const accel *owner)
{
    list_for_each_safe (it, &s->idle) {
        staging_block *b = list_entry(it, staging_block, node);

        if (owner != NULL && b->owner != owner)
            continue;
        list_remove(&b->node);
        s->n_idle--;
        free_block(b);
    }
}

staging_block *staging_block_of(staging *s, const staged_op *op, size_t piece)
{
    return op->own != NULL ? op->own : &s->ring[(op->first + piece) % STAGING_RING];
}

/* --- pieces --- */

static size_t part_count(const coll_side *side, int r)
{
    return side->counts != NULL ? side->counts[r] : side->count;
}

size_t staging_most_elements(const coll_side *side)
{
    size_t most = 0;

    for (int r = 0; r < side->n_parts; r++) {
        if (part_count(side, r) > most)
            most = part_count(side, r);
    }
    return most;
}

/* Of part r, the elements in the piece that starts at element `at`. */
static size_t count_in_piece(const staged_op *op, const coll_side *side, int r, size_t at)
{
    const size_t count = part_count(side, r);

    if (count <= at)
        return 0;
    return count - at < op->piece ? count - at : op->piece;
}

/* Elements of one side of a piece in front of part `n`. */
static size_t elements_before(const staged_op *op, const coll_side *side, int n, size_t at)
{
    size_t sum = 0;

    for (int r = 0; r < n; r++)
        sum += count_in_piece(op, side, r, at);
    return sum;
}

static size_t side_bytes(const staged_op *op, const coll_side *side, size_t at)
{
    return elements_before(op, side, side->n_parts, at) * ls_dtype_size(op->work->b.op.dtype);
}

staging_places staging_places_of(const staged_op *op, size_t at)
{
    const size_t size = ls_dtype_size(op->work->b.op.dtype);
    const int rank = op->work->comm->info.rank;
    staging_places p = {0, 0};

    if (op->src.n_parts > 1 && op->dst.n_parts > 1)
        p.dst = (side_bytes(op, &op->src, at) + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
    else if (op->dst.n_parts > 1)
        p.src = elements_before(op, &op->dst, rank, at) * size;
    else if (op->src.n_parts > 1)
        p.dst = elements_before(op, &op->src, rank, at) * size;
    return p;
}

ls_status staging_copy_side(staged_op *op, const coll_side *side, size_t at, char *device,
                            uint8_t *host, accel_direction direction)
{
    ls_queue *queue = accel_queue(op->owner, ACCEL_STAGING);
    const size_t size = ls_dtype_size(op->work->b.op.dtype);
    const bool is_whole = op->n_pieces == 1; // parts are contiguous on both sides
    const int n = is_whole ? side->n_parts > 0 : side->n_parts;

    for (int r = 0; r < n; r++) {
        const size_t bytes =
            is_whole ? side_bytes(op, side, at) : count_in_piece(op, side, r, at) * size;
        char *from = device + at * size;

        if (direction == ACCEL_TO_HOST)
            LS_TRY(accel_copy(queue, host, from, bytes, direction));
        else
            LS_TRY(accel_copy(queue, from, host, bytes, direction));
        device += part_count(side, r) * size;
        host += bytes;
    }
    return LS_OK;
}

void staging_describe_piece(staging *s, staged_op *op, size_t piece)
{
    const coll *whole = &op->work->b.op;
    const int n = op->work->comm->info.size;
    const size_t at = piece * op->piece;
    const staging_places places = staging_places_of(op, at);
    uint8_t *memory = staging_block_of(s, op, piece)->memory;
    coll *part = &op->host.op;

    *part = *whole;
    part->accelerator = NULL;
    part->queue = NULL;
    part->stamp.sequence += stamp_is_message(&whole->stamp) ? 0 : piece;
    part->src = op->src.n_parts > 0 ? memory + places.src : NULL;
    part->dst = op->dst.n_parts > 0 ? memory + places.dst : NULL;
    if (whole->src_counts == NULL && whole->dst_counts == NULL)
        part->count = whole->count - at < op->piece ? whole->count - at : op->piece;
    for (int r = 0; r < n && whole->src_counts != NULL; r++)
        op->counts[r] =
            count_in_piece(op, &(coll_side){.n_parts = n, .counts = whole->src_counts}, r, at);
    for (int r = 0; r < n && whole->dst_counts != NULL; r++)
        op->counts[n + r] =
            count_in_piece(op, &(coll_side){.n_parts = n, .counts = whole->dst_counts}, r, at);
    part->src_counts = whole->src_counts != NULL ? op->counts : NULL;
    part->dst_counts = whole->dst_counts != NULL ? op->counts + n : NULL;
    part->bytes = side_bytes(op, &op->src, at) + side_bytes(op, &op->dst, at);
    part->payload = part->bytes;
}
