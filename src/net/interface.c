/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interface.c - lists the host's addresses: getifaddrs() for names and addresses,
 * /proc/net/if_inet6 for the IPv6 addresses that are not usable, the routing tables for the default
 * route. The order is the same on every call. Called by comm/ and launch/ when they choose a
 * network.
 */
#include "net/interface.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_addr.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CANDIDATES_MAX   256
#define TABLE_BYTES      ((size_t)1024 * 1024)
#define FILTER_ENTRY_MAX 64

typedef struct candidate {
    net_interface interface;
    bool is_loopback;
    int order; /* as listed by the kernel */
} candidate;

typedef struct tables { /* Texts of /proc, NULL when missing. */
    char *inet6;
    char *route4;
    char *route6;
} tables;

/* --- facts --- */

static char *read_table(const char *path)
{
    char *text = NULL;
    size_t bytes;

    return file_read(path, TABLE_BYTES, &text, &bytes) == LS_OK ? text : NULL;
}

/* Sets *bytes to the bytes of an address and returns their number. */
static int address_bytes(const net_address *a, const uint8_t **bytes)
{
    if (net_address_family(a) == NET_IPV4) {
        *bytes = (const uint8_t *)&((const struct sockaddr_in *)(const void *)&a->socket)->sin_addr;
        return 4;
    }
    *bytes = ((const struct sockaddr_in6 *)(const void *)&a->socket)->sin6_addr.s6_addr;
    return 16;
}

/* Copies the index-th word of a line, cut to n; "" when there are fewer. */
static const char *word_of(const char *line, int index, char *buf, size_t n)
{
    static const char blanks[] = " \t";

    line += strspn(line, blanks);
    for (int i = 0; i < index; i++) {
        line += strcspn(line, " \t\n");
        line += strspn(line, blanks);
    }
    return text_format(buf, n, "%.*s", (int)strcspn(line, " \t\n"), line);
}

/* Whether duplicate detection is running or has found a duplicate, or the address is deprecated. */
static bool is_unusable_ipv6(const tables *t, const net_address *a)
{
    const uint8_t *bytes;
    char digits[33];
    const char *line;
    char word[16];
    unsigned long flags;

    if (t->inet6 == NULL || net_address_family(a) != NET_IPV6)
        return false;
    address_bytes(a, &bytes);
    for (int i = 0; i < 16; i++)
        text_format(&digits[2 * (size_t)i], 3, "%02x", bytes[i]);
    line = strstr(t->inet6, digits); // "ADDRESS INDEX PREFIX SCOPE FLAGS NAME", all hexadecimal
    if (line == NULL)
        return false;
    flags = strtoul(word_of(line, 4, word, sizeof(word)), NULL, 16);
    return (flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED | IFA_F_DEPRECATED)) != 0;
}

/* Whether a line of the routing table is a default route of this interface: `is_default`
 * decides. */
static bool table_has(const char *table, const char *name,
                      bool (*is_default)(const char *line, char name[IF_NAMESIZE]))
{
    char found[IF_NAMESIZE];

    for (const char *line = table; line != NULL && line[0] != 0; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        if (is_default(line, found) && text_equal(found, name))
            return true;
    }
    return false;
}

static bool default_in_route4(const char *line, char name[IF_NAMESIZE])
{
    char word[16];

    word_of(line, 0, name, IF_NAMESIZE);
    return text_equal(word_of(line, 1, word, sizeof(word)), "00000000") && // destination and mask
           text_equal(word_of(line, 7, word, sizeof(word)), "00000000");
}

static bool default_in_route6(const char *line, char name[IF_NAMESIZE])
{
    char word[40];

    word_of(line, 9, name, IF_NAMESIZE);
    return text_equal(word_of(line, 1, word, sizeof(word)), "00") && // prefix
           strspn(word_of(line, 0, word, sizeof(word)), "0") == 32 && !text_equal(name, "lo");
}

static bool is_bridge_name(const char *name)
{
    static const char *const prefixes[] = {"docker", "br-", "veth", "virbr"};

    for (size_t i = 0; i < LS_COUNT_OF(prefixes); i++) {
        if (text_starts(name, prefixes[i]))
            return true;
    }
    return false;
}

