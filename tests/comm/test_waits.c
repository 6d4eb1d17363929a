/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_waits.c - waits of ranks for each other outside of operations: a line names the missing
 * ranks and their state, and the wait continues. Each test waits for its line, then lets the job
 * continue.
 */
#include "comm/scene.h"
#include "harness/lines.h"

#include <lockstep/store.h>

#include "base/clock.h"
#include "base/text.h"
#include "net/socket.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LATE "LOCKSTEP_LATE_MS=200"

static int lines;
static char folder[64];

static bool run(int n, ls_test_body body, scene *s, ls_test_rendezvous rendezvous)
{
    const ls_test_job job = {.n = n,
                             .body = body,
                             .arg = s,
                             .rendezvous = rendezvous,
                             .env = {LATE},
                             .late_lines = &lines};

    bool all_good;

    lines = lines_create();
    all_good = ls_test_ranks(&job, NULL);
    if (!all_good)
        lines_print(lines);
    return all_good;
}

/* --- many operations --- */

enum { N_SUMS = 300, N_MESSAGES = 50 };

/* Rank 1 calls the operations of the others after the wait reports. */
static ls_status many_body(const ls_test_rank *self, void *arg)
{
    static int32_t values[N_SUMS + N_MESSAGES];
    ls_work *works[N_SUMS + N_MESSAGES];
    ls_comm *comm;

    LS_UNUSED(arg);
    (void)lines_take_stderr(lines);
    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 1) {
        LS_CHECK(lines_await(lines, ", and 299 more after it: arrived 0, not arrived 1"));
        LS_CHECK(lines_await(lines, ", and 49 more after it: arrived 0, not arrived 1"));
        LS_CHECK(!lines_have(lines, "all_reduce #2 ") && !lines_have(lines, "recv #2 "));
    }
    for (int i = 0; i < N_SUMS; i++)
        LS_TRY(ls_all_reduce(comm, &values[i], &values[i], 1, LS_I32, LS_SUM, &works[i]));
    for (int i = N_SUMS; i < N_SUMS + N_MESSAGES; i++) {
        if (self->rank == 0)
            LS_TRY(ls_recv(comm, &values[i], 1, LS_I32, 1, 0, &works[i]));
        else
            LS_TRY(ls_send(comm, &values[i], 1, LS_I32, 0, 0, &works[i]));
    }
    for (int i = 0; i < N_SUMS + N_MESSAGES; i++)
        LS_TRY(ls_work_wait(works[i]));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_report_stands_for_the_operations_behind_it(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, many_body, NULL, LS_TEST_AT_STARTER));
    (void)close(lines);
}

/* --- joining --- */

static ls_status meet_and_leave(ls_comm *comm)
{
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Rank 1 joins after the wait reports of the others. */
static ls_status late_joiner_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    LS_UNUSED(arg);
    (void)lines_take_stderr(lines);
    if (self->rank == 1)
        LS_CHECK(lines_await(lines, "joining the job has waited for "));
    LS_TRY(ls_test_init(self, &comm));
    return meet_and_leave(comm);
}

static void joining_names_a_rank_that_has_not_come(void **state)
{
    static const ls_test_rendezvous endpoints[] = {LS_TEST_AT_STARTER, LS_TEST_AT_RANK_0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(endpoints); i++) {
        assert_true(run(3, late_joiner_body, NULL, endpoints[i]));
        assert_true(lines_have(lines, " 1 (has not joined"));
        (void)close(lines);
    }
}

/* Rank 0, which serves the hub, starts after the others have reported that they cannot connect. */
static ls_status late_server_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    LS_UNUSED(arg);
    (void)lines_take_stderr(lines);
    if (self->rank == 0)
        LS_CHECK(lines_await(lines, "no connection to rank 0 for "));
    LS_TRY(ls_test_init(self, &comm));
    return meet_and_leave(comm);
}

static void joining_names_rank_0_that_serves_no_hub(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, late_server_body, NULL, LS_TEST_AT_RANK_0));
    (void)close(lines);
}

/* Rank 0, which serves the hub, is killed while it waits for rank 2. */
static ls_status killed_server_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *comm;

    (void)lines_take_stderr(lines);
    atomic_store(&s->pids[self->rank], getpid());
    if (self->rank < 2)
        return scene_note(s, self->rank, ls_test_init(self, &comm));
    scene_wait_for_all(s, 2);
    LS_CHECK(lines_await(lines, "not arrived 2 (has not joined"));
    atomic_store(&s->event_ms, ls_now_ms());
    return kill(atomic_load(&s->pids[0]), SIGKILL) == 0 ? LS_OK : LS_ESYSTEM;
}

static void joining_ends_with_the_name_of_rank_0_when_it_is_killed(void **state)
{
    scene *s = scene_create();
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];
    const ls_test_job job = {.n = 3,
                             .body = killed_server_body,
                             .arg = s,
                             .rendezvous = LS_TEST_AT_RANK_0,
                             .env = {LATE}};

    LS_UNUSED(state);
    lines = lines_create();
    (void)ls_test_ranks(&job, outcomes);
    assert_int_equal(outcomes[0].signal, SIGKILL);
    assert_int_equal(outcomes[2].code, 0);
    scene_assert_failure(s, 1, LS_EPEER, "rank 0");
    scene_assert_in_time(s, 1);
    scene_destroy(s);
    (void)close(lines);
}

