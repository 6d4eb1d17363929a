/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of several nodes, started by hand on each: the nodes are agents on this machine that know
 * each other by TCP only. */
#include "launch/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "host/process_id.h"
#include "net/key.h"
#include "net/socket.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, clean_up)

/* A port, a key, and what each node's command has in common. */
typedef struct meeting {
    char port[16];
    char endpoint[32];
    char key[64];     /* file */
    char key_env[96]; /* variable that names it */
} meeting;

static meeting place;

static void make_key(char *path, size_t n)
{
    net_key key;

    text_format(path, n, "/tmp/lockstep-test-key-%d-%llu", (int)getpid(),
                (unsigned long long)ls_now_ns());
    assert_int_equal(net_key_random(&key), LS_OK);
    assert_int_equal(net_key_write_file(path, &key), LS_OK);
}

static int set_up(void **state)
{
    net_address any;
    net_address bound;
    int fd;

    LS_UNUSED(state);
    assert_int_equal(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any), LS_OK);
    assert_int_equal(net_listen(&any, NET_STREAM, 1, &fd, &bound), LS_OK);
    (void)close(fd);
    text_format(place.port, sizeof(place.port), "%d", net_address_port(&bound));
    text_format(place.endpoint, sizeof(place.endpoint), "127.0.0.1:%d", net_address_port(&bound));
    make_key(place.key, sizeof(place.key));
    text_format(place.key_env, sizeof(place.key_env), NET_KEY_FILE_ENV "=%s", place.key);
    return 0;
}

static int remove_key(void **state)
{
    LS_UNUSED(state);
    (void)unlink(place.key);
    return 0;
}

static int clean_up(void **state)
{
    return job_clean_up(state);
}

enum { ARGS_MOST = 40 };

/* `lockstep run`, the lists `how` and `program` behind it. */
static job *start_agent(const char *const *how, const char *const *program)
{
    const char *argv[ARGS_MOST] = {JOB_TOOL, "run"};
    int n = 2;

    for (; *how != NULL && n < ARGS_MOST - 1; how++)
        argv[n++] = *how;
    for (; *program != NULL && n < ARGS_MOST - 1; program++)
        argv[n++] = *program;
    return job_start(argv, JOB_LIST(place.key_env));
}

/* Node i of `nodes` by its number, with n ranks; `extra` is one more flag or NULL. */
static job *start_node(const char *nodes, const char *i, const char *n, const char *extra,
                       const char *const *program)
{
    return start_agent(JOB_LIST("--nnodes", nodes, "--node-rank", i, "--master-addr", "127.0.0.1",
                                "--master-port", place.port, "-n", n,
                                extra != NULL ? extra : "--no-fold"),
                       program);
}

/* A node without a node rank. */
static job *start_any(const char *nodes, const char *n, const char *extra,
                      const char *const *program)
{
    return start_agent(JOB_LIST("--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                place.endpoint, "--rdzv-conf", "last_call_timeout=0", "-n", n,
                                extra != NULL ? extra : "--no-fold"),
                       program);
}

static job *start_joiner(const char *const *flags)
{
    const char *argv[ARGS_MOST] = {JOB_TOOL, "join"};
    int n = 2;

    for (; flags != NULL && *flags != NULL && n < ARGS_MOST - 2; flags++)
        argv[n++] = *flags;
    argv[n] = place.endpoint;
    return job_start(argv, JOB_LIST(place.key_env, "GLOO_SOCKET_IFNAME", "HERE=there"));
}

static void expect_both(job *a, job *b, int code)
{
    job_expect_code(a, code);
    job_expect_code(b, code);
    job_expect_gone(a);
    job_expect_gone(b);
}

/* --- starting --- */

static void ranks_of_all_nodes_are_one_job(void **state)
{
    job *b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "steps", "300"));
    job *a = start_node("2", "0", "2", NULL, JOB_LIST(JOB_ACTOR, "steps", "300"));

    LS_UNUSED(state);
    expect_both(a, b, 0);
    job_expect(a,
               job_printed(a, 0, "rank 0| rank 0 has joined") && job_printed(a, 0, "rank 1| sum "));
    job_expect(b,
               job_printed(b, 0, "rank 2| rank 2 has joined") && job_printed(b, 0, "rank 2| sum "));
    job_expect(b, job_printed(b, 1, "node 1 of 2, ranks 2-2, output of rank 0 on node 0\n"));
    job_expect(a, !job_printed(a, 1, "node 0 of 2"));
}

