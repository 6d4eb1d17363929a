/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice_text.c - the selection as one line, and, when no network works, all tests with advice.
 * Called by net_choose() and the check of several hosts.
 */
#include "launch/network/net_choice.h"

#include "base/alloc.h"

#include <string.h>

#define NAMES_MAX  8   /* interface names in the line of a selection */
#define RANGES_MAX 12  /* of node numbers in one list */
#define LINES_MAX  400 /* of the matrix */

const char *net_outcome_text(net_outcome o)
{
    static const char *const texts[NET_OUTCOME_COUNT] = {
        [NET_UNTRIED] = "not tried",         [NET_OK] = "ok",
        [NET_REFUSED] = "refused",           [NET_TIMED_OUT] = "timed out",
        [NET_UNREACHABLE] = "unreachable",   [NET_WRONG_NODE] = "wrong node",
        [NET_BLACK_HOLE] = "MTU black hole", [NET_OTHER_KEY] = "key differs",
        [NET_BROKEN] = "broken off"};

    return (unsigned)o < NET_OUTCOME_COUNT ? texts[o] : "?";
}

static const char *rate_text(char *buf, size_t n, uint64_t bytes_per_s)
{
    const double mb = (double)bytes_per_s / 1e6;

    if (mb >= 1000)
        return text_format(buf, n, "%.1f GB/s", mb / 1e3);
    return text_format(buf, n, mb < 10 ? "%.1f MB/s" : "%.0f MB/s", mb);
}

/* Appends "node 3" or "nodes 0-2,5" for the marked nodes. */
static void append_nodes(text_buf *out, const uint8_t *marks, int n_nodes)
{
    int n_marked = 0;
    int n_ranges = 0;

    for (int i = 0; i < n_nodes; i++)
        n_marked += marks[i] != 0;
    text_append(out, n_marked == 1 ? "node " : "nodes ");
    for (int first = 0; first < n_nodes; first++) {
        int last = first;

        if (marks[first] == 0)
            continue;
        while (last + 1 < n_nodes && marks[last + 1] != 0)
            last++;
        if (n_ranges++ == RANGES_MAX) {
            text_append(out, ",...");
            return;
        }
        text_append(out, "%s%d", n_ranges == 1 ? "" : ",", first);
        if (last > first)
            text_append(out, "-%d", last);
        first = last;
    }
}

/* --- the selection --- */

/* "eth0 on nodes 0-1, ens3 on node 2" */
static void append_names(text_buf *out, const net_pick *picks, int n_nodes)
{
    uint8_t *marks = ls_calloc((size_t)n_nodes, 2);
    uint8_t *listed = marks == NULL ? NULL : marks + n_nodes;
    int n_names = 0;

    out->failed = out->failed || marks == NULL;
    for (int i = 0; i < n_nodes && marks != NULL; i++) {
        if (listed[i] != 0)
            continue;
        if (n_names++ == NAMES_MAX) {
            text_append(out, ", ...");
            break;
        }
        for (int k = 0; k < n_nodes; k++) {
            marks[k] = text_equal(picks[k].at[0].name, picks[i].at[0].name);
            listed[k] |= marks[k];
        }
        text_append(out, "%s%s on ", n_names == 1 ? "" : ", ", picks[i].at[0].name);
        append_nodes(out, marks, n_nodes);
    }
    ls_free(marks);
}

void net_picks_text(const net_pick *picks, int n_nodes, uint64_t bytes_per_s,
                    uint32_t round_trip_us, text_buf *out)
{
    char text[80];
    bool is_one = true;

    for (int i = 1; i < n_nodes; i++)
        is_one = is_one && net_interface_reaches(&picks[0].at[0], &picks[i].at[0].address);
    text_append(out, "%s%s (", is_one ? "" : "routed from ",
                net_interface_network(text, sizeof(text), &picks[0].at[0]));
    if (bytes_per_s > 0)
        text_append(out, "%s, ", rate_text(text, sizeof(text), bytes_per_s));
    text_append(out, "%u us): ", round_trip_us);
    append_names(out, picks, n_nodes);
}

