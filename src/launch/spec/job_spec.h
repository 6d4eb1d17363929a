/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_spec.h - the settings of a job that are the same on all of its machines. The flags of
 * lockstep run fill it, every agent has it in its agent_spec, and launch_request.c, with a row for
 * each member, passes it on to other machines.
 *
 * launch/spec/: what a job is asked to be, and how that is passed to other nodes. Used by agents,
 * hosts, and the tool (launch_request.h, endpoint.h).
 */
#ifndef LS_LAUNCH_SPEC_JOB_SPEC_H
#define LS_LAUNCH_SPEC_JOB_SPEC_H

#include "launch/isolate/binding.h"
#include "launch/spec/rank_list.h"
#include "net/socket.h"

#include <stdbool.h>

/* Texts may be NULL: not given. An int is a bool that a flag sets. */
typedef struct job_spec {
    char *const *argv;      /* program and arguments; NULL: the ranks run a function */
    int64_t grace_ms;       /* for the ranks when the job is asked to end, before SIGKILL */
    uint64_t stop_signals;  /* bit i: signal i asks the job to end; 0: signal_list_default() */
    const char *run_id;     /* TORCHELASTIC_RUN_ID; NULL: the job's own name */
    const char *role;       /* ROLE_NAME; NULL: "default" */
    binding_kind binding;   /* --numa-binding: cores and memory of each rank */
    int virtual_local_rank; /* LOCAL_RANK=0 for every rank, and one visible device each */
    int pty;                /* captured ranks write to terminals; rank 0 reads from one if our
                             * stdin is */
    bool isolate;           /* the ranks are in a namespace of processes: isolate.h */

    bool hosts_store;        /* the head hosts the store of PyTorch programs, see agent_store.h */
    const char *master_addr; /* MASTER_ADDR without that store; NULL: rank 0's machine */
    const char *net; /* --net, the networks that may be used (net/interface.h); NULL or "": any */
    net_ports ports; /* for listeners that other nodes connect to */

    /* Captured lines. Lists are by local rank, except `shown`. */
    rank_list redirect;    /* written to files, not shown */
    rank_list tee;         /* written to files, and shown */
    rank_list shown_local; /* as JOB_SPEC_DEFAULTS: all */
    rank_list shown;       /* by rank in the job */
    /*
     * By stream, the lines of teed streams that also go to one file (agent_filter.c): a comma list
     * of texts of at most LINE_FILTER_MOST bytes.
     */
    const char *filters[2];
    /* The prefix of each line, where there is one (line_prefix.h); NULL: "rank 1| ". */
    const char *line_prefix;
    const char *log_dir; /* for the files, see log_folder.h; NULL: a new folder in $TMPDIR */
} job_spec;

#define JOB_SPEC_DEFAULTS                                                                          \
    {                                                                                              \
        .shown_local = {.otherwise = RANK_STREAMS_BOTH}, .shown = {                                \
            .otherwise = RANK_STREAMS_BOTH                                                         \
        }                                                                                          \
    }

#endif
