/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - parses, prints and compares socket addresses (address.h). The text form of an address
 * is parsed back to the same address. Used by all of net/, store/, comm/ and launch/.
 */
#include "net/address.h"

#include "base/text.h"
#include "net/key.h"

#include <sodium.h>

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define HOST_MAX        256
#define UNIX_PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

static const struct sockaddr_in *as_ipv4(const net_address *a)
{
    return (const struct sockaddr_in *)(const void *)&a->socket;
}

static const struct sockaddr_in6 *as_ipv6(const net_address *a)
{
    return (const struct sockaddr_in6 *)(const void *)&a->socket;
}

net_family net_address_family(const net_address *a)
{
    if (a->bytes == 0)
        return NET_NONE;
    switch (a->socket.ss_family) {
    case AF_UNIX:
        return NET_UNIX;
    case AF_INET:
        return NET_IPV4;
    case AF_INET6:
        return NET_IPV6;
    default:
        return NET_NONE;
    }
}

/* Fails with the printable part of a text of any origin. */
static ls_status bad_address(const char *text, const char *why)
{
    char shown[80];

    text_printable(shown, sizeof(shown), text);
    return ls_fail(LS_EINVAL, "address '%s': %s", shown, why);
}

static ls_status parse_unix(const char *text, const char *path, net_address *out)
{
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)&out->socket;
    const size_t length = strlen(path);

    if ((path[0] != '@' && path[0] != '/') || length < 2)
        return bad_address(text, "a unix socket is unix:@NAME or unix:/PATH");
    if (length >= UNIX_PATH_BYTES)
        return bad_address(text, "the name of a unix socket has at most 107 bytes");
    memset(out, 0, sizeof(*out));
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, length);
    if (path[0] == '@') { // an abstract name has no terminator
        un->sun_path[0] = 0;
        out->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    } else {
        out->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    }
    return LS_OK;
}

static ls_status copy_host(const char *text, const char *from, size_t length, char *host)
{
    if (length >= HOST_MAX)
        return bad_address(text, "the host name is too long");
    memcpy(host, from, length);
    host[length] = 0;
    return LS_OK;
}

/* Splits "HOST:PORT", "[V6]:PORT", "V6" and "HOST". */
static ls_status split_host(const char *text, const char *rest, int default_port, char *host,
                            int *port)
{
    const char *colon;
    const char *digits = NULL;
    int64_t number;

    if (rest[0] == '[') {
        const char *end = strchr(rest, ']');

        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return bad_address(text, "expected [IPV6]:PORT");
        LS_TRY(copy_host(text, rest + 1, (size_t)(end - rest - 1), host));
        if (strchr(host, ':') == NULL)
            return bad_address(text, "only an IPv6 address may be in brackets");
        if (end[1] == ':')
            digits = end + 2;
    } else {
        colon = strchr(rest, ':');
        if (colon != NULL && strchr(colon + 1, ':') == NULL) {
            LS_TRY(copy_host(text, rest, (size_t)(colon - rest), host));
            digits = colon + 1;
        } else {
            LS_TRY(copy_host(text, rest, strlen(rest), host));
        }
    }
    if (digits == NULL && default_port < 0)
        return bad_address(text, "the port is missing");
    *port = default_port;
    if (digits == NULL)
        return LS_OK;
    if (text_parse_int(digits, "the port", 0, 65535, &number) != LS_OK || digits[0] == '+' ||
        digits[0] == '-')
        return bad_address(text, "the port must be a number from 0 to 65535");
    *port = (int)number;
    return LS_OK;
}

static void take_sockaddr(net_address *out, const void *from, socklen_t bytes, int port)
{
    memset(out, 0, sizeof(*out));
    memcpy(&out->socket, from, bytes);
    out->bytes = bytes;
    net_address_set_port(out, port);
}

/* Parses numeric hosts and "all interfaces"; *is_name for any other host. */
static ls_status parse_numeric(const char *text, const char *host, int port, net_address *out,
                               bool *is_name)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;

    *is_name = false;
    if (host[0] == 0 || text_equal(host, "*")) {
        take_sockaddr(out, &v6, sizeof(v6), port);
        return LS_OK;
    }
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        take_sockaddr(out, &v4, sizeof(v4), port);
        return LS_OK;
    }
    if (strchr(host, ':') != NULL) { // getaddrinfo() parses "%eth0"
        if (getaddrinfo(host, NULL, &hints, &found) != 0)
            return bad_address(text, "not an IPv6 address");
        take_sockaddr(out, found->ai_addr, found->ai_addrlen, port);
        freeaddrinfo(found);
        return LS_OK;
    }
    if (strspn(host, "0123456789.") == strlen(host))
        return bad_address(text, "not an IPv4 address");
    *is_name = true;
    return LS_OK;
}

