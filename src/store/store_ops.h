/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ops.h - the functions of each kind of store. store.c checks all arguments first.
 *
 * store/: key-value stores without a server, for hub and c10d; programs use <lockstep/store.h>.
 */
#ifndef LS_STORE_STORE_OPS_H
#define LS_STORE_STORE_OPS_H

#include "net/address.h"
#include "store/table.h"

#include <stdbool.h>

#define STORE_WAIT_KEYS_MAX (128 * 1024) /* keys in one wait or check */

/* All functions are required. `deadline_ms` is a point in time. */
typedef struct store_ops {
    bool is_watched; /* the owner of the connection reports long waits */
    void (*close)(ls_store *s);
    ls_status (*set)(ls_store *s, kv_bytes key, kv_bytes value);
    /* *out: of ls_realloc(), with a 0 byte after the value. LS_ETIMEOUT as store_missing(). */
    ls_status (*get)(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out, size_t *bytes);
    ls_status (*add)(ls_store *s, kv_bytes key, int64_t delta, int64_t *out);
    ls_status (*compare_set)(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                             bool *swapped);
    /* LS_ETIMEOUT as store_missing(). */
    ls_status (*wait)(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms);
    ls_status (*check)(ls_store *s, const kv_bytes *keys, int n, bool *all_exist);
    ls_status (*remove)(ls_store *s, kv_bytes key, bool *existed);
    ls_status (*count)(ls_store *s, int64_t *out);
} store_ops;

/* The first member of every kind of store. */
struct ls_store {
    const store_ops *ops;
    char url[512];
};

/* The kinds that need no hub. `path` is copied. */
LS_MUST_USE ls_status store_memory_open(ls_store **out);
LS_MUST_USE ls_status store_file_open(const char *path, ls_store **out);

/* LS_EINVAL when the store or an argument of the call is NULL. */
LS_MUST_USE ls_status store_check_handle(const ls_store *s, const void *argument);

/* A copy with a 0 byte after the value, as `get` returns it. */
LS_MUST_USE ls_status store_copy_value(kv_bytes value, void **out, size_t *bytes);

/* Whether all keys exist in the table; *first_missing is the index of one that does not. */
bool store_has_all(const kv_table *t, const kv_bytes *keys, int n, int *first_missing);

/* LS_ETIMEOUT "keys 'a', 'b' and 5 more are not set". */
ls_status store_missing(const kv_table *t, const kv_bytes *keys, int n);

#endif
