/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_source.h - reads a plain or gzipped file from front to back. Errors name the file and the
 * offset in its content (in the compressed file where the compression is broken).
 */
#ifndef LS_DATA_FORMATS_BYTE_SOURCE_H
#define LS_DATA_FORMATS_BYTE_SOURCE_H

#include "base/status.h"
#include "data/formats/gz_stream.h"

typedef struct byte_source {
    int fd;
    const char *path;    /* borrowed */
    uint64_t file_bytes; /* as stored */
    uint64_t offset;     /* in the content */
    gz_stream *gz;       /* NULL: plain */
} byte_source;

/* Opens a regular file and detects gzip by its first two bytes. `path` must outlive the source. */
LS_MUST_USE ls_status byte_source_open(byte_source *s, const char *path);
void byte_source_close(byte_source *s);

/* Upper bound of the content's length, in bytes. */
uint64_t byte_source_most(const byte_source *s);

/* Reads exactly `bytes` bytes; LS_EFORMAT when the content ends before. */
LS_MUST_USE ls_status byte_source_read(byte_source *s, void *dst, size_t bytes);

/* LS_EFORMAT unless the content ends here and the checksum of gzipped content is right. */
LS_MUST_USE ls_status byte_source_end(byte_source *s);

#endif
