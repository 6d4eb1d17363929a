/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.h - this process's rank, the size of its job and the location of the hub, from options
 * and the environment alone.
 *
 * The first complete family of variables decides, in this order: options, LOCKSTEP_*, torchrun
 * (complete with LOCAL_RANK), Open MPI, PMIx, PMI, Slurm inside a step of more than one task, bare
 * RANK + WORLD_SIZE + MASTER_*. With none of them the job is this one process. When LOCKSTEP_*
 * means rank 0 of 1, a later family with more ranks decides: it comes from an inner launcher, as in
 * `lockstep run mpirun -np 4 PROG`. Then LOCKSTEP_*, MASTER_* and the descriptors belong to the
 * outer job and are ignored.
 */
#ifndef LS_COMM_JOIN_IDENTITY_H
#define LS_COMM_JOIN_IDENTITY_H

#include <lockstep/comm.h>

#include "comm/join/environment.h"
#include "hub/cause.h"

#define IDENTITY_LOCATION_BYTES 1024
#define IDENTITY_SIZE_MAX       65536

/* Where the hub is. */
typedef enum hub_location {
    HUB_AT_NONE = 0, /* a job of one rank has none */
    HUB_AT_URL,      /* the launcher serves it at `location` */
    HUB_AT_MASTER,   /* rank 0 serves it at `location`, HOST:PORT, over TCP */
    /* rank 0 serves it on a unix socket with a name derived from `location` (ranks of one host) */
    HUB_AT_UNIX_NAME,
    HUB_AT_FILE, /* rank 0 puts its address into the store `location` (file://...) */
    HUB_AT_PMI,  /* ... into the key-value space of PMI-1 */
    HUB_AT_PMIX, /* ... into that of PMIx; `location` is the advice when libpmix is missing */
    HUB_AT_STORE /* ... into the store of the options */
} hub_location;

typedef struct identity {
    const char *family; /* "options", "LOCKSTEP", "torchrun", "Open MPI", ...; "" alone */
    int rank;
    int size;
    bool is_inner;  /* of a launcher inside a job of one rank */
    int local_rank; /* -1: unknown */
    int local_size; /* 0: unknown */
    int n_nodes;    /* 0: unknown */
    uint32_t generation;
    char job[JOB_ID_BYTES]; /* "": derived from the location (join_hub.c) */
    hub_location hub_at;
    char location[IDENTITY_LOCATION_BYTES];
    int pmi_fd;        /* under PMI-1: the socket to the launcher, -1: none */
    int ring_fd;       /* memfd for the flight recorder, -1: none */
    int is_traced;     /* the launcher writes a timeline (--trace) */
    int listen_fd;     /* the launcher's listener for ranks of other hosts, -1: none */
    char warning[512]; /* names two families that disagree; "": none */
} identity;

/* Pure; `opt` is not NULL. LS_EINVAL names the variable or option, its value and valid values. */
LS_MUST_USE ls_status identity_find(const comm_env *env, const ls_init_options *opt, identity *out);

#endif
