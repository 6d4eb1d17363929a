/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_end.c - the rules of the rendezvous machine, one by one: how a job ends, and when
 * it starts again.
 */
#include "launch/rendezvous_head.h"

/* --- ends --- */

/* Its failure comes after the signal, and its end before the signal has reached its node. */
static void a_rank_that_fails_as_the_job_is_stopped_has_not_ended_well(void **state)
{
    const rdzv_options *options[] = {&two_by_id, &two_to_four};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(options); i++) {
        head h;

        run_job(&h, options[i], 2);
        STEP(&h, .kind = RDZV_STOP, .signal = SIGINT);
        failed(&h, 1, 0, 137, "rank 0 was killed by signal 9 (SIGKILL)");
        ended(&h, 1, 1);
        finished(&h, 2, false);
        assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 128 + SIGINT);
        assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 128 + SIGINT);
        close_head(&h);
    }
}

static void all_ranks_must_have_ended_well(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    finished(&h, 1, false);
    ended(&h, 2, 1);
    assert_says(must(&h, RDZV_DO_END, 1)->text, "not all of its ranks have ended with code 0");
    assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 1);
    close_head(&h);
}

static void a_job_whose_nodes_all_finish_ends_with_0(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    assert_int_equal(h.r.wake_at_ms, RDZV_NEVER);
    finished(&h, 2, false);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    gone(&h, 2, "closed"); /* it has done its part */
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    finished(&h, 1, false);
    assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 0);
    assert_null(find(&h, RDZV_DO_END, 2));
    assert_string_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text, "");
    STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
    assert_int_equal(h.r.n_actions, 0);
    close_head(&h);
}

static void the_first_failure_is_the_cause_and_its_code_the_jobs(void **state)
{
    int n_after;
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    failed(&h, 2, 1, 7, "rank 3 (pid 12) exited with code 7");
    assert_int_equal(must(&h, RDZV_DO_ABORT, 1)->cause->rank, 3);
    assert_string_equal(must(&h, RDZV_DO_ABORT, 2)->cause->text,
                        "node 1 (b): rank 3 (pid 12) exited with code 7");
    failed(&h, 1, 0, 1, "rank 0 exited with code 1");
    finished(&h, 1, true);
    finished(&h, 2, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 7);
    assert_says(must(&h, RDZV_DO_END, 1)->text, "rank 3 (pid 12) exited with code 7");
    assert_int_equal(rdzv_root_cause(h.m, &n_after)->rank, 3);
    assert_int_equal(n_after, 1);
    close_head(&h);
}

static void crash_reported_just_after_an_exit_is_its_cause(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    failed(&h, 1, 0, 1, "rank 0 exited with code 1");
    h.now += 99;
    failed(&h, 2, 0, 137, "rank 2 was killed by signal 9 (SIGKILL)");
    h.now += 1;
    finished(&h, 1, true);
    finished(&h, 2, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 137);
    close_head(&h);
    run_job(&h, &two_by_id, 2);
    failed(&h, 1, 0, 1, "rank 0 exited with code 1");
    h.now += 101;
    failed(&h, 2, 0, 137, "rank 2 was killed by signal 9 (SIGKILL)");
    finished(&h, 1, true);
    finished(&h, 2, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 1);
    close_head(&h);
}

static void a_node_that_fell_silent_before_an_exit_is_its_cause(void **state)
{
    head h;
    int64_t silent;

    (void)state;
    run_job(&h, &two_by_id, 2);
    silent = h.now;
    h.now += 4900;
    failed(&h, 1, 0, 1, "rank 0 exited with code 1");
    finished(&h, 1, true);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_DRAIN);
    h.now += 100;
    STEP(&h, .kind = RDZV_GONE, .conn = 2, .last_seen_ms = silent, .text = "silent for 5 s");
    assert_string_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text,
                        "node 1 (b) with ranks 2-3 was lost: silent for 5 s");
    close_head(&h);
}

