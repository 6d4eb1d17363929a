/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spawn.c - ls_spawn(): an agent in the calling process whose ranks run a function instead of a
 * program. Called by users' programs and by `lockstep bench`.
 */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/options.h"
#include "host/process.h"
#include "launch/spec/endpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rendezvous of one ls_spawn() on several nodes. */
typedef struct spawn_nodes {
    agent_nodes nodes;
    net_key key;
    char head[ENDPOINT_BYTES];
} spawn_nodes;

static ls_status check_nodes(const ls_spawn_options *o, int n)
{
    if (o->node < 0 || o->node >= o->nodes)
        return ls_fail(LS_EINVAL, "node %d of %d: 0 to %d", o->node, o->nodes, o->nodes - 1);
    if (o->per_node != NULL && o->per_node[o->node] != n)
        return ls_fail(LS_EINVAL, "%d rank%s here, but per_node has %d for node %d", n,
                       text_plural(n), o->per_node[o->node], o->node);
    return LS_OK;
}

static ls_status find_nodes(const ls_spawn_options *o, spawn_nodes *where, agent_spec *spec)
{
    const char *host = o->master != NULL
                           ? o->master
                           : getenv("MASTER_ADDR"); // NOLINT(concurrency-mt-unsafe): one thread
    const char *port = getenv("MASTER_PORT");       // NOLINT(concurrency-mt-unsafe): one thread
    int64_t number = ENDPOINT_PORT;

    if (host == NULL)
        return ls_fail(LS_EINVAL,
                       "the machine of node 0 is unknown; fix: pass --master HOST[:PORT] "
                       "on every node, or set MASTER_ADDR and MASTER_PORT");
    if (port != NULL)
        LS_TRY(text_parse_int(port, "MASTER_PORT", 1, 65535, &number));
    LS_TRY(endpoint_format(host, (int)number, "the name of node 0", where->head));
    where->nodes = (agent_nodes){
        .is_head = o->node == 0, .head = where->head, .key = &where->key, .id = o->node};
    if (where->nodes.is_head)
        LS_TRY(endpoint_listen_address(where->head, &where->nodes.listen));
    LS_TRY(net_security_setting(&where->nodes.security));
    LS_TRY(endpoint_key(NULL, where->head, &where->key));
    spec->nodes = &where->nodes;
    spec->rendezvous = (rdzv_options){
        .by_id = true, .min_nodes = o->nodes, .max_nodes = o->nodes, .per_node = o->per_node};
    return LS_OK;
}

ls_status ls_spawn(ls_spawn_fn fn, int n, void *arg, const ls_spawn_options *opt)
{
    ls_spawn_options options;
    job_spec job = JOB_SPEC_DEFAULTS;
    agent_spec spec = {.n_ranks = n, .job = &job, .fn = fn, .fn_arg = arg};
    spawn_nodes where = {0};
    agent_result result;
    ls_status st;

    LS_TRY(ls_context(OPTIONS_COPY(ls_spawn_options, opt, &options), "ls_spawn"));
    if (fn == NULL || n < 1)
        return ls_fail(LS_EINVAL, "ls_spawn needs a function and at least one rank, not %d", n);
    if (process_count_threads() > 1)
        return ls_fail(LS_EINVAL,
                       "ls_spawn needs a process with one thread, this one has %d; fix: call it "
                       "before anything starts threads (OpenMP, a device)",
                       process_count_threads());
    job.grace_ms = options.grace_ms > 0 ? ls_duration_ms(options.grace_ms) : 10000;
    if (options.nodes > 1) {
        LS_TRY(check_nodes(&options, n));
        LS_TRY(find_nodes(&options, &where, &spec));
    }
    (void)fflush(NULL); /* or each child would print the buffered output, too */
    st = agent_run(&spec, &result);
    net_key_wipe(&where.key);
    LS_TRY(st);
    if (result.failed) /* the report's first line; the children have printed the rest themselves */
        st = ls_fail(LS_EPEER, "%.*s", (int)strcspn(text_str(&result.report), "\n"),
                     text_str(&result.report));
    else if (result.exit_code != 0)
        st = ls_fail(LS_ECANCELED, "stopped by signal %d (%s)", result.exit_code - 128,
                     process_signal_name(result.exit_code - 128));
    text_free(&result.report);
    return st;
}
