/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_head_elastic.c - an elastic job as its head sees it: a thread writes into the store of
 * members what the ranks of one node would.
 */
#include "launch/head_scene.h"

#include "base/thread.h"
#include "hub/control.h"
#include "hub/hub_internal.h"
#include "store/seat_text.h"

#include <lockstep/store.h>

#include <stdatomic.h>
#include <stdlib.h>

enum { RANKS = 3 };

typedef struct writer {
    net_address at;
    net_key key;
    const char *(*entries)[2]; /* keys and values, up to a NULL */
    atomic_bool is_done;
} writer;

static void write_entries(void *arg)
{
    writer *w = arg;
    ls_store *store;

    assert_ok(control_open_store(&w->at, &w->key, NET_AUTH, SOON, &store));
    for (int i = 0; w->entries[i][0] != NULL; i++)
        assert_ok(
            ls_store_set(store, w->entries[i][0], w->entries[i][1], strlen(w->entries[i][1])));
    ls_store_close(store);
    atomic_store(&w->is_done, true);
}

/* Until the head has taken them. */
static void write_into_store(scene *s, const char *(*entries)[2])
{
    const node_welcome *welcome = &s->fakes[0].welcome;
    writer w = {.entries = entries};
    ls_thread thread;

    atomic_init(&w.is_done, false);
    assert_ok(head_job_key(&s->key, welcome->job, &w.key));
    assert_ok(net_address_parse(welcome->members_unix, NET_PORT_REQUIRED, &w.at));
    assert_ok(ls_thread_start(&thread, "test-members", write_entries, &w));
    until(s, atomic_load(&w.is_done));
    ls_thread_join(&thread);
}

static scene *begin_elastic(int min_ranks)
{
    static const char *ready[][2] = {
        {"ready/0", "1"}, {"ready/1", "1"}, {"ready/2", "1"}, {NULL, NULL}};
    scene *s = calloc(1, sizeof(*s));
    head_options opt;

    assert_non_null(s);
    assert_ok(net_key_random(&s->key));
    opt = options_of(s);
    opt.rendezvous.min_nodes = opt.rendezvous.max_nodes = 1;
    opt.rendezvous.min_ranks = min_ranks;
    begin_with(s, &opt);
    come_in(s, 0, RANKS);
    start(s, 1, RANKS, 1);
    write_into_store(s, ready);
    return s;
}

/* The others wait for it, so its end makes their group. */
static void a_rank_ends_while_the_others_meet(void **state)
{
    static const char *asked[][2] = {{"ask/1", "0 1 1"}, {"ask/2", "0 1 1"}, {NULL, NULL}};
    scene *s = begin_elastic(1);

    (void)state;
    write_into_store(s, asked);
    assert_int_equal(s->head->world_size, RANKS);
    say_left(&s->fakes[0], 1, 0);
    until(s, was_notified(&s->fakes[0], "2 ranks go on"));
    assert_int_equal(s->head->world_size, RANKS - 1);
    for (int i = 0; i < RANKS - 1; i++)
        assert_false(s->head->ranks[i].ended);
    assert_int_equal(head_rank_in_slot(s->head, 0), -1);
    assert_int_equal(head_slot_of_rank(s->head, 0), 1);
    finish(s);
}

/* All have seats in the next group, and none is in its hub. */
static void expect_asking_again(const char *question, bool ends_group)
{
    static const char *asked[][2] = {
        {"ask/0", "0 1 1"}, {"ask/1", "0 1 1"}, {"ask/2", "0 1 1"}, {NULL, NULL}};
    const char *again[][2] = {{"ask/1", question}, {NULL, NULL}};
    scene *s = begin_elastic(1);

    write_into_store(s, asked);
    until(s, was_notified(&s->fakes[0], "3 ranks go on"));
    assert_false(s->head->hub->has_cause);
    write_into_store(s, again);
    assert_int_equal(s->head->hub->has_cause, ends_group);
    finish(s);
}

static void a_rank_that_cannot_join_ends_the_wait_of_the_others(void **state)
{
    (void)state;
    expect_asking_again("1 2 1", true); // it has not reached the hub
    expect_asking_again("0 2 1", true); // it has not received its seat
    expect_asking_again("0 1 1", false);
}