/* --- the matrix --- */

typedef struct matrix {
    const net_offer *offers;
    const net_report *reports;
    int n_nodes;
    uint8_t *marks; /* [NET_OUTCOME_COUNT][n_nodes] */
    text_buf *out;
    int n_lines;
    int n_left_out;
    /*
     * The first test with each outcome, an example for the advice; from -1: none. Without bridges.
     */
    struct {
        int from;
        int to;
        int address;
    } first[NET_OUTCOME_COUNT];
} matrix;

static uint8_t *marks_of(const matrix *m, int outcome)
{
    return m->marks + (size_t)outcome * (size_t)m->n_nodes;
}

typedef struct slowest {
    uint32_t round_trip_us;
    uint64_t bytes_per_s;
} slowest;

/* Marks for each outcome the nodes that had it with this address; false when no node needs it. */
static bool mark_outcomes(matrix *m, int node, int address, slowest *ok)
{
    int peers[NET_PEERS_MAX];
    const int n = net_peers_of(node, m->offers, m->n_nodes, peers);

    memset(m->marks, 0, (size_t)m->n_nodes * NET_OUTCOME_COUNT);
    *ok = (slowest){0};
    for (int i = 0; i < n; i++) {
        const net_try *t = net_report_find(&m->reports[peers[i]], node, address);
        const int outcome = t == NULL || t->outcome >= NET_OUTCOME_COUNT ? 0 : t->outcome;

        marks_of(m, outcome)[peers[i]] = 1;
        if (m->first[outcome].from < 0 && !m->offers[node].at[address].is_bridge) {
            m->first[outcome].from = peers[i];
            m->first[outcome].to = node;
            m->first[outcome].address = address;
        }
        if (outcome != NET_OK)
            continue;
        if (t->round_trip_us > ok->round_trip_us)
            ok->round_trip_us = t->round_trip_us;
        if (t->bytes_per_s > 0 && (ok->bytes_per_s == 0 || t->bytes_per_s < ok->bytes_per_s))
            ok->bytes_per_s = t->bytes_per_s;
    }
    return n > 0;
}

static void append_outcomes(matrix *m, const slowest *ok)
{
    const char *between = "";
    char rate[24];

    for (int outcome = 0; outcome < NET_OUTCOME_COUNT; outcome++) {
        const uint8_t *marks = marks_of(m, outcome);

        if (memchr(marks, 1, (size_t)m->n_nodes) == NULL)
            continue;
        text_append(m->out, "%sfrom ", between);
        append_nodes(m->out, marks, m->n_nodes);
        text_append(m->out, ": %s", net_outcome_text((net_outcome)outcome));
        if (outcome == NET_OK)
            text_append(m->out, ", %u us", ok->round_trip_us);
        if (outcome == NET_OK && ok->bytes_per_s > 0)
            text_append(m->out, ", %s", rate_text(rate, sizeof(rate), ok->bytes_per_s));
        between = "; ";
    }
}

static void append_address(matrix *m, int node, int address)
{
    const net_interface *iface = &m->offers[node].at[address];
    char host[NET_ADDRESS_TEXT_MAX];
    char both[NET_ADDRESS_TEXT_MAX + 8];
    slowest ok;

    if (!mark_outcomes(m, node, address, &ok))
        return;
    if (m->n_lines++ >= LINES_MAX) {
        m->n_left_out++;
        return;
    }
    text_format(both, sizeof(both), "%s/%d", net_address_host(host, sizeof(host), &iface->address),
                iface->prefix);
    text_append(m->out, "    %-10s %-20s ", iface->name, both);
    append_outcomes(m, &ok);
    text_append(m->out, "\n");
}

static void append_node(matrix *m, int node)
{
    const net_offer *offer = &m->offers[node];

    if (m->n_lines < LINES_MAX) {
        text_append(m->out, "  node %d (%s)%s\n", node, offer->host,
                    offer->n == 0 ? " has no address that others can connect to" : "");
        if (offer->n == 0)
            m->n_lines++;
    }
    for (int a = 0; a < offer->n; a++)
        append_address(m, node, a);
}

/* --- advice --- */

