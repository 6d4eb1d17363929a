/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity_location.c - finds from the launcher's variables where the ranks of a job reach their
 * hub, for identity.c. Pure; all ranks of a job get the same location.
 */
#include "comm/join/identity_location.h"

#include "base/text.h"
#include "host/cores.h"

#include <string.h>

/* torchrun's store listens at MASTER_PORT, so over several nodes the hub takes the next port. */
#define TORCHRUN_PORT_STEP 1

static ls_status set_location(identity *id, hub_location hub_at, const char *text, const char *what)
{
    if (strlen(text) >= sizeof(id->location))
        return ls_fail(LS_EINVAL, "%s: %zu bytes are too long", what, strlen(text));
    id->hub_at = hub_at;
    text_format(id->location, sizeof(id->location), "%s", text);
    return LS_OK;
}

static ls_status master_location(const comm_env *env, int port_step, identity *id)
{
    const char *host = identity_get(env, "MASTER_ADDR");
    const bool is_bare_v6 = strchr(host, ':') != NULL && host[0] != '[';
    char text[IDENTITY_LOCATION_BYTES];
    int port;

    LS_TRY(identity_int(env, "MASTER_PORT", 1, 65535 - port_step, &port));
    if (strlen(host) > 253)
        return ls_fail(LS_EINVAL, "MASTER_ADDR: %zu bytes are too long for a host name",
                       strlen(host));
    text_format(text, sizeof(text), is_bare_v6 ? "[%s]:%d" : "%s:%d", host, port + port_step);
    return set_location(id, HUB_AT_MASTER, text, "MASTER_ADDR");
}

bool location_is_file(const comm_env *env)
{
    const char *store = identity_get(env, "LOCKSTEP_STORE");

    return store != NULL && text_starts(store, "file://") && store[strlen("file://")] != '\0';
}

static ls_status location_of_file(const comm_env *env, identity *id)
{
    return set_location(id, HUB_AT_FILE, identity_get(env, "LOCKSTEP_STORE"), "LOCKSTEP_STORE");
}

ls_status location_of_master(const comm_env *env, identity *id)
{
    if (location_is_file(env))
        return location_of_file(env, id);
    if (identity_get(env, "MASTER_ADDR") == NULL)
        return ls_fail(LS_EINVAL,
                       "rank %d of %d: MASTER_ADDR is not set: set MASTER_ADDR and "
                       "MASTER_PORT to the address of rank 0",
                       id->rank, id->size);
    if (identity_get(env, "MASTER_PORT") == NULL)
        return ls_fail(LS_EINVAL, "MASTER_ADDR is set, but MASTER_PORT is not");
    return master_location(env, 0, id);
}

static bool is_one_host(const identity *id)
{
    return id->local_size == id->size;
}

/* A name made of values that the launcher sets for all ranks of this job and for no other job. */
static ls_status unix_name_location(identity *id, const char *launcher, const char *a,
                                    const char *b, const char *c)
{
    char text[IDENTITY_LOCATION_BYTES];

    text_format(text, sizeof(text), "%s|%s|%s|%s", launcher, a == NULL ? "" : a, b == NULL ? "" : b,
                c == NULL ? "" : c);
    return set_location(id, HUB_AT_UNIX_NAME, text, launcher);
}

/* The location that the user has set, under launchers that set none. */
static ls_status location_of_user(const comm_env *env, const char *launcher, bool *done,
                                  identity *id)
{
    const char *store = identity_get(env, "LOCKSTEP_STORE");

    *done = true;
    if (location_is_file(env))
        return location_of_file(env, id);
    if (id->is_inner) { // the other variables belong to the outer job
        *done = false;
        return LS_OK;
    }
    if (store != NULL)
        return ls_fail(LS_EINVAL, "LOCKSTEP_STORE \"%.80s\": under %s it must be file://PATH",
                       store, launcher);
    if (identity_get(env, "MASTER_ADDR") != NULL || identity_get(env, "MASTER_PORT") != NULL)
        return location_of_master(env, id);
    *done = false;
    return LS_OK;
}

