/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.h - whether other hosts can reach this one at the address that its user has given for it.
 */
#ifndef LS_NET_REACH_H
#define LS_NET_REACH_H

#include "net/address.h"

#define NET_REACH_TEXT_MAX 512

typedef enum net_reach {
    NET_REACH_OK,        /* nothing is known to be wrong */
    NET_REACH_LOOPBACK,  /* leads every host to itself */
    NET_REACH_WILDCARD,  /* 0.0.0.0 or ::, where a host listens but is not called */
    NET_REACH_ELSEWHERE, /* no own address; it may be translated to one on the way */
} net_reach;

/*
 * What "HOST:PORT" or a HOST is to this host. Blocks in the resolver where HOST is a name; one that
 * it does not know is NET_REACH_OK, as is this host's own name, which Debian resolves to
 * 127.0.1.1.
 */
net_reach net_reach_of(const char *place);

/* Whether the HOST of "HOST:PORT" is this host's name, with its domain or without. */
bool net_reach_is_own_name(const char *place);

/* "10.77.0.10 (eth0), 10.78.0.10 (eth1)": where other hosts can reach this one, the best guess
 * first; "" where there is no address. *best, which may be NULL, becomes the first. Into buf, which
 * it returns. */
const char *net_reach_addresses(char *buf, size_t n, net_address *best);

/*
 * Says why other hosts do not reach `what` ("node 0"), which is this host, at `place`, and which
 * addresses would do. Into buf, which it returns; "" for NET_REACH_OK.
 */
const char *net_reach_warning(char *buf, size_t n, const char *what, const char *place);

#endif
