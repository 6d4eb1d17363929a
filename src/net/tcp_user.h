/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_user.h - finds the user of this host at the other end of a TCP connection from this host. */
#ifndef LS_NET_TCP_USER_H
#define LS_NET_TCP_USER_H

#include "net/address.h"

#include <sys/types.h>

/* For connected TCP sockets with both ends on this host. Never waits. LS_ENOTFOUND: the other end
 * is closed already, or on another host, so it has no user here. LS_ESYSTEM: the kernel does not
 * report it. */
LS_MUST_USE ls_status net_tcp_user(int fd, uid_t *uid);

/* As net_tcp_user(), for the end `near` on this host of a connection to `remote`, which may be on
 * another host. */
LS_MUST_USE ls_status net_tcp_user_of(const net_address *near, const net_address *remote,
                                      uid_t *uid);

/* As net_tcp_user(), by a search of /proc/net/tcp and tcp6, at a cost that grows with all sockets
 * of the host. The fallback of the calls above. */
LS_MUST_USE ls_status net_tcp_user_from_proc(int fd, uid_t *uid);

#endif
