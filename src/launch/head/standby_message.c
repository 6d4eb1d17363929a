/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby_message.c - writes and reads the messages between agents that may host the head. A reader
 * checks every number against its bounds. Called by standby.c.
 */
#include "launch/head/standby.h"

#include "base/alloc.h"

#include <string.h>

static void write_address(wire_writer *w, const net_address *a)
{
    char text[NET_ADDRESS_TEXT_MAX] = "";

    if (net_address_family(a) != NET_NONE)
        net_address_text(text, sizeof(text), a);
    wire_write_text(w, text);
}

/* A number, not a name: a name would be looked up. */
static void read_address(wire_reader *r, net_address *out)
{
    char text[NET_ADDRESS_TEXT_MAX];

    *out = (net_address){.bytes = 0};
    wire_read_text(r, text, sizeof(text));
    if (r->failed || text[0] == 0)
        return;
    if (net_address_decode(text, out) != LS_OK || net_address_family(out) == NET_UNIX)
        r->failed = true;
}

void standby_write_message(wire_writer *w, const standby_message *m)
{
    const succession_message *s = &m->message;

    wire_write_u32(w, m->generation);
    wire_write_u8(w, (uint8_t)s->kind);
    wire_write_u64(w, s->term);
    wire_write_u64(w, s->state_term);
    wire_write_u64(w, s->state_index);
    wire_write_u64(w, s->round);
    wire_write_u8(w, s->has_state);
    write_address(w, &m->leads_at);
    if (!s->has_state)
        return;
    wire_write_u32(w, (uint32_t)m->n_addresses);
    for (int i = 0; i < m->n_addresses; i++)
        write_address(w, &m->addresses[i]);
    wire_write_bytes(w, m->state, m->bytes);
}

static ls_status read_state(wire_reader *r, standby_message *out)
{
    const uint32_t n = wire_read_u32(r);

    if (r->failed || n > SUCCESSION_NODES_MAX)
        return ls_fail(LS_EPROTO, "the state of a head names %u nodes", n);
    LS_TRY(LS_NEW(&out->addresses, n + 1, "for %u addresses", n));
    out->n_addresses = (int)n;
    for (uint32_t i = 0; i < n; i++)
        read_address(r, &out->addresses[i]);
    out->state = wire_read_bytes(r, STANDBY_STATE_MAX, &out->bytes);
    return LS_OK;
}

ls_status standby_read_message(const void *body, size_t bytes, standby_message *out)
{
    wire_reader r = wire_reader_over(body, bytes);
    succession_message *s = &out->message;
    uint8_t kind;

    memset(out, 0, sizeof(*out));
    out->generation = wire_read_u32(&r);
    kind = wire_read_u8(&r);
    s->term = wire_read_u64(&r);
    s->state_term = wire_read_u64(&r);
    s->state_index = wire_read_u64(&r);
    s->round = wire_read_u64(&r);
    s->has_state = wire_read_u8(&r) != 0;
    read_address(&r, &out->leads_at);
    if (kind < SUCCESSION_STATE || kind >= SUCCESSION_KINDS ||
        (s->has_state && kind != SUCCESSION_STATE))
        r.failed = true;
    s->kind = (succession_kind)kind;
    if (!r.failed && s->has_state)
        LS_TRY(read_state(&r, out));
    return wire_reader_end(&r, "a message between agents");
}

void standby_message_free(standby_message *m)
{
    ls_free(m->addresses);
    m->addresses = NULL;
    m->n_addresses = 0;
}