static ls_status store_body(const ls_test_rank *self, void *arg)
{
    ls_init_options opt = {.size = sizeof(opt), .rank = self->rank, .world_size = self->size};
    const int absent = *(const int *)arg;
    char url[96];
    ls_comm *comm;
    ls_status st;

    (void)lines_take_stderr(lines);
    text_format(url, sizeof(url), "file://%s/join%d", folder, absent);
    if (self->rank == absent)
        LS_CHECK(lines_await(lines, absent == 0 ? "s: rank 0 of 3 has not joined"
                                                : "1, 2 of 3 have not joined"));
    if (self->rank == 2 && absent == 1)
        LS_CHECK(lines_await(lines, "1, 2 of 3 have not joined"));
    LS_TRY(ls_store_open(url, NULL, &opt.store));
    st = comm_init_in(self->env, &opt, &comm);
    if (st == LS_OK)
        st = meet_and_leave(comm);
    ls_store_close(opt.store);
    return st;
}

static void joining_at_a_store_names_ranks_that_have_not_come(void **state)
{
    LS_UNUSED(state);
    for (int absent = 0; absent < 2; absent++) {
        const ls_test_job job = {.n = 3, .body = store_body, .arg = &absent, .env = {LATE}};

        lines = lines_create();
        assert_true(ls_test_ranks(&job, NULL));
        (void)close(lines);
    }
}

/* --- a hub that is stopped --- */

/* Rank 0 serves the hub and is stopped while rank 1 waits for rank 2 in a group of the two. */
static ls_status stopped_hub_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *world;
    ls_comm *part = NULL;

    (void)lines_take_stderr(lines);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank == 0 ? -1 : 0, 0, &part));
    atomic_store(&s->pids[self->rank], getpid());
    if (self->rank == 2) {
        scene_wait_for_all(s, 3);
        LS_CHECK(kill(atomic_load(&s->pids[0]), SIGSTOP) == 0);
        LS_CHECK(lines_await(lines, "stopped), which hosts the hub, has not answered for "));
        LS_CHECK(kill(atomic_load(&s->pids[0]), SIGCONT) == 0);
    }
    if (part != NULL)
        LS_TRY(ls_barrier(part, NULL));
    ls_comm_destroy(part);
    return meet_and_leave(world);
}

static void a_stopped_hub_is_named_and_the_job_goes_on(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(run(3, stopped_hub_body, s, LS_TEST_AT_RANK_0));
    assert_true(lines_have(lines, "rank 0 at unix:@"));
    scene_destroy(s);
    (void)close(lines);
}

/* --- stores of the user --- */

static void fresh_url(char *url, size_t n)
{
    static int number;

    text_format(url, n, "unix:@lockstep-test-waits-%d-%d", (int)getpid(), number++);
}

/* In a process of its own: whether `act` gave LS_OK after the line had come. */
static pid_t after_line(const char *line, ls_status (*act)(void *arg), void *arg)
{
    const pid_t pid = fork();

    if (pid == 0)
        _exit(lines_await(lines, line) && act(arg) == LS_OK ? 0 : 1);
    return pid;
}

static bool ended_well(pid_t pid)
{
    int status = -1;

    return waitpid(pid, &status, 0) == pid && status == 0;
}

static ls_status set_key(void *arg)
{
    ls_store *store;

    LS_TRY(ls_store_open(arg, NULL, &store));
    LS_TRY(ls_store_set(store, "slow", "v", 1));
    ls_store_close(store);
    return LS_OK;
}

static void a_wait_in_a_store_names_the_keys(void **state)
{
    char urls[2][96];

    LS_UNUSED(state);
    text_format(urls[0], sizeof(urls[0]), "file://%s/waits", folder);
    fresh_url(urls[1], sizeof(urls[1]));
    for (int i = 0; i < 4; i++) {
        const ls_store_options opt = {.size = sizeof(opt), .serve = i % 2};
        const char *keys[] = {"slow"};
        ls_store *store;
        void *value;
        pid_t setter;
        int old;

        lines = lines_create();
        setter = after_line("s: key 'slow' is not set", set_key, urls[i % 2]);
        old = lines_take_stderr(lines);
        assert_ok(ls_store_open(urls[i % 2], &opt, &store));
        if (i < 2) {
            assert_ok(ls_store_get(store, "slow", -1, &value, NULL));
            ls_store_free(value);
        } else {
            assert_ok(ls_store_wait(store, keys, 1, -1));
        }
        (void)dup2(old, STDERR_FILENO);
        (void)close(old);
        assert_true(ended_well(setter));
        ls_store_close(store);
        (void)close(lines);
    }
}

static void be_server(const char *url, int ready)
{
    const ls_store_options opt = {.size = sizeof(opt), .serve = 1};
    ls_store *store;

    if (ls_store_open(url, &opt, &store) != LS_OK || write(ready, "x", 1) != 1)
        _exit(1);
    for (;;)
        (void)pause();
}

