/* SPDX-License-Identifier: Apache-2.0 */
/* interface.h - the addresses at which other hosts may reach this host, best candidates first. */
#ifndef LS_NET_INTERFACE_H
#define LS_NET_INTERFACE_H

#include "net/address.h"

#define NET_INTERFACE_NAME_MAX 16

typedef struct net_interface {
    char name[NET_INTERFACE_NAME_MAX];
    net_address address; /* port 0 */
    int prefix;          /* length of the network prefix */
    int mtu;             /* largest packet in bytes; 0 = unknown */
    int speed_mbps;      /* as the driver reports it; 0 = unknown */
    bool is_bridge;      /* docker*, br-*, veth*, virbr*: other hosts may have the same address */
    bool is_default;     /* the default route uses it */
} net_interface;

/* Lists candidates: interfaces that are up and running, without loopback, IPv6 link-local,
 * tentative and deprecated addresses; those with the default route first, then IPv4 before IPv6,
 * bridges last. At most `max`; *n may be 0. `filter` (NULL or "": none) is a comma-separated list
 * of NAME, CIDR ("10.77.0.0/24"), ^NAME and ^CIDR. An interface must match one of the positive
 * entries if there are any, and no negative one. An interface that the filter names is listed even
 * if it is a bridge or loopback. */
LS_MUST_USE ls_status net_interfaces(const char *filter, net_interface *out, int max, int *n);

/* Whether `filter` accepts this candidate; LS_EINVAL shows an invalid entry. */
LS_MUST_USE ls_status net_interface_passes(const char *filter, const net_interface *candidate,
                                           bool *passes);

/* Whether `a` lies in the network of `interface`; ports are ignored. */
bool net_interface_reaches(const net_interface *interface, const net_address *a);

/* Writes the network of an address in the form of filters ("10.77.0.0/24") to buf and returns
 * buf. */
const char *net_interface_network(char *buf, size_t n, const net_interface *interface);

/* Equal for processes that share a kernel and a network namespace, which reach each other over
 * loopback. */
uint64_t net_host_value(void);

/* Writes "eth0 10.77.0.1/24, ib0 ..." of all candidates to buf and returns buf, for messages about
 * a filter that matches nothing. */
const char *net_interfaces_text(char *buf, size_t n);

#endif
