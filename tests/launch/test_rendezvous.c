/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous.c - the rules of the rendezvous machine, one by one: which nodes join, as which
 * node, and when it starts. Ends and restarts are in test_rendezvous_end.c, schedules in
 * test_rendezvous_sim.c.
 */
#include "launch/rendezvous_head.h"

/* --- coming together --- */

static void ids_decide_the_order_and_unequal_counts_add_up(void **state)
{
    static const int per_node[] = {8, 2};
    const rdzv_options opt = {.by_id = true, .min_nodes = 2, .max_nodes = 2, .per_node = per_node};
    head h;

    (void)state;
    open_head(&h, &opt);
    assert_string_equal(rdzv_roster(h.m), "0/2 nodes joined; waiting for nodes 0-1");
    arrive(&h, 7, 1, NODE(.n_local = 2, .per_node = per_node, .n_per_node = 2));
    assert_string_equal(must(&h, RDZV_DO_ROSTER, RDZV_HEAD)->text,
                        "1/2 nodes joined; waiting for node 0");
    arrive(&h, 9, 0, NODE(.n_local = 8, .is_head = true));
    assert_place(&h, 9, 0, 0, 10);
    assert_place(&h, 7, 1, 8, 10);
    assert_string_equal(must(&h, RDZV_DO_ROSTER, RDZV_HEAD)->text, "2 nodes, 10 ranks");
    assert_null(find(&h, RDZV_DO_START, 7));
    ready(&h, 7);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_AGREE);
    ready(&h, 9);
    must(&h, RDZV_DO_START, 7);
    must(&h, RDZV_DO_START, 9);
    close_head(&h);
}

static void without_ids_the_head_is_first_then_claims_then_arrival(void **state)
{
    const rdzv_options opt = {.min_nodes = 5, .max_nodes = 5};
    head h;

    (void)state;
    open_head(&h, &opt);
    arrive(&h, 5, -1, NODE(.n_local = 1));
    arrive(&h, 4, -1, NODE(.n_local = 1));
    arrive(&h, 3, 7, NODE(.n_local = 1));
    arrive(&h, 2, 1, NODE(.n_local = 3));
    arrive(&h, 1, -1, NODE(.n_local = 2, .is_head = true));
    assert_place(&h, 1, 0, 0, 8);
    assert_place(&h, 2, 1, 2, 8);
    assert_place(&h, 3, 2, 5, 8);
    assert_place(&h, 5, 3, 6, 8);
    assert_place(&h, 4, 4, 7, 8);
    close_head(&h);
}

static void between_min_and_max_the_last_call_is_waited_for(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_to_four);
    assert_int_equal(h.now + 600 * S, 650 * S);
    arrive(&h, 1, -1, NODE(.is_head = true));
    assert_says(rdzv_roster(h.m), "1 of 2 to 4 nodes joined; waiting for at least 1 more");
    assert_int_equal(h.r.wake_at_ms, 650 * S);
    h.now += 5 * S;
    arrive(&h, 2, -1, NODE(0));
    assert_says(rdzv_roster(h.m),
                "2 of 2 to 4 nodes joined; starting in 30 s unless more nodes join");
    assert_int_equal(h.r.wake_at_ms, 85 * S);
    pass(&h, 29 * S);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_COLLECT);
    pass(&h, 1 * S);
    assert_place(&h, 2, 1, 1, 2);
    close_head(&h);
}

static void the_last_call_begins_anew_when_too_few_are_left(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_to_four);
    arrive(&h, 1, -1, NODE(0));
    arrive(&h, 2, -1, NODE(0));
    pass(&h, 20 * S);
    gone(&h, 2, NULL);
    assert_int_equal(h.r.wake_at_ms, 650 * S);
    arrive(&h, 3, -1, NODE(0));
    assert_int_equal(h.r.wake_at_ms, 100 * S);
    close_head(&h);
}

static void max_nodes_start_at_once_and_a_negative_last_call_does_not_wait(void **state)
{
    const rdzv_options eager = {.min_nodes = 2, .max_nodes = 4, .last_call_ms = -1};
    head h;

    (void)state;
    open_head(&h, &two_to_four);
    for (uint64_t i = 1; i <= 4; i++)
        arrive(&h, i, -1, NODE(0));
    assert_place(&h, 4, 3, 3, 4);
    close_head(&h);
    open_head(&h, &eager);
    arrive(&h, 1, -1, NODE(0));
    arrive(&h, 2, -1, NODE(0));
    assert_place(&h, 2, 1, 1, 2);
    close_head(&h);
}

