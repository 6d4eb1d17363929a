/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_leftover.c - real processes with marks of dead, living and unknown agents: which of them are
 * leftovers, and which are killed.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/leftover.h"
#include "net/port_holder.h"
#include "host/process_id.h"
#include "net/key.h"
#include "net/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 20000
#define USER    12345
#define MOST    16

static pid_t started[MOST];
static int n_started;

/* Other tests may leave processes at the same time, so only jobs of this test are searched. */
static char job[17], other_job[17];
static const leftover_query of_job = {.root = "", .job = job};

static int clean_up(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < n_started; i++)
        if (started[i] > 0) {
            (void)kill(started[i], SIGKILL);
            (void)waitpid(started[i], NULL, 0);
        }
    n_started = 0;
    return 0;
}

/* --- agents --- */

/* A process that writes its id and then exits or waits. */
static void start_agent(bool lives, process_id *out)
{
    int fds[2];
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (process_id_self(out) != LS_OK || write(fds[1], out, sizeof(*out)) != sizeof(*out))
            _exit(1);
        while (lives)
            (void)pause();
        _exit(0);
    }
    assert_int_equal(read(fds[0], out, sizeof(*out)), sizeof(*out));
    (void)close(fds[0]);
    (void)close(fds[1]);
    if (lives)
        started[n_started++] = pid;
    else
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* --- processes of agents --- */

#define STARTED "STARTED=1" /* the first variable */

typedef struct carrier {
    const char *job;         /* NULL: none */
    const process_id *agent; /* in its environment */
    const process_id *key;   /* in the name of a descriptor */
    uid_t real;
    uid_t effective;
} carrier;

static void become(const carrier *c)
{
    static char name[] = "sleep", time[] = "1000", mark[] = STARTED;
    char *argv[] = {name, time, NULL};
    char text[PROCESS_ID_TEXT_MAX];
    char name_of_job[64], agent[128], key[128];
    char *env[4] = {mark};
    int n = 1;

    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* if a test fails */
    text_format(name_of_job, sizeof(name_of_job), "LOCKSTEP_JOB=%s", c->job != NULL ? c->job : "");
    if (c->job != NULL)
        env[n++] = name_of_job;
    if (c->agent != NULL) {
        process_id_text(text, sizeof(text), c->agent);
        text_format(agent, sizeof(agent), "LOCKSTEP_AGENT_PROCESS=%s", text);
        env[n++] = agent;
    }
    if (c->key != NULL) {
        process_id_text(text, sizeof(text), c->key);
        text_format(key, sizeof(key), PROCESS_KEY_NAME "%s", text);
        if (memfd_create(key, 0) < 0)
            _exit(98);
    }
    if (setresuid(c->real, c->effective, c->effective) != 0)
        _exit(97);
    (void)execve("/bin/sleep", argv, env);
    _exit(99);
}

/* The kernel gives a process its new name before its new environment. */
static bool has_environment(pid_t pid)
{
    char path[64];
    char text[sizeof(STARTED)];

    text_format(path, sizeof(path), "/proc/%d/environ", (int)pid);
    return file_read_start(path, text, sizeof(text)) > 0 && text_equal(text, STARTED);
}

static pid_t start(const carrier *c)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);
    const pid_t pid = fork();

    if (pid == 0)
        become(c);
    assert_true(pid > 0);
    started[n_started++] = pid;
    while (!has_environment(pid)) {
        assert_true(ls_deadline_left(deadline_ms) > 0);
        (void)poll(NULL, 0, 1);
    }
    return pid;
}

static bool is_alive(pid_t pid)
{
    process_stat facts;

    return process_stat_read("", pid, &facts) && !process_stat_has_exited(&facts);
}

static bool is_listed(const leftovers *list, pid_t pid)
{
    for (int i = 0; i < list->n; i++)
        if (list->items[i].id.pid == pid)
            return true;
    return false;
}

/* --- finding --- */

static void only_marks_of_dead_agents_make_a_leftover(void **state)
{
    process_id dead, alive, far, reused;
    const struct {
        carrier what;
        bool is_left;
    } cases[] = {
        {{job, &dead, NULL, 0, 0}, true},    {{job, &dead, &dead, 0, 0}, true},
        {{NULL, NULL, &dead, 0, 0}, true},   {{job, &reused, NULL, 0, 0}, true},
        {{job, &alive, NULL, 0, 0}, false},  {{NULL, NULL, &alive, 0, 0}, false},
        {{job, &dead, &alive, 0, 0}, false}, {{job, &alive, &dead, 0, 0}, false},
        {{job, &far, NULL, 0, 0}, false},    {{NULL, NULL, &far, 0, 0}, false},
        {{job, NULL, NULL, 0, 0}, false}, /* of a version without an agent mark */
        {{NULL, NULL, NULL, 0, 0}, false},
    };
    pid_t pids[LS_COUNT_OF(cases)];
    leftovers list;

    LS_UNUSED(state);
    start_agent(false, &dead);
    start_agent(true, &alive);
    far = dead;
    far.pid_ns++;
    reused = alive;
    reused.start--;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        carrier c = cases[i].what;
        c.real = c.effective = geteuid();
        pids[i] = start(&c);
    }
    assert_ok(leftover_find(&of_job, &list));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        if (is_listed(&list, pids[i]) != cases[i].is_left)
            fail_msg("case %zu", i);
    leftovers_free(&list);
}

