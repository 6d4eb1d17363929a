/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice_wire.c - offers, peers, reports and picks as bytes. Called by the messages of agents,
 * head and checks. Fields are little-endian, in the order of the structs:
 *
 *     interface  name text | address text | prefix u8 | mtu u32 | speed u32 | flags u8
 *                (flags: 1 bridge, 2 default route)
 *     offer      host text | machine u64 | filtered u8 | n u8 | interfaces
 *     peer       node u32 | measure u8 | offer
 *     report     n u32 | n times: peer u16 | address u8 | local u8 (255: none) | outcome u8
 *                | round trip u32 | bandwidth u64
 *     pick       head text | n u8 | interfaces
 */
#include "launch/network/net_choice.h"

#include "base/alloc.h"

#include <string.h>

#define TRY_BYTES 17
#define NO_LOCAL  255

enum { FLAG_BRIDGE = 1, FLAG_DEFAULT = 2, FLAGS_ALL = 3 };

bool net_interface_name_is_plain(const char *name)
{
    const size_t n = strlen(name);

    if (n < 1 || n >= NET_INTERFACE_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] > '~' || strchr(",/^=", name[i]) != NULL)
            return false;
    return true;
}

/* --- interfaces --- */

static void write_address(wire_writer *w, const net_address *a)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_write_text(w, net_address_text(text, sizeof(text), a));
}

static void read_address(wire_reader *r, net_address *out)
{
    char text[NET_ADDRESS_TEXT_MAX];
    char saved[LS_ERROR_BYTES];

    wire_read_text(r, text, sizeof(text));
    if (r->failed)
        return;
    ls_error_save(saved);
    r->failed = net_address_decode(text, out) != LS_OK || net_address_family(out) < NET_IPV4;
    ls_error_restore(saved);
}

static void write_interface(wire_writer *w, const net_interface *iface)
{
    wire_write_text(w, iface->name);
    write_address(w, &iface->address);
    wire_write_u8(w, (uint8_t)iface->prefix);
    wire_write_u32(w, (uint32_t)iface->mtu);
    wire_write_u32(w, (uint32_t)iface->speed_mbps);
    wire_write_u8(w, (uint8_t)((iface->is_bridge ? FLAG_BRIDGE : 0) |
                               (iface->is_default ? FLAG_DEFAULT : 0)));
}

static void read_interface(wire_reader *r, net_interface *out)
{
    uint32_t mtu;
    uint32_t speed;
    uint8_t flags;

    wire_read_text(r, out->name, sizeof(out->name));
    read_address(r, &out->address);
    out->prefix = wire_read_u8(r);
    mtu = wire_read_u32(r);
    speed = wire_read_u32(r);
    flags = wire_read_u8(r);
    if (r->failed || !net_interface_name_is_plain(out->name) || mtu > INT32_MAX ||
        speed > INT32_MAX || flags > FLAGS_ALL ||
        out->prefix > (net_address_family(&out->address) == NET_IPV4 ? 32 : 128)) {
        r->failed = true;
        return;
    }
    out->mtu = (int)mtu;
    out->speed_mbps = (int)speed;
    out->is_bridge = (flags & FLAG_BRIDGE) != 0;
    out->is_default = (flags & FLAG_DEFAULT) != 0;
}

static void write_interfaces(wire_writer *w, const net_interface *at, int n)
{
    wire_write_u8(w, (uint8_t)n);
    for (int i = 0; i < n; i++)
        write_interface(w, &at[i]);
}

static int read_interfaces(wire_reader *r, net_interface *at, int least, int most)
{
    const int n = wire_read_u8(r);

    r->failed = r->failed || n < least || n > most;
    for (int i = 0; i < n && !r->failed; i++)
        read_interface(r, &at[i]);
    return r->failed ? 0 : n;
}

/* --- the messages --- */

void net_offer_write(wire_writer *w, const net_offer *offer)
{
    wire_write_text(w, offer->host);
    wire_write_u64(w, offer->machine);
    wire_write_u8(w, offer->is_filtered);
    write_interfaces(w, offer->at, offer->n);
}

