/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs over several hosts that are network namespaces, with the traps that real ones have: names
 * for 127.0.1.1, docker0 everywhere. */
#include "launch/lab_scene.h"

#include "base/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

enum { NODES = 3, ARGS_MOST = 48 };

/* Node i of `nodes`, with one rank; `more` are further flags. Node 0 is called by its name. */
static job *start_node(int i, int nodes, const char *const *more, const char *const *program)
{
    const char *argv[ARGS_MOST] = {LS_NETLAB_SH, "exec"};
    char numbers[2][16];
    int n = 2;

    argv[n++] = text_format(numbers[0], sizeof(numbers[0]), "%d", i);
    argv[n++] = JOB_TOOL;
    argv[n++] = "run";
    argv[n++] = "--nnodes";
    argv[n++] = text_format(numbers[1], sizeof(numbers[1]), "%d", nodes);
    argv[n++] = "--node-rank";
    argv[n++] = numbers[0];
    argv[n++] = "--master-addr";
    argv[n++] = "node0";
    for (; more != NULL && *more != NULL && n < ARGS_MOST - 1; more++)
        argv[n++] = *more;
    for (; *program != NULL && n < ARGS_MOST - 1; program++)
        argv[n++] = *program;
    return job_start(argv, JOB_LIST(key_variable, lab_variable));
}

static void start_all(job **jobs, const char *const *more, const char *const *program)
{
    for (int i = 0; i < NODES; i++)
        jobs[i] = start_node(i, NODES, more, program);
}

static const char print_network[] = "echo uses $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME "
                                    "$OMPI_MCA_btl_tcp_if_include; exec " JOB_ACTOR " steps 200";

static void a_job_finds_its_network_among_traps(void **state)
{
    job *jobs[NODES];

    LS_UNUSED(state);
    lab_build(NODES, "--mixed --dead");
    start_all(jobs, NULL, JOB_LIST("sh", "-c", print_network));
    for (int i = 0; i < NODES; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0,
                                        i == NODES - 1 ? "uses ens3 =ens3 10.77.0.0/24"
                                                       : "uses eth0 =eth0 10.77.0.0/24"));
        job_expect(jobs[i], job_printed(jobs[i], 0, "sum "));
    }
    for (int i = 0; i < NODES; i++)
        job_expect_gone(jobs[i]);
}

static void net_and_port_range_are_obeyed(void **state)
{
    static const char print_ports[] =
        "echo uses $GLOO_SOCKET_IFNAME; " JOB_ACTOR " steps 0 & sleep 2; "
        "ss -Htnl4 | awk '{print \"listens \" $4}'; kill $!; exit 0";
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(NODES, "");
    for (int i = 0; i < 2; i++)
        jobs[i] = start_node(i, 2, JOB_LIST("--net", "10.78.0.0/16", "--port-range", "41000-41050"),
                             JOB_LIST("sh", "-c", print_ports));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0, "uses eth1"));
        job_expect(
            jobs[i],
            job_printed(jobs[i], 0, i == 0 ? "listens 10.78.0.10:410" : "listens 10.78.0.11:410"));
    }
}

static void without_a_working_network_the_matrix_is_printed(void **state)
{
    job *jobs[NODES];

    LS_UNUSED(state);
    lab_build(NODES, "");
    start_all(jobs, JOB_LIST("--net", "docker0"), JOB_LIST("true"));
    for (int i = 0; i < NODES; i++) {
        job_expect_code(jobs[i], 1);
        job_expect(jobs[i],
                   job_printed(jobs[i], 1, "172.17.0.1") && job_printed(jobs[i], 1, "wrong node"));
        job_expect(jobs[i], job_printed(jobs[i], 1, "--net"));
        job_expect_gone(jobs[i]);
    }
}

static void a_host_that_vanishes_is_named_and_ends_its_own_ranks(void **state)
{
    job *jobs[NODES];
    int64_t since_ms;

    LS_UNUSED(state);
    lab_build(NODES, "");
    start_all(jobs, NULL, JOB_LIST(JOB_ACTOR, "steps", "0"));
    job_await_text(jobs[0], 0, "step 100");
    since_ms = ls_now_ms();
    assert_true(netlab_run(&lab, 2, "ip link set eth0 down; ip link set eth1 down"));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 1);
        job_expect(jobs[i], job_printed(jobs[i], 1, "node 2 (node2) with rank 2 was lost"));
        job_expect_gone(jobs[i]);
    }
    print_message("known and ended after %d ms\n", (int)(ls_now_ms() - since_ms));
    job_expect_code(jobs[2], 1);
    job_expect(jobs[2], job_printed(jobs[2], 1, "the head of the job at"));
    job_expect_gone(jobs[2]);
}

