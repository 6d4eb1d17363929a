/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI over hosts that are network namespaces: unmodified MPICH programs under our launcher, and our
 * programs under mpirun of MPICH and of Open MPI, which starts them there by lab_rsh.sh.
 */
#include "launch/lab_scene.h"

#include "net/key.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

#ifndef MPI_PROGRAM
#define MPI_PROGRAM ""
#endif

enum { ARGS_MOST = 48 };

static void skip_without(const char *launcher, const char *family)
{
    job *j = job_start(JOB_LIST(launcher, "--version"), NULL);
    bool has;

    job_await_end(j);
    has = job_printed(j, 0, family);
    (void)job_clean_up(NULL);
    if (!has) {
        print_message("no %s: not tested\n", launcher);
        skip();
    }
}

/* --- MPICH's programs under our launcher --- */

static job *start_node(const char *i, const char *n, const char *const *program)
{
    const char *argv[ARGS_MOST] = {
        LS_NETLAB_SH,    "exec",       i,    JOB_TOOL, "run", "--nnodes", "2", "--node-rank", i,
        "--master-addr", "10.77.0.10", "-n", n};
    int args = 13;

    for (; *program != NULL && args < ARGS_MOST - 1; program++)
        argv[args++] = *program;
    return job_start(argv, JOB_LIST(key_variable, lab_variable));
}

static void begin(job **jobs, const char *what, const char *a, const char *b)
{
    if (strlen(MPI_PROGRAM) == 0) {
        print_message("no mpicc.mpich when this was built: not tested\n");
        skip();
    }
    lab_build(2, "");
    jobs[0] = start_node("0", "2", JOB_LIST(MPI_PROGRAM, what, a, b));
    jobs[1] = start_node("1", "1", JOB_LIST(MPI_PROGRAM, what, a, b));
}

static void ranks_of_an_mpi_program_find_each_other_over_nodes(void **state)
{
    job *jobs[2];

    LS_UNUSED(state);
    begin(jobs, NULL, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], !job_printed(jobs[i], 1, "failed"));
        job_expect_gone(jobs[i]);
    }
    job_expect(jobs[0], job_printed(jobs[0], 0, "rank 0 of 3: sum 6, left 3, half 4 of 2\n"));
    job_expect(jobs[0], job_printed(jobs[0], 0, "rank 1 of 3: sum 6, left 1, half 2 of 1\n"));
    job_expect(jobs[1], job_printed(jobs[1], 0, "rank 2 of 3: sum 6, left 2, half 4 of 2\n"));
}

static void expect_end_everywhere(job **jobs, int code, const char *words)
{
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], code);
        job_expect(jobs[i], job_printed(jobs[i], 1, "lockstep: node 1 (node1): rank 2 (pid "));
        job_expect(jobs[i], job_printed(jobs[i], 1, words));
        job_expect_gone(jobs[i]);
    }
}

static void an_abort_ends_the_job_on_all_nodes(void **state)
{
    job *jobs[2];

    LS_UNUSED(state);
    begin(jobs, "abort", "2", "7");
    expect_end_everywhere(jobs, 7, "ended the job with MPI_Abort, code 7\n");
}

static void a_rank_that_leaves_mpi_alone_is_named_on_all_nodes(void **state)
{
    job *jobs[2];

    LS_UNUSED(state);
    begin(jobs, "leave", "2", NULL);
    expect_end_everywhere(jobs, 1, "exited with code 0 without MPI_Finalize");
}

/* --- our programs under mpirun --- */

#define CLEAN "PMI_FD", "PMI_RANK", "PMI_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"

static job *start_hydra(const char *const *more)
{
    const char *argv[ARGS_MOST] = {LS_NETLAB_SH,
                                   "exec",
                                   "0",
                                   "mpirun.mpich",
                                   "-launcher",
                                   "ssh",
                                   "-launcher-exec",
                                   RSH,
                                   "-localhost",
                                   "10.77.0.10",
                                   "-hosts",
                                   "10.77.0.10:2,10.77.0.11:1",
                                   "-n",
                                   "3"};
    int n = 14;

    for (; *more != NULL && n < ARGS_MOST - 1; more++)
        argv[n++] = *more;
    return job_start(argv,
                     JOB_LIST(CLEAN, key_variable, lab_variable, "LS_NETLAB_SH=" LS_NETLAB_SH));
}

static job *start_open_mpi(const char *const *more)
{
    const char *argv[ARGS_MOST] = {LS_NETLAB_SH,
                                   "exec",
                                   "0",
                                   "mpirun.openmpi",
                                   "--mca",
                                   "plm_rsh_agent",
                                   RSH,
                                   "--mca",
                                   "oob_tcp_if_include",
                                   "10.77.0.0/24",
                                   "--oversubscribe",
                                   "-x",
                                   NET_KEY_FILE_ENV,
                                   "-H",
                                   "10.77.0.10:2,10.77.0.11:1",
                                   "-np",
                                   "3"};
    int n = 17;

    for (; *more != NULL && n < ARGS_MOST - 1; more++)
        argv[n++] = *more;
    return job_start(argv,
                     JOB_LIST(CLEAN, key_variable, lab_variable, "LS_NETLAB_SH=" LS_NETLAB_SH,
                              "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"));
}

static void expect_passed(job *j)
{
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "Rank 1 has received 1 from rank 0.\n"));
    job_expect(j, job_printed(j, 0, "Rank 2 has received 1 from rank 0.\n"));
    job_expect_gone(j);
}