static void each_rank_learns_its_place(void **state)
{
    static const char script[] =
        "echo at $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
        "$LOCKSTEP_NODE_RANK/$LOCKSTEP_NNODES $OMPI_COMM_WORLD_LOCAL_RANK $MASTER_ADDR";
    job *a = start_node("2", "0", "1", NULL, JOB_LIST("sh", "-c", script));
    job *b = start_node("2", "1", "2", NULL, JOB_LIST("sh", "-c", script));

    LS_UNUSED(state);
    expect_both(a, b, 0);
    job_expect(a, job_printed(a, 0, "at 0/3 0/1 0/2 0/2 0 127.0.0.1"));
    job_expect(b, job_printed(b, 0, "at 1/3 0/2 1/2 1/2 0 127.0.0.1"));
    job_expect(b, job_printed(b, 0, "at 2/3 1/2 1/2 1/2 1 127.0.0.1"));
}

static void waiting_nodes_print_the_roster(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST("true"));
    job *b = NULL;

    LS_UNUSED(state);
    job_await_text(a, 1, "1/2 nodes joined");
    job_expect(a, job_printed(a, 1, "node 1"));
    job_clean_up(NULL);
    b = start_node("2", "1", "1", NULL, JOB_LIST("true"));
    job_await_text(b, 1, "waiting for node 0 at 127.0.0.1:");
    a = start_node("2", "0", "1", NULL, JOB_LIST("true"));
    expect_both(a, b, 0);
}

static void node_with_another_key_prints_the_file_to_copy(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST("true"));
    char other[96];
    char variable[128];
    job *b;

    LS_UNUSED(state);
    make_key(other, sizeof(other));
    text_format(variable, sizeof(variable), NET_KEY_FILE_ENV "=%s", other);
    b = job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--node-rank", "1", "--master-addr",
                           "127.0.0.1", "--master-port", place.port, "true"),
                  JOB_LIST(variable));
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, other));
    job_await_text(a, 1, "refused a connection from tcp://127.0.0.1:");
    assert_int_equal(kill(a->pid, SIGTERM), 0);
    job_expect_code(a, 143);
    (void)unlink(other);
}

static void conflicting_nodes_are_both_notified(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST("true"));
    job *b;

    LS_UNUSED(state);
    job_await_text(a, 1, "1/2 nodes joined");
    b = start_node("3", "1", "1", NULL, JOB_LIST("true"));
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "--nnodes"));
    job_await_text(a, 1, "--nnodes");
    job_clean_up(NULL);
}

static void second_node_with_a_number_is_rejected(void **state)
{
    job *a = start_node("3", "0", "1", NULL, JOB_LIST("true"));
    job *b = start_node("3", "1", "1", NULL, JOB_LIST("true"));
    job *c;

    LS_UNUSED(state);
    job_await_text(a, 1, "2/3 nodes joined");
    c = start_node("3", "1", "1", NULL, JOB_LIST("true"));
    job_expect_code(c, 1);
    job_expect(c, job_printed(c, 1, "duplicate node rank 1: "));
    job_await_text(b, 1, "duplicate node rank 1: ");
    job_clean_up(NULL);
}

static void without_a_key_it_must_be_spelled_out(void **state)
{
    job *a = start_node("2", "0", "1", "--insecure", JOB_LIST(JOB_ACTOR, "once"));
    job *b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "once"));

    LS_UNUSED(state);
    job_expect_code(b, 1); /* it proves a key, and the other end does not know any */
    job_clean_up(NULL);
    a = start_node("2", "0", "1", "--insecure", JOB_LIST(JOB_ACTOR, "once"));
    b = start_joiner(JOB_LIST("--insecure", "--node-rank", "1"));
    expect_both(a, b, 0);
}

/* --- nodes that vanish before the start --- */

