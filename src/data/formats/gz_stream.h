/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gz_stream.h - the content of a gzip file, front to back. zlib is loaded when the first stream is
 * opened; gz_stream.c is the only includer of its header.
 */
#ifndef LS_DATA_GZ_STREAM_H
#define LS_DATA_GZ_STREAM_H

#include "base/status.h"

/* Bytes that one compressed byte can stand for at most (deflate codes 258 in two bits). */
#define GZ_MAX_RATIO 1032

typedef struct gz_stream gz_stream;

/* A stream over `fd` from its beginning; fd and path (for messages) must outlive it.
 * LS_EUNSUPPORTED: this machine has no zlib. */
LS_MUST_USE ls_status gz_stream_open(int fd, const char *path, gz_stream **out);
void gz_stream_close(gz_stream *g); /* NULL is allowed */

/* Gives the next `bytes` bytes; *got is less only at the end of the content. Several gzip members
 * in a row are one content and zeros behind the last are padding, as gzip takes them; other bytes
 * there, a wrong checksum and a file that ends early are LS_EFORMAT. */
LS_MUST_USE ls_status gz_stream_read(gz_stream *g, void *dst, size_t bytes, size_t *got);

#endif
