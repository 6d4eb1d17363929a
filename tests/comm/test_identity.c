/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_identity.c - rank, size and hub location from the variables of every launcher, and the
 * errors of incomplete or contradictory ones.
 */
#include "base/unit.h"
#include "comm/join/identity.h"
#include "host/cores.h"

#define PAIRS 24

/* Variables as NAME, VALUE, NAME, VALUE, ... */
typedef struct vars {
    const char *pairs[2 * PAIRS];
} vars;

static const char *get(void *self, const char *name)
{
    const vars *v = self;

    for (int i = 0; i < PAIRS && v->pairs[2 * i] != NULL; i++) {
        if (strcmp(v->pairs[2 * i], name) == 0)
            return v->pairs[2 * i + 1];
    }
    return NULL;
}

static ls_status find(const vars *v, const ls_init_options *opt, identity *id)
{
    const ls_init_options none = {.size = sizeof(none)};
    vars copy = *v;
    const comm_env env = {.get = get, .self = &copy};

    return identity_find(&env, opt == NULL ? &none : opt, id);
}

#define LAUNCHER                                                                                   \
    "LOCKSTEP_RANK", "1", "LOCKSTEP_WORLD_SIZE", "3", "LOCKSTEP_LOCAL_RANK", "1",                  \
        "LOCKSTEP_LOCAL_WORLD_SIZE", "3", "LOCKSTEP_STORE", "unix:@hub", "LOCKSTEP_JOB",           \
        "0123456789abcdef", "LOCKSTEP_GENERATION", "2"
#define TORCHRUN                                                                                   \
    "RANK", "2", "WORLD_SIZE", "4", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR",     \
        "10.0.0.1", "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "run7"
#define OPENMPI                                                                                    \
    "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "3",   \
        "OMPI_COMM_WORLD_LOCAL_SIZE", "4", "PMIX_NAMESPACE", "817", "PMIX_RANK", "3"
#define OPENMPI_REMOTE                                                                             \
    "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",   \
        "PMIX_NAMESPACE", "817", "PMIX_RANK", "3"
#define PMI_REMOTE "PMI_RANK", "3", "PMI_SIZE", "4", "MPI_LOCALNRANKS", "1", "PMI_FD", "6"
#define PMI        "PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2", "PMI_FD", "6"
#define SLURM                                                                                      \
    "SLURM_PROCID", "5", "SLURM_STEP_NUM_TASKS", "6", "SLURM_STEP_ID", "0", "SLURM_JOB_ID", "77",  \
        "SLURM_LOCALID", "2", "SLURM_NODEID", "1", "SLURM_STEP_TASKS_PER_NODE", "3(x2)"

/* What a job of one rank gives, of which an inner launcher replaces a part. */
#define OUTER                                                                                      \
    "LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "1", "LOCKSTEP_STORE", "unix:@hub",               \
        "LOCKSTEP_RING_FD", "20", "RANK", "0", "WORLD_SIZE", "1", "MASTER_ADDR", "127.0.0.1",      \
        "MASTER_PORT", "9"

typedef struct row {
    const char *what;
    vars in;
    const char *family;
    int rank, size, local_size;
    hub_location hub_at;
    const char *location;
    const char *warning; /* a part of it */
} row;

