/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe_files.c - reads vocab.json and merges.txt for bpe_open(). Both write the bytes of a token as
 * characters: a printable byte of Latin-1 as itself, the i-th of the other 68 bytes as U+0100 + i.
 * Nothing is assumed about the files: each count, id and name is checked.
 */
#include "models/bpe_internal.h"
#include "models/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A file, as far as it is read. */
typedef struct source {
    const char *path;
    const char *data;
    size_t n;
    size_t at;
} source;

static ls_status fail_at(const source *s, const char *what)
{
    return bpe_fail(LS_EFORMAT, "%s: offset %zu: %s", s->path, s->at, what);
}

/* --- characters for bytes --- */

static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/* The byte of a character, -1 when it has none. */
static int byte_of(uint32_t c)
{
    uint32_t rest = c - 0x100;

    if (c < 0x100)
        return is_printable(c) ? (int)c : -1;
    for (uint32_t byte = 0; byte < 0x100; byte++)
        if (!is_printable(byte) && rest-- == 0)
            return (int)byte;
    return -1;
}

/* Adds the byte of the character at the source's position, of `bytes` bytes in the file. */
static ls_status add_byte(source *s, uint32_t c, size_t bytes, char *out, size_t *n)
{
    const int byte = byte_of(c);

    if (byte < 0)
        return bpe_fail(LS_EFORMAT,
                        "%s: offset %zu: U+%04X stands for no byte in GPT-2's vocabulary", s->path,
                        s->at, (unsigned)c);
    out[(*n)++] = (char)byte;
    s->at += bytes;
    return LS_OK;
}

/* --- JSON: an object of strings and numbers --- */

static void skip_space(source *s)
{
    while (s->at < s->n && strchr(" \t\r\n", s->data[s->at]) != NULL && s->data[s->at] != 0)
        s->at++;
}

/* Reads `c` and the white space before it; false when something else is there. */
static bool take(source *s, char c)
{
    skip_space(s);
    if (s->at == s->n || s->data[s->at] != c)
        return false;
    s->at++;
    return true;
}

/* The value of a hexadecimal digit, -1 for other characters. */
static int hex_value(char c)
{
    const char lower = (char)(c | 0x20);

    if (c >= '0' && c <= '9')
        return c - '0';
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The character of the escape at the source's position. *bytes: its length. No escape of two
 * UTF-16 units stands for a byte, so each unit is taken for a character. */
static ls_status read_escape(const source *s, uint32_t *c, size_t *bytes)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    const char *name =
        s->n - s->at > 1 && s->data[s->at + 1] != 0 ? strchr(names, s->data[s->at + 1]) : NULL;

    *bytes = 2;
    *c = name != NULL ? (unsigned char)values[name - names] : 0;
    if (name != NULL)
        return LS_OK;
    if (s->n - s->at < 6 || s->data[s->at + 1] != 'u')
        return fail_at(s, "invalid escape");
    *bytes = 6;
    for (size_t i = 2; i < 6; i++) {
        const int digit = hex_value(s->data[s->at + i]);

        if (digit < 0)
            return fail_at(s, "invalid escape");
        *c = *c << 4 | (uint32_t)digit;
    }
    return LS_OK;
}

/* The string at the source's position as bytes at `out`. */
static ls_status read_string(source *s, char *out, size_t *n)
{
    *n = 0;
    if (!take(s, '"'))
        return fail_at(s, "no token in quotes");
    for (;;) {
        uint32_t c = 0;
        size_t bytes = utf8_decode(s->data + s->at, s->n - s->at, &c);

        if (bytes == 0)
            return fail_at(s, s->at == s->n ? "the file ends in a string" : "not UTF-8");
        if (c == '"')
            break;
        if (c == '\\')
            LS_TRY(read_escape(s, &c, &bytes));
        LS_TRY(add_byte(s, c, bytes, out, n));
    }
    s->at++;
    return *n > 0 ? LS_OK : fail_at(s, "an empty token");
}

