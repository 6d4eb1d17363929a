/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_request.c - what agents elsewhere are to run: for those that this one starts (agent_hosts.c), and for those that come by
 * `lockstep join` and ask.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "launch/hosts/launch_request.h"

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

void agent_fill_request(const agent *a, launch_request *o)
{
    const agent_spec *spec = a->spec;

    o->n_nodes = spec->rendezvous.max_nodes;
    o->n_ranks = 1;
    o->run_hash = spec->rendezvous.run_id;
    o->host = "";
    o->argv = (char **)(uintptr_t)spec->argv;
    while (o->argv[o->n_argv] != NULL)
        o->n_argv++;
    o->grace_ms = spec->grace_ms;
    o->stop_signals = spec->stop_signals;
    o->run_id = or_empty(spec->run_id);
    o->role = or_empty(spec->role);
    o->log_dir = or_empty(spec->log_dir);
    o->filters[0] = or_empty(spec->filters[0]);
    o->filters[1] = or_empty(spec->filters[1]);
    o->line_prefix = or_empty(spec->line_prefix);
    o->master_addr = or_empty(spec->hosts != NULL ? spec->master_addr : NULL);
    o->net = or_empty(spec->net);
    o->ports = spec->ports;
    o->virtual_local_rank = spec->virtual_local_rank;
    o->terminal = a->sinks[1].terminal;
    o->input_terminal = isatty(STDIN_FILENO) != 0;
    o->pty = spec->pty;
    o->hosts_store = spec->hosts_store;
    o->isolate = spec->isolate;
    if (spec->redirect != NULL)
        o->redirect = *spec->redirect;
    if (spec->tee != NULL)
        o->tee = *spec->tee;
    copy_list(&o->shown_local, spec->shown_local);
    copy_list(&o->shown, spec->shown);
}

/* Without the key: who asks has it. */
ls_status agent_write_request(void *arg, wire_writer *w)
{
    const agent *a = arg;
    launch_request o = {0};
    char folder[4096];
    ls_status st;

    if (a->spec->argv == NULL)
        return ls_fail(LS_EUNSUPPORTED, "the ranks of this job are started by its program itself: "
                                        "start that here, too");
    if (getcwd(folder, sizeof(folder)) == NULL)
        return ls_fail_errno("the working folder");
    agent_fill_request(a, &o);
    o.folder = folder;
    st = launch_request_list_env(NULL, 0, true, &o);
    if (st == LS_OK) {
        launch_request_write(w, &o);
        st = wire_writer_status(w);
    }
    ls_free(o.env);
    return st;
}
