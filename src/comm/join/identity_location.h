/* SPDX-License-Identifier: Apache-2.0 */
/* identity_location.h - the half of identity.c that finds the location of the hub. */
#ifndef LS_COMM_JOIN_IDENTITY_LOCATION_H
#define LS_COMM_JOIN_IDENTITY_LOCATION_H

#include "comm/join/identity.h"

#include <stdbool.h>

#define IDENTITY_NAMES 2
#define IDENTITY_NEEDS 4

/* Fills in hub_at, location, job and generation; rank, size and local ranks are known. */
typedef ls_status (*location_fn)(const comm_env *env, identity *id);

/* The variables with which a launcher sets the rank and size of a process. */
typedef struct identity_family {
    const char *name;
    const char *rank;
    const char *size[IDENTITY_NAMES]; /* alternatives in order */
    const char *local_rank[IDENTITY_NAMES];
    const char *local_size[IDENTITY_NAMES];
    const char *n_nodes;
    const char *needs[IDENTITY_NEEDS];
    bool must_be_complete; /* a part of it is an error */
    bool more_than_one;    /* ignored with one rank */
    location_fn locate;
} identity_family;

const char *identity_get(const comm_env *env, const char *name); /* NULL: not set, or empty */
/* The variable must be set. */
LS_MUST_USE ls_status identity_int(const comm_env *env, const char *name, int min, int max,
                                   int *out);

/* Whether LOCKSTEP_STORE is file://PATH, which every family then uses. */
bool location_is_file(const comm_env *env);

/* `found` is NULL when no family has set the rank. */
LS_MUST_USE ls_status location_find(const comm_env *env, const ls_init_options *opt,
                                    const identity_family *found, identity *id);

ls_status location_of_launcher(const comm_env *env, identity *id);
ls_status location_of_torchrun(const comm_env *env, identity *id);
ls_status location_of_openmpi(const comm_env *env, identity *id);
ls_status location_of_pmix(const comm_env *env, identity *id);
ls_status location_of_pmi(const comm_env *env, identity *id);
ls_status location_of_slurm(const comm_env *env, identity *id);
ls_status location_of_master(const comm_env *env, identity *id);

#endif