/* Appends what to do about one kind of failure, with its first test as the example. */
static void advise(matrix *m, net_outcome o)
{
    const int to_node = m->first[o].to;
    const net_interface *iface = &m->offers[to_node].at[m->first[o].address];
    const char *from;
    const char *to = m->offers[to_node].host;
    char host[NET_ADDRESS_TEXT_MAX];
    char network[80];

    if (m->first[o].from < 0)
        return;
    from = m->offers[m->first[o].from].host;
    net_address_host(host, sizeof(host), &iface->address);
    switch (o) {
    case NET_TIMED_OUT:
        text_append(m->out,
                    "  timed out: no answer, mostly because of a firewall. To permit the other "
                    "nodes, on %s:\n      %s -I INPUT -p tcp -s %s -j ACCEPT\n"
                    "    or open a few ports there and pass them to this job: --port-range A-B\n",
                    to, net_address_family(&iface->address) == NET_IPV4 ? "iptables" : "ip6tables",
                    net_interface_network(network, sizeof(network), iface));
        break;
    case NET_REFUSED:
        text_append(m->out,
                    "  refused: a host answers at %s, but not this job: another host has the same "
                    "address, or a\n    firewall of %s rejects connections\n",
                    host, to);
        break;
    case NET_UNREACHABLE:
        text_append(m->out, "  unreachable: to see the route, on %s:\n      ip route get %s\n",
                    from, host);
        break;
    case NET_BLACK_HOLE:
        text_append(m->out,
                    "  MTU black hole: small packets arrive, those of %d bytes are lost in a "
                    "switch or tunnel. On %s\n    and every host of this network:\n"
                    "      ip link set dev %s mtu 1500\n",
                    iface->mtu, to, iface->name);
        break;
    case NET_WRONG_NODE:
        text_append(m->out, "  wrong node: more than one host has this address; exclude it with "
                            "--net ^NAME\n");
        break;
    case NET_OTHER_KEY:
        text_append(m->out,
                    "  key differs: the answering process is no node of this job, or has another "
                    "key file; copy that of %s to %s\n",
                    from, to);
        break;
    case NET_BROKEN:
        text_append(m->out,
                    "  broken off: a device between %s and %s, or another service there, closes "
                    "connections\n",
                    from, to);
        break;
    case NET_UNTRIED:
        text_append(m->out,
                    "  not tried: %s has no address of this family (IPv4, IPv6), or sent no "
                    "report\n",
                    from);
        break;
    case NET_OK:
        break;
    }
}

static void append_advice(matrix *m)
{
    static const net_outcome order[] = {NET_TIMED_OUT,  NET_REFUSED,    NET_UNREACHABLE,
                                        NET_BLACK_HOLE, NET_WRONG_NODE, NET_OTHER_KEY,
                                        NET_BROKEN,     NET_UNTRIED};

    text_append(m->out, "what to do:\n");
    for (size_t i = 0; i < LS_COUNT_OF(order); i++)
        advise(m, order[i]);
    text_append(m->out,
                "  to select a network: --net NAME, --net 10.0.0.0/8 or --net ^NAME; for programs "
                "on Gloo and NCCL alone\n    GLOO_SOCKET_IFNAME=NAME and "
                "NCCL_SOCKET_IFNAME==NAME on each node\n");
}

void net_matrix_text(const net_offer *offers, const net_report *reports, int n_nodes, text_buf *out)
{
    matrix m = {.offers = offers, .reports = reports, .n_nodes = n_nodes, .out = out};

    m.marks = ls_calloc((size_t)n_nodes, NET_OUTCOME_COUNT);
    if (m.marks == NULL) {
        out->failed = true;
        return;
    }
    for (int o = 0; o < NET_OUTCOME_COUNT; o++)
        m.first[o].from = -1;
    text_append(out, "network tests by destination address:\n");
    for (int node = 0; node < n_nodes; node++)
        append_node(&m, node);
    if (m.n_left_out > 0)
        text_append(out, "    ... and %d more addresses\n", m.n_left_out);
    append_advice(&m);
    ls_free(m.marks);
}
