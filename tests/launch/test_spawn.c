/* SPDX-License-Identifier: Apache-2.0 */
/* ls_spawn: the error that the parent gets, and no process outlives it. Each case runs in a
 * process of its own, as a program would. */
#include "launch/job.h"

#include <lockstep/launch.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* --- the program under test is an actor --- */

static job *spawn(const char *n, const char *body, const char *argument)
{
    return job_start(JOB_LIST(JOB_ACTOR, "spawn", n, body, argument), NULL);
}

static void a_program_spawns_its_ranks_and_goes_on(void **state)
{
    job *j = spawn("3", "steps", "50");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 3; r++) {
        char line[64];
        text_format(line, sizeof(line), "rank %d has joined\n", r);
        job_expect(j, job_printed(j, 0, line));
    }
    job_expect_gone(j);
}

static void what_was_buffered_before_is_printed_once(void **state)
{
    job *j = spawn("3", "steps", "1");
    const char *first;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    first = strstr(text_str(&j->out), "printed once");
    job_expect(j, first != NULL && strstr(first + 1, "printed once") == NULL);
}

static void a_killed_rank_is_named_to_the_parent(void **state)
{
    job *j = spawn("2", "steps", NULL);
    char line[128];
    pid_t pid;

    LS_UNUSED(state);
    job_await_text(j, 0, "step 100\n");
    pid = job_find(j, JOB_RANK, 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "spawn failed: rank "));
    text_format(line, sizeof(line), " (pid %d) was killed by signal 9 (SIGKILL)", (int)pid);
    job_expect(j, job_printed(j, 1, line));
    job_expect_gone(j);
}

static void a_shims_death_is_noticed_though_daemons_hold_its_pipe(void **state)
{
    job *j = spawn("2", "daemon", NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "daemons of rank 0 are there");
    job_await_text(j, 0, "daemons of rank 1 are there");
    assert_int_equal(kill(job_find(j, JOB_SHIM, 0), SIGKILL), 0);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "the process that watches over it was killed"));
    job_expect_gone(j);
}

static void nothing_outlives_a_killed_parent(void **state)
{
    LS_UNUSED(state);
    for (int round = 0; round < job_rounds(); round++) {
        job *j = spawn("2", "daemon", round % 2 == 0 ? NULL : "steps");

        job_await_text(j, 0, round % 2 == 0 ? "daemons of rank 1 are there" : "step 100");
        job_note_sockets(j);
        if (round > 0)
            assert_int_equal(kill(job_find(j, JOB_SHIM, 0), SIGKILL), 0);
        assert_int_equal(kill(j->pid, SIGKILL), 0);
        job_expect_gone(j);
        job_clean_up(NULL);
    }
}

static void a_spawning_program_may_be_a_rank(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "spawn", "2", "steps", "20"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect_gone(j);
}

/* --- the test spawns --- */

static ls_status fail_in_one(int local_rank, void *arg)
{
    LS_UNUSED(arg);
    if (local_rank == 1)
        return ls_fail(LS_EFORMAT, "the file of rank %d is broken at byte %d", local_rank, 77);
    for (;;)
        pause();
}

static ls_status exit_with_code(int local_rank, void *arg)
{
    _exit(local_rank == 0 ? *(const int *)arg : 0);
}

