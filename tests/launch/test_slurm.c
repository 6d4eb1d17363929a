/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside an allocation of Slurm's: with a stand-in for srun, and, where LS_TEST_FULL is set, with a
 * Slurm of three fake nodes of our own (slurm_lab.sh).
 */
#include "launch/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

enum { ARGS_MOST = 40, SKIPPED = 77 };

static struct {
    bool is_up;
    char folder[64];
    char conf[96]; /* SLURM_CONF= */
} lab;

#define SHELL(script) "sh", "-c", script

static void expect_end(job *j, int code)
{
    job_expect_code(j, code);
    job_expect_gone(j);
}

/* --- with a stand-in --- */

#define ALLOCATION                                                                                 \
    "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2],m3", "SLURM_TASKS_PER_NODE=2,1(x2)",              \
        "SLURM_STEP_ID", "SLURM_PROCID", "SLURMD_NODENAME"

static const char script[] = "echo $RANK/$WORLD_SIZE on $SLURMD_NODENAME, node $GROUP_RANK";

static void an_allocation_is_used_by_itself(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, SHELL(script)),
                       JOB_LIST(ALLOCATION));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 0/4 on n1, node 0\n"));
    job_expect(j, job_printed(j, 0, "rank 1| 1/4 on n1, node 0\n"));
    job_expect(j, job_printed(j, 0, "rank 2| 2/4 on n2, node 1\n"));
    job_expect(j, job_printed(j, 0, "rank 3| 3/4 on m3, node 2\n"));
}

/* In sbatch's script: it runs on the first node, which needs no srun. */
static void the_own_node_is_used_in_place(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-n", "1", SHELL(script)),
        JOB_LIST(ALLOCATION, "SLURMD_NODENAME=n1", "SLURM_PROCID=0", "FAKE_SSH=n1=denied"));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 0/3 on n1, node 0\n"));
    job_expect(j, job_printed(j, 0, "rank 2| 2/3 on m3, node 2\n"));
}

static void a_task_of_a_step_starts_no_steps(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", "/nowhere", SHELL("echo $WORLD_SIZE")),
                       JOB_LIST(ALLOCATION, "SLURM_STEP_ID=0"));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "1\n"));
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "--ssh", "/nowhere", "--standalone", SHELL("echo $WORLD_SIZE")),
        JOB_LIST(ALLOCATION));
    expect_end(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "1\n"));
}

static void hosts_that_are_given_go_before_slurms(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", "/nowhere", "-H", "localhost:2",
                                SHELL("echo $WORLD_SIZE")),
                       JOB_LIST(ALLOCATION));

    LS_UNUSED(state);
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| 2\n"));
}

static void failing_srun_is_reported(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "true"),
                       JOB_LIST(ALLOCATION, "FAKE_SSH=n2=down"));

    LS_UNUSED(state);
    expect_end(j, 1);
    job_expect(j,
               job_printed(j, 1, "lockstep: host n2: ") && job_printed(j, 1, "srun -N1 -n1 -w n2"));
}

/* --- with Slurm --- */

static job *allocate(const char *nodes, const char *tasks, const char *const *command)
{
    const char *argv[ARGS_MOST] = {"salloc", "-Q", nodes, tasks};
    int n = 4;

    for (; *command != NULL && n < ARGS_MOST - 1; command++)
        argv[n++] = *command;
    return job_start(argv, JOB_LIST(lab.conf));
}

static void need_lab(void)
{
    if (lab.is_up)
        return;
    print_message(
        "needs a Slurm of our own: LS_TEST_FULL, root, slurmctld, slurmd, slurm-client\n");
    skip();
}

static void ranks_run_in_salloc(void **state)
{
    job *j;

    LS_UNUSED(state);
    need_lab();
    j = allocate("-N3", "--ntasks-per-node=2", JOB_LIST(JOB_TOOL, "run", SHELL(script)));
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| 1/6 on n1, node 0\n"));
    job_expect(j, job_printed(j, 0, "rank 5| 5/6 on n3, node 2\n"));
    j = allocate("-N2", "-n3", JOB_LIST(JOB_TOOL, "run", JOB_ACTOR, "steps", "100"));
    expect_end(j, 0);
    job_expect(j, job_printed(j, 0, "rank 2| rank 2 has joined"));
}

