/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of this build, started by others: torchrun's variables, and mpirun. */
#include "launch/job.h"

#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* What this test itself may have been started under. */
#define CLEAN "LOCKSTEP_RANK", "LOCKSTEP_STORE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"

static job *start_as_torchrun(const char *program, int rank, int size, const char *port)
{
    char own[2][32], all[2][32];

    text_format(own[0], sizeof(own[0]), "RANK=%d", rank);
    text_format(own[1], sizeof(own[1]), "LOCAL_RANK=%d", rank);
    text_format(all[0], sizeof(all[0]), "WORLD_SIZE=%d", size);
    text_format(all[1], sizeof(all[1]), "LOCAL_WORLD_SIZE=%d", size);
    return job_start(JOB_LIST(program),
                     JOB_LIST(CLEAN, own[0], own[1], all[0], all[1], "MASTER_ADDR=127.0.0.1", port,
                              "GROUP_RANK=0", "GROUP_WORLD_SIZE=1"));
}

/* Ranks on one host need no port, so any number will do; it names the meeting. */
static void expect_under_torchrun(const char *program, const char *const *lines, int n)
{
    job *ranks[JOB_MOST];
    char port[32];

    text_format(port, sizeof(port), "MASTER_PORT=%d", 20000 + (int)(getpid() % 10000));
    for (int r = 0; r < n; r++)
        ranks[r] = start_as_torchrun(program, r, n, port);
    for (int r = 0; r < n; r++) {
        job_expect_code(ranks[r], 0);
        job_expect(ranks[r], job_printed(ranks[r], 0, lines[r]));
        job_expect_gone(ranks[r]);
    }
}

static void message_passing_takes_torchruns_variables(void **state)
{
    LS_UNUSED(state);
    expect_under_torchrun(LOCKSTEP_BIN "/message_passing",
                          JOB_LIST("Rank 0 has sent data to rank 2.\n",
                                   "Rank 1 has received 1 from rank 0.\n",
                                   "Rank 2 has received 1 from rank 0.\n"),
                          3);
}

static void elastic_ddp_takes_torchruns_variables(void **state)
{
    LS_UNUSED(state);
    expect_under_torchrun(LOCKSTEP_BIN "/elastic_ddp",
                          JOB_LIST("Start running basic DDP example on rank 0.\n",
                                   "Start running basic DDP example on rank 1.\n"),
                          2);
}

