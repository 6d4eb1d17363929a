/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h - the members of an open checkpoint, and type and size of an item in the format.
 *
 * checkpoint/: safetensors files, behind <lockstep/checkpoint.h>.
 */
#ifndef LS_CHECKPOINT_CHECKPOINT_H
#define LS_CHECKPOINT_CHECKPOINT_H

#include <lockstep/checkpoint.h>

#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"

struct ls_checkpoint {
    int fd;
    char *path;
    uint64_t file_bytes;
    uint64_t data_offset; /* of the data section */
    safetensors_index index;
};

/* Plain bytes are U8 of one dimension. */
static inline ls_dtype item_type(const ls_named *item)
{
    return item->tensor != NULL ? ls_tensor_dtype(item->tensor) : LS_U8;
}

#endif
