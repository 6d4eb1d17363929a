/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.c - malloc with checked sizes, a count and a failure on request. Every module allocates
 * through it, so tests can make each allocation fail in turn.
 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// Both relaxed: each allocation only needs a number of its own.
static atomic_uint_fast64_t n_allocations;
static atomic_uint_fast64_t failing_number; // 0 = none

/* Counts one allocation; 0 when it must fail. */
static int may_allocate(void)
{
    const uint64_t number = atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed) + 1;

    return number != atomic_load_explicit(&failing_number, memory_order_relaxed);
}

/* The product, at least 1; 0 when it overflows or exceeds the largest object. */
static size_t block_bytes(size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX)
        return 0;
    return bytes == 0 ? 1 : bytes;
}

void *ls_calloc(size_t count, size_t size)
{
    const size_t bytes = block_bytes(count, size);

    if (bytes == 0 || !may_allocate())
        return NULL;
    return calloc(1, bytes);
}

void *ls_realloc(void *old, size_t count, size_t size)
{
    const size_t bytes = block_bytes(count, size);

    if (bytes == 0 || !may_allocate())
        return NULL;
    return realloc(old, bytes);
}

bool ls_resize(void *pointer, size_t n, size_t size)
{
    void *block;

    memcpy(&block, pointer, sizeof(block));
    block = ls_realloc(block, n, size);
    if (block != NULL)
        memcpy(pointer, &block, sizeof(block));
    return block != NULL;
}

void *ls_alloc_aligned(size_t alignment, size_t bytes)
{
    void *block = NULL;

    LS_ASSERT(alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0);
    bytes = block_bytes(bytes, 1);
    if (bytes == 0 || !may_allocate())
        return NULL;
    if (posix_memalign(&block, alignment, bytes) != 0)
        return NULL;
    return block;
}

char *ls_strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = ls_calloc(bytes, 1);

    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

void ls_free(void *block)
{
    free(block);
}

ls_status ls_add_size(size_t a, size_t b, size_t *out)
{
    if (__builtin_add_overflow(a, b, out))
        return ls_fail(LS_EINVAL, "the size %zu + %zu is too large", a, b);
    return LS_OK;
}

uint64_t ls_alloc_count(void)
{
    return atomic_load_explicit(&n_allocations, memory_order_relaxed);
}

void ls_alloc_fail_at(uint64_t n)
{
    atomic_store_explicit(&failing_number, n == 0 ? 0 : ls_alloc_count() + n, memory_order_relaxed);
}
