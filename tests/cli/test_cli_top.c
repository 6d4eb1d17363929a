/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_top.c - lockstep top, lockstep ps and --metrics-port with real jobs: what they show of
 * running, late and stopped ranks, also on two nodes, the live table at several sizes, and users
 * that get no answer.
 */
#include "launch/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/report/json.h"
#include "launch/metrics_check.h"
#include "launch/status/status_client.h"
#include "net/messages/frame.h"
#include "net/socket.h"
#include "net/wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* The name of the jobs of this process: tests of another tree may run beside it. */
static char watched_name[32];

/* Runs the tool with these arguments to its end; what it has printed. The shell replaces $WATCHED
 * by the name. */
static const char *run_tool(const char *arguments, int code)
{
    static char text[1 << 18];
    char command[2048];
    size_t n;
    int status;
    FILE *tool;

    text_format(command, sizeof(command), "%s %s 2>&1", JOB_TOOL, arguments);
    tool = popen(command, "r"); // NOLINT(cert-env33-c): the test's own arguments
    assert_non_null(tool);
    n = fread(text, 1, sizeof(text) - 1, tool);
    text[n] = '\0';
    status = pclose(tool);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        fail_msg("%s: wait status %d instead of exit code %d: %s", command, status, code, text);
    return text;
}

/* What `lockstep top --once --json` prints of the job; freed with json_free(). */
static json_value *look(const job *watched)
{
    char arguments[64];
    const char *text;
    json_value *v;

    text_format(arguments, sizeof(arguments), "top --once --json %d", (int)watched->pid);
    text = run_tool(arguments, 0);
    assert_ok(json_parse(text, strlen(text), "top --json", &v));
    return v;
}

static const json_value *rank_of(const json_value *v, int rank)
{
    const json_value *list = json_get(v, "ranks");

    for (size_t i = 0; i < json_size(list); i++)
        if (json_as_int(json_get(json_at(list, i), "rank"), -1) == rank)
            return json_at(list, i);
    return NULL;
}

static int64_t step_of(const json_value *rank)
{
    return json_as_int(json_get(rank, "step"), -1);
}

/* A job of `n` ranks that train until SIGTERM. */
static job *start_training(const char *n, const char *const *env)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", n, "--rdzv-id", watched_name, STEPS_PROGRAM),
                       env);

    (void)job_find(j, JOB_RANK, 1);
    return j;
}

static void stop(job *j)
{
    (void)kill(j->pid, SIGTERM);
    job_await_end(j);
    job_expect_gone(j);
}

static void top_prints_the_ranks_of_a_job_as_json(void **state)
{
    job *j = start_training("2", NULL);
    json_value *v;
    int64_t first;

    LS_UNUSED(state);
    do { // until both ranks have reported a step
        v = look(j);
        first = step_of(rank_of(v, 1));
        if (step_of(rank_of(v, 0)) < 1 || first < 1)
            json_free(v);
        else
            break;
    } while (true);
    assert_string_equal(json_as_string(json_get(v, "name"), ""), watched_name);
    assert_string_equal(json_as_string(json_get(v, "state"), ""), "running");
    assert_int_equal(json_as_int(json_get(v, "pid"), 0), j->pid);
    assert_int_equal(json_as_int(json_get(v, "world_size"), 0), 2);
    assert_int_equal(json_size(json_get(v, "ranks")), 2);
    for (int i = 0; i < 2; i++) {
        const json_value *r = rank_of(v, i);

        assert_int_equal(json_as_int(json_get(r, "pid"), 0), job_find(j, JOB_RANK, i));
        assert_true(json_as_real(json_get(r, "memory_bytes"), 0) > 1e6);
        assert_true(json_as_real(json_get(r, "operations"), 0) > 0);
        assert_true(json_as_real(json_get(json_get(r, "seconds"), "backward"), 0) > 0);
        assert_true(json_as_real(json_get(r, "samples"), 0) >= (double)step_of(r));
        assert_true(json_as_real(json_get(r, "loss"), -1) >= 0);
    }
    json_free(v);
    v = look(j);
    while (step_of(rank_of(v, 1)) <= first) { // it goes on
        json_free(v);
        v = look(j);
    }
    json_free(v);
    stop(j);
}