static void ranks_meet_at_the_file_of_the_environment(void **state)
{
    job *ranks[2];
    char store[96], rank[32];

    LS_UNUSED(state);
    text_format(store, sizeof(store), "LOCKSTEP_STORE=file:///tmp/lockstep-test-foreign-%d",
                (int)getpid());
    (void)unlink(strchr(store, '/') + 2);
    for (int r = 0; r < 2; r++) {
        text_format(rank, sizeof(rank), "RANK=%d", r);
        ranks[r] = job_start(JOB_LIST(LOCKSTEP_BIN "/elastic_ddp"),
                             JOB_LIST(CLEAN, "LOCKSTEP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                                      "LOCAL_RANK", rank, "WORLD_SIZE=2", store));
    }
    for (int r = 0; r < 2; r++) {
        job_expect_code(ranks[r], 0);
        job_expect(ranks[r], job_printed(ranks[r], 0, "Start running basic DDP example on rank"));
    }
    (void)unlink(strchr(store, '/') + 2);
}

/* Whether this mpirun is there and of this family. */
static bool has_launcher(const char *launcher, const char *family)
{
    job *j = job_start(JOB_LIST(launcher, "--version"), NULL);
    bool has;

    job_await_end(j);
    has = job_printed(j, 0, family);
    job_clean_up(NULL);
    if (!has)
        print_message("no %s: not tested\n", launcher);
    return has;
}

static void expect_under_mpirun(const char *const *command, const char *line)
{
    job *j = job_start(command, JOB_LIST(CLEAN, "OMPI_ALLOW_RUN_AS_ROOT=1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                         "OMPI_MCA_rmaps_base_oversubscribe=1"));

    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, line));
    job_expect_gone(j);
    job_clean_up(NULL);
}

static void expect_programs_under(const char *launcher)
{
    expect_under_mpirun(JOB_LIST(launcher, "-np", "3", LOCKSTEP_BIN "/message_passing"),
                        "Rank 2 has received 1 from rank 0.\n");
    expect_under_mpirun(JOB_LIST(launcher, "-np", "2", LOCKSTEP_BIN "/elastic_ddp"),
                        "Start running basic DDP example on rank 1.\n");
    expect_under_mpirun(
        JOB_LIST(launcher, "-np", "2", LOCKSTEP_BIN "/all_gather_perf", "-b", "8", "-e", "8"),
        " all_gather, 2 ranks");
    /* and the launcher itself inside ours, for its programs and for ours */
    expect_under_mpirun(JOB_LIST(JOB_TOOL, "run", launcher, "-np", "2", "echo", "hello"),
                        "hello\nhello\n");
    expect_under_mpirun(
        JOB_LIST(JOB_TOOL, "run", launcher, "-np", "3", LOCKSTEP_BIN "/message_passing"),
        "Rank 2 has received 1 from rank 0.\n");
    expect_under_mpirun(
        JOB_LIST(JOB_TOOL, "run", launcher, "-np", "1", LOCKSTEP_BIN "/elastic_ddp"),
        "Start running basic DDP example on rank 0.\n");
}

static void programs_run_under_open_mpi(void **state)
{
    LS_UNUSED(state);
    if (!has_launcher("mpirun.openmpi", "Open"))
        skip();
    expect_programs_under("mpirun.openmpi");
}

static void programs_run_under_mpich(void **state)
{
    LS_UNUSED(state);
    if (!has_launcher("mpirun.mpich", "HYDRA"))
        skip();
    expect_programs_under("mpirun.mpich");
}

static int count_text(const text_buf *text, const char *what)
{
    int n = 0;

    for (const char *at = strstr(text_str(text), what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

static int count_hints(const char *variable, const char *log)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", LOCKSTEP_BIN "/message_passing"),
                       JOB_LIST(variable, log));
    int n;

    job_expect_code(j, 0);
    n = count_text(&j->err, "LOCKSTEP_LOG=debug logs how ranks join");
    job_clean_up(NULL);
    return n;
}

static void variable_of_nccl_for_detail_hints_once_at_ours(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(count_hints("NCCL_DEBUG=INFO", "LOCKSTEP_LOG"), 1);
    assert_int_equal(count_hints("NCCL_DEBUG=trace", "LOCKSTEP_LOG"), 1);
    assert_int_equal(count_hints("NCCL_DEBUG=WARN", "LOCKSTEP_LOG"), 0);
    assert_int_equal(count_hints("NCCL_DEBUG=INFO", "LOCKSTEP_LOG=warn"), 0);
    assert_int_equal(count_hints("NCCL_DEBUG", "LOCKSTEP_LOG"), 0);
}

/* What srun sets for each task, inside a job of one rank. */
static void ranks_of_srun_inside_a_job_of_one_rank_are_sruns(void **state)
{
    static const char script[] =
        "for i in 0 1 2; do SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_STEP_ID=0 SLURM_JOB_ID=77 "
        "SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 "
        "SLURM_STEP_TASKS_PER_NODE=3 $PMIX PMIX_RANK=$i " LOCKSTEP_BIN "/message_passing & done; "
        "wait";
    static const char *const environments[] = {"env", "env PMIX_NAMESPACE=slurm.pmix.77.0"};
    char variable[96];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(environments); i++) {
        job *j;
        text_format(variable, sizeof(variable), "PMIX=%s", environments[i]);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "sh", "-c", script), JOB_LIST(CLEAN, variable));
        job_expect_code(j, 0);
        for (int r = 1; r < 3; r++) {
            char line[64];
            text_format(line, sizeof(line), "Rank %d has received 1 from rank 0.\n", r);
            job_expect(j, job_printed(j, 0, line));
        }
        job_clean_up(NULL);
    }
}

static void programs_run_under_our_own_launcher(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "4", LOCKSTEP_BIN "/elastic_ddp"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 4; r++) {
        char line[96];
        text_format(line, sizeof(line), "rank %d| Start running basic DDP example on rank %d.\n", r,
                    r);
        job_expect(j, job_printed(j, 0, line));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(message_passing_takes_torchruns_variables),
        test(elastic_ddp_takes_torchruns_variables),
        test(ranks_meet_at_the_file_of_the_environment),
        test(programs_run_under_open_mpi),
        test(programs_run_under_mpich),
        test(variable_of_nccl_for_detail_hints_once_at_ours),
        test(ranks_of_srun_inside_a_job_of_one_rank_are_sruns),
        test(programs_run_under_our_own_launcher),
    };

    return cmocka_run_group_tests_name("launch foreign", tests, NULL, NULL);
}