static ls_status continue_process(void *arg)
{
    return kill(*(pid_t *)arg, SIGCONT) == 0 ? LS_OK : LS_ESYSTEM;
}

static void a_stopped_store_is_named_and_answers_later(void **state)
{
    char url[96];
    int ready[2];
    char byte;
    pid_t server;
    pid_t helper;
    ls_store *store;
    int old;

    LS_UNUSED(state);
    lines = lines_create();
    fresh_url(url, sizeof(url));
    assert_int_equal(pipe(ready), 0);
    server = fork();
    if (server == 0)
        be_server(url, ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_ok(ls_store_open(url, NULL, &store));
    assert_int_equal(kill(server, SIGSTOP), 0);
    assert_int_equal(waitpid(server, NULL, WUNTRACED), server); // all its threads have stopped
    helper = after_line("has not answered for ", continue_process, &server);
    old = lines_take_stderr(lines);
    assert_ok(ls_store_set(store, "k", "v", 1));
    (void)dup2(old, STDERR_FILENO);
    assert_true(ended_well(helper));
    assert_true(lines_have(lines, "the store at unix:@"));
    assert_true(lines_have(lines, "stopped)"));
    ls_store_close(store);
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
    (void)close(old);
    (void)close(lines);
}

/* A socket listens and does not answer; after the line about it, a store replaces it. */
typedef struct silent_server {
    char url[96];
    int listener;
    int ready;
} silent_server;

static ls_status serve_at_last(void *arg)
{
    silent_server *s = arg;

    (void)close(s->listener);
    be_server(s->url, s->ready);
    return LS_OK;
}

static void a_listener_that_does_not_answer_is_named(void **state)
{
    silent_server s;
    net_address at;
    int ready[2];
    ls_store *store;
    pid_t helper;
    int old;

    LS_UNUSED(state);
    lines = lines_create();
    fresh_url(s.url, sizeof(s.url));
    assert_int_equal(pipe(ready), 0);
    s.ready = ready[1];
    assert_ok(net_address_decode(s.url, &at));
    assert_ok(net_listen(&at, NET_STREAM, 4, &s.listener, NULL));
    helper = after_line("has not answered for ", serve_at_last, &s);
    (void)close(s.listener);
    old = lines_take_stderr(lines);
    assert_ok(ls_store_open(s.url, NULL, &store));
    (void)dup2(old, STDERR_FILENO);
    ls_store_close(store);
    (void)kill(helper, SIGKILL);
    (void)waitpid(helper, NULL, 0);
    (void)close(old);
    (void)close(lines);
}

/* --- a rank that does not look at its connections --- */

enum { SILENCE_S = 3, MESSAGE_BYTES = 60000, N_SENT = 8 }; /* more than a window */

static ls_status long_step_body(const ls_test_rank *self, void *arg)
{
    static uint8_t data[MESSAGE_BYTES];
    ls_status st;
    ls_comm *comm;

    LS_UNUSED(arg);
    (void)setenv("LOCKSTEP_HEARTBEAT_MS", "2000", 1); // links wait for a second more
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_barrier(comm, NULL));
    if (self->rank == 1)
        (void)usleep((SILENCE_S + 2) * 1000000); // the time after which a lost host is noticed
    for (int i = 0; i < N_SENT; i++) {
        memset(data, self->rank == 0 ? i + 1 : 0, sizeof(data));
        st = self->rank == 0 ? ls_send(comm, data, sizeof(data), LS_U8, 1, i, NULL)
                             : ls_recv(comm, data, sizeof(data), LS_U8, 0, i, NULL);
        LS_TRY(st);
        LS_CHECK(data[0] == i + 1 && data[MESSAGE_BYTES - 1] == i + 1);
    }
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_rank_may_compute_for_long_while_messages_wait(void **state)
{
    const ls_test_job job = {.n = 2, .body = long_step_body, .transport = "tcp"};

    LS_UNUSED(state);
    assert_true(ls_test_ranks(&job, NULL));
}

/* An argument chooses tests by pattern: '*stopped*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_stands_for_the_operations_behind_it),
        cmocka_unit_test(joining_names_a_rank_that_has_not_come),
        cmocka_unit_test(joining_names_rank_0_that_serves_no_hub),
        cmocka_unit_test(joining_ends_with_the_name_of_rank_0_when_it_is_killed),
        cmocka_unit_test(joining_at_a_store_names_ranks_that_have_not_come),
        cmocka_unit_test(a_stopped_hub_is_named_and_the_job_goes_on),
        cmocka_unit_test(a_wait_in_a_store_names_the_keys),
        cmocka_unit_test(a_stopped_store_is_named_and_answers_later),
        cmocka_unit_test(a_listener_that_does_not_answer_is_named),
        cmocka_unit_test(a_rank_may_compute_for_long_while_messages_wait),
    };
    char command[96];
    int failed;

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    (void)setenv("LOCKSTEP_LATE_MS", "200", 1);
    text_format(folder, sizeof(folder), "/tmp/lockstep-test-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? failed : 1;
}
