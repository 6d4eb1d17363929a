/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby_message.c - the tables of the messages between agents that may host the head. Called by
 * standby.c.
 */
#include "launch/head/standby.h"

#include "net/messages/wire_fields.h"

/* --- the state of the head --- */

static const wire_field address[] = {WIRE_ADDRESS_ITSELF(0, NET_NONE)};

static const char *check_address(const void *message)
{
    return net_address_family(message) == NET_UNIX ? "address" : NULL;
}

static const wire_table address_table =
    WIRE_TABLE(net_address, "an address", address, check_address);

static const wire_field state[] = {
    WIRE_NEW_LIST(standby_state, addresses, n_addresses, 4, 0, SUCCESSION_NODES_MAX,
                  &address_table),
    WIRE_BYTES(standby_state, bytes, n, STANDBY_STATE_MAX),
};
static const wire_table state_table = WIRE_TABLE(standby_state, "the state of a head", state, NULL);

/* --- the message in front of it --- */

static const wire_field fields[] = {
    WIRE_ID(standby_message, generation),
    WIRE_NUMBER(standby_message, message.kind, 1, SUCCESSION_STATE, SUCCESSION_KINDS - 1),
    WIRE_64(standby_message, message.term),
    WIRE_64(standby_message, message.state_term),
    WIRE_64(standby_message, message.state_index),
    WIRE_64(standby_message, message.round),
    WIRE_64(standby_message, message.sent_ms),
    WIRE_BOOL(standby_message, message.has_state),
    WIRE_STRUCT(standby_message, leads_at, &address_table),
};

static const char *check_message(const void *message)
{
    const succession_message *m = &((const standby_message *)message)->message;

    return m->has_state && m->kind != SUCCESSION_STATE ? "has_state" : NULL;
}

static const wire_table message_table =
    WIRE_TABLE(standby_message, "a message between agents", fields, check_message);

void standby_write_message(wire_writer *w, const standby_message *m)
{
    wire_write_fields(w, &message_table, m);
    if (m->message.has_state)
        wire_write_fields(w, &state_table, &m->state);
}

ls_status standby_read_message(const void *body, size_t bytes, standby_message *out)
{
    wire_reader r = wire_reader_over(body, bytes);

    wire_read_fields(&r, &message_table, out);
    if (!r.failed && out->message.has_state)
        wire_read_fields(&r, &state_table, &out->state);
    return wire_reader_end(&r, message_table.what);
}

void standby_message_free(standby_message *m)
{
    wire_free_fields(&state_table, &m->state);
}
