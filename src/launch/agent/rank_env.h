/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_env.h - the environment a rank is started with: the agent's own, less inherited identities, plus who it is.
 */
#ifndef LS_LAUNCH_RANK_ENV_H
#define LS_LAUNCH_RANK_ENV_H

#include "base/status.h"
#include "launch/network/net_choice.h"

#include <stdbool.h>

/* The place of one rank in its job. */
typedef struct rank_place {
    int rank;
    int world_size;
    int local_rank;
    int local_size;
    int node_rank;
    int n_nodes;
    const char *job;   /* 16 hexadecimal digits */
    const char *agent; /* likewise */
    const char *store; /* url of the hub */
    const char *master_addr;
    int master_port;
    bool agent_store;   /* the agent's store is there; otherwise rank 0 hosts one */
    const char *run_id; /* for TORCHELASTIC_RUN_ID */
    const char *role;
    unsigned generation;
    int n_restarts; /* TORCHELASTIC_RESTART_COUNT */
    int max_restarts;
    const char *error_file;  /* TORCHELASTIC_ERROR_FILE; NULL: none of its own */
    bool virtual_local_rank; /* torchrun's LOCAL_RANK is 0, and one device is visible */
    int key_fd;              /* -1: none */
    int ring_fd;             /* -1: none */
    int pmi_fd;              /* of a socket that answers PMI-1; -1: none */
    int listen_fd;           /* where other nodes' ranks come to; -1: none */
    net_variable variables[NET_VARIABLES_MAX]; /* the chosen network, for all kinds of programs */
    int n_variables;
    int columns;      /* for lines of rank 0, of the terminal behind its pipe; 0: there is none */
    bool is_isolated; /* process_set_shown_pid() sets its process numbers later */
    int threads;      /* compute threads a rank, from the cores it may use */
    int cores;        /* that the ranks of this machine share */
} rank_place;

/* A NULL-terminated array of "NAME=value"; freed with rank_env_free(). LOCKSTEP_AGENT_PROCESS becomes the calling process: the one that watches
 * over the rank on this machine for as long as the job lives. */
LS_MUST_USE ls_status rank_env_make(char *const *inherited, const rank_place *place, char ***out);
void rank_env_free(char **env); /* NULL is allowed */

#endif
