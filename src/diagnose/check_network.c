/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_network.c - the network interfaces of this machine (check_ifname.c: variables that choose).
 */
#include "diagnose/check_internal.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_MTU = 1500, SLOW_MBIT = 100, HEADERS_BYTES = 28 };

static void check_mtu(check *c, const net_interface *face)
{
    char mend[128];

    if (face->mtu == 0 || face->mtu == USUAL_MTU)
        return;
    text_format(mend, sizeof(mend), "ping -M do -s %d HOST   # to each other machine",
                face->mtu - HEADERS_BYTES);
    finding_add(c->out, FINDING_NET_MTU_KIND, FINDING_NOTE, mend,
                "%s sends packets of up to %d bytes, not %d", face->name, face->mtu, USUAL_MTU);
}

static void check_speed(check *c, const net_interface *face)
{
    char mend[128];

    if (face->speed_mbps == 0 || face->speed_mbps > SLOW_MBIT)
        return;
    text_format(mend, sizeof(mend), "ethtool %s   # cable, switch port, other end", face->name);
    finding_add(c->out, FINDING_NET_SLOW_KIND, check_between_nodes(c), mend, "%s runs at %d Mbit/s",
                face->name, face->speed_mbps);
}

/* An interface may have several addresses: it is judged with the first one. */
static bool is_first(const check *c, int i)
{
    for (int k = 0; k < i; k++)
        if (text_equal(c->faces[k].name, c->faces[i].name))
            return false;
    return true;
}

static void check_face(check *c, int i)
{
    const net_interface *face = &c->faces[i];
    char host[NET_ADDRESS_TEXT_MAX];
    char mend[160];

    net_address_host(host, sizeof(host), &face->address);
    if (face->is_bridge) {
        text_format(mend, sizeof(mend),
                    "export OMPI_MCA_btl_tcp_if_exclude=lo,%s NCCL_SOCKET_IFNAME=^%s", face->name,
                    face->name);
        finding_add(c->out, FINDING_NET_BRIDGE_KIND, FINDING_NOTE, mend,
                    "%s (%s/%d) is a bridge of this machine's own", face->name, host, face->prefix);
        return;
    }
    finding_add(c->out, FINDING_NET_OK_KIND, FINDING_OK, NULL, "%s has %s/%d%s", face->name, host,
                face->prefix, face->is_default ? ", and the default route" : "");
    if (!is_first(c, i))
        return;
    check_mtu(c, face);
    check_speed(c, face);
}

void check_networks(check *c)
{
    int n_usable = 0;

    for (int i = 0; i < c->n_faces; i++) {
        check_face(c, i);
        n_usable += !c->faces[i].is_bridge;
    }
    if (n_usable == 0)
        finding_add(c->out, FINDING_NET_NONE_KIND,
                    c->options->several_nodes ? FINDING_ERROR : FINDING_NOTE, "ip address show",
                    "there is no network but %s",
                    c->n_faces > 0 ? "bridges of this machine's own" : "loopback");
}
