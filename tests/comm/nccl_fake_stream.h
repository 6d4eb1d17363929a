/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_fake_stream.h - what the NCCL of the tests (nccl_fake.c) needs of a stream of the device
 * cudahost, and of the device memory that the stream's work uses.
 */
#ifndef TESTS_COMM_NCCL_FAKE_STREAM_H
#define TESTS_COMM_NCCL_FAKE_STREAM_H

#include <stdbool.h>
#include <stddef.h>

/* The card of this device memory becomes that of the calling thread. */
void fake_select_card(const void *p);

/* Host memory for copies; NULL: there is none. */
void *fake_alloc_host(void *stream, size_t bytes);
void fake_free_host(void *stream, void *block);

/* Queue a copy, and a call of fn(arg); false: the device has failed. */
bool fake_copy_to_host(void *stream, void *dst, const void *src, size_t bytes);
bool fake_copy_to_device(void *stream, void *dst, const void *src, size_t bytes);
bool fake_call(void *stream, void (*fn)(void *arg), void *arg);

/* A mark behind the work that the stream has; NULL: the device has failed. */
void *fake_mark(void *stream);
/* Whether all work before it is done, or the device has failed. */
bool fake_is_past(void *stream, void *mark);
/* The stream is past it, or has failed. NULL is allowed. */
void fake_free_mark(void *stream, void *mark);

/* Device memory of the calling thread's card; NULL: there is none. False: it is not such memory. */
void *fake_alloc_device(size_t bytes);
bool fake_free_device(void *start);

/* Whether all of this memory is the device's. */
bool fake_has_memory(void *stream, void *start, size_t bytes);

#endif