static void nodes_that_do_not_end_are_killed_then_given_up(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    failed(&h, 1, 0, 3, "rank 0 exited with code 3");
    finished(&h, 1, true);
    pass(&h, h.r.wake_at_ms - h.now);
    must(&h, RDZV_DO_KILL, 2);
    assert_null(find(&h, RDZV_DO_KILL, 1));
    pass(&h, h.r.wake_at_ms - h.now);
    assert_string_equal(must(&h, RDZV_DO_REJECT, 2)->text, "ranks cannot be killed on node 1 (b)");
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 3);
    close_head(&h);
}

static void a_stop_is_orderly_and_the_second_one_kills(void **state)
{
    const rdzv_action *a;
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    STEP(&h, .kind = RDZV_STOP, .signal = SIGINT, .text = "the terminal of a");
    a = must(&h, RDZV_DO_STOP, 2);
    assert_int_equal(a->signal, SIGINT);
    assert_int_equal(a->grace_ms, 10 * S);
    assert_string_equal(a->text, "SIGINT from the terminal of a");
    assert_int_equal(h.r.wake_at_ms, h.now + 12 * S);
    failed(&h, 1, 0, 143, "rank 0 was killed by signal 15"); /* as it may */
    assert_int_equal(h.r.n_actions, 0);
    finished(&h, 1, true);
    STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
    must(&h, RDZV_DO_KILL, 2);
    finished(&h, 2, true);
    a = must(&h, RDZV_DO_FINISH, RDZV_HEAD);
    assert_int_equal(a->exit_code, 130);
    assert_string_equal(a->text, "stopped by SIGINT from the terminal of a");
    close_head(&h);
}

static void a_stop_before_the_start_ends_at_once(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 1, 0, NODE(0));
    STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
    assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 143);
    close_head(&h);
}

static void a_stop_that_comes_too_late_changes_nothing(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
    finished(&h, 1, false);
    finished(&h, 2, false);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 0);
    close_head(&h);
}

static void a_node_lost_during_a_stop_aborts_the_others(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
    gone(&h, 2, NULL);
    assert_says(must(&h, RDZV_DO_ABORT, 1)->cause->text, "was lost: connection closed");
    finished(&h, 1, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 143);
    close_head(&h);
}

static void a_stop_after_a_failure_kills_and_the_failure_stays_the_cause(void **state)
{
    rdzv_options opt = two_by_id;
    head h;

    (void)state;
    for (int i = 0; i < 2; i++) {
        opt.max_restarts = i;
        run_job(&h, &opt, 2);
        failed(&h, 1, 0, 5, "rank 0 exited with code 5");
        STEP(&h, .kind = RDZV_STOP, .signal = SIGTERM);
        must(&h, RDZV_DO_KILL, 2);
        finished(&h, 1, true);
        finished(&h, 2, true);
        /* Where there would have been a restart, it is the stop that ends the job. */
        assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, i == 0 ? 5 : 143);
        close_head(&h);
    }
}

static void words_about_an_earlier_generation_are_ignored(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 2, .max_nodes = 2, .max_restarts = 1};
    uint32_t before;
    head h;

    (void)state;
    run_job(&h, &opt, 2);
    before = generation(&h);
    failed(&h, 1, 0, 5, "rank 0 exited with code 5");
    finished(&h, 1, true);
    finished(&h, 2, true);
    all_ready(&h);
    assert_true(generation(&h) > before);
    STEP(&h, .kind = RDZV_FAILED, .conn = 1, .generation = before, .exit_code = 9);
    STEP(&h, .kind = RDZV_FINISHED, .conn = 1, .generation = before);
    STEP(&h, .kind = RDZV_FINISHED, .conn = 2, .generation = before);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    close_head(&h);
}

static void ranks_that_are_ended_unasked_are_a_failure(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    finished(&h, 2, true);
    assert_says(must(&h, RDZV_DO_ABORT, 1)->cause->text,
                "its agent ended its ranks without a request");
    finished(&h, 1, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 1);
    close_head(&h);
}

/* --- restarts --- */

