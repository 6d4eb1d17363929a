/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.c - compares a configured address with the addresses of this host. An address is local when
 * a socket can be bound to it. Callers warn and continue: another address may be translated (NAT, a
 * container's published port, a public address in a cloud).
 */
#include "net/reach.h"

#include "base/text.h"
#include "net/interface.h"
#include "net/socket.h"

#include <string.h>
#include <unistd.h>

enum { NAMES_MOST = 8, SHOWN_MOST = 16 };

bool net_reach_is_local(const net_address *at)
{
    net_address any_port = *at;
    int fd;

    net_address_set_port(&any_port, 0);
    if (net_listen(&any_port, NET_STREAM, 1, &fd, NULL) != LS_OK)
        return false;
    (void)close(fd);
    return true;
}

static net_reach judge(const net_address *all, int n)
{
    bool is_loopback = true;

    if (net_address_is_any(&all[0]))
        return NET_REACH_WILDCARD;
    for (int i = 0; i < n; i++) {
        if (!net_address_is_loopback(&all[i]) && net_reach_is_local(&all[i]))
            return NET_REACH_OK;
        is_loopback &= net_address_is_loopback(&all[i]);
    }
    return is_loopback ? NET_REACH_LOOPBACK : NET_REACH_ELSEWHERE;
}

bool net_reach_is_own_name(const char *place)
{
    char host[256] = "";
    const size_t n = strcspn(place, ".:");

    (void)gethostname(host, sizeof(host) - 1);
    if (text_starts(place, "localhost")) /* the name of a machine without a configured name */
        return false;
    return n > 0 && n == strcspn(host, ".") && strncmp(place, host, n) == 0;
}

net_reach net_reach_of(const char *place)
{
    net_address all[NAMES_MOST];
    net_reach reach = NET_REACH_OK;
    char saved[LS_ERROR_BYTES];
    int n = 0;

    ls_error_save(saved);
    if (net_address_resolve(place, 0, all, NAMES_MOST, &n) == LS_OK)
        reach = judge(all, n);
    ls_error_restore(saved);
    return reach == NET_REACH_LOOPBACK && net_reach_is_own_name(place) ? NET_REACH_OK : reach;
}

/* Bridges have the same address on many hosts: they are listed only when there is nothing else. */
const char *net_reach_addresses(char *buf, size_t n, net_address *best)
{
    net_interface found[SHOWN_MOST];
    char host[NET_ADDRESS_TEXT_MAX];
    char saved[LS_ERROR_BYTES];
    text_buf list = {0};
    int n_found = 0;

    ls_error_save(saved);
    if (net_interfaces(NULL, found, SHOWN_MOST, &n_found) != LS_OK)
        n_found = 0;
    for (int i = 0; i < n_found && (i == 0 || !found[i].is_bridge); i++)
        text_append(&list, "%s%s (%s)", i == 0 ? "" : ", ",
                    net_address_host(host, sizeof(host), &found[i].address), found[i].name);
    if (best != NULL && n_found > 0)
        *best = found[0].address;
    text_format(buf, n, "%s", text_str(&list));
    text_free(&list);
    ls_error_restore(saved);
    return buf;
}

static const char *why(net_reach reach)
{
    switch (reach) {
    case NET_REACH_LOOPBACK:
        return "a loopback address, to which other machines cannot connect";
    case NET_REACH_WILDCARD:
        return "to which other machines cannot connect";
    case NET_REACH_ELSEWHERE:
        return "which is not an address of this machine: others need an address translation to "
               "reach it";
    case NET_REACH_OK:
        break;
    }
    return "";
}

const char *net_reach_warning(char *buf, size_t n, const char *what, const char *place)
{
    const net_reach reach = net_reach_of(place);
    char own[NET_REACH_TEXT_MAX];

    buf[0] = 0;
    if (reach == NET_REACH_OK)
        return buf;
    net_reach_addresses(own, sizeof(own), NULL);
    return text_format(buf, n, "%s was given as %s, %s. %s%s", what, place, why(reach),
                       own[0] == 0 ? "This machine has no address for other machines"
                                   : "Give all machines one of the addresses of this machine: ",
                       own);
}
