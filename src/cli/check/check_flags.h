/* SPDX-License-Identifier: Apache-2.0 */
/* check_flags.h - the flags of lockstep check, and its part about several machines. */
#ifndef LS_CLI_CHECK_CHECK_FLAGS_H
#define LS_CLI_CHECK_CHECK_FLAGS_H

#include "diagnose/checks/check.h"

typedef struct check_flags {
    const char *nproc;
    int64_t nnodes;
    int64_t master_port;
    const char *hosts; /* NULL: not given, like the other texts */
    const char *hostfile;
    const char *ssh;
    int64_t ssh_port;
    const char *net;
    const char *port_range;
    int gpu_check;
    int json;
    int quick;
    int problems;
    int settings;
    int help;
} check_flags;

/* *has_hosts: there are other machines to check, by -H, --hostfile or a Slurm allocation. If this
 * machine is the only one, its slots become options->n_ranks. */
LS_MUST_USE ls_status check_hosts_find(const check_flags *f, check_options *options,
                                       bool *has_hosts);

/* Checks the machines of check_hosts_find(). Returns the exit code. */
int check_hosts(const check_flags *f, const check_options *options);

#endif
