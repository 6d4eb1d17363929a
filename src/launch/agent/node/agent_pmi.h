/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pmi.h - the PMI-1 sockets of the ranks (pmi.h answers), and what the MPI state of a rank
 * means for the job. Keys and barriers are exchanged with other nodes through the head.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_PMI_H
#define LS_LAUNCH_AGENT_NODE_AGENT_PMI_H

#include "launch/agent/node/agent_context.h"
#include "launch/pmi/pmi.h"

struct agent_pmi;

typedef struct rank_pmi {
    struct agent_pmi *owner;
    int local_rank;
    int fd; /* -1: closed, or not offered */
    poll_watch *watch;
    bool has_exited;
} rank_pmi;

typedef struct agent_pmi {
    const agent_context *ctx;
    pmi *server;     /* NULL: no ranks, or they run a function */
    node_mpi sent;   /* the state that the head knows */
    rank_pmi *ranks; /* spec->n_ranks */
} agent_pmi;

LS_MUST_USE ls_status agent_pmi_open(agent_pmi *p, const agent_context *ctx);
void agent_pmi_close(agent_pmi *p);

/* Serves PMI to the ranks of a generation, if they are programs. */
LS_MUST_USE ls_status agent_pmi_begin(agent_pmi *p);
void agent_pmi_end(agent_pmi *p);

/* Offers PMI to a rank; *child_end is the rank's, and stays as it is where PMI is not served. */
LS_MUST_USE ls_status agent_pmi_open_rank(agent_pmi *p, int local_rank, int *child_end);
/* The rank has exited: reads what it has sent before, which may be an abort, and closes. */
void agent_pmi_end_rank(agent_pmi *p, int local_rank);
pmi_state agent_pmi_state(const agent_pmi *p, int local_rank);

/* Reports to the head what the ranks do in MPI, if that has changed. */
void agent_pmi_report(agent_pmi *p);

/* Messages of the head. */
LS_MUST_USE ls_status agent_pmi_take_keys(agent_pmi *p, const frame *f);
LS_MUST_USE ls_status agent_pmi_take_barrier(agent_pmi *p, const frame *f);

/* Warns that Open MPI programs do not find their ranks under this launcher. */
void agent_pmi_note_open_mpi(const agent_context *ctx);

#endif
