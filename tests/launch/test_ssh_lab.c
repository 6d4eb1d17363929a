/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are started from one of several network namespaces; in the place of ssh is a script
 * that enters the others. */
#include "launch/lab_scene.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NODES = 4 };

static char ssh[64];

static int clean_up(void **state)
{
    (void)unlink(ssh);
    return lab_clean_up(state);
}

static void build_lab(void)
{
    FILE *f;

    lab_build(NODES, "");
    text_format(ssh, sizeof(ssh), "/tmp/lockstep-test-ssh-%d", (int)getpid());
    f = fopen(ssh, "we");
    assert_non_null(f);
    (void)fprintf(
        f,
        "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nSCRIPT=$2\nexport SCRIPT\n"
        "exec %s -o ssh -o like \"$1\" \"exec %s exec ${1#node} sh -c \\\"\\$SCRIPT\\\"\"\n",
        FAKE_SSH, LS_NETLAB_SH);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(ssh, 0700), 0);
}

/* Two of four hosts are cut off at once; their ssh stays, and carries nothing any more. */
static void hosts_that_vanish_are_one_report_with_their_last_lines(void **state)
{
    static const char script[] =
        "read line; echo rank $RANK has read [$line]; exec " JOB_ACTOR " steps 0";
    job *j;

    LS_UNUSED(state);
    build_lab();
    j = job_start(JOB_LIST(LS_NETLAB_SH, "exec", "0", JOB_TOOL, "run", "--ssh", ssh, "-H",
                           "node1:1,node2:2,node3:1,node0:1", "sh", "-c", script),
                  JOB_LIST(lab_variable));
    job_write(j, "a line for rank 0\n");
    job_await_text(j, 0, "rank 0| rank 0 has read [a line for rank 0]\n");
    for (int rank = 1; rank < 5; rank++) {
        char line[64];

        job_await_text(
            j, 0, text_format(line, sizeof(line), "rank %d| rank %d has read []\n", rank, rank));
    }
    job_await_text(j, 0, "step 100");
    for (int node = 2; node < 4; node++) {
        char words[16];

        text_format(words, sizeof(words), "like node%d ", node);
        assert_int_equal(kill(job_find_process(j, "fake_ssh", words, ""), SIGSTOP), 0);
        assert_true(netlab_run(&lab, node, "ip link set eth0 down; ip link set eth1 down"));
    }
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1,
                              "lockstep: nodes 1-2 (node[2-3]) with ranks 1-3 were lost: no "
                              "heartbeat for 5 s\n"));
    job_expect(j, job_printed(j, 1, "  last lines of node2:\n  | rank "));
    job_expect(j, job_printed(j, 1, "  last lines of node3:\n  | "));
    job_expect_gone(j);
}

static job *start_from_node0(const char *const *flags, const char *const *program)
{
    const char *argv[32] = {LS_NETLAB_SH, "exec", "0",  JOB_TOOL,         "run",
                            "--ssh",      ssh,    "-H", "node1:1,node2:2"};
    int n = 9;

    for (; *flags != NULL; flags++)
        argv[n++] = *flags;
    for (; *program != NULL; program++)
        argv[n++] = *program;
    return job_start(argv, JOB_LIST(lab_variable));
}

/* The head is on node0, which has no rank: node 0 of the job is node1, whose agent was started
 * from there. */
static void store_is_served_where_rank_0_is(void **state)
{
    job *j;

    LS_UNUSED(state);
    build_lab();
    j = start_from_node0(JOB_LIST("--no-fold"), JOB_LIST(STORE_CLIENT, "own"));
    job_expect_code(j, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d| met at 10.77.0.11 port ", rank);
        job_expect(j, job_printed(j, 0, line));
        text_format(line, sizeof(line), "rank %d| rank 0's own port is reached", rank);
        job_expect(j, job_printed(j, 0, line));
    }
    job_expect_gone(j);
    j = start_from_node0(JOB_LIST("--security", "encrypt"), JOB_LIST(STORE_CLIENT, "meet"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 2| met at 127.0.0.1 port "));
    j = start_from_node0(JOB_LIST("--store=none"), JOB_LIST("sh", "-c", "echo at $MASTER_ADDR"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| at 10.77.0.11") &&
                      job_printed(j, 0, "rank 2| at 10.77.0.11"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(hosts_that_vanish_are_one_report_with_their_last_lines, clean_up),
        cmocka_unit_test_teardown(store_is_served_where_rank_0_is, clean_up),
    };

    return cmocka_run_group_tests_name("launch ssh lab", tests, NULL, NULL);
}
