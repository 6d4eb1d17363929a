/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_request.c - turns a launch request of another machine into an agent_spec, for cmd_agent.c
 * and cmd_join.c.
 */
#include "cli/run/remote_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ls_status remote_request_set_env(const launch_request *o)
{
    for (char **entry = o->env; *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');

        if (equals == NULL || equals == *entry)
            return ls_fail(LS_EPROTO, "a variable without a name");
        if (putenv(*entry) != 0) // NOLINT(concurrency-mt-unsafe): the request is never freed
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

agent_spec remote_request_spec(const launch_request *o)
{
    return (agent_spec){.n_ranks = o->n_ranks, .job = &o->job, .capture = true};
}
