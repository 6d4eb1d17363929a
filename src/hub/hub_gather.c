/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_gather.c - answers a gather with the values of PREFIX0 to PREFIXn-1 once all exist: how ranks
 * exchange their boot records. Each client asks for one part after the other, and the parts are
 * made once and cached. So n ranks cost n copies of them and not n * n requests, and only one part
 * for each client waits for its socket: the memory does not grow with n * n. hub_store.c calls it.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "hub/values.h"

#include <string.h>

#define GATHERS_MAX   8 /* cached answers; more only while clients wait for them */
#define NUMBER_BYTES  12
#define MISSING_SHOWN 16

struct hub_gather {
    list_node node; /* in hub.gathers, oldest first */
    uint8_t *key;   /* the prefix, and NUMBER_BYTES for a number */
    size_t prefix_bytes;
    uint32_t n;
    uint32_t next;      /* the first value that is missing */
    wire_writer *parts; /* answers: id u64, status u32, values; empty: not made, or outdated */
    list_node waiters;  /* hub_conn.wait */
};

static uint32_t count_parts(const hub_gather *g)
{
    return (g->n - 1) / HUB_MESSAGE_VALUES + 1;
}

static kv_bytes key_at(const hub_gather *g, uint32_t i)
{
    char *digits = (char *)g->key + g->prefix_bytes;

    text_format(digits, NUMBER_BYTES, "%u", (unsigned)i);
    return (kv_bytes){.data = g->key, .bytes = g->prefix_bytes + strlen(digits)};
}

static void forget_parts(hub_gather *g)
{
    for (uint32_t i = 0; i < count_parts(g); i++)
        wire_writer_free(&g->parts[i]);
}

static void free_gather(hub *h, hub_gather *g)
{
    list_remove(&g->node);
    h->n_gathers--;
    forget_parts(g);
    ls_free(g->key);
    ls_free(g->parts);
    ls_free(g);
}

void hub_gather_free(hub *h)
{
    while (!list_empty(&h->gathers))
        free_gather(h, list_entry(h->gathers.next, hub_gather, node));
}

static void free_unused(hub *h)
{
    list_for_each_safe (it, &h->gathers) {
        hub_gather *g = list_entry(it, hub_gather, node);

        if (h->n_gathers >= GATHERS_MAX && list_empty(&g->waiters))
            free_gather(h, g);
    }
}

static hub_gather *find_gather(hub *h, kv_bytes prefix, uint32_t n)
{
    list_for_each (it, &h->gathers) {
        hub_gather *g = list_entry(it, hub_gather, node);

        if (g->n == n && kv_equal((kv_bytes){g->key, g->prefix_bytes}, prefix))
            return g;
    }
    return NULL;
}

static hub_gather *new_gather(hub *h, kv_bytes prefix, uint32_t n)
{
    hub_gather *g = ls_calloc(1, sizeof(*g));

    free_unused(h);
    if (g == NULL)
        return NULL;
    g->n = n;
    g->key = ls_calloc(1, prefix.bytes + NUMBER_BYTES);
    g->parts = ls_calloc(count_parts(g), sizeof(*g->parts));
    if (g->key == NULL || g->parts == NULL) {
        ls_free(g->key);
        ls_free(g->parts);
        ls_free(g);
        return NULL;
    }
    memcpy(g->key, prefix.data, prefix.bytes);
    g->prefix_bytes = prefix.bytes;
    list_init(&g->waiters);
    list_append(&h->gathers, &g->node);
    h->n_gathers++;
    return g;
}

static bool is_complete(const hub *h, hub_gather *g)
{
    kv_bytes value;

    while (g->next < g->n && table_get(&h->table, key_at(g, g->next), &value))
        g->next++;
    return g->next == g->n;
}

static ls_status make_part(const hub *h, hub_gather *g, uint32_t first, wire_writer *w)
{
    kv_bytes before = {0};
    kv_bytes value = {0};

    if (w->bytes > 0)
        return LS_OK;
    wire_write_u64(w, 0);
    wire_write_u32(w, LS_OK);
    for (uint32_t i = first; i < g->n && i < first + HUB_MESSAGE_VALUES; i++) {
        if (!table_get(&h->table, key_at(g, i), &value))
            break; // the gather is complete
        values_write(w, before, value);
        before = value;
        if (w->bytes > HUB_MESSAGE_BODY_MAX)
            return ls_fail(LS_EINVAL, "values of %zu bytes together are too many for one answer",
                           w->bytes);
    }
    return wire_writer_status(w);
}