static void failures_spend_restarts_and_the_last_one_ends_the_job(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 2, .max_nodes = 2, .max_restarts = 2};
    head h;

    (void)state;
    run_job(&h, &opt, 2);
    for (int i = 1; i <= 3; i++) {
        failed(&h, 1, 0, 4, "rank 0 exited with code 4");
        finished(&h, 1, true);
        finished(&h, 2, true);
        if (i == 3)
            break;
        assert_says(must(&h, RDZV_DO_RESTART, RDZV_HEAD)->text,
                    i == 1 ? "restart 1 of 2: node 0 (a)" : "restart 2 of 2");
        assert_int_equal(must(&h, RDZV_DO_WELCOME, 2)->place->n_restarts, i);
        all_ready(&h);
        assert_int_equal(rdzv_root_cause(h.m, NULL)->kind, CAUSE_NONE);
    }
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 4);
    close_head(&h);
}

static void a_restart_of_the_same_nodes_needs_no_last_call(void **state)
{
    rdzv_options opt = two_to_four;
    head h;

    (void)state;
    opt.max_restarts = 1;
    run_job(&h, &opt, 3);
    failed(&h, 2, 0, 4, "rank 2 exited with code 4");
    for (uint64_t i = 1; i <= 3; i++)
        finished(&h, i, true);
    assert_place(&h, 3, 2, 4, 6);
    close_head(&h);
}

static void new_node_restarts_an_elastic_job_in_good_order_and_for_free(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 2);
    arrive(&h, 3, -1, NODE(.n_local = 5));
    assert_int_equal(must(&h, RDZV_DO_STOP, 2)->signal, SIGTERM);
    assert_string_equal(must(&h, RDZV_DO_STOP, 1)->text, "1 more node joined: all ranks restart");
    must(&h, RDZV_DO_WAIT, 3);
    failed(&h, 2, 0, 143, "rank 2 was killed by signal 15");
    finished(&h, 1, true);
    finished(&h, 2, true);
    must(&h, RDZV_DO_RESTART, RDZV_HEAD);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_COLLECT); /* more may come */
    pass(&h, 30 * S);
    assert_place(&h, 3, 2, 4, 9);
    assert_int_equal(must(&h, RDZV_DO_WELCOME, 3)->place->n_restarts, 0);
    close_head(&h);
}

static void new_node_at_the_end_of_the_job_only_waits(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 2);
    finished(&h, 1, false);
    arrive(&h, 3, -1, NODE(0));
    must(&h, RDZV_DO_WAIT, 3);
    assert_null(find(&h, RDZV_DO_STOP, 2));
    finished(&h, 2, false);
    assert_int_equal(must(&h, RDZV_DO_END, 3)->exit_code, 0);
    close_head(&h);
}

static void a_job_that_was_finishing_when_a_node_joined_is_finished(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 2);
    arrive(&h, 3, -1, NODE(0));
    finished(&h, 1, false);
    finished(&h, 2, false);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 0);
    close_head(&h);
}

static void a_lost_node_shrinks_an_elastic_job_for_free(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 4);
    gone(&h, 2, "silent for 5 s");
    must(&h, RDZV_DO_ABORT, 4);
    for (uint64_t i = 1; i <= 4; i++)
        if (i != 2)
            finished(&h, i, true);
    assert_says(must(&h, RDZV_DO_RESTART, RDZV_HEAD)->text, "node 1 (b) with ranks 2-3 was lost");
    pass(&h, 30 * S);
    assert_place(&h, 1, 0, 0, 6);
    assert_place(&h, 3, 2, 4, 6); /* it keeps its number */
    assert_place(&h, 4, 1, 2, 6);
    assert_int_equal(must(&h, RDZV_DO_WELCOME, 1)->place->n_restarts, 0);
    close_head(&h);
}

static void too_small_an_elastic_job_ends_or_uses_a_restart(void **state)
{
    rdzv_options opt = two_to_four;
    head h;

    (void)state;
    run_job(&h, &opt, 2);
    gone(&h, 2, NULL);
    finished(&h, 1, true);
    assert_says(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text, "; 1 node left of at least 2");
    close_head(&h);
    opt.max_restarts = 1;
    run_job(&h, &opt, 2);
    gone(&h, 2, NULL);
    finished(&h, 1, true);
    assert_says(rdzv_roster(h.m),
                "1 of 2 to 4 nodes joined; waiting for at least 1 more (missing: b)");
    pass(&h, 600 * S);
    assert_string_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text,
                        "node 1 (b) with ranks 2-3 was lost: connection closed; then only 1 node "
                        "of at least 2 rejoined (missing: b) within 600 s");
    close_head(&h);
}

