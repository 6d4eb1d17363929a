/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - checks the arguments of operations and fills in their stamps, for engine.c. Sizes are
 * computed without overflow; two buffers overlap only in the operation's in-place form.
 */
#include "comm/check.h"
#include "comm/comm.h"

#include "base/alloc.h"
#include "base/compute/accel.h"
#include "base/rng.h"

#include <stdint.h>

#define NO_VALUE    255               /* of a stamp's fields */
#define PLAIN_COUNT ((size_t)1 << 28) /* cannot overflow with any type and number of ranks */

/* The one count array of a v-variant other than all_to_all_v, NULL when there is none. */
static const size_t *shared_counts(const coll *op)
{
    return op->src_counts != NULL ? op->src_counts : op->dst_counts;
}

static ls_status sum_counts(const size_t *counts, int n, size_t *out)
{
    *out = 0;
    for (int i = 0; i < n; i++)
        LS_TRY(ls_add_size(*out, counts[i], out));
    return LS_OK;
}

static ls_status side_elements(const coll *op, coll_extent s, const size_t *counts, int rank,
                               int size, size_t *out)
{
    const size_t *shared = shared_counts(op);

    *out = 0;
    if (s == COLL_NOTHING)
        return LS_OK;
    if (s == COLL_ALL_PARTS && counts != NULL)
        return sum_counts(counts, size, out);
    if (s == COLL_ALL_PARTS)
        return ls_mul_size(op->count, (size_t)size, out);
    *out = shared != NULL ? shared[rank] : op->count;
    return LS_OK;
}

static ls_status side_bytes(const coll *op, coll_extent s, const size_t *counts, int rank, int size,
                            size_t *out)
{
    size_t elements;

    LS_TRY(side_elements(op, s, counts, rank, size, &elements));
    LS_TRY(ls_mul_size(elements, ls_dtype_size(op->dtype), out));
    // Offsets within a buffer must fit a pointer difference.
    return *out <= PTRDIFF_MAX ? LS_OK : ls_fail(LS_EINVAL, "%zu elements are too many", elements);
}

static bool is_used(const coll *op, bool at_root, int rank)
{
    return !at_root || op->root == rank;
}

static coll_side side_of(const coll *op, coll_extent s, const size_t *counts, int rank, int size)
{
    const size_t *shared = shared_counts(op);
    coll_side out = {.count = op->count};

    if (s == COLL_ALL_PARTS)
        return (coll_side){.n_parts = size, .count = op->count, .counts = counts};
    if (shared != NULL)
        out.count = shared[rank];
    out.n_parts = s == COLL_PART;
    return out;
}

coll_side check_src_side(const coll *op, int rank, int size)
{
    const coll_shape *shape = &coll_shapes[op->kind];
    const bool used = is_used(op, shape->src_at_root, rank);

    return side_of(op, used ? shape->src : COLL_NOTHING, op->src_counts, rank, size);
}

coll_side check_dst_side(const coll *op, int rank, int size)
{
    const coll_shape *shape = &coll_shapes[op->kind];
    const bool used = is_used(op, shape->dst_at_root, rank);

    return side_of(op, used ? shape->dst : COLL_NOTHING, op->dst_counts, rank, size);
}

size_t check_side_bytes(const coll *op, const coll_side *side)
{
    size_t elements = side->count * (size_t)side->n_parts;

    if (side->counts != NULL) {
        elements = 0;
        for (int i = 0; i < side->n_parts; i++)
            elements += side->counts[i];
    }
    return elements * ls_dtype_size(op->dtype);
}

static ls_status check_numbers(const coll *op, int rank, int size)
{
    const coll_shape *shape = &coll_shapes[op->kind];

    if (op->kind == COLL_BARRIER)
        return LS_OK;
    if (ls_dtype_size(op->dtype) == 0)
        return ls_fail(LS_EINVAL, "%d is not a type", (int)op->dtype);
    if (shape->reduces && ((int)op->redop < 0 || (int)op->redop >= LS_REDUCE_OP_COUNT))
        return ls_fail(LS_EINVAL, "%d is no reduction", (int)op->redop);
    if (shape->reduces && !reduce_is_defined(op->redop, op->dtype))
        return ls_fail(LS_EINVAL, "%s of %s: only %s types have it",
                       stamp_redop_name((uint8_t)op->redop), ls_dtype_name(op->dtype),
                       op->redop == LS_AVG ? "floating" : "integer");
    if (coll_has_root(op->kind) && (op->root < 0 || op->root >= size))
        return ls_fail(LS_EINVAL, "root %d: must be 0 to %d", op->root, size - 1);
    if (op->src_counts != NULL && op->dst_counts != NULL &&
        op->src_counts[rank] != op->dst_counts[rank])
        return ls_fail(LS_EINVAL, "this rank sends %zu elements to itself and receives %zu",
                       op->src_counts[rank], op->dst_counts[rank]);
    if (!coll_is_message(op->kind))
        return LS_OK;
    if (op->tag < 0)
        return ls_fail(LS_EINVAL, "tag %d is negative", op->tag);
    if (op->kind == COLL_RECV && op->root == LS_ANY_SOURCE && size > 1)
        return LS_OK;
    if (op->root < 0 || op->root >= size)
        return ls_fail(LS_EINVAL, "peer %d: must be 0 to %d", op->root, size - 1);
    if (op->root == rank)
        return ls_fail(LS_EINVAL, "peer %d is this rank itself", op->root);
    return LS_OK;
}