static void join_timeout_names_the_missing_nodes(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 40, .max_nodes = 40, .join_ms = 60 * S};
    const rdzv_action *a;
    head h;

    (void)state;
    open_head(&h, &opt);
    for (int i = 0; i < 40; i += i == 1 ? 6 : i == 7 ? 30 : 1) // 0 1 7 37 38 39
        arrive(&h, (uint64_t)i + 1, i, NODE(0));
    pass(&h, 60 * S);
    a = must(&h, RDZV_DO_FINISH, RDZV_HEAD);
    assert_int_equal(a->exit_code, 1);
    assert_string_equal(a->text, "nodes 2-6, 8-36 did not join within 60 s");
    assert_string_equal(must(&h, RDZV_DO_END, 38)->text, a->text);
    close_head(&h);
    open_head(&h, &two_to_four);
    arrive(&h, 1, -1, NODE(0));
    pass(&h, 600 * S);
    assert_string_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text,
                        "only 1 node of at least 2 joined within 600 s");
    assert_int_equal(h.r.wake_at_ms, RDZV_NEVER);
    close_head(&h);
}

static void many_missing_nodes_are_counted(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 100, .max_nodes = 100};
    head h;

    (void)state;
    open_head(&h, &opt);
    for (int i = 0; i < 100; i += 2)
        arrive(&h, (uint64_t)i + 1, i, NODE(0));
    assert_string_equal(
        rdzv_roster(h.m),
        "50/100 nodes joined; waiting for nodes 1, 3, 5, 7, 9, 11, 13, 15 and 42 more");
    close_head(&h);
}

static void at_the_join_timeout_min_nodes_are_enough(void **state)
{
    const rdzv_options opt = {
        .min_nodes = 1, .max_nodes = 2, .join_ms = 10 * S, .last_call_ms = 60 * S};
    head h;

    (void)state;
    open_head(&h, &opt);
    arrive(&h, 1, -1, NODE(0));
    pass(&h, 10 * S);
    assert_place(&h, 1, 0, 0, 1);
    close_head(&h);
}

static void a_node_lost_before_the_start_is_waited_for(void **state)
{
    head h;
    uint32_t before;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 1, 0, NODE(0));
    arrive(&h, 2, 1, NODE(0));
    before = generation(&h);
    ready(&h, 1);
    gone(&h, 2, "silent for 5 s");
    assert_string_equal(must(&h, RDZV_DO_NOTE, RDZV_HEAD)->text,
                        "node 1 (b) was lost before the start: silent for 5 s");
    assert_null(find(&h, RDZV_DO_ABORT, 1));
    assert_says(rdzv_roster(h.m), "1/2 nodes joined; waiting for node 1");
    arrive(&h, 3, 1, NODE(0));
    assert_true(must(&h, RDZV_DO_WELCOME, 1)->place->generation > before);
    STEP(&h, .kind = RDZV_READY, .conn = 1, .generation = before); /* too late a word */
    ready(&h, 3);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_AGREE);
    ready(&h, 1);
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    close_head(&h);
}

static void nodes_lost_before_the_start_together_cost_one_roster(void **state)
{
    const rdzv_options opt = {.min_nodes = 1, .max_nodes = 4, .last_call_ms = -1};
    uint32_t before;
    head h;

    (void)state;
    open_head(&h, &opt);
    for (uint64_t i = 1; i <= 4; i++)
        arrive(&h, i, -1, NODE(0));
    ready(&h, 1); // a roster of one, and now of all
    before = generation(&h);
    gone(&h, 2, NULL);
    h.now += 100;
    gone(&h, 3, NULL);
    assert_int_equal(h.r.wake_at_ms, h.now + 100);
    ready(&h, 1);
    pass(&h, 100);
    assert_place(&h, 4, 1, 1, 2);
    assert_int_equal(generation(&h), before + 1);
    all_ready(&h);
    close_head(&h);
}

static void a_node_that_does_not_get_ready_is_given_up(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 1, 0, NODE(0));
    arrive(&h, 2, 1, NODE(0));
    ready(&h, 1);
    pass(&h, 60 * S);
    assert_says(must(&h, RDZV_DO_REJECT, 2)->text, "not ready within 60 s");
    must(&h, RDZV_DO_ABORT, 1);
    finished(&h, 1, true);
    assert_string_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->text,
                        "node 1 (b) with rank 1 was lost: not ready within 60 s");
    close_head(&h);
}

