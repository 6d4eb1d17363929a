/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_memory.c - the store of one process, behind "mem:". A mutex guards its table for threads.
 */
#include "store/store_ops.h"

#include "base/alloc.h"
#include "base/text.h"
#include "base/thread.h"

#include <string.h>

typedef struct memory_store {
    ls_store base;
    ls_mutex lock;
    ls_cond changed;
    kv_table table; /* under the lock */
} memory_store;

static memory_store *memory_of(ls_store *s)
{
    return (memory_store *)(void *)s;
}

static memory_store *locked(ls_store *s)
{
    memory_store *m = memory_of(s);

    ls_mutex_lock(&m->lock);
    return m;
}

static ls_status unlock(memory_store *m, ls_status st)
{
    ls_mutex_unlock(&m->lock);
    return st;
}

static void memory_close(ls_store *s)
{
    memory_store *m = memory_of(s);

    table_free(&m->table);
    ls_cond_destroy(&m->changed);
    ls_mutex_destroy(&m->lock);
    ls_free(m);
}

static ls_status memory_set(ls_store *s, kv_bytes key, kv_bytes value)
{
    memory_store *m = locked(s);
    const ls_status st = table_set(&m->table, key, value);

    ls_cond_broadcast(&m->changed);
    return unlock(m, st);
}

static ls_status memory_get(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out,
                            size_t *bytes)
{
    memory_store *m = locked(s);
    kv_bytes value;

    while (!table_get(&m->table, key, &value)) {
        if (!ls_cond_wait(&m->changed, &m->lock, deadline_ms))
            return unlock(m, store_missing(&m->table, &key, 1));
    }
    return unlock(m, store_copy_value(value, out, bytes));
}

static ls_status memory_add(ls_store *s, kv_bytes key, int64_t delta, int64_t *out)
{
    memory_store *m = locked(s);
    const ls_status st = table_add(&m->table, key, delta, out);

    ls_cond_broadcast(&m->changed);
    return unlock(m, st);
}

static ls_status memory_compare_set(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                                    bool *swapped)
{
    memory_store *m = locked(s);
    const ls_status st = table_compare_set(&m->table, key, expected, desired, swapped);

    ls_cond_broadcast(&m->changed);
    return unlock(m, st);
}

static ls_status memory_wait(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms)
{
    memory_store *m = locked(s);
    int missing;

    while (!store_has_all(&m->table, keys, n, &missing)) {
        if (!ls_cond_wait(&m->changed, &m->lock, deadline_ms))
            return unlock(m, store_missing(&m->table, keys, n));
    }
    return unlock(m, LS_OK);
}

static ls_status memory_check(ls_store *s, const kv_bytes *keys, int n, bool *all_exist)
{
    memory_store *m = locked(s);
    int missing;

    *all_exist = store_has_all(&m->table, keys, n, &missing);
    return unlock(m, LS_OK);
}

static ls_status memory_remove(ls_store *s, kv_bytes key, bool *existed)
{
    memory_store *m = locked(s);

    *existed = table_delete(&m->table, key);
    return unlock(m, LS_OK);
}

static ls_status memory_count(ls_store *s, int64_t *out)
{
    memory_store *m = locked(s);

    *out = (int64_t)table_count(&m->table);
    return unlock(m, LS_OK);
}

static const store_ops memory_ops = {
    .close = memory_close,
    .set = memory_set,
    .get = memory_get,
    .add = memory_add,
    .compare_set = memory_compare_set,
    .wait = memory_wait,
    .check = memory_check,
    .remove = memory_remove,
    .count = memory_count,
};

ls_status store_memory_open(ls_store **out)
{
    memory_store *m;

    LS_TRY(LS_NEW(&m, 1, "for a store"));
    m->base.ops = &memory_ops;
    text_format(m->base.url, sizeof(m->base.url), "mem:");
    ls_mutex_init(&m->lock);
    ls_cond_init(&m->changed);
    *out = &m->base;
    return LS_OK;
}