/* It leaves fewer than --elastic requires, and no other event follows. */
static void the_end_of_a_rank_ends_the_job_where_too_few_are_left(void **state)
{
    scene *s = begin_elastic(2);

    (void)state;
    say_failure(&s->fakes[0], 1, 2, 137);
    until(s, s->fakes[0].n[NODE_DROP] == 1);
    say_left(&s->fakes[0], 1, 1);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    finish(s);
}

/* Two nodes; the rank of the first one is lost, the first rank of the other one ends with code 0,
 * and then this node is lost. */
static scene *lose_last_node(int n_local)
{
    static const char *ready[][2] = {
        {"ready/0", "1"}, {"ready/1", "1"}, {"ready/2", "1"}, {NULL, NULL}};
    scene *s = calloc(1, sizeof(*s));
    fake *a;
    head_options opt;

    assert_non_null(s);
    a = &s->fakes[0];
    assert_ok(net_key_random(&s->key));
    opt = options_of(s);
    opt.rendezvous.min_ranks = 1;
    begin_with(s, &opt);
    come_in(s, 0, 1);
    come_in(s, 1, n_local);
    for (int i = 0; i < 2; i++)
        say_ready(&s->fakes[i], 1, 1);
    until(s, a->started == 1 && s->fakes[1].started == 1);
    write_into_store(s, ready);
    say_failure(a, 1, 0, 137);
    until(s, a->n[NODE_DROP] == 1);
    say_end(a, &(node_end){
                   .generation = 1, .n_failed = 1, .local_rank = -1, .text = "", .details = ""});
    say_left(&s->fakes[1], 1, 0);
    turn(s);
    assert_int_equal(a->n[NODE_OVER], 0);
    leave(&s->fakes[1]);
    return s;
}

/* It has not reported yet that all of its ranks have ended. */
static void the_end_of_a_node_that_has_done_its_part_ends_the_job(void **state)
{
    scene *s = lose_last_node(1);

    (void)state;
    expect_over(s, 1, 0, "");
    finish(s);
}

static void a_rank_that_is_lost_with_the_last_node_fails_the_job(void **state)
{
    scene *s = lose_last_node(2);

    (void)state;
    expect_over(s, 1, 1, "node 1 (host1) with ranks 1-2 was lost: connection closed");
    finish(s);
}

/* --- many ranks --- */

enum { MANY = 200, VICTIM = 17 };

typedef struct crowd {
    net_address at;
    net_key key;
    ls_store *stores[MANY + 1]; /* by member; the last one comes in the place of the victim */
    int64_t roster;             /* of the question */
    uint64_t number;
    seat_answer answers[MANY + 1];
    int64_t answered_ms;
    atomic_bool is_done;
} crowd;

static void connect_many(void *arg)
{
    crowd *c = arg;
    char key[SEAT_KEY_BYTES];
    char text[SEAT_KEY_BYTES];

    for (int i = 0; i <= MANY; i++)
        assert_ok(control_open_store(&c->at, &c->key, NET_AUTH, SOON, &c->stores[i]));
    for (int i = 0; i < MANY; i++) {
        seat_write_report(&(seat_report){.member = i, .is_ready = true}, key, text);
        assert_ok(ls_store_set(c->stores[i], key, text, strlen(text)));
    }
    atomic_store(&c->is_done, true);
}

/* All members ask for a place, and get it. */
static void ask_many(void *arg)
{
    crowd *c = arg;
    char key[SEAT_KEY_BYTES];
    char text[SEAT_KEY_BYTES];

    for (int i = MANY; i >= 0; i--) { // the new one first: it is why the others ask
        const bool is_new = i == MANY;
        const seat_report r = {.member = i,
                               .roster = is_new ? 0 : c->roster,
                               .number = is_new ? 1 : c->number,
                               .has_state = !is_new};

        if (i == VICTIM || (is_new && c->roster == 0))
            continue;
        seat_write_report(&r, key, text);
        assert_ok(ls_store_set(c->stores[i], key, text, strlen(text)));
    }
    for (int i = 0; i <= MANY; i++) {
        void *answer;

        if (i == VICTIM || (i == MANY && c->roster == 0))
            continue;
        seat_answer_key(key, i, i == MANY ? 1 : c->number);
        assert_ok(ls_store_get(c->stores[i], key, SOON, &answer, NULL));
        assert_ok(seat_read_answer(answer, &c->answers[i]));
        ls_store_free(answer);
    }
    c->answered_ms = ls_now_ms();
    atomic_store(&c->is_done, true);
}