static void stopped_agent_is_alive(void **state)
{
    process_id alive;
    carrier c = {job, &alive, &alive, geteuid(), geteuid()};
    leftovers list;

    LS_UNUSED(state);
    start_agent(true, &alive);
    (void)start(&c);
    assert_int_equal(kill(alive.pid, SIGSTOP), 0);
    assert_ok(leftover_find(&of_job, &list));
    assert_int_equal(list.n, 0);
    assert_int_equal(list.living.pid, alive.pid);
    leftovers_free(&list);
}

static void job_name_is_completed_from_another_process(void **state)
{
    process_id dead;
    carrier named = {job, &dead, NULL, geteuid(), geteuid()};
    carrier bare = {NULL, NULL, &dead, geteuid(), geteuid()};
    const leftover_query of_other = {.root = "", .job = other_job};
    char text[256];
    leftovers list;
    pid_t pid;

    LS_UNUSED(state);
    start_agent(false, &dead);
    (void)start(&named);
    pid = start(&bare);
    assert_ok(leftover_find(&of_job, &list));
    assert_int_equal(list.n, 2);
    assert_true(is_listed(&list, pid));
    assert_string_equal(list.items[1].job, job);
    leftover_text(text, sizeof(text), &list.items[0]);
    assert_non_null(strstr(text, "(sleep), "));
    assert_non_null(strstr(text, " s old, of job "));
    assert_non_null(strstr(text, job));
    leftovers_free(&list);
    assert_ok(leftover_find(&of_other, &list));
    assert_int_equal(list.n, 0);
    leftovers_free(&list);
}

/* --- killing --- */

typedef struct result {
    pid_t ended[MOST];
    int n;
    int n_failed;
} result;

static void note(void *arg, const leftover *what, bool ended)
{
    result *t = arg;

    t->n_failed += !ended;
    if (ended && t->n < MOST)
        t->ended[t->n++] = what->id.pid;
}

static void only_leftovers_are_killed(void **state)
{
    process_id dead, gone, alive;
    const carrier cases[] = {
        {job, &dead, NULL, geteuid(), geteuid()},       {NULL, NULL, &dead, geteuid(), geteuid()},
        {other_job, &gone, NULL, geteuid(), geteuid()}, {job, &alive, &alive, geteuid(), geteuid()},
        {job, &alive, NULL, geteuid(), geteuid()},      {NULL, NULL, NULL, geteuid(), geteuid()},
    };
    pid_t pids[LS_COUNT_OF(cases)];
    result t = {.n = 0};
    int n_left = -1;

    LS_UNUSED(state);
    start_agent(false, &dead);
    start_agent(false, &gone);
    start_agent(true, &alive);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        pids[i] = start(&cases[i]);
    assert_ok(leftover_end(&of_job, ls_deadline_ms(LONG_MS), note, &t, &n_left));
    assert_int_equal(n_left, 0);
    assert_int_equal(t.n, 2);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_int_equal(is_alive(pids[i]), i >= 2);
    assert_ok(leftover_end(&of_job, ls_deadline_ms(LONG_MS), note, &t, &n_left));
    assert_int_equal(t.n, 2);
}

