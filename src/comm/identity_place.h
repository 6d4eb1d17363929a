/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity_place.h - the half of identity.c that finds where the job meets.
 */
#ifndef LS_COMM_IDENTITY_PLACE_H
#define LS_COMM_IDENTITY_PLACE_H

#include "comm/identity.h"

#include <stdbool.h>

#define IDENTITY_NAMES 2
#define IDENTITY_NEEDS 4

/* Fills in where, place, job, generation; id's rank, size and locals are known. */
typedef ls_status (*place_fn)(const comm_env *env, identity *id);

/* The variables with which one starter tells its ranks who they are. */
typedef struct identity_family {
    const char *name;
    const char *rank;
    const char *size[IDENTITY_NAMES]; /* the first that is set counts */
    const char *local_rank[IDENTITY_NAMES];
    const char *local_size[IDENTITY_NAMES];
    const char *n_nodes;
    const char *needs[IDENTITY_NEEDS];
    bool must_be_complete; /* a part of it is an error, not silence */
    bool more_than_one;    /* one task is no job */
    place_fn place;
} identity_family;

const char *identity_get(const comm_env *env, const char *name); /* NULL: not set, or empty */
/* The variable must be set. */
LS_MUST_USE ls_status identity_int(const comm_env *env, const char *name, int min, int max,
                                   int *out);

/* Whether LOCKSTEP_STORE is file://PATH, where ranks of every family then meet. */
bool place_names_file(const comm_env *env);

/* `found` is NULL when options or nothing told the rank. */
LS_MUST_USE ls_status place_find(const comm_env *env, const ls_init_options *opt,
                                 const identity_family *found, identity *id);

ls_status place_of_launcher(const comm_env *env, identity *id);
ls_status place_of_torchrun(const comm_env *env, identity *id);
ls_status place_of_openmpi(const comm_env *env, identity *id);
ls_status place_of_pmix(const comm_env *env, identity *id);
ls_status place_of_pmi(const comm_env *env, identity *id);
ls_status place_of_slurm(const comm_env *env, identity *id);
ls_status place_of_master(const comm_env *env, identity *id);

#endif
