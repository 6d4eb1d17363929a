/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.h - checks whether other hosts can reach this host at the address that its user has
 * configured.
 */
#ifndef LS_NET_REACH_H
#define LS_NET_REACH_H

#include "net/address.h"

#define NET_REACH_TEXT_MAX 512

typedef enum net_reach {
    NET_REACH_OK,        /* no problem found */
    NET_REACH_LOOPBACK,  /* every host reaches itself there */
    NET_REACH_WILDCARD,  /* 0.0.0.0 or ::, which is an address to listen at only */
    NET_REACH_ELSEWHERE, /* no local address; a router may translate it to one */
} net_reach;

/* Classifies "HOST:PORT" or HOST. Blocks in the resolver when HOST is a name; an unknown name is
 * NET_REACH_OK, and so is this host's own name, which Debian resolves to 127.0.1.1. */
net_reach net_reach_of(const char *place);

/* Whether an address belongs to this machine, that is, can be bound. */
bool net_reach_is_local(const net_address *at);

/* Whether the HOST of "HOST:PORT" is this host's name, with or without its domain. */
bool net_reach_is_own_name(const char *place);

/* Writes "10.77.0.10 (eth0), 10.78.0.10 (eth1)" to buf and returns buf: the addresses at which
 * other hosts can reach this one, best first; "" when there is none. *best (may be NULL) becomes
 * the first. */
const char *net_reach_addresses(char *buf, size_t n, net_address *best);

/* Writes to buf why other hosts do not reach `what` ("node 0"), which is this host, at `place`, and
 * which addresses work. Returns buf; "" for NET_REACH_OK. */
const char *net_reach_warning(char *buf, size_t n, const char *what, const char *place);

#endif
