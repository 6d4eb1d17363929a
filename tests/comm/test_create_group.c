/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_create_group.c - groups that are created by their members alone: disjoint and overlapping
 * ones, in different orders and from several threads, and what the members get when one does not
 * come. With ranks as threads the thread sanitizer sees all of it.
 */
#include "comm/scene.h"
#include "harness/lines.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 20, THREADS = 3, PAIR_MS = 200 };

static const char *transport; /* of the test that runs */

static bool run(int n, ls_test_body body)
{
    return ls_test_run(&(ls_test_job){.n = n, .body = body, .transport = transport});
}

static ls_status check_sum(ls_comm *comm, int mine, int expected)
{
    int32_t value = mine;

    LS_TRY(ls_all_reduce(comm, &value, &value, 1, LS_I32, LS_SUM, NULL));
    LS_CHECK(value == expected);
    return LS_OK;
}

/* --- groups --- */

static ls_status disjoint_body(const ls_test_rank *self, void *arg)
{
    static const int even[] = {4, 0, 2};
    static const int odd[] = {1, 3};
    const bool is_even = self->rank % 2 == 0;
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_create_group(world, is_even ? even : odd, is_even ? 3 : 2,
                                is_even ? "even" : "odd", 0, &group));
    LS_CHECK(ls_comm_size(group) == (is_even ? 3 : 2));
    LS_CHECK((is_even ? even : odd)[ls_comm_rank(group)] == self->rank);
    LS_TRY(check_sum(group, self->rank, is_even ? 6 : 4));
    LS_TRY(check_sum(world, 1, 5));
    ls_comm_destroy(world); // the group outlives its parent
    for (int i = 0; i < ROUNDS; i++)
        LS_TRY(check_sum(group, self->rank, is_even ? 6 : 4));
    ls_comm_destroy(group);
    return LS_OK;
}

static void disjoint_groups_work_without_the_other_ranks(void **state)
{
    LS_UNUSED(state);
    assert_true(run(5, disjoint_body));
}

/* Rank r is in {r, r+1} and {r-1, r}; even ranks create the one first, odd ranks the other. The
 * groups of one round have a name each, which the next round uses again. */
static ls_status make_pair(ls_comm *parent, int first, int n, ls_comm **out)
{
    const int ranks[] = {first, (first + 1) % n};
    char name[16];

    text_format(name, sizeof(name), "pair %d", first);
    return ls_comm_create_group(parent, ranks, 2, name, 0, out);
}

static ls_status overlapping_body(const ls_test_rank *self, void *arg)
{
    const int n = self->size;
    const int before = (self->rank + n - 1) % n;
    ls_comm *world;
    ls_comm *pairs[2];

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    for (int i = 0; i < ROUNDS; i++) {
        if (self->rank % 2 == 0)
            LS_TRY(make_pair(world, self->rank, n, &pairs[0]));
        LS_TRY(make_pair(world, before, n, &pairs[1]));
        if (self->rank % 2 != 0)
            LS_TRY(make_pair(world, self->rank, n, &pairs[0]));
        for (int k = 0; k < 2; k++) {
            const int which = (self->rank + k) % 2;
            const int other = which == 0 ? (self->rank + 1) % n : before;

            LS_TRY(check_sum(pairs[which], self->rank, self->rank + other));
        }
        for (int k = 0; k < 2; k++)
            ls_comm_destroy(pairs[k]);
    }
    ls_comm_destroy(world);
    return LS_OK;
}

static void overlapping_groups_are_created_one_after_the_other(void **state)
{
    LS_UNUSED(state);
    assert_true(run(4, overlapping_body));
}

/* What one of several threads of a rank does. */
typedef struct creator {
    ls_comm *parent;
    int rank;
    int number;
    ls_status st;
    char text[LS_ERROR_BYTES];
} creator;

static ls_status create_and_use(const creator *c)
{
    const int all[] = {0, 1, 2};
    char name[16];

    text_format(name, sizeof(name), "thread %d", c->number);
    for (int i = 0; i < ROUNDS; i++) {
        ls_comm *group;

        LS_TRY(ls_comm_create_group(c->parent, all, 3, name, 0, &group));
        LS_TRY(check_sum(group, c->rank * (c->number + 1), 3 * (c->number + 1)));
        ls_comm_destroy(group);
    }
    return LS_OK;
}

