/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stack.c - what a program shows of itself: the site of its calls in errors and wait reports,
 * and the stack of a late rank.
 */
#include "comm/scene.h"
#include "harness/lines.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITE "train.py:41 [64,1024]"

static const char *transport;
static int lines = -1;

/* Shared by the ranks. */
typedef struct asked {
    atomic_int n;
} asked;

static void write_stack(void *arg, char *text, size_t bytes)
{
    static const char stack[] = "model.py:7 in forward\n\ntrain.py:40 in \x1b[31mmain\n";
    asked *a = arg;

    memcpy(text, stack, sizeof(stack) < bytes ? sizeof(stack) : bytes);
    atomic_fetch_add(&a->n, 1);
}

static void fill_stack(void *arg, char *text, size_t bytes)
{
    asked *a = arg;

    memset(text, 'x', bytes); // unterminated
    atomic_fetch_add(&a->n, 1);
}

static void await_asked(asked *a)
{
    while (atomic_load(&a->n) == 0)
        (void)usleep(1000);
}

static ls_status late_body(const ls_test_rank *self, void *arg)
{
    int32_t value = 1;
    ls_comm *world;

    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_set_stack(world, self->rank == 2 ? fill_stack : write_stack, arg));
    if (self->rank == 1) {
        await_asked(arg); // outside of the library
        LS_CHECK(lines < 0 || lines_await(lines, "stack of rank 1"));
    }
    ls_comm_set_site(SITE);
    LS_TRY(ls_all_reduce(world, &value, &value, 1, LS_I32, LS_SUM, NULL));
    ls_comm_set_site(NULL);
    LS_CHECK(value == self->size);
    LS_TRY(ls_comm_set_stack(world, NULL, NULL));
    LS_TRY(ls_comm_set_stack(world, write_stack, arg));
    ls_comm_destroy(world); // ends the function too
    return LS_OK;
}

static void a_late_rank_shows_its_stack(void **state)
{
    asked *a = ls_test_shared(sizeof(*a));

    LS_UNUSED(state);
    lines = lines_create();
    assert_true(ls_test_ranks(&(ls_test_job){.n = 3,
                                             .body = late_body,
                                             .arg = a,
                                             .transport = transport,
                                             .env = {"LOCKSTEP_LATE_MS=200"},
                                             .late_lines = &lines},
                              NULL));
    if (!lines_have(lines, ", late in all_reduce #1 (sum, 1 int32) at " SITE
                           ": model.py:7 in forward | train.py:40 in ?[31mmain"))
        lines_print(lines);
    assert_true(lines_have(lines, ", late in all_reduce #1 (sum, 1 int32) at " SITE
                                  ": model.py:7 in forward | train.py:40 in ?[31mmain"));
    (void)close(lines);
    lines = -1;
}

/* The thread sanitizer sees the thread of the function. */
static void threads_show_their_stacks(void **state)
{
    static asked a;

    LS_UNUSED(state);
    atomic_store(&a.n, 0);
    assert_int_equal(setenv("LOCKSTEP_LATE_MS", "100", 1), 0);
    assert_true(ls_test_threads(
        &(ls_test_job){.n = 3, .body = late_body, .arg = &a, .transport = transport}));
}

/* A text that fills its memory is cut by the library. */
static ls_status long_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;

    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_set_stack(world, fill_stack, arg));
    if (self->rank == 1)
        LS_CHECK(lines_await(lines, "xxxxxxxx"));
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_long_stack_is_cut(void **state)
{
    asked *a = ls_test_shared(sizeof(*a));

    LS_UNUSED(state);
    lines = lines_create();
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2,
                                             .body = long_body,
                                             .arg = a,
                                             .transport = transport,
                                             .env = {"LOCKSTEP_LATE_MS=200"},
                                             .late_lines = &lines},
                              NULL));
    (void)close(lines);
    lines = -1;
}

static ls_status mismatch_body(const ls_test_rank *self, void *arg)
{
    int32_t value = 1;
    ls_comm *world;
    ls_status st;

    LS_TRY(ls_test_init(self, &world));
    ls_comm_set_site(self->rank == 0 ? "a.py:1 a text of over 39 bytes, which is cut" : "b.py:2");
    if (self->rank == 0)
        st = ls_all_reduce(world, &value, &value, 1, LS_I32, LS_SUM, NULL);
    else
        st = ls_broadcast(world, &value, &value, 1, LS_I32, 0, NULL);
    ls_comm_set_site("");
    LS_TRY(scene_note(arg, self->rank, st));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_mismatch_shows_both_sites(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(ls_test_run(
        &(ls_test_job){.n = 2, .body = mismatch_body, .arg = s, .transport = transport}));
    for (int r = 0; r < 2; r++) {
        scene_assert_failure(s, r, LS_EMISMATCH, "at a.py:1 a text of over 39 bytes, which i");
        scene_assert_failure(s, r, LS_EMISMATCH, "at b.py:2");
    }
    scene_destroy(s);
}

static ls_status alone_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;

    LS_TRY(ls_test_init(self, &world));
    LS_CHECK(ls_comm_set_stack(NULL, write_stack, arg) == LS_EINVAL);
    LS_TRY(ls_comm_set_stack(world, write_stack, arg));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_rank_alone_is_never_late(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = alone_body}));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_shows_its_stack),
        cmocka_unit_test(a_long_stack_is_cut),
        cmocka_unit_test(threads_show_their_stacks),
        cmocka_unit_test(a_mismatch_shows_both_sites),
        cmocka_unit_test(a_rank_alone_is_never_late),
    };

    transport = argc > 1 ? argv[1] : "shm";
    return cmocka_run_group_tests_name("stack", tests, NULL, NULL);
}