/* The bytes that rank 0 has received from rank 1, when there are some. */
static double await_received(const job *j)
{
    double bytes = 0;

    while (bytes == 0) { // until both ranks have taken part in an operation
        json_value *v = look(j);
        const json_value *rank = rank_of(v, 0);
        const json_value *sources = json_get(rank, "sources");

        if (json_size(sources) > 0) {
            assert_int_equal(json_size(sources), 1);
            assert_int_equal(json_as_int(json_get(json_at(sources, 0), "rank"), -1), 1);
            bytes = json_as_real(json_get(json_at(sources, 0), "bytes"), 0);
            assert_true(json_as_real(json_get(rank, "received_bytes"), 0) == bytes);
        }
        json_free(v);
    }
    return bytes;
}

static void bytes_between_ranks_are_counted(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        char variable[64];
        char arguments[64];
        job *j;
        double first;

        text_format(variable, sizeof(variable), "LOCKSTEP_TRANSPORT=%s", transports[i]);
        j = start_training("2", JOB_LIST(variable));
        first = await_received(j);
        while (await_received(j) == first)
            continue; // more comes
        text_format(arguments, sizeof(arguments), "top --once --pairs %d", (int)j->pid);
        assert_non_null(strstr(run_tool(arguments, 0), "\n     0      1 "));
        assert_non_null(strstr(run_tool(arguments, 0), "\n     1      0 "));
        stop(j);
    }
}

static void jobs_of_ls_spawn_are_seen(void **state)
{
    job *j = job_start(JOB_LIST(JOB_ACTOR, "spawn", "2", "steps"), NULL);
    json_value *v;

    LS_UNUSED(state);
    job_await_text(j, 0, "step 100\n");
    v = look(j);
    assert_string_equal(json_as_string(json_get(v, "state"), ""), "running");
    assert_non_null(strstr(json_as_string(json_get(v, "command"), ""), " spawn 2 steps"));
    assert_int_equal(json_size(json_get(v, "ranks")), 2);
    assert_true(json_as_real(json_get(rank_of(v, 1), "operations"), 0) > 0);
    json_free(v);
    stop(j);
}

static void a_late_rank_is_marked_and_its_warning_shown(void **state)
{
    job *j = start_training("2", JOB_LIST("LATE_RANK=1", "LATE_STEP=3"));
    json_value *v = look(j);

    LS_UNUSED(state);
    while (!json_as_bool(json_get(rank_of(v, 1), "late"), false)) {
        json_free(v);
        v = look(j);
    }
    assert_false(json_as_bool(json_get(rank_of(v, 0), "late"), true));
    assert_true(json_as_real(json_get(rank_of(v, 0), "waits_s"), 0) >= 1.0);
    assert_int_equal(step_of(rank_of(v, 1)), 3);
    assert_string_equal(json_as_string(json_get(rank_of(v, 1), "warning"), ""), "this rank waits");
    json_free(v);
    assert_non_null(strstr(run_tool("top --once $WATCHED", 0), "\n!    1 "));
    stop(j);
}

/* Whether rank 0 waits for long for a rank that is not late: that one was stopped after it had
 * started the same operation. */
static bool was_stopped_within_operation(const json_value *v)
{
    return json_as_real(json_get(rank_of(v, 0), "waits_s"), -1) >= STATUS_LATE_S &&
           !json_as_bool(json_get(rank_of(v, 1), "late"), false);
}

