/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - the bounded key-value table under every store. `bytes` counts all keys and values; a
 * change that fails leaves the table as it was.
 */
#include "store/table.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

typedef struct kv_value {
    size_t bytes;
    uint8_t data[];
} kv_value;

bool kv_equal(kv_bytes a, kv_bytes b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

void table_free(kv_table *t)
{
    size_t cursor = 0;
    const void *key;
    size_t key_bytes;
    void *value;

    while (byte_map_next(&t->map, &cursor, &key, &key_bytes, &value))
        ls_free(value);
    byte_map_free(&t->map);
    memset(t, 0, sizeof(*t));
}

const char *table_key_text(char *buf, size_t n, kv_bytes key)
{
    char raw[64];
    char shown[64];
    const size_t cut = key.bytes < sizeof(raw) - 1 ? key.bytes : sizeof(raw) - 1;

    for (size_t i = 0; i < cut; i++)
        raw[i] = (char)(key.data[i] == 0 ? '?' : key.data[i]);
    raw[cut] = 0;
    text_printable(shown, sizeof(shown), raw);
    return text_format(buf, n, "'%s%s'", shown, cut < key.bytes ? "..." : "");
}

ls_status table_check(kv_bytes key, size_t value_bytes)
{
    char text[80];

    if (key.bytes == 0)
        return ls_fail(LS_EINVAL, "a store's key cannot be empty");
    if (key.bytes > LS_STORE_KEY_MAX)
        return ls_fail(LS_EINVAL, "key %s has %zu bytes, at most %d are allowed",
                       table_key_text(text, sizeof(text), key), key.bytes, LS_STORE_KEY_MAX);
    if (value_bytes > LS_STORE_VALUE_MAX)
        return ls_fail(LS_EINVAL, "the value of key %s has %zu bytes, at most %zu are allowed",
                       table_key_text(text, sizeof(text), key), value_bytes, LS_STORE_VALUE_MAX);
    return LS_OK;
}

ls_status table_set(kv_table *t, kv_bytes key, kv_bytes value)
{
    char text[80];
    kv_value *fresh;
    kv_value *before;
    void *old = NULL;
    size_t total;
    ls_status st;

    LS_TRY(table_check(key, value.bytes));
    before = byte_map_get(&t->map, key.data, key.bytes);
    total = t->bytes + value.bytes;
    if (before != NULL)
        total -= before->bytes;
    else
        total += key.bytes;
    if (total > TABLE_BYTES_MAX || (before == NULL && t->map.count >= TABLE_KEYS_MAX))
        return ls_fail(LS_ENOMEM, "the store is full: %zu keys, %zu bytes, and no space for key %s",
                       t->map.count, t->bytes, table_key_text(text, sizeof(text), key));
    fresh = ls_realloc(NULL, sizeof(*fresh) + value.bytes, 1);
    if (fresh == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a value of %zu bytes", value.bytes);
    fresh->bytes = value.bytes;
    if (value.bytes > 0)
        memcpy(fresh->data, value.data, value.bytes);
    st = byte_map_set(&t->map, key.data, key.bytes, fresh, &old);
    if (st != LS_OK) {
        ls_free(fresh);
        return st;
    }
    ls_free(old);
    t->bytes = total;
    return LS_OK;
}

bool table_get(const kv_table *t, kv_bytes key, kv_bytes *value)
{
    const kv_value *found = byte_map_get(&t->map, key.data, key.bytes);

    if (found == NULL)
        return false;
    *value = (kv_bytes){.data = found->data, .bytes = found->bytes};
    return true;
}

ls_status table_sum(const kv_table *t, kv_bytes key, int64_t delta, int64_t *out,
                    char digits[TABLE_NUMBER_BYTES])
{
    kv_bytes value;
    char text[80];
    int64_t before = 0;

    table_key_text(text, sizeof(text), key);
    if (table_get(t, key, &value)) {
        const size_t n = value.bytes < TABLE_NUMBER_BYTES ? value.bytes : 0;

        memcpy(digits, value.data, n);
        digits[n] = 0;
        if (strlen(digits) != value.bytes ||
            text_parse_int(digits, "the counter", INT64_MIN, INT64_MAX, &before) != LS_OK)
            return ls_fail(LS_EINVAL, "the value of key %s is not a number", text);
    }
    if (__builtin_add_overflow(before, delta, out))
        return ls_fail(LS_EINVAL, "counter %s: %" PRId64 " + %" PRId64 " overflows", text, before,
                       delta);
    text_format(digits, TABLE_NUMBER_BYTES, "%" PRId64, *out);
    return LS_OK;
}

ls_status table_add(kv_table *t, kv_bytes key, int64_t delta, int64_t *out)
{
    char digits[TABLE_NUMBER_BYTES];

    LS_TRY(table_sum(t, key, delta, out, digits));
    return table_set(t, key, (kv_bytes){(const uint8_t *)digits, strlen(digits)});
}

bool table_has_value(const kv_table *t, kv_bytes key, kv_bytes expected)
{
    kv_bytes value;

    if (!table_get(t, key, &value))
        return expected.bytes == 0;
    return expected.bytes > 0 && kv_equal(value, expected);
}

ls_status table_compare_set(kv_table *t, kv_bytes key, kv_bytes expected, kv_bytes desired,
                            bool *swapped)
{
    *swapped = false;
    if (!table_has_value(t, key, expected))
        return LS_OK;
    LS_TRY(table_set(t, key, desired));
    *swapped = true;
    return LS_OK;
}

bool table_delete(kv_table *t, kv_bytes key)
{
    kv_value *old = byte_map_remove(&t->map, key.data, key.bytes);

    if (old == NULL)
        return false;
    t->bytes -= key.bytes + old->bytes;
    ls_free(old);
    return true;
}

size_t table_count(const kv_table *t)
{
    return t->map.count;
}