static void lost(head *h, uint64_t conn)
{
    STEP(h, .kind = RDZV_GONE, .conn = conn, .last_seen_ms = h->now, .is_tolerated = true);
}

static void a_waiting_node_takes_a_lost_nodes_place_while_the_others_run(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two, 2);
    arrive(&h, 3, -1, NODE(.n_local = 1)); /* too small */
    arrive(&h, 4, -1, NODE(.n_local = 2));
    must(&h, RDZV_DO_WAIT, 4);
    lost(&h, 2);
    assert_place(&h, 4, 1, 2, 4);
    assert_true(must(&h, RDZV_DO_WELCOME, 4)->place->is_late);
    assert_null(find(&h, RDZV_DO_WELCOME, 3));
    assert_null(find(&h, RDZV_DO_ABORT, 1));
    ready(&h, 4);
    assert_string_equal(must(&h, RDZV_DO_START, 4)->place->host, "d");
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    finished(&h, 1, false);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    finished(&h, 4, false);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 0);
    close_head(&h);
}

static void a_node_that_joins_later_takes_a_lost_nodes_place(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 3);
    lost(&h, 3);
    assert_null(find(&h, RDZV_DO_WELCOME, 3));
    arrive(&h, 5, -1, NODE(.n_local = 2));
    assert_place(&h, 5, 2, 4, 6);
    assert_null(find(&h, RDZV_DO_STOP, 1));
    ready(&h, 5);
    arrive(&h, 6, -1, NODE(.n_local = 2)); /* none is lost now: all restart */
    must(&h, RDZV_DO_STOP, 5);
    for (uint64_t i = 1; i <= 5; i++)
        finished(&h, i, true);
    assert_place(&h, 5, 2, 4, 8);
    assert_false(must(&h, RDZV_DO_WELCOME, 5)->place->is_late);
    close_head(&h);
}

static void a_node_that_cannot_begin_leaves_the_place_to_others(void **state)
{
    rdzv_options opt = two;
    head h;

    (void)state;
    opt.ready_ms = 10 * S;
    run_job(&h, &opt, 2);
    lost(&h, 2);
    arrive(&h, 3, -1, NODE(.n_local = 2));
    assert_int_equal(h.r.wake_at_ms, h.now + 10 * S);
    pass(&h, 10 * S);
    assert_string_equal(must(&h, RDZV_DO_REJECT, 3)->text, "not ready within 10 s");
    gone(&h, 3, NULL);
    arrive(&h, 4, -1, NODE(.n_local = 2));
    must(&h, RDZV_DO_WELCOME, 4);
    gone(&h, 4, NULL);
    arrive(&h, 5, -1, NODE(.n_local = 2));
    failed(&h, 5, -1, 1, "no space left on device");
    assert_string_equal(must(&h, RDZV_DO_REJECT, 5)->text,
                        "its ranks could not be started: no space left on device");
    arrive(&h, 6, -1, NODE(.n_local = 2));
    must(&h, RDZV_DO_WELCOME, 6);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    finished(&h, 1, false); /* the place is not needed any more */
    assert_int_equal(must(&h, RDZV_DO_END, 6)->exit_code, 0);
    close_head(&h);
}

static void no_node_takes_a_place_when_ranks_have_finished(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 3);
    lost(&h, 3);
    finished(&h, 2, false);
    arrive(&h, 4, -1, NODE(.n_local = 2));
    must(&h, RDZV_DO_WAIT, 4);
    assert_null(find(&h, RDZV_DO_WELCOME, 4));
    close_head(&h);
}

static void a_node_takes_a_place_when_the_ranks_of_another_one_are_lost(void **state)
{
    head h;

    (void)state;
    run_job(&h, &elastic, 3);
    ended(&h, 2, 0);
    lost(&h, 3);
    arrive(&h, 4, -1, NODE(.n_local = 2));
    assert_place(&h, 4, 2, 4, 6);
    close_head(&h);
}

