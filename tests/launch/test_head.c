/* SPDX-License-Identifier: Apache-2.0 */
/* A job as its head sees it: it forms, starts, fails, starts again, ends. */
#include "launch/head_scene.h"

#include "base/log.h"
#include "net/auth/handshake.h"
#include "net/socket.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* --- a job --- */

static void two_nodes_form_a_job_and_end_it(void **state)
{
    scene *s = begin(2, 3);
    fake *a = &s->fakes[0];
    fake *b = &s->fakes[1];

    LS_UNUSED(state);
    come_in(s, 1, 3);
    assert_int_equal(b->n[NODE_WELCOME], 0);
    come_in(s, 0, 2);
    until(s, a->n[NODE_WELCOME] == 1 && b->n[NODE_WELCOME] == 1);
    assert_int_equal(a->welcome.place.node, 0);
    assert_int_equal(a->welcome.place.rank_base, 0);
    assert_int_equal(b->welcome.place.node, 1);
    assert_int_equal(b->welcome.place.rank_base, 2);
    assert_int_equal(b->welcome.place.n_local, 3);
    assert_int_equal(b->welcome.place.world_size, 5);
    assert_int_equal(b->welcome.max_restarts, 3);
    assert_string_equal(a->welcome.job, b->welcome.job);
    assert_true(text_starts(a->welcome.hub_unix, "unix:@"));
    assert_int_equal(a->welcome.hub_port, 0);
    assert_string_equal(b->welcome.hub_unix, "");
    assert_true(b->welcome.hub_port > 0);
    say_ready(a, 1, 4711);
    turn(s);
    assert_int_equal(a->n[NODE_START], 0); /* not before all are ready */
    say_ready(b, 1, 4712);
    until(s, a->started == 1 && b->started == 1);
    assert_true(a->master_port == 4711 && b->master_port == 4711); /* node 0's */
    say_finished(a, 1, false);
    turn(s);
    assert_int_equal(a->n[NODE_OVER], 0);
    say_finished(b, 1, false);
    expect_over(s, 2, 0, "");
    assert_false(a->over.failed);
    assert_true(head_has_remote_nodes(s->head));
    until(s, b->n_ended == 1);
    leave(b);
    until(s, !head_has_remote_nodes(s->head));
    assert_int_equal(a->n_ended, 0); /* the own one is not sent away */
    finish(s);
}

static void a_node_comes_by_tcp_and_proves_the_key(void **state)
{
    scene *s = begin(2, 0);
    const handshake_claim claim = {
        .purpose = NET_PURPOSE_NODE, .from = HANDSHAKE_ANY_RANK, .to = HANDSHAKE_ANY_RANK};
    handshake shake;
    short wanted;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_connect(&s->at, NET_STREAM, ls_deadline_ms(SOON), &fd));
    assert_ok(handshake_client(&shake, &s->key, &claim, "the head"));
    until(s, handshake_step(&shake, fd, &wanted) == LS_OK && shake.state == HANDSHAKE_DONE);
    attach(s, &s->fakes[1], fd);
    say_hello(s, 1, 1);
    come_in(s, 0, 1);
    until(s, s->fakes[1].n[NODE_WELCOME] == 1);
    finish(s);
}

static void a_failure_ends_all_with_one_cause(void **state)
{
    scene *s = begin_running(3, 2, 0);
    const node_end end = {.generation = 1,
                          .n_failed = 2,
                          .n_stopped = 3,
                          .local_rank = 1,
                          .exit_code = 7,
                          .text = "rank 3 (pid 4711) exited with code 7",
                          .details = "  its last lines:\n  | caf\xc3\xa9 \x1b[31m\n"};

    LS_UNUSED(state);
    say_failure(&s->fakes[1], 1, 1, 7);
    for (int i = 0; i < 3; i++) {
        until(s, s->fakes[i].n[NODE_ABORT] == 1);
        assert_int_equal(s->fakes[i].abort.rank, 3);
        assert_non_null(strstr(s->fakes[i].abort.text, "node 1 (host1): local rank 1 exited"));
    }
    say_finished(&s->fakes[0], 1, true);
    say_end(&s->fakes[1], &end);
    say_finished(&s->fakes[2], 1, true);
    expect_over(s, 3, 7, "node 1 (host1): rank 3 (pid 4711) exited with code 7\n  its last lines:");
    expect_over(s, 3, 7,
                "| caf\xc3\xa9 ?[31m\n  1 other rank failed after it\n"
                "  3 other ranks were stopped because of it\n");
    assert_true(s->fakes[2].over.failed);
    finish(s);
}