static const row good[] = {
    {"nothing", {{0}}, "", 0, 1, 1, HUB_AT_NONE, "", NULL},
    {"the launcher", {{LAUNCHER}}, "LOCKSTEP", 1, 3, 3, HUB_AT_URL, "unix:@hub", NULL},
    {"torchrun over nodes",
     {{TORCHRUN}},
     "torchrun",
     2,
     4,
     2,
     HUB_AT_MASTER,
     "10.0.0.1:29500",
     NULL},
    {"torchrun over nodes, whose agent holds the port",
     {{TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE", "True"}},
     "torchrun",
     2,
     4,
     2,
     HUB_AT_MASTER,
     "10.0.0.1:29501",
     NULL},
    {"torchrun on one node",
     {{"RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR",
       "h", "MASTER_PORT", "1", "TORCHELASTIC_RUN_ID", "x", "TORCHELASTIC_RESTART_COUNT", "3"}},
     "torchrun",
     0,
     2,
     2,
     HUB_AT_UNIX_NAME,
     "torchrun|x|1|3",
     NULL},
    {"Open MPI on one host",
     {{OPENMPI}},
     "Open MPI",
     3,
     4,
     4,
     HUB_AT_UNIX_NAME,
     "openmpi|817||",
     NULL},
    {"Open MPI with a master",
     {{OPENMPI, "MASTER_ADDR", "fe80::1", "MASTER_PORT", "5"}},
     "Open MPI",
     3,
     4,
     4,
     HUB_AT_MASTER,
     "[fe80::1]:5",
     NULL},
    {"PMI", {{PMI}}, "PMI", 0, 2, 2, HUB_AT_UNIX_NAME, "pmi|||", NULL},
    {"PMI over hosts", {{PMI_REMOTE}}, "PMI", 3, 4, 1, HUB_AT_PMI, "pmi", NULL},
    {"PMI, as Slurm offers it, without local numbers",
     {{"PMI_RANK", "1", "PMI_SIZE", "3", "PMI_FD", "9", "SLURM_STEP_ID", "0"}},
     "PMI",
     1,
     3,
     0,
     HUB_AT_PMI,
     "pmi",
     NULL},
    {"PMI over hosts with a master",
     {{PMI_REMOTE, "MASTER_ADDR", "h", "MASTER_PORT", "5"}},
     "PMI",
     3,
     4,
     1,
     HUB_AT_MASTER,
     "h:5",
     NULL},
    {"Open MPI over hosts",
     {{OPENMPI_REMOTE}},
     "Open MPI",
     3,
     4,
     2,
     HUB_AT_PMIX,
     "set MASTER_ADDR and MASTER_PORT to the address of rank 0, or "
     "LOCKSTEP_STORE=file://PATH to a file that all hosts share (mpirun -x NAME passes it on)",
     NULL},
    {"Open MPI over hosts with a file",
     {{OPENMPI_REMOTE, "LOCKSTEP_STORE", "file:///shared/job7"}},
     "Open MPI",
     3,
     4,
     2,
     HUB_AT_FILE,
     "file:///shared/job7",
     NULL},
    {"Slurm with a file",
     {{SLURM, "LOCKSTEP_STORE", "file:///shared/job7"}},
     "Slurm",
     5,
     6,
     3,
     HUB_AT_FILE,
     "file:///shared/job7",
     NULL},
    {"Slurm with a master",
     {{SLURM, "MASTER_ADDR", "n0", "MASTER_PORT", "9"}},
     "Slurm",
     5,
     6,
     3,
     HUB_AT_MASTER,
     "n0:9",
     NULL},
    {"a Slurm step of one task",
     {{"SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_STEP_ID", "0"}},
     "",
     0,
     1,
     1,
     HUB_AT_NONE,
     "",
     NULL},
    {"bare variables",
     {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "h", "MASTER_PORT", "7"}},
     "RANK",
     1,
     2,
     0,
     HUB_AT_MASTER,
     "h:7",
     NULL},
    {"bare variables with a file",
     {{"RANK", "1", "WORLD_SIZE", "2", "LOCKSTEP_STORE", "file:///x"}},
     "RANK",
     1,
     2,
     0,
     HUB_AT_FILE,
     "file:///x",
     NULL},
    {"bare variables with a master and a file",
     {{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "h", "MASTER_PORT", "7", "LOCKSTEP_STORE",
       "file:///x"}},
     "RANK",
     1,
     2,
     0,
     HUB_AT_FILE,
     "file:///x",
     NULL},
    {"torchrun with a file",
     {{TORCHRUN, "LOCKSTEP_STORE", "file:///x"}},
     "torchrun",
     2,
     4,
     2,
     HUB_AT_FILE,
     "file:///x",
     NULL},
    {"the launcher's variables set by hand with a file",
     {{"LOCKSTEP_RANK", "1", "LOCKSTEP_WORLD_SIZE", "2", "LOCKSTEP_STORE", "file:///x"}},
     "LOCKSTEP",
     1,
     2,
     0,
     HUB_AT_FILE,
     "file:///x",
     NULL},
    {"mpirun of Open MPI inside a job of one rank",
     {{OUTER, OPENMPI}},
     "Open MPI",
     3,
     4,
     4,
     HUB_AT_UNIX_NAME,
     "openmpi|817||",
     NULL},
    {"mpirun of Open MPI over hosts with a file, inside a job of one rank",
     {{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "1", OPENMPI_REMOTE, "LOCKSTEP_STORE",
       "file:///x"}},
     "Open MPI",
     3,
     4,
     2,
     HUB_AT_FILE,
     "file:///x",
     NULL},
    {"mpirun of MPICH inside a job of one rank",
     {{OUTER, PMI}},
     "PMI",
     0,
     2,
     2,
     HUB_AT_UNIX_NAME,
     "pmi|||",
     NULL},
    {"srun inside a job of one rank",
     {{OUTER, "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "SLURM_STEP_ID", "0",
       "SLURM_JOB_ID", "77", "SLURM_LOCALID", "1", "SLURM_STEP_NUM_NODES", "1"}},
     "Slurm",
     1,
     2,
     2,
     HUB_AT_UNIX_NAME,
     "slurm|77|0|",
     NULL},
    {"srun with PMIx inside a job of one rank",
     {{OUTER, "SLURM_STEP_NUM_TASKS", "2", "SLURM_STEP_ID", "0", "SLURM_JOB_ID", "77",
       "SLURM_STEP_NUM_NODES", "1", "PMIX_RANK", "1", "PMIX_NAMESPACE", "x"}},
     "PMIx",
     1,
     2,
     2,
     HUB_AT_UNIX_NAME,
     "pmix|x||0",
     NULL},
    {"torchrun inside a job of one rank",
     {{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "1", "LOCKSTEP_STORE", "unix:@hub", TORCHRUN}},
     "torchrun",
     2,
     4,
     2,
     HUB_AT_MASTER,
     "10.0.0.1:29500",
     NULL},
    {"mpirun with one rank inside a job of one rank",
     {{OUTER, "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "1"}},
     "LOCKSTEP",
     0,
     1,
     1,
     HUB_AT_NONE,
     "",
     NULL},
    {"the launcher before torchrun",
     {{LAUNCHER, "RANK", "1", "WORLD_SIZE", "3", "LOCAL_RANK", "1", "MASTER_ADDR", "h",
       "MASTER_PORT", "7"}},
     "LOCKSTEP",
     1,
     3,
     3,
     HUB_AT_URL,
     "unix:@hub",
     NULL},
    {"the launcher with the PMI it offers",
     {{LAUNCHER, "PMI_RANK", "1", "PMI_SIZE", "3", "MPI_LOCALRANKID", "1", "MPI_LOCALNRANKS", "3",
       "PMI_FD", "6"}},
     "LOCKSTEP",
     1,
     3,
     3,
     HUB_AT_URL,
     "unix:@hub",
     NULL},
    {"two that disagree",
     {{LAUNCHER, PMI}},
     "LOCKSTEP",
     1,
     3,
     3,
     HUB_AT_URL,
     "unix:@hub",
     "LOCKSTEP_RANK means rank 1 of 3, but PMI_RANK means rank 0 of 2: using the first"},
    {"a lonely PMIx rank",
     {{"PMIX_RANK", "1", "PMIX_NAMESPACE", "x"}},
     "",
     0,
     1,
     1,
     HUB_AT_NONE,
     "",
     "PMIX_RANK is set, but the number of ranks is not: this process runs as a job of one rank"},
    {"empty variables are not set",
     {{"RANK", "", "WORLD_SIZE", "", "MASTER_ADDR", ""}},
     "",
     0,
     1,
     1,
     HUB_AT_NONE,
     "",
     NULL},
};

static void families_are_found_in_their_order(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(good); i++) {
        const row *r = &good[i];
        identity id;

        print_message("%s\n", r->what);
        assert_ok(find(&r->in, NULL, &id));
        assert_string_equal(id.family, r->family);
        assert_int_equal(id.rank, r->rank);
        assert_int_equal(id.size, r->size);
        assert_int_equal(id.local_size, r->local_size);
        assert_int_equal(id.hub_at, r->hub_at);
        assert_string_equal(id.location, r->location);
        if (r->warning == NULL)
            assert_string_equal(id.warning, "");
        else
            assert_non_null(strstr(id.warning, r->warning));
    }
}

/* `says`: up to two parts of the error text. */
typedef struct bad_row {
    vars in;
    const char *says[2];
} bad_row;

static const bad_row bad[] = {
    {{{"LOCKSTEP_RANK", "1"}}, {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE"}},
    {{{"LOCKSTEP_RANK", "1x", "LOCKSTEP_WORLD_SIZE", "2"}}, {"LOCKSTEP_RANK", "1x"}},
    {{{"LOCKSTEP_RANK", "-1", "LOCKSTEP_WORLD_SIZE", "2"}}, {"LOCKSTEP_RANK", "-1"}},
    {{{"LOCKSTEP_RANK", "2", "LOCKSTEP_WORLD_SIZE", "2"}},
     {"LOCKSTEP_RANK is 2", "LOCKSTEP_WORLD_SIZE is only 2"}},
    {{{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "99999999999999999999"}},
     {"LOCKSTEP_WORLD_SIZE", "99999999999999999999"}},
    {{{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "2"}},
     {"neither LOCKSTEP_STORE nor MASTER_ADDR", "set one to the job's rendezvous endpoint"}},
    {{{LAUNCHER, "LOCKSTEP_RING_FD", "x"}}, {"LOCKSTEP_RING_FD", "x"}},
    {{{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "2", "LOCKSTEP_LOCAL_RANK", "2",
       "LOCKSTEP_LOCAL_WORLD_SIZE", "2"}},
     {"LOCKSTEP_LOCAL_RANK", "2"}},
    {{{"LOCKSTEP_RANK", "0", "LOCKSTEP_WORLD_SIZE", "2", "LOCKSTEP_JOB", "zz"}},
     {"LOCKSTEP_JOB \"zz\"", "must be 16 hexadecimal digits"}},
    {{{"RANK", "0"}}, {"RANK", "WORLD_SIZE"}},
    {{{"WORLD_SIZE", "4"}}, {"WORLD_SIZE", "RANK"}},
    {{{"RANK", "0", "WORLD_SIZE", "4"}}, {"RANK is set", "MASTER_ADDR"}},
    {{{"RANK", "0", "WORLD_SIZE", "4", "MASTER_ADDR", "h", "MASTER_PORT", "0"}},
     {"MASTER_PORT", "0"}},
    {{{"RANK", "0", "WORLD_SIZE", "4", "MASTER_ADDR", "h", "MASTER_PORT", "65536"}},
     {"MASTER_PORT", "65536"}},
    {{{SLURM}}, {"Slurm", "set MASTER_ADDR and MASTER_PORT to the address of rank 0"}},
    {{{SLURM}}, {"Slurm", "LOCKSTEP_STORE=file://"}},
    {{{SLURM, "LOCKSTEP_STORE", "file://"}}, {"LOCKSTEP_STORE \"file://\"", "file://PATH"}},
    {{{SLURM, "LOCKSTEP_STORE", "tcp://h:1"}}, {"tcp://h:1", "under Slurm it must be file://PATH"}},
    {{{"PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "1", "PMI_PORT", "h:1"}},
     {"PMI_PORT", "MASTER_ADDR"}},
    {{{"PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "1", "PMI_FD", "x"}}, {"PMI_FD", NULL}},
    {{{"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE",
       "2"}},
     {"PMIX_NAMESPACE", NULL}},
    {{{"PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2"}},
     {"neither PMI_FD nor PMI_PORT", "jobs cannot be distinguished"}},
};

/* They are the outer job's one rank's, which four ranks would share. */
static void inner_launcher_has_no_descriptors_of_the_outer_job(void **state)
{
    identity id;

    LS_UNUSED(state);
    assert_ok(find(&(vars){{OUTER, "LOCKSTEP_LISTEN_FD", "21", OPENMPI}}, NULL, &id));
    assert_true(id.is_inner);
    assert_int_equal(id.ring_fd, -1);
    assert_int_equal(id.listen_fd, -1);
    assert_ok(find(&(vars){{OUTER, "LOCKSTEP_LISTEN_FD", "21"}}, NULL, &id));
    assert_false(id.is_inner);
    assert_int_equal(id.ring_fd, 20);
    assert_int_equal(id.listen_fd, 21);
}

static void bad_values_are_named(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        identity id;

        assert_status(find(&bad[i].in, NULL, &id), LS_EINVAL);
        for (int k = 0; k < 2 && bad[i].says[k] != NULL; k++)
            assert_last_error(bad[i].says[k]);
    }
}

static void options_beat_the_environment(void **state)
{
    const vars v = {{LAUNCHER}};
    ls_init_options opt = {.size = sizeof(opt), .rank = 3, .world_size = 5};
    identity id;

    LS_UNUSED(state);
    assert_ok(find(&v, &opt, &id));
    assert_string_equal(id.family, "options");
    assert_int_equal(id.rank, 3);
    assert_int_equal(id.size, 5);
    assert_int_equal(id.hub_at, HUB_AT_URL);

    opt.init_method = "tcp://10.0.0.9:4000";
    assert_ok(find(&v, &opt, &id));
    assert_int_equal(id.hub_at, HUB_AT_MASTER);
    assert_string_equal(id.location, "10.0.0.9:4000");

    opt.init_method = "file:///tmp/x";
    assert_ok(find(&v, &opt, &id));
    assert_int_equal(id.hub_at, HUB_AT_FILE);
}

static void bad_options_are_named(void **state)
{
    static char in_no_job; // never opened as a store
    const vars v = {{0}};
    const struct {
        ls_init_options opt;
        const char *says;
    } rows[] = {
        {{.rank = 5, .world_size = 5}, "rank 5"},
        {{.rank = -1, .world_size = 5}, "rank -1"},
        {{.world_size = -2}, "world_size -2"},
        {{.init_method = "tcp://h:1"}, "init_method \"tcp://h:1\" needs rank and world_size"},
        {{.store = (ls_store *)(void *)&in_no_job}, "a store needs rank and world_size"},
        {{.rank = 0, .world_size = 2, .init_method = "http://h"},
         "\"http://h\": must be env://, tcp://HOST:PORT or file://PATH"},
        {{.rank = 0, .world_size = 2, .init_method = "file://"}, "file://"},
        {{.rank = 0, .world_size = 2}, "set MASTER_ADDR and MASTER_PORT to the address of rank 0"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        ls_init_options opt = rows[i].opt;
        identity id;

        opt.size = sizeof(opt);
        assert_status(find(&v, &opt, &id), LS_EINVAL);
        assert_last_error(rows[i].says);
    }
}

static void bad_settings_name_the_valid_values(void **state)
{
    const ls_init_options opt = {.size = sizeof(opt), .transport = "udp"};
    ls_comm *comm = NULL;

    LS_UNUSED(state);
    assert_status(ls_init(&opt, &comm), LS_EINVAL);
    assert_last_error("transport \"udp\": must be auto, shm or tcp");
    assert_null(comm);
    assert_status(ls_backend_check("ucx", 2), LS_EINVAL);
    assert_last_error("backend \"ucx\": must be auto, native, mpi, nccl or gloo");
}

static void slurm_task_lists_are_read_strictly(void **state)
{
    static const char *const wrong[] = {"", "x", "4(", "4(x", "4(x2", "4(x0)", "4,,2", "4,", "-1"};
    int n = 0;

    LS_UNUSED(state);
    assert_ok(cores_slurm_tasks("4(x2),2", "V", 0, &n));
    assert_int_equal(n, 4);
    assert_ok(cores_slurm_tasks("4(x2),2", "V", 1, &n));
    assert_int_equal(n, 4);
    assert_ok(cores_slurm_tasks("4(x2),2", "V", 2, &n));
    assert_int_equal(n, 2);
    assert_status(cores_slurm_tasks("4(x2),2", "V", 3, &n), LS_EINVAL);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++)
        assert_status(cores_slurm_tasks(wrong[i], "V", 9, &n), LS_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_found_in_their_order),
        cmocka_unit_test(inner_launcher_has_no_descriptors_of_the_outer_job),
        cmocka_unit_test(bad_values_are_named),
        cmocka_unit_test(options_beat_the_environment),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(bad_settings_name_the_valid_values),
        cmocka_unit_test(slurm_task_lists_are_read_strictly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
