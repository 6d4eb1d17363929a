/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hublink_store.c - the store operations of a connection to a hub, for a rank's control connection,
 * and the stores behind tcp:// and unix: urls. Each operation is one request and one reply.
 */
#include "hub/control.h"
#include "hub/hub.h"
#include "hub/hublink.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/text.h"
#include "hub/hub_messages.h"
#include "net/interface.h"

#include <string.h>

#define OPEN_MS   ((int64_t)300 * 1000)
#define STOP_MS   0
#define KEY_LABEL "lockstep store"

static hublink *link_of(ls_store *s)
{
    return (hublink *)(void *)s;
}

/* A reply must end where its fields do. */
static ls_status end_reply(hublink *l, const wire_reader *r)
{
    const ls_status st = wire_reader_end(r, "an answer of the hub");

    return st == LS_OK ? st : hublink_break(l, st);
}

static void write_key(wire_writer *w, kv_bytes key)
{
    wire_write_bytes(w, key.data, key.bytes);
}

static ls_status link_set(ls_store *s, kv_bytes key, kv_bytes value)
{
    hublink *l = link_of(s);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    write_key(w, key);
    write_key(w, value);
    LS_TRY(hublink_request(l, HUB_MESSAGE_SET, 0, &r));
    return end_reply(l, &r);
}

static ls_status link_get(ls_store *s, kv_bytes key, int64_t deadline_ms, void **out, size_t *bytes)
{
    hublink *l = link_of(s);
    const int64_t timeout_ms = ls_deadline_left(deadline_ms);
    wire_writer *w = hublink_begin(l);
    wire_reader r;
    kv_bytes value;

    wire_write_i64(w, timeout_ms);
    write_key(w, key);
    LS_TRY(hublink_request(l, HUB_MESSAGE_GET, timeout_ms, &r));
    value.data = wire_read_bytes(&r, LS_STORE_VALUE_MAX, &value.bytes);
    LS_TRY(end_reply(l, &r));
    return store_copy_value(value, out, bytes);
}

static ls_status link_add(ls_store *s, kv_bytes key, int64_t delta, int64_t *out)
{
    hublink *l = link_of(s);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    write_key(w, key);
    wire_write_i64(w, delta);
    LS_TRY(hublink_request(l, HUB_MESSAGE_ADD, 0, &r));
    *out = wire_read_i64(&r);
    return end_reply(l, &r);
}

static ls_status link_compare_set(ls_store *s, kv_bytes key, kv_bytes expected, kv_bytes desired,
                                  bool *swapped)
{
    hublink *l = link_of(s);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    write_key(w, key);
    write_key(w, expected);
    write_key(w, desired);
    LS_TRY(hublink_request(l, HUB_MESSAGE_COMPARE_SET, 0, &r));
    *swapped = wire_read_u8(&r) != 0;
    return end_reply(l, &r);
}

static void write_keys(wire_writer *w, const kv_bytes *keys, int n)
{
    wire_write_u32(w, (uint32_t)n);
    for (int i = 0; i < n; i++)
        write_key(w, keys[i]);
}

/* The hub closes the connection after a frame that is too large. */
static ls_status check_size(const wire_writer *w)
{
    if (!w->failed && w->bytes > HUB_MESSAGE_BODY_MAX)
        return ls_fail(LS_EINVAL, "the keys have %zu bytes together, at most %zu are allowed",
                       w->bytes, HUB_MESSAGE_BODY_MAX);
    return LS_OK;
}

static ls_status link_wait(ls_store *s, const kv_bytes *keys, int n, int64_t deadline_ms)
{
    hublink *l = link_of(s);
    const int64_t timeout_ms = ls_deadline_left(deadline_ms);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    wire_write_i64(w, timeout_ms);
    write_keys(w, keys, n);
    LS_TRY(check_size(w));
    LS_TRY(hublink_request(l, HUB_MESSAGE_WAIT, timeout_ms, &r));
    return end_reply(l, &r);
}

static ls_status link_check(ls_store *s, const kv_bytes *keys, int n, bool *all_exist)
{
    hublink *l = link_of(s);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    write_keys(w, keys, n);
    LS_TRY(check_size(w));
    LS_TRY(hublink_request(l, HUB_MESSAGE_CHECK, 0, &r));
    *all_exist = wire_read_u8(&r) != 0;
    return end_reply(l, &r);
}

static ls_status link_remove(ls_store *s, kv_bytes key, bool *existed)
{
    hublink *l = link_of(s);
    wire_writer *w = hublink_begin(l);
    wire_reader r;

    write_key(w, key);
    LS_TRY(hublink_request(l, HUB_MESSAGE_DELETE, 0, &r));
    *existed = wire_read_u8(&r) != 0;
    return end_reply(l, &r);
}

static ls_status link_count(ls_store *s, int64_t *out)
{
    hublink *l = link_of(s);
    wire_reader r;

    hublink_begin(l);
    LS_TRY(hublink_request(l, HUB_MESSAGE_COUNT, 0, &r));
    *out = wire_read_i64(&r);
    return end_reply(l, &r);
}

static void close_borrowed(ls_store *s)
{
    LS_UNUSED(s); // the connection's owner closes it
}

const store_ops hublink_borrowed_store = {
    .is_watched = true,
    .close = close_borrowed,
    .set = link_set,
    .get = link_get,
    .add = link_add,
    .compare_set = link_compare_set,
    .wait = link_wait,
    .check = link_check,
    .remove = link_remove,
    .count = link_count,
};