/* The remedy when ranks of several hosts have no location. */
static const char *advice(char *buf, size_t n, const char *pass_on)
{
    return text_format(buf, n,
                       "set MASTER_ADDR and MASTER_PORT to the address of rank 0, or "
                       "LOCKSTEP_STORE=file://PATH to a file that all hosts share (%s)",
                       pass_on);
}

static ls_status no_location(const identity *id, const char *launcher, const char *pass_on)
{
    char text[256];

    return ls_fail(LS_EINVAL, "%s started rank %d of %d on more than one host: %s", launcher,
                   id->rank, id->size, advice(text, sizeof(text), pass_on));
}

/* Over several hosts through PMIx, if its library is installed. */
static ls_status pmix_location(identity *id, const char *pass_on)
{
    char text[256];

    return set_location(id, HUB_AT_PMIX, advice(text, sizeof(text), pass_on), "PMIx");
}

static ls_status read_launcher_job(const comm_env *env, identity *id)
{
    const char *job = identity_get(env, "LOCKSTEP_JOB");
    int generation;

    if (job != NULL) {
        if (strlen(job) != JOB_ID_BYTES - 1 || strspn(job, "0123456789abcdef") != JOB_ID_BYTES - 1)
            return ls_fail(LS_EINVAL, "LOCKSTEP_JOB \"%.40s\": must be %d hexadecimal digits", job,
                           JOB_ID_BYTES - 1);
        text_format(id->job, sizeof(id->job), "%s", job);
    }
    if (identity_get(env, "LOCKSTEP_GENERATION") != NULL) {
        LS_TRY(identity_int(env, "LOCKSTEP_GENERATION", 0, INT32_MAX, &generation));
        id->generation = (uint32_t)generation;
    }
    return LS_OK;
}

ls_status location_of_launcher(const comm_env *env, identity *id)
{
    const char *store = identity_get(env, "LOCKSTEP_STORE");

    if (location_is_file(env))
        return location_of_file(env, id);
    LS_TRY(read_launcher_job(env, id));
    if (store != NULL)
        return set_location(id, HUB_AT_URL, store, "LOCKSTEP_STORE");
    if (id->size > 1 && identity_get(env, "MASTER_ADDR") == NULL)
        return ls_fail(LS_EINVAL, "LOCKSTEP_RANK is set, but neither LOCKSTEP_STORE nor "
                                  "MASTER_ADDR is: set one to the job's rendezvous endpoint");
    return id->size > 1 ? location_of_master(env, id) : LS_OK;
}

ls_status location_of_torchrun(const comm_env *env, identity *id)
{
    const char *agent_store = identity_get(env, "TORCHELASTIC_USE_AGENT_STORE");

    if (location_is_file(env))
        return location_of_file(env, id);
    if (is_one_host(id) && identity_get(env, "TORCHELASTIC_RUN_ID") != NULL)
        return unix_name_location(id, "torchrun", identity_get(env, "TORCHELASTIC_RUN_ID"),
                                  identity_get(env, "MASTER_PORT"),
                                  identity_get(env, "TORCHELASTIC_RESTART_COUNT"));
    return master_location(
        env, agent_store != NULL && text_equal(agent_store, "True") ? TORCHRUN_PORT_STEP : 0, id);
}

ls_status location_of_openmpi(const comm_env *env, identity *id)
{
    const char *jobid = identity_get(env, "PMIX_NAMESPACE");
    bool done;

    LS_TRY(location_of_user(env, "Open MPI", &done, id));
    if (done)
        return LS_OK;
    if (!is_one_host(id))
        return pmix_location(id, "mpirun -x NAME passes it on");
    if (jobid == NULL)
        jobid = identity_get(env, "OMPI_MCA_ess_base_jobid");
    if (jobid == NULL)
        return ls_fail(LS_EINVAL, "OMPI_COMM_WORLD_RANK is set, but neither PMIX_NAMESPACE nor "
                                  "OMPI_MCA_ess_base_jobid names the job");
    // The namespace alone may repeat; the server's address has a process number and a port in it.
    return unix_name_location(id, "openmpi", jobid, identity_get(env, "PMIX_SERVER_URI2"),
                              identity_get(env, "OMPI_MCA_orte_hnp_uri"));
}

