/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_network.c - checks the network interfaces of this machine: bridges, MTU, link speed.
 * Variables that select interfaces are in check_ifname.c. A subject of check_quick().
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_MTU = 1500, SLOW_MBIT = 100, HEADERS_BYTES = 28 };

static void check_mtu(check *c, const net_interface *iface)
{
    char fix[128];

    if (iface->mtu == 0 || iface->mtu == USUAL_MTU)
        return;
    text_format(fix, sizeof(fix), "ping -M do -s %d HOST   # to each other machine",
                iface->mtu - HEADERS_BYTES);
    finding_add(c->out, FINDING_NET_MTU_KIND, FINDING_NOTE, fix, "%s has MTU %d instead of %d",
                iface->name, iface->mtu, USUAL_MTU);
}

static void check_speed(check *c, const net_interface *iface)
{
    char fix[128];

    if (iface->speed_mbps == 0 || iface->speed_mbps > SLOW_MBIT)
        return;
    text_format(fix, sizeof(fix), "ethtool %s   # cable, switch port, other end", iface->name);
    finding_add(c->out, FINDING_NET_SLOW_KIND, check_between_nodes(c), fix,
                "%s has a link speed of %d Mbit/s", iface->name, iface->speed_mbps);
}

/* An interface with several addresses is checked once, with the first of them. */
static bool is_first(const check *c, int i)
{
    for (int k = 0; k < i; k++)
        if (text_equal(c->ifaces[k].name, c->ifaces[i].name))
            return false;
    return true;
}

static void check_iface(check *c, int i)
{
    const net_interface *iface = &c->ifaces[i];
    char host[NET_ADDRESS_TEXT_MAX];
    char fix[160];

    net_address_host(host, sizeof(host), &iface->address);
    if (iface->is_bridge) {
        text_format(fix, sizeof(fix),
                    "export OMPI_MCA_btl_tcp_if_exclude=lo,%s NCCL_SOCKET_IFNAME=^%s", iface->name,
                    iface->name);
        finding_add(c->out, FINDING_NET_BRIDGE_KIND, FINDING_NOTE, fix,
                    "%s (%s/%d) is a local bridge", iface->name, host, iface->prefix);
        return;
    }
    finding_add(c->out, FINDING_NET_OK_KIND, FINDING_OK, NULL, "%s has %s/%d%s", iface->name, host,
                iface->prefix, iface->is_default ? " and the default route" : "");
    if (!is_first(c, i))
        return;
    check_mtu(c, iface);
    check_speed(c, iface);
}

void check_networks(check *c)
{
    int n_usable = 0;

    for (int i = 0; i < c->n_ifaces; i++) {
        check_iface(c, i);
        n_usable += !c->ifaces[i].is_bridge;
    }
    if (n_usable == 0)
        finding_add(c->out, FINDING_NET_NONE_KIND,
                    c->options->several_nodes ? FINDING_ERROR : FINDING_NOTE, "ip address show",
                    "no network interface except %s",
                    c->n_ifaces > 0 ? "local bridges" : "loopback");
}
