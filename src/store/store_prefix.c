/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_prefix.c - a store in which keys get a prefix; count is that of the whole store.
 */
#include "store/store_ops.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>

typedef struct prefix_store {
    ls_store base;
    ls_store *inner; /* borrowed */
    size_t prefix_bytes;
    uint8_t key[2 * LS_STORE_KEY_MAX]; /* the prefix, and behind it the key of the call */
} prefix_store;

static prefix_store *prefix_of(ls_store *s)
{
    return (prefix_store *)(void *)s;
}

static void prefix_close(ls_store *s)
{
    ls_free(s);
}

/* The longer key is built in p->key. */
static ls_status put_in_front(prefix_store *p, kv_bytes key, kv_bytes *out)
{
    memcpy(p->key + p->prefix_bytes, key.data, key.bytes);
    *out = (kv_bytes){p->key, p->prefix_bytes + key.bytes};
    return table_check(*out, 0);
}

static ls_status prefix_set(ls_store *s, kv_bytes key, kv_bytes value)
{
    prefix_store *p = prefix_of(s);

    LS_TRY(put_in_front(p, key, &key));
    return p->inner->ops->set(p->inner, key, value);
}

static ls_status prefix_get(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out,
                            size_t *bytes)
{
    prefix_store *p = prefix_of(s);

    LS_TRY(put_in_front(p, key, &key));
    return p->inner->ops->get(p->inner, key, deadline_ms, out, bytes);
}

static ls_status prefix_add(ls_store *s, kv_bytes key, int64_t delta, int64_t *out)
{
    prefix_store *p = prefix_of(s);

    LS_TRY(put_in_front(p, key, &key));
    return p->inner->ops->add(p->inner, key, delta, out);
}

static ls_status prefix_compare_set(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                                    bool *swapped)
{
    prefix_store *p = prefix_of(s);

    LS_TRY(put_in_front(p, key, &key));
    return p->inner->ops->compare_set(p->inner, key, expected, desired, swapped);
}

static ls_status prefix_remove(ls_store *s, kv_bytes key, bool *existed)
{
    prefix_store *p = prefix_of(s);

    LS_TRY(put_in_front(p, key, &key));
    return p->inner->ops->remove(p->inner, key, existed);
}

static ls_status prefix_count(ls_store *s, int64_t *out)
{
    prefix_store *p = prefix_of(s);

    return p->inner->ops->count(p->inner, out);
}

/* All keys with the prefix, in one block: the array, then the bytes. Free *out with ls_free(). */
static ls_status put_in_front_of_all(const prefix_store *p, const kv_bytes *keys, int n,
                                     kv_bytes **out)
{
    size_t bytes = (size_t)n * sizeof(kv_bytes);
    ls_status st = LS_OK;
    uint8_t *at;

    for (int i = 0; i < n; i++)
        bytes += p->prefix_bytes + keys[i].bytes;
    *out = ls_realloc(NULL, bytes, 1);
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d keys", n);
    at = (uint8_t *)(*out + n);
    for (int i = 0; i < n && st == LS_OK; i++) {
        (*out)[i] = (kv_bytes){at, p->prefix_bytes + keys[i].bytes};
        memcpy(at, p->key, p->prefix_bytes);
        memcpy(at + p->prefix_bytes, keys[i].data, keys[i].bytes);
        at += (*out)[i].bytes;
        st = table_check((*out)[i], 0);
    }
    return st;
}

static ls_status prefix_wait(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms)
{
    prefix_store *p = prefix_of(s);
    kv_bytes *longer;
    ls_status st = put_in_front_of_all(p, keys, n, &longer);

    if (st == LS_OK)
        st = p->inner->ops->wait(p->inner, longer, n, deadline_ms);
    ls_free(longer);
    return st;
}

static ls_status prefix_check(ls_store *s, const kv_bytes *keys, int n, bool *all_exist)
{
    prefix_store *p = prefix_of(s);
    kv_bytes *longer;
    ls_status st = put_in_front_of_all(p, keys, n, &longer);

    if (st == LS_OK)
        st = p->inner->ops->check(p->inner, longer, n, all_exist);
    ls_free(longer);
    return st;
}

static const store_ops prefix_ops = {
    .close = prefix_close,
    .set = prefix_set,
    .get = prefix_get,
    .add = prefix_add,
    .compare_set = prefix_compare_set,
    .wait = prefix_wait,
    .check = prefix_check,
    .remove = prefix_remove,
    .count = prefix_count,
};

ls_status ls_store_prefix(ls_store *s, const char *prefix, ls_store **out)
{
    prefix_store *p;

    if (s == NULL || prefix == NULL || out == NULL)
        return ls_fail(LS_EINVAL, "a store, its prefix or the result is NULL");
    *out = NULL;
    if (strlen(prefix) >= LS_STORE_KEY_MAX)
        return ls_fail(LS_EINVAL, "a prefix of %zu bytes leaves no space for keys", strlen(prefix));
    LS_TRY(LS_NEW(&p, 1, "for a view of a store"));
    p->base.ops = &prefix_ops;
    text_format(p->base.url, sizeof(p->base.url), "%s", s->url);
    p->inner = s;
    p->prefix_bytes = strlen(prefix);
    memcpy(p->key, prefix, p->prefix_bytes);
    *out = &p->base;
    return LS_OK;
}
