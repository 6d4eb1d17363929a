/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and barriers of MPI programs on several nodes, and ranks that exit early. */
#include "launch/head_scene.h"

#include "base/log.h"

#include <stdlib.h>

static void say_barrier(fake *a, uint32_t generation, uint32_t number)
{
    wire_writer w = {0};

    node_write_barrier(&w, &(node_barrier){generation, number});
    send_body(a, NODE_MPI_BARRIER, &w);
}

static void say_mpi(fake *a, uint32_t generation, uint32_t barrier, bool has_members)
{
    wire_writer w = {0};

    node_write_mpi(&w, &(node_mpi){generation, barrier, has_members});
    send_body(a, NODE_MPI, &w);
}

static void say_keys(fake *a, uint32_t generation, const void *bytes, size_t n)
{
    wire_writer w = {0};

    wire_write_u32(&w, generation);
    wire_write_raw(&w, bytes, n);
    send_body(a, NODE_MPI_KEYS, &w);
}

static void say_left_in(fake *a, int local_rank, pmi_state state)
{
    wire_writer w = {0};

    node_write_exit(&w, &(node_exit){1, local_rank, 4711, state});
    send_body(a, NODE_RANK_EXITED, &w);
}

static void a_barrier_is_passed_when_all_nodes_are_in_it(void **state)
{
    scene *s = begin_running(3, 2, 0);

    LS_UNUSED(state);
    for (uint32_t number = 1; number <= 3; number++) {
        say_barrier(&s->fakes[2], 1, number);
        say_barrier(&s->fakes[0], 1, number);
        say_barrier(&s->fakes[0], 1, number);     /* once more counts once */
        say_barrier(&s->fakes[1], 1, number + 1); /* no node can be there */
        say_barrier(&s->fakes[1], 9, number);     /* in another life */
        turn(s);
        for (int i = 0; i < 3; i++)
            assert_int_equal(s->fakes[i].n[NODE_MPI_BARRIER], (int)number - 1);
        say_barrier(&s->fakes[1], 1, number);
        for (int i = 0; i < 3; i++) {
            until(s, s->fakes[i].n[NODE_MPI_BARRIER] == (int)number);
            assert_int_equal(s->fakes[i].barrier.number, number);
            assert_int_equal(s->fakes[i].barrier.generation, 1);
        }
    }
    finish(s);
}

static void keys_reach_all_others_before_the_barrier(void **state)
{
    scene *s = begin_running(3, 2, 0);

    LS_UNUSED(state);
    say_keys(&s->fakes[1], 9, "old", 3);
    say_keys(&s->fakes[1], 1, "keys", 4);
    for (int i = 0; i < 3; i++)
        say_barrier(&s->fakes[i], 1, 1);
    for (int i = 0; i < 3; i++) {
        until(s, s->fakes[i].n[NODE_MPI_BARRIER] == 1);
        assert_int_equal(s->fakes[i].n_stream, i == 1 ? 0 : 4);
        assert_memory_equal(s->fakes[i].stream, "keys", i == 1 ? 0 : 4);
    }
    finish(s);
}

static void too_many_keys_end_the_job(void **state)
{
    static uint8_t much[NODE_BODY_MAX - 4];
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    for (int i = 0; i < 30 && s->fakes[0].n[NODE_ABORT] == 0; i++) {
        say_keys(&s->fakes[1], 1, much, sizeof(much));
        turn(s);
    }
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    say_finished(&s->fakes[1], 1, true);
    expect_over(s, 2, 1, "the MPI programs have put more than 5 MiB of PMI keys");
    finish(s);
}

static void all_nodes_receive_the_layout(void **state)
{
    scene *s = begin(3, 0);

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        come_in(s, i, i == 2 ? 5 : 1);
    for (int i = 0; i < 3; i++) {
        until(s, s->fakes[i].welcome.place.generation == 1);
        assert_string_equal(s->fakes[i].welcome.mpi_layout, "(vector,(0,2,1),(2,1,5))");
    }
    finish(s);
}

/* --- ranks that end though others need them --- */

static void agent_of_a_rank_that_exits_early_is_notified(void **state)
{
    scene *s = begin_running(2, 2, 0);

    LS_UNUSED(state);
    say_left_in(&s->fakes[1], 1, PMI_SILENT);
    say_mpi(&s->fakes[0], 1, 0, true);
    turn(s);
    assert_int_equal(s->fakes[1].n[NODE_EXITED_EARLY],
                     0); /* it has never been in MPI; no rank waits yet */
    say_mpi(&s->fakes[0], 1, 1, true);
    until(s, s->fakes[1].n[NODE_EXITED_EARLY] > 0);
    assert_int_equal(s->fakes[1].early_exit.generation, 1);
    assert_int_equal(s->fakes[1].early_exit.local_rank, 1);
    assert_int_equal(s->fakes[1].early_exit.exit_code, 1);
    assert_non_null(strstr(s->fakes[1].early_exit.text, "exited with code 0 without MPI_Init"));
    assert_int_equal(s->fakes[0].n[NODE_EXITED_EARLY], 0);
    finish(s);
}

