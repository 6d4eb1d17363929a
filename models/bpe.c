/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.c - opens a tokenizer and encodes text, for examples/gpt.c. In each word the merge of the
 * lowest rank is made first, of equal ones the leftmost: a heap of possible merges gives them in
 * that order, in time n log n for a word of n bytes.
 */
#include "models/bpe_internal.h"
#include "models/utf8.h"

#include <lockstep/train.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ls_status bpe_fail(ls_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    ls_status st;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    st = ls_train_refuse("%s", text);
    return st == LS_EINVAL ? status : st;
}

/* --- files --- */

static ls_status read_open_file(FILE *f, const char *path, size_t most, char **out, size_t *n)
{
    struct stat info;
    size_t bytes, mark;

    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode))
        return bpe_fail(LS_EIO, "%s: not a regular file", path);
    if (info.st_size < 0 || (uint64_t)info.st_size > most)
        return bpe_fail(LS_EFORMAT, "%s: %lld bytes, more than %zu", path, (long long)info.st_size,
                        most);
    bytes = (size_t)info.st_size;
    *out = malloc(bytes + 1);
    if (*out == NULL)
        return bpe_fail(LS_ENOMEM, "no memory for the %zu bytes of %s", bytes, path);
    *n = fread(*out, 1, bytes, f);
    if (*n < bytes) {
        free(*out);
        return bpe_fail(LS_EIO, "%s: cannot be read, or became shorter", path);
    }
    mark = utf8_bom_bytes(*out, *n);
    *n -= mark;
    memmove(*out, *out + mark, *n);
    (*out)[*n] = 0;
    return LS_OK;
}

ls_status bpe_read_file(const char *path, size_t most, char **out, size_t *n)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // does not wait for a pipe
    FILE *f = fd >= 0 ? fdopen(fd, "rb") : NULL;
    ls_status st;

    if (f == NULL && fd >= 0)
        (void)close(fd);
    if (f == NULL)
        return bpe_fail(LS_ENOTFOUND, "%s: cannot be opened: %s", path, strerror(errno));
    st = read_open_file(f, path, most, out, n);
    (void)fclose(f);
    return st;
}

/* --- life --- */

static ls_status make_byte_tokens(bpe *b)
{
    b->n_tokens = 256;
    b->text = malloc(b->n_tokens);
    b->tokens = calloc(b->n_tokens, sizeof(b->tokens[0]));
    b->first = calloc(b->n_tokens + 1, sizeof(b->first[0]));
    if (b->text == NULL || b->tokens == NULL || b->first == NULL)
        return bpe_fail(LS_ENOMEM, "no memory for a tokenizer");
    for (int i = 0; i < 256; i++) {
        b->text[i] = (char)i;
        b->tokens[i] = (bpe_name){.bytes = &b->text[i], .n = 1, .id = i};
        b->of_byte[i] = i;
    }
    return LS_OK;
}

ls_status bpe_open(const char *vocab, const char *merges, bpe **out)
{
    bpe *b;
    ls_status st;

    if ((vocab == NULL) != (merges == NULL))
        return bpe_fail(LS_EINVAL, "GPT-2's tokens need both files, vocab.json and merges.txt");
    b = calloc(1, sizeof(*b));
    if (b == NULL)
        return bpe_fail(LS_ENOMEM, "no memory for a tokenizer");
    st = vocab != NULL ? bpe_read_vocab(b, vocab) : make_byte_tokens(b);
    if (st == LS_OK && merges != NULL)
        st = bpe_read_merges(b, merges);
    free(b->sorted);
    b->sorted = NULL;
    if (st == LS_OK)
        *out = b;
    else
        bpe_close(b);
    return st;
}

void bpe_close(bpe *b)
{
    if (b == NULL)
        return;
    free(b->text);
    free(b->tokens);
    free(b->merges);
    free(b->first);
    free(b);
}

int64_t bpe_count(const bpe *b)
{
    return (int64_t)b->n_tokens;
}

const char *bpe_token(const bpe *b, int64_t id, size_t *n)
{
    *n = b->tokens[id].n;
    return b->tokens[id].bytes;
}

/* --- encoding --- */

/* A token of a word; a merge makes the left one larger, and the right one -1. */
typedef struct symbol {
    int32_t id;
    int32_t before; /* symbols beside it, -1: none */
    int32_t behind;
} symbol;

/* A merge of the symbol at `at` with the one behind it. No longer possible when one of them has
 * changed. */
typedef struct candidate {
    const bpe_merge *merge;
    int32_t at;
} candidate;

/* Memory of bpe_encode(). */
typedef struct encoder {
    const bpe *tokens;
    symbol *symbols;
    candidate *heap;
    size_t n_heap;
    size_t capacity; /* of symbols; the heap has three times as many */
    int64_t *ids;
    size_t n_ids;
    size_t most_ids;
} encoder;

