/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_variables.c - the selected network as environment variables of the libraries that a rank may
 * use. Called by the agent before it starts ranks.
 */
#include "launch/network/net_choice.h"

#include <string.h>

static bool is_set(char *const *env, const char *name)
{
    const size_t length = strlen(name);

    for (; env != NULL && *env != NULL; env++)
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
            return true;
    return false;
}

static int set(net_variable *v, const char *name, const char *value)
{
    v->name = name;
    text_format(v->value, sizeof(v->value), "%s", value);
    return 1;
}

static int list_all(const net_interface *iface, bool has_rdma, net_variable all[NET_VARIABLES_MAX])
{
    const bool is_ipv4 = net_address_family(&iface->address) == NET_IPV4;
    char exact[NET_INTERFACE_NAME_MAX + 1];
    char network[NET_ADDRESS_TEXT_MAX + 8];
    char host[NET_ADDRESS_TEXT_MAX];
    char own[NET_ADDRESS_TEXT_MAX + 8];
    int n = 0;

    (void)net_address_host(host, sizeof(host), &iface->address);
    text_format(exact, sizeof(exact), "=%s", iface->name); // NCCL treats a bare name as a prefix
    net_interface_network(network, sizeof(network), iface);
    // One address instead of the interface, which may have addresses of other networks.
    text_format(own, sizeof(own), "%s/%d", host, is_ipv4 ? 32 : 128);
    n += set(&all[n], "LOCKSTEP_IFACE", own);
    n += set(&all[n], "GLOO_SOCKET_IFNAME", iface->name);
    n += set(&all[n], "NCCL_SOCKET_IFNAME", exact);
    n += set(&all[n], "HOROVOD_GLOO_IFACE", iface->name);
    // Open MPI accepts networks in IPv4 only.
    n += set(&all[n], "OMPI_MCA_btl_tcp_if_include", is_ipv4 ? network : iface->name);
    // MPICH over libfabric, over UCX (where it limits all devices) and in its older device ch3.
    n += set(&all[n], "FI_TCP_IFACE", iface->name);
    if (!has_rdma)
        n += set(&all[n], "UCX_NET_DEVICES", iface->name);
    if (is_ipv4)
        n += set(&all[n], "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", host);
    else
        n += set(&all[n], "NCCL_SOCKET_FAMILY", "AF_INET6");
    return n;
}

int net_pick_variables(const net_pick *pick, char *const *inherited, bool has_rdma,
                       net_variable out[NET_VARIABLES_MAX])
{
    net_variable all[NET_VARIABLES_MAX];
    const int n_all = list_all(&pick->at[0], has_rdma, all);
    int n = 0;

    for (int i = 0; i < n_all; i++)
        if (i == 0 || !is_set(inherited, all[i].name))
            out[n++] = all[i];
    return n;
}
