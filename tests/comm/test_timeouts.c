/* SPDX-License-Identifier: Apache-2.0 */
/* test_timeouts.c - timeouts of a group that change, and the monitored barrier. */
#include "base/unit.h"
#include "harness/ranks.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 200 };

static const char *transport;

static bool run(int n, ls_test_body body)
{
    return ls_test_run(&(ls_test_job){.n = n, .body = body, .transport = transport});
}

static ls_status expect(ls_status st, ls_status expected, const char *part)
{
    if (st == expected && strstr(ls_last_error(), part) != NULL)
        return LS_OK;
    return ls_fail(LS_EINTERNAL, "got %d \"%.300s\", not %d with \"%s\"", (int)st, ls_last_error(),
                   (int)expected, part);
}

/* The group of rank 0 alone has a short timeout; a group that is created from it has it as well. */
static ls_status changed_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *part;
    ls_comm *child;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_comm_set_timeout(part, SHORT_MS);
    LS_TRY(ls_comm_split(part, 0, 0, &child));
    if (self->rank == 0) {
        LS_TRY(expect(ls_barrier(child, NULL), LS_EDEADLINE, "rank 0 timed out after "));
        LS_TRY(expect(ls_barrier(part, NULL), LS_EDEADLINE, "not arrived 1 (pid "));
    }
    LS_TRY(ls_barrier(world, NULL)); // rank 1 has waited here: the world's timeout is as before
    ls_comm_set_timeout(world, SHORT_MS);
    ls_comm_set_timeout(world, 0);
    if (self->rank == 0)
        LS_TRY(expect(ls_barrier(part, NULL), LS_EDEADLINE, "timed out"));
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(child);
    ls_comm_destroy(part);
    ls_comm_destroy(world);
    return LS_OK;
}

static void timeouts_change_for_later_operations(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, changed_body));
}

/* Rank 0 shortens the timeout of an operation that it has started. */
static ls_status running_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *part;
    ls_work *work;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    if (self->rank == 0) {
        LS_TRY(ls_barrier(part, &work));
        ls_work_set_timeout(work, SHORT_MS);
        LS_TRY(expect(ls_work_wait(work), LS_EDEADLINE, "not arrived 1 (pid "));
    }
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(part);
    ls_comm_destroy(world);
    return LS_OK;
}

static void timeout_of_a_running_operation(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, running_body));
}

static const int64_t long_ms[] = {INT64_MAX, INT64_MAX / 1000, INT64_MAX / 1000000 + 1,
                                  -1,        INT64_MIN,        0};

/* Rank 1 comes later. Every call that takes a duration waits for it. */
static ls_status long_body(const ls_test_rank *self, void *arg)
{
    const int both[] = {0, 1};
    int32_t value = 0;
    ls_comm *world;
    ls_work *work;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    for (size_t i = 0; i < LS_COUNT_OF(long_ms); i++) {
        ls_comm *made;

        ls_comm_set_timeout(world, long_ms[i]);
        if (self->rank == 1)
            (void)usleep(50000);
        LS_TRY(ls_barrier(world, NULL));
        LS_TRY(ls_comm_monitored_barrier(world, long_ms[i]));
        LS_TRY(ls_comm_create_group(world, both, 2, "both", long_ms[i], &made));
        ls_comm_destroy(made);
        LS_TRY(ls_all_reduce(world, &value, &value, 1, LS_I32, LS_SUM, &work));
        if (long_ms[i] != 0) {
            ls_work_set_timeout(work, long_ms[i]);
            LS_TRY(ls_work_wait_for(work, long_ms[i]));
        }
        LS_TRY(ls_work_wait(work));
    }
    ls_comm_destroy(world);
    return LS_OK;
}

static void long_durations_do_not_overflow(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, long_body));
    for (size_t i = 0; i < LS_COUNT_OF(long_ms); i++) {
        const ls_test_job job = {.n = 2,
                                 .body = long_body,
                                 .transport = transport,
                                 .timeout_ms = long_ms[i],
                                 .join_timeout_ms = long_ms[i]};

        assert_true(ls_test_run(&job));
    }
}

static ls_status all_come_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *pair;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank / 2, 0, &pair));
    for (int i = 0; i < 50; i++) {
        LS_TRY(ls_comm_monitored_barrier(world, 0));
        LS_TRY(ls_comm_monitored_barrier(pair, -1));
    }
    ls_comm_destroy(pair);
    ls_comm_destroy(world);
    return LS_OK;
}

static void all_ranks_pass_a_monitored_barrier(void **state)
{
    LS_UNUSED(state);
    assert_true(run(1, all_come_body));
    assert_true(run(5, all_come_body));
}

/* Ranks 1 and 3 come after the others have failed. */
static ls_status missing_body(const ls_test_rank *self, void *arg)
{
    const bool is_late = self->rank == 1 || self->rank == 3;
    ls_comm *world;
    const char *named;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (is_late)
        LS_TRY(ls_barrier(world, NULL));
    LS_TRY(expect(ls_comm_monitored_barrier(world, SHORT_MS), LS_ETIMEOUT,
                  "monitored barrier #1 timed out after "));
    named = strstr(ls_last_error(), "3 of 5 ranks have arrived; not arrived 1 (pid ");
    LS_CHECK(named != NULL && strstr(named, ", 3 (pid ") != NULL);
    if (!is_late)
        LS_TRY(ls_barrier(world, NULL));
    LS_TRY(ls_comm_monitored_barrier(world, 0));
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_monitored_barrier_names_all_missing_ranks(void **state)
{
    LS_UNUSED(state);
    assert_true(run(5, missing_body));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(timeouts_change_for_later_operations),
        cmocka_unit_test(timeout_of_a_running_operation),
        cmocka_unit_test(long_durations_do_not_overflow),
        cmocka_unit_test(all_ranks_pass_a_monitored_barrier),
        cmocka_unit_test(a_monitored_barrier_names_all_missing_ranks),
    };

    transport = argc > 1 ? argv[1] : "shm";
    return cmocka_run_group_tests_name("timeouts", tests, NULL, NULL);
}
