/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers.h - where the buffers of a model are: parts of few blocks of memory, in the order of
 * creation, so that ddp broadcasts all of them without copies. Models with the same layers have the
 * same blocks.
 */
#ifndef LS_NN_BUFFERS_H
#define LS_NN_BUFFERS_H

#include <lockstep/nn.h>

typedef struct buffer_block {
    ls_tensor *memory; /* LS_U8 */
    size_t used;       /* its first bytes: buffers, and what their alignment leaves between them */
} buffer_block;

/* The blocks of all buffers; *n is 0 when there are none. Valid until a layer is added. */
const buffer_block *model_buffer_blocks(const ls_model *model, int *n);

#endif