static void ranks_run_in_sbatch(void **state)
{
    char command[512];
    job *j;

    LS_UNUSED(state);
    need_lab();
    text_format(command, sizeof(command),
                "cd %s && printf '#!/bin/sh\\nexec %s run sh -c '\"'\"'%s'\"'\"'\\n' >batch && "
                "sbatch -Q -W -N2 --ntasks-per-node=2 -o out batch && cat out",
                lab.folder, JOB_TOOL, script);
    j = job_start(JOB_LIST(SHELL(command)), JOB_LIST(lab.conf));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 0/4 on n1, node 0\n"));
    job_expect(j, job_printed(j, 0, "rank 3| 3/4 on n2, node 1\n"));
}

static void an_allocation_is_looked_at(void **state)
{
    job *j;

    LS_UNUSED(state);
    need_lab();
    j = allocate("-N3", "-n3", JOB_LIST(JOB_TOOL, "check", "--quick"));
    job_await_end(j);
    job_expect(j, job_printed(j, 0, "\n3 of 3 hosts: 0 errors"));
    job_expect(j, job_printed(j, 0, "same-ok: 3 hosts have the same"));
    job_expect_gone(j);
}

static void the_cause_names_the_node(void **state)
{
    job *j;

    LS_UNUSED(state);
    need_lab();
    j = allocate("-N3", "-n3",
                 JOB_LIST(JOB_TOOL, "run", SHELL("[ $RANK = 1 ] && exit 9; sleep 1000")));
    expect_end(j, 9);
    job_expect(j, job_printed(j, 1, "lockstep: node 1 (n2): rank 1 (pid "));
}

static void a_cancelled_job_leaves_nothing(void **state)
{
    job *j;
    job *cancel;

    LS_UNUSED(state);
    need_lab();
    j = allocate("-N3", "-n3", JOB_LIST(JOB_TOOL, "run", SHELL("echo up; exec sleep 1000")));
    job_await_text(j, 0, "rank 2| up");
    job_await_text(j, 0, "rank 1| up");
    cancel = job_start(JOB_LIST(SHELL("scancel $(squeue -h -o %i)")), JOB_LIST(lab.conf));
    job_expect_code(cancel, 0);
    job_await_end(j);
    job_expect_gone(j);
}

static void nothing_is_left_when_a_part_is_killed(void **state)
{
    static const char *const parts[][2] = {
        {"srun", " -w n2 "}, {"lockstep-agent", ""}, {"lockstep", " run sh -c "}};

    LS_UNUSED(state);
    need_lab();
    for (size_t i = 0; i < LS_COUNT_OF(parts); i++) {
        job *j = allocate("-N2", "-n2",
                          JOB_LIST(JOB_TOOL, "run",
                                   SHELL("trap '' TERM; echo up; sleep 1000 & "
                                         "wait; sleep 1000")));

        job_await_text(j, 0, "rank 0| up");
        job_await_text(j, 0, "rank 1| up");
        assert_int_equal(kill(job_find_process(j, parts[i][0], parts[i][1], ""), SIGKILL), 0);
        job_await_end(j);
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

static int open_lab(void **state)
{
    char command[256];

    LS_UNUSED(state);
    if (getenv("LS_TEST_FULL") == NULL)
        return 0;
    text_format(lab.folder, sizeof(lab.folder), "/tmp/lockstep-test-slurm-%d", (int)getpid());
    text_format(lab.conf, sizeof(lab.conf), "SLURM_CONF=%s/slurm.conf", lab.folder);
    text_format(command, sizeof(command), "sh %s up %s", SLURM_LAB, lab.folder);
    lab.is_up = system(command) == 0;
    return 0;
}

static int close_lab(void **state)
{
    char command[256];

    LS_UNUSED(state);
    text_format(command, sizeof(command), "sh %s down %s", SLURM_LAB, lab.folder);
    return lab.folder[0] != 0 ? system(command) : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(an_allocation_is_used_by_itself),
        test(the_own_node_is_used_in_place),
        test(a_task_of_a_step_starts_no_steps),
        test(hosts_that_are_given_go_before_slurms),
        test(failing_srun_is_reported),
        test(ranks_run_in_salloc),
        test(ranks_run_in_sbatch),
        test(an_allocation_is_looked_at),
        test(the_cause_names_the_node),
        test(a_cancelled_job_leaves_nothing),
        test(nothing_is_left_when_a_part_is_killed),
    };

    return cmocka_run_group_tests(tests, open_lab, close_lab);
}
