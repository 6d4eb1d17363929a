/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_env.c - makes the environment of one rank: the agent's own without the identities that other
 * launchers have left in it, and with the rank's identity for Lockstep, PyTorch and MPI. Variables
 * that the user has set are never replaced by a default. Called by agent_ranks.c.
 */
#include "launch/agent/rank_env.h"

#include "base/alloc.h"
#include "base/signal_list.h"
#include "base/text.h"
#include "host/process.h"
#include "host/process_marks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_MOST 64

/* Identities of other launchers, which these ranks must not use. A final '*' matches any text. */
static const char *const of_other_launchers[] = {
    "PMI_*",
    "PMIX_*",
    "PMI2_*",
    "OMPI_COMM_WORLD_*",
    "OMPI_UNIVERSE_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_*",
    "HOROVOD_CROSS_*",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_*",
    "SLURM_STEPID",
    "SLURM_GTIDS",
    "LOCKSTEP_RANK",
    "LOCKSTEP_WORLD_SIZE",
    "LOCKSTEP_LOCAL_*",
    "LOCKSTEP_NODE_RANK",
    "LOCKSTEP_NNODES",
    "LOCKSTEP_JOB",
    "LOCKSTEP_AGENT",
    "LOCKSTEP_AGENT_PROCESS",
    PROCESS_OUTER_PID_ENV,
    "LOCKSTEP_STORE",
    "LOCKSTEP_KEY_FD",
    "LOCKSTEP_RING_FD",
    "LOCKSTEP_TRACE",
    "LOCKSTEP_LISTEN_FD",
    SIGNAL_LIST_ENV,
    "LOCKSTEP_TTY",
    "LOCKSTEP_GENERATION",
    "LOCKSTEP_ELASTIC",
    "LOCKSTEP_MEMBER",
    "LOCKSTEP_NEW_MEMBER",
};

typedef struct builder {
    char **entries;
    size_t n;
    bool failed;
} builder;

static bool name_matches(const char *entry, const char *pattern)
{
    const size_t length = strcspn(entry, "=");
    const size_t n = strlen(pattern);

    if (n > 0 && pattern[n - 1] == '*')
        return length >= n - 1 && strncmp(entry, pattern, n - 1) == 0;
    return length == n && strncmp(entry, pattern, n) == 0;
}

static bool is_of_other_launcher(const char *entry)
{
    for (size_t i = 0; i < LS_COUNT_OF(of_other_launchers); i++)
        if (name_matches(entry, of_other_launchers[i]))
            return true;
    return false;
}

static const char *value_of(char *const *env, const char *name)
{
    for (; *env != NULL; env++)
        if (name_matches(*env, name))
            return *env + strlen(name) + 1;
    return NULL;
}

static void put(builder *b, const char *format, ...) LS_PRINTF(2, 3);
static void put(builder *b, const char *format, ...)
{
    va_list args;
    va_list again;
    char *entry;
    int n;

    va_start(args, format);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    entry = n < 0 ? NULL : ls_calloc((size_t)n + 1, 1);
    if (entry != NULL)
        (void)vsnprintf(entry, (size_t)n + 1, format, again);
    va_end(again);
    b->failed = b->failed || entry == NULL;
    if (entry != NULL)
        b->entries[b->n++] = entry;
}

/* Only if the user has not set it. */
static void put_default(builder *b, char *const *inherited, const char *name, const char *value)
{
    if (value_of(inherited, name) == NULL)
        put(b, "%s=%s", name, value);
}

/* Shows later whether the job still runs, see leftover.h. */
static void put_agent(builder *b)
{
    char kept[LS_ERROR_BYTES];
    char text[PROCESS_ID_TEXT_MAX];
    process_id self;

    ls_error_save(kept);
    if (process_id_self(&self) == LS_OK)
        put(b, "%s=%s", PROCESS_AGENT_ID_ENV, process_id_text(text, sizeof(text), &self));
    ls_error_restore(kept);
}

