/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h - where a socket is: a unix socket of this host, or IPv4 / IPv6 with a port.
 *
 * The text form is also the wire form: "tcp://10.0.0.1:80", "tcp://[fe80::1%eth0]:80", "unix:@name", "unix:/path".
 */
#ifndef LS_NET_ADDRESS_H
#define LS_NET_ADDRESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/socket.h>

#define NET_ADDRESS_TEXT_MAX 160 /* longest text form with its terminator */
#define NET_PORT_REQUIRED    (-1)

/* Zero-initialised: no address. */
typedef struct net_address {
    struct sockaddr_storage socket;
    socklen_t bytes; /* of `socket` in use; 0: none */
} net_address;

typedef enum net_family { NET_NONE = 0, NET_UNIX, NET_IPV4, NET_IPV6 } net_family;

net_family net_address_family(const net_address *a);

/*
 * Reads "tcp://HOST:PORT", "HOST:PORT", "[V6]:PORT", a bare HOST (when default_port >= 0), "unix:@NAME" and "unix:/PATH".
 * A numeric HOST is never looked up; an empty one ("tcp://:80") or "*" is every interface. LS_EINVAL shows the text and what
 * is wrong with it; LS_ENOTFOUND: the name is not known, with the resolver's words.
 */
LS_MUST_USE ls_status net_address_parse(const char *text, int default_port, net_address *out);

/* The same, but gives all addresses that a name has, at most `max`; *n >= 1 on success. Blocks in the resolver. */
LS_MUST_USE ls_status net_address_resolve(const char *text, int default_port, net_address *out,
                                          int max, int *n);

/* As parse, but refuses names: for text that comes from another process. Never blocks. */
LS_MUST_USE ls_status net_address_decode(const char *text, net_address *out);

/* The text form, into buf, which it returns; "none" for no address. */
const char *net_address_text(char *buf, size_t n, const net_address *a);
/* "10.0.0.1", "fe80::1%eth0", "@name": without scheme and port. */
const char *net_address_host(char *buf, size_t n, const net_address *a);

int net_address_port(const net_address *a); /* 0 for unix sockets */
void net_address_set_port(net_address *a, int port);

bool net_address_equal(const net_address *a, const net_address *b);
bool net_address_is_loopback(
    const net_address *a);                     /* unix sockets and 127/8, ::1, ::ffff:127/104 */
bool net_address_is_any(const net_address *a); /* 0.0.0.0 or :: */

/* An abstract unix socket nobody else can guess or already holds: "unix:@lockstep-PURPOSE-<32 hex digits>". */
LS_MUST_USE ls_status net_address_fresh_unix(const char *purpose, net_address *out);

/* The addresses of a socket's two ends. */
LS_MUST_USE ls_status net_address_of_socket(int fd, net_address *out);
LS_MUST_USE ls_status net_address_of_peer(int fd, net_address *out);

#endif