void net_offer_read(wire_reader *r, net_offer *out)
{
    char host[NET_HOST_BYTES];
    uint8_t filtered;

    memset(out, 0, sizeof(*out));
    wire_read_text(r, host, sizeof(host));
    if (!r->failed)
        text_printable(out->host, sizeof(out->host), host);
    out->machine = wire_read_u64(r);
    filtered = wire_read_u8(r);
    r->failed = r->failed || filtered > 1;
    out->is_filtered = filtered == 1;
    out->n = read_interfaces(r, out->at, 0, NET_ADDRESSES_MAX);
}

void net_peer_write(wire_writer *w, const net_peer *peer)
{
    wire_write_u32(w, (uint32_t)peer->node);
    wire_write_u8(w, peer->measure);
    net_offer_write(w, &peer->offer);
}

void net_peer_read(wire_reader *r, net_peer *out)
{
    const uint32_t node = wire_read_u32(r);
    const uint8_t measure = wire_read_u8(r);

    memset(out, 0, sizeof(*out));
    r->failed = r->failed || node >= NET_NODES_MAX || measure > 1;
    net_offer_read(r, &out->offer);
    if (r->failed)
        return;
    out->node = (int)node;
    out->measure = measure != 0;
}

void net_pick_write(wire_writer *w, const net_pick *pick)
{
    write_address(w, &pick->head);
    write_interfaces(w, pick->at, pick->n);
}

void net_pick_read(wire_reader *r, net_pick *out)
{
    memset(out, 0, sizeof(*out));
    read_address(r, &out->head);
    out->n = read_interfaces(r, out->at, 1, NET_PICKS_MAX);
}

void net_report_write(wire_writer *w, const net_report *report)
{
    wire_write_u32(w, (uint32_t)report->n);
    for (int i = 0; i < report->n; i++) {
        const net_try *t = &report->tries[i];

        wire_write_u16(w, t->peer);
        wire_write_u8(w, t->address);
        wire_write_u8(w, t->local < 0 ? NO_LOCAL : (uint8_t)t->local);
        wire_write_u8(w, t->outcome);
        wire_write_u32(w, t->round_trip_us);
        wire_write_u64(w, t->bytes_per_s);
    }
}

static void read_try(wire_reader *r, const net_try *before, net_try *out)
{
    uint8_t local;

    out->peer = wire_read_u16(r);
    out->address = wire_read_u8(r);
    local = wire_read_u8(r);
    out->local = (int8_t)(local == NO_LOCAL ? -1 : local & 0x7F);
    out->outcome = wire_read_u8(r);
    out->round_trip_us = wire_read_u32(r);
    out->bytes_per_s = wire_read_u64(r);
    if (out->peer >= NET_NODES_MAX || out->address >= NET_ADDRESSES_MAX ||
        (local != NO_LOCAL && local >= NET_ADDRESSES_MAX) || out->outcome >= NET_OUTCOME_COUNT ||
        (before != NULL && (out->peer < before->peer ||
                            (out->peer == before->peer && out->address <= before->address))))
        r->failed = true;
}

ls_status net_report_read(wire_reader *r, net_report *out)
{
    const uint32_t n = wire_read_u32(r);

    *out = (net_report){0};
    if (r->failed || n > NET_TRIES_MAX || n > (r->bytes - r->at) / TRY_BYTES) {
        r->failed = true;
        return LS_OK;
    }
    if (n == 0)
        return LS_OK;
    out->tries = ls_calloc(n, sizeof(*out->tries));
    if (out->tries == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %u tries", n);
    for (uint32_t i = 0; i < n; i++)
        read_try(r, i == 0 ? NULL : &out->tries[i - 1], &out->tries[i]);
    out->n = (int)n;
    if (r->failed)
        net_report_free(out);
    return LS_OK;
}

void net_report_free(net_report *report)
{
    ls_free(report->tries);
    *report = (net_report){0};
}