/* Kills leftovers as an unprivileged user, in a child process; returns how many were killed. */
static int end_as_user(bool is_dry)
{
    const pid_t pid = fork();
    result t = {.n = 0};
    leftovers list = {0};
    int status;
    int n_left;

    if (pid == 0) {
        if (setresuid(USER, USER, USER) != 0)
            _exit(100);
        if (is_dry ? leftover_find(&of_job, &list) != LS_OK
                   : leftover_end(&of_job, ls_deadline_ms(LONG_MS), note, &t, &n_left) != LS_OK)
            _exit(101);
        _exit(is_dry ? list.n : t.n + 50 * t.n_failed);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void processes_of_other_users_are_not_killed(void **state)
{
    process_id dead;
    const carrier roots = {job, &dead, &dead, 0, 0};
    const carrier users = {job, &dead, &dead, USER, USER};
    const carrier others = {job, &dead, &dead, USER + 1, USER + 1};
    const carrier mixed = {job, &dead, &dead, USER, 0};
    pid_t root, user, other, both;

    LS_UNUSED(state);
    if (geteuid() != 0)
        skip();
    start_agent(false, &dead);
    root = start(&roots);
    user = start(&users);
    other = start(&others);
    both = start(&mixed);
    assert_int_equal(end_as_user(true), 1);
    assert_int_equal(end_as_user(false), 1);
    assert_false(is_alive(user));
    assert_true(is_alive(root) && is_alive(other) && is_alive(both));
    user = start(&users);
    {
        result t = {.n = 0};
        int n_left;
        assert_ok(leftover_end(&of_job, ls_deadline_ms(LONG_MS), note, &t, &n_left));
        assert_int_equal(t.n, 1);
        assert_int_equal(t.ended[0], root);
    }
    assert_true(is_alive(user) && is_alive(other) && is_alive(both));
}

/* In a new pid namespace with the old /proc, whose pids are of other processes. */
static void pids_of_another_namespace_are_not_trusted(void **state)
{
    leftovers list;
    int status;
    pid_t pid;

    LS_UNUSED(state);
    pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID) != 0)
            _exit(77);
        pid = fork();
        if (pid == 0)
            _exit(leftover_find(&of_job, &list) == LS_ESYSTEM &&
                          strstr(ls_last_error(), "another namespace") != NULL
                      ? 0
                      : 1);
        _exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- marks and texts --- */

static void marks_are_found_in_pieces_of_any_size(void **state)
{
    static const char environment[] = "X=1\0"
                                      "MY_LOCKSTEP_JOB=no\0"
                                      "LOCKSTEP_JOB=0123456789abcdef\0"
                                      "\0LOCKSTEP_AGENT_PROCESS=1.2.3";

    LS_UNUSED(state);
    for (size_t piece = 1; piece <= sizeof(environment); piece++) {
        mark_scan scan = {.n = 0};
        for (size_t at = 0; at < sizeof(environment); at += piece)
            mark_scan_feed(&scan, environment + at,
                           at + piece <= sizeof(environment) ? piece : sizeof(environment) - at);
        assert_string_equal(scan.job, "0123456789abcdef");
        assert_string_equal(scan.agent, "1.2.3");
    }
}

static void invalid_job_names_are_ignored(void **state)
{
    static const char *const bad[] = {"LOCKSTEP_JOB=", "LOCKSTEP_JOB=a;b", "LOCKSTEP_JOB=\033[2J",
                                      "LOCKSTEP_JOB=0123456789abcdef0123456789abcdef"};
    char long_entry[1000];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        mark_scan scan = {.n = 0};
        mark_scan_feed(&scan, bad[i], strlen(bad[i]) + 1);
        assert_string_equal(scan.job, "");
    }
    memset(long_entry, 'a', sizeof(long_entry));
    memcpy(long_entry, "LOCKSTEP_AGENT_PROCESS=", 23);
    long_entry[999] = 0;
    for (int i = 0; i < 2; i++) {
        mark_scan scan = {.n = 0};
        mark_scan_feed(&scan, long_entry, sizeof(long_entry));
        assert_string_equal(scan.agent, "");
        mark_scan_feed(&scan, "LOCKSTEP_JOB=a", 15);
        assert_string_equal(scan.job, "a");
    }
}

static void ages_are_printed_as_text(void **state)
{
    static const struct {
        int64_t seconds;
        const char *text;
    } cases[] = {{0, "0 s"},    {119, "119 s"},   {120, "2 min"},     {7199, "119 min"},
                 {7200, "2 h"}, {172799, "47 h"}, {172800, "2 days"}, {8640000, "100 days"}};
    char text[32];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_string_equal(process_age_text(text, sizeof(text), cases[i].seconds), cases[i].text);
    assert_string_equal(process_user_text(text, sizeof(text), 0), "root");
    assert_string_equal(process_user_text(text, sizeof(text), 987654), "user 987654");
}

static void listening_process_is_found(void **state)
{
    net_address any, bound;
    port_holder holder;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any));
    assert_ok(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    assert_true(port_holder_find("", net_address_port(&bound), &holder));
    assert_int_equal(holder.pid, getpid());
    assert_int_equal(holder.uid, geteuid());
    (void)close(fd);
    assert_false(port_holder_find("", net_address_port(&bound), &holder));
}

#define test(name) cmocka_unit_test_teardown(name, clean_up)

int main(void)
{
    const unsigned seed = (unsigned)getpid() ^ (unsigned)ls_now_ns();
    const struct CMUnitTest tests[] = {
        test(only_marks_of_dead_agents_make_a_leftover),
        test(stopped_agent_is_alive),
        test(job_name_is_completed_from_another_process),
        test(only_leftovers_are_killed),
        test(processes_of_other_users_are_not_killed),
        test(pids_of_another_namespace_are_not_trusted),
        test(marks_are_found_in_pieces_of_any_size),
        test(invalid_job_names_are_ignored),
        test(ages_are_printed_as_text),
        test(listening_process_is_found),
    };

    text_format(job, sizeof(job), "%016x", seed);
    text_format(other_job, sizeof(other_job), "%016x", ~seed);
    return cmocka_run_group_tests_name("leftover", tests, NULL, NULL);
}
