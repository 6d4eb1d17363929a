/* SPDX-License-Identifier: Apache-2.0 */
/* copy.h - copying for large operations, and into memory that other ranks read. */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_COPY_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_COPY_H

#include <stdbool.h>
#include <stddef.h>

/* An operation with a larger result is copied around the caches. */
#define COPY_AROUND_BYTES ((size_t)24 << 20)
/* Fewer bytes are always written through the caches. */
#define COPY_SHARED_BYTES ((size_t)8192)

/* As memcpy(), but writes around the caches, straight to memory: that saves the read of each line
 * before its write, a third of the traffic. For results so large that no cache would still hold
 * them when they are read, and for memory that other cores have read. */
void copy_around(void *dst, const void *src, size_t bytes);

/* As memcpy(), for memory that other cores have read. From 2 KiB on it uses the string instruction
 * of an x86 processor with ERMS, which takes a line for writing without reading it first. */
void *copy_string(void *dst, const void *src, size_t bytes);

/*
 * How a rank writes memory that other ranks read and that it then writes again. A core must take a
 * line back from the others' caches before it writes it. Between cores that do not share their last
 * cache that can take ten times as long as to write around the caches, between threads of one core
 * it is faster. So copies now and then do both, each for a part, and compare the times.
 *
 * All zero at first. Not thread-safe.
 */
typedef struct copy_way {
    int left;    /* copies until the next comparison */
    int gap;     /* copies between comparisons, 0: none yet */
    int against; /* comparisons in a row that the other way has won */
    bool is_around;
} copy_way;

/* As memcpy(). Stores with release order make the bytes visible in either way. */
void copy_shared(copy_way *way, void *dst, const void *src, size_t bytes);

/* --- for offer_way.c and tests --- */

/* Whether the next copy compares; counts it. And the result of a comparison. */
bool copy_way_compares(copy_way *way);
void copy_way_compared(copy_way *way, bool around_is_faster);

/* --- for tests --- */

/* Whether all copies of the process that begin later, of COPY_SHARED_BYTES and more, take the way
 * around the caches. */
void copy_always_around(bool always);

#endif
