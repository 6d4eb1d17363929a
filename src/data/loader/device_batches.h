/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_batches.h - batches on their way to a stream device: page-locked slots that the loader's
 * threads fill with samples, and the tensors that they are copied to while operators run. Images
 * are sent as bytes, of which the device makes floats. The loader calls it, in the caller's thread.
 *
 * A slot must not be written between device_batches_send() and the end of its copy. Copies run in
 * ACCEL_COPY: each waits for the operators that used the tensors before, and operators wait for it.
 */
#ifndef LS_DATA_LOADER_DEVICE_BATCHES_H
#define LS_DATA_LOADER_DEVICE_BATCHES_H

#include "data/loader/batch_layout.h"

typedef struct device_batches device_batches;

typedef enum batch_kind {
    BATCH_FULL,   /* has two pairs of tensors in turn: one is used, the other is written */
    BATCH_TAIL,   /* the last of an epoch */
    BATCH_REDUCED /* without its broken rows */
} batch_kind;

typedef struct batch_sizes {
    size_t batch_rows;
    size_t tail_rows; /* 0: there is no such batch */
    size_t n_slots;
} batch_sizes;

/* Batches of the layout `of`, which is borrowed. The augmentation of its data set must not
 * change. */
LS_MUST_USE ls_status device_batches_create(ls_device *device, const batch_layout *of,
                                            const batch_sizes *sizes, device_batches **out);
/* Waits for all copies. NULL is allowed. */
void device_batches_destroy(device_batches *b);

/* Memory of each column for a batch of these sizes, before normalization. The slot's last copy is
 * done. */
LS_MUST_USE ls_status device_batches_prepare(device_batches *b, size_t slot,
                                             const batch_shape *shape, void **values);

/* Queues the copy of the slot's first shape->rows rows into the tensors for such a batch. The last
 * received batch may be in use, if it is of another kind or full. */
LS_MUST_USE ls_status device_batches_send(device_batches *b, size_t slot, batch_kind kind,
                                          const batch_shape *shape);
/* The tensors of each column of a slot that was sent, normalized: operators that are queued from
 * now on see it. */
LS_MUST_USE ls_status device_batches_receive(device_batches *b, size_t slot, ls_tensor **tensors);
/* The operators that use the received batch, if there is one, have been queued: it is void. */
LS_MUST_USE ls_status device_batches_release(device_batches *b);

/* *done: whether the slot's last copy is done, so that it may be written. */
LS_MUST_USE ls_status device_batches_test(const device_batches *b, size_t slot, bool *done);
/* Blocks until it is. */
LS_MUST_USE ls_status device_batches_wait(const device_batches *b, size_t slot);

#endif
