/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_paths.c - judges the paths between hosts: selects the network as a job does
 * (net_choice.h), summarizes each path, and adds findings for paths and addresses that fail or are
 * slow. Pure. Called by hosts_check_judge().
 */
#include "diagnose/hosts/hosts_check_internal.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { SLOW_FACTOR = 4 };

/* --- the selected network --- */

/* The hosts that have answered, numbered as nodes of net_choice.h. */
typedef struct members {
    int *hosts;
    int *numbers; /* node number of each host; -1: no answer */
    net_offer *offers;
    net_report *reports;
    int n;
} members;

static void free_members(members *m)
{
    for (int k = 0; m->reports != NULL && k < m->n; k++)
        net_report_free(&m->reports[k]);
    ls_free(m->hosts);
    ls_free(m->numbers);
    ls_free(m->offers);
    ls_free(m->reports);
}

/* Copies a report with node numbers for peers, without hosts that have not answered. */
static ls_status renumber(const hosts_check *s, const members *m, int own, net_report *to)
{
    const net_report *from = &s->hosts[m->hosts[own]].report;

    LS_TRY(LS_NEW(&to->tries, (size_t)from->n + 1, "for %d tries", from->n));
    for (int i = 0; i < from->n; i++) {
        const net_try *t = &from->tries[i];
        const int number = t->peer < s->n ? m->numbers[t->peer] : -1;

        if (number < 0 || t->address >= m->offers[number].n)
            continue;
        to->tries[to->n] = *t;
        to->tries[to->n].peer = (uint16_t)number;
        if (t->local >= m->offers[own].n)
            to->tries[to->n].local = -1;
        to->n++;
    }
    return LS_OK;
}