static void new_nodes_before_the_start_cost_nothing(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_to_four);
    arrive(&h, 1, -1, NODE(.is_head = true));
    arrive(&h, 2, -1, NODE(0));
    pass(&h, 30 * S);
    ready(&h, 1);
    arrive(&h, 3, -1, NODE(0));
    arrive(&h, 4, -1, NODE(0));
    assert_null(find(&h, RDZV_DO_WELCOME, 3));
    ready(&h, 2);
    assert_place(&h, 3, 2, 2, 4);
    assert_place(&h, 1, 0, 0, 4);
    assert_null(find(&h, RDZV_DO_START, 1));
    assert_null(find(&h, RDZV_DO_STOP, 1));
    close_head(&h);
}

static void a_node_that_cannot_start_fails_the_job(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 1, 0, NODE(0));
    arrive(&h, 2, 1, NODE(0));
    failed(&h, 2, -1, 0, "no network reaches node 0");
    must(&h, RDZV_DO_ABORT, 1);
    must(&h, RDZV_DO_ABORT, 2);
    finished(&h, 1, false);
    finished(&h, 2, false);
    assert_string_equal(must(&h, RDZV_DO_END, 1)->text, "node 1 (b): no network reaches node 0");
    assert_int_equal(must(&h, RDZV_DO_FINISH, RDZV_HEAD)->exit_code, 1);
    close_head(&h);
}

/* --- admission --- */

static void assert_rejected(head *h, const rdzv_options *opt, int id, rdzv_hello hello,
                            const char *text)
{
    open_head(h, opt);
    arrive(h, 1, 0, NODE(.is_head = true, .n_local = opt->per_node == NULL ? 1 : 8));
    arrive(h, 2, id, hello);
    assert_string_equal(must(h, RDZV_DO_REJECT, 2)->text, text);
    assert_string_equal(must(h, RDZV_DO_NOTE, RDZV_HEAD)->text, text);
    /* With two lists neither machine waits. */
    assert_int_equal(rdzv_phase_now(h->m),
                     opt->per_node != NULL && hello.n_per_node > 0 ? RDZV_END : RDZV_COLLECT);
    close_head(h);
}

static void rejected_node_receives_the_values_of_both_sides(void **state)
{
    static const int ours[] = {8, 2};
    static const int theirs[] = {8, 4};
    rdzv_options with_list = two_by_id;
    head h;

    (void)state;
    with_list.per_node = ours;
    assert_rejected(&h, &two_by_id, 1, NODE(.min_nodes = 3, .max_nodes = 3),
                    "b was started with --nnodes 3 (-n), the head a with --nnodes 2; fix: pass the "
                    "same on all nodes");
    assert_rejected(&h, &two_to_four, -1, NODE(.min_nodes = 2, .max_nodes = 3),
                    "b was started with --nnodes 2:3 (-n), the head a with --nnodes 2:4; fix: pass "
                    "the same on all nodes");
    assert_rejected(
        &h, &with_list, 1, NODE(.n_local = 4, .per_node = theirs, .n_per_node = 2),
        "b was started with -g 8,4, the head a with -g 8,2; fix: pass the same on all nodes");
    assert_rejected(
        &h, &two_by_id, 1, NODE(.n_local = 4, .per_node = theirs, .n_per_node = 2),
        "b was started with -g 8,4, the head a with no -g; fix: pass the same on all nodes");
    assert_rejected(&h, &with_list, 1, NODE(.n_local = 4),
                    "b starts 4 ranks, but -g on the head a has 2 for node 1; fix: pass the "
                    "same -g on all nodes");
    assert_rejected(
        &h, &two_by_id, -1, NODE(0),
        "b has no node rank, but this job needs one; fix: pass --node-rank (-i) 0 to 1");
    assert_rejected(&h, &two_by_id, 2, NODE(0),
                    "too many nodes: b has node rank 2, the head a expects 0 to 1; fix: pass the "
                    "same --nnodes on all nodes");
    assert_rejected(&h, &two_by_id, 1, NODE(.version = "2.0\x1b[2J"),
                    "version mismatch: b runs Lockstep 2.0?[2J, the head a runs 1.0; fix: install "
                    "the same version on both");
    assert_rejected(&h, &two_by_id, 1, NODE(.run_id = 5, .run_name = "two\x1b"),
                    "b belongs to another job than the head a: --rdzv-id is two? there and unknown "
                    "at the head; fix: pass the same --rdzv-id on all nodes");
    assert_rejected(&h, &two_by_id, 1, NODE(.n_local = RDZV_LOCAL_MAX + 1),
                    "b asks for 4097 ranks; a node has 1 to 4096");
    assert_rejected(&h, &two_by_id, 1, NODE(.n_local = -3),
                    "b asks for -3 ranks; a node has 1 to 4096");
}

