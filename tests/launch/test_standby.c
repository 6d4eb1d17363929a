/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_standby.c - elastic jobs of several nodes whose head is lost (elastic_loop.c): another node
 * takes over, and the result has the bits of a job from which none was lost. The nodes are agents
 * on this machine that know each other by TCP only.
 */
#include "launch/job.h"

#include "base/clock.h"
#include "net/key.h"
#include "net/socket.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

#define STEPS "120"
#define STATE "steps " STEPS " state"

enum { LINE = 8192, NODES_MAX = 5, RANKS_MAX = 2, ARGS_MAX = 40 };

static struct {
    char port[16];
    char key[64]; /* file */
    char key_env[96];
    char gate[72]; /* file that ranks which hold wait for */
    char gate_env[96];
    char undisturbed[LINE]; /* the line with the state */
} place;

static void make_place(void)
{
    net_address any;
    net_address bound;
    net_key key;
    int fd;

    assert_int_equal(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any), LS_OK);
    assert_int_equal(net_listen(&any, NET_STREAM, 1, &fd, &bound), LS_OK);
    (void)close(fd);
    text_format(place.port, sizeof(place.port), "%d", net_address_port(&bound));
    text_format(place.key, sizeof(place.key), "/tmp/lockstep-test-key-%d-%llu", (int)getpid(),
                (unsigned long long)ls_now_ns());
    assert_int_equal(net_key_random(&key), LS_OK);
    assert_int_equal(net_key_write_file(place.key, &key), LS_OK);
    text_format(place.key_env, sizeof(place.key_env), NET_KEY_FILE_ENV "=%s", place.key);
    text_format(place.gate, sizeof(place.gate), "%s-gate", place.key);
    text_format(place.gate_env, sizeof(place.gate_env), "ELASTIC_GATE=%s", place.gate);
}

static void find_state(const job *j, char line[LINE])
{
    const char *at = strstr(text_str(&j->out), STATE);

    if (at == NULL)
        job_fail(j, __FILE__, __LINE__, "it prints its state");
    text_format(line, LINE, "%.*s", (int)strcspn(at, "\n"), at);
}

static int set_up(void **state)
{
    job *j = job_start(
        JOB_LIST(LOCKSTEP_TOOL, "run", "--no-prefix", "-n", "2", ELASTIC_LOOP, STEPS), NULL);

    make_place();
    job_expect_code(j, 0);
    find_state(j, place.undisturbed);
    job_clean_up(state);
    return 0;
}

static int remove_key(void **state)
{
    (void)state;
    (void)unlink(place.key);
    (void)unlink(place.gate);
    return 0;
}

/* Node i of n, with its ranks. */
static job *start_node(int n, int i, const char *ranks, const char *const *flags,
                       const char *const *ends, const char *const *env)
{
    char nodes[16];
    char number[16];
    const char *argv[ARGS_MAX] = {JOB_TOOL,    "run",           "--no-prefix", "--nnodes",
                                  NULL,        "--node-rank",   NULL,          "--master-addr",
                                  "127.0.0.1", "--master-port", place.port,    "-n",
                                  ranks,       "--elastic"};
    const char *variables[4] = {place.key_env};
    int at = 14;

    argv[4] = text_format(nodes, sizeof(nodes), "%d", n);
    argv[6] = text_format(number, sizeof(number), "%d", i);
    for (; flags != NULL && *flags != NULL; flags++)
        argv[at++] = *flags;
    argv[at++] = ELASTIC_LOOP;
    argv[at++] = STEPS;
    for (; *ends != NULL; ends++)
        argv[at++] = *ends;
    assert_true(at < ARGS_MAX);
    for (int k = 1; env != NULL && *env != NULL && k < 3; env++)
        variables[k++] = *env;
    return job_start(argv, variables);
}

/* Three nodes: ranks 0 and 1, rank 2, rank 3. */
static void start_three(job *nodes[3], const char *const *flags, const char *const *ends,
                        const char *const *env)
{
    for (int i = 0; i < 3; i++)
        nodes[i] = start_node(3, i, i == 0 ? "2" : "1", flags, ends, env);
}

/* The processes of a node. */
typedef struct node_pids {
    pid_t list[2 + 2 * RANKS_MAX];
    int n;
} node_pids;

static node_pids find_pids(job *j, int first_rank, int n_ranks)
{
    node_pids p = {.n = 2 + 2 * n_ranks};

    p.list[0] = job_find(j, JOB_AGENT, 0);
    p.list[1] = job_find(j, JOB_GUARDIAN, 0);
    for (int i = 0; i < n_ranks; i++) {
        p.list[2 + 2 * i] = job_find(j, JOB_SHIM, i);
        p.list[3 + 2 * i] = job_find(j, JOB_RANK, first_rank + i);
    }
    return p;
}

/* All at once, as a machine that is switched off. */
static void signal_all(const node_pids *p, int number)
{
    for (int i = 0; i < p->n; i++)
        (void)kill(p->list[i], number);
}