static void a_rank_that_leaves_without_finalize_is_not_waited_for(void **state)
{
    scene *s = begin_running(2, 2, 0);

    LS_UNUSED(state);
    say_left_in(&s->fakes[1], 0, PMI_JOINED);
    turn(s);
    assert_int_equal(s->fakes[1].n[NODE_EXITED_EARLY], 0);
    say_mpi(&s->fakes[0], 9, 0, true);
    turn(s);
    assert_int_equal(s->fakes[1].n[NODE_EXITED_EARLY], 0);
    say_mpi(&s->fakes[0], 1, 0, true);
    until(s, s->fakes[1].n[NODE_EXITED_EARLY] > 0);
    assert_non_null(strstr(s->fakes[1].early_exit.text, "without MPI_Finalize"));
    finish(s);
}

/* What a node says of a barrier that others have passed already is old. */
static void node_that_has_passed_a_barrier_does_not_wait_in_it(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    say_mpi(&s->fakes[0], 1, 1, true);
    say_barrier(&s->fakes[0], 1, 1);
    say_barrier(&s->fakes[1], 1, 1);
    until(s, s->fakes[1].n[NODE_MPI_BARRIER] == 1);
    say_left_in(&s->fakes[1], 0, PMI_LEFT);
    turn(s);
    assert_int_equal(s->fakes[1].n[NODE_EXITED_EARLY], 0);
    say_mpi(&s->fakes[0], 1, 2, true);
    until(s, s->fakes[1].n[NODE_EXITED_EARLY] > 0);
    assert_non_null(strstr(s->fakes[1].early_exit.text, "while other ranks wait for it in MPI"));
    finish(s);
}

static void head_reports_the_early_exit_of_a_node_without_ranks(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    say_left_in(&s->fakes[1], 0, PMI_SILENT);
    say_finished(&s->fakes[1], 1, false);
    turn(s);
    say_mpi(&s->fakes[0], 1, 1, true);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    assert_int_equal(s->fakes[1].n[NODE_EXITED_EARLY], 0);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 2, 1,
                "node 1 (host1): rank 1 (pid 4711): exited with code 0 without MPI_Init, where "
                "other ranks wait for it");
    finish(s);
}

/* It was notified after its ranks had ended. */
static void early_exit_on_a_node_that_ends_meanwhile_is_the_cause(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    say_mpi(&s->fakes[0], 1, 1, true);
    say_left_in(&s->fakes[1], 0, PMI_SILENT);
    until(s, s->fakes[1].n[NODE_EXITED_EARLY] > 0);
    say_finished(&s->fakes[1], 1, false);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 2, 1, "rank 1 (pid 4711): exited with code 0 without MPI_Init");
    finish(s);
}

static void a_restart_begins_with_the_first_barrier(void **state)
{
    scene *s = begin_running(2, 1, 1);

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        say_barrier(&s->fakes[i], 1, 1);
    until(s, s->fakes[1].n[NODE_MPI_BARRIER] == 1);
    say_barrier(&s->fakes[1], 1, 2);
    say_mpi(&s->fakes[1], 1, 2, true);
    say_failure(&s->fakes[0], 1, 0, 3);
    for (int i = 0; i < 2; i++) {
        until(s, s->fakes[i].n[NODE_ABORT] == 1);
        say_finished(&s->fakes[i], 1, true);
    }
    start(s, 2, 1, 2);
    say_barrier(&s->fakes[0], 2, 2);
    say_left(&s->fakes[0], 2, 0);
    turn(s);
    assert_int_equal(s->fakes[0].n[NODE_MPI_BARRIER], 1);
    assert_int_equal(s->fakes[0].n[NODE_EXITED_EARLY], 0);
    for (int i = 0; i < 2; i++)
        say_barrier(&s->fakes[i], 2, 1);
    until(s, s->fakes[0].n[NODE_MPI_BARRIER] == 2);
    assert_int_equal(s->fakes[0].barrier.generation, 2);
    finish(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_barrier_is_passed_when_all_nodes_are_in_it),
        cmocka_unit_test(keys_reach_all_others_before_the_barrier),
        cmocka_unit_test(too_many_keys_end_the_job),
        cmocka_unit_test(all_nodes_receive_the_layout),
        cmocka_unit_test(agent_of_a_rank_that_exits_early_is_notified),
        cmocka_unit_test(a_rank_that_leaves_without_finalize_is_not_waited_for),
        cmocka_unit_test(node_that_has_passed_a_barrier_does_not_wait_in_it),
        cmocka_unit_test(head_reports_the_early_exit_of_a_node_without_ranks),
        cmocka_unit_test(early_exit_on_a_node_that_ends_meanwhile_is_the_cause),
        cmocka_unit_test(a_restart_begins_with_the_first_barrier),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
