/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_store.c - the hub's key-value store: requests and their answers, for hub_conn.c. A get or
 * wait for missing keys stays open with the first missing key, with which a set is compared.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "store/store_ops.h"

#include <string.h>

/* --- answers --- */

static void begin_reply(hub_conn *c, uint64_t id, ls_status st)
{
    wire_writer *w = &c->owner->body;

    wire_writer_reset(w);
    wire_write_u64(w, id);
    wire_write_u32(w, (uint32_t)st);
}

void hub_store_reply_failure(hub_conn *c, uint64_t id, ls_status st)
{
    char text[HUB_MESSAGE_TEXT_MAX];

    text_format(text, sizeof(text), "%s", ls_last_error());
    begin_reply(c, id, st);
    wire_write_text(&c->owner->body, text);
    conn_send_body(c, HUB_MESSAGE_REPLY);
}

static void reply_ok(hub_conn *c, uint64_t id)
{
    begin_reply(c, id, LS_OK);
    conn_send_body(c, HUB_MESSAGE_REPLY);
}

static void reply_number(hub_conn *c, uint64_t id, int64_t number)
{
    begin_reply(c, id, LS_OK);
    wire_write_i64(&c->owner->body, number);
    conn_send_body(c, HUB_MESSAGE_REPLY);
}

static void reply_flag(hub_conn *c, uint64_t id, bool flag)
{
    begin_reply(c, id, LS_OK);
    wire_write_u8(&c->owner->body, flag);
    conn_send_body(c, HUB_MESSAGE_REPLY);
}

static void reply_value(hub_conn *c, uint64_t id, kv_bytes value)
{
    begin_reply(c, id, LS_OK);
    wire_write_bytes(&c->owner->body, value.data, value.bytes);
    conn_send_body(c, HUB_MESSAGE_REPLY);
}

/* --- waits --- */

void hub_store_end_wait(hub_conn *c)
{
    if (!c->wait.is_active)
        return;
    c->wait.is_active = false;
    list_remove(&c->wait.node);
    poller_timer_cancel(&c->wait.timer);
    ls_free(c->wait.body);
    ls_free(c->wait.keys);
    c->wait.body = NULL;
    c->wait.keys = NULL;
}

/* Answers if all keys exist; otherwise stores the index of the first missing one. */
static bool try_wait(hub_conn *c)
{
    conn_wait *w = &c->wait;
    kv_bytes value = {0};

    if (!store_has_all(&c->owner->table, w->keys, w->n_keys, &w->missing))
        return false;
    if (w->is_get && table_get(&c->owner->table, w->keys[0], &value))
        reply_value(c, w->id, value);
    else
        reply_ok(c, w->id);
    hub_store_end_wait(c);
    return true;
}

static void wait_timed_out(void *arg)
{
    hub_conn *c = arg;
    const uint64_t id = c->wait.id;

    store_missing(&c->owner->table, c->wait.keys, c->wait.n_keys);
    hub_store_end_wait(c);
    hub_store_reply_failure(c, id, LS_ETIMEOUT);
}

/* The key has a value now: checks the waits for which it was the first missing one. */
static void wake_waits(hub *h, kv_bytes key)
{
    hub_gather_changed(h, key);
    list_for_each_safe (it, &h->waits) {
        hub_conn *c = list_entry(it, hub_conn, wait.node);

        if (kv_equal(c->wait.keys[c->wait.missing], key))
            try_wait(c);
    }
}

