/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a rank: identities, defaults, and values of the user. */
#include "base/unit.h"

#include "host/process_id.h"
#include "base/text.h"
#include "launch/agent/rank_env.h"
#include "host/process.h"

#include <stdlib.h>
#include <unistd.h>

static const job_spec spec = {.run_id = "run", .role = "worker"};

static const rank_place place = {.spec = &spec,
                                 .rank = 5,
                                 .world_size = 8,
                                 .local_rank = 1,
                                 .local_size = 4,
                                 .node_rank = 1,
                                 .n_nodes = 2,
                                 .job = "0123456789abcdef",
                                 .agent = "fedcba9876543210",
                                 .store = "unix:@lockstep-hub-1",
                                 .master_addr = "10.0.0.1",
                                 .master_port = 1234,
                                 .generation = 3,
                                 .n_restarts = 1,
                                 .max_restarts = 2,
                                 .key_fd = 11,
                                 .ring_fd = 12,
                                 .pmi_fd = -1,
                                 .listen_fd = -1,
                                 .threads = 6,
                                 .cores = 24};

static char **make(const char *const *inherited, const rank_place *p)
{
    char **env = NULL;

    assert_ok(rank_env_make((char *const *)(uintptr_t)inherited, p, &env));
    return env;
}

static int count(char *const *env, const char *name)
{
    const size_t n = strlen(name);
    int found = 0;

    for (; *env != NULL; env++)
        found += strncmp(*env, name, n) == 0 && (*env)[n] == '=';
    return found;
}

static bool has(char *const *env, const char *entry)
{
    for (; *env != NULL; env++)
        if (text_equal(*env, entry))
            return true;
    return false;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void all_families_name_the_same_rank(void **state)
{
    static const char *const wanted[] = {
        "LOCKSTEP_RANK=5",
        "LOCKSTEP_WORLD_SIZE=8",
        "LOCKSTEP_LOCAL_RANK=1",
        "LOCKSTEP_LOCAL_WORLD_SIZE=4",
        "LOCKSTEP_LOCAL_CORES=24",
        "LOCKSTEP_NODE_RANK=1",
        "LOCKSTEP_NNODES=2",
        "LOCKSTEP_JOB=0123456789abcdef",
        "LOCKSTEP_AGENT=fedcba9876543210",
        "LOCKSTEP_STORE=unix:@lockstep-hub-1",
        "LOCKSTEP_GENERATION=3",
        "LOCKSTEP_KEY_FD=11",
        "LOCKSTEP_RING_FD=12",
        "RANK=5",
        "WORLD_SIZE=8",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=4",
        "GROUP_RANK=1",
        "GROUP_WORLD_SIZE=2",
        "ROLE_NAME=worker",
        "ROLE_RANK=5",
        "ROLE_WORLD_SIZE=8",
        "MASTER_ADDR=10.0.0.1",
        "MASTER_PORT=1234",
        "TORCHELASTIC_RESTART_COUNT=1",
        "TORCHELASTIC_MAX_RESTARTS=2",
        "TORCHELASTIC_RUN_ID=run",
        "TORCHELASTIC_USE_AGENT_STORE=False",
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "OMPI_COMM_WORLD_RANK=5",
        "OMPI_COMM_WORLD_SIZE=8",
        "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "OMPI_COMM_WORLD_LOCAL_SIZE=4",
        "OMP_NUM_THREADS=6",
        "PYTHONUNBUFFERED=1",
    };
    char **env = make(LIST("HOME=/root"), &place);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wanted); i++)
        if (!has(env, wanted[i]))
            fail_msg("%s is missing", wanted[i]);
    assert_true(has(env, "HOME=/root"));
    assert_int_equal(count(env, "LOCKSTEP_TTY"), 0);
    rank_env_free(env);
}

/* It shows later whether the job still runs. */
static void ranks_name_the_agent_that_started_them(void **state)
{
    char **env = make(LIST("LOCKSTEP_AGENT_PROCESS=1.2.3"), &place);
    char text[PROCESS_ID_TEXT_MAX];
    char wanted[PROCESS_ID_TEXT_MAX + 16];
    process_id self;

    LS_UNUSED(state);
    assert_ok(process_id_self(&self));
    text_format(wanted, sizeof(wanted), "LOCKSTEP_AGENT_PROCESS=%s",
                process_id_text(text, sizeof(text), &self));
    assert_true(has(env, wanted));
    assert_int_equal(count(env, "LOCKSTEP_AGENT_PROCESS"), 1);
    rank_env_free(env);
}