static void a_stopped_rank_is_shown_as_stopped_and_late(void **state)
{
    job *j = start_training("2", NULL);
    const pid_t rank = job_find(j, JOB_RANK, 1);
    json_value *v = look(j);

    LS_UNUSED(state);
    while (step_of(rank_of(v, 1)) < 1) {
        json_free(v);
        v = look(j);
    }
    assert_int_equal(kill(rank, SIGSTOP), 0);
    while (!json_as_bool(json_get(rank_of(v, 1), "late"), false)) {
        if (was_stopped_within_operation(v)) {
            assert_int_equal(kill(rank, SIGCONT), 0);
            json_free(look(j)); // meanwhile it goes on
            assert_int_equal(kill(rank, SIGSTOP), 0);
        }
        json_free(v);
        v = look(j);
    }
    assert_string_equal(json_as_string(json_get(rank_of(v, 1), "state"), ""), "stopped");
    json_free(v);
    assert_int_equal(kill(rank, SIGCONT), 0);
    do {
        v = look(j);
        if (!json_as_bool(json_get(rank_of(v, 1), "late"), true))
            break;
        json_free(v);
    } while (true);
    json_free(v);
    stop(j);
}

static void ps_lists_the_job_and_top_explains_a_wrong_name(void **state)
{
    job *j = start_training("2", NULL);
    char text[64];
    text_buf words = {0};

    LS_UNUSED(state);
    text_format(text, sizeof(text), "%d %s", (int)j->pid, watched_name);
    assert_non_null(strstr(run_tool("ps", 0), text));
    text_format(text, sizeof(text), "\"name\":\"%s\"", watched_name);
    assert_non_null(strstr(run_tool("ps --json", 0), text));
    assert_non_null(strstr(run_tool("top --once other", 1), "no job other"));
    assert_non_null(strstr(run_tool("top --json", 2), "--json needs --once"));
    assert_non_null(strstr(run_tool("top --host -oX", 2), "not the name"));
    text_append(&words, "top --host node7 --ssh '%0*d'", 1024, 0);
    assert_non_null(strstr(run_tool(text_str(&words), 2), "--ssh: more than 1023 characters"));
    text_free(&words);
    text_append(&words, "top --host node7 --ssh 'true");
    for (int i = 0; i < 32; i++)
        text_append(&words, " -v");
    text_append(&words, "'");
    assert_non_null(strstr(run_tool(text_str(&words), 2), "--ssh: more than 32 words"));
    text_free(&words);
    stop(j);
}

/* The ssh of this test runs the command here, where lockstep is in PATH as on the other machine. */
static void another_machine_is_asked_by_ssh(void **state)
{
    job *j = start_training("2", NULL);
    char ssh[64];
    char arguments[256];
    text_buf script = {0};

    LS_UNUSED(state);
    text_format(ssh, sizeof(ssh), "/tmp/lockstep-test-top-ssh-%d", (int)getpid());
    text_append(&script,
                "[ \"$1\" = -p ] && [ \"$2\" = 22 ] && [ \"$3\" = node7 ] && [ $# = 4 ] || exit 9\n"
                "PATH=%s:$PATH exec sh -c \"$4\"\n",
                LOCKSTEP_BIN);
    assert_ok(file_replace(ssh, text_str(&script), script.length));
    text_format(arguments, sizeof(arguments),
                "top --once --ssh 'sh %s -p 22' --host node7 --sort memory $WATCHED", ssh);
    assert_non_null(strstr(run_tool(arguments, 0), "job watched-"));
    text_format(arguments, sizeof(arguments),
                "top --once --ssh 'sh %s -p 22' --host node7 \"it's\"", ssh);
    assert_non_null(strstr(run_tool(arguments, 1), "no job it's"));
    (void)unlink(ssh);
    text_free(&script);
    stop(j);
}

