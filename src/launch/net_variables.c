/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_variables.c - the chosen network in the words of the libraries that a rank may use.
 */
#include "launch/net_choice.h"

#include <string.h>

static bool is_set(char *const *env, const char *name)
{
    const size_t length = strlen(name);

    for (; env != NULL && *env != NULL; env++)
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
            return true;
    return false;
}

int net_pick_variables(const net_pick *pick, char *const *inherited,
                       net_variable out[NET_VARIABLES_MAX])
{
    const net_interface *face = &pick->at[0];
    const bool is_ipv4 = net_address_family(&face->address) == NET_IPV4;
    net_variable all[NET_VARIABLES_MAX] = {{.name = "LOCKSTEP_IFACE"},
                                           {.name = "GLOO_SOCKET_IFNAME"},
                                           {.name = "NCCL_SOCKET_IFNAME"},
                                           {.name = "HOROVOD_GLOO_IFACE"},
                                           {.name = "OMPI_MCA_btl_tcp_if_include"},
                                           {.name = "NCCL_SOCKET_FAMILY"}};
    const size_t bytes = sizeof(all[0].value);
    char host[NET_ADDRESS_TEXT_MAX];
    int n = 0;

    // One address and not the interface, which may have others that lead elsewhere.
    text_format(all[0].value, bytes, "%s/%d", net_address_host(host, sizeof(host), &face->address),
                is_ipv4 ? 32 : 128);
    text_format(all[1].value, bytes, "%s", face->name);
    text_format(all[2].value, bytes, "=%s", face->name); // NCCL takes a bare name for a prefix
    text_format(all[3].value, bytes, "%s", face->name);
    if (is_ipv4) // Open MPI reads networks in IPv4 only
        net_interface_network(all[4].value, bytes, face);
    else
        text_format(all[4].value, bytes, "%s", face->name);
    text_format(all[5].value, bytes, "AF_INET6");
    for (int i = 0; i < NET_VARIABLES_MAX - is_ipv4; i++)
        if (i == 0 || !is_set(inherited, all[i].name))
            out[n++] = all[i];
    return n;
}