static void report_of_any_size_reaches_all_nodes(void **state)
{
    scene *s = begin_running(2, 1, 0);
    char *much = malloc(NODE_DETAILS_MAX + 1);
    node_end end = {.generation = 1, .n_failed = 1, .exit_code = 3};

    LS_UNUSED(state);
    memset(much, 'x', NODE_DETAILS_MAX);
    much[NODE_DETAILS_MAX] = 0;
    end.text = end.details = much;
    say_failure(&s->fakes[1], 1, 0, 3);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_end(&s->fakes[1], &end);
    say_end(&s->fakes[0], &end);
    expect_over(s, 2, 3, "xxx");
    assert_true(s->fakes[0].report.length > NODE_DETAILS_MAX * 2);
    finish(s);
    free(much);
}

static void a_failed_job_does_not_end_with_0_whatever_a_node_says(void **state)
{
    scene *s = begin_running(2, 1, 0);
    fake *b = &s->fakes[1];
    node_end end = {
        .generation = 1, .local_rank = 0, .exit_code = 0, .text = "fine", .details = ""};

    LS_UNUSED(state);
    say_failure(b, 1, 0, 9);
    until(s, b->n[NODE_ABORT] == 1);
    pass(s, 150);     /* a loss that comes sooner would be the cause itself */
    say_end(b, &end); /* malformed: the node counts as lost */
    until(s, b->n_ended == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 9, "local rank 0 exited with code 9");
    finish(s);
}

static void a_rank_may_be_named_by_its_own_node_only(void **state)
{
    scene *s = begin_running(2, 2, 0);

    LS_UNUSED(state);
    say_left(&s->fakes[1], 1, 2); /* it has two ranks */
    say_left(&s->fakes[1], 0, 0);
    say_left(&s->fakes[1], 2, 0);
    turn(s);
    for (int rank = 0; rank < 4; rank++)
        assert_false(s->head->ranks[rank].ended);
    say_left(&s->fakes[1], 1, 1);
    say_left(&s->fakes[1], 1, 1);
    until(s, s->head->ranks[3].ended);
    assert_int_equal(s->head->ranks[3].pid, 4711);
    assert_false(s->head->ranks[2].ended);
    assert_int_equal(s->fakes[1].n_ended, 0);
    finish(s);
}

static void any_node_may_stop_the_job(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    send_number(&s->fakes[1], NODE_STOP, SIGINT);
    for (int i = 0; i < 2; i++) {
        until(s, s->fakes[i].n[NODE_END_RANKS] == 1);
        assert_int_equal(s->fakes[i].stop.signal, SIGINT);
        assert_int_equal(s->fakes[i].stop.grace_ms, 10000);
        assert_string_equal(s->fakes[i].stop.text, "SIGINT from node 1 (host1)");
    }
    send_number(&s->fakes[0], NODE_STOP, UINT32_MAX); /* the second time at once, by whatever */
    until(s, s->fakes[0].n[NODE_KILL] == 1 && s->fakes[1].n[NODE_KILL] == 1);
    say_finished(&s->fakes[0], 1, true);
    say_finished(&s->fakes[1], 1, true);
    expect_over(s, 2, 130, "stopped by SIGINT from node 1 (host1)");
    assert_false(s->fakes[0].over.failed);
    finish(s);
}

static void waiting_nodes_see_the_roster(void **state)
{
    scene *s = begin(3, 0);

    LS_UNUSED(state);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    until(s, was_notified(&s->fakes[1], "2/3 nodes joined"));
    leave(&s->fakes[1]);
    until(s, was_notified(&s->fakes[0], "1/3 nodes joined"));
    finish(s);
}

static void rejection_is_sent_to_the_node_and_the_others(void **state)
{
    scene *s = begin(2, 0);
    fake *c = &s->fakes[2];

    LS_UNUSED(state);
    come_in(s, 0, 1);
    come_in(s, 2, 1); /* of two, this is number 2 */
    until(s, c->n[NODE_REJECT] == 1 && c->n_ended == 1);
    assert_true(was_notified(c, "too many nodes: host2 has node rank 2"));
    assert_true(was_notified(&s->fakes[0], "too many nodes: host2"));
    leave(c);
    come_in(s, 1, 1);
    start(s, 2, 1, 1);
    finish(s);
}

