/* SPDX-License-Identifier: Apache-2.0 */
/* test_process_id.c - identities of processes, /proc/PID/stat and the states of processes. */
#include "base/unit.h"

#include "base/clock.h"
#include "host/process_id.h"
#include "base/text.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void an_identity_survives_its_text(void **state)
{
    char text[PROCESS_ID_TEXT_MAX];
    process_id self;
    process_id again;

    LS_UNUSED(state);
    assert_ok(process_id_self(&self));
    assert_int_equal(self.pid, getpid());
    assert_true(self.start > 0 && self.pid_ns > 0);
    assert_true(process_id_parse(process_id_text(text, sizeof(text), &self), &again));
    assert_true(process_id_equal(&self, &again));
    again.start++;
    assert_false(process_id_equal(&self, &again));
}

static void invalid_identity_texts_are_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "1",
        "1.2",
        "1.2.",
        "1.2.3.",
        "1.2.3 ",
        "0.2.3",
        "-1.2.3",
        "1..3",
        "1.2.3x",
        "2147483648.2.3",
        ".2.3",
        " 1.2.3",
        "1.+2.3",
        "1.2.18446744073709551616",
    };
    process_id id;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++)
        if (process_id_parse(texts[i], &id))
            fail_msg("\"%s\" was taken", texts[i]);
    assert_true(process_id_parse("2147483647.18446744073709551615.0", &id));
    assert_true(id.start == UINT64_MAX);
}

static void program_names_may_contain_any_character(void **state)
{
    process_stat facts;

    LS_UNUSED(state);
    assert_true(process_stat_parse(
        "7 (a) Z 1 (\033) S 3 0 0 0 -1 0 0 0 0 0 12 30 0 0 20 0 5 0 99 1\n", &facts));
    assert_string_equal(facts.name, "a) Z 1 (?");
    assert_int_equal(facts.state, 'S');
    assert_int_equal(facts.parent, 3);
    assert_int_equal(facts.cpu_ticks, 42);
    assert_int_equal(facts.n_threads, 5);
    assert_int_equal(facts.start, 99);
    assert_false(process_stat_parse("7 (a) S", &facts));
    assert_false(process_stat_parse(")(", &facts));
    assert_false(process_stat_parse("7 (a) S 3 0 0", &facts));
}

/* A process that was alive, and what it is after its end. */
static void dead_and_live_processes_are_distinguished(void **state)
{
    process_stat facts;
    process_id id;
    process_id other;
    int status;

    LS_UNUSED(state);
    assert_ok(process_id_self(&id));
    id.pid = fork();
    if (id.pid == 0)
        for (;;)
            (void)pause();
    assert_true(process_stat_read("", id.pid, &facts));
    id.start = facts.start;
    assert_int_equal(process_id_liveness("", id.pid_ns, &id), PROCESS_ALIVE);
    assert_int_equal(kill(id.pid, SIGSTOP), 0);
    assert_int_equal(process_id_liveness("", id.pid_ns, &id), PROCESS_ALIVE);
    other = id;
    other.start--; /* an earlier process with the same pid */
    assert_int_equal(process_id_liveness("", id.pid_ns, &other), PROCESS_DEAD);
    other = id;
    other.pid_ns++;
    assert_int_equal(process_id_liveness("", id.pid_ns, &other), PROCESS_OTHER_NAMESPACE);
    assert_int_equal(kill(id.pid, SIGKILL), 0);
    /* Before the parent has waited for it. */
    while (process_id_liveness("", id.pid_ns, &id) != PROCESS_DEAD)
        (void)poll(NULL, 0, 1);
    assert_int_equal(waitpid(id.pid, &status, 0), id.pid);
    assert_int_equal(process_id_liveness("", id.pid_ns, &id), PROCESS_DEAD);
}