static void duplicate_node_rank_is_reported_to_both_nodes(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 2, 1, NODE(0));
    arrive(&h, 3, 1, NODE(0));
    assert_says(must(&h, RDZV_DO_REJECT, 3)->text,
                "duplicate node rank 1: given to b, which has joined, and to c");
    assert_says(must(&h, RDZV_DO_NOTE, 2)->text, "duplicate node rank 1");
    assert_null(find(&h, RDZV_DO_REJECT, 2));
    gone(&h, 3, NULL);
    arrive(&h, 1, 0, NODE(0));
    assert_place(&h, 2, 1, 1, 2);
    close_head(&h);
}

static void without_ids_a_duplicate_id_is_only_a_request(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two);
    arrive(&h, 3, 0, NODE(0));
    arrive(&h, 2, 0, NODE(0));
    assert_place(&h, 3, 0, 0, 2);
    assert_place(&h, 2, 1, 1, 2);
    close_head(&h);
}

static void a_node_that_connects_again_replaces_itself(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 2, 1, NODE(.uid = 77));
    arrive(&h, 3, 1, NODE(.uid = 77));
    assert_says(must(&h, RDZV_DO_REJECT, 2)->text, "connected a second time");
    assert_null(find(&h, RDZV_DO_REJECT, 3));
    gone(&h, 2, NULL); /* unknown by now */
    arrive(&h, 1, 0, NODE(0));
    assert_place(&h, 3, 1, 1, 2);
    close_head(&h);
}

static void a_running_node_that_connects_again_has_lost_its_ranks(void **state)
{
    const rdzv_options opt = {.by_id = true, .min_nodes = 2, .max_nodes = 2, .max_restarts = 1};
    head h;

    (void)state;
    open_head(&h, &opt);
    arrive(&h, 1, 0, NODE(0));
    arrive(&h, 2, 1, NODE(.uid = 77));
    all_ready(&h);
    arrive(&h, 3, 1, NODE(.uid = 77));
    assert_says(must(&h, RDZV_DO_ABORT, 1)->cause->text, "node 1 (b) with rank 1 was lost");
    must(&h, RDZV_DO_WAIT, 3);
    finished(&h, 1, true);
    assert_string_equal(
        must(&h, RDZV_DO_RESTART, RDZV_HEAD)->text,
        "restart 1 of 1: node 1 (b) with rank 1 was lost: it connected a second time");
    assert_place(&h, 3, 1, 1, 2);
    close_head(&h);
}

static void a_second_hello_on_a_connection_ends_it(void **state)
{
    head h;

    (void)state;
    open_head(&h, &two_by_id);
    arrive(&h, 1, 0, NODE(0));
    arrive(&h, 1, 1, NODE(0));
    must(&h, RDZV_DO_REJECT, 1);
    assert_string_equal(rdzv_roster(h.m), "0/2 nodes joined; waiting for nodes 0-1");
    close_head(&h);
}

static void spares_wait_and_the_next_node_is_rejected(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two, 2);
    arrive(&h, 3, -1, NODE(0));
    assert_says(must(&h, RDZV_DO_WAIT, 3)->text, "the job has 2 of at most 2 nodes");
    arrive(&h, 4, -1, NODE(0));
    must(&h, RDZV_DO_WAIT, 4);
    assert_null(find(&h, RDZV_DO_WAIT, 3));
    arrive(&h, 5, -1, NODE(0));
    assert_string_equal(must(&h, RDZV_DO_REJECT, 5)->text,
                        "too many nodes: the head a has 4 and takes at most 2, with 2 spares");
    assert_int_equal(rdzv_phase_now(h.m), RDZV_RUN);
    close_head(&h);
}