static void a_node_killed_while_others_wait_may_come_again(void **state)
{
    job *a = start_node("3", "0", "1", NULL, JOB_LIST("true"));
    job *b = start_node("3", "1", "1", NULL, JOB_LIST("true"));
    job *c;

    LS_UNUSED(state);
    job_await_text(a, 1, "2/3 nodes joined");
    text_free(&a->err);
    assert_int_equal(kill(b->pid, SIGKILL), 0);
    job_await_text(a, 1, "1/3 nodes joined");
    job_expect_gone(b);
    b = start_node("3", "1", "1", NULL, JOB_LIST("true"));
    c = start_node("3", "2", "1", NULL, JOB_LIST("true"));
    expect_both(a, b, 0);
    job_expect_code(c, 0);
}

static void waiting_nodes_report_a_killed_head(void **state)
{
    job *a = start_node("3", "0", "1", NULL, JOB_LIST("true"));
    job *b = start_node("3", "1", "1", NULL, JOB_LIST("true"));

    LS_UNUSED(state);
    job_await_text(b, 1, "2/3 nodes joined");
    assert_int_equal(kill(a->pid, SIGKILL), 0);
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "the head of the job at ") && job_printed(b, 1, " is lost"));
    job_expect_gone(a);
    job_expect_gone(b);
}

/* --- nodes that fetch the launch request --- */

static void a_node_may_join_with_nothing_but_the_place(void **state)
{
    static const char script[] =
        "echo \"rank $RANK of $WORLD_SIZE, $NCCL_DEBUG $HERE '$1' in $PWD\"";
    job *a = job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--rdzv-backend", "c10d",
                                "--rdzv-endpoint", place.endpoint, "-n", "1", "sh", "-c", script,
                                "-", "two  words"),
                       JOB_LIST(place.key_env, "NCCL_DEBUG=WARN", "HERE=here"));
    job *b;

    LS_UNUSED(state);
    job_await_text(a, 1, "on this machine: lockstep join 127.0.0.1:");
    b = start_joiner(JOB_LIST("-n", "2"));
    expect_both(a, b, 0);
    job_expect(a, job_printed(a, 0, "rank 0 of 3, WARN here 'two  words' in "));
    job_expect(b, job_printed(b, 0, "rank 2 of 3, WARN there 'two  words' in "));
}

/* Port 0 is no place that another machine could join. */
static void hint_names_the_port_that_was_free(void **state)
{
    job *a = start_agent(JOB_LIST("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                  "127.0.0.1:0", "-n", "1"),
                         JOB_LIST("true"));
    const long port = job_await_number(a, 1, "lockstep join 127.0.0.1:");
    char endpoint[32];
    job *b;

    LS_UNUSED(state);
    job_expect(a, port > 0);
    text_format(endpoint, sizeof(endpoint), "127.0.0.1:%ld", port);
    b = job_start(JOB_LIST(JOB_TOOL, "join", endpoint), JOB_LIST(place.key_env));
    expect_both(a, b, 0);
}

static void a_joiner_needs_its_number_where_nodes_have_one(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST("true"));
    job *b = start_joiner(NULL);

    LS_UNUSED(state);
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "--node-rank"));
    b = start_joiner(JOB_LIST("--node-rank", "1"));
    expect_both(a, b, 0);
}

static void a_joiner_waits_for_the_head_and_ends_with_it(void **state)
{
    job *b = start_joiner(JOB_LIST("--node-rank", "1"));
    job *a;

    LS_UNUSED(state);
    job_await_text(b, 1, "waiting for the head of the job at 127.0.0.1:");
    a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "exit", "4", "1"));
    expect_both(a, b, 4);
    job_expect(b, job_printed(b, 1, "rank 1 (pid ") && job_printed(b, 1, "exited with code 4"));
}

/* --- ends --- */

/* Two nodes with a rank each, in the middle of a thousand small steps. */
static void start_running(job **a, job **b)
{
    *a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "steps", "0"));
    *b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "steps", "0"));
    job_await_text(*a, 0, "step 100");
}

