/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_memory.h - the tensors of a batch, one for each column, on any device. They keep their
 * address when their size changes, because a tape may still refer to them.
 */
#ifndef LS_DATA_LOADER_BATCH_MEMORY_H
#define LS_DATA_LOADER_BATCH_MEMORY_H

#include "data/loader/batch_layout.h"
#include "tensor/tensor.h"

/* Zero-initialise. */
typedef struct batch_memory {
    ls_tensor *tensors[BATCH_MAX_COLUMNS]; /* NULL before the first use */
} batch_memory;

/* Gives the tensors these sizes. *changed: at least one has new memory, with undefined contents. */
LS_MUST_USE ls_status batch_memory_fit(batch_memory *m, ls_device *device, const batch_layout *l,
                                       const batch_shape *shape, bool *changed);

/* The address of each column's elements, which the last user of the batch may have moved. Marks the
 * tensors as written. */
LS_MUST_USE ls_status batch_memory_open(batch_memory *m, const batch_layout *l, void **values);

/* Marks the tensors as written: backward refuses what it needs of their old content. */
void batch_memory_written(batch_memory *m, const batch_layout *l);

void batch_memory_free(batch_memory *m);

#endif
