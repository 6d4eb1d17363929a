/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice_wire.c - the fields of offers, peers, reports and picks, in the order of their bytes.
 * Used by the messages of agents, head and checks.
 */
#include "launch/network/net_choice.h"

#include <string.h>

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

static const wire_field interface[] = {
    WIRE_TEXT(net_interface, name),
    WIRE_ADDRESS(net_interface, address, NET_IPV4),
    WIRE_NUMBER(net_interface, prefix, 1, 0, 128),
    WIRE_NUMBER(net_interface, mtu, 4, 0, INT32_MAX),
    WIRE_NUMBER(net_interface, speed_mbps, 4, 0, INT32_MAX),
    WIRE_BITS(net_interface, is_bridge, 2), /* and is_default */
};

static const char *check_interface(const void *part)
{
    const net_interface *i = part;

    if (!net_interface_name_is_plain(i->name))
        return "name";
    return net_address_family(&i->address) == NET_IPV4 && i->prefix > 32 ? "prefix" : NULL;
}

_Static_assert(offsetof(net_interface, is_default) == offsetof(net_interface, is_bridge) + 1,
               "sent as neighbours");
static const wire_table interface_table =
    WIRE_TABLE(net_interface, "an interface", interface, check_interface);

static const wire_field offer[] = {
    WIRE_LINE(net_offer, host),
    WIRE_64(net_offer, machine),
    WIRE_BOOL(net_offer, is_filtered),
    WIRE_LIST(net_offer, at, n, 1, 0, NET_ADDRESSES_MAX, &interface_table),
};
const wire_table net_offer_table = WIRE_TABLE(net_offer, "the addresses of a host", offer, NULL);

static const wire_field peer[] = {
    WIRE_NUMBER(net_peer, node, 4, 0, NET_NODES_MAX - 1),
    WIRE_BOOL(net_peer, measure),
    WIRE_STRUCT(net_peer, offer, &net_offer_table),
};
const wire_table net_peer_table = WIRE_TABLE(net_peer, "a host to test", peer, NULL);

static const wire_field peers[] = {
    WIRE_NEW_LIST(net_peers, list, n, 4, 0, NET_PEERS_MAX, &net_peer_table),
};
const wire_table net_peers_table = WIRE_TABLE(net_peers, "a list of hosts to test", peers, NULL);

void net_peers_free(net_peers *p)
{
    wire_free_fields(&net_peers_table, p);
}

static const wire_field pick[] = {
    WIRE_ADDRESS(net_pick, head, NET_IPV4),
    WIRE_LIST(net_pick, at, n, 1, 1, NET_PICKS_MAX, &interface_table),
};
const wire_table net_pick_table = WIRE_TABLE(net_pick, "a network", pick, NULL);

static const wire_field try_fields[] = {
    WIRE_NUMBER(net_try, peer, 2, 0, NET_NODES_MAX - 1),
    WIRE_NUMBER(net_try, address, 1, 0, NET_ADDRESSES_MAX - 1),
    WIRE_NUMBER(net_try, local, 1, -1, NET_ADDRESSES_MAX - 1),
    WIRE_NUMBER(net_try, outcome, 1, 0, NET_OUTCOME_COUNT - 1),
    WIRE_ID(net_try, round_trip_us),
    WIRE_64(net_try, bytes_per_s),
};
static const wire_table try_table = WIRE_TABLE(net_try, "a test", try_fields, NULL);

static const wire_field report[] = {
    WIRE_NEW_LIST(net_report, tries, n, 4, 0, NET_TRIES_MAX, &try_table),
};

static const char *check_report(const void *part)
{
    const net_report *all = part;

    for (int i = 1; i < all->n; i++) {
        const net_try *a = &all->tries[i - 1];
        const net_try *b = &all->tries[i];

        if (b->peer < a->peer || (b->peer == a->peer && b->address <= a->address))
            return "tries";
    }
    return NULL;
}

const wire_table net_report_table =
    WIRE_TABLE(net_report, "the network report of a host", report, check_report);

void net_report_free(net_report *r)
{
    wire_free_fields(&net_report_table, r);
}