static void the_head_shows_the_ranks_of_all_nodes(void **state)
{
    char port[16];
    char master[32];
    net_address at;
    net_address bound;
    job *nodes[2];
    json_value *v;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_address_parse("127.0.0.1", 0, &at));
    assert_ok(net_listen(&at, NET_STREAM, 1, &fd, &bound));
    text_format(port, sizeof(port), "%d", net_address_port(&bound));
    text_format(master, sizeof(master), "127.0.0.1");
    (void)close(fd);
    for (int i = 0; i < 2; i++)
        nodes[i] = job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "--node-rank",
                                      i == 0 ? "0" : "1", "--master-addr", master, "--master-port",
                                      port, "--insecure", "-n", "1", STEPS_PROGRAM),
                             NULL);
    (void)job_find(nodes[0], JOB_RANK, 0);
    (void)job_find(nodes[1], JOB_RANK, 1);
    v = look(nodes[0]);
    while (step_of(rank_of(v, 0)) < 1 || step_of(rank_of(v, 1)) < 1) {
        json_free(v);
        v = look(nodes[0]);
    }
    assert_int_equal(json_as_int(json_get(v, "nodes"), 0), 2);
    assert_true(json_as_bool(json_get(v, "head"), false));
    json_free(v);
    v = look(nodes[1]);
    assert_false(json_as_bool(json_get(v, "head"), true));
    assert_null(rank_of(v, 0));
    assert_non_null(rank_of(v, 1));
    json_free(v);
    stop(nodes[0]);
    job_await_end(nodes[1]);
}

/* --- the live table --- */

/* What a terminal shows, without the sequences that move its cursor and change its style. */
static void strip(const char *from, char *to, size_t n)
{
    size_t used = 0;

    for (; *from != '\0' && used + 1 < n; from++) {
        if (*from != '\x1b') {
            to[used++] = *from;
            continue;
        }
        from++;
        if (*from == '[')
            do
                from++;
            while (*from != '\0' && (*from < '@' || *from > '~'));
        else if (*from == '(' || *from == ')')
            from++;
        if (*from == '\0')
            break;
    }
    to[used] = '\0';
}

static bool shows(const job *screen, const char *text)
{
    static char plain[1 << 18];

    strip(text_str(&screen->out), plain, sizeof(plain));
    return strstr(plain, text) != NULL;
}

static void await_shown(job *screen, const char *text)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (!shows(screen, text)) {
        job_expect(screen, ls_deadline_left(deadline_ms) > 0 && !screen->has_ended);
        job_read_output(screen, 20);
    }
}

static job *open_screen(const char *lines, const char *columns)
{
    return job_start_on_terminal(JOB_LIST(JOB_TOOL, "top", "--interval", "0.1", watched_name),
                                 JOB_LIST("TERM=vt100", lines, columns, "LC_ALL=C.UTF-8"));
}

static void await_row(job *screen, int rank)
{
    char host[9] = "";
    char row[32];

    (void)gethostname(host, sizeof(host) - 1); // the column has 8
    (void)snprintf(row, sizeof(row), "%d %s", rank, host);
    await_shown(screen, row);
}

static void the_live_status_shows_ranks_and_operations(void **state)
{
    job *j = start_training("2", NULL);
    job *screen = open_screen("LINES=24", "COLUMNS=80");

    LS_UNUSED(state);
    job_read_output(screen, 20);
    if (screen->has_ended) {
        job_expect_code(screen, 1);
        assert_true(job_printed(screen, 0, "built without ncursesw"));
        stop(j);
        print_message("skipped: built without ncursesw\n");
        skip();
    }
    await_shown(screen, "SAMPLES/S");
    await_row(screen, 0); // below the names of the columns, which fill their line
    await_row(screen, 1);
    await_shown(screen, "running");
    await_shown(screen, "job watched");
    job_write(screen, "s");
    await_shown(screen, "step-time");
    job_write(screen, "j\n");
    await_shown(screen, "last operations of rank");
    await_shown(screen, "all_reduce");
    job_write(screen, "p");
    await_shown(screen, "  FROM     TO        RATE       TOTAL");
    job_write(screen, "ph");
    await_shown(screen, "choose a rank");
    job_write(screen, "q");
    job_await_end(screen);
    job_expect_code(screen, 0);
    stop(j);
}

static void the_live_status_needs_a_terminal(void **state)
{
    job *j = start_training("2", NULL);
    job *screen = job_start(JOB_LIST(JOB_TOOL, "top", watched_name), JOB_LIST("TERM=vt100"));

    LS_UNUSED(state);
    job_expect_code(screen, 1);
    job_expect(screen, job_printed(screen, 1, "the live view needs a terminal") ||
                           job_printed(screen, 1, "built without ncursesw"));
    stop(j);
}

