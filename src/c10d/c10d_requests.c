/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_requests.c - executes the commands of PyTorch's clients, for c10d_store.c. Answers that seem
 * odd are those of PyTorch's own store, on which its clients rely.
 */
#include "c10d/c10d_internal.h"

#include "base/alloc.h"

#include <string.h>

bool c10d_exists(const c10d_store *s, kv_bytes key)
{
    kv_bytes value;

    return table_get(&s->table, key, &value) || c10d_queues_length(&s->queues, key) > 0;
}

/* --- changing values --- */

/* The bound of table and queues together; the table checks its own. */
static ls_status check_space(const c10d_store *s, size_t bytes)
{
    const size_t held = s->table.bytes + s->queues.bytes;

    if (held > C10D_BYTES_MAX || bytes > C10D_BYTES_MAX - held)
        return ls_fail(LS_ENOMEM, "the store is full: it holds %zu bytes, %zu more do not fit",
                       held, bytes);
    return LS_OK;
}

static ls_status put(c10d_store *s, kv_bytes key, kv_bytes value)
{
    kv_bytes before;
    const bool is_there = table_get(&s->table, key, &before);
    const size_t held = is_there ? before.bytes : 0;
    const size_t needed = is_there ? value.bytes : value.bytes + key.bytes;

    if (needed > held)
        LS_TRY(check_space(s, needed - held));
    LS_TRY(table_set(&s->table, key, value));
    c10d_wake(s, key, false);
    return LS_OK;
}

static ls_status add(c10d_store *s, kv_bytes key, int64_t delta, int64_t *sum)
{
    char digits[TABLE_NUMBER_BYTES];

    LS_TRY(table_sum(&s->table, key, delta, sum, digits));
    return put(s, key, (kv_bytes){(const uint8_t *)digits, strlen(digits)});
}

static ls_status run_set(c10d_conn *c, c10d_request *r)
{
    const kv_bytes key = c10d_read_bytes(r);

    return put(c->owner, key, c10d_read_bytes(r));
}

/* As in PyTorch's own store, the answer for a missing key is the expected value. */
static ls_status run_compare_set(c10d_conn *c, c10d_request *r)
{
    const kv_bytes key = c10d_read_bytes(r);
    const kv_bytes expected = c10d_read_bytes(r);
    const kv_bytes desired = c10d_read_bytes(r);
    kv_bytes now;
    const bool is_there = table_get(&c->owner->table, key, &now);

    if (is_there ? kv_equal(now, expected) : expected.bytes == 0) {
        LS_TRY(put(c->owner, key, desired));
        c10d_answer_bytes(c, desired);
    } else {
        c10d_answer_bytes(c, is_there ? now : expected);
    }
    return LS_OK;
}

static ls_status run_add(c10d_conn *c, c10d_request *r)
{
    const kv_bytes key = c10d_read_bytes(r);
    int64_t sum;

    LS_TRY(add(c->owner, key, c10d_read_i64(r), &sum));
    c10d_answer_i64(c, sum);
    return LS_OK;
}

