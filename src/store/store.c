/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the public functions of stores (lockstep/store.h): checks the arguments once, then
 * calls the store's operations, and reports long waits.
 */
#include "store/store_ops.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/report/wait_report.h"
#include "base/text.h"

#include <string.h>

#define MISSING_SHOWN 4

static kv_bytes key_of(const char *key)
{
    return (kv_bytes){(const uint8_t *)key, strlen(key)};
}

static kv_bytes bytes_of(const void *data, size_t bytes)
{
    return (kv_bytes){data, bytes};
}

ls_status store_check_handle(const ls_store *s, const void *argument)
{
    if (s == NULL)
        return ls_fail(LS_EINVAL, "the store is NULL");
    if (argument == NULL)
        return ls_fail(LS_EINVAL, "an argument for the store is NULL");
    return LS_OK;
}

static ls_status check_call(const ls_store *s, const char *key, const void *value, size_t bytes)
{
    LS_TRY(store_check_handle(s, key));
    if (value == NULL && bytes > 0)
        return ls_fail(LS_EINVAL, "the value of key '%s' is NULL", key);
    return table_check(key_of(key), bytes);
}

ls_status store_copy_value(kv_bytes value, void **out, size_t *bytes)
{
    char *copy = ls_realloc(NULL, value.bytes + 1, 1);

    if (copy == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a value of %zu bytes", value.bytes);
    if (value.bytes > 0)
        memcpy(copy, value.data, value.bytes);
    copy[value.bytes] = 0;
    *out = copy;
    *bytes = value.bytes;
    return LS_OK;
}

bool store_has_all(const kv_table *t, const kv_bytes *keys, int n, int *first_missing)
{
    kv_bytes value;

    for (int i = 0; i < n; i++) {
        if (!table_get(t, keys[i], &value)) {
            *first_missing = i;
            return false;
        }
    }
    return true;
}

ls_status store_missing(const kv_table *t, const kv_bytes *keys, int n)
{
    text_buf list = {0};
    kv_bytes value;
    char text[80];
    int n_missing = 0;
    ls_status st;

    for (int i = 0; i < n; i++) {
        if (table_get(t, keys[i], &value))
            continue;
        n_missing++;
        if (n_missing <= MISSING_SHOWN)
            text_append(&list, "%s%s", n_missing == 1 ? "" : ", ",
                        table_key_text(text, sizeof(text), keys[i]));
    }
    if (n_missing > MISSING_SHOWN)
        text_append(&list, " and %d more", n_missing - MISSING_SHOWN);
    st = ls_fail(LS_ETIMEOUT, "key%s %s %s not set", n_missing == 1 ? "" : "s", text_str(&list),
                 n_missing == 1 ? "is" : "are");
    text_free(&list);
    return st;
}

void ls_store_close(ls_store *s)
{
    if (s != NULL)
        s->ops->close(s);
}

const char *ls_store_url(const ls_store *s)
{
    return s == NULL ? "" : s->url;
}

ls_status ls_store_set(ls_store *s, const char *key, const void *value, size_t bytes)
{
    LS_TRY(check_call(s, key, value, bytes));
    return s->ops->set(s, key_of(key), bytes_of(value, bytes));
}

/* A wait is interrupted when a report of it is due. */
static int64_t next_deadline(const ls_store *s, int64_t deadline_ms, const wait_report *report)
{
    return s->ops->is_watched ? deadline_ms : wait_report_deadline_ms(report, deadline_ms);
}

static bool continues_waiting(const ls_store *s, ls_status st, int64_t deadline_ms,
                              wait_report *report)
{
    if (st != LS_ETIMEOUT || s->ops->is_watched || ls_deadline_left(deadline_ms) == 0)
        return false;
    if (wait_report_is_due(report))
        ls_log(LS_LOG_WARN, "store", "waiting for store %s for %.1f s: %s", s->url,
               wait_report_seconds(report), ls_last_error());
    return true;
}

ls_status ls_store_get(ls_store *s, const char *key, int64_t timeout_ms, void **out, size_t *bytes)
{
    const int64_t deadline_ms = ls_deadline_ms(timeout_ms);
    wait_report report = wait_report_begin(wait_report_setting_ms());
    size_t got;
    ls_status st;

    LS_TRY(check_call(s, key, NULL, 0));
    LS_TRY(store_check_handle(s, out));
    *out = NULL;
    do {
        st = s->ops->get(s, key_of(key), next_deadline(s, deadline_ms, &report), out,
                         bytes == NULL ? &got : bytes);
    } while (continues_waiting(s, st, deadline_ms, &report));
    return st;
}

void ls_store_free(void *value)
{
    ls_free(value);
}

ls_status ls_store_add(ls_store *s, const char *key, int64_t delta, int64_t *out)
{
    int64_t sum;

    LS_TRY(check_call(s, key, NULL, 0));
    LS_TRY(s->ops->add(s, key_of(key), delta, &sum));
    if (out != NULL)
        *out = sum;
    return LS_OK;
}

ls_status ls_store_compare_set(ls_store *s, const char *key, const void *expected,
                               size_t expected_bytes, const void *desired, size_t desired_bytes,
                               int *swapped)
{
    bool did = false;

    LS_TRY(check_call(s, key, expected, expected_bytes));
    LS_TRY(check_call(s, key, desired, desired_bytes));
    LS_TRY(s->ops->compare_set(s, key_of(key), bytes_of(expected, expected_bytes),
                               bytes_of(desired, desired_bytes), &did));
    if (swapped != NULL)
        *swapped = did;
    return LS_OK;
}

/* The keys as bytes; *out is freed with ls_free(). */
static ls_status take_keys(const ls_store *s, const char *const *keys, int n, kv_bytes **out)
{
    *out = NULL;
    LS_TRY(store_check_handle(s, keys));
    if (n < 1 || n > STORE_WAIT_KEYS_MAX)
        return ls_fail(LS_EINVAL, "%d keys at once, expected 1 to %d", n, STORE_WAIT_KEYS_MAX);
    for (int i = 0; i < n; i++)
        LS_TRY(check_call(s, keys[i], NULL, 0));
    LS_TRY(LS_NEW(out, (size_t)n, "for %d keys", n));
    for (int i = 0; i < n; i++)
        (*out)[i] = key_of(keys[i]);
    return LS_OK;
}

ls_status ls_store_wait(ls_store *s, const char *const *keys, int n, int64_t timeout_ms)
{
    const int64_t deadline_ms = ls_deadline_ms(timeout_ms);
    wait_report report = wait_report_begin(wait_report_setting_ms());
    kv_bytes *taken;
    ls_status st;

    LS_TRY(take_keys(s, keys, n, &taken));
    do {
        st = s->ops->wait(s, taken, n, next_deadline(s, deadline_ms, &report));
    } while (continues_waiting(s, st, deadline_ms, &report));
    ls_free(taken);
    return st;
}

ls_status ls_store_check(ls_store *s, const char *const *keys, int n, int *all_exist)
{
    kv_bytes *taken;
    bool all = false;
    ls_status st;

    LS_TRY(store_check_handle(s, all_exist));
    LS_TRY(take_keys(s, keys, n, &taken));
    st = s->ops->check(s, taken, n, &all);
    ls_free(taken);
    *all_exist = all;
    return st;
}

ls_status ls_store_delete(ls_store *s, const char *key, int *existed)
{
    bool did = false;

    LS_TRY(check_call(s, key, NULL, 0));
    LS_TRY(s->ops->remove(s, key_of(key), &did));
    if (existed != NULL)
        *existed = did;
    return LS_OK;
}

ls_status ls_store_count(ls_store *s, int64_t *out)
{
    LS_TRY(store_check_handle(s, out));
    return s->ops->count(s, out);
}
