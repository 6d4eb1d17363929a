/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h - the address of a socket: a unix socket of this host, or IPv4 / IPv6 with a port.
 *
 * The text form is also the wire form: "tcp://10.0.0.1:80", "tcp://[fe80::1%eth0]:80",
 * "unix:@name", "unix:/path".
 */
#ifndef LS_NET_ADDRESS_H
#define LS_NET_ADDRESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/socket.h>

#define NET_ADDRESS_TEXT_MAX 160 /* longest text form, terminator included */
#define NET_PORT_REQUIRED    (-1)

/* A zero-initialised address is no address. */
typedef struct net_address {
    struct sockaddr_storage socket;
    socklen_t bytes; /* bytes of `socket` in use; 0 = no address */
} net_address;

typedef enum net_family { NET_NONE = 0, NET_UNIX, NET_IPV4, NET_IPV6 } net_family;

net_family net_address_family(const net_address *a);

/* Parses "tcp://HOST:PORT", "HOST:PORT", "[V6]:PORT", a bare HOST (when default_port >= 0),
 * "unix:@NAME" and "unix:/PATH". A numeric HOST is not looked up; an empty HOST ("tcp://:80") and
 * "*" mean all interfaces. LS_EINVAL shows the text and the error in it; LS_ENOTFOUND: the resolver
 * does not know the name, with the resolver's message. */
LS_MUST_USE ls_status net_address_parse(const char *text, int default_port, net_address *out);

/* As net_address_parse(), but returns up to `max` addresses of a name; *n >= 1 on success, 0 on
 * failure. Blocks in the resolver. */
LS_MUST_USE ls_status net_address_resolve(const char *text, int default_port, net_address *out,
                                          int max, int *n);

/* As net_address_parse(), but refuses names: for text from another process. Never blocks. */
LS_MUST_USE ls_status net_address_decode(const char *text, net_address *out);

/* Writes the text form to buf and returns buf; "none" for no address. */
const char *net_address_text(char *buf, size_t n, const net_address *a);
/* "10.0.0.1", "fe80::1%eth0", "@name": without scheme and port. */
const char *net_address_host(char *buf, size_t n, const net_address *a);

int net_address_port(const net_address *a); /* 0 for unix sockets */
void net_address_set_port(net_address *a, int port);

bool net_address_equal(const net_address *a, const net_address *b);
/* unix sockets and 127/8, ::1, ::ffff:127/104 */
bool net_address_is_loopback(const net_address *a);
bool net_address_is_any(const net_address *a); /* 0.0.0.0 or :: */

/* A fresh abstract unix address with a random name: "unix:@lockstep-PURPOSE-<32 hex digits>". */
LS_MUST_USE ls_status net_address_fresh_unix(const char *purpose, net_address *out);

/* The addresses of the two ends of a socket. */
LS_MUST_USE ls_status net_address_of_socket(int fd, net_address *out);
LS_MUST_USE ls_status net_address_of_peer(int fd, net_address *out);

#endif