/* Whether the buffers have the operation's in-place form. */
static bool is_in_place(const coll *op, size_t src_bytes, size_t dst_bytes, int rank)
{
    const coll_shape *shape = &coll_shapes[op->kind];
    const char *src = op->src;
    const char *dst = op->dst;
    size_t before; // this rank's part

    if (shape->src == shape->dst)
        return src == dst && src_bytes == dst_bytes;
    before = check_side_bytes(op, &(coll_side){rank, op->count, shared_counts(op)});
    return shape->dst == COLL_ALL_PARTS ? src == dst + before : dst == src + before;
}

/* Both sides' bytes. The usual case, without counts or overflow, takes two multiplications. */
static ls_status both_bytes(const coll *op, int rank, int size, size_t *src_bytes,
                            size_t *dst_bytes)
{
    const coll_shape *shape = &coll_shapes[op->kind];

    if (shared_counts(op) == NULL && op->count <= PLAIN_COUNT) {
        const size_t part = op->count * ls_dtype_size(op->dtype);
        const size_t by_side[] = {
            [COLL_NOTHING] = 0, [COLL_PART] = part, [COLL_ALL_PARTS] = part * (size_t)size};

        *src_bytes = by_side[shape->src];
        *dst_bytes = by_side[shape->dst];
        return LS_OK;
    }
    LS_TRY(side_bytes(op, shape->src, op->src_counts, rank, size, src_bytes));
    return side_bytes(op, shape->dst, op->dst_counts, rank, size, dst_bytes);
}

static ls_status check_buffers(coll *op, int rank, int size)
{
    const coll_shape *shape = &coll_shapes[op->kind];
    size_t src_bytes;
    size_t dst_bytes;
    uintptr_t src;
    uintptr_t dst;

    LS_TRY(both_bytes(op, rank, size, &src_bytes, &dst_bytes));
    op->payload = src_bytes > dst_bytes ? src_bytes : dst_bytes;
    if (!is_used(op, shape->src_at_root, rank)) {
        op->src = NULL;
        src_bytes = 0;
    }
    if (!is_used(op, shape->dst_at_root, rank)) {
        op->dst = NULL;
        dst_bytes = 0;
    }
    if (op->src == NULL && src_bytes > 0)
        return ls_fail(LS_EINVAL, "src is NULL");
    if (op->dst == NULL && dst_bytes > 0)
        return ls_fail(LS_EINVAL, "dst is NULL");
    op->bytes = src_bytes + dst_bytes;
    src = (uintptr_t)op->src;
    dst = (uintptr_t)op->dst;
    if (src_bytes > 0 && dst_bytes > 0 && src < dst + dst_bytes && dst < src + src_bytes &&
        !is_in_place(op, src_bytes, dst_bytes, rank))
        return ls_fail(LS_EINVAL, "src and dst overlap");
    return LS_OK;
}

/* Finds the owner of the buffers. Without data the kind of memory means nothing, except in a
 * v-variant, where other ranks may have data. */
static ls_status check_memory(coll *op)
{
    accel *src = accel_of(op->src);
    accel *dst = accel_of(op->dst);

    op->accelerator = src != NULL ? src : dst;
    if (op->accelerator == NULL)
        return LS_OK;
    if (op->count == 0 && shared_counts(op) == NULL)
        op->accelerator = NULL;
    else if (op->src != NULL && op->dst != NULL && src != dst)
        return ls_fail(LS_EINVAL,
                       "src is in the memory of %s, dst in that of %s: both must be in the memory "
                       "of one device",
                       src != NULL ? src->name : "the host", dst != NULL ? dst->name : "the host");
    return LS_OK;
}

ls_status check_coll(coll *op, int rank, int size)
{
    ls_status st = check_numbers(op, rank, size);

    if (st == LS_OK)
        st = check_buffers(op, rank, size);
    if (st == LS_OK)
        st = check_memory(op);
    if (st != LS_OK)
        return ls_context(st, "%s", coll_name(op->kind));
    check_stamp(op, size);
    return LS_OK;
}

/* All ranks pass the same counts to v-variants; in all_to_all_v each pair compares its own. */
static uint64_t stamp_count(const coll *op, int size)
{
    const size_t *counts = shared_counts(op);
    uint64_t hash = 0;

    if (counts == NULL)
        return op->count;
    if (coll_is_pairwise(op->kind))
        return 0;
    for (int i = 0; i < size; i++)
        hash = ls_hash3(hash, (uint64_t)i, counts[i]);
    return hash;
}

void check_stamp(coll *op, int size)
{
    const coll_shape *shape = &coll_shapes[op->kind];
    const bool is_message = coll_is_message(op->kind);
    op_stamp *s = &op->stamp;

    s->group = 0;
    s->sequence = 0;
    s->kind = (uint8_t)op->kind;
    s->dtype = op->kind == COLL_BARRIER ? NO_VALUE : (uint8_t)op->dtype;
    s->redop = shape->reduces ? (uint8_t)op->redop : NO_VALUE;
    s->form = shared_counts(op) != NULL ? STAMP_V : 0;
    if (op->accelerator != NULL && !is_message)
        s->form |= STAMP_ON_DEVICE;
    s->root = coll_has_root(op->kind) || is_message ? op->root : -1;
    s->count = stamp_count(op, size);
    s->site[0] = '\0';
}
