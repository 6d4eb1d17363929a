/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_name.c - resolves the machine's host name and reports results that gloo and Open MPI cannot
 * use. A subject of check_quick().
 */
#include "diagnose/checks/check_internal.h"

#include "base/clock.h"
#include "base/text.h"

#include <string.h>

enum {
    ADDRESSES_MAX = 16,
    SLOW_MS = 1000,
    FULL_LIMIT_MS = 10000,
    QUICK_LIMIT_MS = 300 /* the start of a job does not wait for a name server */
};

static const net_interface *owner_of(const check *c, const net_address *a)
{
    for (int i = 0; i < c->n_ifaces; i++)
        if (net_address_equal(&c->ifaces[i].address, a))
            return &c->ifaces[i];
    return NULL;
}

/* A command that makes programs use this machine's best address. */
static const char *describe_fix(const check *c, char *buf, size_t n)
{
    char host[NET_ADDRESS_TEXT_MAX];

    if (c->n_ifaces == 0)
        return text_format(buf, n, "ip address show");
    return text_format(buf, n, "export GLOO_SOCKET_IFNAME=%s   # or in /etc/hosts: %s %s",
                       c->ifaces[0].name,
                       net_address_host(host, sizeof(host), &c->ifaces[0].address), c->host);
}

static void judge(check *c, const net_address *found, int n)
{
    const net_interface *iface = owner_of(c, &found[0]);
    char list[512] = "";
    char host[NET_ADDRESS_TEXT_MAX];
    char fix[512];
    size_t used = 0;

    for (int i = 0; i < n && used < sizeof(list); i++) {
        text_format(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                    net_address_host(host, sizeof(host), &found[i]));
        used = strlen(list);
    }
    describe_fix(c, fix, sizeof(fix));
    if (net_address_is_loopback(&found[0]))
        finding_add(c->out, FINDING_NAME_LOOPBACK_KIND, check_between_nodes(c), fix,
                    "host name %s resolves to loopback (%s)", c->host, list);
    else if (iface == NULL)
        finding_add(c->out, FINDING_NAME_FOREIGN_KIND, check_between_nodes(c), fix,
                    "host name %s resolves to %s, which is not an address of this machine", c->host,
                    list);
    else if (n > 1)
        finding_add(c->out, FINDING_NAME_SEVERAL_KIND, FINDING_NOTE, fix,
                    "host name %s resolves to several addresses: %s", c->host, list);
    else
        finding_add(c->out, FINDING_NAME_OK_KIND, FINDING_OK, NULL,
                    "host name %s resolves to %s (%s)", c->host, list, iface->name);
}

void check_name(check *c)
{
    const int64_t since_ms = ls_now_ms();
    net_address found[ADDRESSES_MAX];
    char fix[512];
    char own[300];
    int64_t took_ms;
    int n = 0;
    ls_status st;

    if (c->host[0] == '\0' || text_equal(c->host, "(none)") || text_starts(c->host, "localhost"))
        finding_add(c->out, FINDING_NAME_LOCAL_KIND, check_between_nodes(c),
                    "hostnamectl set-hostname NAME",
                    c->host[0] == '\0' ? "the machine has no host name"
                                       : "the machine's host name is %s",
                    c->host);
    text_format(own, sizeof(own), "getent hosts %s", c->host);
    st = c->from->resolve(c->from->self, c->host, c->is_full ? FULL_LIMIT_MS : QUICK_LIMIT_MS,
                          found, ADDRESSES_MAX, &n);
    took_ms = ls_now_ms() - since_ms;
    if (st == LS_ETIMEOUT || took_ms > SLOW_MS)
        finding_add(c->out, FINDING_NAME_SLOW_KIND, FINDING_WARNING, own,
                    "resolving host name %s %s %.1f s", c->host,
                    st == LS_ETIMEOUT ? "timed out after" : "takes", (double)took_ms / 1e3);
    if (st == LS_OK && n > 0)
        judge(c, found, n);
    else if (st != LS_ETIMEOUT)
        finding_add(c->out, FINDING_NAME_UNKNOWN_KIND, check_between_nodes(c),
                    describe_fix(c, fix, sizeof(fix)), "host name %s does not resolve", c->host);
}
