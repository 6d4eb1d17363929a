/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_user.h - which user of this host is at the other end of a TCP connection from this host.
 */
#ifndef LS_NET_TCP_USER_H
#define LS_NET_TCP_USER_H

#include "net/address.h"

#include <sys/types.h>

/*
 * For connected TCP sockets whose other end is on this host too. Never waits. LS_ENOTFOUND: that
 * end has been closed already, or is not here, so nobody owns it. LS_ESYSTEM: the kernel does not
 * say.
 */
LS_MUST_USE ls_status net_tcp_user(int fd, uid_t *uid);

/*
 * The same of the end `near`, on this host, of a connection to `far`, which may be on another
 * host.
 */
LS_MUST_USE ls_status net_tcp_user_of(const net_address *near, const net_address *far, uid_t *uid);

/* As net_tcp_user() by a search of /proc/net/tcp and tcp6, whose cost grows with all sockets of the
 * host: what the others fall back on. */
LS_MUST_USE ls_status net_tcp_user_from_proc(int fd, uid_t *uid);

#endif
