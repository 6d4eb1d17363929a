/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice.c - selects a network from reports. Each address of node 0 is the seed of at most one
 * network: a search with backtracking gives every further node its first address that works with
 * all nodes before it. Up to three passes widen the search: networks of one kind (the seed's
 * subnet, or addresses that node 0 reaches from the seed), any mixture of addresses, and bridges.
 * The search is bounded (SEARCH_STEPS_MAX); real networks need about one step for each node. Called
 * by the head and by the check of several hosts.
 */
#include "launch/network/net_choice.h"

#include "base/alloc.h"

#include <string.h>

#define SEARCH_STEPS_MAX 200000

typedef struct network {
    uint8_t *address; /* [n_nodes]: index in each node's offer */
    bool is_ipv4;
    uint64_t bytes_per_s;      /* of the slowest pair; 0: not measured */
    uint64_t wire_bytes_per_s; /* the best of networks on the same interfaces */
    uint64_t link_bytes_per_s;
    uint32_t round_trip_us; /* mean */
} network;

/* The addresses that a network may contain, from narrow to wide. */
typedef enum mixture { MIXTURE_ONE_KIND, MIXTURE_NO_BRIDGE, MIXTURE_ANY } mixture;

typedef struct chooser {
    const net_offer *offers;
    const net_report *reports;
    int n_nodes;
    uint16_t *usable; /* [n_nodes]: bit a is address a */
    uint8_t (*order)[NET_ADDRESSES_MAX];
    uint8_t *next; /* [n_nodes]: index in `order` of the next candidate */
    network found[NET_ADDRESSES_MAX];
    int n_found;
} chooser;

/* --- peers --- */

static void add_peer(int peer, int node, const net_offer *offers, int out[NET_PEERS_MAX], int *n)
{
    int at = *n;

    if (peer == node || offers[peer].machine == offers[node].machine)
        return;
    for (int i = 0; i < *n; i++)
        if (out[i] == peer)
            return;
    for (; at > 0 && out[at - 1] > peer; at--)
        out[at] = out[at - 1];
    out[at] = peer;
    (*n)++;
}

int net_peers_of(int node, const net_offer *offers, int n_nodes, int out[NET_PEERS_MAX])
{
    int n = 0;

    if (n_nodes <= NET_FULL_MESH) {
        for (int peer = 0; peer < n_nodes; peer++)
            add_peer(peer, node, offers, out, &n);
        return n;
    }
    for (int distance = 1; distance < n_nodes; distance *= 2) {
        add_peer((node + distance) % n_nodes, node, offers, out, &n);
        add_peer((node - distance + n_nodes) % n_nodes, node, offers, out, &n);
    }
    return n;
}

bool net_peer_is_next(int node, int peer, int n_nodes)
{
    return peer == (node + 1) % n_nodes;
}

/* --- facts --- */

static int64_t try_place(int peer, int address)
{
    return (int64_t)peer * NET_ADDRESSES_MAX + address;
}