/* Copies the keys' bytes. */
static ls_status begin_wait(hub_conn *c, uint64_t id, const kv_bytes *keys, int n, bool is_get)
{
    conn_wait *w = &c->wait;
    size_t bytes = 0;
    uint8_t *at;

    hub_store_end_wait(c);
    for (int i = 0; i < n; i++)
        bytes += keys[i].bytes;
    w->body = ls_realloc(NULL, bytes, 1);
    w->keys = ls_calloc((size_t)n, sizeof(*w->keys));
    if (w->body == NULL || w->keys == NULL) {
        ls_free(w->body);
        ls_free(w->keys);
        w->body = NULL;
        w->keys = NULL;
        return ls_fail(LS_ENOMEM, "no memory to wait for %d keys", n);
    }
    at = w->body;
    for (int i = 0; i < n; i++) {
        memcpy(at, keys[i].data, keys[i].bytes);
        w->keys[i] = (kv_bytes){at, keys[i].bytes};
        at += keys[i].bytes;
    }
    w->n_keys = n;
    w->id = id;
    w->is_get = is_get;
    w->is_active = true;
    list_append(&c->owner->waits, &w->node);
    return LS_OK;
}

static void wait_for(hub_conn *c, uint64_t id, const kv_bytes *keys, int n, bool is_get,
                     int64_t timeout_ms)
{
    const ls_status st = begin_wait(c, id, keys, n, is_get);

    if (st != LS_OK) {
        hub_store_reply_failure(c, id, st);
        return;
    }
    if (try_wait(c))
        return;
    if (timeout_ms == 0)
        wait_timed_out(c);
    else if (timeout_ms > 0)
        poller_timer_set(c->owner->loop, &c->wait.timer, ls_deadline_ms(timeout_ms), wait_timed_out,
                         c);
}

/* --- requests --- */

static kv_bytes read_key(wire_reader *r)
{
    kv_bytes key;

    key.data = wire_read_bytes(r, LS_STORE_KEY_MAX, &key.bytes);
    if (key.bytes == 0)
        r->failed = true;
    return key;
}

static kv_bytes read_value(wire_reader *r)
{
    kv_bytes value;

    value.data = wire_read_bytes(r, LS_STORE_VALUE_MAX, &value.bytes);
    return value;
}

static ls_status end_request(const wire_reader *r)
{
    return wire_reader_end(r, "a request to the store");
}

ls_status hub_set(hub *h, const char *key, const char *text)
{
    const kv_bytes name = {(const uint8_t *)key, strlen(key)};

    LS_TRY(table_set(&h->table, name, (kv_bytes){(const uint8_t *)text, strlen(text)}));
    wake_waits(h, name);
    return LS_OK;
}

/* Long ones are of no interest to an owner. */
static void tell_owner(const hub *h, kv_bytes key, kv_bytes value)
{
    char name[64];
    char text[64];

    if (h->opt.events.stored == NULL || key.bytes >= sizeof(name) || value.bytes >= sizeof(text))
        return;
    text_format(name, sizeof(name), "%.*s", (int)key.bytes, (const char *)key.data);
    text_format(text, sizeof(text), "%.*s", (int)value.bytes, (const char *)value.data);
    h->opt.events.stored(h->opt.events.self, name, text);
}

static ls_status do_set(hub_conn *c, uint64_t id, wire_reader *r)
{
    const kv_bytes key = read_key(r);
    const kv_bytes value = read_value(r);
    ls_status st;

    LS_TRY(end_request(r));
    st = table_set(&c->owner->table, key, value);
    if (st == LS_OK)
        reply_ok(c, id);
    else
        hub_store_reply_failure(c, id, st);
    if (st == LS_OK)
        wake_waits(c->owner, key);
    if (st == LS_OK)
        tell_owner(c->owner, key, value);
    return LS_OK;
}

static ls_status do_get(hub_conn *c, uint64_t id, wire_reader *r)
{
    const int64_t timeout_ms = wire_read_i64(r);
    const kv_bytes key = read_key(r);

    LS_TRY(end_request(r));
    wait_for(c, id, &key, 1, true, timeout_ms);
    return LS_OK;
}

static ls_status do_add(hub_conn *c, uint64_t id, wire_reader *r)
{
    const kv_bytes key = read_key(r);
    const int64_t delta = wire_read_i64(r);
    int64_t sum = 0;
    ls_status st;

    LS_TRY(end_request(r));
    st = table_add(&c->owner->table, key, delta, &sum);
    if (st == LS_OK)
        reply_number(c, id, sum);
    else
        hub_store_reply_failure(c, id, st);
    if (st == LS_OK)
        wake_waits(c->owner, key);
    return LS_OK;
}

