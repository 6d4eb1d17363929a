/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi.h - the server side of PMI-1: lines of text in which MPICH and related MPI libraries ask
 * their launcher for rank and size, and exchange their addresses. Pure, bytes in and bytes out; the
 * sockets are in agent/agent_pmi.c.
 *
 * Each node answers its own ranks. What ranks share goes through the head of the job (head_pmi.c):
 * new keys are sent before a barrier, and a barrier is released when all nodes are in it.
 *
 *     request of a rank                  reply
 *     cmd=put kvsname=J key=k value=v    cmd=put_result rc=0
 *     cmd=barrier_in                     cmd=barrier_out rc=0    when all ranks are in it
 *     cmd=get kvsname=J key=k            cmd=get_result rc=0 value=v
 *
 * Ranks are foreign programs: lines, keys, and the memory that a rank takes here are bounded.
 *
 * launch/pmi/: PMI-1 for MPI programs, called by agents and the head.
 */
#ifndef LS_LAUNCH_PMI_PMI_H
#define LS_LAUNCH_PMI_PMI_H

#include "base/map.h"
#include "base/status.h"
#include "base/text.h"
#include "net/wire.h"

#include <stdbool.h>

#define PMI_NAME_BYTES   32
#define PMI_LAYOUT_BYTES 900  /* with its end; clients cannot read a longer line */
#define PMI_LINE_MOST    4096 /* bytes, with its end; known clients send at most 1024 */
#define PMI_KEY_MOST     255
#define PMI_RANK_MOST    ((size_t)1024 * 1024)      /* bytes of keys and values of one rank */
#define PMI_REMOTE_MOST  ((size_t)64 * 1024 * 1024) /* ... of all ranks of other nodes */

typedef enum pmi_state {
    PMI_SILENT, /* has sent nothing, as most programs */
    PMI_JOINED, /* in MPI_Init or behind it */
    PMI_LEFT    /* in MPI_Finalize or behind it */
} pmi_state;

typedef struct pmi_rank {
    pmi_state state;
    bool in_barrier;
    bool is_over; /* is neither read nor answered any more: it has left, or `fault` */
    bool has_aborted;
    int abort_code;
    char text[128];    /* the message of its abort; "": none */
    const char *fault; /* why what it sends is not PMI; NULL: no fault */
    int n_spawns;      /* programs in the spawn request that it is sending, 0: none */
    int spawn_number;
    size_t key_bytes;
    text_buf request; /* lines not answered yet */
    text_buf reply;   /* bytes to be sent to it */
} pmi_rank;

/* The ranks of a job on this node. A rank is named by its number among them. */
typedef struct pmi {
    char name[PMI_NAME_BYTES];
    int n_ranks;
    int world_size;
    int n_waiting;         /* in the barrier */
    bool has_full_barrier; /* all are in it, and the head does not know yet */
    unsigned n_passed;     /* released barriers */
    pmi_rank *ranks;
    byte_map keys;
    int n_new; /* keys that other nodes do not have */
    size_t remote_bytes;
} pmi;

/*
 * `name` is one word and unique to the job. `layout` is the text of pmi_write_layout(); "": clients
 * do not learn which ranks share a node.
 */
LS_MUST_USE ls_status pmi_create(const char *name, int n_ranks, int world_size, const char *layout,
                                 pmi **out);
void pmi_destroy(pmi *p); /* NULL is allowed */

/*
 * Takes n bytes (at most PMI_LINE_MOST; 0: none) of a rank and answers its lines up to the first
 * that has a reply. True: send that reply and call again with n = 0 before passing more bytes.
 * Lines may be cut anywhere.
 */
bool pmi_receive(pmi *p, int rank, const char *bytes, size_t n);

/* The first n bytes of ranks[rank].reply have been sent. */
void pmi_sent(pmi *p, int rank, size_t n);

/* The rank has closed its socket. Its keys stay. */
void pmi_end_rank(pmi *p, int rank);

/* --- with the other nodes --- */

/*
 * True once for each barrier that all ranks of this node are in. The caller then sends the new
 * keys, and calls pmi_release_barrier() when all nodes are in the barrier.
 */
bool pmi_take_full_barrier(pmi *p);
void pmi_release_barrier(pmi *p);

/* Writes new keys, `most` bytes or a little more; false: there were none. */
bool pmi_write_new_keys(pmi *p, wire_writer *w, size_t most);

/* Reads the keys of another node up to the end of r. LS_EPROTO, LS_ENOMEM. */
LS_MUST_USE ls_status pmi_read_keys(pmi *p, wire_reader *r);

/*
 * Which ranks share a node, in MPICH's form: blocks of (first node, nodes, ranks on each). "" when
 * it does not fit.
 */
void pmi_write_layout(const int *n_local, int n_nodes, char out[PMI_LAYOUT_BYTES]);
bool pmi_is_layout(const char *text); /* or "" */

/* The failure of a rank that exited with code 0 in this state while other ranks wait for it. */
const char *pmi_early_exit_text(pmi_state state);

#endif