static void our_programs_meet_through_pmi_under_mpich(void **state)
{
    LS_UNUSED(state);
    skip_without("mpirun.mpich", "HYDRA");
    lab_build(2, "");
    for (int round = 0; round < job_rounds(); round++) {
        expect_passed(start_hydra(JOB_LIST(LOCKSTEP_BIN "/message_passing")));
        (void)job_clean_up(NULL);
    }
    job_expect_code(
        start_hydra(JOB_LIST(LOCKSTEP_BIN "/mnist", "--steps", "3", "--batch_size", "16")), 0);
}

/* Homes that are not shared: each host has a key of its own. */
static void keys_that_differ_are_named_under_mpich(void **state)
{
    char home[64];
    char clean[96];
    job *j;

    LS_UNUSED(state);
    skip_without("mpirun.mpich", "HYDRA");
    lab_build(2, "");
    text_format(home, sizeof(home), "/tmp/lockstep-mpi-home-%d", (int)getpid());
    text_format(clean, sizeof(clean), "rm -rf %s-*", home);
    j = start_hydra(JOB_LIST("sh", "-c",
                             "unset LOCKSTEP_KEY_FILE; export HOME=$0-$PMI_RANK; mkdir -p $HOME; "
                             "exec " LOCKSTEP_BIN "/message_passing",
                             home));
    job_await_end(j);
    job_expect(j, !job_printed(j, 0, "has received"));
    job_expect(j, job_printed(j, 1, "has another key than "));
    job_expect_gone(j);
    assert_int_equal(system(clean), 0);
}

static void our_programs_meet_through_pmix_under_open_mpi(void **state)
{
    LS_UNUSED(state);
    skip_without("mpirun.openmpi", "Open");
    lab_build(2, "");
    for (int round = 0; round < job_rounds(); round++) {
        expect_passed(start_open_mpi(JOB_LIST(LOCKSTEP_BIN "/message_passing")));
        (void)job_clean_up(NULL);
    }
}

/* Rank 1 joins when a line has reported that the others wait. */
static void joining_through_pmix_says_that_it_takes_long(void **state)
{
    char file[96];
    char script[512];
    job *j;

    LS_UNUSED(state);
    skip_without("mpirun.openmpi", "Open");
    lab_build(2, "");
    text_format(file, sizeof(file), "/tmp/lockstep-mpi-late-%d", (int)getpid());
    text_format(
        script, sizeof(script),
        "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then while [ ! -e %s ]; do sleep 0.02; done; fi; "
        "exec " LOCKSTEP_BIN "/message_passing",
        file);
    j = start_open_mpi(JOB_LIST("-x", "LOCKSTEP_LATE_MS=200", "sh", "-c", script));
    job_await_text(j, 1, "not all ranks have reached the launcher's PMIx fence");
    assert_int_equal(close(creat(file, 0600)), 0);
    expect_passed(j);
    (void)unlink(file);
}

/* The MPI comes to the starter's board after us. */
static void an_mpi_library_as_backend_joins_behind_us(void **state)
{
    const char *const program[] = {LOCKSTEP_BIN "/message_passing", "--backend", "mpi", NULL};
    job *nodes[2];

    LS_UNUSED(state);
    if (access(LOCKSTEP_BIN "/../lib/liblockstep_mpi-mpich.so", R_OK) == 0) {
        lab_build(2, "");
        expect_passed(start_hydra(program));
        nodes[0] = start_node("0", "2", program);
        nodes[1] = start_node("1", "1", program);
        for (int i = 0; i < 2; i++)
            job_expect_code(nodes[i], 0);
        job_expect(nodes[1], job_printed(nodes[1], 0, "Rank 2 has received 1 from rank 0.\n"));
    }
    if (access(LOCKSTEP_BIN "/../lib/liblockstep_mpi-openmpi.so", R_OK) == 0) {
        lab_build(2, "");
        expect_passed(
            start_open_mpi(JOB_LIST("--mca", "btl_tcp_if_include", "10.77.0.0/24",
                                    LOCKSTEP_BIN "/message_passing", "--backend", "mpi")));
    }
}

/* Words of the user's count before PMIx. */
static void a_master_and_a_file_serve_as_well(void **state)
{
    char file[96];
    char url[128];

    LS_UNUSED(state);
    skip_without("mpirun.openmpi", "Open");
    lab_build(2, "");
    expect_passed(start_open_mpi(JOB_LIST("-x", "MASTER_ADDR=10.77.0.10", "-x", "MASTER_PORT=29511",
                                          LOCKSTEP_BIN "/message_passing")));
    text_format(file, sizeof(file), "/tmp/lockstep-mpi-store-%d", (int)getpid());
    text_format(url, sizeof(url), "LOCKSTEP_STORE=file://%s", file);
    expect_passed(start_open_mpi(JOB_LIST("-x", url, LOCKSTEP_BIN "/message_passing")));
    (void)unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_of_an_mpi_program_find_each_other_over_nodes),
        test(an_abort_ends_the_job_on_all_nodes),
        test(a_rank_that_leaves_mpi_alone_is_named_on_all_nodes),
        test(our_programs_meet_through_pmi_under_mpich),
        test(keys_that_differ_are_named_under_mpich),
        test(our_programs_meet_through_pmix_under_open_mpi),
        test(joining_through_pmix_says_that_it_takes_long),
        test(an_mpi_library_as_backend_joins_behind_us),
        test(a_master_and_a_file_serve_as_well),
    };

    return cmocka_run_group_tests(tests, lab_make_key, lab_remove_key);
}
