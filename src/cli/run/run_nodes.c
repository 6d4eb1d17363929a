/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_nodes.c - settings of jobs whose command is run on each machine: number of machines, node
 * rank, rendezvous address and key. Called by run_flags.c.
 */
#include "cli/run/run_flags.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/rng.h"
#include "base/text.h"
#include "net/reach.h"
#include "net/socket.h"

#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MOST_S = 86400 * 30 };

/* --- how many --- */

static ls_status read_nnodes(run_flags *f)
{
    rdzv_options *r = &f->rendezvous;
    const char *colon = strchr(f->nnodes, ':');
    char low[16];
    int64_t min;
    int64_t max;

    text_format(low, sizeof(low), "%.*s",
                (int)(colon != NULL ? colon - f->nnodes : (ptrdiff_t)strlen(f->nnodes)), f->nnodes);
    LS_TRY(text_parse_int(low, "--nnodes (N or MIN:MAX)", 1, RDZV_NODES_MAX, &min));
    max = min;
    if (colon != NULL)
        LS_TRY(text_parse_int(colon + 1, "--nnodes (N or MIN:MAX)", min, RDZV_NODES_MAX, &max));
    r->min_nodes = (int)min;
    r->max_nodes = (int)max;
    return LS_OK;
}

/* --- --rdzv-conf --- */

/* Keys of torchrun's stores, which have no effect here. */
static bool is_known(const char *key)
{
    static const char *const known[] = {
        "close_timeout",       "timeout",           "read_timeout",          "store_type", "rank",
        "keep_alive_interval", "heartbeat_timeout", "keep_alive_max_attempt"};

    for (size_t i = 0; i < LS_COUNT_OF(known); i++)
        if (text_equal(key, known[i]))
            return true;
    return false;
}

static ls_status read_seconds(const char *value, const char *key, int64_t *ms)
{
    double seconds;

    LS_TRY(text_parse_double(value, key, 0, TIMEOUT_MOST_S, &seconds));
    *ms = ls_duration_of_s(seconds);
    return LS_OK;
}

/* Cuts off blanks at both ends, and quotes, which arrive where no shell has read the command. */
static char *trim(char *s)
{
    static const char cut[] = " \t\"'";
    size_t n;

    s += strspn(s, cut);
    for (n = strlen(s); n > 0 && strchr(cut, s[n - 1]) != NULL; n--)
        s[n - 1] = 0;
    return s;
}

static ls_status read_setting(run_flags *f, char *setting, int *is_host)
{
    char *equals = strchr(setting, '=');
    const char *value;
    bool yes;

    if (equals == NULL)
        return ls_fail(LS_EINVAL, "--rdzv-conf: \"%s\" is not key=value", setting);
    *equals = 0;
    setting = trim(setting);
    value = trim(equals + 1);
    if (text_equal(setting, "join_timeout"))
        return read_seconds(value, "--rdzv-conf join_timeout", &f->rendezvous.join_ms);
    if (text_equal(setting, "last_call_timeout")) {
        LS_TRY(read_seconds(value, "--rdzv-conf last_call_timeout", &f->rendezvous.last_call_ms));
        if (f->rendezvous.last_call_ms == 0)
            f->rendezvous.last_call_ms = -1; /* not at all */
        return LS_OK;
    }
    if (text_equal(setting, "is_host")) {
        LS_TRY(text_parse_bool(value, "--rdzv-conf is_host", &yes));
        *is_host = yes;
        return LS_OK;
    }
    if (is_known(setting))
        return LS_OK;
    return ls_fail(
        LS_EINVAL,
        "--rdzv-conf: unknown key \"%s\"; known are join_timeout, last_call_timeout, is_host",
        setting);
}

static ls_status read_conf(run_flags *f, int *is_host)
{
    const char *at = f->conf;
    char setting[128];

    while (at != NULL && *at != 0) {
        const size_t n = strcspn(at, ",");

        if (n >= sizeof(setting))
            return ls_fail(LS_EINVAL, "--rdzv-conf: a setting of %zu characters is too long", n);
        text_format(setting, sizeof(setting), "%.*s", (int)n, at);
        if (*trim(setting) != 0)
            LS_TRY(read_setting(f, trim(setting), is_host));
        at += n + (at[n] == ',');
    }
    return LS_OK;
}

/* --- where --- */

static ls_status find_endpoint(run_flags *f, bool by_id)
{
    const int usual = by_id ? ENDPOINT_PORT : ENDPOINT_PORT_C10D;
    const char *host = f->endpoint;
    const int port = f->master_port != 0 ? (int)f->master_port : usual;

    if (host == NULL || *host == 0)
        host = f->job.master_addr != NULL ? f->job.master_addr : "127.0.0.1";
    if (!by_id && f->endpoint == NULL && f->job.master_addr == NULL)
        return ls_fail(LS_EINVAL, "--rdzv-backend c10d needs the rendezvous address: "
                                  "--rdzv-endpoint HOST[:PORT]");
    LS_TRY(endpoint_format(host, port, "--rdzv-endpoint", f->head));
    f->nodes.head = f->head;
    return LS_OK;
}