static ls_status do_compare_set(hub_conn *c, uint64_t id, wire_reader *r)
{
    const kv_bytes key = read_key(r);
    const kv_bytes expected = read_value(r);
    const kv_bytes desired = read_value(r);
    bool swapped = false;
    ls_status st;

    LS_TRY(end_request(r));
    st = table_compare_set(&c->owner->table, key, expected, desired, &swapped);
    if (st == LS_OK)
        reply_flag(c, id, swapped);
    else
        hub_store_reply_failure(c, id, st);
    if (swapped)
        wake_waits(c->owner, key);
    return LS_OK;
}

/* Reads "n u32, n keys"; *out is freed with ls_free(), and bounded by the received bytes. */
static ls_status read_keys(wire_reader *r, kv_bytes **out, int *n)
{
    const uint32_t count = wire_read_u32(r);
    kv_bytes *keys;
    ls_status st;

    *out = NULL;
    if (r->failed || count == 0 || count > (uint32_t)STORE_WAIT_KEYS_MAX ||
        count > (r->bytes - r->at) / 5)
        return ls_fail(LS_EPROTO, "a request to the store names %u keys", count);
    LS_TRY(LS_NEW(&keys, count, "for %u keys", count));
    for (uint32_t i = 0; i < count; i++)
        keys[i] = read_key(r);
    st = end_request(r);
    if (st != LS_OK) {
        ls_free(keys);
        return st;
    }
    *out = keys;
    *n = (int)count;
    return LS_OK;
}

static ls_status do_wait(hub_conn *c, uint64_t id, wire_reader *r)
{
    const int64_t timeout_ms = wire_read_i64(r);
    kv_bytes *keys;
    int n = 0;

    LS_TRY(read_keys(r, &keys, &n));
    wait_for(c, id, keys, n, false, timeout_ms);
    ls_free(keys);
    return LS_OK;
}

static ls_status do_check(hub_conn *c, uint64_t id, wire_reader *r)
{
    kv_bytes *keys;
    int n = 0;
    int missing;

    LS_TRY(read_keys(r, &keys, &n));
    reply_flag(c, id, store_has_all(&c->owner->table, keys, n, &missing));
    ls_free(keys);
    return LS_OK;
}

static ls_status do_delete(hub_conn *c, uint64_t id, wire_reader *r)
{
    const kv_bytes key = read_key(r);
    bool existed;

    LS_TRY(end_request(r));
    existed = table_delete(&c->owner->table, key);
    reply_flag(c, id, existed);
    if (existed)
        hub_gather_changed(c->owner, key);
    return LS_OK;
}

static ls_status do_count(hub_conn *c, uint64_t id, wire_reader *r)
{
    LS_TRY(end_request(r));
    reply_number(c, id, (int64_t)table_count(&c->owner->table));
    return LS_OK;
}

ls_status hub_store_request(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint64_t id = wire_read_u64(&r);

    hub_store_end_wait(c); // a newer request ends the older one
    switch (f->type) {
    case HUB_MESSAGE_SET:
        return do_set(c, id, &r);
    case HUB_MESSAGE_GET:
        return do_get(c, id, &r);
    case HUB_MESSAGE_ADD:
        return do_add(c, id, &r);
    case HUB_MESSAGE_COMPARE_SET:
        return do_compare_set(c, id, &r);
    case HUB_MESSAGE_WAIT:
        return do_wait(c, id, &r);
    case HUB_MESSAGE_CHECK:
        return do_check(c, id, &r);
    case HUB_MESSAGE_DELETE:
        return do_delete(c, id, &r);
    case HUB_MESSAGE_COUNT:
        return do_count(c, id, &r);
    case HUB_MESSAGE_GATHER:
        return hub_gather_request(c, id, &r);
    default:
        return ls_fail(LS_EPROTO, "unknown request %u", f->type);
    }
}
