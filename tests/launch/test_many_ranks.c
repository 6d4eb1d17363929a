/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks over TCP, as processes: a rank that only reduces has few connections, on one host and
 * on many (network namespaces). LS_TEST_NODES and LS_TEST_RANKS: how many hosts, and ranks on each.
 */
#include "launch/lab_scene.h"

#include "base/clock.h"

#include <stdlib.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : (int)strtol(text, NULL, 10);
}

// 40 ranks are blocks of 32 and 8 (plan_halving.c): 2 log2 32 partners of a barrier, 4 more for the
// next block, a listener, and the connection to the hub.
static void rank_of_forty_on_one_host_has_few_sockets(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "40", JOB_ACTOR, "reduce"),
                       JOB_LIST("LOCKSTEP_TRANSPORT=tcp"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    assert_int_equal(job_await_number(j, 0, "ranks "), 40);
    assert_in_range(job_await_number(j, 0, "sockets "), 2, 20);
    job_expect_gone(j);
}

// One shell starts the agents of all nodes, so that they are one job for the test.
static const char script[] =
    "i=0; while [ $i -lt $NODES ]; do "
    "  $LAB exec $i $TOOL run --nnodes $NODES --node-rank $i --master-addr node0 -n $RANKS "
    "    $ACTOR reduce & pids=\"$pids $!\"; i=$((i+1)); done; "
    "for pid in $pids; do wait $pid || echo an agent ended with $?; done";

static void rank_on_many_hosts_has_few_sockets(void **state)
{
    const int nodes = number_from("LS_TEST_NODES", 8);
    const int ranks = number_from("LS_TEST_RANKS", 5);
    char of_nodes[24];
    char of_ranks[24];
    int64_t began_ms;
    long sockets;
    job *j;

    LS_UNUSED(state);
    text_format(of_nodes, sizeof(of_nodes), "NODES=%d", nodes);
    text_format(of_ranks, sizeof(of_ranks), "RANKS=%d", ranks);
    lab_build(nodes, "");
    began_ms = ls_now_ms();
    j = job_start(JOB_LIST("sh", "-c", script),
                  JOB_LIST(key_variable, lab_variable, of_nodes, of_ranks, "LAB=" LS_NETLAB_SH,
                           "TOOL=" JOB_TOOL, "ACTOR=" JOB_ACTOR));
    job_await_end(j);
    job_expect(j, !job_printed(j, 0, "an agent ended with"));
    sockets = job_await_number(j, 0, "sockets ");
    print_message("%d hosts, %d ranks on each: %.2f s from start to end, a rank has at most %ld "
                  "sockets\n",
                  nodes, ranks, (double)(ls_now_ms() - began_ms) / 1e3, sockets);
    assert_int_equal(job_await_number(j, 0, "ranks "), nodes * ranks);
    assert_in_range(sockets, 2, 64);
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(rank_of_forty_on_one_host_has_few_sockets),
        test(rank_on_many_hosts_has_few_sockets),
    };

    return cmocka_run_group_tests(tests, lab_make_key, lab_remove_key);
}