static void every_node_prints_the_same_cause(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "signal", "9", "2"));
    job *b = start_node("2", "1", "2", NULL, JOB_LIST(JOB_ACTOR, "signal", "9", "2"));

    LS_UNUSED(state);
    expect_both(a, b, 137);
    job_expect(a, job_printed(a, 1, "lockstep: node 1 ("));
    job_expect(a, job_printed(a, 1, "): rank 2 (pid "));
    job_expect(a, job_printed(a, 1, ") was killed by signal 9 (SIGKILL)\n"));
    job_expect(b, job_printed(b, 1, ") was killed by signal 9 (SIGKILL)\n"));
}

static void remote_ranks_receive_the_cause_of_a_failed_call(void **state)
{
    job *a;
    job *b;

    LS_UNUSED(state);
    start_running(&a, &b);
    assert_int_equal(kill(job_find(b, JOB_RANK, 1), SIGKILL), 0);
    expect_both(a, b, 137);
    job_expect(a, job_printed(a, 1, "all_reduce failed: ") && job_printed(a, 1, "rank 1 (pid "));
}

static void a_rank_that_leaves_early_is_the_cause(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "absent", "1"));
    job *b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "absent", "1"));

    LS_UNUSED(state);
    expect_both(a, b, 1);
    job_expect(a, job_printed(a, 1, "exited with code 0 without joining the job"));
}

static void a_lost_node_is_named_and_nothing_is_left(void **state)
{
    job *a;
    job *b;

    LS_UNUSED(state);
    start_running(&a, &b);
    job_note_sockets(a);
    job_note_sockets(b);
    assert_int_equal(kill(b->pid, SIGKILL), 0);
    job_expect_code(a, 1);
    job_expect(a, job_printed(a, 1, "node 1 (") && job_printed(a, 1, ") with rank 1 was lost"));
    job_expect_gone(b);
    job_expect_gone(a);
}

static void a_lost_head_ends_every_node(void **state)
{
    job *a;
    job *b;

    LS_UNUSED(state);
    start_running(&a, &b);
    job_note_sockets(a);
    job_note_sockets(b);
    assert_int_equal(kill(a->pid, SIGKILL), 0);
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "the head of the job at ") && job_printed(b, 1, " is lost"));
    job_expect_gone(b);
    job_expect_gone(a);
}

static void an_agent_that_stands_still_is_a_lost_node(void **state)
{
    job *a;
    job *b;
    int64_t since_ms;

    LS_UNUSED(state);
    start_running(&a, &b);
    since_ms = ls_now_ms();
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    job_expect_code(a, 1);
    job_expect(a, ls_now_ms() - since_ms >= 4000);
    job_expect(a, job_printed(a, 1, "was lost: no heartbeat for 5 s"));
    job_expect_gone(a);
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    job_expect_code(b, 1);
    job_expect_gone(b);
}

static void a_head_that_stands_still_is_a_lost_head(void **state)
{
    job *a;
    job *b;

    LS_UNUSED(state);
    start_running(&a, &b);
    assert_int_equal(kill(a->pid, SIGSTOP), 0);
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "is lost: no heartbeat for 5 s"));
    job_expect_gone(b);
    assert_int_equal(kill(a->pid, SIGCONT), 0);
    job_expect_code(a, 1);
    job_expect_gone(a);
}

static void any_node_may_stop_the_job_in_good_order(void **state)
{
    LS_UNUSED(state);
    for (int from = 0; from < 2; from++) {
        job *a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "orderly", "0"));
        job *b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "orderly", "0"));

        job_await_text(a, 0, "rank 0 is ready");
        job_await_text(b, 0, "rank 1 is ready");
        assert_int_equal(kill(from == 0 ? a->pid : b->pid, SIGINT), 0);
        expect_both(a, b, 130);
        job_expect(a, job_printed(a, 0, "rank 0 was asked by signal 2\n"));
        job_expect(b, job_printed(b, 0, "rank 1 was asked by signal 2\n"));
        job_expect(a,
                   job_printed(a, 1, from == 0 ? "SIGINT: the ranks have" : "SIGINT from node 1"));
        job_clean_up(NULL);
    }
}