static void put_lockstep(builder *b, const rank_place *p)
{
    char signals[64];

    put(b, "LOCKSTEP_JOB=%s", p->job);
    put(b, "LOCKSTEP_AGENT=%s", p->agent);
    put_agent(b);
    put(b, "LOCKSTEP_RANK=%d", p->rank);
    put(b, "LOCKSTEP_WORLD_SIZE=%d", p->world_size);
    put(b, "LOCKSTEP_LOCAL_RANK=%d", p->local_rank);
    put(b, "LOCKSTEP_LOCAL_WORLD_SIZE=%d", p->local_size);
    put(b, "LOCKSTEP_LOCAL_CORES=%d", p->cores);
    put(b, "LOCKSTEP_NODE_RANK=%d", p->node_rank);
    put(b, "LOCKSTEP_NNODES=%d", p->n_nodes);
    put(b, "LOCKSTEP_STORE=%s", p->store);
    put(b, "LOCKSTEP_GENERATION=%u", p->generation);
    if (p->members != NULL) {
        put(b, "LOCKSTEP_ELASTIC=%s", p->members);
        put(b, "LOCKSTEP_MEMBER=%d", p->member);
    }
    if (p->is_new_member)
        put(b, "LOCKSTEP_NEW_MEMBER=1");
    if (p->key_fd >= 0)
        put(b, "LOCKSTEP_KEY_FD=%d", p->key_fd);
    if (p->ring_fd >= 0)
        put(b, "LOCKSTEP_RING_FD=%d", p->ring_fd);
    if (p->is_traced)
        put(b, "LOCKSTEP_TRACE=1");
    if (p->spec->stop_signals != 0)
        put(b, SIGNAL_LIST_ENV "=%s",
            signal_list_text(signals, sizeof(signals), p->spec->stop_signals));
    if (p->listen_fd >= 0)
        put(b, "LOCKSTEP_LISTEN_FD=%d", p->listen_fd);
    for (int i = 0; i < p->n_variables; i++)
        put(b, "%s=%s", p->variables[i].name, p->variables[i].value);
    if (p->columns > 0)
        put(b, "LOCKSTEP_TTY=%d", p->columns);
    if (p->spec->isolate) /* process_set_shown_pid() sets it later */
        put(b, PROCESS_OUTER_PID_ENV "=%*s", PROCESS_SHOWN_BYTES - 1, "");
}

/* The device of a rank: the i-th of the visible list, or device i. */
static void put_own_device(builder *b, char *const *inherited, int i)
{
    const char *list = value_of(inherited, "CUDA_VISIBLE_DEVICES");

    if (list == NULL) {
        put(b, "CUDA_VISIBLE_DEVICES=%d", i);
        return;
    }
    for (; i > 0 && *list != 0; i--) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    put(b, "CUDA_VISIBLE_DEVICES=%.*s", (int)strcspn(list, ","), list);
}

