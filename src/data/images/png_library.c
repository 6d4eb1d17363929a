/* SPDX-License-Identifier: Apache-2.0 */
#include "data/images/png_library.h"

#include "base/alloc.h"

/* Of this thread, as libspng's memory functions are given nothing to keep it in. */
static _Thread_local bool lacked_memory;

static void *noted(void *block)
{
    lacked_memory = lacked_memory || block == NULL;
    return block;
}

static void *allocate(size_t bytes)
{
    return noted(ls_realloc(NULL, bytes, 1));
}

static void *reallocate(void *old, size_t bytes)
{
    return noted(ls_realloc(old, bytes, 1));
}

static void *allocate_zeroed(size_t count, size_t size)
{
    return noted(ls_calloc(count, size));
}

struct spng_alloc png_memory(void)
{
    lacked_memory = false;
    return (struct spng_alloc){allocate, reallocate, allocate_zeroed, ls_free};
}

bool png_lacked_memory(void)
{
    return lacked_memory;
}
