/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuts_lab.c - elastic jobs on machines that are network namespaces, one of which is cut off
 * from the others and comes back. A majority is connected all the time, so the job goes on. Its
 * training (elastic_loop.c) ends when a new process has joined.
 */
#include "launch/lab_scene.h"

#include <signal.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

#define SILENCE_S "5"

enum { NODES_MAX = 5, SILENCE_MS = 5000 };

static const int cuts_s[] = {1, 4, 7, 12};

static struct {
    int n;
    job *jobs[NODES_MAX];
} scene;

/* The training ends when the process with the number `until` has joined. Process 0 prints a line in
 * step 30, process 3 in its first one. */
static job *start_node(int i, int until, const char *heartbeat_s)
{
    char number[16];
    char nodes[16];
    char last[16];

    text_format(number, sizeof(number), "%d", i);
    text_format(nodes, sizeof(nodes), "%d", scene.n);
    text_format(last, sizeof(last), "until=%d", until);
    return job_start(JOB_LIST(LS_NETLAB_SH, "exec", number, JOB_TOOL, "run", "--no-prefix",
                              "--nnodes", nodes, "--node-rank", number, "--master-addr",
                              "10.77.0.10", "--elastic", "--max-restarts", "1",
                              "--heartbeat-timeout", heartbeat_s, ELASTIC_LOOP, "40", last,
                              "0@30:pass", "3@-1:pass"),
                     JOB_LIST(key_variable, lab_variable, "ELASTIC_SHARDS=5"));
}

/* Returns when all ranks are in the training. Node 0's heartbeat timeout is that of all. */
static void start_all(int n, int until, const char *heartbeat_s)
{
    scene.n = n;
    lab_build(n, "");
    for (int i = 0; i < n; i++)
        scene.jobs[i] = start_node(i, until, i == 0 ? heartbeat_s : "3");
    job_await_text(scene.jobs[0], 0, "pass of step 30");
}

static void cut(int i, int seconds)
{
    print_message("%d nodes, node %d is cut off for %d s\n", scene.n, i, seconds);
    assert_true(netlab_plug(&lab, i, false));
    (void)sleep((unsigned)seconds);
    assert_true(netlab_plug(&lab, i, true));
}

/* If its first process is there still: another one replaces it. */
static void kill_first_rank(int i)
{
    char entry[64];
    pid_t pid;

    text_format(entry, sizeof(entry), "LOCKSTEP_MEMBER=%d ", i);
    pid = job_find_process(scene.jobs[i], "elastic_loop", ELASTIC_LOOP, entry);
    if (pid > 0)
        (void)kill(pid, SIGKILL);
}

static void expect_all_end_well(int first)
{
    for (int i = first; i < scene.n; i++)
        job_expect_code(scene.jobs[i], 0);
    for (int i = first; i < scene.n; i++)
        job_expect_gone(scene.jobs[i]);
}

static bool was_lost(int i)
{
    return job_printed(scene.jobs[i], 1, "this machine is lost for the job");
}

static void expect_first_head(void)
{
    for (int i = 0; i < scene.n; i++)
        job_expect(scene.jobs[i], !job_printed(scene.jobs[i], 1, "its head on this machine"));
}

static void clean_up(void)
{
    void *state = NULL;

    (void)lab_clean_up(&state);
}

/* One that is cut off for a little less than the heartbeat timeout may be lost, too. */
static void cut_each_follower(int n)
{
    for (size_t k = 0; k < LS_COUNT_OF(cuts_s); k++) {
        for (int i = 1; i < n; i++) {
            start_all(n, n, SILENCE_S);
            cut(i, cuts_s[k]);
            if (cuts_s[k] < SILENCE_MS / 1000)
                kill_first_rank(i);
            expect_all_end_well(0);
            expect_first_head();
            job_expect(scene.jobs[i], was_lost(i) || cuts_s[k] < SILENCE_MS / 1000);
            clean_up();
        }
    }
}

/* The others elect a head. The lost one's machine does not join again. */
static void cut_the_head(int n)
{
    for (size_t k = 0; k < LS_COUNT_OF(cuts_s); k++) {
        start_all(n, n, SILENCE_S);
        cut(0, cuts_s[k]);
        if (cuts_s[k] > SILENCE_MS / 1000) {
            job_expect_code(scene.jobs[0], 1);
            job_expect(scene.jobs[0], job_printed(scene.jobs[0], 1, "not connected to a majority"));
        }
        kill_first_rank(1);
        expect_all_end_well(1);
        job_await_end(scene.jobs[0]);
        clean_up();
    }
}

static void each_node_of_three_is_cut_off_and_comes_back(void **state)
{
    LS_UNUSED(state);
    cut_each_follower(3);
}

static void head_of_three_is_cut_off(void **state)
{
    LS_UNUSED(state);
    cut_the_head(3);
}

static void each_node_of_five_is_cut_off_and_comes_back(void **state)
{
    LS_UNUSED(state);
    cut_each_follower(5);
}

static void head_of_five_is_cut_off(void **state)
{
    LS_UNUSED(state);
    cut_the_head(5);
}

/* Without a standby head. */
static void node_of_two_is_cut_off_and_comes_back(void **state)
{
    LS_UNUSED(state);
    cut_each_follower(2);
}

/* The one that has come back counts for the majority again. */
static void nodes_are_cut_off_in_turn(void **state)
{
    LS_UNUSED(state);
    start_all(3, 4, SILENCE_S);
    cut(1, 7);
    job_await_text(scene.jobs[0], 1, "rank 1 has been replaced");
    cut(2, 7);
    expect_all_end_well(0);
    expect_first_head();
}

/* One of them takes over: neither could without the other. */
static void node_that_came_back_elects_a_head(void **state)
{
    LS_UNUSED(state);
    start_all(3, 4, SILENCE_S);
    cut(1, 7);
    job_await_text(scene.jobs[1], 0, "pass of step "); /* it has the state of the training */
    assert_true(netlab_plug(&lab, 0, false));
    job_await_text(scene.jobs[1], 1, "the head of the job is "); /* here, or at another address */
    kill_first_rank(2);
    expect_all_end_well(1);
    job_expect_code(scene.jobs[0], 1);
}

static void heartbeat_timeout_of_node_0_is_that_of_all(void **state)
{
    LS_UNUSED(state);
    start_all(3, 3, "20");
    cut(1, 8);
    (void)sleep(2);
    kill_first_rank(1);
    expect_all_end_well(0);
    for (int i = 0; i < 3; i++)
        job_expect(scene.jobs[i], !was_lost(i) && !job_printed(scene.jobs[i], 1, "no heartbeat"));
    clean_up();
    start_all(3, 3, "2");
    cut(1, 4);
    expect_all_end_well(0);
    job_expect(scene.jobs[0], job_printed(scene.jobs[0], 1, "no heartbeat for 2 s"));
    job_expect(scene.jobs[1], was_lost(1));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        test(nodes_are_cut_off_in_turn),
        test(node_that_came_back_elects_a_head),
        test(heartbeat_timeout_of_node_0_is_that_of_all),
    };
    const struct CMUnitTest slow[] = {
        test(node_of_two_is_cut_off_and_comes_back),        test(head_of_three_is_cut_off),
        test(each_node_of_three_is_cut_off_and_comes_back), test(head_of_five_is_cut_off),
        test(each_node_of_five_is_cut_off_and_comes_back),
    };

    if (argc > 1 && text_equal(argv[1], "slow"))
        return cmocka_run_group_tests_name("cuts, slow", slow, lab_make_key, lab_remove_key);
    return cmocka_run_group_tests(tests, lab_make_key, lab_remove_key);
}
