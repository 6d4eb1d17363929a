/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_request.c - turns a launch request of another machine into an agent_spec, for cmd_agent.c
 * and cmd_join.c.
 */
#include "cli/remote_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ls_status remote_request_set_env(const launch_request *o)
{
    for (int i = 0; i < o->n_env; i++) {
        char *equals = strchr(o->env[i], '=');

        if (equals == NULL || equals == o->env[i])
            return ls_fail(LS_EPROTO, "a variable without a name");
        if (putenv(o->env[i]) != 0) // NOLINT(concurrency-mt-unsafe): the request is never freed
            return ls_fail_errno("setting a variable");
    }
    return LS_OK;
}

ls_status remote_request_enter(const launch_request *o)
{
    LS_TRY(remote_request_set_env(o));
    if (chdir(o->folder) != 0)
        return ls_fail_errno("the folder %s, in which the job was started, cannot be entered here",
                             o->folder);
    return LS_OK;
}

static const char *or_null(const char *text)
{
    return text[0] != 0 ? text : NULL;
}

agent_spec remote_request_spec(const launch_request *o)
{
    return (agent_spec){.n_ranks = o->n_ranks,
                        .argv = o->argv,
                        .grace_ms = o->grace_ms,
                        .capture = true,
                        .pty = o->pty,
                        .hosts_store = o->hosts_store,
                        .run_id = or_null(o->run_id),
                        .role = or_null(o->role),
                        .virtual_local_rank = o->virtual_local_rank,
                        .isolate = o->isolate,
                        .binding = o->binding,
                        .stop_signals = o->stop_signals,
                        .redirect = &o->redirect,
                        .tee = &o->tee,
                        .shown_local = &o->shown_local,
                        .shown = &o->shown,
                        .log_dir = or_null(o->log_dir),
                        .filters = {or_null(o->filters[0]), or_null(o->filters[1])},
                        .line_prefix = or_null(o->line_prefix),
                        .master_addr = or_null(o->master_addr),
                        .net = o->net,
                        .ports = o->ports};
}
