/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_waits.c - clients of a c10d store that wait for keys; c10d_requests.c calls it. A wait
 * checks its keys in order, from the first missing one on, so all checks cost one pass.
 */
#include "c10d/c10d_internal.h"

#include "base/alloc.h"

#include <string.h>

void c10d_wait_end(c10d_conn *c)
{
    c10d_wait *w = &c->wait;

    if (!w->is_active)
        return;
    list_remove(&w->node);
    ls_free(w->keys);
    *w = (c10d_wait){0};
}

static bool barrier_is_full(const c10d_store *s, const c10d_wait *w)
{
    char digits[TABLE_NUMBER_BYTES];
    int64_t n;

    return table_sum(&s->table, w->missing, 0, &n, digits) == LS_OK && n >= w->target;
}

static bool is_over(const c10d_store *s, c10d_wait *w)
{
    if (w->is_barrier)
        return barrier_is_full(s, w);
    while (c10d_exists(s, w->missing)) {
        if (w->n_rest == 0)
            return true;
        w->missing = c10d_read_bytes(&w->rest);
        w->n_rest--;
    }
    return false;
}

static bool answer_if_over(c10d_conn *c)
{
    if (!is_over(c->owner, &c->wait))
        return false;
    c10d_wait_end(c);
    c10d_answer_u8(c, C10D_STOP_WAITING);
    return true;
}

static ls_status begin(c10d_conn *c, const void *keys, size_t bytes)
{
    c10d_wait *w = &c->wait;

    w->keys = ls_realloc(NULL, bytes, 1);
    if (w->keys == NULL)
        return ls_fail(LS_ENOMEM, "no memory to wait for keys of %zu bytes", bytes);
    memcpy(w->keys, keys, bytes);
    w->bytes = bytes;
    w->is_active = true;
    list_append(&c->owner->waits, &w->node);
    return LS_OK;
}

ls_status c10d_wait_begin(c10d_conn *c, c10d_request *keys)
{
    c10d_wait *w = &c->wait;

    if (keys->n == 0) {
        c10d_answer_u8(c, C10D_STOP_WAITING);
        return LS_OK;
    }
    LS_TRY(begin(c, keys->at, keys->bytes));
    w->rest = (c10d_request){.at = w->keys, .bytes = w->bytes};
    w->missing = c10d_read_bytes(&w->rest);
    w->n_rest = keys->n - 1;
    (void)answer_if_over(c);
    return LS_OK;
}

ls_status c10d_barrier_begin(c10d_conn *c, kv_bytes key, int64_t target)
{
    c10d_wait *w = &c->wait;

    LS_TRY(begin(c, key.data, key.bytes));
    w->is_barrier = true;
    w->target = target;
    w->missing = (kv_bytes){w->keys, w->bytes};
    (void)answer_if_over(c);
    return LS_OK;
}

void c10d_wake(c10d_store *s, kv_bytes key, bool only_one)
{
    list_node *it = s->waits.next;
    bool done = false;

    while (it != &s->waits && !done) {
        c10d_conn *c = list_entry(it, c10d_conn, wait.node);

        it = it->next;
        if (!kv_equal(c->wait.missing, key) || !answer_if_over(c))
            continue;
        c10d_flush(c);
        done = only_one;
    }
}
