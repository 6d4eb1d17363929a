/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_variables.c - the chosen network in the words of the libraries that a rank may use.
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

/* What there is to be set: at most NET_VARIABLES_MAX. */
static int list_all(const net_interface *face, bool has_rdma, net_variable all[NET_VARIABLES_MAX])
{
    const bool is_ipv4 = net_address_family(&face->address) == NET_IPV4;
    char exact[NET_INTERFACE_NAME_MAX + 1];
    char network[NET_ADDRESS_TEXT_MAX + 8];
    char host[NET_ADDRESS_TEXT_MAX];
    char own[NET_ADDRESS_TEXT_MAX + 8];
    int n = 0;

    (void)net_address_host(host, sizeof(host), &face->address);
    text_format(exact, sizeof(exact), "=%s", face->name); // NCCL takes a bare name for a prefix
    net_interface_network(network, sizeof(network), face);
    // One address and not the interface, which may have others that lead elsewhere.
    text_format(own, sizeof(own), "%s/%d", host, is_ipv4 ? 32 : 128);
    n += set(&all[n], "LOCKSTEP_IFACE", own);
    n += set(&all[n], "GLOO_SOCKET_IFNAME", face->name);
    n += set(&all[n], "NCCL_SOCKET_IFNAME", exact);
    n += set(&all[n], "HOROVOD_GLOO_IFACE", face->name);
    // Open MPI reads networks in IPv4 only.
    n += set(&all[n], "OMPI_MCA_btl_tcp_if_include", is_ipv4 ? network : face->name);
    // MPICH over libfabric, over UCX (which would take this for all it may use) and in its older device.
    n += set(&all[n], "FI_TCP_IFACE", face->name);
    if (!has_rdma)
        n += set(&all[n], "UCX_NET_DEVICES", face->name);
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