static void node_that_arrives_after_the_end_is_rejected(void **state)
{
    head h;

    (void)state;
    run_job(&h, &two_by_id, 2);
    finished(&h, 1, false);
    finished(&h, 2, false);
    arrive(&h, 3, 1, NODE(0));
    assert_says(must(&h, RDZV_DO_REJECT, 3)->text, "the job of the head a is over");
    close_head(&h);
}

/* --- making one --- */

static void bad_options_are_refused(void **state)
{
    static const int bad_list[] = {1, 0};
    static const struct {
        rdzv_options opt;
        const char *error;
    } cases[] = {
        {{.min_nodes = 0, .max_nodes = 0}, "--nnodes: 0 nodes"},
        {{.min_nodes = 1, .max_nodes = RDZV_NODES_MAX + 1}, "a job has 1 to 4096"},
        {{.min_nodes = 3, .max_nodes = 2}, "--nnodes 3:2"},
        {{.min_nodes = 1, .max_nodes = 2, .by_id = true}, "needs --rdzv-backend c10d"},
        {{.min_nodes = 1, .max_nodes = 2, .max_spares = -1}, "-1 spare nodes"},
        {{.min_nodes = 1, .max_nodes = 2, .max_restarts = -1}, "--max-restarts -1"},
        {{.min_nodes = 2, .max_nodes = 2, .by_id = true, .per_node = bad_list},
         "-g: 0 ranks on node 1"},
        {{.min_nodes = 1, .max_nodes = 2, .join_ms = -1}, "join timeout: -1 ms"},
        {{.min_nodes = 1, .max_nodes = 2, .grace_ms = INT64_MAX}, "more than ten years"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        rdzv *m = NULL;

        assert_status(rdzv_create(&cases[i].opt, 0, &m), LS_EINVAL);
        assert_last_error(cases[i].error);
        assert_null(m);
    }
}

static void no_memory_is_an_error_and_a_step_allocates_nothing(void **state)
{
    uint64_t before;
    rdzv *m = NULL;
    head h;

    (void)state;
    for (uint64_t n = 1; n <= 7; n++) {
        ls_alloc_fail_at(n);
        assert_status(rdzv_create(&two, 0, &m), LS_ENOMEM);
        assert_null(m);
    }
    ls_alloc_fail_at(0);
    open_head(&h, &two);
    before = ls_alloc_count();
    arrive(&h, 1, -1, NODE(0));
    arrive(&h, 2, -1, NODE(0));
    all_ready(&h);
    gone(&h, 1, NULL);
    finished(&h, 2, true);
    assert_int_equal(ls_alloc_count(), before);
    close_head(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_decide_the_order_and_unequal_counts_add_up),
        cmocka_unit_test(without_ids_the_head_is_first_then_claims_then_arrival),
        cmocka_unit_test(between_min_and_max_the_last_call_is_waited_for),
        cmocka_unit_test(the_last_call_begins_anew_when_too_few_are_left),
        cmocka_unit_test(max_nodes_start_at_once_and_a_negative_last_call_does_not_wait),
        cmocka_unit_test(join_timeout_names_the_missing_nodes),
        cmocka_unit_test(many_missing_nodes_are_counted),
        cmocka_unit_test(at_the_join_timeout_min_nodes_are_enough),
        cmocka_unit_test(a_node_lost_before_the_start_is_waited_for),
        cmocka_unit_test(nodes_lost_before_the_start_together_cost_one_roster),
        cmocka_unit_test(a_node_that_does_not_get_ready_is_given_up),
        cmocka_unit_test(new_nodes_before_the_start_cost_nothing),
        cmocka_unit_test(a_node_that_cannot_start_fails_the_job),
        cmocka_unit_test(rejected_node_receives_the_values_of_both_sides),
        cmocka_unit_test(duplicate_node_rank_is_reported_to_both_nodes),
        cmocka_unit_test(without_ids_a_duplicate_id_is_only_a_request),
        cmocka_unit_test(a_node_that_connects_again_replaces_itself),
        cmocka_unit_test(a_running_node_that_connects_again_has_lost_its_ranks),
        cmocka_unit_test(a_second_hello_on_a_connection_ends_it),
        cmocka_unit_test(spares_wait_and_the_next_node_is_rejected),
        cmocka_unit_test(node_that_arrives_after_the_end_is_rejected),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(no_memory_is_an_error_and_a_step_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
