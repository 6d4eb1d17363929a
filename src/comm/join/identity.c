/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.c - finds this process's rank and the size of its job from options and the variables of
 * launchers. Pure; the first complete family of variables decides. init.c calls it.
 */
#include "comm/join/identity.h"

#include "base/text.h"
#include "comm/join/identity_location.h"

#include <string.h>

/*
 * A family is complete when its rank, its size and all of `needs` are set. The first one decides.
 */
static const identity_family families[] = {
    {.name = "LOCKSTEP",
     .rank = "LOCKSTEP_RANK",
     .size = {"LOCKSTEP_WORLD_SIZE"},
     .local_rank = {"LOCKSTEP_LOCAL_RANK"},
     .local_size = {"LOCKSTEP_LOCAL_WORLD_SIZE"},
     .n_nodes = "LOCKSTEP_NNODES",
     .must_be_complete = true,
     .locate = location_of_launcher},
    {.name = "torchrun",
     .rank = "RANK",
     .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .n_nodes = "GROUP_WORLD_SIZE",
     .needs = {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
     .locate = location_of_torchrun},
    {.name = "Open MPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .locate = location_of_openmpi},
    {.name = "PMIx",
     .rank = "PMIX_RANK",
     .size = {"PMIX_SIZE", "SLURM_STEP_NUM_TASKS"},
     .local_rank = {"PMIX_LOCAL_RANK", "SLURM_LOCALID"},
     .n_nodes = "SLURM_STEP_NUM_NODES",
     .needs = {"PMIX_NAMESPACE"},
     .locate = location_of_pmix},
    {.name = "PMI",
     .rank = "PMI_RANK",
     .size = {"PMI_SIZE"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
     .locate = location_of_pmi},
    {.name = "Slurm",
     .rank = "SLURM_PROCID",
     .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .local_rank = {"SLURM_LOCALID"},
     .n_nodes = "SLURM_STEP_NUM_NODES",
     .needs = {"SLURM_STEP_ID"},
     .more_than_one = true,
     .locate = location_of_slurm},
    {.name = "RANK",
     .rank = "RANK",
     .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .needs = {"MASTER_ADDR", "MASTER_PORT"},
     .must_be_complete = true,
     .locate = location_of_master},
};

const char *identity_get(const comm_env *env, const char *name)
{
    const char *value = name == NULL ? NULL : env->get(env->self, name);

    return value != NULL && *value != '\0' ? value : NULL;
}

ls_status identity_int(const comm_env *env, const char *name, int min, int max, int *out)
{
    int64_t value;

    LS_TRY(text_parse_int(identity_get(env, name), name, min, max, &value));
    *out = (int)value;
    return LS_OK;
}

/* The first of the alternative names that is set, NULL for none. */
static const char *first_set(const comm_env *env, const char *const names[IDENTITY_NAMES])
{
    for (int i = 0; i < IDENTITY_NAMES; i++) {
        if (identity_get(env, names[i]) != NULL)
            return names[i];
    }
    return NULL;
}

/* The first variable that the family lacks, NULL when it is complete. A file needs no MASTER_*. */
static const char *missing_variable(const comm_env *env, const identity_family *f)
{
    if (identity_get(env, f->rank) == NULL)
        return f->rank;
    if (first_set(env, f->size) == NULL)
        return f->size[0];
    for (int i = 0; i < IDENTITY_NEEDS && f->needs[i] != NULL; i++) {
        if (identity_get(env, f->needs[i]) == NULL &&
            !(text_starts(f->needs[i], "MASTER_") && location_is_file(env)))
            return f->needs[i];
    }
    return NULL;
}

static ls_status read_rank_and_size(const comm_env *env, const identity_family *f, int *rank,
                                    int *size)
{
    const char *size_name = first_set(env, f->size);

    LS_TRY(identity_int(env, size_name, 1, IDENTITY_SIZE_MAX, size));
    LS_TRY(identity_int(env, f->rank, 0, IDENTITY_SIZE_MAX - 1, rank));
    if (*rank >= *size)
        return ls_fail(LS_EINVAL, "%s is %d, but %s is only %d", f->rank, *rank, size_name, *size);
    return LS_OK;
}

static ls_status read_locals(const comm_env *env, const identity_family *f, identity *id)
{
    const char *local_rank = first_set(env, f->local_rank);
    const char *local_size = first_set(env, f->local_size);

    if (local_size != NULL)
        LS_TRY(identity_int(env, local_size, 1, id->size, &id->local_size));
    if (local_rank != NULL)
        LS_TRY(identity_int(env, local_rank, 0, id->size - 1, &id->local_rank));
    if (local_size != NULL && id->local_rank >= id->local_size)
        return ls_fail(LS_EINVAL, "%s is %d, but %s is only %d", local_rank, id->local_rank,
                       local_size, id->local_size);
    if (identity_get(env, f->n_nodes) != NULL)
        LS_TRY(identity_int(env, f->n_nodes, 1, IDENTITY_SIZE_MAX, &id->n_nodes));
    if (id->n_nodes == 1 && id->local_size == 0)
        id->local_size = id->size;
    if (id->local_size == id->size)
        id->n_nodes = 1;
    return LS_OK;
}

/* A family that people set by hand must be complete: a part of it is an error. */
static ls_status family_applies(const comm_env *env, const identity_family *f, bool *applies)
{
    const char *missing = missing_variable(env, f);
    const bool has_rank = identity_get(env, f->rank) != NULL;

    *applies = missing == NULL;
    if (*applies && f->more_than_one) {
        int rank;
        int size;

        LS_TRY(read_rank_and_size(env, f, &rank, &size));
        *applies = size > 1;
    }
    if (missing != NULL && f->must_be_complete && (has_rank || first_set(env, f->size) != NULL))
        return ls_fail(LS_EINVAL, "%s is set, but %s is not",
                       has_rank ? f->rank : first_set(env, f->size), missing);
    return LS_OK;
}

/* Warns of the first later family with another rank or size. */
static void warn_of_disagreement(const comm_env *env, const identity_family *chosen, identity *id)
{
    for (size_t i = 0; i < LS_COUNT_OF(families); i++) {
        const identity_family *f = &families[i];
        int rank;
        int size;

        if (f <= chosen || text_equal(f->rank, chosen->rank) || missing_variable(env, f) != NULL)
            continue;
        if (read_rank_and_size(env, f, &rank, &size) != LS_OK ||
            ((f->more_than_one || id->is_inner) && size < 2))
            continue;
        if (rank == id->rank && size == id->size)
            continue;
        text_format(id->warning, sizeof(id->warning),
                    "%s means rank %d of %d, but %s means rank %d of %d: using the first",
                    chosen->rank, id->rank, id->size, f->rank, rank, size);
        return;
    }
}

/* PMIx sets the rank but not the size, so a job of one rank would be a silent mistake. */
static void warn_pmix_without_size(const comm_env *env, identity *id)
{
    if (identity_get(env, "PMIX_RANK") != NULL)
        text_format(id->warning, sizeof(id->warning),
                    "PMIX_RANK is set, but the number of ranks is not: "
                    "this process runs as a job of one rank");
}

/* `lockstep run mpirun -np 4 PROG`: lockstep run sets rank 0 of 1 in the variables of every family,
 * so a family with more ranks comes from the inner launcher, and this process is its rank. */
static const identity_family *inner_family(const comm_env *env)
{
    int rank;
    int size;

    if (read_rank_and_size(env, &families[0], &rank, &size) != LS_OK || size > 1)
        return NULL;
    for (size_t i = 1; i < LS_COUNT_OF(families); i++)
        if (missing_variable(env, &families[i]) == NULL &&
            read_rank_and_size(env, &families[i], &rank, &size) == LS_OK && size > 1)
            return &families[i];
    return NULL;
}

static void find_inner(const comm_env *env, identity *id, const identity_family **found)
{
    const identity_family *inner = NULL;
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    if (*found == &families[0])
        inner = inner_family(env);
    ls_error_restore(kept);
    id->is_inner = inner != NULL;
    if (inner != NULL)
        *found = inner;
}

static ls_status from_environment(const comm_env *env, identity *id, const identity_family **found)
{
    char kept[LS_ERROR_BYTES];

    *found = NULL;
    for (size_t i = 0; i < LS_COUNT_OF(families) && *found == NULL; i++) {
        bool applies;

        LS_TRY(family_applies(env, &families[i], &applies));
        if (applies)
            *found = &families[i];
    }
    find_inner(env, id, found);
    if (*found == NULL) {
        warn_pmix_without_size(env, id);
        return LS_OK;
    }
    id->family = (*found)->name;
    LS_TRY(read_rank_and_size(env, *found, &id->rank, &id->size));
    LS_TRY(read_locals(env, *found, id));
    ls_error_save(kept);
    warn_of_disagreement(env, *found, id);
    ls_error_restore(kept);
    return LS_OK;
}

static ls_status from_options(const ls_init_options *opt, identity *id)
{
    if (opt->world_size < 1 || opt->world_size > IDENTITY_SIZE_MAX)
        return ls_fail(LS_EINVAL, "world_size %d: must be 1 to %d", opt->world_size,
                       IDENTITY_SIZE_MAX);
    if (opt->rank < 0 || opt->rank >= opt->world_size)
        return ls_fail(LS_EINVAL, "rank %d of world_size %d: must be 0 to %d", opt->rank,
                       opt->world_size, opt->world_size - 1);
    id->family = "options";
    id->rank = opt->rank;
    id->size = opt->world_size;
    return LS_OK;
}

static ls_status read_descriptors(const comm_env *env, identity *id)
{
    if (identity_get(env, "LOCKSTEP_RING_FD") != NULL)
        LS_TRY(identity_int(env, "LOCKSTEP_RING_FD", 0, 1 << 20, &id->ring_fd));
    if (identity_get(env, "LOCKSTEP_TRACE") != NULL)
        LS_TRY(identity_int(env, "LOCKSTEP_TRACE", 0, 1, &id->is_traced));
    if (identity_get(env, "LOCKSTEP_LISTEN_FD") != NULL)
        LS_TRY(identity_int(env, "LOCKSTEP_LISTEN_FD", 0, 1 << 20, &id->listen_fd));
    return LS_OK;
}

ls_status identity_find(const comm_env *env, const ls_init_options *opt, identity *out)
{
    identity id = {.family = "",
                   .size = 1,
                   .local_rank = -1,
                   .hub_at = HUB_AT_NONE,
                   .pmi_fd = -1,
                   .ring_fd = -1,
                   .listen_fd = -1};
    const identity_family *found = NULL;

    if (opt->world_size != 0)
        LS_TRY(from_options(opt, &id));
    else if (opt->store != NULL)
        return ls_fail(LS_EINVAL, "joining through a store needs rank and world_size");
    else
        LS_TRY(from_environment(env, &id, &found));
    if (!id.is_inner)
        LS_TRY(read_descriptors(env, &id));
    if (id.size == 1) {
        id.local_rank = 0;
        id.local_size = 1;
        id.n_nodes = 1;
    }
    LS_TRY(location_find(env, opt, found, &id));
    if (id.size == 1)
        id.hub_at = HUB_AT_NONE;
    *out = id;
    return LS_OK;
}
