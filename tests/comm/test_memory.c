/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - memory of ls_comm_alloc() after the end of its group: it stays valid, a later
 * join uses it, and any thread frees it, also while the group ends.
 */
#include "base/unit.h"
#include "harness/ranks.h"

#include "base/thread.h"

#include <string.h>

enum { COUNT = 1 << 20, BLOCKS = 8, ROUNDS = 20 };
enum { IN_TURN_ROUNDS = 6000, MANY_BUFFERS = 300, SMALL_COUNT = 16384 };

static const char *transport;

static bool run(int n, ls_test_body body)
{
    return ls_test_run(&(ls_test_job){.n = n, .body = body, .transport = transport});
}

static ls_status sum_of(ls_comm *comm, int32_t *data, int count, int first, int expected)
{
    for (int i = 0; i < count; i++)
        data[i] = first + i;
    LS_TRY(ls_all_reduce(comm, data, data, (size_t)count, LS_I32, LS_SUM, NULL));
    for (int i = 0; i < count; i++)
        LS_CHECK(data[i] == expected + 3 * i);
    return LS_OK;
}

static ls_status sum(ls_comm *comm, int32_t *data, int first, int expected)
{
    return sum_of(comm, data, COUNT, first, expected);
}

static ls_status outlive_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    void *block;
    int32_t *data;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_comm_alloc(comm, COUNT * sizeof(*data), &block));
    data = block;
    LS_TRY(sum(comm, data, self->rank, 3));
    ls_comm_destroy(comm);
    LS_CHECK(data[0] == 3 && data[COUNT - 1] == 3 + 3 * (COUNT - 1));
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(sum(comm, data, 2 * self->rank, 6));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    ls_memory_free(data);
    return LS_OK;
}

static void memory_outlives_its_group_and_serves_the_next(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, outlive_body));
}

static void free_all(void *arg)
{
    void **blocks = arg;

    for (int i = 0; i < BLOCKS; i++)
        ls_memory_free(blocks[i]);
}

/* The thread frees them before, while and after the group ends. */
static ls_status thread_body(const ls_test_rank *self, void *arg)
{
    LS_UNUSED(arg);
    for (int i = 0; i < ROUNDS; i++) {
        ls_thread thread = {0};
        void *blocks[BLOCKS];
        ls_comm *comm;

        LS_TRY(ls_test_init(self, &comm));
        for (int k = 0; k < BLOCKS; k++) {
            LS_TRY(ls_comm_alloc(comm, 4096, &blocks[k]));
            memset(blocks[k], k, 4096);
        }
        LS_TRY(ls_barrier(comm, NULL));
        LS_TRY(ls_thread_start(&thread, "free", free_all, blocks));
        if (i % 2 == 0)
            LS_TRY(ls_barrier(comm, NULL));
        ls_comm_destroy(comm);
        ls_thread_join(&thread);
    }
    return LS_OK;
}

static void another_thread_frees_while_the_group_ends(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, thread_body));
}

static ls_status other_body(const ls_test_rank *self, void *arg)
{
    int32_t foreign = 7;
    ls_comm *comm;
    void *block;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    ls_memory_free(NULL);
    ls_comm_free(comm, NULL);
    ls_memory_free(&foreign); // is logged
    LS_CHECK(foreign == 7);
    LS_TRY(ls_comm_alloc(comm, 0, &block));
    ls_comm_free(comm, block);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void other_memory_is_left_alone(void **state)
{
    LS_UNUSED(state);
    assert_true(run(1, other_body));
    assert_true(run(2, other_body));
}

/* Only rank 0 allocates; the others do small operations, which need no shared buffer. */
static ls_status in_turn_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    void *block;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < IN_TURN_ROUNDS; i++) {
        if (self->rank == 0) {
            LS_TRY(ls_comm_alloc(comm, 4096, &block));
            ls_comm_free(comm, block);
        }
        if (i % 10 == 0)
            LS_TRY(ls_barrier(comm, NULL));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void allocating_and_freeing_in_turn_goes_on_for_ever(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, in_turn_body));
    assert_true(run(3, in_turn_body));
}

/* More buffers than can be shared; all are used. */
static ls_status many_buffers_body(const ls_test_rank *self, void *arg)
{
    static _Thread_local void *blocks[MANY_BUFFERS];
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int k = 0; k < MANY_BUFFERS; k++)
        LS_TRY(ls_comm_alloc(comm, SMALL_COUNT * sizeof(int32_t), &blocks[k]));
    for (int k = 0; k < MANY_BUFFERS; k += 10)
        LS_TRY(sum_of(comm, blocks[k], SMALL_COUNT, self->rank, 3));
    for (int k = 0; k < MANY_BUFFERS; k++)
        ls_comm_free(comm, blocks[k]);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void buffers_beyond_the_shared_ones_work(void **state)
{
    LS_UNUSED(state);
    assert_true(run(3, many_buffers_body));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_outlives_its_group_and_serves_the_next),
        cmocka_unit_test(another_thread_frees_while_the_group_ends),
        cmocka_unit_test(other_memory_is_left_alone),
        cmocka_unit_test(allocating_and_freeing_in_turn_goes_on_for_ever),
        cmocka_unit_test(buffers_beyond_the_shared_ones_work),
    };

    transport = argc > 1 ? argv[1] : "shm";
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
