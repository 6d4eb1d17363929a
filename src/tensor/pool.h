/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - a device's tensors and memory blocks between two uses.
 *
 * Blocks are kept with their storage records, one list for each size class (eight classes a doubling), last in first out,
 * so that a repeated step finds the blocks of the step before, still warm, and allocates nothing. What is made to last
 * (parameters, gradients, optimizer state) has lists of its own: otherwise it would walk away, in the first step, with
 * blocks that the second one would have to make again. When the device has no memory left, all free
 * blocks are given back to it before an allocation fails.
 */
#ifndef LS_TENSOR_POOL_H
#define LS_TENSOR_POOL_H

#include "tensor/tensor.h"

typedef struct tensor_pool tensor_pool;

LS_MUST_USE ls_status pool_create(tensor_pool **out);

/* Tensors of the device that have not been destroyed. */
size_t pool_live_tensors(const ls_device *device);

/* Frees all that lies in the device's pool, and the pool; no tensor is alive. */
void pool_destroy(ls_device *device);

/* Storage of at least `bytes` with one user, undefined contents. */
LS_MUST_USE ls_status pool_take(ls_device *device, size_t bytes, bool persistent, storage **out);

/* Storage over the caller's memory with one user. */
LS_MUST_USE ls_status pool_take_borrowed(ls_device *device, void *data, size_t bytes,
                                         storage **out);

/* Takes back storage without users. */
void pool_give(storage *s);

/* A zeroed tensor of the device. */
LS_MUST_USE ls_status pool_take_tensor(ls_device *device, bool persistent, ls_tensor **out);
void pool_give_tensor(ls_tensor *t);

#endif
