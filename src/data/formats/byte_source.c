/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_source.c - reads a plain or gzipped file from front to back. idx.c uses it. Every error
 * names the file and an offset.
 */
#include "data/formats/byte_source.h"

#include "base/file.h"

#include <inttypes.h>
#include <string.h>

/* Detects gzip by the first two bytes, not by the name. */
static ls_status detect_gzip(byte_source *s)
{
    unsigned char magic[2] = {0, 0};

    if (s->file_bytes >= sizeof(magic))
        LS_TRY(file_pread_all(s->fd, s->path, magic, sizeof(magic), 0));
    if (magic[0] == 0x1F && magic[1] == 0x8B)
        return gz_stream_open(s->fd, s->path, &s->gz);
    return LS_OK;
}

ls_status byte_source_open(byte_source *s, const char *path)
{
    ls_status st;

    memset(s, 0, sizeof(*s));
    s->path = path;
    LS_TRY(file_open_regular(path, &s->fd, &s->file_bytes));
    st = detect_gzip(s);
    if (st != LS_OK)
        byte_source_close(s);
    return st;
}

void byte_source_close(byte_source *s)
{
    gz_stream_close(s->gz);
    s->gz = NULL;
    file_close(&s->fd);
}

uint64_t byte_source_most(const byte_source *s)
{
    uint64_t most;

    if (s->gz == NULL)
        return s->file_bytes;
    if (__builtin_mul_overflow(s->file_bytes, (uint64_t)GZ_MAX_RATIO, &most))
        return UINT64_MAX;
    return most;
}

/* *got is less than `bytes` only at the end of the content. */
static ls_status read_some(byte_source *s, void *dst, size_t bytes, size_t *got)
{
    const uint64_t left = s->file_bytes - s->offset;

    if (s->gz != NULL)
        return gz_stream_read(s->gz, dst, bytes, got);
    *got = bytes < left ? bytes : (size_t)left;
    return file_pread_all(s->fd, s->path, dst, *got, s->offset);
}

ls_status byte_source_read(byte_source *s, void *dst, size_t bytes)
{
    size_t got = 0;

    LS_TRY(read_some(s, dst, bytes, &got));
    s->offset += got;
    if (got < bytes)
        return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": the content ends %zu bytes too early",
                       s->path, s->offset, bytes - got);
    return LS_OK;
}

ls_status byte_source_end(byte_source *s)
{
    unsigned char beyond;
    size_t got = 0;

    LS_TRY(read_some(s, &beyond, 1, &got));
    if (got != 0)
        return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": the content should end here", s->path,
                       s->offset);
    return LS_OK;
}