static void the_live_status_survives_a_tiny_terminal(void **state)
{
    static const char *const sizes[][2] = {{"LINES=1", "COLUMNS=1"}, {"LINES=4", "COLUMNS=10"}};
    job *j = start_training("2", NULL);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        job *screen = open_screen(sizes[i][0], sizes[i][1]);

        job_read_output(screen, 300);
        job_write(screen, "sojhjkq");
        job_await_end(screen);
        job_expect(screen, WIFEXITED(screen->status));
    }
    stop(j);
}

static void the_live_status_ends_with_the_job(void **state)
{
    job *j = start_training("2", NULL);
    job *screen = open_screen("LINES=24", "COLUMNS=80");

    LS_UNUSED(state);
    while (!screen->has_ended && !shows(screen, "SAMPLES/S"))
        job_read_output(screen, 20);
    stop(j);
    job_await_end(screen);
    job_expect(screen, WIFEXITED(screen->status));
}

/* --- users and hostile bytes --- */

static void find_agent(const job *j, char name[STATUS_NAME])
{
    json_value *v = look(j);

    text_format(name, STATUS_NAME, "%s", json_as_string(json_get(v, "agent"), ""));
    json_free(v);
}

static int connect_to(const char *agent)
{
    net_address at;
    int fd;

    assert_ok(status_address(agent, &at));
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(JOB_LONG_MS), &fd));
    return fd;
}

/* The agent may have closed it already. */
static void send_what_goes(int fd, const uint8_t *bytes, size_t n)
{
    if (net_send_all(fd, "the agent", bytes, n, ls_deadline_ms(JOB_LONG_MS)) != LS_OK)
        print_message("the agent has closed the connection: %s\n", ls_last_error());
}

/* The agent closes the connection without an answer. */
static void expect_closed(int fd)
{
    char byte;

    assert_true(net_recv_all(fd, "the agent", &byte, 1, ls_deadline_ms(JOB_LONG_MS)) == LS_EPEER);
    (void)close(fd);
}

static void hostile_bytes_at_the_socket_harm_nothing(void **state)
{
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0};
    static const uint8_t unknown[] = {4, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4};
    static const uint8_t short_body[] = {1, 0, 0, 0, 1, 0, 0, 0, 7};
    static const uint8_t twice[] = {4, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
                                    4, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    const struct {
        const uint8_t *bytes;
        size_t n;
    } cases[] = {{huge, sizeof(huge)},
                 {unknown, sizeof(unknown)},
                 {short_body, sizeof(short_body)},
                 {(const uint8_t *)"GET / HTTP/1.1\r\n\r\n", 18}};
    job *j = start_training("2", NULL);
    char agent[STATUS_NAME];
    int many[64];
    int fd;

    LS_UNUSED(state);
    find_agent(j, agent);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        fd = connect_to(agent);
        assert_ok(
            net_send_all(fd, "the agent", cases[i].bytes, cases[i].n, ls_deadline_ms(JOB_LONG_MS)));
        expect_closed(fd);
    }
    fd = connect_to(agent); // ends in the middle of its request, and of the answer
    assert_ok(net_send_all(fd, "the agent", twice, 9, ls_deadline_ms(JOB_LONG_MS)));
    (void)close(fd);
    fd = connect_to(agent);
    send_what_goes(fd, twice, sizeof(twice));
    (void)close(fd);
    for (int i = 0; i < 64; i++) // more than the agent serves
        many[i] = connect_to(agent);
    expect_closed(many[63]);
    for (int i = 0; i < 63; i++)
        (void)close(many[i]);
    json_free(look(j));
    stop(j);
}