static void ctrl_z_stops_all_nodes_and_fg_continues_without_alarm(void **state)
{
    job *a;
    job *b;
    pid_t rank;

    LS_UNUSED(state);
    start_running(&a, &b);
    rank = job_find(b, JOB_RANK, 1);
    assert_int_equal(kill(a->pid, SIGTSTP), 0);
    for (int64_t until_ms = ls_deadline_ms(JOB_LONG_MS); process_state(rank) != 'T';)
        job_expect(b, ls_deadline_left(until_ms) > 0);
    job_read_output(b, 6500); /* longer than a lost head is waited for */
    job_expect(b, !b->has_ended && process_state(rank) == 'T');
    assert_int_equal(kill(a->pid, SIGCONT), 0);
    job_await_text(a, 0, "step 300");
    job_expect(a, !job_printed(a, 1, "lost") && !job_printed(a, 1, "has waited"));
    assert_int_equal(kill(a->pid, SIGTERM), 0);
    job_await_end(a);
    job_await_end(b);
}

/* --- starting again --- */

static const char fails_once[] = "echo generation $LOCKSTEP_GENERATION restart "
                                 "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                                 "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "
                                 "[ $RANK = 1 ] && exit 7; sleep 60; fi";

static void a_failure_restarts_all_nodes(void **state)
{
    job *a = start_node("2", "0", "1", "--max-restarts=2", JOB_LIST("sh", "-c", fails_once));
    job *b = start_node("2", "1", "1", "--max-restarts=2", JOB_LIST("sh", "-c", fails_once));

    LS_UNUSED(state);
    expect_both(a, b, 0);
    job_expect(a, job_printed(a, 0, "generation 1 restart 0 of 2"));
    job_expect(a, job_printed(a, 0, "generation 2 restart 1 of 2"));
    job_expect(b, job_printed(b, 0, "generation 2 restart 1 of 2"));
    job_expect(a, job_printed(a, 1, "restart 1 of 2: ") && job_printed(a, 1, "exited with code 7"));
}

static void a_restart_has_a_group_that_works(void **state)
{
    static const char script[] =
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ]; then sleep 0.3; kill -9 $$; fi; "
        "exec " JOB_ACTOR " steps 200";
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "3", "--max-restarts", "1", "sh", "-c", script), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 2| sum "));
    job_expect_gone(j);
}

static void restarts_end_with_the_last_cause(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--max-restarts", "2", "sh", "-c",
                                "[ $RANK = 1 ] && exit $((10+TORCHELASTIC_RESTART_COUNT)); "
                                "sleep 60"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 12);
    job_expect_failed_rank(j, 1, "exited with code 12");
}

/* What the rank sees of its agent: how many descriptors it has open, and how many pages of
 * memory. */
#define SEE_AGENT                                                                                  \
    "read -r pid name state agent rest < /proc/$PPID/stat; "                                       \
    "read -r size pages rest < /proc/$agent/statm; set -- /proc/$agent/fd/*; "                     \
    "echo restart $TORCHELASTIC_RESTART_COUNT: $# open, $pages pages; "

/* The least of it in the ten restarts from this one on: for a moment, while a rank is started,
 * it has more. A rank that another one's end stops early says nothing. */
static long least_seen(const job *j, int restart, const char *unit)
{
    long least = LONG_MAX;

    for (int i = restart; i < restart + 10; i++) {
        char line[32];
        const char *at;
        const char *end;

        text_format(line, sizeof(line), "restart %d: ", i);
        at = strstr(text_str(&j->out), line);
        if (at == NULL)
            continue;
        end = strstr(at, unit);
        job_expect(j, end != NULL);
        while (end > at && end[-1] != ' ')
            end--;
        least = strtol(end, NULL, 10) < least ? strtol(end, NULL, 10) : least;
    }
    job_expect(j, least < LONG_MAX);
    return least;
}