/* The launcher of a node whose ranks are lost must not end with code 0 for that. */
static void a_job_whose_ranks_are_all_lost_has_not_ended_well(void **state)
{
    head h;

    (void)state;
    run_job(&h, &elastic, 3);
    ended(&h, 1, 0);
    lost(&h, 2);
    ended(&h, 3, 0);
    assert_null(find(&h, RDZV_DO_END, 1));
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    close_head(&h);
}

static void a_rank_that_ends_well_completes_an_elastic_job(void **state)
{
    head h;

    (void)state;
    run_job(&h, &elastic, 3);
    ended(&h, 1, 0);
    ended(&h, 2, 1); // its other one was lost
    lost(&h, 3);
    assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 0);
    close_head(&h);

    run_job(&h, &elastic, 3);
    ended(&h, 1, 0);
    lost(&h, 2);
    STEP(&h, .kind = RDZV_GONE, .conn = 3, .n_well = 1, .is_tolerated = true); // it was to report
    assert_int_equal(must(&h, RDZV_DO_END, 1)->exit_code, 0);
    close_head(&h);
}

static void a_place_with_a_number_needs_a_node_with_that_number(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 3, .max_nodes = 3};
    head h;

    (void)state;
    run_job(&h, &opt, 3);
    lost(&h, 3);
    arrive(&h, 9, 2, NODE(.n_local = 2));
    assert_place(&h, 9, 2, 4, 6);
    close_head(&h);
}

static void a_failure_ends_a_node_that_has_not_begun(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two, 2);
    lost(&h, 2);
    arrive(&h, 3, -1, NODE(.n_local = 2));
    failed(&h, 1, 0, 3, "rank 0 exited with code 3");
    must(&h, RDZV_DO_ABORT, 3);
    ready(&h, 3);
    assert_null(find(&h, RDZV_DO_START, 3));
    finished(&h, 1, true);
    assert_null(find(&h, RDZV_DO_FINISH, RDZV_HEAD));
    finished(&h, 3, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 3);
    close_head(&h);
}

static void a_spare_takes_a_lost_nodes_number_for_free(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two, 2);
    arrive(&h, 3, -1, NODE(.n_local = 1));
    gone(&h, 1, NULL);
    finished(&h, 2, true);
    assert_place(&h, 2, 1, 1, 3);
    assert_place(&h, 3, 0, 0, 3);
    assert_int_equal(must(&h, RDZV_DO_WELCOME, 3)->place->n_restarts, 0);
    close_head(&h);
}

static void a_host_that_comes_back_gets_its_number_again(void **state)
{
    rdzv_options opt = two_to_four;
    head h;

    (void)state;
    run_job(&h, &opt, 3);
    gone(&h, 2, NULL);
    arrive(&h, 14, -1, NODE(.host = "new"));
    arrive(&h, 12, -1, NODE(.host = "b"));
    finished(&h, 1, true);
    finished(&h, 3, true);
    assert_place(&h, 12, 1, 2, 6);
    assert_place(&h, 3, 2, 3, 6);
    assert_place(&h, 14, 3, 5, 6);
    close_head(&h);
}

static void a_static_job_waits_for_the_lost_id(void **state)
{
    const rdzv_options opt = {
        .by_id = true, .min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .join_ms = 30 * S};
    head h;

    (void)state;
    run_job(&h, &opt, 2);
    gone(&h, 2, NULL);
    finished(&h, 1, true);
    assert_says(rdzv_roster(h.m), "1/2 nodes joined; waiting for node 1");
    arrive(&h, 9, 1, NODE(.n_local = 2));
    assert_place(&h, 9, 1, 2, 4);
    all_ready(&h);
    gone(&h, 9, NULL);
    finished(&h, 1, true);
    assert_says(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text, "node 1 (c) with ranks 2-3 was lost");
    close_head(&h);
}