static const bpe_merge *find_merge(const bpe *b, int32_t left, int32_t right)
{
    uint32_t low = b->first[left];
    uint32_t high = b->first[left + 1];

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (b->merges[middle].right == right)
            return &b->merges[middle];
        if (b->merges[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static bool comes_first(const candidate *a, const candidate *b)
{
    return a->merge->rank != b->merge->rank ? a->merge->rank < b->merge->rank : a->at < b->at;
}

/* Adds the merge of symbols `at` and behind, if there is one. */
static void push(encoder *e, int32_t at)
{
    const int32_t behind = at >= 0 ? e->symbols[at].behind : -1;
    candidate new = {.at = at};
    size_t i;

    if (behind < 0)
        return;
    new.merge = find_merge(e->tokens, e->symbols[at].id, e->symbols[behind].id);
    if (new.merge == NULL)
        return;
    for (i = e->n_heap++; i > 0 && comes_first(&new, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = new;
}

static candidate pop(encoder *e)
{
    const candidate top = e->heap[0];
    const candidate last = e->heap[--e->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < e->n_heap && comes_first(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (child >= e->n_heap || !comes_first(&e->heap[child], &last))
            break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

static void apply(encoder *e, const candidate *c)
{
    symbol *left = &e->symbols[c->at];
    symbol *right = left->behind >= 0 ? &e->symbols[left->behind] : NULL;

    if (right == NULL || left->id != c->merge->left || right->id != c->merge->right)
        return;
    left->id = c->merge->result;
    left->behind = right->behind;
    right->id = -1;
    if (left->behind >= 0)
        e->symbols[left->behind].before = c->at;
    push(e, left->before);
    push(e, c->at);
}

/* Every merge removes a symbol and adds two candidates at most. */
static ls_status reserve(encoder *e, size_t n)
{
    const size_t capacity = n < 256 ? 256 : 2 * n;

    if (n <= e->capacity)
        return LS_OK;
    free(e->symbols);
    free(e->heap);
    e->capacity = 0;
    e->symbols = malloc(capacity * sizeof(e->symbols[0]));
    e->heap = malloc(3 * capacity * sizeof(e->heap[0]));
    if (e->symbols == NULL || e->heap == NULL)
        return bpe_fail(LS_ENOMEM, "no memory for a word of %zu bytes", n);
    e->capacity = capacity;
    return LS_OK;
}

static ls_status add_id(encoder *e, int32_t id)
{
    const size_t most = e->most_ids < 4096 ? 4096 : e->most_ids + e->most_ids / 2;
    int64_t *ids = e->ids;

    if (e->n_ids == e->most_ids) {
        ids = realloc(e->ids, most * sizeof(e->ids[0]));
        if (ids == NULL)
            return bpe_fail(LS_ENOMEM, "no memory for %zu tokens", most);
        e->ids = ids;
        e->most_ids = most;
    }
    ids[e->n_ids++] = id;
    return LS_OK;
}

static ls_status encode_word(encoder *e, const char *word, size_t n)
{
    LS_TRY(reserve(e, n));
    for (size_t i = 0; i < n; i++)
        e->symbols[i] = (symbol){.id = e->tokens->of_byte[(unsigned char)word[i]],
                                 .before = (int32_t)i - 1,
                                 .behind = i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i < n; i++)
        push(e, (int32_t)i);
    while (e->n_heap > 0) {
        const candidate c = pop(e);

        apply(e, &c);
    }
    for (int32_t i = 0; i >= 0; i = e->symbols[i].behind)
        LS_TRY(add_id(e, e->symbols[i].id));
    return LS_OK;
}

ls_status bpe_encode(const bpe *b, const char *text, size_t n, int64_t **ids, size_t *n_ids)
{
    encoder e = {.tokens = b};
    ls_status st = LS_OK;
    size_t end;

    if (n > BPE_MOST_TEXT_BYTES)
        return bpe_fail(LS_EINVAL, "a text of %zu bytes, more than %d", n, BPE_MOST_TEXT_BYTES);
    for (size_t at = 0; at < n && st == LS_OK; at = end) {
        end = b->n_merges > 0 ? bpe_word_end(text, n, at) : at + 1;
        st = encode_word(&e, text + at, end - at);
    }
    free(e.symbols);
    free(e.heap);
    if (st != LS_OK) {
        free(e.ids);
        return st;
    }
    *ids = e.ids;
    *n_ids = e.n_ids;
    return LS_OK;
}

ls_status bpe_encode_file(const bpe *b, const char *path, int64_t **ids, size_t *n_ids)
{
    char *text;
    size_t n;
    ls_status st;

    LS_TRY(bpe_read_file(path, BPE_MOST_TEXT_BYTES, &text, &n));
    st = bpe_encode(b, text, n, ids, n_ids);
    free(text);
    return st;
}