static ls_status read_id(source *s, int32_t *id)
{
    const size_t digits = (skip_space(s), strspn(s->data + s->at, "0123456789"));

    if (digits == 0 || digits > 7 || (digits > 1 && s->data[s->at] == '0'))
        return fail_at(s, "no id of a token: a number from 0 on");
    *id = (int32_t)strtol(s->data + s->at, NULL, 10);
    s->at += digits;
    return LS_OK;
}

/* --- vocab.json --- */

static int compare_names(const void *a, const void *b)
{
    const bpe_name *x = a;
    const bpe_name *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);

    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

/* The id of a token, -1 when there is none. */
static int32_t find(const bpe *b, const char *bytes, size_t n)
{
    const bpe_name name = {.bytes = bytes, .n = (uint32_t)n};
    const bpe_name *found =
        bsearch(&name, b->sorted, b->n_tokens, sizeof(b->sorted[0]), compare_names);

    return found != NULL ? found->id : -1;
}

/* The pairs of a name and an id. There is memory for `most` of them. */
static ls_status read_pairs(bpe *b, source *s, size_t most)
{
    char *out = b->text;
    bpe_name name = {.n = 0};
    size_t n;

    if (!take(s, '{'))
        return fail_at(s, "no JSON object");
    do {
        if (b->n_tokens == most)
            return bpe_fail(LS_EFORMAT, "%s: more than %d tokens", s->path, BPE_MOST_TOKENS);
        name.bytes = out;
        LS_TRY(read_string(s, out, &n));
        name.n = (uint32_t)n;
        out += n;
        if (!take(s, ':'))
            return fail_at(s, "no colon behind a token");
        LS_TRY(read_id(s, &name.id));
        if ((size_t)name.id >= most || b->tokens[name.id].bytes != NULL)
            return fail_at(s, "this id is too large, or occurs twice");
        b->tokens[name.id] = name;
        b->n_tokens++;
    } while (take(s, ','));
    if (!take(s, '}') || (skip_space(s), s->at != s->n))
        return fail_at(s, "no end of the object");
    return LS_OK;
}

static ls_status check_names(bpe *b, const char *path)
{
    for (size_t id = 0; id < b->n_tokens; id++)
        if (b->tokens[id].bytes == NULL)
            return bpe_fail(LS_EFORMAT, "%s: %zu tokens, but none has the id %zu", path,
                            b->n_tokens, id);
    memcpy(b->sorted, b->tokens, b->n_tokens * sizeof(b->tokens[0]));
    qsort(b->sorted, b->n_tokens, sizeof(b->sorted[0]), compare_names);
    for (size_t i = 1; i < b->n_tokens; i++)
        if (compare_names(&b->sorted[i - 1], &b->sorted[i]) == 0)
            return bpe_fail(LS_EFORMAT, "%s: the ids %d and %d are the same token", path,
                            (int)b->sorted[i - 1].id, (int)b->sorted[i].id);
    for (int byte = 0; byte < 256; byte++) {
        b->of_byte[byte] = find(b, &(char){(char)byte}, 1);
        if (b->of_byte[byte] < 0)
            return bpe_fail(LS_EFORMAT, "%s: no token for the byte 0x%02X", path, (unsigned)byte);
    }
    return LS_OK;
}

ls_status bpe_read_vocab(bpe *b, const char *path)
{
    source s = {.path = path};
    size_t most;
    char *data;
    ls_status st;

    LS_TRY(bpe_read_file(path, BPE_MOST_FILE_BYTES, &data, &s.n));
    s.data = data;
    most = s.n / sizeof("\"a\":0") + 1; // the shortest pair
    most = most < BPE_MOST_TOKENS ? most : BPE_MOST_TOKENS;
    b->text = malloc(s.n + 1);
    b->tokens = calloc(most, sizeof(b->tokens[0]));
    b->sorted = calloc(most, sizeof(b->sorted[0]));
    if (b->text == NULL || b->tokens == NULL || b->sorted == NULL)
        st = bpe_fail(LS_ENOMEM, "no memory for the tokens of %s", path);
    else
        st = read_pairs(b, &s, most);
    free(data);
    return st == LS_OK ? check_names(b, path) : st;
}

/* --- merges.txt --- */