static void run_creator(void *arg)
{
    creator *c = arg;

    c->st = create_and_use(c);
    ls_error_save(c->text);
}

static ls_status threads_body(const ls_test_rank *self, void *arg)
{
    ls_thread threads[THREADS];
    creator creators[THREADS];
    ls_comm *world;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    for (int i = 0; i < THREADS; i++) {
        // each rank begins with another one
        creators[i] =
            (creator){.parent = world, .rank = self->rank, .number = (i + self->rank) % THREADS};
        threads[i] = (ls_thread){0};
        LS_TRY(ls_thread_start(&threads[i], "creator", run_creator, &creators[i]));
    }
    for (int i = 0; i < THREADS; i++)
        ls_thread_join(&threads[i]);
    for (int i = 0; i < THREADS; i++) {
        if (creators[i].st != LS_OK)
            return ls_fail(creators[i].st, "%s", creators[i].text);
    }
    ls_comm_destroy(world);
    return LS_OK;
}

static void threads_create_groups_of_the_same_ranks_at_once(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, threads_body));
}

/* Rank 1 calls after an operation of the parent that only the waiting rank 0 makes progress on. */
static ls_status pending_body(const ls_test_rank *self, void *arg)
{
    static int32_t data[2][1 << 18]; // of two ranks, which may be threads
    int32_t *mine = data[self->rank];
    const int both[] = {0, 1};
    ls_work *work = NULL;
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    mine[0] = self->rank + 1;
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_all_reduce(world, mine, mine, LS_COUNT_OF(data[0]), LS_I32, LS_SUM, &work));
    if (self->rank == 1)
        LS_TRY(ls_work_wait(work));
    LS_TRY(ls_comm_create_group(world, both, 2, "late", 0, &group));
    if (self->rank == 0)
        LS_TRY(ls_work_wait(work));
    LS_CHECK(mine[0] == 3);
    LS_TRY(check_sum(group, 1, 2));
    ls_comm_destroy(group);
    ls_comm_destroy(world);
    return LS_OK;
}

static void operations_of_the_parent_go_on_meanwhile(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, pending_body));
}

static ls_status alone_body(const ls_test_rank *self, void *arg)
{
    const int own[] = {self->rank};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_create_group(world, own, 1, self->rank == 0 ? "zero" : "one", 0, &group));
    LS_CHECK(ls_comm_size(group) == 1);
    LS_TRY(check_sum(group, self->rank, self->rank));
    ls_comm_destroy(world);
    ls_comm_destroy(group);
    return LS_OK;
}

static void a_rank_may_be_alone(void **state)
{
    LS_UNUSED(state);
    assert_true(run(1, alone_body));
    assert_true(run(2, alone_body));
}

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    while (folder != NULL && readdir(folder) != NULL)
        n++;
    if (folder != NULL)
        closedir(folder);
    return n;
}

static ls_status descriptors_body(const ls_test_rank *self, void *arg)
{
    const int all[] = {0, 1, 2};
    ls_comm *groups[10];
    ls_comm *world;
    int n;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(check_sum(world, 1, 3));
    n = count_descriptors();
    for (size_t i = 0; i < LS_COUNT_OF(groups); i++) {
        LS_TRY(ls_comm_create_group(world, all, 3, "same", 0, &groups[i]));
        LS_TRY(check_sum(groups[i], 1, 3));
    }
    LS_CHECK(count_descriptors() <= n + 2 * (int)LS_COUNT_OF(groups));
    for (size_t i = 0; i < LS_COUNT_OF(groups); i++)
        ls_comm_destroy(groups[i]);
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_group_takes_at_most_two_descriptors(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_ranks(
        &(ls_test_job){.n = 3, .body = descriptors_body, .transport = transport}, NULL));
}

/* --- members that do not come --- */

static ls_status expect(ls_status st, ls_status expected, const char *part)
{
    if (st == expected && strstr(ls_last_error(), part) != NULL)
        return LS_OK;
    return ls_fail(LS_EINTERNAL, "got %d \"%.300s\", not %d with \"%s\"", (int)st, ls_last_error(),
                   (int)expected, part);
}

