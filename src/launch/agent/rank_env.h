/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_env.h - the environment of a rank: the agent's own without the identities of other
 * launchers, and with the rank's identity.
 */
#ifndef LS_LAUNCH_AGENT_RANK_ENV_H
#define LS_LAUNCH_AGENT_RANK_ENV_H

#include "base/status.h"
#include "launch/network/net_choice.h"
#include "launch/spec/job_spec.h"

#include <stdbool.h>

/* One rank of a job, and what it gets from its agent. */
typedef struct rank_place {
    const job_spec *spec; /* the same for all ranks of the job */
    int rank;
    int world_size;
    int local_rank;
    int local_size;
    int node_rank;
    int n_nodes;
    const char *job;     /* 16 hexadecimal digits */
    const char *agent;   /* likewise */
    const char *store;   /* url of the hub */
    const char *members; /* url of the store of members; NULL: the job is not elastic */
    int member;          /* number of this process there */
    bool is_new_member;  /* it is started in the place of another one */
    const char *master_addr;
    int master_port;
    bool agent_store; /* the head hosts PyTorch's store; else rank 0 hosts one */
    unsigned generation;
    int n_restarts; /* TORCHELASTIC_RESTART_COUNT */
    int max_restarts;
    const char *error_file;                    /* TORCHELASTIC_ERROR_FILE; NULL: not set */
    int key_fd;                                /* -1: none */
    int ring_fd;                               /* -1: none */
    bool is_traced;                            /* run --trace */
    int pmi_fd;                                /* a socket for PMI-1; -1: none */
    int listen_fd;                             /* listens for ranks of other nodes; -1: none */
    net_variable variables[NET_VARIABLES_MAX]; /* select the network in all kinds of programs */
    int n_variables;
    int columns; /* of the terminal that shows rank 0's lines; 0: no terminal */
    int threads; /* compute threads of each rank */
    int cores;   /* shared by the ranks of this machine */
} rank_place;

/*
 * Makes a NULL-terminated array of "NAME=value"; freed with rank_env_free(). LOCKSTEP_AGENT_PROCESS
 * names the calling process, which exists as long as the job has ranks on this machine.
 */
LS_MUST_USE ls_status rank_env_make(char *const *inherited, const rank_place *place, char ***out);
void rank_env_free(char **env); /* NULL is allowed */

#endif
