/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint.h - where the nodes of a job meet that are started by hand, and the key by which they know each other.
 */
#ifndef LS_LAUNCH_ENDPOINT_H
#define LS_LAUNCH_ENDPOINT_H

#include "net/address.h"
#include "net/key.h"

#include <stdbool.h>

#define ENDPOINT_PORT      29500 /* torchrun's, of numbered nodes */
#define ENDPOINT_PORT_C10D 29400 /* ... and of others */
#define ENDPOINT_BYTES     300

/* "HOST:PORT" from HOST or HOST:PORT. LS_EINVAL: `what` is too long. */
LS_MUST_USE ls_status endpoint_format(const char *host, int usual_port, const char *what,
                                      char *out);

/* Whether an address is one of this machine's: what can be bound is ours. */
bool endpoint_is_local(const net_address *at);

/*
 * The address at which the head listens so that the others find it at `place`. A name of its own that only this machine takes for
 * a loopback address, as in Debian's /etc/hosts, or an address that is translated on the way, means all interfaces.
 */
LS_MUST_USE ls_status endpoint_listen_address(const char *place, net_address *out);

/* From the user's key (net_key_of_user), for this job only. Nodes that spell the place differently ("node0", "10.0.0.1") get the same. */
LS_MUST_USE ls_status endpoint_key(const char *key_file, const char *run_id, const char *place,
                                   net_key *out);

#endif
