/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_gather.c - answers a gather with the values of PREFIX0 to PREFIXn-1 once all exist: how ranks
 * exchange their boot records. The answer is made once and cached, so n ranks cost n copies of it
 * and not n * n requests. hub_store.c calls it.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

#include <string.h>

#define GATHERS_MAX   8 /* cached answers; more only while clients wait for them */
#define ANSWER_HEAD   12
#define NUMBER_BYTES  12
#define MISSING_SHOWN 16

struct hub_gather {
    list_node node; /* in hub.gathers, oldest first */
    uint8_t *key;   /* the prefix, and NUMBER_BYTES for a number */
    size_t prefix_bytes;
    uint32_t n;
    uint32_t next;   /* the first value that is missing */
    uint8_t *answer; /* id u64, status u32, then n values; NULL: not made, or outdated */
    size_t answer_bytes;
    list_node waiters; /* hub_conn.wait */
};

static kv_bytes key_at(const hub_gather *g, uint32_t i)
{
    char *digits = (char *)g->key + g->prefix_bytes;

    text_format(digits, NUMBER_BYTES, "%u", (unsigned)i);
    return (kv_bytes){.data = g->key, .bytes = g->prefix_bytes + strlen(digits)};
}

static void free_gather(hub *h, hub_gather *g)
{
    list_remove(&g->node);
    h->n_gathers--;
    ls_free(g->key);
    ls_free(g->answer);
    ls_free(g);
}

void hub_gather_free(hub *h)
{
    while (!list_empty(&h->gathers))
        free_gather(h, list_entry(h->gathers.next, hub_gather, node));
}

static void free_unused(hub *h)
{
    for (list_node *it = h->gathers.next, *next; it != &h->gathers; it = next) {
        hub_gather *g = list_entry(it, hub_gather, node);

        next = it->next;
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
    if (g != NULL)
        g->key = ls_calloc(1, prefix.bytes + NUMBER_BYTES);
    if (g == NULL || g->key == NULL) {
        ls_free(g);
        return NULL;
    }
    memcpy(g->key, prefix.data, prefix.bytes);
    g->prefix_bytes = prefix.bytes;
    g->n = n;
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

static ls_status make_answer(const hub *h, hub_gather *g)
{
    kv_bytes value = {0};
    size_t bytes = ANSWER_HEAD;
    uint8_t *at;

    if (g->answer != NULL)
        return LS_OK;
    for (uint32_t i = 0; i < g->n && table_get(&h->table, key_at(g, i), &value); i++)
        bytes += 4 + value.bytes;
    if (bytes > HUB_MESSAGE_BODY_MAX)
        return ls_fail(LS_EINVAL, "%u values of %zu bytes together are too many for one answer",
                       (unsigned)g->n, bytes);
    g->answer = ls_calloc(1, bytes);
    if (g->answer == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %u values", (unsigned)g->n);
    g->answer_bytes = bytes;
    at = g->answer + ANSWER_HEAD;
    for (uint32_t i = 0; i < g->n && table_get(&h->table, key_at(g, i), &value); i++) {
        wire_put_u32(at, (uint32_t)value.bytes);
        if (value.bytes > 0)
            memcpy(at + 4, value.data, value.bytes);
        at += 4 + value.bytes;
    }
    return LS_OK;
}

static void answer(hub_conn *c, uint64_t id, hub_gather *g)
{
    const ls_status st = make_answer(c->owner, g);

    if (st != LS_OK) {
        hub_store_reply_failure(c, id, st);
        return;
    }
    wire_put_u64(g->answer, id);
    wire_put_u32(g->answer + 8, LS_OK);
    conn_send(c, HUB_MESSAGE_REPLY, g->answer, g->answer_bytes);
}

static void answer_all(hub_gather *g)
{
    while (!list_empty(&g->waiters)) {
        hub_conn *c = list_entry(g->waiters.next, hub_conn, wait.node);
        const uint64_t id = c->wait.id;

        hub_store_end_wait(c);
        answer(c, id, g);
    }
}

void hub_gather_changed(hub *h, kv_bytes key)
{
    list_for_each (it, &h->gathers) {
        hub_gather *g = list_entry(it, hub_gather, node);
        kv_bytes next;

        if (key.bytes <= g->prefix_bytes || memcmp(key.data, g->key, g->prefix_bytes) != 0)
            continue;
        if (g->answer != NULL) { // outdated
            ls_free(g->answer);
            g->answer = NULL;
            g->next = 0;
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
    hub_gather *g;
    kv_bytes prefix;

    prefix.data = wire_read_bytes(r, LS_STORE_KEY_MAX - NUMBER_BYTES, &prefix.bytes);
    LS_TRY(wire_reader_end(r, "a request to the store"));
    if (n == 0 || n > HUB_MESSAGE_RANKS_MAX)
        return ls_fail(LS_EPROTO, "a request to the store for %u values", (unsigned)n);
    g = find_gather(h, prefix, n);
    if (g == NULL)
        g = new_gather(h, prefix, n);
    if (g == NULL) {
        hub_store_reply_failure(c, id, ls_fail(LS_ENOMEM, "no memory for %u values", (unsigned)n));
        return LS_OK;
    }
    if (is_complete(h, g)) {
        answer(c, id, g);
        return LS_OK;
    }
    c->wait.id = id;
    c->wait.is_active = true;
    c->wait.gather = g;
    list_append(&g->waiters, &c->wait.node);
    if (timeout_ms >= 0)
        poller_timer_set(h->loop, &c->wait.timer, ls_deadline_ms(timeout_ms), gather_timed_out, c);
    return LS_OK;
}
