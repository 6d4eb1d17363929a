/* SPDX-License-Identifier: Apache-2.0 */
/* temp_gzip.c - writes gzipped files with zlib, for tests that link it. */
#include "data/temp_files.h"

#include "base/unit.h"

#include <stdlib.h>
#include <zlib.h>

unsigned char *temp_gzip(const void *data, size_t bytes, size_t *out_bytes)
{
    z_stream z = {0};
    unsigned char *out;
    uLong bound;

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    bound = deflateBound(&z, (uLong)bytes);
    out = malloc(bound);
    assert_non_null(out);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)bytes;
    z.next_out = out;
    z.avail_out = (uInt)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    *out_bytes = bound - z.avail_out;
    (void)deflateEnd(&z);
    return out;
}
