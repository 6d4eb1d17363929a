/* SPDX-License-Identifier: Apache-2.0 */
/* test_coroutine.c - coroutines in turn, again, without an end, and beyond their stack. */
#include "base/unit.h"

#include "base/compute/coroutine.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 5, ROUNDS = 100, DEEP_BYTES = 15000 };

/* A coroutine that suspends `rounds` times. */
typedef struct turn {
    coroutine *c;
    int number;
    int rounds;
    int done;
    unsigned sum; /* of bytes in memory of its stack */
    bool has_returned;
} turn;

/* Its variables survive the turns of the others. */
static void take_turns(void *arg)
{
    turn *t = arg;
    unsigned char bytes[DEEP_BYTES];

    memset(bytes, t->number, sizeof(bytes));
    for (t->done = 0; t->done < t->rounds; t->done++) {
        (void)ls_fail(LS_EINVAL, "of %d", t->number);
        coroutine_suspend(t->c);
        bytes[t->done * 7] = (unsigned char)(t->number + t->done);
    }
    t->sum = 0;
    for (size_t i = 0; i < sizeof(bytes); i++)
        t->sum += bytes[i];
    t->has_returned = true;
}

static unsigned sum_of(int number, int rounds)
{
    unsigned sum = (unsigned)number * DEEP_BYTES;

    for (int i = 0; i < rounds; i++)
        sum += (unsigned)(unsigned char)(number + i) - (unsigned)number;
    return sum;
}

static void several_take_turns_on_stacks_of_their_own(void **state)
{
    turn turns[COUNT] = {{.number = 0}};

    LS_UNUSED(state);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(coroutine_create(&turns[i].c), LS_OK);
    for (int again = 0; again < 3; again++) {
        for (int i = 0; i < COUNT; i++) {
            turns[i] = (turn){.c = turns[i].c, .number = i + 1, .rounds = ROUNDS - i};
            assert_false(coroutine_resume(turns[i].c)); // it has not been started
            coroutine_start(turns[i].c, take_turns, &turns[i]);
        }
        for (int round = 0; round <= ROUNDS; round++)
            for (int i = 0; i < COUNT; i++) {
                assert_int_equal(coroutine_resume(turns[i].c), round < ROUNDS - i);
                assert_int_equal(turns[i].has_returned, round >= ROUNDS - i);
            }
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(turns[i].sum, sum_of(i + 1, ROUNDS - i));
    }
    assert_string_equal(ls_last_error(), "of 1"); // the errors are the thread's
    for (int i = 0; i < COUNT; i++)
        coroutine_destroy(turns[i].c);
}

static void one_that_is_suspended_can_be_destroyed(void **state)
{
    turn t = {.number = 1, .rounds = 1};

    LS_UNUSED(state);
    assert_int_equal(coroutine_create(&t.c), LS_OK);
    coroutine_start(t.c, take_turns, &t);
    assert_true(coroutine_resume(t.c));
    coroutine_destroy(t.c);
    coroutine_destroy(NULL);
    assert_false(t.has_returned);
}

/* NOLINTNEXTLINE(misc-no-recursion): it is to use up the stack */
static unsigned recurse(volatile unsigned depth)
{
    volatile unsigned char bytes[4096];

    bytes[depth % sizeof(bytes)] = 1;
    return depth == 0 ? 0 : recurse(depth - 1) + bytes[depth % sizeof(bytes)];
}

static void use_up_the_stack(void *arg)
{
    *(unsigned *)arg = recurse(1U << 30);
}

static void a_stack_that_is_too_small_ends_the_process(void **state)
{
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    int status;
    const pid_t child = fork();

    LS_UNUSED(state);
    if (child == 0) {
        coroutine *c;
        unsigned result;

        (void)setrlimit(RLIMIT_CORE, &none);
        (void)freopen("/dev/null", "w", stderr); // a sanitizer reports it there
        if (coroutine_create(&c) == LS_OK) {
            coroutine_start(c, use_up_the_stack, &result);
            (void)coroutine_resume(c);
        }
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_take_turns_on_stacks_of_their_own),
        cmocka_unit_test(one_that_is_suspended_can_be_destroyed),
        cmocka_unit_test(a_stack_that_is_too_small_ends_the_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