/* --- a store with its own connection --- */

typedef struct remote_store {
    hublink link;  /* first: it begins with the ls_store */
    store_ops ops; /* those of hublink_borrowed_store, with a close */
    net_key key;
    hub_thread *server; /* NULL: another process serves the store */
} remote_store;

static void remote_close(ls_store *s)
{
    remote_store *r = (remote_store *)(void *)s;

    hublink_close(&r->link);
    hub_thread_stop(r->server, STOP_MS);
    net_key_wipe(&r->key);
    ls_free(r);
}

/* Nothing is pushed to a store without a job. */
static ls_status refuse_push(void *arg, const frame *f)
{
    LS_UNUSED(arg);
    return ls_fail(LS_EPROTO, "the store sent message %u", f->type);
}

/* The key that both ends derive; none for a unix socket, where the kernel names the user. */
static ls_status make_key(const net_address *at, const ls_store_options *opt, net_key *out)
{
    net_key user;
    ls_status st;

    if (net_address_family(at) == NET_UNIX || opt->insecure)
        return LS_OK;
    LS_TRY(net_key_of_user(opt->key_file, &user));
    st = net_key_derive(&user, KEY_LABEL, "", out);
    net_key_wipe(&user);
    return st;
}

/* The address at which other hosts reach a server that listens on every interface. */
static ls_status reachable(const net_address *bound, net_address *out)
{
    net_interface best;
    int n = 0;

    *out = *bound;
    if (!net_address_is_any(bound))
        return LS_OK;
    LS_TRY(net_interfaces(NULL, &best, 1, &n));
    if (n == 0)
        LS_TRY(net_address_decode("127.0.0.1:0", &best.address));
    *out = best.address;
    net_address_set_port(out, net_address_port(bound));
    return LS_OK;
}

/* Serves the store at the first of the addresses. */
static ls_status serve(remote_store *r, const ls_store_options *opt, hublink_options *to)
{
    const net_key *key = to->key;
    const hub_options server = {
        .key = key, .insecure = opt->insecure != 0, .security = to->claim.security};
    net_address shown;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_TRY(hub_thread_start(&server, &to->hub[0], &r->server));
    LS_TRY(reachable(hub_thread_address(r->server), &shown));
    to->hub[0] = shown;
    to->n_hub = 1;
    text_format(r->link.store.url, sizeof(r->link.store.url), "%s",
                net_address_text(text, sizeof(text), &shown));
    return LS_OK;
}

/* The timeout of operations: a stopped server may continue. */
static int64_t answer_limit(void)
{
    int64_t ms = 0;

    return config_int(CONFIG_OP_MS, &ms) == LS_OK ? ms : -1;
}

static ls_store *publish(remote_store *r)
{
    r->ops = hublink_borrowed_store;
    r->ops.is_watched = false;
    r->ops.close = remote_close;
    r->link.store.ops = &r->ops;
    return &r->link.store;
}

ls_status store_remote_open(const char *url, const ls_store_options *opt, ls_store **out)
{
    hublink_options to = {0};
    remote_store *r;
    ls_status st;

    LS_TRY(net_address_resolve(url, NET_PORT_REQUIRED, to.hub, HUBLINK_ADDRESSES_MAX, &to.n_hub));
    LS_TRY(LS_NEW(&r, 1, "for a store"));
    r->link.fd = -1;
    to.insecure = opt->insecure != 0;
    to.answer_ms = answer_limit();
    to.deadline_ms = ls_deadline_ms(opt->timeout_ms == 0 ? OPEN_MS : opt->timeout_ms);
    to.claim = (handshake_claim){
        .purpose = NET_PURPOSE_STORE, .from = HANDSHAKE_ANY_RANK, .to = HANDSHAKE_ANY_RANK};
    st = net_security_setting(&to.claim.security);
    if (st == LS_OK)
        st = make_key(&to.hub[0], opt, &r->key);
    if (net_address_family(&to.hub[0]) != NET_UNIX && !to.insecure)
        to.key = &r->key;
    if (st == LS_OK && opt->serve)
        st = serve(r, opt, &to);
    if (st == LS_OK)
        st = hublink_open(&to, refuse_push, NULL, &r->link);
    if (st != LS_OK) {
        remote_close(&r->link.store);
        return ls_context(st, "store '%s'", url);
    }
    *out = publish(r);
    return LS_OK;
}

ls_status control_open_store(const net_address *at, const net_key *key, net_security security,
                             int64_t timeout_ms, ls_store **out)
{
    hublink_options to = {.n_hub = 1, .server = "the launcher", .answer_ms = answer_limit()};
    remote_store *r;
    ls_status st;

    LS_TRY(LS_NEW(&r, 1, "for a store"));
    r->link.fd = -1;
    to.hub[0] = *at;
    to.deadline_ms = ls_deadline_ms(timeout_ms);
    to.claim = (handshake_claim){.purpose = NET_PURPOSE_STORE,
                                 .from = HANDSHAKE_ANY_RANK,
                                 .to = HANDSHAKE_ANY_RANK,
                                 .security = security};
    if (key != NULL)
        r->key = *key;
    to.key = key != NULL ? &r->key : NULL;
    st = hublink_open(&to, refuse_push, NULL, &r->link);
    if (st != LS_OK) {
        remote_close(&r->link.store);
        return st;
    }
    *out = publish(r);
    return LS_OK;
}