/* Rank 2 comes when the others have given up, and gets the same answer. */
static ls_status timeout_body(const ls_test_rank *self, void *arg)
{
    const int all[] = {0, 1, 2};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (self->rank == 2)
        LS_TRY(ls_barrier(world, NULL));
    LS_TRY(expect(ls_comm_create_group(world, all, 3, "slow", PAIR_MS, &group), LS_ETIMEOUT,
                  "s: 2 of 3 ranks have arrived; not arrived 2 (pid "));
    LS_CHECK(strstr(ls_last_error(), "creating group \"slow\" timed out after ") != NULL);
    LS_CHECK(group == NULL);
    if (self->rank != 2)
        LS_TRY(ls_barrier(world, NULL));
    LS_TRY(ls_barrier(world, NULL)); // all have returned: the name is free again
    LS_TRY(ls_comm_create_group(world, all, 3, "slow", 0, &group));
    LS_TRY(check_sum(group, 1, 3));
    ls_comm_destroy(group);
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_missing_member_is_named(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, timeout_body));
}

static ls_status differing_body(const ls_test_rank *self, void *arg)
{
    static const int lists[3][3] = {{0, 1, 2}, {0, 1, 2}, {0, 2, 1}};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(expect(ls_comm_create_group(world, lists[self->rank], 3, "x", 0, &group), LS_EMISMATCH,
                  "creating group \"x\": rank "));
    LS_CHECK(strstr(ls_last_error(), "names ranks 0 1 2") != NULL);
    LS_CHECK(strstr(ls_last_error(), "rank 2 names ranks 0 2 1") != NULL);
    LS_TRY(check_sum(world, 1, 3));
    ls_comm_destroy(world);
    return LS_OK;
}

/* Rank 2 is not in the list of the others. */
static ls_status foreign_body(const ls_test_rank *self, void *arg)
{
    static const int lists[3][2] = {{0, 1}, {0, 1}, {1, 2}};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (self->rank == 1)
        LS_TRY(ls_barrier(world, NULL)); // the lists of ranks 0 and 2 have met
    LS_TRY(expect(ls_comm_create_group(world, lists[self->rank], 2, "x", 0, &group), LS_EMISMATCH,
                  "creating group \"x\": rank "));
    LS_CHECK(strstr(ls_last_error(), "rank 0 names ranks 0 1") != NULL);
    LS_CHECK(strstr(ls_last_error(), "rank 2 names ranks 1 2") != NULL);
    if (self->rank != 1)
        LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(world);
    return LS_OK;
}

static void lists_that_differ_name_both_ranks(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, differing_body));
    assert_true(run(3, foreign_body));
}

static ls_status leave_body(const ls_test_rank *self, void *arg)
{
    const int both[] = {0, 1};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (self->rank == 0)
        LS_TRY(
            expect(ls_comm_create_group(world, both, 2, "x", 0, &group), LS_EPEER, "rank 1 (pid "));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_member_that_has_left_the_job_is_named(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, leave_body));
}

static ls_status abort_body(const ls_test_rank *self, void *arg)
{
    const int all[] = {0, 1, 2};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (self->rank == 2)
        ls_comm_abort(world, "no groups today");
    else
        LS_TRY(expect(ls_comm_create_group(world, all, 3, "x", 0, &group), LS_ECANCELED,
                      "rank 2 aborted: no groups today"));
    ls_comm_destroy(world);
    return LS_OK;
}

static void an_abort_of_the_parent_ends_the_wait(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, abort_body));
}

static ls_status death_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    const int all[] = {0, 1, 2};
    ls_comm *world;
    ls_comm *group;

    LS_TRY(ls_test_init(self, &world));
    atomic_store(&s->pids[self->rank], getpid());
    if (self->rank == 2) {
        scene_wait_for_all(s, 3);
        atomic_store(&s->event_ms, ls_now_ms());
        (void)raise(SIGKILL);
    }
    return scene_note(s, self->rank, ls_comm_create_group(world, all, 3, "x", 0, &group));
}

static void a_member_that_dies_is_named_within_a_second(void **state)
{
    scene *s = scene_create();
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];

    LS_UNUSED(state);
    (void)ls_test_ranks(
        &(ls_test_job){.n = 3, .body = death_body, .arg = s, .transport = transport}, outcomes);
    assert_int_equal(outcomes[2].signal, SIGKILL);
    for (int r = 0; r < 2; r++) {
        scene_assert_failure(s, r, LS_EPEER, "rank 2");
        scene_assert_in_time(s, r);
    }
    scene_destroy(s);
}

