/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are lost or do not keep to the rules, and what their ranks do. */
#include "launch/head_scene.h"

#include "base/log.h"

#include <signal.h>
#include <stdlib.h>

/* --- nodes that are lost --- */

static void a_node_that_is_gone_is_named(void **state)
{
    scene *s = begin_running(2, 2, 0);

    LS_UNUSED(state);
    leave(&s->fakes[1]);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1, "node 1 (host1) with ranks 2-3 was lost: connection closed");
    finish(s);
}

static void a_node_that_is_silent_for_5_s_is_lost(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    until(s, s->fakes[1].n[NODE_BEAT] >= 1); /* and receives heartbeats */
    node_of(s, 1)->link.received_ms -= s->head->silence_ms;
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    until(s, s->fakes[1].n_ended == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1, "was lost: no heartbeat for 5 s");
    finish(s);
}

static void nodes_that_are_lost_alike_are_one_report(void **state)
{
    scene *s = begin_running(4, 2, 0);

    LS_UNUSED(state);
    leave(&s->fakes[1]);
    leave(&s->fakes[2]);
    until(s, find_node(s, 1) == NULL && find_node(s, 2) == NULL);
    assert_true(head_explain_loss(s->head, 2, "ssh was killed\x1b[m"));
    assert_false(head_explain_loss(s->head, 3, "it is there"));
    node_of(s, 3)->link.received_ms -= s->head->silence_ms;
    until(s, s->fakes[3].n_ended == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1,
                "nodes 1-2 (host[1-2]) with ranks 2-5 were lost: connection closed\n"
                "  host host2: ssh was killed?[m\n"
                "  last lines of host2:\n"
                "  | node 2, at most 10 lines\n"
                "  then node 3 (host3) with ranks 6-7 was lost: no heartbeat for 5 s\n");
    finish(s);
}

/* The failure of a rank that waits for a rank of a lost host is a consequence. */
static void rank_of_a_lost_node_is_not_the_cause(void **state)
{
    LS_UNUSED(state);
    for (int rank = 0; rank < 2; rank++) {
        scene *s = begin_running(2, 1, 0);

        s->head->broken = (job_cause){.kind = CAUSE_DIED, .rank = rank};
        text_format(s->head->broken.text, sizeof(s->head->broken.text), "rank %d is gone", rank);
        s->head->broken_ms = ls_now_ms();
        leave(&s->fakes[1]);
        until(s, s->fakes[0].n[NODE_ABORT] == 1);
        say_finished(&s->fakes[0], 1, true);
        expect_over(s, 1, 1, "node 1 (host1) with rank 1 was lost: connection closed");
        assert_int_equal(text_starts(text_str(&s->fakes[0].report), "rank 0 is gone\n  then "),
                         rank == 0);
        assert_null(strstr(text_str(&s->fakes[0].report), "rank 1 is gone"));
        finish(s);
    }
}

/* A rank that failed before is the cause; the loss is reported, too. */
static void loss_after_a_failure_is_reported_after_it(void **state)
{
    scene *s = begin_running(3, 1, 0);
    node_end end = {.generation = 1,
                    .stopped = true,
                    .n_failed = 1,
                    .exit_code = 127,
                    .text = "rank 1 (pid 7): cannot run x",
                    .details = ""};

    LS_UNUSED(state);
    say_failure(&s->fakes[1], 1, 0, 127);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_end(&s->fakes[1], &end);
    end.text = "rank 0 (pid 6): cannot run x";
    say_end(&s->fakes[0], &end);
    until(s, s->head->ends[0].received && s->head->ends[1].received);
    pass(s, 150); /* else the loss is the cause of the failure */
    leave(&s->fakes[2]);
    expect_over(s, 2, 127,
                "node 1 (host1): rank 1 (pid 7): cannot run x\n"
                "  the same on host0\n"
                "  then node 2 (host2) with rank 2 was lost: connection closed\n"
                "  1 other rank failed after it\n");
    finish(s);
}

static void neither_the_own_node_nor_one_that_is_stopped_is_missed(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    frame_link_send(&s->fakes[1].link, NODE_PAUSE, NULL, 0);
    until(s, s->fakes[0].n[NODE_PAUSE] == 1); /* all but the sender */
    node_of(s, 0)->link.received_ms -= s->head->silence_ms * 2;
    node_of(s, 1)->link.received_ms -= s->head->silence_ms * 2;
    pass(s, 2 * NODE_BEAT_MS + 100);
    assert_int_equal(s->fakes[1].n[NODE_PAUSE], 0);
    assert_int_equal(s->fakes[0].n[NODE_ABORT], 0);
    frame_link_send(&s->fakes[1].link, NODE_RESUME, NULL, 0);
    until(s, s->fakes[0].n[NODE_RESUME] == 1);
    assert_int_equal(s->fakes[1].n[NODE_RESUME], 0);
    node_of(s, 1)->link.received_ms -= s->head->silence_ms; /* now it counts again */
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    finish(s);
}

