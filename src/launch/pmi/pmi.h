/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi.h - the answering side of PMI-1: lines of text by which MPICH and its kin ask their launcher who they are, and tell each other
 * their addresses. Pure, bytes in and bytes out; agent_pmi.c has the sockets.
 *
 * Each node answers its own ranks. What ranks share goes through the head of the job (head_pmi.c): keys that are new travel in front
 * of a barrier, and a barrier is passed when all nodes are in it.
 *
 *     a rank says                        it is told
 *     cmd=put kvsname=J key=k value=v    cmd=put_result rc=0
 *     cmd=barrier_in                     cmd=barrier_out rc=0    once all ranks of the job have said so
 *     cmd=get kvsname=J key=k            cmd=get_result rc=0 value=v
 *
 * Ranks are foreign programs: lines and keys are bounded, and so is the sum of what a rank leaves here.
 */
#ifndef LS_LAUNCH_PMI_H
#define LS_LAUNCH_PMI_H

#include "base/map.h"
#include "base/status.h"
#include "base/text.h"
#include "net/wire.h"

#include <stdbool.h>

#define PMI_NAME_BYTES 32
#define PMI_LAYOUT_BYTES                                                                           \
    900 /* with its end; a longer one does not fit into a line that clients read */
#define PMI_LINE_MOST   4096 /* bytes, with its end; known clients send at most 1024 */
#define PMI_KEY_MOST    255
#define PMI_KEPT_MOST   ((size_t)1024 * 1024) /* bytes of keys, values and what holds them, a rank */
#define PMI_LEARNT_MOST ((size_t)64 * 1024 * 1024) /* ... of all ranks of other nodes */

typedef enum pmi_stage {
    PMI_SILENT, /* has said nothing of PMI, as most programs */
    PMI_JOINED, /* in MPI_Init or behind it */
    PMI_LEFT    /* in MPI_Finalize or behind it */
} pmi_stage;

typedef struct pmi_rank {
    pmi_stage stage;
    bool in_barrier;
    bool is_over; /* is neither heard nor answered any more: it has gone, or `fault` */
    bool has_aborted;
    int abort_code;
    char text[128];    /* what it said to its abort; "": nothing */
    const char *fault; /* why what it sends cannot be PMI; NULL: none */
    int n_spawns;      /* of the request to start processes that it is making, 0: of none */
    int spawn_number;
    size_t kept_bytes;
    text_buf heard; /* lines that are not answered yet */
    text_buf reply; /* what is to be sent to it */
} pmi_rank;

/* The ranks of a job that are on this node. A rank is named by its number among them. */
typedef struct pmi {
    char name[PMI_NAME_BYTES];
    int n_ranks;
    int world_size;
    int n_waiting;     /* in the barrier */
    bool asks;         /* all are in it, and nobody else knows yet */
    unsigned n_passed; /* barriers: each puts a reply to every rank */
    pmi_rank *ranks;
    byte_map keys;
    int n_new; /* keys that other nodes have not been told */
    size_t learnt_bytes;
} pmi;

/* `name` is one word, and no other job's. `layout` is pmi_write_layout()'s; "": which ranks share a node is not told. */
LS_MUST_USE ls_status pmi_create(const char *name, int n_ranks, int world_size, const char *layout,
                                 pmi **out);
void pmi_destroy(pmi *p); /* NULL is allowed */

/*
 * Takes n bytes (at most PMI_LINE_MOST; 0: none) that a rank has sent, and answers its lines up to the first that brings a reply.
 * True: send that, if there is one, and call again with n = 0 before giving it more. Where the bytes are cut makes no difference.
 */
bool pmi_hear(pmi *p, int rank, const char *bytes, size_t n);

/* The first n bytes of ranks[rank].reply have been sent. */
void pmi_sent(pmi *p, int rank, size_t n);

/* The rank is not there any more. What it has put stays. */
void pmi_gone(pmi *p, int rank);

/* --- with the other nodes --- */

/* True once for each barrier that all ranks are in. pmi_tell() comes first, and pmi_pass() when all nodes are in it. */
bool pmi_asks(pmi *p);
void pmi_pass(pmi *p);

/* Writes keys that are new, most bytes or a little more of them; false: there were none. */
bool pmi_tell(pmi *p, wire_writer *w, size_t most);

/* Takes what another node has told; r ends with it. LS_EPROTO, LS_ENOMEM. */
LS_MUST_USE ls_status pmi_learn(pmi *p, wire_reader *r);

/* Which ranks share a node, as MPICH is told: blocks of (first node, nodes, ranks on each). "" when it does not fit. */
void pmi_write_layout(const int *n_local, int n_nodes, char out[PMI_LAYOUT_BYTES]);
bool pmi_is_layout(const char *text); /* or "" */

/* Why others wait in vain for a rank that has ended with code 0 in this stage. */
const char *pmi_vain_text(pmi_stage stage);

#endif