/* A wrong value is an error on one machine too, where no port is needed. */
ls_status run_flags_settle_ports(run_flags *f)
{
    const char *dash = f->port_range != NULL ? strchr(f->port_range, '-') : NULL;
    char first[16];
    int64_t a;
    int64_t b;

    if (f->port_range == NULL)
        return LS_OK;
    text_format(first, sizeof(first), "%.*s", (int)strcspn(f->port_range, "-"), f->port_range);
    if (dash == NULL || text_parse_int(first, "A", 1, 65535, &a) != LS_OK ||
        text_parse_int(dash + 1, "B", a, 65535, &b) != LS_OK)
        return ls_fail(LS_EINVAL,
                       "--port-range %s: must be A-B, two ports from 1 to 65535, A not above B",
                       f->port_range);
    f->job.ports = (net_ports){(int)a, (int)b};
    return LS_OK;
}

ls_status run_flags_settle_networks(run_flags *f)
{
    if (f->job.net == NULL)
        LS_TRY(config_text(CONFIG_IFACE, &f->job.net));
    return net_security_setting(&f->nodes.security);
}

/* --- which --- */

static ls_status choose_head(run_flags *f, bool by_id, int is_host)
{
    net_address at;

    if (by_id) {
        f->nodes.id = (int)f->node_rank;
        if (f->nodes.id >= f->rendezvous.max_nodes)
            return ls_fail(LS_EINVAL, "--node-rank %d with --nnodes %d: must be 0 to %d",
                           f->nodes.id, f->rendezvous.max_nodes, f->rendezvous.max_nodes - 1);
        f->nodes.is_head = f->nodes.id == 0;
    } else {
        f->nodes.id = -1;
        f->nodes.is_head =
            is_host > 0 ||
            (is_host < 0 && net_address_parse(f->head, NET_PORT_REQUIRED, &at) == LS_OK &&
             net_reach_is_local(&at));
        f->nodes.may_join = f->nodes.is_head && is_host < 0;
    }
    return f->nodes.is_head ? endpoint_listen_address(f->head, &f->nodes.listen) : LS_OK;
}

/* Port 0 is a free one, found here: other machines and the key of the meeting need its number. */
static ls_status choose_port(run_flags *f)
{
    char *port = strrchr(f->head, ':') + 1;
    const size_t n = sizeof(f->head) - (size_t)(port - f->head);
    net_address bound;
    int fd;

    if (!text_equal(port, "0"))
        return LS_OK;
    if (!f->nodes.is_head)
        return ls_fail(LS_EINVAL,
                       "--rdzv-endpoint %s: give the port at which the head of the job listens",
                       f->head);
    LS_TRY(net_listen(&f->nodes.listen, NET_STREAM, 1, &fd, &bound));
    close(fd);
    net_address_set_port(&f->nodes.listen, net_address_port(&bound));
    text_format(port, n, "%d", net_address_port(&bound));
    return LS_OK;
}

ls_status run_flags_settle_nodes(run_flags *f)
{
    const bool by_id = text_equal(f->backend, "static") || *f->backend == 0;
    const char *run_id = f->job.run_id != NULL ? f->job.run_id : "none";
    int is_host = -1;

    if (!by_id && !text_equal(f->backend, "c10d"))
        return ls_fail(LS_EUNSUPPORTED,
                       "--rdzv-backend %s: must be static or c10d (etcd is not needed)",
                       f->backend);
    f->rendezvous.max_restarts = (int)f->max_restarts;
    LS_TRY(read_nnodes(f));
    LS_TRY(read_conf(f, &is_host));
    if (f->standalone)
        f->rendezvous.min_nodes = f->rendezvous.max_nodes = 1;
    f->has_nodes = f->rendezvous.max_nodes > 1;
    if (!f->has_nodes) {
        if (f->node_rank != 0)
            return ls_fail(LS_EINVAL,
                           "--node-rank %lld, but there is one machine, with node rank 0",
                           (long long)f->node_rank);
        return LS_OK;
    }
    if (by_id && f->rendezvous.min_nodes != f->rendezvous.max_nodes)
        return ls_fail(LS_EINVAL, "--nnodes %s needs --rdzv-backend c10d", f->nnodes);
    f->rendezvous.by_id = by_id;
    f->rendezvous.max_spares = f->rendezvous.max_nodes;
    f->rendezvous.run_name = run_id;
    f->rendezvous.run_id = ls_hash_bytes(run_id, strlen(run_id), 0);
    LS_TRY(run_flags_settle_networks(f));
    LS_TRY(find_endpoint(f, by_id));
    LS_TRY(choose_head(f, by_id, is_host));
    LS_TRY(choose_port(f));
    if (f->insecure)
        return LS_OK;
    f->nodes.key = &f->key;
    return endpoint_key(f->key_file, f->head, &f->key);
}
