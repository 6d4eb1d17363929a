/* SPDX-License-Identifier: Apache-2.0 */
/* copy.h - copying for large operations. */
#ifndef LS_COMM_BACKENDS_NATIVE_REDUCE_COPY_H
#define LS_COMM_BACKENDS_NATIVE_REDUCE_COPY_H

#include <stddef.h>

/* An operation with a larger result is copied around the caches. */
#define COPY_AROUND_BYTES ((size_t)24 << 20)

/* As memcpy(), but writes around the caches, straight to memory: that saves the read of each line
 * before its write, a third of the traffic. For results so large that no cache would still hold
 * them when they are read. */
void copy_around(void *dst, const void *src, size_t bytes);

#endif
