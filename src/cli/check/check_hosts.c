/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_hosts.c - lockstep check -H: checks several machines. It finds them and starts their agents
 * as lockstep run does.
 */
#include "cli/check/check_flags.h"
#include "cli/cli.h"
#include "cli/run/run_flags.h"
#include "diagnose/hosts/hosts_check.h"

static run_flags hosts; /* borrowed by the check; too large for the stack */

ls_status check_hosts_find(const check_flags *f, check_options *options, bool *has_hosts)
{
    const bool is_given = f->hosts != NULL || f->hostfile != NULL;

    *has_hosts = false;
    if (is_given && f->nnodes == 1)
        return ls_fail(LS_EINVAL, "-H and --nnodes 1 exclude each other");
    if (!is_given && f->nnodes == 1)
        return LS_OK;
    hosts = (run_flags){.nnodes = "1", /* the default */
                        .host_text = f->hosts,
                        .hostfile = f->hostfile,
                        .ssh = f->ssh,
                        .ssh_port = f->ssh_port,
                        .job.net = f->net,
                        .port_range = f->port_range};
    LS_TRY(run_flags_settle_hosts(&hosts));
    *has_hosts = hosts.has_hosts;
    if (is_given && !hosts.has_hosts && options->n_ranks == 0)
        options->n_ranks = hosts.n_ranks;
    if (!is_given && !hosts.has_hosts &&
        (f->net != NULL || f->port_range != NULL || f->ssh != NULL))
        return ls_fail(LS_EINVAL, "--net, --port-range and --ssh need other machines: -H");
    for (int i = 0; i < hosts.host_list.n && options->n_ranks > 0; i++)
        hosts.host_list.hosts[i].slots = options->n_ranks;
    return LS_OK;
}

static void note(void *self, const char *line)
{
    LS_UNUSED(self);
    print_error("lockstep: %s\n", line);
}

static ls_status print_hosts_check(const check_flags *f, const hosts_check *s)
{
    text_buf text = {0};
    ls_status st;

    if (f->json)
        hosts_check_to_json(s, &text);
    else
        hosts_check_to_text(s, f->problems ? FINDING_NOTE : FINDING_OK, &text);
    st = text_status(&text);
    if (st == LS_OK)
        print_out(f->json ? "%s\n" : "%s", text_str(&text));
    text_free(&text);
    return st;
}

int check_hosts(const check_flags *f, const check_options *options)
{
    const hosts_check_options asked = {.hosts = &hosts.hosts,
                                       .key = &hosts.key,
                                       .net = hosts.job.net,
                                       .ports = hosts.job.ports,
                                       .checks = *options,
                                       .is_quick = f->quick != 0,
                                       .note = note};
    hosts_check found;
    int code;
    ls_status st = hosts_check_run(&asked, &found);

    if (st != LS_OK)
        return print_failure("check", st);
    st = hosts_check_judge(&found);
    if (st == LS_OK)
        st = print_hosts_check(f, &found);
    code = st != LS_OK ? print_failure("check", st) : hosts_check_worst(&found) == FINDING_ERROR;
    hosts_check_free(&found);
    return code;
}
