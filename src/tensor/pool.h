/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - a device's tensors and memory blocks between two uses.
 *
 * Free blocks stay with their storage records, one list for each size class (eight classes for a
 * factor of two), last in first out. So a repeated step reuses the blocks of the previous step,
 * which are still in the caches, and allocates nothing; on a host device, free blocks of other
 * sizes that take much memory are freed first (pool.c). Persistent tensors (parameters, gradients,
 * optimizer state) have lists of their own; otherwise the first step would give them blocks that
 * the second step has to allocate again. When the device is out of memory, the pool frees all free
 * blocks and tries once more before an allocation fails.
 */
#ifndef LS_TENSOR_POOL_H
#define LS_TENSOR_POOL_H

#include "tensor/tensor.h"

typedef struct tensor_pool tensor_pool;

LS_MUST_USE ls_status pool_create(tensor_pool **out);

/* Tensors of the device that have not been destroyed. */
size_t pool_live_tensors(const ls_device *device);

/* Frees the device's pool and all its blocks. Precondition: no live tensor. */
void pool_destroy(ls_device *device);

/* Storage of at least `bytes` with one user, undefined contents. */
LS_MUST_USE ls_status pool_take(ls_device *device, size_t bytes, bool persistent, storage **out);

/* Storage over the caller's memory with one user. */
LS_MUST_USE ls_status pool_take_borrowed(ls_device *device, void *data, size_t bytes,
                                         storage **out);

/* Returns storage without users to the pool. */
void pool_give(storage *s);

/* A zeroed tensor of the device. */
LS_MUST_USE ls_status pool_take_tensor(ls_device *device, bool persistent, ls_tensor **out);
void pool_give_tensor(ls_tensor *t);

#endif