/* A user of a directory service may be in thousands of groups, which the file lists first. */
static void status_with_many_groups_is_read_to_its_end(void **state)
{
    char root[] = "/tmp/lockstep-test-status-XXXXXX";
    char path[256];
    char value[32];
    uint64_t space;
    FILE *file;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(root));
    text_format(path, sizeof(path),
                "mkdir -p %s/proc/self/ns && ln -s 'pid:[77]' %s/proc/self/ns/pid", root, root);
    assert_int_equal(system(path), 0); // NOLINT(cert-env33-c)
    text_format(path, sizeof(path), "%s/proc/self/status", root);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file, "Name:\tsh\nGroups:\t");
    for (int i = 0; i < 5000; i++)
        (void)fprintf(file, "%d ", 1000000000 + i);
    (void)fprintf(file, "\nNSpid:\t42\nThreads:\t1\n");
    assert_int_equal(fclose(file), 0);
    assert_true(process_status_line(root, "self", "Threads", value, sizeof(value)));
    assert_string_equal(value, "1");
    assert_false(process_status_line(root, "self", "Uid", value, sizeof(value)));
    assert_ok(process_namespace(root, &space));
    assert_int_equal(space, 77);
    text_format(path, sizeof(path), "rm -r %s", root);
    assert_int_equal(system(path), 0); // NOLINT(cert-env33-c)
}

static void outer_pid_is_read_from_the_environment(void **state)
{
    static const char *const wrong[] = {
        "", "1:4711", "%d", "%d:", "%d:0", "%d:4711 ", "%d:4711:1", "%d:99999999999"};
    char text[64];

    LS_UNUSED(state);
    assert_int_equal(unsetenv(PROCESS_OUTER_PID_ENV), 0);
    assert_int_equal(process_outer_pid(), getpid());
    text_format(text, sizeof(text), "%d:4711", (int)getpid());
    assert_int_equal(setenv(PROCESS_OUTER_PID_ENV, text, 1), 0);
    assert_int_equal(process_outer_pid(), 4711);
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++) {
        const char *rest = text_starts(wrong[i], "%d") ? wrong[i] + 2 : wrong[i];

        if (rest != wrong[i])
            text_format(text, sizeof(text), "%d%s", (int)getpid(), rest);
        else
            text_format(text, sizeof(text), "%s", rest);
        assert_int_equal(setenv(PROCESS_OUTER_PID_ENV, text, 1), 0);
        assert_int_equal(process_outer_pid(), getpid());
    }
    assert_int_equal(unsetenv(PROCESS_OUTER_PID_ENV), 0);
}

/* Waits, with a generous deadline, until the process is in this state. */
static void expect_state(pid_t pid, char wanted)
{
    const int64_t deadline = ls_deadline_ms(20000);
    char now = process_state(pid);

    while (now != wanted && ls_deadline_left(deadline) > 0) {
        (void)sched_yield();
        now = process_state(pid);
    }
    assert_int_equal(now, wanted);
}

static void the_state_of_a_process_is_read(void **state)
{
    int status;
    pid_t child = fork();

    LS_UNUSED(state);
    if (child == 0) {
        for (;;)
            (void)pause();
    }
    assert_true(child > 0);
    expect_state(child, 'S');
    assert_string_equal(process_state_text('S'), "asleep");
    assert_int_equal(kill(child, SIGSTOP), 0);
    expect_state(child, 'T');
    assert_string_equal(process_state_text('T'), "stopped");
    assert_int_equal(kill(child, SIGKILL), 0);
    expect_state(child, 'Z');
    assert_string_equal(process_state_text('Z'), "dead");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(process_state(child), 0);
    assert_string_equal(process_state_text(0), "dead");
    assert_int_equal(process_state(getpid()), 'R');
    assert_string_equal(process_state_text('R'), "running");
    assert_string_equal(process_state_text('D'), "waiting for I/O");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_identity_survives_its_text),
        cmocka_unit_test(invalid_identity_texts_are_refused),
        cmocka_unit_test(program_names_may_contain_any_character),
        cmocka_unit_test(dead_and_live_processes_are_distinguished),
        cmocka_unit_test(the_state_of_a_process_is_read),
        cmocka_unit_test(status_with_many_groups_is_read_to_its_end),
        cmocka_unit_test(outer_pid_is_read_from_the_environment),
    };

    return cmocka_run_group_tests_name("process id", tests, NULL, NULL);
}
