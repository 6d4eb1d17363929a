/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/identity.h"

#include "base/text.h"
#include "comm/identity_place.h"

#include <string.h>

/*
 * One row a family. A family speaks when its rank variable is set, and is complete when its size
 * and all of `needs` are set as well. Rows stand in the order in which they count.
 */
static const identity_family families[] = {
    {.name = "LOCKSTEP",
     .rank = "LOCKSTEP_RANK",
     .size = {"LOCKSTEP_WORLD_SIZE"},
     .local_rank = {"LOCKSTEP_LOCAL_RANK"},
     .local_size = {"LOCKSTEP_LOCAL_WORLD_SIZE"},
     .n_nodes = "LOCKSTEP_NNODES",
     .must_be_complete = true,
     .place = place_of_launcher},
    {.name = "torchrun",
     .rank = "RANK",
     .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .n_nodes = "GROUP_WORLD_SIZE",
     .needs = {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
     .place = place_of_torchrun},
    {.name = "Open MPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .place = place_of_openmpi},
    {.name = "PMIx",
     .rank = "PMIX_RANK",
     .size = {"PMIX_SIZE", "SLURM_STEP_NUM_TASKS"},
     .local_rank = {"PMIX_LOCAL_RANK", "SLURM_LOCALID"},
     .n_nodes = "SLURM_STEP_NUM_NODES",
     .needs = {"PMIX_NAMESPACE"},
     .place = place_of_pmix},
    {.name = "PMI",
     .rank = "PMI_RANK",
     .size = {"PMI_SIZE"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
     .place = place_of_pmi},
    {.name = "Slurm",
     .rank = "SLURM_PROCID",
     .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .local_rank = {"SLURM_LOCALID"},
     .n_nodes = "SLURM_STEP_NUM_NODES",
     .needs = {"SLURM_STEP_ID"},
     .more_than_one = true,
     .place = place_of_slurm},
    {.name = "RANK",
     .rank = "RANK",
     .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .needs = {"MASTER_ADDR", "MASTER_PORT"},
     .must_be_complete = true,
     .place = place_of_master},
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
            !(text_starts(f->needs[i], "MASTER_") && place_names_file(env)))
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

/* Whether this family says where the process is. A half-set one of those that people set by hand is
 * an error. */
static ls_status family_speaks(const comm_env *env, const identity_family *f, bool *speaks)
{
    const char *missing = missing_variable(env, f);
    const bool has_rank = identity_get(env, f->rank) != NULL;

    *speaks = missing == NULL;
    if (*speaks && f->more_than_one) {
        int rank;
        int size;

        LS_TRY(read_rank_and_size(env, f, &rank, &size));
        *speaks = size > 1;
    }
    if (missing != NULL && f->must_be_complete && (has_rank || first_set(env, f->size) != NULL))
        return ls_fail(LS_EINVAL, "%s is set, but %s is not",
                       has_rank ? f->rank : first_set(env, f->size), missing);
    return LS_OK;
}

/* Notes the first family behind the chosen one that means another place in another job. */
static void note_disagreement(const comm_env *env, const identity_family *chosen, identity *id)
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
                    "%s says rank %d of %d, but %s says rank %d of %d: the first counts",
                    chosen->rank, id->rank, id->size, f->rank, rank, size);
        return;
    }
}

/* PMIx tells a rank its number but no size: better a word than a silent job of one. */
static void note_lonely_pmix(const comm_env *env, identity *id)
{
    if (identity_get(env, "PMIX_RANK") != NULL)
        text_format(id->warning, sizeof(id->warning),
                    "PMIX_RANK is set, but nothing says how many ranks there are: "
                    "taken as a job of one");
}

/*
 * `lockstep run mpirun -np 4 PROG`: our launcher says rank 0 of 1 in the variables of every family,
 * so one that says more was set by a launcher inside, and this process is that launcher's rank.
 */
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
        bool speaks;

        LS_TRY(family_speaks(env, &families[i], &speaks));
        if (speaks)
            *found = &families[i];
    }
    find_inner(env, id, found);
    if (*found == NULL) {
        note_lonely_pmix(env, id);
        return LS_OK;
    }
    id->family = (*found)->name;
    LS_TRY(read_rank_and_size(env, *found, &id->rank, &id->size));
    LS_TRY(read_locals(env, *found, id));
    ls_error_save(kept);
    note_disagreement(env, *found, id);
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
    LS_TRY(place_find(env, opt, found, &id));
    if (id.size == 1)
        id.hub_at = HUB_AT_NONE;
    *out = id;
    return LS_OK;
}