static int prefix_of(const struct sockaddr *mask)
{
    net_address a = {.bytes = sizeof(struct sockaddr_in6)};
    const uint8_t *bytes;
    int n;
    int bits = 0;

    if (mask == NULL)
        return 0;
    memcpy(&a.socket, mask,
           mask->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    n = address_bytes(&a, &bytes);
    for (int i = 0; i < n; i++)
        bits += __builtin_popcount(bytes[i]);
    return bits;
}

static bool is_link_local(const net_address *a)
{
    const uint8_t *bytes;
    const int n = address_bytes(a, &bytes);

    return n == 16 ? bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80
                   : bytes[0] == 169 && bytes[1] == 254;
}

/* `any` is any socket of the namespace. Drivers without a speed fail the request. */
static void ask_driver(int any, net_interface *interface)
{
    struct ethtool_cmd link = {.cmd = ETHTOOL_GSET};
    struct ifreq ask = {0};
    uint32_t mbps;

    text_format(ask.ifr_name, sizeof(ask.ifr_name), "%s", interface->name);
    if (ioctl(any, SIOCGIFMTU, &ask) == 0 && ask.ifr_mtu > 0)
        interface->mtu = ask.ifr_mtu;
    ask.ifr_data = (void *)&link;
    if (ioctl(any, SIOCETHTOOL, &ask) != 0)
        return;
    mbps = (uint32_t)link.speed_hi << 16 | link.speed; // the kernel's macro shifts a signed value
    if (mbps < INT32_MAX)                              // -1 = unknown
        interface->speed_mbps = (int)mbps;
}

static bool take_candidate(const struct ifaddrs *from, const tables *t, candidate *out)
{
    const unsigned up = IFF_UP | IFF_RUNNING;
    net_interface *interface = &out->interface;
    socklen_t bytes;

    if (from->ifa_addr == NULL || (from->ifa_flags & up) != up)
        return false;
    if (from->ifa_addr->sa_family == AF_INET)
        bytes = sizeof(struct sockaddr_in);
    else if (from->ifa_addr->sa_family == AF_INET6)
        bytes = sizeof(struct sockaddr_in6);
    else
        return false;
    memset(out, 0, sizeof(*out));
    memcpy(&interface->address.socket, from->ifa_addr, bytes);
    interface->address.bytes = bytes;
    if (is_link_local(&interface->address) || is_unusable_ipv6(t, &interface->address))
        return false;
    text_format(interface->name, sizeof(interface->name), "%s", from->ifa_name);
    interface->prefix = prefix_of(from->ifa_netmask);
    interface->is_bridge = is_bridge_name(interface->name);
    interface->is_default = net_address_family(&interface->address) == NET_IPV4
                                ? table_has(t->route4, interface->name, default_in_route4)
                                : table_has(t->route6, interface->name, default_in_route6);
    out->is_loopback = (from->ifa_flags & IFF_LOOPBACK) != 0;
    return true;
}

static ls_status list_all(candidate *all, int *n)
{
    struct ifaddrs *list = NULL;
    tables t;
    int any;

    *n = 0;
    if (getifaddrs(&list) != 0)
        return ls_fail_errno("cannot list the network interfaces");
    any = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    t.inet6 = read_table("/proc/net/if_inet6");
    t.route4 = read_table("/proc/net/route");
    t.route6 = read_table("/proc/net/ipv6_route");
    for (const struct ifaddrs *it = list; it != NULL && *n < CANDIDATES_MAX; it = it->ifa_next) {
        if (take_candidate(it, &t, &all[*n])) {
            ask_driver(any, &all[*n].interface);
            all[*n].order = *n;
            (*n)++;
        }
    }
    file_close(&any);
    ls_free(t.inet6);
    ls_free(t.route4);
    ls_free(t.route6);
    freeifaddrs(list);
    return LS_OK;
}

/* --- the filter --- */

static ls_status bad_entry(const char *entry, const char *why)
{
    char shown[FILTER_ENTRY_MAX];

    text_printable(shown, sizeof(shown), entry);
    return ls_fail(LS_EINVAL, "network filter entry '%s': %s", shown, why);
}

/* Whether two addresses have one family and the same first `bits`. */
static bool bits_equal(const net_address *a, const net_address *b, int bits)
{
    const uint8_t *x;
    const uint8_t *y;
    const int n = address_bytes(a, &x);

    if (net_address_family(a) != net_address_family(b))
        return false;
    address_bytes(b, &y);
    for (int i = 0; i < bits && i < 8 * n; i++) {
        const unsigned bit = 0x80U >> (i % 8);

        if ((x[i / 8] & bit) != (y[i / 8] & bit))
            return false;
    }
    return true;
}

/* Whether the address lies in "NETWORK/BITS". */
static ls_status in_network(const char *entry, const char *slash, const net_address *a,
                            bool *inside)
{
    char host[FILTER_ENTRY_MAX];
    net_address network;
    const uint8_t *wanted;
    int64_t bits = 0;
    int n;

    *inside = false;
    text_format(host, sizeof(host), strchr(entry, ':') != NULL ? "[%.*s]:0" : "%.*s:0",
                (int)(slash - entry), entry);
    if (slash == entry || net_address_decode(host, &network) != LS_OK)
        return bad_entry(entry, "not a network");
    n = address_bytes(&network, &wanted);
    if (text_parse_int(slash + 1, "the prefix", 0, (int64_t)8 * n, &bits) != LS_OK)
        return bad_entry(entry, "the number behind '/' is out of range");
    *inside = bits_equal(&network, a, (int)bits);
    return LS_OK;
}

static ls_status entry_matches(const char *entry, const net_interface *interface, bool *matches)
{
    const char *slash = strchr(entry, '/');

    if (entry[0] == 0)
        return bad_entry(entry, "it is empty");
    if (slash != NULL)
        return in_network(entry, slash, &interface->address, matches);
    if (strlen(entry) >= NET_INTERFACE_NAME_MAX)
        return bad_entry(entry, "the name of an interface has at most 15 bytes");
    *matches = text_equal(entry, interface->name);
    return LS_OK;
}

/* *named: a positive entry matched, so the user wants this interface of whatever kind. */
static ls_status apply_filter(const char *filter, const net_interface *interface, bool *passes,
                              bool *named)
{
    bool has_positive = false;
    bool excluded = false;
    const char *at = filter;

    *named = false;
    *passes = true;
    while (at != NULL && at[0] != 0) {
        const size_t length = strcspn(at, ",");
        const bool negative = at[0] == '^';
        char entry[FILTER_ENTRY_MAX];
        bool matches = false;

        if (length >= sizeof(entry))
            return bad_entry(at, "it is too long");
        text_format(entry, sizeof(entry), "%.*s", (int)length - negative, at + negative);
        LS_TRY(entry_matches(entry, interface, &matches));
        has_positive = has_positive || !negative;
        *named = *named || (matches && !negative);
        excluded = excluded || (matches && negative);
        at += length;
        if (at[0] == ',' && at[1] == 0)
            return bad_entry("", "it is empty");
        at += at[0] == ',';
    }
    *passes = !excluded && (*named || !has_positive);
    return LS_OK;
}

ls_status net_interface_passes(const char *filter, const net_interface *interface, bool *passes)
{
    bool named;

    return apply_filter(filter, interface, passes, &named);
}

/* --- the order --- */

static int rank_of(const candidate *c)
{
    const int family = net_address_family(&c->interface.address) == NET_IPV4 ? 0 : 1;

    return (c->interface.is_bridge ? 4 : 0) + (c->interface.is_default ? 0 : 2) + family;
}

static int compare(const void *a, const void *b)
{
    const candidate *x = a;
    const candidate *y = b;

    return rank_of(x) != rank_of(y) ? rank_of(x) - rank_of(y) : x->order - y->order;
}

ls_status net_interfaces(const char *filter, net_interface *out, int max, int *n)
{
    candidate *all;
    int n_all = 0;
    int n_found = 0;
    ls_status st;

    *n = 0;
    LS_TRY(LS_NEW(&all, CANDIDATES_MAX, "to list the network interfaces"));
    st = list_all(all, &n_all);
    for (int i = 0; i < n_all && st == LS_OK; i++) {
        bool passes;
        bool named;

        st = apply_filter(filter, &all[i].interface, &passes, &named);
        if (st == LS_OK && passes && (named || !all[i].is_loopback))
            all[n_found++] = all[i];
    }
    if (st == LS_OK) {
        qsort(all, (size_t)n_found, sizeof(*all), compare);
        for (; *n < n_found && *n < max; (*n)++)
            out[*n] = all[*n].interface;
    }
    ls_free(all);
    return st;
}

bool net_interface_reaches(const net_interface *interface, const net_address *a)
{
    return bits_equal(&interface->address, a, interface->prefix);
}

const char *net_interface_network(char *buf, size_t n, const net_interface *interface)
{
    net_address network = interface->address;
    const uint8_t *bytes;
    const int n_bytes = address_bytes(&network, &bytes);
    uint8_t *host = (uint8_t *)&network.socket + (bytes - (const uint8_t *)&network.socket);
    char text[NET_ADDRESS_TEXT_MAX];

    for (int i = interface->prefix; i < 8 * n_bytes; i++)
        host[i / 8] &= (uint8_t) ~(0x80U >> (i % 8));
    return text_format(buf, n, "%s/%d", net_address_host(text, sizeof(text), &network),
                       interface->prefix);
}

/* The kernel's boot id is the same in all containers of a host; their network namespaces differ. */
uint64_t net_host_value(void)
{
    char saved[LS_ERROR_BYTES];
    struct stat space;
    char *boot = NULL;
    size_t bytes = 0;
    uint64_t hash = 1;

    ls_error_save(saved);
    if (file_read("/proc/sys/kernel/random/boot_id", 4096, &boot, &bytes) == LS_OK)
        hash = ls_hash_bytes(boot, bytes, hash);
    ls_error_restore(saved);
    ls_free(boot);
    if (stat("/proc/self/ns/net", &space) == 0)
        hash = ls_hash3(hash, (uint64_t)space.st_dev, (uint64_t)space.st_ino);
    return hash;
}

const char *net_interfaces_text(char *buf, size_t n)
{
    net_interface found[16];
    text_buf list = {0};
    char host[NET_ADDRESS_TEXT_MAX];
    int n_found = 0;

    if (net_interfaces(NULL, found, LS_COUNT_OF(found), &n_found) != LS_OK || n_found == 0)
        text_append(&list, "only loopback");
    for (int i = 0; i < n_found; i++)
        text_append(&list, "%s%s %s/%d", i == 0 ? "" : ", ", found[i].name,
                    net_address_host(host, sizeof(host), &found[i].address), found[i].prefix);
    text_format(buf, n, "%s", text_str(&list));
    text_free(&list);
    return buf;
}
