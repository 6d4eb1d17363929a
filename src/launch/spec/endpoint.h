/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint.h - the rendezvous endpoint of nodes that are started one by one, and the key with which
 * they authenticate each other.
 */
#ifndef LS_LAUNCH_SPEC_ENDPOINT_H
#define LS_LAUNCH_SPEC_ENDPOINT_H

#include "net/address.h"
#include "net/key.h"

#include <stdbool.h>

#define ENDPOINT_PORT      29500 /* torchrun's, of numbered nodes */
#define ENDPOINT_PORT_C10D 29400 /* ... and of others */
#define ENDPOINT_BYTES     300

/* Writes "HOST:PORT" from HOST or HOST:PORT. LS_EINVAL: `host`, named `what`, is too long. */
LS_MUST_USE ls_status endpoint_format(const char *host, int usual_port, const char *what,
                                      char *out);

/*
 * The address at which the head listens so that other nodes reach it at `endpoint`: all interfaces
 * if this machine resolves its own name to loopback, as with Debian's /etc/hosts, or if the address
 * is translated on the way.
 */
LS_MUST_USE ls_status endpoint_listen_address(const char *endpoint, net_address *out);

/* Derives the key of this endpoint from the user's key (net_key_of_user). Nodes that spell the
 * endpoint differently ("node0", "10.0.0.1") get the same key, and so do jobs with different names:
 * the head rejects their nodes with the reason. */
LS_MUST_USE ls_status endpoint_key(const char *key_file, const char *endpoint, net_key *out);

#endif