static void after_a_sleep_of_its_own_the_head_reads_first(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    node_of(s, 1)->link.received_ms -= s->head->silence_ms * 2;
    s->head->beat.due_ms -= s->head->silence_ms * 2; /* as if this process had stood still */
    frame_link_send(&s->fakes[1].link, NODE_BEAT, NULL, 0);
    pass(s, 2 * NODE_BEAT_MS + 100);
    assert_int_equal(s->fakes[0].n[NODE_ABORT], 0);
    finish(s);
}

static void connection_lost_before_its_hello_is_no_node(void **state)
{
    scene *s = begin(2, 0);

    LS_UNUSED(state);
    come(s, 1);
    leave(&s->fakes[1]);
    come(s, 2); /* and one that says nothing at all */
    turn(s);
    assert_false(head_has_remote_nodes(s->head)); /* nothing waits for it */
    poller_timer_set(s->loop, &node_of(s, 2)->hello_limit, ls_now_ms(),
                     node_of(s, 2)->hello_limit.fn, node_of(s, 2)->hello_limit.arg);
    until(s, s->fakes[2].n_ended == 1);
    leave(&s->fakes[2]);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    start(s, 2, 1, 1);
    finish(s);
}

/* --- nodes that do not keep to the rules --- */

static void expect_dropped_alone(scene *s, int i, const char *why)
{
    until(s, s->fakes[i].n_ended == 1);
    leave(&s->fakes[i]);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    assert_non_null(strstr(s->fakes[0].abort.text, why));
    assert_int_equal(s->fakes[0].n_ended, 0);
    finish(s);
}

static void a_second_hello_ends_the_connection(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    say_hello(s, 1, 1);
    expect_dropped_alone(s, 1, "node 1 (host1) with rank 1 was lost: unknown message 1");
}