ls_status location_of_pmix(const comm_env *env, identity *id)
{
    bool done;

    LS_TRY(location_of_user(env, "a PMIx server", &done, id));
    if (done)
        return LS_OK;
    if (!is_one_host(id))
        return pmix_location(id, "on every rank");
    return unix_name_location(id, "pmix", identity_get(env, "PMIX_NAMESPACE"),
                              identity_get(env, "PMIX_SERVER_URI2"),
                              identity_get(env, "SLURM_STEP_ID"));
}

ls_status location_of_pmi(const comm_env *env, identity *id)
{
    const char *port = identity_get(env, "PMI_PORT");
    bool done;

    LS_TRY(location_of_user(env, "a PMI server", &done, id));
    if (done)
        return LS_OK;
    if (port == NULL && identity_get(env, "PMI_FD") == NULL)
        return ls_fail(LS_EINVAL, "PMI_RANK is set, but neither PMI_FD nor PMI_PORT is, so jobs "
                                  "cannot be distinguished");
    if (port == NULL)
        LS_TRY(identity_int(env, "PMI_FD", 0, 1 << 20, &id->pmi_fd));
    if (is_one_host(id))
        return unix_name_location(id, "pmi", port, NULL, NULL);
    if (port != NULL)
        return no_location(id, "a PMI server at PMI_PORT", "on every rank");
    return set_location(id, HUB_AT_PMI, "pmi", "PMI_FD");
}

static ls_status read_slurm_local_size(const comm_env *env, identity *id)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    const char *tasks = identity_get(env, name);
    int node;

    if (id->local_size != 0 || tasks == NULL || identity_get(env, "SLURM_NODEID") == NULL)
        return LS_OK;
    LS_TRY(identity_int(env, "SLURM_NODEID", 0, IDENTITY_SIZE_MAX, &node));
    return cores_slurm_tasks(tasks, name, node, &id->local_size);
}

ls_status location_of_slurm(const comm_env *env, identity *id)
{
    bool done;

    LS_TRY(read_slurm_local_size(env, id));
    LS_TRY(location_of_user(env, "Slurm", &done, id));
    if (done)
        return LS_OK;
    if (!is_one_host(id))
        return no_location(id, "Slurm", "srun passes them on");
    return unix_name_location(id, "slurm", identity_get(env, "SLURM_JOB_ID"),
                              identity_get(env, "SLURM_STEP_ID"),
                              identity_get(env, "SLURM_RESTART_COUNT"));
}

ls_status location_find(const comm_env *env, const ls_init_options *opt,
                        const identity_family *found, identity *id)
{
    const char *method = opt->init_method == NULL ? "env://" : opt->init_method;

    if (opt->store != NULL && opt->init_method != NULL)
        return ls_fail(LS_EINVAL, "store and init_method \"%s\" exclude each other",
                       opt->init_method);
    if (opt->store != NULL) {
        id->hub_at = HUB_AT_STORE;
        return LS_OK;
    }
    if (!text_equal(method, "env://") && opt->world_size == 0 && found == NULL)
        return ls_fail(LS_EINVAL, "init_method \"%s\" needs rank and world_size", method);
    if (text_starts(method, "tcp://"))
        return set_location(id, HUB_AT_MASTER, method + strlen("tcp://"), "init_method");
    if (text_starts(method, "file://") && method[strlen("file://")] != '\0')
        return set_location(id, HUB_AT_FILE, method, "init_method");
    if (!text_equal(method, "env://"))
        return ls_fail(LS_EINVAL,
                       "init_method \"%s\": must be env://, tcp://HOST:PORT or file://PATH",
                       method);
    if (id->size == 1)
        return LS_OK;
    if (found != NULL)
        return found->locate(env, id);
    return identity_get(env, "LOCKSTEP_STORE") != NULL ? location_of_launcher(env, id)
                                                       : location_of_master(env, id);
}