/* The agent is stopped meanwhile, so the connection comes before the ends of the others. */
static void a_connection_takes_the_place_of_one_that_has_ended(void **state)
{
    static const uint8_t ask[] = {4, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    job *j = start_training("2", NULL);
    char agent[STATUS_NAME];
    int all[16]; /* as many as the agent serves */
    siginfo_t info;
    char byte;
    int fd;

    LS_UNUSED(state);
    find_agent(j, agent);
    for (int i = 0; i < 16; i++) {
        all[i] = connect_to(agent);
        assert_ok(net_send_all(all[i], "the agent", ask, sizeof(ask), ls_deadline_ms(JOB_LONG_MS)));
        assert_ok(net_recv_all(all[i], "the agent", &byte, 1, ls_deadline_ms(JOB_LONG_MS)));
    }
    assert_int_equal(kill(j->pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)j->pid, &info, WSTOPPED), 0);
    fd = connect_to(agent);
    for (int i = 0; i < 16; i++)
        (void)close(all[i]);
    assert_int_equal(kill(j->pid, SIGCONT), 0);
    assert_ok(net_send_all(fd, "the agent", ask, sizeof(ask), ls_deadline_ms(JOB_LONG_MS)));
    assert_ok(net_recv_all(fd, "the agent", &byte, 1, ls_deadline_ms(JOB_LONG_MS)));
    (void)close(fd);
    stop(j);
}

static void another_user_gets_no_answer(void **state)
{
    job *j = start_training("2", NULL);
    char agent[STATUS_NAME];
    net_address at;
    pid_t child;
    int status;

    LS_UNUSED(state);
    if (geteuid() != 0) {
        stop(j);
        print_message("skipped: only root can be another user\n");
        skip();
    }
    find_agent(j, agent);
    assert_ok(status_address(agent, &at));
    child = fork();
    if (child == 0) {
        const uint8_t ask[] = {4, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
        char byte;
        int fd;

        if (setuid(65534) != 0 ||
            net_connect(&at, NET_STREAM, ls_deadline_ms(JOB_LONG_MS), &fd) != LS_OK)
            _exit(3);
        send_what_goes(fd, ask, sizeof(ask));
        _exit(net_recv_all(fd, "agent", &byte, 1, ls_deadline_ms(JOB_LONG_MS)) == LS_EPEER ? 0 : 4);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    job_await_text(j, 1, "belongs to user 65534");
    stop(j);
}

/* --- metrics --- */

static const char *get(int port, const char *request)
{
    static char text[1 << 16];
    net_address at;
    size_t n = 0;
    ssize_t moved;
    int fd;

    assert_ok(net_address_parse("127.0.0.1", port, &at));
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(JOB_LONG_MS), &fd));
    assert_ok(net_send_all(fd, "metrics", request, strlen(request), ls_deadline_ms(JOB_LONG_MS)));
    assert_ok(net_set_blocking(fd, true));
    while ((moved = read(fd, text + n, sizeof(text) - 1 - n)) > 0)
        n += (size_t)moved;
    text[n] = '\0';
    (void)close(fd);
    return text;
}

/* Prometheus' own check of a text, if promtool is installed. */
static void check_with_promtool(const char *text)
{
    FILE *tool;

    if (system("command -v promtool >/dev/null 2>&1") != 0) { // NOLINT(cert-env33-c,*mt-unsafe)
        print_message("promtool is not installed: only the test's own check was made\n");
        return;
    }
    tool = popen("promtool check metrics", "w"); // NOLINT(cert-env33-c)
    assert_non_null(tool);
    assert_int_equal(fwrite(text, 1, strlen(text), tool), strlen(text));
    assert_int_equal(pclose(tool), 0);
}

/* It waits in the queue, and the launcher pauses between its attempts. */
static void expect_an_answer_when_descriptors_are_there(job *j, int port)
{
    struct rlimit before;
    struct rlimit few;
    net_address at;
    int fd;

    assert_int_equal(prlimit(j->pid, RLIMIT_NOFILE, NULL, &before), 0);
    few = before;
    few.rlim_cur = 4;
    assert_int_equal(prlimit(j->pid, RLIMIT_NOFILE, &few, NULL), 0);
    assert_ok(net_address_parse("127.0.0.1", port, &at));
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(JOB_LONG_MS), &fd));
    job_await_text(j, 1, "cannot accept connections, and tries again");
    assert_int_equal(prlimit(j->pid, RLIMIT_NOFILE, &before, NULL), 0);
    (void)close(fd);
    assert_non_null(strstr(get(port, "GET /metrics HTTP/1.0\r\n\r\n"), " 200 "));
}

