/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi.h - the answering side of PMI-1: lines of text by which MPICH and its kin ask their launcher who they are, and tell each other
 * their addresses. Pure, bytes in and bytes out; agent_pmi.c has the sockets.
 *
 *     a rank says                        it is told
 *     cmd=put kvsname=J key=k value=v    cmd=put_result rc=0
 *     cmd=barrier_in                     cmd=barrier_out rc=0    once all ranks have said so
 *     cmd=get kvsname=J key=k            cmd=get_result rc=0 value=v
 *
 * Ranks are foreign programs: lines and keys are bounded, and so is the sum of what a rank leaves here.
 */
#ifndef LS_LAUNCH_PMI_H
#define LS_LAUNCH_PMI_H

#include "base/map.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

#define PMI_NAME_BYTES 32
#define PMI_LINE_MOST  4096 /* bytes, with its end; known clients send at most 1024 */
#define PMI_KEY_MOST   255
#define PMI_KEPT_MOST  ((size_t)1024 * 1024) /* bytes of keys, values and what holds them, a rank */

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

/* The ranks of one job. */
typedef struct pmi {
    char name[PMI_NAME_BYTES];
    int n_ranks;
    int n_waiting;     /* in the barrier */
    unsigned n_passed; /* barriers: each puts a reply to every rank */
    pmi_rank *ranks;
    byte_map keys;
} pmi;

/* `name` is one word, and no other job's. All ranks are on this node. */
LS_MUST_USE ls_status pmi_create(const char *name, int n_ranks, pmi **out);
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

#endif
