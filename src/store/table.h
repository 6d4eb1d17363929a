/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - the content of every store: keys and values, with bounds on each and on their sum. */
#ifndef LS_STORE_TABLE_H
#define LS_STORE_TABLE_H

#include <lockstep/store.h>

#include "base/map.h"

#define TABLE_BYTES_MAX ((size_t)256 * 1024 * 1024) /* keys and values together */
#define TABLE_KEYS_MAX  ((size_t)1024 * 1024)

/* Zero-initialise. */
typedef struct kv_table {
    byte_map map;
    size_t bytes;
} kv_table;

typedef struct kv_bytes {
    const uint8_t *data; /* borrowed */
    size_t bytes;
} kv_bytes;

bool kv_equal(kv_bytes a, kv_bytes b);

void table_free(kv_table *t);

/* LS_EINVAL: key or value is too long, or the key is empty. */
LS_MUST_USE ls_status table_check(kv_bytes key, size_t value_bytes);

/* LS_ENOMEM: no memory, or the store is full; the old value stays. */
LS_MUST_USE ls_status table_set(kv_table *t, kv_bytes key, kv_bytes value);

/* False when absent. *value is valid until the table changes. */
bool table_get(const kv_table *t, kv_bytes key, kv_bytes *value);

#define TABLE_NUMBER_BYTES 21 /* "-9223372036854775808" and a 0 */

/* The sum of the counter and delta, as a number and as text; the table stays. LS_EINVAL: the value
 * is not a decimal number, or the sum overflows. */
LS_MUST_USE ls_status table_sum(const kv_table *t, kv_bytes key, int64_t delta, int64_t *out,
                                char digits[TABLE_NUMBER_BYTES]);

LS_MUST_USE ls_status table_add(kv_table *t, kv_bytes key, int64_t delta, int64_t *out);

/* Whether the value is `expected`; an empty one means that the key is absent. */
bool table_has_value(const kv_table *t, kv_bytes key, kv_bytes expected);

LS_MUST_USE ls_status table_compare_set(kv_table *t, kv_bytes key, kv_bytes expected,
                                        kv_bytes desired, bool *swapped);

bool table_delete(kv_table *t, kv_bytes key); /* false when it is absent */
size_t table_count(const kv_table *t);

/* "'name'", cut and made printable: for error texts. */
const char *table_key_text(char *buf, size_t n, kv_bytes key);

#endif
