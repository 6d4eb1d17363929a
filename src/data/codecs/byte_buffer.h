/* SPDX-License-Identifier: Apache-2.0 */
/* byte_buffer.h - a buffer that is reused for one image after another and grows as needed. */
#ifndef LS_DATA_CODECS_BYTE_BUFFER_H
#define LS_DATA_CODECS_BYTE_BUFFER_H

#include "base/status.h"

/* Readable bytes behind the reserved ones, for loops that load several pixels at once. */
#define BYTE_BUFFER_SLACK 32

/* Zero-initialise. */
typedef struct byte_buffer {
    uint8_t *data;
    size_t capacity;
} byte_buffer;

/* Makes data at least `bytes` long, aligned to 64. The previous content is lost. */
LS_MUST_USE ls_status byte_buffer_reserve(byte_buffer *b, size_t bytes);
void byte_buffer_free(byte_buffer *b);

#endif
