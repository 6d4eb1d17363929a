/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint.c - the rendezvous endpoint of a job and the key that belongs to it. Nodes that spell
 * the endpoint differently derive the same key. Called by the tool's flags and by ls_spawn().
 */
#include "launch/spec/endpoint.h"

#include "base/text.h"
#include "net/reach.h"

#include <string.h>

/* "fd00::1": two colons and no brackets. */
static bool is_bare_v6(const char *host)
{
    return strchr(host, '[') == NULL && strchr(host, ':') != strrchr(host, ':') &&
           strstr(host, "://") == NULL;
}

static bool has_port(const char *host)
{
    const char *last = strrchr(host, ':');

    if (last == NULL || last[1] == 0)
        return false;
    return strchr(host, ':') == last || (last > host && last[-1] == ']');
}

ls_status endpoint_format(const char *host, int usual_port, const char *what, char *out)
{
    if (strlen(host) + 8 > ENDPOINT_BYTES)
        return ls_fail(LS_EINVAL, "%s: longer than %d characters", what, ENDPOINT_BYTES - 8);
    if (is_bare_v6(host))
        text_format(out, ENDPOINT_BYTES, "[%s]:%d", host, usual_port);
    else if (has_port(host))
        text_format(out, ENDPOINT_BYTES, "%s", host);
    else
        text_format(out, ENDPOINT_BYTES, "%s:%d", host, usual_port);
    return LS_OK;
}

ls_status endpoint_listen_address(const char *endpoint, net_address *out)
{
    int port;

    LS_TRY(
        ls_context(net_address_parse(endpoint, NET_PORT_REQUIRED, out), "the rendezvous endpoint"));
    if (!(net_address_is_loopback(out) && net_reach_is_own_name(endpoint)) &&
        net_reach_is_local(out))
        return LS_OK;
    port = net_address_port(out);
    LS_TRY(net_address_parse("tcp://[::]:0", NET_PORT_REQUIRED, out));
    net_address_set_port(out, port);
    return LS_OK;
}

ls_status endpoint_key(const char *key_file, const char *endpoint, net_key *out)
{
    char what[ENDPOINT_BYTES];
    net_key user;
    ls_status st;

    LS_TRY(net_key_of_user(key_file, &user));
    text_format(what, sizeof(what), "none:%s", strrchr(endpoint, ':') + 1);
    st = net_key_derive(&user, "rendezvous", what, out);
    net_key_wipe(&user);
    return st;
}