const net_try *net_report_find(const net_report *report, int peer, int address)
{
    const int64_t key = try_place(peer, address);
    int low = 0;
    int high = report->n;

    while (low < high) {
        const int middle = low + (high - low) / 2;
        const net_try *t = &report->tries[middle];
        const int64_t place = try_place(t->peer, t->address);

        if (place == key)
            return t;
        if (place < key)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Validates a report of another node. */
static ls_status check_report(const chooser *c, int node)
{
    const net_report *report = &c->reports[node];
    int64_t last = -1;

    for (int i = 0; i < report->n; i++) {
        const net_try *t = &report->tries[i];

        if (t->peer >= c->n_nodes || t->address >= c->offers[t->peer].n ||
            t->local >= c->offers[node].n || try_place(t->peer, t->address) <= last)
            return ls_fail(LS_EPROTO, "the network report of node %d does not match the nodes",
                           node);
        last = try_place(t->peer, t->address);
    }
    return LS_OK;
}

static bool path_works(const chooser *c, int from, int to, int address)
{
    const net_try *t;

    if (c->offers[from].machine == c->offers[to].machine)
        return true;
    t = net_report_find(&c->reports[from], to, address);
    return t != NULL && t->outcome == NET_OK;
}

static bool is_usable(const chooser *c, int node, int address)
{
    return (c->usable[node] >> address & 1U) != 0;
}

/*
 * Marks addresses that pass the node's filter, or else the head's, and where no node met a wrong
 * node.
 */
static ls_status find_usable(chooser *c, const char *filter)
{
    for (int node = 0; node < c->n_nodes; node++) {
        for (int a = 0; a < c->offers[node].n; a++) {
            bool passes;

            LS_TRY(net_interface_passes(filter, &c->offers[node].at[a], &passes));
            if (passes || c->offers[node].is_filtered)
                c->usable[node] |= (uint16_t)(1U << a);
        }
    }
    for (int node = 0; node < c->n_nodes; node++) {
        LS_TRY(check_report(c, node));
        for (int i = 0; i < c->reports[node].n; i++) {
            const net_try *t = &c->reports[node].tries[i];

            if (t->outcome == NET_WRONG_NODE)
                c->usable[t->peer] &= (uint16_t) ~(1U << t->address);
        }
    }
    return LS_OK;
}

/* --- the search --- */

/* The narrowest mixture in which an address is part of the network that starts with the seed. */
static mixture fit(const chooser *c, int seed, int node, int address)
{
    const net_interface *iface = &c->offers[node].at[address];
    const net_try *t;

    if (iface->is_bridge)
        return MIXTURE_ANY;
    if (net_interface_reaches(&c->offers[0].at[seed], &iface->address))
        return MIXTURE_ONE_KIND;
    t = net_report_find(&c->reports[0], node, address);
    return t != NULL && t->outcome == NET_OK && t->local == seed ? MIXTURE_ONE_KIND
                                                                 : MIXTURE_NO_BRIDGE;
}

static void order_addresses(chooser *c, int seed, int node)
{
    uint8_t *order = c->order[node];

    for (int a = 0; a < c->offers[node].n; a++) {
        int at = a;

        for (; at > 0 && fit(c, seed, node, order[at - 1]) > fit(c, seed, node, a); at--)
            order[at] = order[at - 1];
        order[at] = (uint8_t)a;
    }
}

/* Whether `address` of `node` works with the addresses taken by all nodes before it. */
static bool works_with_earlier(const chooser *c, const uint8_t *taken, int node, int address)
{
    int peers[NET_PEERS_MAX];
    const int n = net_peers_of(node, c->offers, c->n_nodes, peers);

    for (int i = 0; i < n && peers[i] < node; i++) {
        if (!path_works(c, peers[i], node, address) ||
            !path_works(c, node, peers[i], taken[peers[i]]))
            return false;
    }
    return true;
}

/* Takes the next address of `node` that works; false when none is left. */
static bool take_next(chooser *c, uint8_t *taken, int node, mixture widest)
{
    const net_offer *offer = &c->offers[node];
    const net_family family = net_address_family(&c->offers[0].at[taken[0]].address);

    while (c->next[node] < offer->n) {
        const int a = c->order[node][c->next[node]++];

        if (!is_usable(c, node, a) || fit(c, taken[0], node, a) > widest ||
            net_address_family(&offer->at[a].address) != family)
            continue;
        if (works_with_earlier(c, taken, node, a)) {
            taken[node] = (uint8_t)a;
            return true;
        }
    }
    return false;
}

static bool search(chooser *c, int seed, mixture widest, uint8_t *taken)
{
    int node = 1;

    if (!is_usable(c, 0, seed) || fit(c, seed, 0, seed) > widest)
        return false;
    for (int i = 1; i < c->n_nodes; i++)
        order_addresses(c, seed, i);
    taken[0] = (uint8_t)seed;
    if (c->n_nodes > 1)
        c->next[1] = 0;
    for (int steps = 0; node > 0 && node < c->n_nodes && steps < SEARCH_STEPS_MAX; steps++) {
        if (take_next(c, taken, node, widest)) {
            node++;
            if (node < c->n_nodes)
                c->next[node] = 0;
        } else {
            node--;
        }
    }
    return node == c->n_nodes;
}

/* --- quality of a network --- */

static void judge_paths(const chooser *c, int node, network *w, uint64_t *sum_us, uint64_t *n_paths)
{
    int peers[NET_PEERS_MAX];
    const int n = net_peers_of(node, c->offers, c->n_nodes, peers);

    for (int i = 0; i < n; i++) {
        const net_try *t = net_report_find(&c->reports[node], peers[i], w->address[peers[i]]);

        LS_ASSERT(t != NULL); // the search checked it
        *sum_us += t->round_trip_us;
        ++*n_paths;
        if (t->bytes_per_s > 0 && (w->bytes_per_s == 0 || t->bytes_per_s < w->bytes_per_s))
            w->bytes_per_s = t->bytes_per_s;
    }
}

static void judge(const chooser *c, network *w)
{
    uint64_t sum_us = 0;
    uint64_t n_paths = 0;

    w->is_ipv4 = net_address_family(&c->offers[0].at[w->address[0]].address) == NET_IPV4;
    w->link_bytes_per_s = UINT64_MAX;
    for (int node = 0; node < c->n_nodes; node++) {
        const uint64_t link =
            (uint64_t)c->offers[node].at[w->address[node]].speed_mbps * (1000 * 1000 / 8);

        if (link < w->link_bytes_per_s)
            w->link_bytes_per_s = link;
        judge_paths(c, node, w, &sum_us, &n_paths);
    }
    w->round_trip_us = n_paths == 0 ? 0 : (uint32_t)(sum_us / n_paths);
}

static ls_status find_networks(chooser *c, mixture widest)
{
    for (int seed = 0; seed < c->offers[0].n; seed++) {
        network *w = &c->found[c->n_found];

        if (w->address == NULL)
            LS_TRY(LS_NEW(&w->address, (size_t)c->n_nodes, "to choose a network"));
        if (search(c, seed, widest, w->address)) {
            judge(c, w);
            c->n_found++;
        }
    }
    return LS_OK;
}

/* Whether two networks use the same interface on every node, or on any. */
static bool same_interfaces(const chooser *c, const network *a, const network *b, bool on_every)
{
    for (int node = 0; node < c->n_nodes; node++) {
        const net_interface *at = c->offers[node].at;

        if (text_equal(at[a->address[node]].name, at[b->address[node]].name) != on_every)
            return !on_every;
    }
    return on_every;
}

/* IPv4 and IPv6 on the same interfaces have the same bandwidth; measured differences are noise. */
static void judge_wires(chooser *c)
{
    for (int i = 0; i < c->n_found; i++) {
        network *w = &c->found[i];

        w->wire_bytes_per_s = w->bytes_per_s;
        for (int k = 0; k < c->n_found; k++)
            if (c->found[k].bytes_per_s > w->wire_bytes_per_s &&
                same_interfaces(c, w, &c->found[k], true))
                w->wire_bytes_per_s = c->found[k].bytes_per_s;
    }
}

static uint64_t speed_of(const network *w, bool measured)
{
    return measured ? w->wire_bytes_per_s : w->link_bytes_per_s;
}

/* Marks in `alive` the networks as fast as the best. */
static void keep_fastest(const chooser *c, bool alive[NET_ADDRESSES_MAX])
{
    bool measured = false;
    uint64_t best = 0;

    for (int i = 0; i < c->n_found; i++)
        measured = measured || c->found[i].bytes_per_s > 0;
    for (int i = 0; i < c->n_found; i++)
        if (speed_of(&c->found[i], measured) > best)
            best = speed_of(&c->found[i], measured);
    for (int i = 0; i < c->n_found; i++)
        alive[i] = speed_of(&c->found[i], measured) >= best - best / 3;
}

static int best_of(const chooser *c, const bool alive[NET_ADDRESSES_MAX])
{
    uint32_t lowest_us = UINT32_MAX;
    bool any_ipv4 = false;

    for (int i = 0; i < c->n_found; i++)
        any_ipv4 = any_ipv4 || (alive[i] && c->found[i].is_ipv4);
    for (int i = 0; i < c->n_found; i++)
        if (alive[i] && c->found[i].is_ipv4 == any_ipv4 && c->found[i].round_trip_us < lowest_us)
            lowest_us = c->found[i].round_trip_us;
    for (int i = 0; i < c->n_found; i++)
        if (alive[i] && c->found[i].is_ipv4 == any_ipv4 &&
            c->found[i].round_trip_us <= (uint64_t)lowest_us + lowest_us / 2)
            return i;
    return 0;
}

/* --- the selection --- */

static void add_to_picks(const chooser *c, const network *w, net_pick *picks)
{
    for (int node = 0; node < c->n_nodes; node++) {
        net_interface *at = &picks[node].at[picks[node].n++];

        *at = c->offers[node].at[w->address[node]];
        net_address_set_port(&at->address, 0);
        picks[node].head = picks[0].at[0].address;
    }
}

static void make_picks(const chooser *c, net_choice *out)
{
    const network *taken[NET_PICKS_MAX];
    bool alive[NET_ADDRESSES_MAX] = {false};
    int n = 1;

    keep_fastest(c, alive);
    taken[0] = &c->found[best_of(c, alive)];
    for (int i = 0; i < c->n_found && n < NET_PICKS_MAX; i++) {
        bool is_new = alive[i];

        for (int k = 0; k < n; k++)
            is_new = is_new && !same_interfaces(c, taken[k], &c->found[i], false);
        if (is_new)
            taken[n++] = &c->found[i];
    }
    for (int k = 0; k < n; k++)
        add_to_picks(c, taken[k], out->picks);
    net_picks_text(out->picks, c->n_nodes, taken[0]->bytes_per_s, taken[0]->round_trip_us,
                   &out->text);
}

static bool all_on_one_machine(const net_offer *offers, int n_nodes)
{
    for (int i = 1; i < n_nodes; i++)
        if (offers[i].machine != offers[0].machine)
            return false;
    return true;
}

static ls_status choose_loopback(int n_nodes, net_choice *out)
{
    net_pick pick = {.n = 1, .at = {{.name = "lo", .prefix = 8}}};

    LS_TRY(net_address_decode("127.0.0.1:0", &pick.at[0].address));
    pick.head = pick.at[0].address;
    for (int i = 0; i < n_nodes; i++)
        out->picks[i] = pick;
    text_append(&out->text, "loopback: all nodes are on one machine");
    return text_status(&out->text);
}

static ls_status choose(chooser *c, const char *filter, net_choice *out)
{
    LS_TRY(LS_NEW(&c->usable, (size_t)c->n_nodes, "to choose a network"));
    LS_TRY(LS_NEW(&c->order, (size_t)c->n_nodes, "to choose a network"));
    LS_TRY(LS_NEW(&c->next, (size_t)c->n_nodes, "to choose a network"));
    LS_TRY(find_usable(c, filter));
    for (int widest = MIXTURE_ONE_KIND; widest <= MIXTURE_ANY && c->n_found == 0; widest++)
        LS_TRY(find_networks(c, (mixture)widest));
    if (c->n_found > 0) {
        judge_wires(c);
        make_picks(c, out);
        return text_status(&out->text);
    }
    net_matrix_text(c->offers, c->reports, c->n_nodes, &out->text);
    LS_TRY(text_status(&out->text));
    return ls_fail(LS_EPEER, "no network connects all %d nodes", c->n_nodes);
}

ls_status net_choose(const net_offer *offers, const net_report *reports, int n_nodes,
                     const char *filter, net_choice *out)
{
    chooser c = {.offers = offers, .reports = reports, .n_nodes = n_nodes};
    bool has_filter = filter != NULL && filter[0] != 0;
    ls_status st;

    *out = (net_choice){.n_nodes = n_nodes};
    if (n_nodes < 1 || n_nodes > NET_NODES_MAX)
        return ls_fail(LS_EINVAL, "%d nodes, expected 1 to %d", n_nodes, NET_NODES_MAX);
    LS_TRY(LS_NEW(&out->picks, (size_t)n_nodes, "to choose a network"));
    for (int i = 0; i < n_nodes; i++)
        has_filter = has_filter || offers[i].is_filtered;
    if (all_on_one_machine(offers, n_nodes) && !has_filter)
        st = choose_loopback(n_nodes, out);
    else
        st = choose(&c, filter, out);
    for (int i = 0; i < NET_ADDRESSES_MAX; i++)
        ls_free(c.found[i].address);
    ls_free(c.usable);
    ls_free(c.order);
    ls_free(c.next);
    if (st != LS_OK) {
        ls_free(out->picks);
        out->picks = NULL;
    }
    return st;
}

void net_choice_free(net_choice *c)
{
    ls_free(c->picks);
    text_free(&c->text);
    *c = (net_choice){0};
}

/* --- a node that comes later --- */

static const net_interface *find_late(const net_pick *first, const net_offer *offer)
{
    const net_interface *of_family = NULL;

    for (int i = 0; i < offer->n; i++) {
        const net_interface *at = &offer->at[i];

        if (net_address_family(&at->address) != net_address_family(&first->head))
            continue;
        if (net_interface_reaches(at, &first->head))
            return at;
        if (of_family == NULL && !at->is_bridge)
            of_family = at;
    }
    return of_family;
}

ls_status net_choose_late(const net_choice *c, const net_offer *offers, int node, net_pick *out)
{
    const net_pick *first = &c->picks[0];
    const bool is_loopback = net_address_is_loopback(&first->head);
    const net_interface *at = is_loopback ? NULL : find_late(first, &offers[node]);

    if (is_loopback && offers[node].machine == offers[0].machine)
        at = &first->at[0];
    if (at == NULL)
        return ls_fail(LS_EPEER, "%s has no address in the network of the job, %s",
                       offers[node].host, text_str(&c->text));
    *out = (net_pick){.head = first->head, .n = 1, .at = {*at}};
    net_address_set_port(&out->at[0].address, 0);
    return LS_OK;
}
