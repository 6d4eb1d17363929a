/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interface.h - the addresses of this host at which other hosts may reach it, the best candidates first.
 */
#ifndef LS_NET_INTERFACE_H
#define LS_NET_INTERFACE_H

#include "net/address.h"

#define NET_INTERFACE_NAME_MAX 16

typedef struct net_interface {
    char name[NET_INTERFACE_NAME_MAX];
    net_address address; /* port 0 */
    int prefix;          /* bits of the network */
    int mtu;             /* bytes of the largest packet; 0: not known */
    int speed_mbps;      /* what its driver says; 0: not known */
    bool is_bridge;      /* docker*, br-*, veth*, virbr*: an address other hosts may own as well */
    bool is_default;     /* the default route leaves through it */
} net_interface;

/*
 * Lists candidates: interfaces that are up and running, without loopback, IPv6 link-local, tentative and deprecated
 * addresses; those with the default route first, then IPv4 before IPv6, bridges last. At most `max`; *n may be 0.
 * filter (NULL or "": none) is a comma list of NAME, CIDR ("10.77.0.0/24") and ^NAME or ^CIDR to leave out; an interface
 * must match one of the positive entries if there are any, and none of the others. What the user names is never
 * left out for being a bridge or loopback.
 */
LS_MUST_USE ls_status net_interfaces(const char *filter, net_interface *out, int max, int *n);

/* Whether `filter` lets this candidate pass; LS_EINVAL shows the entry that cannot be read. */
LS_MUST_USE ls_status net_interface_passes(const char *filter, const net_interface *candidate,
                                           bool *passes);

/* Whether `a` lies in the network that `face` is in; ports do not count. */
bool net_interface_reaches(const net_interface *face, const net_address *a);

/* "10.77.0.0/24": the network of an address, as filters take it; into buf, which it returns. */
const char *net_interface_network(char *buf, size_t n, const net_interface *face);

/* Equal for processes that share a kernel and a network namespace, so that loopback leads from one to the other. */
uint64_t net_host_value(void);

/* "eth0 10.77.0.1/24, ib0 ..." of all candidates: for messages about a filter that matches nothing. */
const char *net_interfaces_text(char *buf, size_t n);

#endif