static void run_crowd(scene *s, crowd *c, void (*body)(void *))
{
    ls_thread thread;

    atomic_store(&c->is_done, false);
    assert_ok(ls_thread_start(&thread, "test-members", body, c));
    until(s, atomic_load(&c->is_done));
    ls_thread_join(&thread);
}

/* What the head and its messages take of a recovery: bench/recovery has the rest. */
static void two_hundred_ranks_get_their_places(void **state)
{
    crowd *c = calloc(1, sizeof(*c));
    scene *s = calloc(1, sizeof(*s));
    head_options opt;
    int64_t began_ms;

    (void)state;
    assert_true(c != NULL && s != NULL);
    assert_ok(net_key_random(&s->key));
    opt = options_of(s);
    opt.rendezvous.min_nodes = opt.rendezvous.max_nodes = 1;
    opt.rendezvous.min_ranks = 1;
    opt.rendezvous.max_restarts = 1;
    begin_with(s, &opt);
    come_in(s, 0, MANY);
    start(s, 1, MANY, 1);
    assert_ok(head_job_key(&s->key, s->fakes[0].welcome.job, &c->key));
    assert_ok(net_address_parse(s->fakes[0].welcome.members_unix, NET_PORT_REQUIRED, &c->at));
    run_crowd(s, c, connect_many);

    began_ms = ls_now_ms();
    say_failure(&s->fakes[0], 1, VICTIM, 137);
    until(s, s->fakes[0].n[NODE_REPLACE] == 1);
    c->number = 1;
    run_crowd(s, c, ask_many);
    print_message("%d ranks have places %d ms after the loss of one\n", MANY - 1,
                  (int)(c->answered_ms - began_ms));
    assert_int_equal(s->head->world_size, MANY - 1);
    assert_int_equal(c->answers[VICTIM - 1].rank, VICTIM - 1);
    assert_int_equal(c->answers[VICTIM + 1].rank, VICTIM);

    began_ms = ls_now_ms();
    c->roster = 1;
    c->number = 2;
    run_crowd(s, c, ask_many);
    print_message("%d ranks, one of them new, have places after %d ms\n", MANY,
                  (int)(c->answered_ms - began_ms));
    assert_int_equal(s->head->world_size, MANY);
    assert_int_equal(c->answers[MANY].rank, MANY - 1);
    for (int i = 0; i <= MANY; i++)
        ls_store_close(c->stores[i]);
    free(c);
    finish(s);
}

static void other_texts_change_nothing(void **state)
{
    static const char *texts[][2] = {
        {"ask/0", "0 0 1"},    {"ask/0", "-1 1 1"}, {"ask/0", "0 1"},   {"ask/0", "0 1 1 "},
        {"ask/-1", "0 1 1"},   {"ask/0x", "0 1 1"}, {"ask/3", "0 1 1"}, {"ask/", "0 1 1"},
        {"ask/4711", "0 1 1"}, {"ready/-1", "1"},   {"ready/", "1"},    {"seat/0/1", "refused"},
        {"view", "1"},         {"ask/1", "1 1 1"},  {NULL, NULL}};
    scene *s = begin_elastic(1);

    (void)state;
    write_into_store(s, texts);
    say_left(&s->fakes[0], 1, 0);
    turn(s);
    assert_int_equal(s->head->world_size, RANKS);
    assert_true(s->head->ranks[0].ended);
    assert_false(was_notified(&s->fakes[0], "go on"));
    finish(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_ends_while_the_others_meet),
        cmocka_unit_test(a_rank_that_cannot_join_ends_the_wait_of_the_others),
        cmocka_unit_test(the_end_of_a_rank_ends_the_job_where_too_few_are_left),
        cmocka_unit_test(the_end_of_a_node_that_has_done_its_part_ends_the_job),
        cmocka_unit_test(a_rank_that_is_lost_with_the_last_node_fails_the_job),
        cmocka_unit_test(two_hundred_ranks_get_their_places),
        cmocka_unit_test(other_texts_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
