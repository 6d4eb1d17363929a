/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gz_stream.h - reads the content of a gzip file from front to back. zlib is loaded when the first
 * stream is opened.
 */
#ifndef LS_DATA_FORMATS_GZ_STREAM_H
#define LS_DATA_FORMATS_GZ_STREAM_H

#include "base/status.h"

/* Largest compression ratio: deflate codes 258 bytes in two bits. */
#define GZ_MAX_RATIO 1032

typedef struct gz_stream gz_stream;

/* A stream over `fd` from its beginning; fd and path (for messages) must outlive it.
 * LS_EUNSUPPORTED when zlib is not installed. */
LS_MUST_USE ls_status gz_stream_open(int fd, const char *path, gz_stream **out);
void gz_stream_close(gz_stream *g); /* NULL is allowed */

/* Reads the next `bytes` bytes; *got is less only at the end of the content. As in gzip, several
 * members in a row are one content and trailing zeros are padding. LS_EFORMAT for other trailing
 * bytes, a wrong checksum and a truncated file. */
LS_MUST_USE ls_status gz_stream_read(gz_stream *g, void *dst, size_t bytes, size_t *got);

#endif