static ls_status gather_members(const hosts_check *s, members *m)
{
    const size_t n = (size_t)s->n;

    m->hosts = ls_calloc(n, sizeof(*m->hosts));
    m->numbers = ls_calloc(n, sizeof(*m->numbers));
    m->offers = ls_calloc(n, sizeof(*m->offers));
    m->reports = ls_calloc(n, sizeof(*m->reports));
    if (m->hosts == NULL || m->numbers == NULL || m->offers == NULL || m->reports == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the addresses of %zu hosts", n);
    for (int i = 0; i < s->n; i++) {
        m->numbers[i] = s->hosts[i].has_answered ? m->n : -1;
        if (!s->hosts[i].has_answered)
            continue;
        m->offers[m->n] = s->hosts[i].offer;
        text_format(m->offers[m->n].host, sizeof(m->offers[m->n].host), "%s", s->hosts[i].name);
        m->hosts[m->n++] = i;
    }
    for (int k = 0; k < m->n; k++)
        LS_TRY(renumber(s, m, k, &m->reports[k]));
    return LS_OK;
}

static ls_status choose(hosts_check *s, const members *m)
{
    net_choice choice = {0};
    ls_status st = net_choose(m->offers, m->reports, m->n, s->filter, &choice);

    if (st == LS_EPEER) {
        finding_add(&s->common, FINDING_NETWORK_NONE_KIND, FINDING_ERROR,
                    "see the findings and the table below", "no network connects all %d hosts: %s",
                    m->n, ls_last_error());
        text_append(&s->matrix, "%s", text_str(&choice.text));
        st = text_status(&s->matrix);
    } else if (st == LS_OK) {
        st = LS_NEW(&s->picks, (size_t)s->n, "for %d hosts", s->n);
        for (int k = 0; k < m->n && st == LS_OK; k++)
            s->picks[m->hosts[k]] = choice.picks[k];
    }
    net_choice_free(&choice);
    return st;
}

/* --- paths --- */

/*
 * The test of one address of host `to` (s->n: the starting machine); NULL when it was not tested.
 */
static const net_try *find_try(const hosts_check *s, int from, int to, int address)
{
    return net_report_find(&s->hosts[from].report, to, address);
}

static bool is_picked(const hosts_check *s, int to, int address)
{
    net_address at = s->hosts[to].offer.at[address].address;

    if (s->picks == NULL || s->picks[to].n == 0)
        return false;
    net_address_set_port(&at, 0);
    return net_address_equal(&at, &s->picks[to].at[0].address);
}

/* Orders tests: first the selected address, then others that work, then those that fail. */
static int rank_of(const hosts_check *s, int to, const net_try *t)
{
    if (t->outcome != NET_OK)
        return t->outcome == NET_UNTRIED || t->outcome == NET_WRONG_NODE ? 3 : 2;
    return is_picked(s, to, t->address) ? 0 : 1;
}

static bool is_better(const hosts_check *s, int to, const net_try *a, const net_try *b)
{
    const int rank_a = rank_of(s, to, a);
    const int rank_b = rank_of(s, to, b);

    return rank_a != rank_b ? rank_a < rank_b : a->bytes_per_s > b->bytes_per_s;
}

static hosts_check_path find_path(const hosts_check *s, int from, int to)
{
    hosts_check_path path = {.address = -1, .outcome = NET_UNTRIED};
    const net_try *best = NULL;

    for (int a = 0; a < s->hosts[to].offer.n; a++) {
        const net_try *t = find_try(s, from, to, a);

        if (t != NULL && (best == NULL || is_better(s, to, t, best)))
            best = t;
    }
    path.is_local = s->hosts[from].offer.machine == s->hosts[to].offer.machine;
    if (best == NULL)
        return path;
    path.address = best->address;
    path.outcome = (net_outcome)best->outcome;
    path.is_chosen = best->outcome == NET_OK && is_picked(s, to, best->address);
    path.round_trip_us = best->round_trip_us;
    path.bytes_per_s = best->bytes_per_s;
    return path;
}

static bool is_pair(const hosts_check *s, int from, int to)
{
    return from != to && s->hosts[from].has_answered && s->hosts[to].has_answered;
}

static void find_paths(hosts_check *s)
{
    for (int from = 0; from < s->n; from++)
        for (int to = 0; to < s->n; to++)
            s->paths[(size_t)from * (size_t)s->n + (size_t)to] =
                is_pair(s, from, to) ? find_path(s, from, to) : (hosts_check_path){.address = -1};
}

/* --- failures --- */

static const char *outcome_fix(net_outcome o, const net_interface *iface, const char *to, char *buf,
                               size_t n)
{
    char text[96];

    switch (o) {
    case NET_TIMED_OUT:
        return text_format(buf, n, "%s -I INPUT -p tcp -s %s -j ACCEPT   # on %s; or --net ^%s",
                           net_address_family(&iface->address) == NET_IPV4 ? "iptables"
                                                                           : "ip6tables",
                           net_interface_network(text, sizeof(text), iface), to, iface->name);
    case NET_UNREACHABLE:
        return text_format(buf, n, "ip route get %s   # shows the route",
                           net_address_host(text, sizeof(text), &iface->address));
    case NET_BLACK_HOLE:
        return text_format(buf, n, "ip link set dev %s mtu 1500   # on all hosts of this network",
                           iface->name);
    case NET_UNTRIED:
    case NET_OK:
    case NET_REFUSED:
    case NET_WRONG_NODE:
    case NET_OTHER_KEY:
    case NET_BROKEN:
        break;
    }
    return text_format(buf, n, "lockstep run --net ^%s   # excludes this network", iface->name);
}

static finding_kind kind_of(net_outcome o)
{
    if (o == NET_WRONG_NODE)
        return FINDING_PATH_WRONG_KIND;
    return o == NET_BLACK_HOLE ? FINDING_PATH_MTU_KIND : FINDING_PATH_BLOCKED_KIND;
}

/* Marks the hosts that had outcome `o` at the address; returns whether all that tested it did. */
static bool mark_outcome(const hosts_check *s, int to, int address, net_outcome o, bool *marks,
                         int *n)
{
    int n_tried = 0;

    *n = 0;
    for (int from = 0; from < s->n; from++) {
        const net_try *t = is_pair(s, from, to) ? find_try(s, from, to, address) : NULL;

        marks[from] = t != NULL && t->outcome == o;
        n_tried += t != NULL;
        *n += marks[from];
    }
    return *n == n_tried && n_tried > 1;
}

static void judge_outcome(hosts_check *s, int to, int address, net_outcome o, bool *marks)
{
    hosts_check_host *host = &s->hosts[to];
    const net_interface *iface = &host->offer.at[address];
    const finding_kind kind = kind_of(o);
    text_buf names = {0};
    char network[96];
    char fix[256];
    int n;
    const bool is_all = mark_outcome(s, to, address, o, marks, &n);

    if (n == 0)
        return;
    if (is_all)
        text_append(&names, "all other hosts");
    else
        hosts_check_names(s, marks, &names);
    finding_add(&host->found, kind, iface->is_bridge ? FINDING_NOTE : FINDING_WARNING,
                outcome_fix(o, iface, "this host", fix, sizeof(fix)),
                "%s (%s) cannot be used: %s from %s", iface->name,
                net_interface_network(network, sizeof(network), iface), net_outcome_text(o),
                text_str(&names));
    host->found.failed |= names.failed;
    text_free(&names);
}

/*
 * Appends "eth0 10.77.0.12 timed out, eth1 10.78.0.12 refused"; returns the first address that is
 * not of a bridge, or -1.
 */
static int list_failures(const hosts_check *s, int from, int to, const net_offer *offer,
                         text_buf *out)
{
    int first = -1;

    for (int a = 0; a < offer->n; a++) {
        const net_try *t = find_try(s, from, to, a);
        char host[NET_ADDRESS_TEXT_MAX];

        if (t == NULL)
            continue;
        text_append(out, "%s%s %s %s", out->length > 0 ? ", " : "", offer->at[a].name,
                    net_address_host(host, sizeof(host), &offer->at[a].address),
                    net_outcome_text((net_outcome)t->outcome));
        if (first < 0 && !offer->at[a].is_bridge)
            first = a;
    }
    if (out->length == 0)
        text_append(out, offer->n == 0 ? "it has no address that others can connect to"
                                       : "no address family (IPv4, IPv6) in common");
    return first;
}

static void add_unreachable(hosts_check *s, finding_kind kind, int from, int to,
                            const net_offer *offer, const char *name)
{
    text_buf list = {0};
    char fix[256] = "ip address show   # on both";
    const int a = list_failures(s, from, to, offer, &list);

    if (a >= 0)
        outcome_fix((net_outcome)find_try(s, from, to, a)->outcome, &offer->at[a],
                    to < s->n ? s->hosts[to].name : "this machine", fix, sizeof(fix));
    finding_add(&s->hosts[from].found, kind, FINDING_ERROR, fix, "cannot connect to %s: %s", name,
                text_str(&list));
    s->hosts[from].found.failed |= list.failed;
    text_free(&list);
}

/* The agents of a job connect to the starting machine. */
static void judge_start(hosts_check *s, int from)
{
    char name[NET_HOST_BYTES + 32];

    if (!s->has_start || s->start.machine == s->hosts[from].offer.machine)
        return;
    for (int a = 0; a < s->start.n; a++) {
        const net_try *t = find_try(s, from, s->n, a);

        if (t != NULL && t->outcome == NET_OK)
            return;
    }
    text_format(name, sizeof(name), "this machine (%s)", s->start.host);
    add_unreachable(s, FINDING_PATH_HERE_KIND, from, s->n, &s->start, name);
}

static bool has_peer(const hosts_check *s, int from, int to)
{
    for (int i = 0; i < s->hosts[from].report.n; i++)
        if (s->hosts[from].report.tries[i].peer == to)
            return true;
    return s->n <= NET_FULL_MESH;
}

static void judge_paths_from(hosts_check *s, int from)
{
    int n_others = 0;
    int n_reached = 0;

    for (int to = 0; to < s->n; to++) {
        const hosts_check_path *path = hosts_check_path_of(s, from, to);

        if (!is_pair(s, from, to) || path->is_local || !has_peer(s, from, to))
            continue;
        n_others++;
        n_reached += path->outcome == NET_OK;
        if (path->outcome != NET_OK)
            add_unreachable(s, FINDING_PATH_NONE_KIND, from, to, &s->hosts[to].offer,
                            s->hosts[to].name);
    }
    if (n_others > 0 && n_reached == n_others)
        finding_add(&s->hosts[from].found, FINDING_PATH_OK_KIND, FINDING_OK, NULL, "reaches %s",
                    n_others == 1 ? "the other host" : "all other hosts");
}

/* --- bandwidth --- */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Of all pairs measured on the selected network; 0 for fewer than four. */
static uint64_t median_rate(const hosts_check *s, uint64_t *rates)
{
    size_t n = 0;

    for (int i = 0; i < s->n * s->n; i++)
        if (s->paths[i].is_chosen && s->paths[i].bytes_per_s > 0)
            rates[n++] = s->paths[i].bytes_per_s;
    if (n < 4)
        return 0;
    qsort(rates, n, sizeof(*rates), by_value);
    return rates[n / 2];
}

static void judge_rate(hosts_check *s, int from, int to, uint64_t median)
{
    const hosts_check_path *path = hosts_check_path_of(s, from, to);
    char fix[64];

    if (!path->is_chosen || path->bytes_per_s == 0 || path->bytes_per_s >= median / SLOW_FACTOR)
        return;
    text_format(fix, sizeof(fix), "ethtool %s   # on both; then cable and port",
                s->hosts[to].offer.at[path->address].name);
    finding_add(&s->hosts[from].found, FINDING_PATH_SLOW_KIND, FINDING_NOTE, fix,
                "bandwidth to %s is %.3f GB/s; the median of all paths is %.3f GB/s",
                s->hosts[to].name, (double)path->bytes_per_s / 1e9, (double)median / 1e9);
}

static ls_status judge_rates(hosts_check *s)
{
    uint64_t *rates;
    uint64_t median;

    LS_TRY(LS_NEW(&rates, (size_t)s->n * (size_t)s->n, "for the paths between %d hosts", s->n));
    median = median_rate(s, rates);
    for (int from = 0; from < s->n && median > 0; from++)
        for (int to = 0; to < s->n; to++)
            if (is_pair(s, from, to))
                judge_rate(s, from, to, median);
    ls_free(rates);
    return LS_OK;
}

static void list_picks(const hosts_check *s, bool *marks, text_buf *out)
{
    bool *listed = marks + s->n;

    memset(marks, 0, 2 * (size_t)s->n * sizeof(*marks));
    for (int i = 0; i < s->n; i++) {
        if (listed[i] || s->picks[i].n == 0)
            continue;
        for (int k = 0; k < s->n; k++) {
            marks[k] =
                s->picks[k].n > 0 && text_equal(s->picks[k].at[0].name, s->picks[i].at[0].name);
            listed[k] = listed[k] || marks[k];
        }
        text_append(out, "%s%s on ", out->length > 0 ? "; " : "", s->picks[i].at[0].name);
        hosts_check_names(s, marks, out);
    }
}

static void add_choice(hosts_check *s, int first, bool *marks)
{
    text_buf list = {0};
    char network[96];

    list_picks(s, marks, &list);
    finding_add(&s->common, FINDING_NETWORK_OK_KIND, FINDING_OK, NULL, "selected network %s: %s",
                net_interface_network(network, sizeof(network), &s->picks[first].at[0]),
                text_str(&list));
    s->common.failed |= list.failed;
    text_free(&list);
}

ls_status hosts_check_judge_paths(hosts_check *s, bool *marks)
{
    members m = {0};
    ls_status st = gather_members(s, &m);

    if (st == LS_OK && m.n > 1)
        st = choose(s, &m);
    if (st == LS_OK)
        st = LS_NEW(&s->paths, (size_t)s->n * (size_t)s->n, "for the paths between %d hosts", s->n);
    if (st == LS_OK) {
        find_paths(s);
        for (int k = 0; k < m.n; k++) {
            judge_paths_from(s, m.hosts[k]);
            judge_start(s, m.hosts[k]);
            for (int a = 0; a < s->hosts[m.hosts[k]].offer.n; a++)
                for (int o = NET_OK + 1; o < NET_OUTCOME_COUNT; o++)
                    judge_outcome(s, m.hosts[k], a, (net_outcome)o, marks);
        }
        if (s->picks != NULL)
            add_choice(s, m.hosts[0], marks);
        st = judge_rates(s);
    }
    free_members(&m);
    return st;
}