static void every_variable_is_set_once(void **state)
{
    char **env = make(LIST("RANK=0", "RANK=1", "MASTER_ADDR=x", "LOCKSTEP_RANK=7", "A=1",
                           "LOCKSTEP_STORE=tcp://other", "TORCHELASTIC_RUN_ID=none"),
                      &place);

    LS_UNUSED(state);
    for (char **e = env; *e != NULL; e++) {
        char name[64];

        text_format(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        assert_int_equal(count(env, name), 1);
    }
    assert_true(has(env, "RANK=5") && has(env, "A=1"));
    rank_env_free(env);
}

static void identities_of_other_launchers_are_removed(void **state)
{
    static const char *const names[] = {
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_FD",
        "PMI_PORT",
        "PMI_ID",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "PMIX_SERVER_URI2",
        "PMI2_X",
        "OMPI_UNIVERSE_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_CROSS_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_GTIDS",
        "SLURM_STEP_NUM_TASKS",
        "OMPI_COMM_WORLD_NODE_RANK",
        "LOCKSTEP_TTY",
    };
    char entries[LS_COUNT_OF(names)][64];
    const char *inherited[LS_COUNT_OF(names) + 1] = {NULL};
    char **env;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        inherited[i] = text_format(entries[i], sizeof(entries[i]), "%s=1", names[i]);
    env = make(inherited, &place);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        assert_int_equal(count(env, names[i]), 0);
    rank_env_free(env);
}

static void similar_names_are_inherited(void **state)
{
    const char *const kept[] = {"SLURM_JOB_ID=4",
                                "SLURM_CPUS_PER_TASK=2",
                                "OMPI_MCA_btl=self",
                                "HOROVOD_CYCLE_TIME=1",
                                "PMIXX=1",
                                "LOCKSTEP_TRANSPORT=tcp",
                                "LOCKSTEP_LOG=info",
                                "XRANK=1",
                                "RANKS=4",
                                "no equals sign",
                                NULL};
    char **env = make(kept, &place);

    LS_UNUSED(state);
    for (int i = 0; kept[i] != NULL; i++)
        if (!has(env, kept[i]))
            fail_msg("%s is gone", kept[i]);
    rank_env_free(env);
}

static void values_of_the_user_win_over_defaults(void **state)
{
    char **env = make(LIST("OMP_NUM_THREADS=2", "PYTHONUNBUFFERED=", "NCCL_ASYNC_ERROR_HANDLING=0",
                           "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
                      &place);

    LS_UNUSED(state);
    assert_true(has(env, "OMP_NUM_THREADS=2") && count(env, "OMP_NUM_THREADS") == 1);
    assert_true(has(env, "PYTHONUNBUFFERED=") && count(env, "PYTHONUNBUFFERED") == 1);
    assert_true(has(env, "NCCL_ASYNC_ERROR_HANDLING=0"));
    assert_true(has(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"));
    rank_env_free(env);
}

/* 4 ranks on 24 cores. */
static void threads_sleep_where_they_outnumber_the_cores(void **state)
{
    static const struct {
        const char *inherited[3];
        int cores;
        const char *wanted; /* NULL: none is set */
    } cases[] = {
        {{"A=1"}, 24, NULL},
        {{"A=1"}, 23, "OMP_WAIT_POLICY=passive"},
        {{"OMP_NUM_THREADS=7"}, 24, "OMP_WAIT_POLICY=passive"},
        {{"OMP_NUM_THREADS=7,2"}, 24, "OMP_WAIT_POLICY=passive"},
        {{"OMP_NUM_THREADS=5"}, 23, NULL},
        {{"OMP_NUM_THREADS=7", "OMP_WAIT_POLICY=active"}, 24, "OMP_WAIT_POLICY=active"},
        {{"OMP_NUM_THREADS=7", "GOMP_SPINCOUNT=9"}, 24, NULL},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        rank_place p = place;
        char **env;

        p.cores = cases[i].cores;
        env = make(cases[i].inherited, &p);
        assert_int_equal(count(env, "OMP_WAIT_POLICY"), cases[i].wanted != NULL);
        assert_true(cases[i].wanted == NULL || has(env, cases[i].wanted));
        rank_env_free(env);
    }
}

static void a_traced_rank_has_its_variable(void **state)
{
    rank_place p = place;
    char **env;

    LS_UNUSED(state);
    env = make(LIST("LOCKSTEP_TRACE=1"), &p); /* of an outer job */
    assert_int_equal(count(env, "LOCKSTEP_TRACE"), 0);
    rank_env_free(env);
    p.is_traced = true;
    env = make(LIST("A=1"), &p);
    assert_true(has(env, "LOCKSTEP_TRACE=1"));
    rank_env_free(env);
}

static void missing_descriptors_have_no_variable(void **state)
{
    rank_place p = place;
    char **env;

    LS_UNUSED(state);
    p.key_fd = p.ring_fd = p.pmi_fd = -1;
    p.columns = 72;
    p.agent_store = true;
    env = make(LIST("A=1"), &p);
    assert_int_equal(count(env, "LOCKSTEP_KEY_FD"), 0);
    assert_int_equal(count(env, "LOCKSTEP_RING_FD"), 0);
    assert_int_equal(count(env, "PMI_FD") + count(env, "PMI_RANK") + count(env, "PMI_SIZE"), 0);
    assert_true(has(env, "LOCKSTEP_TTY=72"));
    assert_true(has(env, "TORCHELASTIC_USE_AGENT_STORE=True"));
    rank_env_free(env);
    rank_env_free(NULL);
}

static void an_error_file_is_named_and_replaces_an_inherited_one(void **state)
{
    rank_place p = place;
    char **env;

    LS_UNUSED(state);
    env = make(LIST("TORCHELASTIC_ERROR_FILE=/outer"), &p);
    assert_true(has(env, "TORCHELASTIC_ERROR_FILE=/outer"));
    rank_env_free(env);
    p.error_file = "/own";
    env = make(LIST("TORCHELASTIC_ERROR_FILE=/outer"), &p);
    assert_true(has(env, "TORCHELASTIC_ERROR_FILE=/own"));
    assert_int_equal(count(env, "TORCHELASTIC_ERROR_FILE"), 1);
    rank_env_free(env);
}

static void a_virtual_local_rank_is_0_with_a_device_of_its_own(void **state)
{
    static const char *const cases[][2] = {
        {"CUDA_VISIBLE_DEVICES=9,8,7", "CUDA_VISIBLE_DEVICES=8"},
        {"CUDA_VISIBLE_DEVICES=9", "CUDA_VISIBLE_DEVICES="},
        {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES="},
        {"A=1", "CUDA_VISIBLE_DEVICES=1"},
    };
    rank_place p = place;

    LS_UNUSED(state);
    p.spec = &(job_spec){.virtual_local_rank = true};
    p.local_rank = 1;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char **env = make(LIST(cases[i][0]), &p);

        assert_true(has(env, cases[i][1]) && count(env, "CUDA_VISIBLE_DEVICES") == 1);
        assert_true(has(env, "LOCAL_RANK=0") && has(env, "LOCKSTEP_LOCAL_RANK=1"));
        rank_env_free(env);
    }
}

/* The place of another launcher's rank, with its socket, gives way to ours. */
static void pmi_variables_are_set_only_with_a_socket(void **state)
{
    static const char *const wanted[] = {"PMI_FD=13", "PMI_RANK=5", "PMI_SIZE=8",
                                         "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4"};
    rank_place p = place;
    char **env;

    LS_UNUSED(state);
    p.pmi_fd = 13;
    env = make(LIST("PMI_FD=7", "PMI_RANK=1", "PMI_SIZE=2", "PMI_ID=1", "MPI_LOCALRANKID=0"), &p);
    for (size_t i = 0; i < LS_COUNT_OF(wanted); i++)
        if (!has(env, wanted[i]))
            fail_msg("%s is missing", wanted[i]);
    assert_int_equal(count(env, "PMI_FD") + count(env, "PMI_RANK") + count(env, "PMI_ID"), 2);
    rank_env_free(env);
}

static void long_values_are_not_cut(void **state)
{
    static char role[5000];
    static char wanted[5100];
    rank_place p = place;
    char **env;

    LS_UNUSED(state);
    memset(role, 'r', sizeof(role) - 1);
    p.spec = &(job_spec){.role = role};
    text_format(wanted, sizeof(wanted), "ROLE_NAME=%s", role);
    env = make(LIST("A=1"), &p);
    assert_true(has(env, wanted));
    rank_env_free(env);
}

/* The inner pid is known only in the namespace. Children inherit the variable, but not the pid. */
static void isolated_rank_gets_its_outer_pid(void **state)
{
    rank_place isolated = place;
    char wanted[64];
    char **env;

    LS_UNUSED(state);
    env = make(LIST("LOCKSTEP_PID=1:2"), &place);
    assert_int_equal(count(env, "LOCKSTEP_PID"), 0);
    process_set_shown_pid(env, 3, 4711);
    assert_int_equal(count(env, "LOCKSTEP_PID"), 0);
    rank_env_free(env);
    isolated.spec = &(job_spec){.isolate = true};
    env = make(LIST("LOCKSTEP_PID=1:2"), &isolated);
    process_set_shown_pid(env, 2147483647, 2147483647);
    assert_true(has(env, "LOCKSTEP_PID=2147483647:2147483647"));
    process_set_shown_pid(env, getpid(), 4711);
    text_format(wanted, sizeof(wanted), "LOCKSTEP_PID=%d:4711", (int)getpid());
    assert_true(has(env, wanted) && count(env, "LOCKSTEP_PID") == 1);
    rank_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_families_name_the_same_rank),
        cmocka_unit_test(ranks_name_the_agent_that_started_them),
        cmocka_unit_test(every_variable_is_set_once),
        cmocka_unit_test(identities_of_other_launchers_are_removed),
        cmocka_unit_test(similar_names_are_inherited),
        cmocka_unit_test(values_of_the_user_win_over_defaults),
        cmocka_unit_test(threads_sleep_where_they_outnumber_the_cores),
        cmocka_unit_test(missing_descriptors_have_no_variable),
        cmocka_unit_test(a_traced_rank_has_its_variable),
        cmocka_unit_test(an_error_file_is_named_and_replaces_an_inherited_one),
        cmocka_unit_test(a_virtual_local_rank_is_0_with_a_device_of_its_own),
        cmocka_unit_test(pmi_variables_are_set_only_with_a_socket),
        cmocka_unit_test(long_values_are_not_cut),
        cmocka_unit_test(isolated_rank_gets_its_outer_pid),
    };

    return cmocka_run_group_tests_name("launch rank_env", tests, NULL, NULL);
}