static ls_status see_surroundings(int local_rank, void *arg)
{
    const int *fd = arg;
    char expected[16];
    struct sigaction action;

    text_format(expected, sizeof(expected), "%d", local_rank);
    if (!text_equal(getenv("LOCAL_RANK"), expected) || !text_equal(getenv("WORLD_SIZE"), "3"))
        return ls_fail(LS_EINVAL, "LOCAL_RANK %s", getenv("LOCAL_RANK"));
    if (fcntl(*fd, F_GETFD) < 0)
        return ls_fail(LS_EINVAL, "the parent's descriptor is closed");
    if (sigaction(SIGPIPE, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
        return ls_fail(LS_EINVAL, "SIGPIPE is ignored");
    return LS_OK;
}

static void the_text_of_a_failing_rank_reaches_the_parent(void **state)
{
    LS_UNUSED(state);
    assert_status(ls_spawn(fail_in_one, 3, NULL, NULL), LS_EPEER);
    assert_last_error("rank 1 (pid ");
    assert_last_error("the file of rank 1 is broken at byte 77");
}

static void the_exit_code_of_a_rank_reaches_the_parent(void **state)
{
    int code = 9;

    LS_UNUSED(state);
    assert_status(ls_spawn(exit_with_code, 2, &code, NULL), LS_EPEER);
    assert_last_error("exited with code 9");
    code = 0;
    assert_status(ls_spawn(exit_with_code, 2, &code, NULL), LS_OK);
}

static void ranks_have_their_place_and_what_the_parent_had_opened(void **state)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct sigaction before, after;
    sigset_t mask_before, mask_after;

    LS_UNUSED(state);
    assert_int_equal(sigaction(SIGPIPE, NULL, &before), 0);
    assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &mask_before), 0);
    assert_ok(ls_spawn(see_surroundings, 3, &fd, NULL));
    assert_int_equal(sigaction(SIGPIPE, NULL, &after), 0);
    assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &mask_after), 0);
    assert_true(before.sa_handler == after.sa_handler);
    assert_int_equal(sigismember(&mask_after, SIGTERM), sigismember(&mask_before, SIGTERM));
    assert_null(getenv("LOCAL_RANK"));
    (void)close(fd);
}

static int count_fds(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void spawning_leaves_no_descriptor_and_no_child(void **state)
{
    const int before = count_fds();
    int code = 0;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        assert_ok(ls_spawn(exit_with_code, 2, &code, NULL));
    assert_int_equal(count_fds(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void wrong_call_is_refused(void **state)
{
    const int ranks[] = {2, 3};
    const ls_spawn_options two = {.size = sizeof(two), .nodes = 2};
    const ls_spawn_options third = {.size = sizeof(third), .nodes = 2, .node = 2};
    const ls_spawn_options other = {
        .size = sizeof(other), .nodes = 2, .node = 1, .per_node = ranks, .master = "127.0.0.1"};

    LS_UNUSED(state);
    unsetenv("MASTER_ADDR");
    assert_status(ls_spawn(NULL, 2, NULL, NULL), LS_EINVAL);
    assert_status(ls_spawn(exit_with_code, 0, NULL, NULL), LS_EINVAL);
    assert_last_error("at least one rank");
    assert_status(ls_spawn(exit_with_code, 2, NULL, &two), LS_EINVAL);
    assert_last_error("MASTER_ADDR");
    assert_status(ls_spawn(exit_with_code, 2, NULL, &third), LS_EINVAL);
    assert_last_error("node 2 of 2");
    assert_status(ls_spawn(exit_with_code, 2, NULL, &other), LS_EINVAL);
    assert_last_error("per_node has 3 for node 1");
}

static void *wait_for_end(void *mutex)
{
    (void)pthread_mutex_lock(mutex);
    (void)pthread_mutex_unlock(mutex);
    return NULL;
}

static void a_process_with_threads_is_refused(void **state)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    int code = 0;

    LS_UNUSED(state);
    assert_int_equal(pthread_mutex_lock(&mutex), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_end, &mutex), 0);
    assert_status(ls_spawn(exit_with_code, 2, &code, NULL), LS_EINVAL);
    assert_last_error("needs a process with one thread");
    assert_int_equal(pthread_mutex_unlock(&mutex), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_program_spawns_its_ranks_and_goes_on),
        test(what_was_buffered_before_is_printed_once),
        test(a_killed_rank_is_named_to_the_parent),
        test(a_shims_death_is_noticed_though_daemons_hold_its_pipe),
        test(nothing_outlives_a_killed_parent),
        test(a_spawning_program_may_be_a_rank),
        test(the_text_of_a_failing_rank_reaches_the_parent),
        test(the_exit_code_of_a_rank_reaches_the_parent),
        test(ranks_have_their_place_and_what_the_parent_had_opened),
        test(spawning_leaves_no_descriptor_and_no_child),
        test(wrong_call_is_refused),
        test(a_process_with_threads_is_refused),
    };

    return cmocka_run_group_tests_name("launch spawn", tests, NULL, NULL);
}