static void hundreds_of_restarts_cost_no_descriptor_and_no_memory(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", "--max-restarts", "200", "sh", "-c",
                                SEE_AGENT "[ $TORCHELASTIC_RESTART_COUNT = 200 ]"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, least_seen(j, 191, " open") <= least_seen(j, 5, " open"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    job_expect(j, least_seen(j, 191, " pages") < least_seen(j, 5, " pages") + 64);
#endif
    job_expect_gone(j);
}

static void restarts_of_several_nodes_cost_nothing_at_any_of_them(void **state)
{
    static const char script[] = SEE_AGENT "[ $TORCHELASTIC_RESTART_COUNT = 30 ] || exit 3";
    job *a = start_node("2", "0", "1", "--max-restarts=30", JOB_LIST("sh", "-c", script));
    job *b = start_node("2", "1", "1", "--max-restarts=30", JOB_LIST("sh", "-c", script));

    LS_UNUSED(state);
    expect_both(a, b, 0);
    job_expect(a, least_seen(a, 21, " open") <= least_seen(a, 1, " open"));
    job_expect(b, least_seen(b, 21, " open") <= least_seen(b, 1, " open"));
}

/* Log files that cannot be had the first time cannot be had the second time. */
static void a_start_that_fails_fails_at_every_restart(void **state)
{
    char folder[160];
    job *j;

    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "%s/logs", place.key); /* that is a file */
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", "--max-restarts", "2", "--log-dir", folder,
                           "sh", "-c", "echo it runs"),
                  NULL);
    job_expect_code(j, 1);
    job_expect(j, !job_printed(j, 0, "it runs"));
    job_expect(j, job_printed(j, 1, folder));
}

static void node_that_leaves_before_the_start_leaves_alone(void **state)
{
    job *a = start_node("3", "0", "1", NULL, JOB_LIST("true"));
    job *b = start_node("3", "1", "1", NULL, JOB_LIST("true"));

    LS_UNUSED(state);
    job_await_text(a, 1, "2/3 nodes joined");
    job_await_text(b, 1, "2/3 nodes joined");
    assert_int_equal(kill(b->pid, SIGINT), 0);
    job_expect_code(b, 130);
    job_await_text(a, 1, "1/3 nodes joined");
    job_read_output(a, 300);
    job_expect(a, !a->has_ended);
    assert_int_equal(kill(a->pid, SIGTERM), 0);
    job_expect_code(a, 143);
}

static void new_node_joins_and_a_lost_node_is_dropped(void **state)
{
    static const char script[] = "echo rank $RANK of $WORLD_SIZE restart "
                                 "$TORCHELASTIC_RESTART_COUNT; exec sleep 60";
    job *a = start_any("1:2", "1", NULL, JOB_LIST("sh", "-c", script));
    job *b;

    LS_UNUSED(state);
    job_await_text(a, 0, "rank 0 of 1 restart 0");
    b = start_any("1:2", "1", NULL, JOB_LIST("sh", "-c", script));
    job_await_text(a, 0, "rank 0 of 2 restart 0");
    job_await_text(b, 0, "rank 1 of 2 restart 0");
    text_free(&a->out);
    assert_int_equal(kill(b->pid, SIGKILL), 0);
    job_await_text(a, 0, "rank 0 of 1 restart 0");
    job_expect_gone(b);
    assert_int_equal(kill(a->pid, SIGTERM), 0);
    job_expect_code(a, 143);
    job_expect_gone(a);
}

/* --- what may come to the head's port --- */

static void unauthenticated_peers_change_nothing(void **state)
{
    job *a = start_node("2", "0", "1", NULL, JOB_LIST(JOB_ACTOR, "once"));
    net_address at;
    int fds[200];
    job *b;

    LS_UNUSED(state);
    job_await_text(a, 1, "1/2 nodes joined");
    assert_int_equal(net_address_parse(place.endpoint, NET_PORT_REQUIRED, &at), LS_OK);
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++) {
        assert_int_equal(net_connect(&at, NET_STREAM, ls_deadline_ms(5000), &fds[i]), LS_OK);
        if (i % 2 == 0)
            assert_true(write(fds[i], "GET / HTTP/1.1\r\n\r\n", 18) == 18);
    }
    b = start_node("2", "1", "1", NULL, JOB_LIST(JOB_ACTOR, "once"));
    expect_both(a, b, 0);
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++)
        (void)close(fds[i]);
}

/* The ranks of the other node go on without the lost one. */
static void an_elastic_job_survives_a_lost_node(void **state)
{
    const char *const program[] = {ELASTIC_LOOP, "100", "2@30:stop", NULL};
    job *a = start_node("2", "0", "2", "--elastic", program);
    job *b = start_node("2", "1", "1", "--elastic", program);

    (void)state;
    job_await_text(b, 0, "stop of step 30"); // the others wait for it
    assert_int_equal(kill(b->pid, SIGKILL), 0);
    job_expect_code(a, 0);
    job_expect(a, job_printed(a, 0, "steps 100 state"));
    job_expect(a, job_printed(a, 1, "rank 2 was lost with node 1"));
    job_expect(a, job_printed(a, 1, "2 ranks go on"));
    job_await_end(b);
}

