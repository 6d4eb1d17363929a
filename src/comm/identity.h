/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.h - which rank this process is, of how many, and where its job meets: from options and
 * the environment alone.
 *
 * The families are tried in this order, the first complete one counts: options, LOCKSTEP_*,
 * torchrun (complete with LOCAL_RANK), Open MPI, PMIx, PMI, Slurm inside a step of more than one
 * task, bare RANK + WORLD_SIZE + MASTER_*. With none of them the job is this one process. Where
 * LOCKSTEP_* says rank 0 of 1, a later family that says more ranks counts: it is of a launcher
 * inside, as in `lockstep run mpirun -np 4 PROG`. Then LOCKSTEP_*, MASTER_* and the descriptors are
 * those of the outer job and do not count.
 */
#ifndef LS_COMM_IDENTITY_H
#define LS_COMM_IDENTITY_H

#include "comm/comm.h"
#include "store/cause.h"

#define IDENTITY_PLACE_BYTES 1024
#define IDENTITY_SIZE_MAX    65536

/* Where the hub is. */
typedef enum hub_location {
    HUB_AT_NONE = 0, /* a job of one rank has none */
    HUB_AT_URL,      /* the starter serves it at `place` */
    HUB_AT_MASTER,   /* rank 0 serves it at `place`, HOST:PORT, over TCP */
    /* rank 0 serves it on a unix socket whose name derives from `place` (all ranks on one host) */
    HUB_AT_UNIX_NAME,
    HUB_AT_FILE, /* rank 0 serves it anywhere and tells where in the store `place` (file://...) */
    HUB_AT_PMI,  /* ... in the key-value space of PMI-1 */
    HUB_AT_PMIX, /* ... in that of PMIx; `place` is what to do where there is no library for it */
    HUB_AT_STORE /* ... in the store that the options give */
} hub_location;

typedef struct identity {
    const char *family; /* "options", "LOCKSTEP", "torchrun", "Open MPI", ...; "" alone */
    int rank;
    int size;
    bool is_inner;  /* by a launcher inside a job of one rank */
    int local_rank; /* -1: unknown */
    int local_size; /* 0: unknown */
    int n_nodes;    /* 0: unknown */
    uint32_t generation;
    char job[JOB_ID_BYTES]; /* "" where the place decides it (boot.c) */
    hub_location hub_at;
    char place[IDENTITY_PLACE_BYTES];
    int pmi_fd;  /* HUB_AT_UNIX_NAME under PMI-1, HUB_AT_PMI: the socket to the starter, -1: none */
    int ring_fd; /* memfd for the flight recorder, -1: none */
    int listen_fd;     /* listener for ranks of other hosts, the starter's; -1: none */
    char warning[512]; /* "" or two families that disagree */
} identity;

/* Pure: reads `env` and `opt` (never NULL here) only. LS_EINVAL names the variable or option, its
 * value and what would do. */
LS_MUST_USE ls_status identity_find(const comm_env *env, const ls_init_options *opt, identity *out);

/* The number of tasks on node `node` from Slurm's "4(x2),2". LS_EINVAL names `what`. */
LS_MUST_USE ls_status identity_slurm_tasks(const char *text, const char *what, int node, int *out);

#endif
