/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gz_stream.c - inflates a gzip file through a fixed input buffer, for byte_source.c. Its memory
 * does not depend on what the file claims.
 */
#include "data/formats/gz_stream.h"

#include "base/alloc.h"
#include "data/codecs/codec_library.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <unistd.h>
#include <zlib.h>

#define INPUT_BYTES 65536
#define GZIP_WINDOW (15 + 16) /* zlib: the largest window, gzip format only */

typedef int (*inflate_init_fn)(z_stream *z, int window_bits, const char *version, int stream_bytes);
typedef int (*inflate_fn)(z_stream *z, int flush);
typedef int (*inflate_end_fn)(z_stream *z);

struct gz_stream {
    int fd;
    const char *path;
    void *codec;
    inflate_init_fn init;
    inflate_fn inflate;
    inflate_end_fn end;
    z_stream z;
    uint64_t file_offset; /* of the next read() */
    bool in_member;       /* z holds a state that must be ended */
    bool any_member;
    bool at_end;
    unsigned char input[INPUT_BYTES];
};

static ls_status load_zlib(gz_stream *g)
{
    const codec_symbol symbols[] = {
        {"inflateInit2_", &g->init}, {"inflate", &g->inflate}, {"inflateEnd", &g->end}};

    return ls_context(
        codec_library_open("libz.so.1", "zlib1g", symbols, LS_COUNT_OF(symbols), &g->codec),
        "%s is compressed", g->path);
}

ls_status gz_stream_open(int fd, const char *path, gz_stream **out)
{
    gz_stream *g;
    ls_status st;

    LS_TRY(LS_NEW(&g, 1, "to decompress %s", path));
    g->fd = fd;
    g->path = path;
    st = load_zlib(g);
    if (st != LS_OK) {
        gz_stream_close(g);
        return st;
    }
    *out = g;
    return LS_OK;
}

void gz_stream_close(gz_stream *g)
{
    if (g == NULL)
        return;
    if (g->in_member)
        (void)g->end(&g->z);
    codec_library_close(g->codec);
    ls_free(g);
}

/* Offset in the file of the next byte that zlib has not consumed. */
static uint64_t input_offset(const gz_stream *g)
{
    return g->file_offset - g->z.avail_in;
}

/* Refills an empty input buffer; at the end of the file it stays empty. */
static ls_status fill_input(gz_stream *g)
{
    ssize_t got;

    if (g->z.avail_in > 0)
        return LS_OK;
    do {
        got = pread(g->fd, g->input, sizeof(g->input), (off_t)g->file_offset);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return ls_fail(LS_EIO, "cannot read %s at offset %" PRIu64 ": %s", g->path, g->file_offset,
                       ls_errno_text(errno));
    g->z.next_in = g->input;
    g->z.avail_in = (uInt)got;
    g->file_offset += (uint64_t)got;
    return LS_OK;
}

static voidpf allocate(voidpf opaque, uInt count, uInt size)
{
    LS_UNUSED(opaque);
    return ls_calloc(count, size);
}

static void release(voidpf opaque, voidpf block)
{
    LS_UNUSED(opaque);
    ls_free(block);
}

/* Between members: skips padding, then begins the next member or finds the end. */
static ls_status begin_member(gz_stream *g)
{
    for (;;) {
        LS_TRY(fill_input(g));
        if (g->z.avail_in == 0) {
            g->at_end = true;
            return LS_OK;
        }
        if (!g->any_member || *g->z.next_in != 0)
            break;
        g->z.next_in++;
        g->z.avail_in--;
    }
    if (*g->z.next_in != 0x1F)
        return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": not gzip data", g->path,
                       input_offset(g));
    g->z.zalloc = allocate;
    g->z.zfree = release;
    if (g->init(&g->z, GZIP_WINDOW, ZLIB_VERSION, (int)sizeof(g->z)) != Z_OK)
        return ls_fail(LS_ENOMEM, "no memory to decompress %s", g->path);
    g->in_member = true;
    g->any_member = true;
    return LS_OK;
}

/* One call of inflate(): takes input, gives output, or ends the member. */
static ls_status advance_member(gz_stream *g)
{
    int result;

    LS_TRY(fill_input(g));
    if (g->z.avail_in == 0)
        return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": the compressed data ends too early",
                       g->path, g->file_offset);
    result = g->inflate(&g->z, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
        (void)g->end(&g->z);
        g->in_member = false;
        return LS_OK;
    }
    if (result == Z_OK)
        return LS_OK;
    if (result == Z_MEM_ERROR)
        return ls_fail(LS_ENOMEM, "no memory to decompress %s", g->path);
    return ls_fail(LS_EFORMAT, "%s: offset %" PRIu64 ": broken compressed data (%s)", g->path,
                   input_offset(g), g->z.msg != NULL ? g->z.msg : "no details from zlib");
}

ls_status gz_stream_read(gz_stream *g, void *dst, size_t bytes, size_t *got)
{
    unsigned char *p = dst;
    size_t done = 0;

    while (done < bytes && !g->at_end) {
        const size_t left = bytes - done;
        const uInt capacity = left > INPUT_BYTES ? INPUT_BYTES : (uInt)left;

        if (!g->in_member) {
            LS_TRY(begin_member(g));
            continue;
        }
        g->z.next_out = p + done;
        g->z.avail_out = capacity;
        LS_TRY(advance_member(g));
        done += capacity - g->z.avail_out;
    }
    *got = done;
    return LS_OK;
}
