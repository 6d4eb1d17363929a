/* SPDX-License-Identifier: Apache-2.0 */
/*
 * png_library.c - memory functions for libspng that record a failed allocation, for the PNG reader
 * and writer. The record is per thread, because libspng passes its memory functions no context.
 */
#include "data/images/png_library.h"

#include "base/alloc.h"

static _Thread_local bool allocation_failed;

static void *record(void *block)
{
    allocation_failed = allocation_failed || block == NULL;
    return block;
}

static void *allocate(size_t bytes)
{
    return record(ls_realloc(NULL, bytes, 1));
}

static void *reallocate(void *old, size_t bytes)
{
    return record(ls_realloc(old, bytes, 1));
}

static void *allocate_zeroed(size_t count, size_t size)
{
    return record(ls_calloc(count, size));
}

struct spng_alloc png_memory(void)
{
    allocation_failed = false;
    return (struct spng_alloc){allocate, reallocate, allocate_zeroed, ls_free};
}

bool png_allocation_failed(void)
{
    return allocation_failed;
}