/* A rank on another host, in other namespaces: what it is doing is known all the same. */
static void a_late_rank_elsewhere_is_named_with_its_state(void **state)
{
    job *a;
    job *b;
    pid_t rank;

    LS_UNUSED(state);
    lab_build(NODES, "");
    a = start_node(0, 2, NULL, JOB_LIST("env", "LOCKSTEP_LATE_MS=300", JOB_ACTOR, "steps", "0"));
    b = start_node(1, 2, NULL, JOB_LIST("env", "LOCKSTEP_LATE_MS=300", JOB_ACTOR, "steps", "0"));
    job_await_text(a, 0, "step 100");
    rank = job_find(b, JOB_RANK, 1);
    assert_int_equal(kill(rank, SIGSTOP), 0);
    job_await_text(a, 1, "not arrived 1 (");
    job_await_text(a, 1, "stopped");
    job_await_text(b, 1, "not arrived 1 (");
    assert_int_equal(kill(rank, SIGCONT), 0);
    assert_int_equal(kill(b->pid, SIGTERM), 0);
    job_await_end(a);
    job_await_end(b);
    job_expect_gone(a);
    job_expect_gone(b);
}

/* --- node 0's address --- */

static job *start_on_node0(const char *const *variables, const char *const *program)
{
    const char *argv[ARGS_MOST] = {LS_NETLAB_SH, "exec", "0", "env"};
    int n = 4;

    for (; *variables != NULL && n < ARGS_MOST - 1; variables++)
        argv[n++] = *variables;
    for (; *program != NULL && n < ARGS_MOST - 1; program++)
        argv[n++] = *program;
    return job_start(argv, JOB_LIST(key_variable, lab_variable));
}

static void end(job *j)
{
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_await_end(j);
    job_expect_gone(j);
}

static const char own_addresses[] = ": 10.77.0.10 (eth0), 10.78.0.10 (eth1), fd77::10 (eth0)";

/* The hint comes with the first roster, after all lines of the start. */
static void expect_address(const char *address, const char *warning, const char *hint)
{
    job *j =
        start_on_node0(JOB_LIST("A=b"), JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--node-rank",
                                                 "0", "--master-addr", address, "true"));

    job_await_text(j, 1, hint);
    job_expect(j, job_printed(j, 1, "warning: ") == (warning != NULL));
    if (warning != NULL)
        job_expect(j, job_printed(j, 1, warning) && job_printed(j, 1, own_addresses));
    end(j);
}

static void address_at_which_others_do_not_reach_node_0_is_named(void **state)
{
    LS_UNUSED(state);
    lab_build(2, "");
    expect_address("127.0.0.1", "node 0 was given as 127.0.0.1:29500, a loopback address",
                   "on this machine: lockstep join 127.0.0.1:29500 ");
    expect_address("localhost", "node 0 was given as localhost:29500, a loopback address",
                   "on this machine: lockstep join localhost:29500 ");
    expect_address("::1", "node 0 was given as [::1]:29500, a loopback address",
                   "on this machine: lockstep join [::1]:29500 ");
    expect_address("0.0.0.0", "node 0 was given as 0.0.0.0:29500, to which other machines",
                   "on another machine: lockstep join 10.77.0.10:29500 ");
    expect_address("10.77.0.99", "node 0 was given as 10.77.0.99:29500, which is not an address",
                   "on another machine: lockstep join 10.77.0.99:29500 ");
}

static void own_names_and_addresses_of_node_0_cause_no_warning(void **state)
{
    LS_UNUSED(state);
    lab_build(2, "");
    expect_address("node0", NULL, "on another machine: lockstep join node0:29500 ");
    expect_address("10.78.0.10", NULL, "on another machine: lockstep join 10.78.0.10:29500 ");
    expect_address("fd77::10", NULL, "on another machine: lockstep join [fd77::10]:29500 ");
}

static void endpoint_of_a_loopback_address_is_named(void **state)
{
    job *j;

    LS_UNUSED(state);
    lab_build(2, "");
    j = start_on_node0(JOB_LIST("A=b"),
                       JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--rdzv-backend", "c10d",
                                "--rdzv-endpoint", "localhost:29400", "true"));
    job_await_text(j, 1, "node 0 was given as localhost:29400, a loopback address");
    job_expect(j, job_printed(j, 1, own_addresses));
    end(j);
}

