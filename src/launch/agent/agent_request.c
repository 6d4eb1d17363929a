/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_request.c - writes the launch request for agents on other machines, from the spec of this
 * agent. Called for hosts that this agent starts (agent_hosts_place.c), and by the head for
 * machines that run `lockstep join`.
 */
#include "launch/agent/agent_request.h"

#include "base/alloc.h"

#include <unistd.h>

static void copy_list(rank_list *to, const rank_list *from)
{
    static const rank_list both = {.otherwise = RANK_STREAMS_BOTH};

    *to = from != NULL ? *from : both;
}

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

void agent_request_fill(const agent_output *o, launch_request *out)
{
    const agent_spec *spec = o->ctx->spec;

    out->n_nodes = spec->rendezvous.max_nodes;
    out->n_ranks = 1;
    out->run_hash = spec->rendezvous.run_id;
    out->host = "";
    out->argv = (char **)(uintptr_t)spec->argv;
    while (out->argv[out->n_argv] != NULL)
        out->n_argv++;
    out->grace_ms = spec->grace_ms;
    out->stop_signals = spec->stop_signals;
    out->run_id = or_empty(spec->run_id);
    out->role = or_empty(spec->role);
    out->log_dir = or_empty(spec->log_dir);
    out->filters[0] = or_empty(spec->filters[0]);
    out->filters[1] = or_empty(spec->filters[1]);
    out->line_prefix = or_empty(spec->line_prefix);
    out->master_addr = or_empty(spec->hosts != NULL ? spec->master_addr : NULL);
    out->net = or_empty(spec->net);
    out->ports = spec->ports;
    out->virtual_local_rank = spec->virtual_local_rank;
    out->terminal = o->sinks[1].terminal;
    out->input_terminal = isatty(STDIN_FILENO) != 0;
    out->pty = spec->pty;
    out->hosts_store = spec->hosts_store;
    out->isolate = spec->isolate;
    out->binding = spec->binding;
    if (spec->redirect != NULL)
        out->redirect = *spec->redirect;
    if (spec->tee != NULL)
        out->tee = *spec->tee;
    copy_list(&out->shown_local, spec->shown_local);
    copy_list(&out->shown, spec->shown);
}

ls_status agent_request_write(const agent_output *o, wire_writer *w)
{
    launch_request request = {0};
    char folder[4096];
    ls_status st;

    if (o->ctx->spec->argv == NULL)
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
