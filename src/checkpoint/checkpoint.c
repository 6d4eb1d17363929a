/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - opens a safetensors file, reads its header, and recognizes files of torch.save().
 */
#include "checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/module.h"
#include "checkpoint/digest.h"
#include "checkpoint/other_file.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "elements go between memory and file as they are, which is little-endian");

/* Reads the header's length, which both the format and the file limit. */
static ls_status read_length(const ls_checkpoint *c, size_t *out)
{
    uint8_t b[SAFETENSORS_LENGTH_BYTES];
    uint64_t length = 0;

    LS_TRY(file_pread_all(c->fd, c->path, b, sizeof(b), 0));
    for (size_t i = 0; i < sizeof(b); i++)
        length |= (uint64_t)b[i] << (8 * i);
    if (length > SAFETENSORS_MAX_HEADER || length > c->file_bytes - sizeof(b))
        return ls_fail(LS_EFORMAT,
                       "%s: offset 0: header length %" PRIu64 " exceeds the file of %" PRIu64
                       " bytes, or the format's limit of %d",
                       c->path, length, c->file_bytes, SAFETENSORS_MAX_HEADER);
    *out = (size_t)length;
    return LS_OK;
}

enum { SHOWN_PATH_BYTES = 200 };

/* Whether the shell takes '...' around the path as one word. */
static bool is_quotable(const char *path)
{
    return strlen(path) <= SHOWN_PATH_BYTES && strchr(path, '\'') == NULL;
}

const char *ls_checkpoint_conversion(const char *from, const char *to, char *buf, size_t n)
{
    char script[MODULE_PATH_BYTES];

    if (from == NULL || to == NULL || buf == NULL || n == 0)
        return NULL;
    from = is_quotable(from) ? from : "FILE";
    to = is_quotable(to) ? to : "FILE.safetensors";
    if (module_find_file("convert.py", script) && is_quotable(script))
        return text_format(buf, n, "python3 '%s' '%s' '%s'", script, from, to);
    return text_format(buf, n, "python3 -m lockstep.convert '%s' '%s'", from, to);
}

/* Whether the file begins as a zip archive or (before PyTorch 1.6) as a pickle, not with a
 * header. */
static bool is_torch_file(const ls_checkpoint *c)
{
    uint8_t b[SAFETENSORS_LENGTH_BYTES + 1];

    if (c->file_bytes < sizeof(b) || file_pread_all(c->fd, c->path, b, sizeof(b), 0) != LS_OK)
        return false;
    return b[SAFETENSORS_LENGTH_BYTES] != '{' &&
           (memcmp(b, "PK\3\4", 4) == 0 || (b[0] == 0x80 && b[1] >= 2 && b[1] <= 5));
}

/* The length of PATH without the suffixes of PyTorch's files. */
static size_t stem_length(const char *path)
{
    static const char *const endings[] = {".tar", ".pth", ".pt", ".bin", ".ckpt"};
    size_t length = strlen(path);

    for (size_t i = 0; i < LS_COUNT_OF(endings); i++) {
        const size_t n = strlen(endings[i]);

        if (length > n && strncmp(path + length - n, endings[i], n) == 0)
            length -= n;
    }
    return length;
}

static ls_status fail_torch_file(const ls_checkpoint *c)
{
    char to[SHOWN_PATH_BYTES + 32];
    char command[LS_ERROR_BYTES];

    // Not STEM.safetensors: checkpoint.safetensors is where the program imagenet saves.
    text_format(to, sizeof(to), "%.*s-weights.safetensors", (int)stem_length(c->path), c->path);
    return ls_fail(LS_EFORMAT,
                   "%.200s is a file of torch.save(), not safetensors; convert it (with a Python "
                   "that has torch): %s",
                   c->path, ls_checkpoint_conversion(c->path, to, command, sizeof(command)));
}

static ls_status read_header(ls_checkpoint *c, bool verifies)
{
    size_t length = 0;
    char *header;
    ls_status st;

    if (is_torch_file(c))
        return fail_torch_file(c);
    LS_TRY(other_file_refuse(c->fd, c->path, c->file_bytes));
    LS_TRY(read_length(c, &length));
    header = ls_calloc(length, 1);
    if (header == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the header of %s, %zu bytes", c->path, length);
    c->data_offset = SAFETENSORS_LENGTH_BYTES + length;
    st = file_pread_all(c->fd, c->path, header, length, SAFETENSORS_LENGTH_BYTES);
    if (st == LS_OK)
        st = safetensors_parse(header, length, c->file_bytes - c->data_offset, c->path, &c->index);
    ls_free(header);
    return st == LS_OK && verifies ? digest_find_all(c->path, &c->index) : st;
}

static ls_status open_file(const char *path, bool verifies, ls_checkpoint **out)
{
    ls_checkpoint *c;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (path == NULL)
        return ls_fail(LS_EINVAL, "the path of the checkpoint is NULL");
    LS_TRY(LS_NEW(&c, 1, "for the checkpoint %s", path));
    c->fd = -1;
    c->path = ls_strdup(path);
    if (c->path == NULL)
        st = ls_fail(LS_ENOMEM, "no memory for the checkpoint %s", path);
    else
        st = file_open_regular(path, &c->fd, &c->file_bytes);
    if (st == LS_OK)
        st = read_header(c, verifies);
    if (st != LS_OK) {
        ls_checkpoint_close(c);
        return st;
    }
    *out = c;
    return LS_OK;
}

ls_status ls_checkpoint_open(const char *path, ls_checkpoint **out)
{
    return open_file(path, true, out);
}

ls_status ls_checkpoint_open_unverified(const char *path, ls_checkpoint **out)
{
    return open_file(path, false, out);
}

void ls_checkpoint_close(ls_checkpoint *c)
{
    if (c == NULL)
        return;
    safetensors_free(&c->index);
    file_close(&c->fd);
    ls_free(c->path);
    ls_free(c);
}

int ls_checkpoint_count(const ls_checkpoint *c)
{
    return c == NULL ? 0 : c->index.n_entries;
}

ls_status ls_checkpoint_entry_at(const ls_checkpoint *c, int i, ls_checkpoint_entry *out)
{
    const safetensors_entry *e;
    char shown[SAFETENSORS_NAME_BYTES];

    LS_TRY(LS_GIVEN(c));
    LS_TRY(LS_GIVEN(out));
    if (i < 0 || i >= c->index.n_entries)
        return ls_fail(LS_EINVAL, "%s has %d entries, no number %d", c->path, c->index.n_entries,
                       i);
    e = &c->index.entries[i];
    *out = (ls_checkpoint_entry){
        .name = e->name, .type = (ls_dtype)e->type->type, .n_dims = e->n_dims, .dims = e->dims};
    if (e->type->type >= 0)
        return LS_OK;
    text_printable(shown, sizeof(shown), e->name);
    return ls_fail(LS_EUNSUPPORTED, "%s: type %s of %s is not supported", c->path, e->type->name,
                   shown);
}

const char *ls_checkpoint_meta(const ls_checkpoint *c, const char *key)
{
    if (c == NULL)
        return NULL;
    return json_as_string(json_get(json_get(c->index.root, SAFETENSORS_META), key), NULL);
}