static void garbage_behind_the_hello_ends_the_connection(void **state)
{
    static const struct {
        node_message type;
        const char *body;
        size_t bytes;
        const char *why;
    } cases[] = {
        {NODE_READY, "123", 3, "a node's message: bad field generation at byte 0"},
        {NODE_READY, "1234\0\0\0\0x", 9, "a node's message: 1 bytes too many"},
        {NODE_OWNER_QUERY, "12345678", 8,
         "a query for the owner of a connection: bad field client"},
        {NODE_OWNER_ANSWER, "12345678", 8, "the owner of a connection: bad field is_users"},
        {NODE_FAILED, "", 0, "a rank's failure: bad field generation"},
        {NODE_RANK_EXITED, "1234", 4, "the end of a rank: bad field local_rank"},
        {NODE_FINISHED, "12345678901234567890123456789012345", 35, "the end of a node's ranks"},
        {NODE_STOP, "", 0, "a node's message: bad field"},
        {NODE_STREAM, "1", 1, "a truncated stream frame"},
        {NODE_WELCOME, "", 0, "unknown message 32"},
        {(node_message)0, "", 0, "unknown message 0"},
        {(node_message)INT32_MAX, "", 0, "unknown message 2147483647"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        scene *s = begin_running(2, 1, 0);

        frame_link_send(&s->fakes[1].link, cases[i].type, cases[i].body, cases[i].bytes);
        expect_dropped_alone(s, 1, cases[i].why);
    }
}

static void a_frame_that_is_too_large_ends_the_connection(void **state)
{
    scene *s = begin_running(2, 1, 0);
    uint8_t *much = calloc(1, NODE_BODY_MAX + 1);

    LS_UNUSED(state);
    frame_link_send(&s->fakes[1].link, NODE_BEAT, much, NODE_BODY_MAX + 1);
    free(much);
    expect_dropped_alone(s, 1, "a frame of 262145 bytes exceeds the limit of 262144");
}

static void messages_before_the_hello_are_refused(void **state)
{
    scene *s = begin(2, 0);

    LS_UNUSED(state);
    come(s, 1);
    send_number(&s->fakes[1], NODE_STOP, SIGTERM);
    until(s, s->fakes[1].n_ended == 1);
    leave(&s->fakes[1]);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    start(s, 2, 1, 1);
    finish(s);
}

/* All its messages are allowed, and each piece of an unknown stream is answered. */
static void node_that_floods_and_does_not_read_is_dropped_alone(void **state)
{
    enum { FRAMES = 4096, FRAME_BYTES = FRAME_HEADER_BYTES + 4 + 1 };
    static uint8_t bytes[FRAMES * FRAME_BYTES];
    scene *s = begin_running(3, 1, 0);
    fake *b = &s->fakes[1];
    size_t at = 0;
    size_t most = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < FRAMES; i++) {
        wire_put_u32(bytes + i * FRAME_BYTES, 5);
        wire_put_u32(bytes + i * FRAME_BYTES + 4, NODE_STREAM);
    }
    poller_unwatch(&b->link.watch); /* it reads nothing from now on */
    b->link.watch = NULL;
    for (const int64_t until_ms = ls_deadline_ms(SOON * 2); s->fakes[0].n[NODE_ABORT] == 0;) {
        const head_node *node = find_node(s, 1);
        const ssize_t n =
            send(b->link.fd, bytes + at, sizeof(bytes) - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        at = n > 0 ? (at + (size_t)n) % sizeof(bytes) : at;
        assert_ok(poller_run_once(s->loop, 0));
        if (node != NULL && frame_queue_bytes(&node->link.out) > most)
            most = frame_queue_bytes(&node->link.out);
        frame_link_send(&s->fakes[2].link, NODE_BEAT, NULL, 0);
        assert_true(ls_deadline_left(until_ms) > 0);
    }
    assert_true(most <= NODE_QUEUE_MAX);
    assert_non_null(
        strstr(s->fakes[0].abort.text, "node 1 (host1) with rank 1 was lost: it does not read"));
    until(s, s->fakes[2].n[NODE_ABORT] == 1);
    assert_int_equal(s->fakes[0].n_ended + s->fakes[2].n_ended, 0);
    finish(s);
}

/* --- what ranks elsewhere do --- */

static void say_states(fake *a, uint32_t generation, const char *letters)
{
    wire_writer w = {0};

    wire_write_u32(&w, generation);
    wire_write_raw(&w, letters, strlen(letters));
    send_body(a, NODE_STATES, &w);
}

static void states_of_ranks_are_stored_if_complete(void **state)
{
    scene *s = begin_running(2, 3, 0);
    fake *b = &s->fakes[1];

    LS_UNUSED(state);
    say_states(b, 1, "STE");
    until(s, node_of(s, 1)->states[0] == 'S');
    assert_memory_equal(node_of(s, 1)->states, "STE", 3);
    say_states(b, 1, "RR");
    say_states(b, 1, "RRRR");
    say_states(b, 1, "");
    say_states(b, 7, "RRR");
    frame_link_send(&b->link, NODE_STATES, "x", 1);
    turn(s);
    assert_memory_equal(node_of(s, 1)->states, "STE", 3);
    assert_int_equal(b->n_ended, 0);
    finish(s);
}

/* --- the store --- */

static const uint8_t store_ping[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 'p', 'i', 'n', 'g'};

static void streams_lead_to_the_store_of_the_job(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    head_options opt = options_of(s);
    fake *b = &s->fakes[1];

    LS_UNUSED(state);
    opt.hosts_store = true;
    opt.rendezvous.max_restarts = 1;
    begin_with(s, &opt);
    come_in(s, 1, 1);
    say_stream(b, 1, store_ping, sizeof(store_ping)); /* not before it has a place */
    until(s, b->n[NODE_STREAM] == 1);
    assert_int_equal(b->n_stream, 0);
    come_in(s, 0, 1);
    start(s, 2, 1, 1);
    assert_true(b->welcome.has_store);
    for (size_t i = 0; i < sizeof(store_ping); i++)
        say_stream(b, 2, store_ping + i, 1);
    until(s, b->n_stream == 4);
    assert_memory_equal(b->stream, "ping", 4);
    /* Another one's store begins anew, and so do connections. */
    say_failure(b, 1, 0, 5);
    until(s, b->n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    say_finished(b, 1, true);
    start(s, 2, 1, 2);
    assert_int_equal(node_of(s, 1)->streams.n_streams, 0);
    b->n_stream = 0;
    say_stream(b, 2, store_ping, sizeof(store_ping)); /* of the first generation */
    say_stream(b, 3, store_ping, sizeof(store_ping));
    until(s, b->n_stream == 4);
    assert_int_equal(node_of(s, 1)->streams.n_streams, 1);
    say_stream(b, 3, NULL, 0);
    until(s, node_of(s, 1)->streams.n_streams == 0);
    finish(s);
}

static void a_node_that_waits_for_a_place_has_no_store(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    head_options opt = options_of(s);
    fake *spare = &s->fakes[2];

    LS_UNUSED(state);
    opt.hosts_store = true;
    opt.rendezvous.by_id = false;
    opt.rendezvous.max_spares = 1;
    begin_with(s, &opt);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    start(s, 2, 1, 1);
    come_in(s, 2, 1);
    until(s, was_notified(spare, "this node waits until it can join"));
    say_stream(spare, 1, store_ping, sizeof(store_ping));
    until(s, spare->n[NODE_STREAM] == 1);
    assert_int_equal(spare->n_stream, 0);
    say_failure(spare, 1, 0, 3); /* nor a say */
    say_finished(spare, 1, true);
    say_left(spare, 1, 0);
    turn(s);
    assert_int_equal(s->fakes[0].n[NODE_ABORT], 0);
    assert_true(s->head->failed_ms == 0);
    finish(s);
}

/* --- the user of a connection to the store --- */

static void ask_owner(scene *s, fake *a, uint32_t generation, uint32_t question, const char *client)
{
    node_owner_query o = {.generation = generation, .question = question};
    wire_writer w = {0};

    assert_ok(net_address_decode(client, &o.client));
    assert_ok(net_address_decode("tcp://10.77.0.10:29500", &o.server));
    node_write_owner_query(&w, &o);
    send_body(a, NODE_OWNER_QUERY, &w);
    turn(s);
}

static void node_with_the_address_is_asked_whose_a_connection_is(void **state)
{
    scene *s = begin_running(3, 1, 0);
    fake *a = &s->fakes[0];
    fake *c = &s->fakes[2];
    const node_owner_answer yes = {.generation = 1, .question = 5, .is_users = true};
    wire_writer w = {0};

    LS_UNUSED(state);
    for (int k = 0; k < 3; k++) {
        char text[32];

        text_format(text, sizeof(text), "tcp://10.77.0.1%d:80", k);
        s->head->has_offer[k] = true;
        s->head->offers[k].n = 1;
        assert_ok(net_address_decode(text, &s->head->offers[k].at[0].address));
    }
    ask_owner(s, a, 1, 5, "tcp://10.77.0.12:40000");
    until(s, c->n[NODE_OWNER_QUERY] == 1);
    assert_int_equal(c->owner.question, 5);
    assert_int_equal(s->fakes[1].n[NODE_OWNER_QUERY], 0);
    assert_int_equal(a->n[NODE_OWNER_ANSWER], 0);
    node_write_owner_answer(&w, &yes);
    send_body(c, NODE_OWNER_ANSWER, &w);
    until(s, a->n[NODE_OWNER_ANSWER] == 1);
    assert_true(a->owned.is_users && a->owned.question == 5);
    /* An address of no node of the job. */
    ask_owner(s, a, 1, 6, "tcp://10.77.0.13:40000");
    until(s, a->n[NODE_OWNER_ANSWER] == 2);
    assert_true(!a->owned.is_users && a->owned.question == 6);
    /* Only node 0 asks, and only about the present generation. */
    ask_owner(s, &s->fakes[1], 1, 7, "tcp://10.77.0.12:40000");
    ask_owner(s, a, 2, 8, "tcp://10.77.0.12:40000");
    assert_int_equal(c->n[NODE_OWNER_QUERY], 1);
    assert_int_equal(a->n[NODE_OWNER_ANSWER], 2);
    finish(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_is_gone_is_named),
        cmocka_unit_test(a_node_that_is_silent_for_5_s_is_lost),
        cmocka_unit_test(nodes_that_are_lost_alike_are_one_report),
        cmocka_unit_test(rank_of_a_lost_node_is_not_the_cause),
        cmocka_unit_test(loss_after_a_failure_is_reported_after_it),
        cmocka_unit_test(neither_the_own_node_nor_one_that_is_stopped_is_missed),
        cmocka_unit_test(after_a_sleep_of_its_own_the_head_reads_first),
        cmocka_unit_test(connection_lost_before_its_hello_is_no_node),
        cmocka_unit_test(a_second_hello_ends_the_connection),
        cmocka_unit_test(garbage_behind_the_hello_ends_the_connection),
        cmocka_unit_test(a_frame_that_is_too_large_ends_the_connection),
        cmocka_unit_test(messages_before_the_hello_are_refused),
        cmocka_unit_test(node_that_floods_and_does_not_read_is_dropped_alone),
        cmocka_unit_test(states_of_ranks_are_stored_if_complete),
        cmocka_unit_test(streams_lead_to_the_store_of_the_job),
        cmocka_unit_test(a_node_that_waits_for_a_place_has_no_store),
        cmocka_unit_test(node_with_the_address_is_asked_whose_a_connection_is),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