static job *start_with_rank_0(const char *node)
{
    return job_start(JOB_LIST(LS_NETLAB_SH, "exec", node, JOB_TOOL, "run", "--nnodes", "2",
                              "--node-rank", "0", "--master-addr", "10.77.0.10", "true"),
                     JOB_LIST(key_variable, lab_variable));
}

static void two_machines_with_node_rank_0_name_that_cause(void **state)
{
    static const char cause[] = "--node-rank (-i) 0 was given on both";
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    jobs[0] = start_with_rank_0("0");
    jobs[1] = start_with_rank_0("1");
    job_expect_code(jobs[1], 1);
    job_expect(jobs[1], job_printed(jobs[1], 1, cause));
    job_await_text(jobs[0], 1, "another machine, tcp://10.77.0.11:");
    job_expect(jobs[0], job_printed(jobs[0], 1, cause));
    end(jobs[0]);
}

/* Ranks without a launcher of ours, and a program that starts its own. */
static void address_at_which_others_do_not_reach_rank_0_is_named(void **state)
{
    job *j;

    LS_UNUSED(state);
    lab_build(2, "");
    j = start_on_node0(
        JOB_LIST("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=10.77.0.99", "MASTER_PORT=29500"),
        JOB_LIST(JOB_ACTOR, "once"));
    job_await_text(j, 1, "rank 0 was given as 10.77.0.99:29500, which is not an address");
    end(j);
    j = start_on_node0(JOB_LIST("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                                "GROUP_RANK=0", "GROUP_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                "MASTER_PORT=29500"),
                       JOB_LIST(JOB_ACTOR, "once"));
    job_await_text(j, 1, "rank 0 was given as 127.0.0.1:29500, a loopback address");
    end(j);
    /* All ranks may be on this machine. */
    j = start_on_node0(JOB_LIST("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                "MASTER_PORT=29500", "LOCKSTEP_LATE_MS=300"),
                       JOB_LIST(JOB_ACTOR, "once"));
    job_await_text(j, 1, "(has not joined); rank 0 was given as 127.0.0.1:29500, a loopback");
    end(j);
    j = start_on_node0(JOB_LIST("MASTER_ADDR=localhost"),
                       JOB_LIST(LOCKSTEP_BIN "/mnist", "-n", "2", "-g", "1,1", "-i", "0"));
    job_await_text(j, 1, "node 0 was given as localhost:29500, a loopback address");
    job_expect(j, job_printed(j, 1, own_addresses));
    end(j);
}

/* --- keys --- */

static void different_keys_name_the_one_of_node_0(void **state)
{
    static const char script[] = "export HOME=$0-$LS_TEST_NODE; mkdir -p $HOME; "
                                 "unset LOCKSTEP_KEY_FILE; exec \"$@\"";
    char home[64];
    char text[512];
    char clean[96];
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    text_format(home, sizeof(home), "/tmp/lockstep-lab-home-%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        const char *node = i == 0 ? "0" : "1";

        jobs[i] = job_start(JOB_LIST(LS_NETLAB_SH, "exec", node, "env",
                                     i == 0 ? "LS_TEST_NODE=0" : "LS_TEST_NODE=1", "sh", "-c",
                                     script, home, JOB_TOOL, "run", "--nnodes", "2", "--node-rank",
                                     node, "--master-addr", "10.77.0.10", "true"),
                            JOB_LIST(key_variable, lab_variable));
    }
    job_expect_code(jobs[1], 1);
    text_format(text, sizeof(text), "scp -p 10.77.0.10:.config/lockstep/key %s-1/.config/", home);
    job_expect(jobs[1], job_printed(jobs[1], 1, text));
    text_format(text, sizeof(text), "scp -p %s-0/.config/lockstep/key 10.77.0.11:.config/", home);
    job_await_text(jobs[0], 1, text);
    end(jobs[0]);
    text_format(clean, sizeof(clean), "rm -rf %s-0 %s-1", home, home);
    assert_int_equal(system(clean), 0);
}

/* --- the store of PyTorch programs --- */

static void start_two(job **jobs, const char *const *more, const char *const *program)
{
    for (int i = 0; i < 2; i++)
        jobs[i] = start_node(i, 2, more, program);
}

static void every_node_has_node_0s_address_and_port_of_the_store(void **state)
{
    char line[64];
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    start_two(jobs, JOB_LIST("-n", "2"), JOB_LIST(STORE_CLIENT, "own"));
    text_format(line, sizeof(line), "met at 10.77.0.10 port %ld ",
                job_await_number(jobs[0], 0, "met at 10.77.0.10 port "));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0, line));
        job_expect(jobs[i], job_printed(jobs[i], 0, "rank 0's own port is reached"));
    }
    for (int i = 0; i < 2; i++)
        job_expect_gone(jobs[i]);
}

