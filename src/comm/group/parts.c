/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c - buffers of operations whose caller has a pointer for each rank. Parts that follow each
 * other in memory, as those of one tensor, are used as they are; others go through one block, with
 * one copy. engine.c calls it.
 */
#include "comm/group/parts.h"

#include "base/alloc.h"
#include "base/compute/accel.h"

#include <string.h>

#define ALIGNMENT 64

/* One side of a call. */
typedef struct part_list {
    void *const *at;
    const size_t *counts; /* NULL: `count` each */
    size_t count;
    size_t element;
    int n;
} part_list;

static size_t bytes_of(const part_list *l, int i)
{
    return (l->counts != NULL ? l->counts[i] : l->count) * l->element;
}

static ls_status sum_bytes(const part_list *l, const char *what, size_t *out)
{
    *out = 0;
    for (int i = 0; i < l->n; i++) {
        size_t bytes;

        LS_TRY(ls_mul_size(l->counts != NULL ? l->counts[i] : l->count, l->element, &bytes));
        LS_TRY(ls_add_size(*out, bytes, out));
        if (bytes > 0 && l->at[i] == NULL)
            return ls_fail(LS_EINVAL, "%s[%d] is NULL", what, i);
        if (bytes > 0 && accel_of(l->at[i]) != NULL)
            return ls_fail(LS_EUNSUPPORTED,
                           "%s[%d] is in the memory of a device: lists are of host memory", what,
                           i);
    }
    return *out <= PTRDIFF_MAX / 2 ? LS_OK : ls_fail(LS_EINVAL, "%zu bytes are too many", *out);
}

/* The first part when the others follow it, else NULL; also without data. */
static void *contiguous(const part_list *l)
{
    void *first = NULL;
    uintptr_t next = 0;

    for (int i = 0; i < l->n; i++) {
        if (bytes_of(l, i) == 0)
            continue;
        if (first == NULL)
            first = l->at[i];
        else if ((uintptr_t)l->at[i] != next)
            return NULL;
        next = (uintptr_t)l->at[i] + bytes_of(l, i);
    }
    return first;
}

/* Without data the address is not used. */
static bool needs_block(const part_list *l, size_t bytes)
{
    return bytes > 0 && contiguous(l) == NULL;
}

static void copy_in(const part_list *l, char *block)
{
    for (int i = 0; i < l->n; i++) {
        if (bytes_of(l, i) > 0)
            memcpy(block, l->at[i], bytes_of(l, i));
        block += bytes_of(l, i);
    }
}

/* The list is valid during the call only. */
static ls_status keep_list(ls_work *w, const part_list *l, const char *block)
{
    const size_t n = (size_t)l->n;

    LS_TRY(LS_NEW(&w->parts, n, "for the parts of %d ranks", l->n));
    for (int i = 0; i < l->n; i++) {
        w->parts[i] = (work_part){.to = l->at[i], .from = block, .bytes = bytes_of(l, i)};
        block += bytes_of(l, i);
    }
    w->n_parts = l->n;
    return LS_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

ls_status parts_join(ls_work *w, const coll_call *call, int rank, int size)
{
    coll *op = &w->b.op;
    const bool is_used = call->root < 0 || call->root == rank;
    part_list src = {.at = (void *const *)(uintptr_t)call->src_parts, .counts = call->src_counts};
    part_list dst = {.at = call->dst_parts, .counts = call->dst_counts};
    size_t src_bytes = 0;
    size_t dst_bytes = 0;
    size_t block_bytes = 0;
    char *block;

    src.count = dst.count = call->count;
    src.element = dst.element = ls_dtype_size(call->dtype);
    src.n = src.at != NULL && is_used ? size : 0;
    dst.n = dst.at != NULL && is_used ? size : 0;
    LS_TRY(sum_bytes(&src, "src", &src_bytes));
    LS_TRY(sum_bytes(&dst, "dst", &dst_bytes));
    if (src.n > 0)
        op->src = contiguous(&src);
    if (dst.n > 0)
        op->dst = contiguous(&dst);
    if (needs_block(&src, src_bytes))
        block_bytes += aligned(src_bytes);
    if (needs_block(&dst, dst_bytes))
        block_bytes += aligned(dst_bytes);
    if (block_bytes == 0)
        return LS_OK;
    block = ls_alloc_aligned(ALIGNMENT, block_bytes);
    if (block == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu bytes of parts", block_bytes);
    w->part_block = block;
    if (needs_block(&src, src_bytes)) {
        copy_in(&src, block);
        op->src = block;
        block += aligned(src_bytes);
    }
    if (!needs_block(&dst, dst_bytes))
        return LS_OK;
    op->dst = block;
    return keep_list(w, &dst, block);
}

void parts_end(ls_work *w, ls_status status)
{
    for (int i = 0; status == LS_OK && i < w->n_parts; i++) {
        if (w->parts[i].bytes > 0)
            memcpy(w->parts[i].to, w->parts[i].from, w->parts[i].bytes);
    }
    ls_free(w->parts);
    ls_free(w->part_block);
    w->parts = NULL;
    w->part_block = NULL;
    w->n_parts = 0;
}