/* AI_ADDRCONFIG leaves out the family of which this machine has loopback addresses only, so that an
 * IPv6-only machine does not find its own name where /etc/hosts has it as 127.0.1.1. */
static int find_host(const char *host, struct addrinfo **found)
{
    struct addrinfo hints = {.ai_flags = AI_ADDRCONFIG, .ai_socktype = SOCK_STREAM};

    if (getaddrinfo(host, NULL, &hints, found) == 0)
        return 0;
    hints.ai_flags = 0;
    return getaddrinfo(host, NULL, &hints, found);
}

static ls_status look_up(const char *host, int port, net_address *out, int max, int *n)
{
    struct addrinfo *found = NULL;
    char shown[80];
    const int error = find_host(host, &found);

    text_printable(shown, sizeof(shown), host);
    if (error != 0)
        return ls_fail(LS_ENOTFOUND,
                       "cannot resolve %s: %s; check the name (getent hosts %s), or use an "
                       "IP address",
                       shown, error == EAI_SYSTEM ? ls_errno_text(errno) : gai_strerror(error),
                       shown);
    *n = 0;
    for (struct addrinfo *it = found; it != NULL && *n < max; it = it->ai_next) {
        if (it->ai_family == AF_INET || it->ai_family == AF_INET6)
            take_sockaddr(&out[(*n)++], it->ai_addr, it->ai_addrlen, port);
    }
    freeaddrinfo(found);
    if (*n == 0)
        return ls_fail(LS_ENOTFOUND, "cannot resolve %s: it has no IPv4 or IPv6 address", shown);
    return LS_OK;
}

static ls_status parse_any(const char *text, int default_port, bool may_look_up, net_address *out,
                           int max, int *n)
{
    const char *rest = text;
    char host[HOST_MAX] = "";
    int port = 0;
    bool is_name = false;

    *n = 1;
    if (text_starts(text, "unix:"))
        return parse_unix(text, text + strlen("unix:"), out);
    if (text_starts(text, "tcp://"))
        rest = text + strlen("tcp://");
    else if (strstr(text, "://") != NULL)
        return bad_address(text, "expected tcp://HOST:PORT or unix:@NAME");
    if (rest[0] == 0)
        return bad_address(text, "it is empty");
    if (strchr(rest, '/') != NULL)
        return bad_address(text, "a host must not contain '/'");
    LS_TRY(split_host(text, rest, default_port, host, &port));
    LS_TRY(parse_numeric(text, host, port, out, &is_name));
    if (!is_name)
        return LS_OK;
    if (!may_look_up)
        return bad_address(text, "expected a numeric address, not a name");
    return look_up(host, port, out, max, n);
}

ls_status net_address_parse(const char *text, int default_port, net_address *out)
{
    int n;

    return parse_any(text, default_port, true, out, 1, &n);
}

ls_status net_address_resolve(const char *text, int default_port, net_address *out, int max, int *n)
{
    ls_status st;

    LS_ASSERT(max >= 1);
    st = parse_any(text, default_port, true, out, max, n);
    if (st != LS_OK)
        *n = 0;
    return st;
}

ls_status net_address_decode(const char *text, net_address *out)
{
    int n;

    return parse_any(text, NET_PORT_REQUIRED, false, out, 1, &n);
}

const char *net_address_host(char *buf, size_t n, const net_address *a)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    char interface[IF_NAMESIZE];
    const struct sockaddr_un *un;
    size_t path_bytes;

    switch (net_address_family(a)) {
    case NET_IPV4:
        inet_ntop(AF_INET, &as_ipv4(a)->sin_addr, ip, sizeof(ip));
        return text_format(buf, n, "%s", ip);
    case NET_IPV6:
        inet_ntop(AF_INET6, &as_ipv6(a)->sin6_addr, ip, sizeof(ip));
        if (as_ipv6(a)->sin6_scope_id == 0)
            return text_format(buf, n, "%s", ip);
        /* The name of an interface is read back for these only. */
        if (!(IN6_IS_ADDR_LINKLOCAL(&as_ipv6(a)->sin6_addr) ||
              IN6_IS_ADDR_MC_LINKLOCAL(&as_ipv6(a)->sin6_addr)) ||
            if_indextoname(as_ipv6(a)->sin6_scope_id, interface) == NULL)
            return text_format(buf, n, "%s%%%u", ip, as_ipv6(a)->sin6_scope_id);
        return text_format(buf, n, "%s%%%s", ip, interface);
    case NET_UNIX:
        un = (const struct sockaddr_un *)(const void *)&a->socket;
        path_bytes = a->bytes - offsetof(struct sockaddr_un, sun_path);
        if (path_bytes == 0)
            return text_format(buf, n, "@"); // an unnamed socket: the client's end
        if (un->sun_path[0] != 0)
            return text_format(buf, n, "%.*s", (int)path_bytes, un->sun_path);
        return text_format(buf, n, "@%.*s", (int)path_bytes - 1, un->sun_path + 1);
    case NET_NONE:
        break;
    }
    return text_format(buf, n, "none");
}

