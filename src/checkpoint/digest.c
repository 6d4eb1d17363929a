/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - computes digests of tensors and headers with libsodium, and reads those of a file.
 * checkpoint_save.c writes them, checkpoint.c and checkpoint_load.c compare them.
 */
#include "checkpoint/digest.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGEST_BYTES = DIGEST_DIGITS / 2,
    THREAD_BYTES = 1 << 20 /* take a millisecond, a thread's start some hundredths of it */
};

void digest_begin(digest *d)
{
    // It selects the code for this processor; without it the portable one gives the same digest.
    const int ignored = sodium_init();

    LS_UNUSED(ignored);
    d->beside = (ls_thread){.started = false};
    (void)crypto_generichash_init(&d->state, NULL, 0, DIGEST_BYTES);
}

void digest_add(digest *d, const void *bytes, size_t n)
{
    if (n > 0)
        (void)crypto_generichash_update(&d->state, bytes, n);
}

static void add_started(void *arg)
{
    digest *d = arg;

    digest_add(d, d->bytes, d->n);
}

void digest_start(digest *d, const void *bytes, size_t n)
{
    digest_wait(d);
    d->bytes = bytes;
    d->n = n;
    if (n < THREAD_BYTES || ls_thread_start(&d->beside, "ls-digest", add_started, d) != LS_OK)
        digest_add(d, bytes, n);
}

void digest_wait(digest *d)
{
    ls_thread_join(&d->beside);
}

void digest_end(digest *d, char out[DIGEST_DIGITS + 1])
{
    unsigned char bytes[DIGEST_BYTES];

    digest_wait(d);
    (void)crypto_generichash_final(&d->state, bytes, sizeof(bytes));
    (void)sodium_bin2hex(out, DIGEST_DIGITS + 1, bytes, sizeof(bytes));
}

/* --- of a header --- */

/* With its zero byte, which no text of a header has: what follows cannot be taken for a part of
 * it. */
static void add_text(digest *d, const char *text)
{
    digest_add(d, text, strlen(text) + 1);
}

static int compare_entries(const void *left, const void *right)
{
    const safetensors_entry *a = left;
    const safetensors_entry *b = right;

    return strcmp(a->name, b->name);
}

static void add_entry(digest *d, const safetensors_entry *e)
{
    add_text(d, e->name);
    add_text(d, e->type->name);
    for (int i = 0; i < e->n_dims; i++) {
        char size[32];

        text_format(size, sizeof(size), i > 0 ? ",%" PRId64 : "%" PRId64, e->dims[i]);
        digest_add(d, size, strlen(size));
    }
    add_text(d, "");
}

static ls_status add_entries(digest *d, const char *path, const safetensors_index *index)
{
    const size_t n = (size_t)index->n_entries;
    safetensors_entry *sorted;

    LS_TRY(LS_NEW(&sorted, n, "for the digest of %s", path));
    if (n > 0)
        memcpy(sorted, index->entries, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_entries);
    for (size_t i = 0; i < n; i++)
        add_entry(d, &sorted[i]);
    ls_free(sorted);
    return LS_OK;
}

typedef struct meta_pair {
    const char *key;
    const char *value;
} meta_pair;

static int compare_pairs(const void *left, const void *right)
{
    const meta_pair *a = left;
    const meta_pair *b = right;

    return strcmp(a->key, b->key);
}

static ls_status add_metadata(digest *d, const char *path, const json_value *meta)
{
    void *cursor = NULL;
    const char *key;
    json_value *value;
    meta_pair *pairs;
    size_t n = 0;

    LS_TRY(LS_NEW(&pairs, json_size(meta), "for the digest of %s", path));
    while (json_next(meta, &cursor, &key, &value))
        if (!text_equal(key, DIGEST_KEY))
            pairs[n++] = (meta_pair){key, json_as_string(value, "")};
    qsort(pairs, n, sizeof(*pairs), compare_pairs);
    for (size_t i = 0; i < n; i++) {
        add_text(d, pairs[i].key);
        add_text(d, pairs[i].value);
    }
    ls_free(pairs);
    return LS_OK;
}

ls_status digest_of_header(const char *path, const safetensors_index *index,
                           char out[DIGEST_DIGITS + 1])
{
    digest d;

    digest_begin(&d);
    LS_TRY(add_entries(&d, path, index));
    LS_TRY(add_metadata(&d, path, json_get(index->root, SAFETENSORS_META)));
    digest_end(&d, out);
    return LS_OK;
}

/* --- of a file --- */

static ls_status check_digits(const char *path, const char *key, const char *value)
{
    char shown[SAFETENSORS_NAME_BYTES];

    if (strspn(value, "0123456789abcdef") == DIGEST_DIGITS && value[DIGEST_DIGITS] == 0)
        return LS_OK;
    text_printable(shown, sizeof(shown), key);
    return ls_fail(LS_EFORMAT,
                   "%s: the value of %s is not %d hexadecimal digits in lower case" DIGEST_ADVICE,
                   path, shown, (int)DIGEST_DIGITS);
}

static ls_status fail_about(const char *path, const char *name, const char *problem)
{
    char shown[SAFETENSORS_NAME_BYTES];

    text_printable(shown, sizeof(shown), name);
    return ls_fail(LS_EFORMAT, "%s: %s %s" DIGEST_ADVICE, path, shown, problem);
}

static ls_status set_digest(const char *path, safetensors_index *index, const char *key,
                            const char *value)
{
    const char *name = key + strlen(DIGEST_TENSOR);
    const safetensors_entry *e = safetensors_find(index, name);

    if (e == NULL)
        return fail_about(path, name, "has a digest and is not in the file");
    LS_TRY(check_digits(path, key, value));
    index->entries[e - index->entries].digest = value;
    index->has_digests = true;
    return LS_OK;
}

static ls_status set_digests(const char *path, safetensors_index *index, const json_value *meta)
{
    void *cursor = NULL;
    const char *key;
    json_value *value;

    while (json_next(meta, &cursor, &key, &value))
        if (text_starts(key, DIGEST_TENSOR))
            LS_TRY(set_digest(path, index, key, json_as_string(value, "")));
    for (int i = 0; index->has_digests && i < index->n_entries; i++)
        if (index->entries[i].digest == NULL)
            return fail_about(path, index->entries[i].name,
                              "has no digest, and other tensors have one");
    return LS_OK;
}

ls_status digest_find_all(const char *path, safetensors_index *index)
{
    const json_value *meta = json_get(index->root, SAFETENSORS_META);
    const char *expected = json_as_string(json_get(meta, DIGEST_KEY), NULL);
    char found[DIGEST_DIGITS + 1];

    index->has_digests = expected != NULL && index->n_entries == 0;
    LS_TRY(set_digests(path, index, meta));
    if (!index->has_digests && expected == NULL)
        return LS_OK;
    if (!index->has_digests)
        return fail_about(path, "the header", "has a digest, and no tensor has one");
    if (expected == NULL)
        return fail_about(path, "the header", "has no digest, and tensors have one");
    LS_TRY(check_digits(path, DIGEST_KEY, expected));
    LS_TRY(digest_of_header(path, index, found));
    if (!text_equal(expected, found))
        return fail_about(path, "the header",
                          "(names, types, shapes, metadata) does not match its digest");
    return LS_OK;
}