/* "steps N state ...", as rank 0 prints it. */
static void find_state(const job *j, char *line, size_t n)
{
    const char *at = strstr(text_str(&j->out), "steps ");

    job_expect(j, at != NULL);
    text_format(line, n, "%.*s", (int)strcspn(at, "\n"), at);
}

/* A node that waits, and one that joins when another one is lost, take the places of lost nodes:
 * their ranks get the state, no other rank restarts, and the bits are those of a job without a
 * loss. */
static void spare_nodes_take_the_places_of_lost_ones(void **state)
{
    const char *const program[] = {ELASTIC_LOOP, "40", "until=7", "3@30:stop", "5@-1:stop", NULL};
    char lines[2][4096];
    char steps[24];
    job *a = start_any("2:2", "2", "--elastic", program);
    job *alone;
    job *b;
    job *spare;
    job *later;

    (void)state;
    job_await_text(a, 1, "nodes joined"); // it is the head
    b = start_any("2:2", "2", "--elastic", program);
    job_await_text(b, 0, "stop of step 30");
    spare = start_any("2:2", "2", "--elastic", program);
    job_await_text(spare, 1, "this node waits until it can join");
    assert_int_equal(kill(b->pid, SIGKILL), 0);
    job_await_text(spare, 0, "stop of step ");
    job_await_text(a, 1, "is replaced by");
    assert_int_equal(kill(spare->pid, SIGKILL), 0);
    job_await_text(a, 1, "was lost with node 1");
    later = start_joiner(JOB_LIST("-n", "2"));
    job_expect_code(a, 0);
    job_expect_code(later, 0);
    job_expect(a, !job_printed(a, 1, "restart"));
    find_state(a, lines[0], sizeof(lines[0]));
    text_format(steps, sizeof(steps), "%ld", strtol(lines[0] + strlen("steps "), NULL, 10));
    alone =
        job_start(JOB_LIST(JOB_TOOL, "run", "--no-prefix", "-n", "1", ELASTIC_LOOP, steps), NULL);
    job_expect_code(alone, 0);
    find_state(alone, lines[1], sizeof(lines[1]));
    job_expect(a, text_equal(lines[0], lines[1]));
    job_await_end(b);
    job_await_end(spare);
}

static void nodes_of_a_job_with_another_rdzv_id_get_that_reason(void **state)
{
    job *a = start_any("2:2", "1", "--rdzv-id=one", JOB_LIST("true"));
    job *b;

    (void)state;
    job_await_text(a, 1, "nodes joined"); // it is the head
    b = start_any("2:2", "1", "--rdzv-id=two", JOB_LIST("true"));
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "--rdzv-id is two there and one at the head; fix: pass the"));
    job_expect(b, !job_printed(b, 1, "key"));
    b = start_joiner(JOB_LIST("-n", "1", "--rdzv-id", "three"));
    job_expect_code(b, 1);
    job_expect(b, job_printed(b, 1, "--rdzv-id is three there and one at the head"));
    job_await_text(a, 1, "--rdzv-id is three there and one at the head");
    b = start_any("2:2", "1", "--rdzv-id=one", JOB_LIST("true"));
    expect_both(a, b, 0);
}

/* --- SIGTERM to one node, as at the eviction of a pod --- */

