/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_ifname.c - checks variables that select network interfaces against the interfaces that
 * exist. Each library has its own syntax: LOCKSTEP_IFACE that of --net, Gloo a comma list of names,
 * NCCL a comma list of name prefixes, where a leading "^" excludes and "=" means whole names. A
 * subject of check_quick(), which lockstep run calls too.
 */
#include "diagnose/checks/check_internal.h"

#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct name_list {
    char names[CHECK_INTERFACES_MAX][NET_INTERFACE_NAME_MAX];
    int n;
} name_list;

static void check_filter(check *c)
{
    const char *filter = c->from->variable(c->from->self, "LOCKSTEP_IFACE");
    char have[512] = "";
    net_interface one;
    size_t used = 0;
    int n = 0;
    ls_status st;

    if (filter == NULL || filter[0] == 0)
        return;
    st = c->from->interfaces(c->from->self, filter, &one, 1, &n);
    if (st == LS_OK && n > 0)
        return;
    for (int i = 0; i < c->n_ifaces && used < sizeof(have); i++) {
        text_format(have + used, sizeof(have) - used, "%s%s", i > 0 ? ", " : "", c->ifaces[i].name);
        used = strlen(have);
    }
    finding_add(c->out, FINDING_NET_FILTER_KIND, FINDING_ERROR, "unset LOCKSTEP_IFACE",
                "LOCKSTEP_IFACE=%s %s (interfaces: %s)", filter,
                st == LS_OK ? "matches no interface" : "is malformed",
                have[0] != 0 ? have : "only loopback");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* All interfaces of the machine, including loopback and those without an address. */
static void list_names(const check *c, name_list *out)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *folder = opendir(check_path(c, path, sizeof(path), "/sys/class/net"));

    out->n = 0;
    if (folder == NULL)
        return;
    while (out->n < CHECK_INTERFACES_MAX && (entry = file_next_entry(folder)) != NULL)
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < NET_INTERFACE_NAME_MAX)
            text_format(out->names[out->n++], NET_INTERFACE_NAME_MAX, "%s", entry->d_name);
    closedir(folder);
    qsort(out->names, (size_t)out->n, sizeof(out->names[0]), by_name);
}

static void add_finding(const check *c, const name_list *have, const char *variable,
                        const char *what)
{
    char list[512] = "";
    char fix[128];

    for (int i = 0; i < have->n; i++)
        text_format(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i > 0 ? ", " : "",
                    have->names[i]);
    if (c->n_ifaces > 0)
        text_format(fix, sizeof(fix), "export %s=%s", variable, c->ifaces[0].name);
    else
        text_format(fix, sizeof(fix), "unset %s", variable);
    finding_add(c->out, FINDING_NET_VARIABLE_KIND, FINDING_ERROR, fix, "%s=%s: %s (interfaces: %s)",
                variable, c->from->variable(c->from->self, variable), what, list);
}

/* Takes one entry of a comma list and moves *at behind it; false at the end. */
static bool next_entry(const char **at, const char **entry, size_t *n)
{
    if (*at == NULL)
        return false;
    *entry = *at;
    *n = strcspn(*at, ",");
    *at = (*at)[*n] == ',' ? *at + *n + 1 : NULL;
    return true;
}

static bool has_name(const name_list *have, const char *entry, size_t n)
{
    for (int i = 0; i < have->n; i++)
        if (strncmp(have->names[i], entry, n) == 0 && have->names[i][n] == 0)
            return true;
    return false;
}

/* Gloo needs every name of the list. */
static void check_gloo(const check *c, const name_list *have)
{
    const char *at = c->from->variable(c->from->self, "GLOO_SOCKET_IFNAME");
    const char *entry;
    char what[128];
    size_t n;

    if (at == NULL || at[0] == 0)
        return;
    while (next_entry(&at, &entry, &n))
        if (!has_name(have, entry, n)) {
            text_format(what, sizeof(what), "no interface is named \"%.*s\"",
                        (int)(n < 64 ? n : 64), entry);
            add_finding(c, have, "GLOO_SOCKET_IFNAME", what);
            return;
        }
}

/* Whether an NCCL list names this interface. A ":PORT" behind a name is ignored. */
static bool nccl_matches(const char *list, bool is_exact, const char *name)
{
    const char *entry;
    size_t n;

    while (next_entry(&list, &entry, &n)) {
        const char *colon = memchr(entry, ':', n);
        const size_t length = colon != NULL ? (size_t)(colon - entry) : n;

        if (length > 0 && strncmp(name, entry, length) == 0 && (!is_exact || name[length] == 0))
            return true;
    }
    return false;
}

/*
 * NCCL fails only when no interface is left; it ignores an entry that matches none beside others.
 */
static void check_nccl(const check *c, const name_list *have)
{
    const char *list = c->from->variable(c->from->self, "NCCL_SOCKET_IFNAME");
    bool excludes;
    bool is_exact;

    if (list == NULL || list[0] == 0)
        return;
    excludes = list[0] == '^';
    list += excludes;
    is_exact = list[0] == '=';
    list += is_exact;
    for (int i = 0; i < have->n; i++)
        if (nccl_matches(list, is_exact, have->names[i]) != excludes)
            return;
    add_finding(c, have, "NCCL_SOCKET_IFNAME",
                excludes   ? "the list excludes all interfaces"
                : is_exact ? "no interface has one of these names"
                           : "no interface name begins with one of these prefixes");
}

void check_network_variables(check *c)
{
    name_list have;

    check_filter(c);
    list_names(c, &have);
    check_gloo(c, &have);
    check_nccl(c, &have);
}