static void expect_same_state(const job *j)
{
    char line[LINE];

    find_state(j, line);
    job_expect(j, text_equal(line, place.undisturbed));
}

/* Which of nodes 1 .. n - 1 leads the job: the first that asks for votes is elected. -1: none. */
static int find_new_head(job *const *nodes, int n)
{
    for (int i = 1; i < n; i++)
        if (job_printed(nodes[i], 1, "its head on this machine"))
            return i;
    return -1;
}

/* --- tests --- */

static void another_node_takes_over(void **state)
{
    job *nodes[3];
    job *other;
    node_pids lost;
    int head;

    (void)state;
    start_three(nodes, NULL, JOB_LIST("0@30:stop"), NULL);
    job_await_text(nodes[0], 0, "stop of step 30");
    lost = find_pids(nodes[0], 0, 2);
    signal_all(&lost, SIGKILL);
    job_expect_code(nodes[1], 0);
    job_expect_code(nodes[2], 0);
    expect_same_state(nodes[1]);
    head = find_new_head(nodes, 3);
    job_expect(nodes[1], head > 0);
    other = nodes[3 - head];
    job_expect(nodes[head], job_printed(nodes[head], 1, "rank 1 was lost with node 0"));
    job_expect(other, job_printed(other, 1, "2 ranks go on"));
    job_expect(other, job_printed(other, 1, "the head of the job is at"));
    job_await_end(nodes[0]);
}

/* As after SIGKILL, but the ranks of the machine get the signal first. */
static void the_head_moves_when_its_node_gets_sigterm(void **state)
{
    job *nodes[3];

    (void)state;
    start_three(nodes, NULL, JOB_LIST("0@30:stop"), NULL);
    job_await_text(nodes[0], 0, "stop of step 30");
    assert_int_equal(kill(nodes[0]->pid, SIGTERM), 0);
    job_expect_code(nodes[0], 128 + SIGTERM);
    job_expect(nodes[0], job_printed(nodes[0], 1, "SIGTERM: this node leaves the job"));
    job_expect_code(nodes[1], 0);
    job_expect_code(nodes[2], 0);
    expect_same_state(nodes[1]);
    job_expect(nodes[1], find_new_head(nodes, 3) > 0);
}

static void open_gate(void)
{
    FILE *f = fopen(place.gate, "w");

    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
}

/* In the middle of recoveries, while replacements start, and with all bytes encrypted. A rank of
 * another node keeps the job from its end until then. */
static void the_head_is_lost_during_a_recovery(void **state)
{
    static const struct {
        const char *ends[4];
        int node;
        const char *text;
        const char *security;
    } cases[] = {
        {{"1@40:backward", "3@100:hold"}, 0, "backward of step 40", "LOCKSTEP_SECURITY=auth"},
        {{"2@40:forward", "0@40:recovery", "3@100:hold"},
         0,
         "recovery of step 40",
         "LOCKSTEP_SECURITY=mac"},
        {{"3@50:update", "2@100:hold"}, 2, "update of step 50", "LOCKSTEP_SECURITY=encrypt"},
    };

    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        job *nodes[3];

        start_three(nodes, JOB_LIST("--max-restarts", "3"), cases[i].ends,
                    JOB_LIST(cases[i].security, place.gate_env));
        job_await_text(nodes[cases[i].node], 0, cases[i].text);
        (void)kill(job_find(nodes[0], JOB_AGENT, 0), SIGKILL);
        open_gate();
        job_expect_code(nodes[1], 0);
        job_expect_code(nodes[2], 0);
        job_expect(nodes[1], find_new_head(nodes, 3) > 0);
        expect_same_state(job_printed(nodes[1], 0, STATE) ? nodes[1] : nodes[2]);
        job_clean_up(state);
        (void)unlink(place.gate);
    }
}

/* The new head starts a process in the place of a lost rank. */
static void the_new_head_replaces_ranks(void **state)
{
    job *nodes[3];

    (void)state;
    start_three(nodes, JOB_LIST("--max-restarts", "2"), JOB_LIST("0@30:stop", "2@60:forward"),
                NULL);
    job_await_text(nodes[0], 0, "stop of step 30");
    (void)kill(job_find(nodes[0], JOB_AGENT, 0), SIGKILL);
    job_expect_code(nodes[1], 0);
    job_expect_code(nodes[2], 0);
    expect_same_state(nodes[2]); // rank 3 is the oldest
    job_expect(nodes[2], job_printed(nodes[2], 1, "rank 2 (pid"));
    job_await_end(nodes[0]);
}

/* It continues when the job is over. */
static void a_stopped_head_is_fenced(void **state)
{
    job *nodes[3];
    node_pids head;

    (void)state;
    start_three(nodes, NULL, JOB_LIST("0@30:stop"), NULL);
    job_await_text(nodes[0], 0, "stop of step 30");
    head = find_pids(nodes[0], 0, 2);
    signal_all(&head, SIGSTOP);
    job_expect_code(nodes[1], 0);
    job_expect_code(nodes[2], 0);
    expect_same_state(nodes[1]);
    signal_all(&head, SIGCONT);
    job_expect_code(nodes[0], 1);
    job_expect(nodes[0], job_printed(nodes[0], 1, "not connected to a majority"));
    job_expect(nodes[0], !job_printed(nodes[0], 0, STATE));
}

