/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_user.c - a store of the program, by its callbacks: what a job needs to join through a store
 * that another library has. Keys with a 0 byte inside, which only raw protocols have, are refused.
 */
#include "store/store_ops.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/text.h"

#include <string.h>

typedef struct user_store {
    ls_store base;
    ls_store_callbacks own;
    char key[LS_STORE_KEY_MAX + 1]; /* of the current call */
} user_store;

static user_store *user_of(ls_store *s)
{
    return (user_store *)(void *)s;
}

static void user_close(ls_store *s)
{
    user_store *u = user_of(s);

    if (u->own.close != NULL)
        u->own.close(u->own.arg);
    ls_free(u);
}

static ls_status use_key(user_store *u, kv_bytes key)
{
    if (memchr(key.data, 0, key.bytes) != NULL)
        return ls_fail(LS_EUNSUPPORTED, "store %s: a key has a 0 byte", u->base.url);
    memcpy(u->key, key.data, key.bytes);
    u->key[key.bytes] = '\0';
    return LS_OK;
}

static ls_status user_set(ls_store *s, kv_bytes key, kv_bytes value)
{
    user_store *u = user_of(s);

    char before[LS_ERROR_BYTES];
    ls_status st;

    LS_TRY(use_key(u, key));
    ls_error_save(before);
    st = u->own.set(u->own.arg, u->key, value.data, value.bytes);
    st = ls_error_of_program(before, st, "set");
    return ls_context(st, "store %s, key '%s'", s->url, u->key);
}

static ls_status user_get(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out, size_t *bytes)
{
    user_store *u = user_of(s);
    char before[LS_ERROR_BYTES];
    const void *value = NULL;
    size_t n = 0;
    ls_status st;

    LS_TRY(use_key(u, key));
    ls_error_save(before);
    st = u->own.get(u->own.arg, u->key, ls_deadline_left(deadline_ms), &value, &n);
    if (st == LS_ETIMEOUT)
        return ls_fail(LS_ETIMEOUT, "key '%s' is not set", u->key);
    st = ls_error_of_program(before, st, "get");
    if (st == LS_OK && n > LS_STORE_VALUE_MAX)
        st = ls_fail(LS_EFORMAT, "the value has %zu bytes, at most %zu are allowed", n,
                     LS_STORE_VALUE_MAX);
    if (st == LS_OK && value == NULL && n > 0)
        st = ls_fail(LS_EINVAL, "the value is NULL");
    if (st == LS_OK)
        st = store_copy_value((kv_bytes){value, n}, out, bytes);
    return ls_context(st, "store %s, key '%s'", s->url, u->key);
}

static ls_status user_add(ls_store *s, kv_bytes key, int64_t delta, int64_t *out)
{
    user_store *u = user_of(s);

    char before[LS_ERROR_BYTES];
    ls_status st;

    LS_TRY(use_key(u, key));
    ls_error_save(before);
    st = ls_error_of_program(before, u->own.add(u->own.arg, u->key, delta, out), "add");
    return ls_context(st, "store %s, key '%s'", s->url, u->key);
}

static ls_status user_wait(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms)
{
    for (int i = 0; i < n; i++) {
        size_t bytes;
        void *value = NULL;

        LS_TRY(user_get(s, keys[i], deadline_ms, &value, &bytes));
        ls_free(value);
    }
    return LS_OK;
}

static ls_status user_check(ls_store *s, const kv_bytes *keys, int n, bool *all_exist)
{
    const ls_status st = user_wait(s, keys, n, ls_deadline_ms(0));

    *all_exist = st == LS_OK;
    return st == LS_ETIMEOUT ? LS_OK : st;
}

static ls_status lacks(const ls_store *s, const char *what)
{
    return ls_fail(LS_EUNSUPPORTED, "store %s has no %s", s->url, what);
}

static ls_status
user_compare_set(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                 // NOLINTNEXTLINE(readability-non-const-parameter): as store_ops declares it
                 bool *swapped)
{
    LS_UNUSED(key);
    LS_UNUSED(expected);
    LS_UNUSED(desired);
    LS_UNUSED(swapped);
    return lacks(s, "compare-and-set");
}

// NOLINTNEXTLINE(readability-non-const-parameter): as store_ops declares it
static ls_status user_remove(ls_store *s, kv_bytes key, bool *existed)
{
    LS_UNUSED(key);
    LS_UNUSED(existed);
    return lacks(s, "deletion");
}

// NOLINTNEXTLINE(readability-non-const-parameter): as store_ops declares it
static ls_status user_count(ls_store *s, int64_t *out)
{
    LS_UNUSED(out);
    return lacks(s, "count of keys");
}

static const store_ops user_ops = {
    .close = user_close,
    .set = user_set,
    .get = user_get,
    .add = user_add,
    .compare_set = user_compare_set,
    .wait = user_wait,
    .check = user_check,
    .remove = user_remove,
    .count = user_count,
};

ls_status ls_store_create(const ls_store_callbacks *callbacks, ls_store **out)
{
    ls_store_callbacks own;
    user_store *u;

    LS_TRY(LS_GIVEN(callbacks));
    LS_TRY(LS_GIVEN(out));
    *out = NULL;
    LS_TRY(OPTIONS_COPY(ls_store_callbacks, callbacks, &own));
    if (own.set == NULL || own.get == NULL || own.add == NULL)
        return ls_fail(LS_EINVAL, "a store needs the functions set, get and add");
    LS_TRY(LS_NEW(&u, 1, "for a store"));
    u->base.ops = &user_ops;
    u->own = own;
    text_format(u->base.url, sizeof(u->base.url), "%s", own.name != NULL ? own.name : "callbacks");
    *out = &u->base;
    return LS_OK;
}
