/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_fabric.c - the ports of InfiniBand and RoCE adapters, as sysfs shows them, and what RDMA
 * needs besides. A subject of check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <string.h>

#define ADAPTERS "/sys/class/infiniband"

enum { PORTS_MAX = 32, FILE_BYTES = 512, PORT_OF_ADAPTER_MAX = 8, GIDS_MAX = 256, RDMA_MTU = 4200 };

typedef struct fabric_port {
    char adapter[64];
    int number;
    char state[32]; /* "ACTIVE" */
    char layer[32]; /* "InfiniBand", "Ethernet" */
    char rate[64];
    char iface[64]; /* of Ethernet; "": not known */
    int gid;        /* of RoCE v2 over IPv4; -1: none */
} fabric_port;

typedef struct fabric {
    fabric_port ports[PORTS_MAX];
    int n;
    int n_active;
} fabric;

// --- reading ---

/* The text after "4: " in files of state. */
static void read_state(const check *c, const char *path, char *out, size_t n)
{
    char text[64] = "";
    const char *name;

    (void)check_read(c, path, text, sizeof(text));
    name = strchr(text, ':');
    text_printable(out, n, name != NULL ? name + strspn(name, ": ") : text);
}

static void read_printable(const check *c, const char *path, char *out, size_t n)
{
    char text[128] = "";

    (void)check_read(c, path, text, sizeof(text));
    text_printable(out, n, text);
}

/* Whether GID `i` is one of RoCE v2 over IPv4, which every program can use. */
static bool is_routed_gid(const check *c, const char *port, int i)
{
    char path[FILE_BYTES];
    char text[64];

    text_format(path, sizeof(path), "%s/gid_attrs/types/%d", port, i);
    if (!check_read(c, path, text, sizeof(text)) || !text_equal(text, "RoCE v2"))
        return false;
    text_format(path, sizeof(path), "%s/gids/%d", port, i);
    return check_read(c, path, text, sizeof(text)) &&
           text_starts(text, "0000:0000:0000:0000:0000:ffff:");
}

static void read_gids(const check *c, const char *port, fabric_port *p)
{
    char path[FILE_BYTES];

    text_format(path, sizeof(path), "%s/gid_attrs/ndevs/0", port);
    read_printable(c, path, p->iface, sizeof(p->iface));
    p->gid = -1;
    for (int i = 0; i < GIDS_MAX && p->gid < 0; i++)
        if (is_routed_gid(c, port, i))
            p->gid = i;
}

static void read_port(const check *c, const char *adapter, int number, fabric *f)
{
    fabric_port *p = &f->ports[f->n];
    char port[FILE_BYTES / 2];
    char path[FILE_BYTES];

    text_format(port, sizeof(port), ADAPTERS "/%s/ports/%d", adapter, number);
    if (f->n == PORTS_MAX || !check_exists(c, port))
        return;
    *p = (fabric_port){.number = number};
    text_printable(p->adapter, sizeof(p->adapter), adapter);
    text_format(path, sizeof(path), "%s/state", port);
    read_state(c, path, p->state, sizeof(p->state));
    text_format(path, sizeof(path), "%s/link_layer", port);
    read_printable(c, path, p->layer, sizeof(p->layer));
    text_format(path, sizeof(path), "%s/rate", port);
    read_printable(c, path, p->rate, sizeof(p->rate));
    if (text_equal(p->layer, "Ethernet"))
        read_gids(c, port, p);
    f->n_active += text_equal(p->state, "ACTIVE");
    f->n++;
}

static void read_fabric(const check *c, fabric *f)
{
    char path[FILE_BYTES];
    DIR *folder = opendir(check_path(c, path, sizeof(path), ADAPTERS));
    const struct dirent *entry;

    while (folder != NULL && (entry = file_next_entry(folder)) != NULL)
        for (int i = 1; i <= PORT_OF_ADAPTER_MAX && entry->d_name[0] != '.'; i++)
            read_port(c, entry->d_name, i, f);
    if (folder != NULL)
        closedir(folder);
}

// --- judging ---

static void check_state(check *c, const fabric *f, const fabric_port *p)
{
    const bool is_ethernet = text_equal(p->layer, "Ethernet");
    char fix[192];

    if (text_equal(p->state, "ACTIVE")) {
        finding_add(c->out, FINDING_IB_OK_KIND, FINDING_OK, NULL, "%s port %d: %s, %s", p->adapter,
                    p->number, is_ethernet ? "RoCE" : p->layer, p->rate);
        return;
    }
    if (text_starts(p->state, "INIT"))
        text_format(fix, sizeof(fix),
                    "sminfo   # without an answer, start a subnet manager: systemctl start opensm");
    else if (is_ethernet && p->iface[0] != '\0')
        text_format(fix, sizeof(fix), "ip link set dev %s up   # or the cable", p->iface);
    else
        text_format(fix, sizeof(fix), "ibstat %s %d   # the cable, and the port of the switch",
                    p->adapter, p->number);
    finding_add(c->out, FINDING_IB_DOWN_KIND, f->n_active > 0 ? FINDING_NOTE : FINDING_WARNING, fix,
                "%s port %d (%s) is in state %s", p->adapter, p->number, p->layer,
                p->state[0] != '\0' ? p->state : "unknown");
}

