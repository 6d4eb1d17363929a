/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copying for large operations.
 */
#ifndef LS_NATIVE_COPY_H
#define LS_NATIVE_COPY_H

#include <stddef.h>

#define COPY_AROUND_BYTES                                                                          \
    ((size_t)24 << 20) /* an operation whose result is larger goes around the caches */

/* As memcpy(), but what is written goes to memory around the caches: without the read of each line that a write needs first,
 * a third of the traffic. For results so large that they would not be in a cache when somebody reads them. */
void copy_around(void *dst, const void *src, size_t bytes);

#endif