/* Its ranks get the signal and their time; the others go on without a restart. */
static void a_node_of_an_elastic_job_leaves_at_sigterm(void **state)
{
    const char *const program[] = {LOCKSTEP_BIN "/mnist", "--steps", "4000", "--batch-size", "8",
                                   "--print-freq",        "10",      NULL};
    job *a = start_node("2", "0", "1", "--elastic", program);
    job *b = start_node("2", "1", "2", "--elastic", program);

    (void)state;
    job_await_text(a, 0, "step 20");
    assert_int_equal(kill(b->pid, SIGTERM), 0);
    job_expect_code(b, 128 + SIGTERM);
    job_expect(b, job_printed(b, 1, "SIGTERM: this node leaves the job, which goes on: the ranks"));
    job_expect(b, !job_printed(b, 1, "was killed by"));
    job_await_text(a, 0, "with 1 rank, ");
    job_await_text(a, 1, "it has left after SIGTERM: 1 rank goes on");
    assert_int_equal(kill(a->pid, SIGTERM), 0); // the last one ends the job
    job_expect_code(a, 128 + SIGTERM);
    job_expect(a, job_printed(a, 0, "stopped by SIGTERM at step "));
    job_expect_gone(a);
}

static void nodes_of_a_job_with_a_minimum_restart_without_one_that_leaves(void **state)
{
    static const char script[] =
        "[ $WORLD_SIZE = 1 ] && echo alone, restarts: $TORCHELASTIC_RESTART_COUNT && exit 0;"
        "exec " JOB_ACTOR " orderly 0";
    job *a =
        start_any("1:2", "1", "--rdzv-conf=last_call_timeout=10", JOB_LIST("sh", "-c", script));
    job *b;

    (void)state;
    job_await_text(a, 1, "nodes joined"); // it is the head
    b = start_any("1:2", "1", "--rdzv-conf=last_call_timeout=10", JOB_LIST("sh", "-c", script));
    job_await_text(a, 0, "is ready");
    job_await_text(b, 0, "is ready");
    assert_int_equal(kill(b->pid, SIGTERM), 0);
    job_expect_code(b, 128 + SIGTERM);
    job_expect(b, job_printed(b, 0, "was asked by signal 15"));
    job_expect_code(a, 0);
    job_expect(a, job_printed(a, 0, "was asked by signal 15"));
    job_expect(a, job_printed(a, 0, "alone, restarts: 0"));
    job_expect(a, job_printed(a, 1, ") leaves, the others restart without it"));
    job_expect_gone(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(ranks_of_all_nodes_are_one_job),
        test(each_rank_learns_its_place),
        test(waiting_nodes_print_the_roster),
        test(node_with_another_key_prints_the_file_to_copy),
        test(conflicting_nodes_are_both_notified),
        test(second_node_with_a_number_is_rejected),
        test(without_a_key_it_must_be_spelled_out),
        test(a_node_killed_while_others_wait_may_come_again),
        test(waiting_nodes_report_a_killed_head),
        test(a_node_may_join_with_nothing_but_the_place),
        test(hint_names_the_port_that_was_free),
        test(a_joiner_needs_its_number_where_nodes_have_one),
        test(a_joiner_waits_for_the_head_and_ends_with_it),
        test(every_node_prints_the_same_cause),
        test(remote_ranks_receive_the_cause_of_a_failed_call),
        test(a_rank_that_leaves_early_is_the_cause),
        test(a_lost_node_is_named_and_nothing_is_left),
        test(a_lost_head_ends_every_node),
        test(an_agent_that_stands_still_is_a_lost_node),
        test(a_head_that_stands_still_is_a_lost_head),
        test(any_node_may_stop_the_job_in_good_order),
        test(ctrl_z_stops_all_nodes_and_fg_continues_without_alarm),
        test(a_failure_restarts_all_nodes),
        test(a_restart_has_a_group_that_works),
        test(restarts_end_with_the_last_cause),
        test(hundreds_of_restarts_cost_no_descriptor_and_no_memory),
        test(restarts_of_several_nodes_cost_nothing_at_any_of_them),
        test(a_start_that_fails_fails_at_every_restart),
        test(node_that_leaves_before_the_start_leaves_alone),
        test(new_node_joins_and_a_lost_node_is_dropped),
        test(unauthenticated_peers_change_nothing),
        test(an_elastic_job_survives_a_lost_node),
        test(nodes_of_a_job_with_another_rdzv_id_get_that_reason),
        test(a_node_of_an_elastic_job_leaves_at_sigterm),
        test(nodes_of_a_job_with_a_minimum_restart_without_one_that_leaves),
        test(spare_nodes_take_the_places_of_lost_ones),
    };

    return cmocka_run_group_tests(tests, set_up, remove_key);
}