/* The bytes of the name from s->at to `end`. */
static ls_status read_name(source *s, size_t end, char *out, size_t *n)
{
    const size_t begin = *n;

    while (s->at < end) {
        uint32_t c = 0;
        const size_t bytes = utf8_decode(s->data + s->at, end - s->at, &c);

        if (bytes == 0)
            return fail_at(s, "not UTF-8");
        LS_TRY(add_byte(s, c, bytes, out, n));
    }
    return *n > begin ? LS_OK : fail_at(s, "not two tokens with a space between them");
}

static ls_status read_merge(const bpe *b, source *s, size_t end, char *bytes, bpe_merge *out)
{
    const char *space = memchr(s->data + s->at, ' ', end - s->at);
    const size_t begin = s->at;
    size_t left = 0;
    size_t n;

    LS_TRY(read_name(s, space != NULL ? (size_t)(space - s->data) : end, bytes, &left));
    n = left;
    s->at += s->at < end;
    LS_TRY(read_name(s, end, bytes, &n));
    out->left = find(b, bytes, left);
    out->right = find(b, bytes + left, n - left);
    out->result = find(b, bytes, n);
    s->at = begin;
    if (out->left < 0 || out->right < 0 || out->result < 0)
        return fail_at(s, "the vocabulary lacks one of the two tokens or the merged one");
    s->at = end;
    return LS_OK;
}

/* `bytes` is memory for the longest line. */
static ls_status read_lines(bpe *b, source *s, char *bytes)
{
    static const char version[] = "#version";

    if (s->n >= sizeof(version) && memcmp(s->data, version, sizeof(version) - 1) == 0)
        s->at = strcspn(s->data, "\n");
    for (size_t next; s->at < s->n; s->at = next + 1) {
        const char *newline = memchr(s->data + s->at, '\n', s->n - s->at);
        size_t end;

        next = newline != NULL ? (size_t)(newline - s->data) : s->n;
        end = next > s->at && s->data[next - 1] == '\r' ? next - 1 : next;
        if (end == s->at)
            continue;
        if (b->n_merges == BPE_MOST_TOKENS)
            return bpe_fail(LS_EFORMAT, "%s: more than %d merges", s->path, BPE_MOST_TOKENS);
        b->merges[b->n_merges].rank = (int32_t)b->n_merges;
        LS_TRY(read_merge(b, s, end, bytes, &b->merges[b->n_merges]));
        b->n_merges++;
    }
    return LS_OK;
}

static int compare_merges(const void *a, const void *b)
{
    const bpe_merge *x = a;
    const bpe_merge *y = b;

    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static ls_status index_merges(bpe *b, const char *path)
{
    size_t m = 0;

    qsort(b->merges, b->n_merges, sizeof(b->merges[0]), compare_merges);
    for (size_t i = 1; i < b->n_merges; i++)
        if (compare_merges(&b->merges[i - 1], &b->merges[i]) == 0)
            return bpe_fail(LS_EFORMAT, "%s: merges %d and %d, counted from 0, are the same", path,
                            (int)b->merges[i - 1].rank, (int)b->merges[i].rank);
    for (size_t t = 0; t <= b->n_tokens; t++) {
        while (m < b->n_merges && (size_t)b->merges[m].left < t)
            m++;
        b->first[t] = (uint32_t)m;
    }
    return LS_OK;
}

ls_status bpe_read_merges(bpe *b, const char *path)
{
    source s = {.path = path};
    size_t most;
    char *bytes;
    char *data;
    ls_status st;

    LS_TRY(bpe_read_file(path, BPE_MOST_FILE_BYTES, &data, &s.n));
    s.data = data;
    most = s.n / strlen("a b\n") + 1;
    most = most < BPE_MOST_TOKENS ? most : BPE_MOST_TOKENS;
    bytes = malloc(s.n + 1);
    b->merges = calloc(most, sizeof(b->merges[0]));
    b->first = calloc(b->n_tokens + 1, sizeof(b->first[0]));
    if (bytes == NULL || b->merges == NULL || b->first == NULL)
        st = bpe_fail(LS_ENOMEM, "no memory for the merges of %s", path);
    else
        st = read_lines(b, &s, bytes);
    free(bytes);
    free(data);
    return st == LS_OK ? index_merges(b, path) : st;
}