static void a_node_lost_while_a_new_node_joins_aborts_the_rest(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 3);
    arrive(&h, 4, -1, NODE(0));
    must(&h, RDZV_DO_STOP, 1);
    gone(&h, 2, NULL);
    must(&h, RDZV_DO_ABORT, 1);
    must(&h, RDZV_DO_ABORT, 3);
    finished(&h, 1, true);
    finished(&h, 3, true);
    must(&h, RDZV_DO_RESTART, RDZV_HEAD);
    pass(&h, 30 * S);
    assert_place(&h, 4, 1, 2, 5);
    close_head(&h);
}

/* --- a node leaves --- */

static void a_node_that_leaves_ends_all_in_good_order_and_the_others_restart(void **state)
{
    const rdzv_action *a;
    head h;

    (void)state;
    run_job(&h, &two_to_four, 3);
    STEP(&h, .kind = RDZV_LEAVE, .conn = 2, .signal = SIGTERM, .text = "node 1 (b)");
    for (uint64_t conn = 1; conn <= 3; conn++) {
        a = must(&h, RDZV_DO_STOP, conn);
        assert_int_equal(a->signal, SIGTERM);
        assert_int_equal(a->grace_ms, 10 * S);
        assert_string_equal(a->text, "SIGTERM: node 1 (b) leaves, the others restart without it");
    }
    STEP(&h, .kind = RDZV_STOP, .conn = 2, .signal = SIGTERM); // its agent kills its ranks
    assert_int_equal(h.r.n_actions, 0);
    for (uint64_t conn = 1; conn <= 3; conn++)
        finished(&h, conn, true);
    a = must(&h, RDZV_DO_END, 2);
    assert_int_equal(a->exit_code, 128 + SIGTERM);
    assert_says(a->text, "this node has left the job");
    must(&h, RDZV_DO_RESTART, RDZV_HEAD);
    STEP(&h, .kind = RDZV_STOP, .conn = 2, .signal = SIGTERM); // sent before it was dismissed
    assert_int_equal(h.r.n_actions, 0);
    STEP(&h, .kind = RDZV_GONE, .conn = 2, .last_seen_ms = h.now, .text = "connection closed");
    pass(&h, 30 * S);
    assert_place(&h, 1, 0, 0, 4);
    assert_place(&h, 3, 1, 2, 4);
    assert_int_equal(must(&h, RDZV_DO_WELCOME, 1)->place->n_restarts, 0);
    close_head(&h);
}

/* Too few would stay, nodes have fixed numbers, or it is the head's. */
static void a_node_that_the_job_needs_stops_the_job(void **state)
{
    static const struct {
        const rdzv_options *opt;
        int n;
        uint64_t conn;
        int signal;
    } cases[] = {{&two_to_four, 2, 2, SIGTERM},
                 {&two_by_id, 2, 2, SIGTERM},
                 {&two_to_four, 3, 1, SIGTERM},
                 {&two_to_four, 3, 2, SIGINT}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        head h;

        run_job(&h, cases[i].opt, cases[i].n);
        STEP(&h, .kind = RDZV_LEAVE, .conn = cases[i].conn, .signal = cases[i].signal);
        assert_int_equal(must(&h, RDZV_DO_STOP, 1)->signal, cases[i].signal);
        for (int k = 1; k <= cases[i].n; k++)
            finished(&h, (uint64_t)k, true);
        assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 128 + cases[i].signal);
        close_head(&h);
    }
}

static void a_node_may_leave_before_the_start(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_to_four);
    for (int i = 1; i <= 3; i++)
        arrive(&h, (uint64_t)i, -1, NODE(.is_head = i == 1, .n_local = 2));
    STEP(&h, .kind = RDZV_LEAVE, .conn = 2, .signal = SIGTERM);
    assert_int_equal(must(&h, RDZV_DO_END, 2)->exit_code, 128 + SIGTERM);
    arrive(&h, 4, -1, NODE(.n_local = 2));
    pass(&h, 30 * S);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_AGREE);
    STEP(&h, .kind = RDZV_LEAVE, .conn = 3, .signal = SIGTERM);
    assert_int_equal(must(&h, RDZV_DO_END, 3)->exit_code, 128 + SIGTERM);
    pass(&h, 30 * S);
    pass(&h, 30 * S);
    assert_place(&h, 1, 0, 0, 4);
    assert_place(&h, 4, 1, 2, 4);
    close_head(&h);
}

