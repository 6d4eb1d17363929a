/* SPDX-License-Identifier: Apache-2.0 */
/* png_library.h - libspng's header, the library that belongs to it, and our memory for it. */
#ifndef LS_DATA_PNG_LIBRARY_H
#define LS_DATA_PNG_LIBRARY_H

#include "base/alloc.h"

#include <spng.h>

#define PNG_LIBRARY "libspng.so.0"
#define PNG_PACKAGE "libspng0"

static inline void *png_allocate(size_t bytes)
{
    return ls_realloc(NULL, bytes, 1);
}

static inline void *png_reallocate(void *old, size_t bytes)
{
    return ls_realloc(old, bytes, 1);
}

static inline struct spng_alloc png_memory(void)
{
    return (struct spng_alloc){png_allocate, png_reallocate, ls_calloc, ls_free};
}

#endif
