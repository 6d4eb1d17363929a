/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - the only module that calls malloc. It counts allocations, and in tests the n-th one
 * fails.
 */
#ifndef LS_BASE_ALLOC_H
#define LS_BASE_ALLOC_H

#include "base/status.h"

#include <stdbool.h>

/* Zeroed memory for count * size bytes; NULL, without an error text, when there is none or the
 * product overflows. 0 bytes give a unique pointer. */
void *ls_calloc(size_t count, size_t size);

/* As realloc(); count * size is checked. On failure the old block stays valid. */
void *ls_realloc(void *old, size_t count, size_t size);

/* Uninitialised memory aligned to `alignment` (a power of two, at least 8); free with ls_free(). */
void *ls_alloc_aligned(size_t alignment, size_t bytes);

/* *pointer: zeroed memory for n elements. LS_ENOMEM, for LS_TRY(): "no memory " and the text, which
 * begins with "for" or "to". */
#define LS_NEW(pointer, n, ...)                                                                    \
    ((*(pointer) = ls_calloc((n), sizeof(**(pointer)))) != NULL                                    \
         ? LS_OK                                                                                   \
         : ((void)ls_fail(LS_ENOMEM, "no memory " __VA_ARGS__), LS_ENOMEM))

/* The same for an array, or NULL, that becomes n elements long. On failure it stays as it is. */
#define LS_RESIZE(pointer, n, ...)                                                                 \
    (ls_resize((pointer), (n), sizeof(**(pointer)))                                                \
         ? LS_OK                                                                                   \
         : ls_fail(LS_ENOMEM, "no memory " __VA_ARGS__))
bool ls_resize(void *pointer, size_t n, size_t size); /* `pointer` points to the pointer */

char *ls_strdup(const char *text);
void ls_free(void *block); /* NULL is allowed */

/* *out = a * b; LS_EINVAL when it overflows. */
static inline LS_MUST_USE ls_status ls_mul_size(size_t a, size_t b, size_t *out)
{
    if (__builtin_mul_overflow(a, b, out))
        return ls_fail(LS_EINVAL, "the size %zu x %zu is too large", a, b);
    return LS_OK;
}
LS_MUST_USE ls_status ls_add_size(size_t a, size_t b, size_t *out);

/* Allocations since the start of the process (all threads): for "a step allocates nothing" tests.
 */
uint64_t ls_alloc_count(void);

/* For tests: the n-th allocation from now (1 = the next) returns NULL, once; 0 switches it off. */
void ls_alloc_fail_at(uint64_t n);

#endif