static void answer(hub_conn *c, uint64_t id, hub_gather *g, uint32_t first)
{
    wire_writer *w = &g->parts[first / HUB_MESSAGE_VALUES];
    const ls_status st = make_part(c->owner, g, first, w);

    if (st != LS_OK) {
        hub_store_reply_failure(c, id, st);
        wire_writer_free(w);
        return;
    }
    wire_put_u64(w->data, id);
    conn_send(c, HUB_MESSAGE_REPLY, w->data, w->bytes);
}

static void answer_all(hub_gather *g)
{
    while (!list_empty(&g->waiters)) {
        hub_conn *c = list_entry(g->waiters.next, hub_conn, wait.node);
        const uint64_t id = c->wait.id;
        const uint32_t first = c->wait.gather_first;

        hub_store_end_wait(c);
        answer(c, id, g, first);
    }
}

void hub_gather_changed(hub *h, kv_bytes key)
{
    list_for_each (it, &h->gathers) {
        hub_gather *g = list_entry(it, hub_gather, node);
        kv_bytes value;
        kv_bytes next;

        if (key.bytes <= g->prefix_bytes || memcmp(key.data, g->key, g->prefix_bytes) != 0)
            continue;
        if (g->next == g->n || !table_get(&h->table, key, &value)) { // outdated
            forget_parts(g);
            g->next = 0;
            (void)is_complete(h, g);
            continue;
        }
        next = key_at(g, g->next);
        if (kv_equal(next, key) && is_complete(h, g))
            answer_all(g);
    }
}

/* "ranks 1, 3 of 4 did not join": the values are records of ranks. */
static ls_status fail_missing(const hub *h, const hub_gather *g)
{
    text_buf numbers = {0};
    kv_bytes value;
    int n_missing = 0;
    ls_status st;

    for (uint32_t i = 0; i < g->n; i++) {
        if (!table_get(&h->table, key_at(g, i), &value) && ++n_missing <= MISSING_SHOWN)
            text_append(&numbers, n_missing == 1 ? "%u" : ", %u", (unsigned)i);
    }
    if (n_missing > MISSING_SHOWN)
        text_append(&numbers, " and %d more", n_missing - MISSING_SHOWN);
    st = ls_fail(LS_ETIMEOUT, "rank%s %s of %u did not join", n_missing == 1 ? "" : "s",
                 text_str(&numbers), (unsigned)g->n);
    text_free(&numbers);
    return st;
}

static void gather_timed_out(void *arg)
{
    hub_conn *c = arg;
    const uint64_t id = c->wait.id;
    const ls_status st = fail_missing(c->owner, c->wait.gather);

    hub_store_end_wait(c);
    hub_store_reply_failure(c, id, st);
}

ls_status hub_gather_request(hub_conn *c, uint64_t id, wire_reader *r)
{
    hub *h = c->owner;
    const int64_t timeout_ms = wire_read_i64(r);
    const uint32_t n = wire_read_u32(r);
    uint32_t first;
    hub_gather *g;
    kv_bytes prefix;

    prefix.data = wire_read_bytes(r, LS_STORE_KEY_MAX - NUMBER_BYTES, &prefix.bytes);
    first = wire_read_u32(r);
    LS_TRY(wire_reader_end(r, "a request to the store"));
    if (n == 0 || n > HUB_MESSAGE_RANKS_MAX || first >= n || first % HUB_MESSAGE_VALUES != 0)
        return ls_fail(LS_EPROTO, "a request to the store for value %u of %u", (unsigned)first,
                       (unsigned)n);
    g = find_gather(h, prefix, n);
    if (g == NULL)
        g = new_gather(h, prefix, n);
    if (g == NULL) {
        hub_store_reply_failure(c, id, ls_fail(LS_ENOMEM, "no memory for %u values", (unsigned)n));
        return LS_OK;
    }
    if (is_complete(h, g)) {
        answer(c, id, g, first);
        return LS_OK;
    }
    c->wait.id = id;
    c->wait.gather_first = first;
    c->wait.is_active = true;
    c->wait.gather = g;
    list_append(&g->waiters, &c->wait.node);
    if (timeout_ms >= 0)
        poller_timer_set(h->loop, &c->wait.timer, ls_deadline_ms(timeout_ms), gather_timed_out, c);
    return LS_OK;
}