static ls_status run_append(c10d_conn *c, c10d_request *r)
{
    const kv_bytes key = c10d_read_bytes(r);
    const kv_bytes more = c10d_read_bytes(r);
    kv_bytes before;
    uint8_t *both;
    ls_status st;

    if (!table_get(&c->owner->table, key, &before) || before.bytes == 0)
        return put(c->owner, key, more);
    if (more.bytes == 0)
        return LS_OK;
    LS_TRY(table_check(key, before.bytes + more.bytes));
    both = ls_realloc(NULL, before.bytes + more.bytes, 1);
    if (both == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a value of %zu bytes", before.bytes + more.bytes);
    memcpy(both, before.data, before.bytes);
    memcpy(both + before.bytes, more.data, more.bytes);
    st = put(c->owner, key, (kv_bytes){both, before.bytes + more.bytes});
    ls_free(both);
    return st;
}

static ls_status run_delete(c10d_conn *c, c10d_request *r)
{
    c10d_answer_i64(c, table_delete(&c->owner->table, c10d_read_bytes(r)));
    return LS_OK;
}

/* All or nothing: the space is checked before the first one. */
static ls_status run_multi_set(c10d_conn *c, c10d_request *r)
{
    c10d_store *s = c->owner;

    LS_TRY(check_space(s, r->bytes));
    if (r->n > TABLE_KEYS_MAX - table_count(&s->table))
        return ls_fail(LS_ENOMEM, "the store is full: it has %zu keys", table_count(&s->table));
    for (size_t i = 0; i < r->n; i++)
        LS_TRY(run_set(c, r));
    return LS_OK;
}

/* --- asking --- */

static ls_status run_get(c10d_conn *c, c10d_request *r)
{
    kv_bytes value = {0};

    (void)table_get(&c->owner->table, c10d_read_bytes(r), &value); // clients wait for the key first
    c10d_answer_bytes(c, value);
    return LS_OK;
}

static ls_status run_multi_get(c10d_conn *c, c10d_request *r)
{
    for (size_t i = 0; i < r->n && c->fd >= 0; i++)
        LS_TRY(run_get(c, r));
    return LS_OK;
}

static ls_status run_check(c10d_conn *c, c10d_request *r)
{
    bool all = true;

    for (size_t i = 0; i < r->n && all; i++)
        all = c10d_exists(c->owner, c10d_read_bytes(r));
    c10d_answer_u8(c, all ? C10D_READY : C10D_NOT_READY);
    return LS_OK;
}

static ls_status run_count(c10d_conn *c, c10d_request *r)
{
    LS_UNUSED(r);
    c10d_answer_i64(c, (int64_t)table_count(&c->owner->table));
    return LS_OK;
}

static ls_status run_list_keys(c10d_conn *c, c10d_request *r)
{
    const byte_map *map = &c->owner->table.map;
    size_t cursor = 0;
    const void *key;
    size_t bytes;
    void *value;

    LS_UNUSED(r);
    c10d_answer_i64(c, (int64_t)map->count);
    while (c->fd >= 0 && byte_map_next(map, &cursor, &key, &bytes, &value))
        c10d_answer_bytes(c, (kv_bytes){key, bytes});
    return LS_OK;
}

static ls_status run_ping(c10d_conn *c, c10d_request *r)
{
    c10d_answer(c, r->at, r->bytes);
    return LS_OK;
}

/* --- waiting --- */

/* c10d_execute() has ended the wait. The answer comes even when there was none. */
static ls_status run_cancel_wait(c10d_conn *c, c10d_request *r)
{
    LS_UNUSED(r);
    c10d_answer_u8(c, C10D_WAIT_CANCELED);
    return LS_OK;
}

static ls_status run_barrier(c10d_conn *c, c10d_request *r)
{
    const kv_bytes key = c10d_read_bytes(r);
    int64_t n;

    LS_TRY(add(c->owner, key, 1, &n));
    return c10d_barrier_begin(c, key, c10d_read_i64(r));
}

/* --- queues --- */

static ls_status run_queue_push(c10d_conn *c, c10d_request *r)
{
    c10d_store *s = c->owner;
    const kv_bytes name = c10d_read_bytes(r);

    LS_TRY(c10d_queues_push(&s->queues, name, c10d_read_bytes(r), C10D_BYTES_MAX - s->table.bytes));
    c10d_wake(s, name, true);
    return LS_OK;
}

/* The answered length includes the value. */
static ls_status run_queue_pop(c10d_conn *c, c10d_request *r)
{
    c10d_queues *queues = &c->owner->queues;
    const kv_bytes name = c10d_read_bytes(r);
    c10d_queue_item *item;

    c10d_answer_i64(c, (int64_t)c10d_queues_length(queues, name));
    item = c10d_queues_pop(queues, name);
    if (item != NULL)
        c10d_answer_bytes(c, item->value);
    ls_free(item);
    return LS_OK;
}

static ls_status run_queue_len(c10d_conn *c, c10d_request *r)
{
    c10d_answer_i64(c, (int64_t)c10d_queues_length(&c->owner->queues, c10d_read_bytes(r)));
    return LS_OK;
}

/* --- the table of commands --- */

static ls_status run_nothing(c10d_conn *c, c10d_request *r)
{
    LS_UNUSED(c);
    LS_UNUSED(r);
    return LS_OK;
}

static ls_status (*const runs[C10D_OP_COUNT])(c10d_conn *, c10d_request *) = {
    [C10D_NONE] = run_nothing,
    [C10D_VALIDATE] = run_nothing,
    [C10D_SET] = run_set,
    [C10D_COMPARE_SET] = run_compare_set,
    [C10D_GET] = run_get,
    [C10D_ADD] = run_add,
    [C10D_CHECK] = run_check,
    [C10D_WAIT] = c10d_wait_begin,
    [C10D_COUNT] = run_count,
    [C10D_DELETE] = run_delete,
    [C10D_APPEND] = run_append,
    [C10D_MULTI_GET] = run_multi_get,
    [C10D_MULTI_SET] = run_multi_set,
    [C10D_CANCEL_WAIT] = run_cancel_wait,
    [C10D_PING] = run_ping,
    [C10D_QUEUE_PUSH] = run_queue_push,
    [C10D_QUEUE_POP] = run_queue_pop,
    [C10D_QUEUE_LEN] = run_queue_len,
    [C10D_LIST_KEYS] = run_list_keys,
    [C10D_BARRIER] = run_barrier,
    [C10D_UNDECIDED] = run_nothing,
};

/* A new request ends the client's wait, also in dialects without CANCEL_WAIT. The client would take
 * a late answer of the wait for the answer to the new request. */
ls_status c10d_execute(c10d_conn *c, c10d_request *r)
{
    c10d_wait_end(c);
    return runs[r->op](c, r);
}
