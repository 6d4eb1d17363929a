/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mismatch.c - ranks that call different operations: both ranks report both calls at once,
 * over shared memory and TCP.
 */
#include "comm/scene.h"

#include "base/clock.h"

#include <stdlib.h>

typedef ls_status (*call_fn)(ls_comm *comm, float *x, float *y);

static ls_status sum_4(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, NULL);
}

static ls_status max_4(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_F32, LS_MAX, NULL);
}

static ls_status sum_5(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 5, LS_F32, LS_SUM, NULL);
}

static ls_status sum_none(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 0, LS_F32, LS_SUM, NULL);
}

static ls_status sum_many(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 50000, LS_F32, LS_SUM, NULL);
}

static ls_status sum_ints(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_I32, LS_SUM, NULL);
}

static ls_status from_0(ls_comm *comm, float *x, float *y)
{
    return ls_broadcast(comm, x, y, 4, LS_F32, 0, NULL);
}

static ls_status from_1(ls_comm *comm, float *x, float *y)
{
    return ls_broadcast(comm, x, y, 4, LS_F32, 1, NULL);
}

static ls_status meet(ls_comm *comm, float *x, float *y)
{
    LS_UNUSED(x);
    LS_UNUSED(y);
    return ls_barrier(comm, NULL);
}

/* Rank 1 makes the second call, all others the first; `says`: the text on both sides. */
typedef struct mismatch_case {
    const char *what;
    call_fn others;
    call_fn rank_1;
    const char *says[3];
} mismatch_case;

static const mismatch_case mismatch_cases[] = {
    {"operation", sum_4, from_0, {"all_reduce", "broadcast", "rank 1"}},
    {"reduction", sum_4, max_4, {"sum", "max", "rank 1"}},
    {"count", sum_4, sum_5, {"4 float32", "5 float32", "rank 1"}},
    {"count, one of them large", sum_4, sum_many, {"4 float32", "50000 float32", "rank 1"}},
    {"count, one of them 0", sum_4, sum_none, {"4 float32", "0 float32", "rank 1"}},
    {"type", sum_4, sum_ints, {"float32", "int32", "rank 1"}},
    {"root", from_0, from_1, {"broadcast", "root 0", "root 1"}},
    {"barrier", meet, sum_4, {"barrier", "all_reduce", "rank 1"}},
};

static const mismatch_case *current_case;

static ls_status mismatch_body(const ls_test_rank *self, void *arg)
{
    float *x = calloc(50000, sizeof(*x)), *y = calloc(50000, sizeof(*y));
    const mismatch_case *q = current_case;
    ls_comm *comm;
    ls_status st;

    LS_CHECK(x != NULL && y != NULL);
    LS_TRY(ls_test_init(self, &comm));
    st = meet(comm, x, y);
    if (st == LS_OK) // else the mismatch came before this rank left the barrier
        st = self->rank == 1 ? q->rank_1(comm, x, y) : q->others(comm, x, y);
    if (st == LS_OK) // a root may be done before the others have looked at what it sent
        st = meet(comm, x, y);
    LS_TRY(scene_note(arg, self->rank, st));
    // The group stays broken, with the same words.
    LS_CHECK(meet(comm, x, y) == st);
    LS_CHECK(strcmp(ls_last_error(), ((scene *)arg)->ranks[self->rank].text) == 0);
    LS_CHECK(ls_comm_status(comm) == st);
    ls_comm_destroy(comm);
    free(x);
    free(y);
    return LS_OK;
}

static void mismatch_names_both_calls_on_both_ranks(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        for (size_t i = 0; i < LS_COUNT_OF(mismatch_cases); i++) {
            const int n = i % 2 == 0 ? 2 : 3;
            scene *s = scene_create();
            const int64_t begin_ms = ls_now_ms();

            print_message("%s: %s, %d ranks\n", scene_transports[t], mismatch_cases[i].what, n);
            current_case = &mismatch_cases[i];
            assert_true(scene_run(s, n, mismatch_body, scene_transports[t]));
            for (int r = 0; r < n; r++) {
                for (int k = 0; k < 3; k++)
                    scene_assert_failure(s, r, LS_EMISMATCH, mismatch_cases[i].says[k]);
            }
            assert_true(ls_now_ms() - begin_ms < 10000);
            scene_destroy(s);
        }
    }
}

/* Rank 0 and rank 1 start the same two operations in different orders. */
static ls_status order_body(const ls_test_rank *self, void *arg)
{
    float x[4] = {0}, y[4], z[4] = {0};
    ls_work *first, *second;
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0) {
        LS_TRY(ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, &first));
        st = ls_broadcast(comm, z, z, 3, LS_F32, 0, &second);
    } else {
        LS_TRY(ls_broadcast(comm, z, z, 3, LS_F32, 0, &first));
        st = ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, &second);
    }
    LS_TRY(scene_note(arg, self->rank, ls_work_wait(first)));
    st = st == LS_OK ? ls_work_wait(second) : st;
    LS_CHECK(st == LS_EMISMATCH || st == LS_OK); // a root may be done with its part
    ls_comm_destroy(comm);
    return LS_OK;
}

static void another_order_of_operations_is_a_mismatch(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 2, order_body, scene_transports[t]));
        for (int r = 0; r < 2; r++) {
            scene_assert_failure(s, r, LS_EMISMATCH, "all_reduce");
            scene_assert_failure(s, r, LS_EMISMATCH, "broadcast");
        }
        scene_destroy(s);
    }
}

/* A receive that expects other than what was sent fails on both sides. */
static ls_status message_body(const ls_test_rank *self, void *arg)
{
    static char data[400000];
    const size_t count = self->rank == 0 ? 100000 : 99999;
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0)
        st = ls_send(comm, data, count, LS_F32, 1, 4, NULL);
    else
        st = ls_recv(comm, data, count, LS_F32, 0, 4, NULL);
    if (st == LS_OK) // a send may be over before the receiver has looked
        st = ls_barrier(comm, NULL);
    LS_TRY(scene_note(arg, self->rank, st));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_message_of_another_size_fails_on_both_sides(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 2, message_body, scene_transports[t]));
        for (int r = 0; r < 2; r++) {
            scene_assert_failure(s, r, LS_EMISMATCH, "100000 float32");
            scene_assert_failure(s, r, LS_EMISMATCH, "99999 float32");
        }
        scene_destroy(s);
    }
}

/* An argument chooses tests by pattern: '*killed*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mismatch_names_both_calls_on_both_ranks),
        cmocka_unit_test(another_order_of_operations_is_a_mismatch),
        cmocka_unit_test(a_message_of_another_size_fails_on_both_sides),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