/* Kills all processes of a node of one rank. */
static void kill_node(job *const *nodes, int node)
{
    const node_pids p = find_pids(nodes[node], node, 1);

    signal_all(&p, SIGKILL);
}

/* Two of five may be lost, one after the other. Rank 1 holds the job until the second is. */
static void heads_are_lost_in_turn(void **state)
{
    static const char *const ends[] = {"0@30:stop", "1@60:hold", NULL};
    job *nodes[NODES_MAX];
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    int second;
    int oldest;

    (void)state;
    for (int i = 0; i < NODES_MAX; i++)
        nodes[i] =
            start_node(NODES_MAX, i, "1", NULL, ends, JOB_LIST("ELASTIC_SHARDS=5", place.gate_env));
    job_await_text(nodes[0], 0, "stop of step 30");
    kill_node(nodes, 0);
    job_await_text(nodes[1], 0, "hold of step 60");
    while ((second = find_new_head(nodes, NODES_MAX)) < 0) {
        for (int i = 1; i < NODES_MAX; i++)
            job_read_output(nodes[i], 10);
        job_expect(nodes[1], ls_deadline_left(deadline_ms) > 0);
    }
    kill_node(nodes, second);
    open_gate();
    for (int i = 1; i < NODES_MAX; i++)
        if (i != second)
            job_expect_code(nodes[i], 0);
    oldest = second == 1 ? 2 : 1;
    job_expect(nodes[oldest], job_printed(nodes[oldest], 0, STATE));
    job_await_end(nodes[0]);
    job_await_end(nodes[second]);
    nodes[second] = nodes[0]; // the third head is another one
    job_expect(nodes[oldest], find_new_head(nodes, NODES_MAX) > 0);
}

/* The head and another node end in the middle of step 30. */
static void lose_two_of_three(job *nodes[3])
{
    node_pids lost[2];

    start_three(nodes, NULL, JOB_LIST("0@30:stop"), NULL);
    job_await_text(nodes[0], 0, "stop of step 30");
    lost[0] = find_pids(nodes[0], 0, 2);
    lost[1] = find_pids(nodes[1], 2, 1);
    signal_all(&lost[0], SIGKILL);
    signal_all(&lost[1], SIGKILL);
}

static void without_a_majority_the_job_ends(void **state)
{
    job *nodes[3];

    (void)state;
    lose_two_of_three(nodes);
    job_expect_code(nodes[2], 1);
    job_expect(nodes[2], job_printed(nodes[2], 1, "not connected to a majority"));
    job_await_end(nodes[0]);
    job_await_end(nodes[1]);
}

/* No node will ever take over, and this node's ranks wait for that. */
static void a_node_without_a_head_ends_at_a_signal(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};

    for (size_t i = 0; i < LS_COUNT_OF(signals); i++) {
        job *nodes[3];

        lose_two_of_three(nodes);
        job_await_text(nodes[2], 1, "is lost");
        assert_int_equal(kill(nodes[2]->pid, signals[i]), 0);
        job_expect_code(nodes[2], 128 + signals[i]);
        job_expect(nodes[2],
                   job_printed(nodes[2], 1, "this node leaves the job, whose head is lost"));
        job_await_end(nodes[0]);
        job_await_end(nodes[1]);
        job_clean_up(state);
    }
}

/* It is none of the nodes that elect a head. One that misses the head gives up after 20 s. */
static void a_spare_node_follows_without_a_vote(void **state)
{
    static const char *const ends[] = {"until=4", "3@30:stop", "4@-1:stop", NULL};
    job *nodes[3];
    job *spare;
    node_pids lost;

    (void)state;
    start_three(nodes, NULL, ends, NULL);
    job_await_text(nodes[2], 0, "stop of step 30");
    lost = find_pids(nodes[2], 3, 1);
    signal_all(&lost, SIGKILL);
    spare = start_node(3, 2, "1", NULL, ends, NULL);
    job_await_text(nodes[0], 1, "is replaced by");
    job_await_text(spare, 0, "stop of step ");
    (void)sleep(22);
    (void)kill(job_find(spare, JOB_RANK, 3), SIGCONT);
    job_expect_code(spare, 0);
    job_expect_code(nodes[0], 0);
    job_expect_code(nodes[1], 0);
    job_await_end(nodes[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(another_node_takes_over),
        test(the_head_moves_when_its_node_gets_sigterm),
        test(the_head_is_lost_during_a_recovery),
        test(the_new_head_replaces_ranks),
        test(a_stopped_head_is_fenced),
        test(heads_are_lost_in_turn),
        test(without_a_majority_the_job_ends),
        test(a_node_without_a_head_ends_at_a_signal),
        test(a_spare_node_follows_without_a_vote),
    };

    return cmocka_run_group_tests(tests, set_up, remove_key);
}