/* --- generations --- */

static void messages_of_an_earlier_generation_are_ignored(void **state)
{
    scene *s = begin_running(2, 1, 1);
    fake *a = &s->fakes[0];
    fake *b = &s->fakes[1];
    wire_writer w = {0};

    LS_UNUSED(state);
    say_failure(b, 1, 0, 5);
    until(s, a->n[NODE_ABORT] == 1);
    say_finished(a, 1, true);
    say_finished(b, 1, true);
    start(s, 2, 1, 2);
    assert_int_equal(b->welcome.place.n_restarts, 1);
    assert_true(was_notified(a, "restart 1 of 1: "));
    say_failure(b, 1, 0, 5);
    say_left(b, 1, 0);
    say_finished(b, 1, false);
    say_ready(b, 1, 0);
    wire_write_u32(&w, 1);
    wire_write_u8(&w, 'R');
    send_body(b, NODE_STATES, &w);
    turn(s);
    assert_int_equal(b->n_ended, 0);
    assert_int_equal(a->n[NODE_ABORT], 1);
    assert_false(s->head->ranks[1].ended);
    assert_int_equal(node_of(s, 1)->states[0], 0);
    assert_true(s->head->failed_ms == 0 && !s->head->ends[1].received);
    say_finished(a, 2, false);
    say_finished(b, 2, false);
    expect_over(s, 2, 0, "");
    finish(s);
}

static void a_generation_that_cannot_be_opened_ends_the_job_in_words(void **state)
{
    scene *s = begin(2, 0);

    LS_UNUSED(state);
    /* an address of no node */
    assert_ok(net_address_decode("192.0.2.1:1", &s->head->listens_at));
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    for (int i = 0; i < 2; i++) {
        until(s, s->fakes[i].n[NODE_ABORT] == 1);
        assert_int_equal(s->fakes[i].n[NODE_START], 0);
        say_finished(&s->fakes[i], 1, true);
    }
    expect_over(s, 2, 1, "192.0.2.1");
    finish(s);
}

static void a_store_that_cannot_listen_is_named(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    head_options opt = options_of(s);
    net_address any;
    net_address bound;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_address_decode("127.0.0.1:0", &any));
    assert_ok(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    opt.hosts_store = true;
    opt.store_port = net_address_port(&bound);
    opt.rendezvous.min_nodes = opt.rendezvous.max_nodes = 1;
    begin_with(s, &opt);
    come_in(s, 0, 1);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1, "the store for PyTorch programs (--store=none disables it)");
    (void)close(fd);
    finish(s);
}

/* --- the end of a head --- */

static void a_head_may_end_at_any_time(void **state)
{
    scene *s;

    LS_UNUSED(state);
    head_destroy(NULL);
    for (int stage = 0; stage < 6; stage++) {
        s = begin(2, 0);
        if (stage > 0)
            come(s, 1);
        if (stage > 1)
            say_hello(s, 1, 1);
        if (stage > 2)
            come_in(s, 0, 1);
        if (stage > 3)
            start(s, 2, 1, 1);
        if (stage > 4)
            frame_link_send(&s->fakes[1].link, (node_message)99, NULL, 0);
        for (int i = 0; i < stage; i++)
            assert_ok(poller_run_once(s->loop, 0));
        finish(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nodes_form_a_job_and_end_it),
        cmocka_unit_test(a_node_comes_by_tcp_and_proves_the_key),
        cmocka_unit_test(a_failure_ends_all_with_one_cause),
        cmocka_unit_test(report_of_any_size_reaches_all_nodes),
        cmocka_unit_test(a_failed_job_does_not_end_with_0_whatever_a_node_says),
        cmocka_unit_test(a_rank_may_be_named_by_its_own_node_only),
        cmocka_unit_test(any_node_may_stop_the_job),
        cmocka_unit_test(waiting_nodes_see_the_roster),
        cmocka_unit_test(rejection_is_sent_to_the_node_and_the_others),
        cmocka_unit_test(messages_of_an_earlier_generation_are_ignored),
        cmocka_unit_test(a_generation_that_cannot_be_opened_ends_the_job_in_words),
        cmocka_unit_test(a_store_that_cannot_listen_is_named),
        cmocka_unit_test(a_head_may_end_at_any_time),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
