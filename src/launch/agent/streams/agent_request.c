/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_request.c - writes the launch request for agents on other machines, from the spec of this
 * agent. Called for hosts that this agent starts (agent_hosts_place.c), and by the head for
 * machines that run `lockstep join`.
 */
#include "launch/agent/streams/agent_request.h"

#include "base/alloc.h"

#include <unistd.h>

void agent_request_fill(const agent_output *o, launch_request *out)
{
    const agent_spec *spec = o->ctx->spec;

    out->n_nodes = spec->rendezvous.max_nodes;
    out->n_ranks = 1;
    out->run_hash = spec->rendezvous.run_id;
    out->job = *spec->job;
    if (spec->hosts == NULL)
        out->job.master_addr = NULL;
    out->terminal = o->sinks[1].terminal;
    out->input_terminal = isatty(STDIN_FILENO) != 0;
}

ls_status agent_request_write(const agent_output *o, wire_writer *w)
{
    launch_request request = {0};
    char folder[4096];
    ls_status st;

    if (o->ctx->spec->job->argv == NULL)
        return ls_fail(LS_EUNSUPPORTED, "the ranks of this job are started by its program itself: "
                                        "start that program on this machine, too");
    if (getcwd(folder, sizeof(folder)) == NULL)
        return ls_fail_errno("the working folder");
    agent_request_fill(o, &request);
    request.folder = folder;
    st = launch_request_list_env(NULL, 0, true, &request);
    if (st == LS_OK) {
        launch_request_write(w, &request);
        st = wire_writer_status(w);
    }
    ls_free(request.env);
    return st;
}