static void metrics_are_served_on_loopback(void **state)
{
    char port[16];
    const char *text;
    const char *body;
    net_address at;
    static const struct {
        const char *value;
        const char *status;
    } hosts[] = {{"127.0.0.1", " 200 "},
                 {" [::1]:9090 ", " 200 "},
                 {" LOCALHOST", " 200 "},
                 {" evil.example", " 403 "},
                 {"localhost.evil.example", " 403 "},
                 {"localhost:x", " 403 "},
                 {"127.0.0.10", " 403 "},
                 {"", " 403 "}};
    net_address bound;
    int number;
    int fd;
    job *j;

    LS_UNUSED(state);
    assert_ok(net_address_parse("127.0.0.1", 0, &at));
    assert_ok(net_listen(&at, NET_STREAM, 1, &fd, &bound));
    number = net_address_port(&bound);
    text_format(port, sizeof(port), "%d", number);
    (void)close(fd);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--metrics-port", port, STEPS_PROGRAM),
                  NULL);
    (void)job_find(j, JOB_RANK, 1);
    do
        text = get(number, "GET /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n");
    while (strstr(text, "lockstep_rank_step{rank=\"1\"") == NULL);
    assert_non_null(strstr(text, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(text, "text/plain; version=0.0.4"));
    body = strstr(text, "\r\n\r\n") + 4;
    assert_true(metrics_count(body) > 30);
    check_with_promtool(body);
    assert_non_null(strstr(get(number, "GET /other HTTP/1.1\r\n\r\n"), " 404 "));
    // A web page whose name resolves to this machine sends its own name.
    for (size_t i = 0; i < LS_COUNT_OF(hosts); i++) {
        char request[128];

        text_format(request, sizeof(request), "GET /metrics HTTP/1.1\r\nhost:%s\r\n\r\n",
                    hosts[i].value);
        assert_non_null(strstr(get(number, request), hosts[i].status));
    }
    assert_non_null(strstr(get(number, "POST /metrics HTTP/1.1\r\n\r\n"), " 405 "));
    {
        static char long_request[5000];

        memset(long_request, 'x', sizeof(long_request) - 1);
        (void)get(number, long_request); // an answer or a reset, and the agent goes on
    }
    assert_non_null(strstr(get(number, "GET /metrics?a=b HTTP/1.0\r\n\r\n"), " 200 "));
    expect_an_answer_when_descriptors_are_there(j, number);
    stop(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(top_prints_the_ranks_of_a_job_as_json),
        test(bytes_between_ranks_are_counted),
        test(jobs_of_ls_spawn_are_seen),
        test(a_late_rank_is_marked_and_its_warning_shown),
        test(a_stopped_rank_is_shown_as_stopped_and_late),
        test(ps_lists_the_job_and_top_explains_a_wrong_name),
        test(another_machine_is_asked_by_ssh),
        test(the_head_shows_the_ranks_of_all_nodes),
        test(the_live_status_shows_ranks_and_operations),
        test(the_live_status_needs_a_terminal),
        test(the_live_status_survives_a_tiny_terminal),
        test(the_live_status_ends_with_the_job),
        test(hostile_bytes_at_the_socket_harm_nothing),
        test(a_connection_takes_the_place_of_one_that_has_ended),
        test(another_user_gets_no_answer),
        test(metrics_are_served_on_loopback),
    };

    text_format(watched_name, sizeof(watched_name), "watched-%d", (int)getpid());
    (void)setenv("WATCHED", watched_name, 1); // NOLINT(concurrency-mt-unsafe): no other thread
    return cmocka_run_group_tests(tests, NULL, NULL);
}