/* Two at once; a third one cannot be spared any more. */
static void nodes_that_leave_together_are_counted(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_to_four, 4);
    STEP(&h, .kind = RDZV_LEAVE, .conn = 2, .signal = SIGTERM);
    STEP(&h, .kind = RDZV_LEAVE, .conn = 3, .signal = SIGTERM);
    STEP(&h, .kind = RDZV_LEAVE, .conn = 4, .signal = SIGTERM);
    for (uint64_t conn = 1; conn <= 4; conn++)
        finished(&h, conn, true);
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 128 + SIGTERM);
    close_head(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_fails_as_the_job_is_stopped_has_not_ended_well),
        cmocka_unit_test(all_ranks_must_have_ended_well),
        cmocka_unit_test(a_job_whose_nodes_all_finish_ends_with_0),
        cmocka_unit_test(the_first_failure_is_the_cause_and_its_code_the_jobs),
        cmocka_unit_test(crash_reported_just_after_an_exit_is_its_cause),
        cmocka_unit_test(a_node_that_fell_silent_before_an_exit_is_its_cause),
        cmocka_unit_test(nodes_that_do_not_end_are_killed_then_given_up),
        cmocka_unit_test(a_stop_is_orderly_and_the_second_one_kills),
        cmocka_unit_test(a_stop_before_the_start_ends_at_once),
        cmocka_unit_test(a_stop_that_comes_too_late_changes_nothing),
        cmocka_unit_test(a_node_lost_during_a_stop_aborts_the_others),
        cmocka_unit_test(a_stop_after_a_failure_kills_and_the_failure_stays_the_cause),
        cmocka_unit_test(words_about_an_earlier_generation_are_ignored),
        cmocka_unit_test(ranks_that_are_ended_unasked_are_a_failure),
        cmocka_unit_test(failures_spend_restarts_and_the_last_one_ends_the_job),
        cmocka_unit_test(a_restart_of_the_same_nodes_needs_no_last_call),
        cmocka_unit_test(new_node_restarts_an_elastic_job_in_good_order_and_for_free),
        cmocka_unit_test(new_node_at_the_end_of_the_job_only_waits),
        cmocka_unit_test(a_job_that_was_finishing_when_a_node_joined_is_finished),
        cmocka_unit_test(a_lost_node_shrinks_an_elastic_job_for_free),
        cmocka_unit_test(too_small_an_elastic_job_ends_or_uses_a_restart),
        cmocka_unit_test(a_waiting_node_takes_a_lost_nodes_place_while_the_others_run),
        cmocka_unit_test(a_node_that_joins_later_takes_a_lost_nodes_place),
        cmocka_unit_test(a_node_that_cannot_begin_leaves_the_place_to_others),
        cmocka_unit_test(no_node_takes_a_place_when_ranks_have_finished),
        cmocka_unit_test(a_node_takes_a_place_when_the_ranks_of_another_one_are_lost),
        cmocka_unit_test(a_job_whose_ranks_are_all_lost_has_not_ended_well),
        cmocka_unit_test(a_rank_that_ends_well_completes_an_elastic_job),
        cmocka_unit_test(a_place_with_a_number_needs_a_node_with_that_number),
        cmocka_unit_test(a_failure_ends_a_node_that_has_not_begun),
        cmocka_unit_test(a_spare_takes_a_lost_nodes_number_for_free),
        cmocka_unit_test(a_host_that_comes_back_gets_its_number_again),
        cmocka_unit_test(a_static_job_waits_for_the_lost_id),
        cmocka_unit_test(a_node_lost_while_a_new_node_joins_aborts_the_rest),
        cmocka_unit_test(a_node_that_leaves_ends_all_in_good_order_and_the_others_restart),
        cmocka_unit_test(a_node_that_the_job_needs_stops_the_job),
        cmocka_unit_test(a_node_may_leave_before_the_start),
        cmocka_unit_test(nodes_that_leave_together_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