static int lines;

static ls_status late_body(const ls_test_rank *self, void *arg)
{
    const int all[] = {0, 1, 2};
    ls_comm *world;
    ls_comm *group;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    if (self->rank == 1)
        LS_CHECK(lines_await(lines, "creating group \"tp\" has waited for "));
    LS_TRY(ls_comm_create_group(world, all, 3, "tp", 0, &group));
    ls_comm_destroy(group);
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_late_member_is_reported(void **state)
{
    LS_UNUSED(state);
    lines = lines_create();
    assert_true(ls_test_ranks(&(ls_test_job){.n = 3,
                                             .body = late_body,
                                             .transport = transport,
                                             .env = {"LOCKSTEP_LATE_MS=200"},
                                             .late_lines = &lines},
                              NULL));
    assert_true(lines_have(lines, "arrived 0 2, not arrived 1 (pid "));
    (void)close(lines);
}

/* --- arguments --- */

static ls_status arguments_body(const ls_test_rank *self, void *arg)
{
    const int twice[] = {0, 0};
    const int outside[] = {0, 2};
    const int other[] = {1 - self->rank};
    const int both[] = {0, 1};
    char long_name[65];
    ls_comm *world;
    ls_comm *g;

    LS_UNUSED(arg);
    memset(long_name, 'a', 64);
    long_name[64] = '\0';
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(expect(ls_comm_create_group(NULL, both, 2, "x", 0, &g), LS_EINVAL, "parent is NULL"));
    LS_TRY(expect(ls_comm_create_group(world, NULL, 2, "x", 0, &g), LS_EINVAL, "ranks is NULL"));
    LS_TRY(expect(ls_comm_create_group(world, both, 2, NULL, 0, &g), LS_EINVAL, "name is NULL"));
    LS_TRY(expect(ls_comm_create_group(world, both, 2, "x", 0, NULL), LS_EINVAL, "out is NULL"));
    LS_TRY(expect(ls_comm_create_group(world, both, 0, "x", 0, &g), LS_EINVAL, "0 members"));
    LS_TRY(expect(ls_comm_create_group(world, both, 3, "x", 0, &g), LS_EINVAL, "3 members"));
    LS_TRY(expect(ls_comm_create_group(world, twice, 2, "x", 0, &g), LS_EINVAL, "named twice"));
    LS_TRY(expect(ls_comm_create_group(world, outside, 2, "x", 0, &g), LS_EINVAL, "rank 2: must"));
    LS_TRY(expect(ls_comm_create_group(world, other, 1, "x", 0, &g), LS_EINVAL, "is not among"));
    LS_TRY(expect(ls_comm_create_group(world, both, 2, "", 0, &g), LS_EINVAL, "0 bytes"));
    LS_TRY(expect(ls_comm_create_group(world, both, 2, long_name, 0, &g), LS_EINVAL, "64 bytes"));
    LS_TRY(ls_comm_create_group(world, both, 2, long_name + 1, 0, &g));
    ls_comm_destroy(g);
    ls_comm_destroy(world);
    return LS_OK;
}

static void wrong_arguments_are_refused(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, arguments_body));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(disjoint_groups_work_without_the_other_ranks),
        cmocka_unit_test(overlapping_groups_are_created_one_after_the_other),
        cmocka_unit_test(threads_create_groups_of_the_same_ranks_at_once),
        cmocka_unit_test(operations_of_the_parent_go_on_meanwhile),
        cmocka_unit_test(a_rank_may_be_alone),
        cmocka_unit_test(a_group_takes_at_most_two_descriptors),
        cmocka_unit_test(a_missing_member_is_named),
        cmocka_unit_test(lists_that_differ_name_both_ranks),
        cmocka_unit_test(a_member_that_has_left_the_job_is_named),
        cmocka_unit_test(an_abort_of_the_parent_ends_the_wait),
        cmocka_unit_test(a_member_that_dies_is_named_within_a_second),
        cmocka_unit_test(a_late_member_is_reported),
        cmocka_unit_test(wrong_arguments_are_refused),
    };

    transport = argc > 1 ? argv[1] : "shm";
    return cmocka_run_group_tests_name("create_group", tests, NULL, NULL);
}