const char *net_address_text(char *buf, size_t n, const net_address *a)
{
    char host[NET_ADDRESS_TEXT_MAX];

    net_address_host(host, sizeof(host), a);
    switch (net_address_family(a)) {
    case NET_IPV4:
        return text_format(buf, n, "tcp://%s:%d", host, net_address_port(a));
    case NET_IPV6:
        return text_format(buf, n, "tcp://[%s]:%d", host, net_address_port(a));
    case NET_UNIX:
        return text_format(buf, n, "unix:%s", host);
    case NET_NONE:
        break;
    }
    return text_format(buf, n, "none");
}

int net_address_port(const net_address *a)
{
    switch (net_address_family(a)) {
    case NET_IPV4:
        return ntohs(as_ipv4(a)->sin_port);
    case NET_IPV6:
        return ntohs(as_ipv6(a)->sin6_port);
    default:
        return 0;
    }
}

void net_address_set_port(net_address *a, int port)
{
    const in_port_t wire_port = htons((uint16_t)port);

    switch (net_address_family(a)) {
    case NET_IPV4:
        ((struct sockaddr_in *)(void *)&a->socket)->sin_port = wire_port;
        break;
    case NET_IPV6:
        ((struct sockaddr_in6 *)(void *)&a->socket)->sin6_port = wire_port;
        break;
    default:
        break;
    }
}

bool net_address_equal(const net_address *a, const net_address *b)
{
    if (net_address_family(a) != net_address_family(b))
        return false;
    switch (net_address_family(a)) {
    case NET_NONE:
        return true;
    case NET_UNIX:
        return a->bytes == b->bytes && memcmp(&a->socket, &b->socket, a->bytes) == 0;
    case NET_IPV4:
        return as_ipv4(a)->sin_port == as_ipv4(b)->sin_port &&
               as_ipv4(a)->sin_addr.s_addr == as_ipv4(b)->sin_addr.s_addr;
    case NET_IPV6:
        return as_ipv6(a)->sin6_port == as_ipv6(b)->sin6_port &&
               as_ipv6(a)->sin6_scope_id == as_ipv6(b)->sin6_scope_id &&
               memcmp(&as_ipv6(a)->sin6_addr, &as_ipv6(b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    }
    return false;
}

bool net_address_is_loopback(const net_address *a)
{
    const struct in6_addr *v6;

    switch (net_address_family(a)) {
    case NET_UNIX:
        return true;
    case NET_IPV4:
        return ntohl(as_ipv4(a)->sin_addr.s_addr) >> 24 == 127;
    case NET_IPV6:
        v6 = &as_ipv6(a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    case NET_NONE:
        break;
    }
    return false;
}

bool net_address_is_any(const net_address *a)
{
    switch (net_address_family(a)) {
    case NET_IPV4:
        return as_ipv4(a)->sin_addr.s_addr == htonl(INADDR_ANY);
    case NET_IPV6:
        return IN6_IS_ADDR_UNSPECIFIED(&as_ipv6(a)->sin6_addr);
    default:
        return false;
    }
}

ls_status net_address_fresh_unix(const char *purpose, net_address *out)
{
    uint8_t nonce[16];
    char digits[2 * sizeof(nonce) + 1];
    char text[NET_ADDRESS_TEXT_MAX];

    LS_TRY(net_crypto_init());
    randombytes_buf(nonce, sizeof(nonce));
    sodium_bin2hex(digits, sizeof(digits), nonce, sizeof(nonce));
    text_format(text, sizeof(text), "unix:@lockstep-%s-%s", purpose, digits);
    return net_address_decode(text, out);
}

static ls_status socket_name(int fd, bool of_peer, net_address *out)
{
    socklen_t bytes = sizeof(out->socket);
    struct sockaddr *name = (struct sockaddr *)(void *)&out->socket;

    memset(out, 0, sizeof(*out));
    if ((of_peer ? getpeername(fd, name, &bytes) : getsockname(fd, name, &bytes)) != 0)
        return ls_fail_errno("the address of a socket's %s end", of_peer ? "remote" : "local");
    out->bytes = bytes;
    return LS_OK;
}

ls_status net_address_of_socket(int fd, net_address *out)
{
    return socket_name(fd, false, out);
}

ls_status net_address_of_peer(int fd, net_address *out)
{
    return socket_name(fd, true, out);
}
