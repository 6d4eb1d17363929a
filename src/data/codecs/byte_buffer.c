/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_buffer.c - aligned memory that image readers, resizers and converters use for one image
 * after another. It grows by a quarter more than asked for, and never shrinks.
 */
#include "data/codecs/byte_buffer.h"

#include "base/alloc.h"

#include <string.h>

#define ALIGNMENT 64

ls_status byte_buffer_reserve(byte_buffer *b, size_t bytes)
{
    size_t capacity;

    if (bytes <= b->capacity && b->data != NULL)
        return LS_OK;
    byte_buffer_free(b);
    LS_TRY(ls_add_size(bytes, bytes / 4 + BYTE_BUFFER_SLACK, &capacity));
    b->data = ls_alloc_aligned(ALIGNMENT, capacity);
    if (b->data == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a sample of %zu bytes", bytes);
    memset(b->data + capacity - BYTE_BUFFER_SLACK, 0, BYTE_BUFFER_SLACK);
    b->capacity = capacity - BYTE_BUFFER_SLACK;
    return LS_OK;
}

void byte_buffer_free(byte_buffer *b)
{
    ls_free(b->data);
    *b = (byte_buffer){0};
}