/* The variables of torchrun. */
static void put_torchrun(builder *b, char *const *inherited, const rank_place *p)
{
    put(b, "RANK=%d", p->rank);
    put(b, "WORLD_SIZE=%d", p->world_size);
    put(b, "LOCAL_RANK=%d", p->spec->virtual_local_rank ? 0 : p->local_rank);
    put(b, "LOCAL_WORLD_SIZE=%d", p->local_size);
    put(b, "GROUP_RANK=%d", p->node_rank);
    put(b, "GROUP_WORLD_SIZE=%d", p->n_nodes);
    put(b, "ROLE_NAME=%s", p->spec->role != NULL ? p->spec->role : "default");
    put(b, "ROLE_RANK=%d", p->rank);
    put(b, "ROLE_WORLD_SIZE=%d", p->world_size);
    put(b, "MASTER_ADDR=%s", p->master_addr);
    put(b, "MASTER_PORT=%d", p->master_port);
    put(b, "TORCHELASTIC_RESTART_COUNT=%d", p->n_restarts);
    put(b, "TORCHELASTIC_MAX_RESTARTS=%d", p->max_restarts);
    put(b, "TORCHELASTIC_RUN_ID=%s", p->spec->run_id != NULL ? p->spec->run_id : p->job);
    put(b, "TORCHELASTIC_USE_AGENT_STORE=%s", p->agent_store ? "True" : "False");
    if (p->error_file != NULL)
        put(b, "TORCHELASTIC_ERROR_FILE=%s", p->error_file);
    if (p->spec->virtual_local_rank)
        put_own_device(b, inherited, p->local_rank);
    put_default(b, inherited, "NCCL_ASYNC_ERROR_HANDLING", "1");
    put_default(b, inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

static void put_openmpi(builder *b, const rank_place *p)
{
    put(b, "OMPI_COMM_WORLD_RANK=%d", p->rank);
    put(b, "OMPI_COMM_WORLD_SIZE=%d", p->world_size);
    put(b, "OMPI_COMM_WORLD_LOCAL_RANK=%d", p->local_rank);
    put(b, "OMPI_COMM_WORLD_LOCAL_SIZE=%d", p->local_size);
}

/* Only with the PMI socket: without it MPICH would wait for the other ranks for ever. */
static void put_pmi(builder *b, const rank_place *p)
{
    if (p->pmi_fd < 0)
        return;
    put(b, "PMI_FD=%d", p->pmi_fd);
    put(b, "PMI_RANK=%d", p->rank);
    put(b, "PMI_SIZE=%d", p->world_size);
    put(b, "MPI_LOCALRANKID=%d", p->local_rank);
    put(b, "MPI_LOCALNRANKS=%d", p->local_size);
}

/* With more threads than cores a spinning thread holds the core of the thread it waits for. */
static void put_wait_policy(builder *b, char *const *inherited, const rank_place *p)
{
    const char *given = value_of(inherited, "OMP_NUM_THREADS");
    const long threads = given == NULL ? p->threads : strtol(given, NULL, 10); // of "4,2" the 4

    if (threads > p->cores / p->local_size && value_of(inherited, "GOMP_SPINCOUNT") == NULL)
        put_default(b, inherited, "OMP_WAIT_POLICY", "passive");
}

static void put_surroundings(builder *b, char *const *inherited, const rank_place *p)
{
    char threads[16];

    text_format(threads, sizeof(threads), "%d", p->threads);
    put_default(b, inherited, "OMP_NUM_THREADS", threads);
    put_wait_policy(b, inherited, p);
    put_default(b, inherited, "PYTHONUNBUFFERED", "1");
}

/* Copies the inherited variables, except identities of other launchers and those that the rank
 * gets. */
static void copy_inherited(builder *b, char *const *inherited, builder *own)
{
    for (; *inherited != NULL; inherited++) {
        const size_t length = strcspn(*inherited, "=");
        bool replaced = is_of_other_launcher(*inherited);
        for (size_t i = 0; i < own->n && !replaced; i++)
            replaced = strncmp(*inherited, own->entries[i], length + 1) == 0;
        if (replaced)
            continue;
        b->entries[b->n] = ls_strdup(*inherited);
        b->failed = b->failed || b->entries[b->n] == NULL;
        b->n += b->entries[b->n] != NULL;
    }
}

ls_status rank_env_make(char *const *inherited, const rank_place *place, char ***out)
{
    char *own_entries[OWN_MOST + 1] = {NULL};
    builder own = {.entries = own_entries};
    builder all = {0};
    size_t n = 0;

    while (inherited[n] != NULL)
        n++;
    LS_TRY(LS_NEW(&all.entries, n + OWN_MOST + 1, "for the environment of rank %d", place->rank));
    put_lockstep(&own, place);
    put_torchrun(&own, inherited, place);
    put_openmpi(&own, place);
    put_pmi(&own, place);
    put_surroundings(&own, inherited, place);
    LS_ASSERT(own.n < OWN_MOST);
    copy_inherited(&all, inherited, &own);
    memcpy(all.entries + all.n, own_entries, own.n * sizeof(*own_entries));
    if (own.failed || all.failed) {
        rank_env_free(all.entries);
        return ls_fail(LS_ENOMEM, "no memory for the environment of rank %d", place->rank);
    }
    *out = all.entries;
    return LS_OK;
}

void rank_env_free(char **env)
{
    for (char **entry = env; env != NULL && *entry != NULL; entry++)
        ls_free(*entry);
    ls_free(env);
}