static void restart_gives_every_node_a_fresh_store(void **state)
{
    static const char script[] = STORE_CLIENT " meet && [ \"$TORCHELASTIC_RESTART_COUNT\" = 1 ]";
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    start_two(jobs, JOB_LIST("--max-restarts", "1"), JOB_LIST("sh", "-c", script));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0, "met at 10.77.0.10 port "));
        job_expect(jobs[i], job_printed(jobs[i], 0, " restart 1"));
    }
}

/* With encrypt the store's bytes stay inside the launchers' own connections. */
static void encrypted_job_reaches_its_store_at_loopback_and_one_port(void **state)
{
    char line[64];
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    start_two(jobs, JOB_LIST("--security", "encrypt"), JOB_LIST(STORE_CLIENT, "meet"));
    text_format(line, sizeof(line), "met at 127.0.0.1 port %ld ",
                job_await_number(jobs[0], 0, "met at 127.0.0.1 port "));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0, line));
    }
}

static void without_a_store_every_node_has_node_0s_address(void **state)
{
    static const char script[] = "echo at $MASTER_ADDR port $MASTER_PORT";
    char line[64];
    job *jobs[2];

    LS_UNUSED(state);
    lab_build(2, "");
    start_two(jobs, JOB_LIST("--store", "none", "--port-range", "42000-42020"),
              JOB_LIST("sh", "-c", script));
    text_format(line, sizeof(line), "at 10.77.0.10 port %ld",
                job_await_number(jobs[0], 0, "at 10.77.0.10 port "));
    for (int i = 0; i < 2; i++) {
        job_expect_code(jobs[i], 0);
        job_expect(jobs[i], job_printed(jobs[i], 0, line));
    }
}

enum { ANSWERED = 0, CLOSED = 3 };

static bool store_client_ends_with(int code, int node, long port, const char *user)
{
    char command[256];

    text_format(command, sizeof(command),
                STORE_CLIENT " connect_only 10.77.0.10 %ld %s; [ $? = %d ]", port, user, code);
    return netlab_run(&lab, node, command);
}

static void other_users_and_hosts_do_not_reach_the_store(void **state)
{
    job *jobs[2];
    long port;

    LS_UNUSED(state);
    lab_build(NODES, "");
    start_two(jobs, NULL, JOB_LIST(STORE_CLIENT, "wait"));
    port = job_await_number(jobs[0], 0, "met at 10.77.0.10 port ");
    job_await_text(jobs[1], 0, "met at ");
    for (int i = 0; i < 2; i++) {
        assert_true(store_client_ends_with(ANSWERED, i, port, ""));
        assert_true(store_client_ends_with(CLOSED, i, port, "65534"));
    }
    assert_true(store_client_ends_with(CLOSED, 2, port, "")); /* not of this job */
    job_await_text(jobs[0], 1, "refused a connection to port ");
    assert_int_equal(kill(jobs[0]->pid, SIGTERM), 0);
    for (int i = 0; i < 2; i++) {
        job_await_end(jobs[i]);
        job_expect_gone(jobs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_job_finds_its_network_among_traps),
        test(net_and_port_range_are_obeyed),
        test(without_a_working_network_the_matrix_is_printed),
        test(a_host_that_vanishes_is_named_and_ends_its_own_ranks),
        test(a_late_rank_elsewhere_is_named_with_its_state),
        test(address_at_which_others_do_not_reach_node_0_is_named),
        test(own_names_and_addresses_of_node_0_cause_no_warning),
        test(endpoint_of_a_loopback_address_is_named),
        test(address_at_which_others_do_not_reach_rank_0_is_named),
        test(two_machines_with_node_rank_0_name_that_cause),
        test(different_keys_name_the_one_of_node_0),
        test(every_node_has_node_0s_address_and_port_of_the_store),
        test(restart_gives_every_node_a_fresh_store),
        test(encrypted_job_reaches_its_store_at_loopback_and_one_port),
        test(without_a_store_every_node_has_node_0s_address),
        test(other_users_and_hosts_do_not_reach_the_store),
    };

    return cmocka_run_group_tests(tests, lab_make_key, lab_remove_key);
}