/* NCCL_IB_GID_INDEX counts for all ports. */
static void check_gid(check *c, const fabric_port *p)
{
    const char *variable = c->from->variable(c->from->self, "NCCL_IB_GID_INDEX");
    char port[FILE_BYTES / 2];
    char fix[96];
    int64_t index;

    if (p->gid < 0) {
        text_format(fix, sizeof(fix), "ip address add ADDRESS/24 dev %s",
                    p->iface[0] != '\0' ? p->iface : "INTERFACE");
        finding_add(c->out, FINDING_IB_GID_KIND, FINDING_WARNING, fix,
                    "%s port %d has no GID of RoCE v2 with an IPv4 address", p->adapter, p->number);
        return;
    }
    if (variable == NULL)
        return;
    text_format(port, sizeof(port), ADAPTERS "/%s/ports/%d", p->adapter, p->number);
    text_format(fix, sizeof(fix), "export NCCL_IB_GID_INDEX=%d", p->gid);
    if (text_parse_int(variable, "NCCL_IB_GID_INDEX", 0, GIDS_MAX - 1, &index) == LS_OK &&
        is_routed_gid(c, port, (int)index))
        return;
    finding_add(c->out, FINDING_IB_GID_KIND, FINDING_WARNING, fix,
                "NCCL_IB_GID_INDEX selects no GID of RoCE v2 with an IPv4 address on %s port %d",
                p->adapter, p->number);
}

static void check_mtu(check *c, const fabric_port *p)
{
    char path[FILE_BYTES];
    char fix[128];
    int64_t mtu;

    text_format(path, sizeof(path), "/sys/class/net/%s/mtu", p->iface);
    if (!check_read_number(c, path, &mtu) || mtu >= RDMA_MTU)
        return;
    text_format(fix, sizeof(fix), "ip link set dev %s mtu 9000   # and on the switch", p->iface);
    finding_add(c->out, FINDING_IB_MTU_KIND, FINDING_NOTE, fix,
                "%s, of %s port %d, has MTU %lld, too small for RDMA packets of 4096 bytes",
                p->iface, p->adapter, p->number, (long long)mtu);
}

/* Mellanox's driver shows for which of the 8 priorities the adapter obeys marks of congestion. */
static void check_congestion(check *c, const fabric_port *p)
{
    char fix[128];
    char path[FILE_BYTES];
    int n_known = 0;
    int n_on = 0;

    for (int priority = 0; priority < 8; priority++) {
        int64_t is_on;

        text_format(path, sizeof(path), "/sys/class/net/%s/ecn/roce_rp/enable/%d", p->iface,
                    priority);
        if (!check_read_number(c, path, &is_on))
            continue;
        n_known++;
        n_on += is_on != 0;
    }
    if (n_on > 0)
        return;
    text_format(fix, sizeof(fix), "dcb pfc show dev %s   # or mlnx_qos -i %s", p->iface, p->iface);
    finding_add(c->out, FINDING_IB_ECN_KIND, FINDING_NOTE, fix,
                n_known > 0 ? "ECN is off for all priorities of %s"
                            : "%s does not show whether PFC or ECN is on",
                p->iface);
}

static void check_peer_memory(check *c)
{
    if (!check_exists(c, "/proc/driver/nvidia/version") ||
        check_exists(c, "/sys/module/nvidia_peermem") || check_exists(c, "/sys/module/nv_peer_mem"))
        return;
    finding_add(c->out, FINDING_IB_PEER_KIND, FINDING_WARNING, "modprobe nvidia_peermem",
                "the module nvidia_peermem is not loaded");
}

void check_fabric(check *c)
{
    char saved[LS_ERROR_BYTES];
    fabric f = {.n = 0};

    ls_error_save(saved); // missing files are not failures
    read_fabric(c, &f);
    if (f.n == 0)
        finding_add(c->out, FINDING_IB_NONE_KIND, FINDING_OK, NULL,
                    "no InfiniBand or RoCE adapter");
    for (int i = 0; i < f.n; i++) {
        const fabric_port *p = &f.ports[i];

        check_state(c, &f, p);
        if (!text_equal(p->layer, "Ethernet") || !text_equal(p->state, "ACTIVE"))
            continue;
        check_gid(c, p);
        if (p->iface[0] != '\0') {
            check_mtu(c, p);
            check_congestion(c, p);
        }
    }
    if (f.n_active > 0)
        check_peer_memory(c);
    ls_error_restore(saved);
}
