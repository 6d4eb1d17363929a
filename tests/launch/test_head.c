/* SPDX-License-Identifier: Apache-2.0 */
/* A head on a poller, and agents that say what a test wants: the own one and guests, all over socket pairs. */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/head_internal.h"
#include "net/handshake.h"
#include "net/socket.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON  30000
#define TYPES 128
#define FAKES 4

/* An agent, as far as the head can see. */
typedef struct fake {
    frame_link link;
    int n[TYPES];  /* messages by type */
    text_buf said; /* notes and the like, a line each */
    node_welcome welcome;
    uint32_t started; /* generation */
    node_stop stop;
    job_cause abort;
    node_over over;
    text_buf report;
    uint8_t stream[256]; /* what came by NODE_STREAM */
    size_t n_stream;
    int n_ended;
} fake;

typedef struct scene {
    poller *loop;
    head *head;
    net_key key;
    net_address at;
    fake fakes[FAKES]; /* the own one is the first */
    int n_described;
} scene;

static ls_status on_message(void *self, const frame *f)
{
    fake *a = self;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    text_buf text = {0};

    assert_in_range(f->type, 1, TYPES - 1);
    a->n[f->type]++;
    switch (f->type) {
    case NODE_WELCOME:
        assert_ok(node_read_welcome(f, &a->welcome));
        break;
    case NODE_START:
        assert_ok(node_read_number(f, &a->started));
        break;
    case NODE_END_RANKS:
        assert_ok(node_read_stop(f, &a->stop));
        break;
    case NODE_ABORT:
        cause_read(&r, &a->abort);
        assert_ok(wire_reader_end(&r, "a cause"));
        break;
    case NODE_OVER:
        assert_ok(node_read_over(f, &a->over, &a->report));
        break;
    case NODE_WAIT:
    case NODE_REJECT:
    case NODE_NOTE:
        assert_ok(node_read_text(f, &text));
        text_append(&a->said, "%s\n", text_str(&text));
        text_free(&text);
        break;
    case NODE_STREAM:
        for (size_t i = 4; i < f->bytes && a->n_stream < sizeof(a->stream); i++)
            a->stream[a->n_stream++] = f->body[i];
        break;
    default:
        break;
    }
    return LS_OK;
}

static void on_ended(void *self, const char *why)
{
    fake *a = self;

    LS_UNUSED(why);
    a->n_ended++;
}

static void describe(void *self, int local_rank, char *buf, size_t n)
{
    scene *s = self;

    s->n_described++;
    text_format(buf, n, "local rank %d here", local_rank);
}

static head_options options_of(scene *s)
{
    return (head_options){.rendezvous = {.min_nodes = 2,
                                         .max_nodes = 2,
                                         .by_id = true,
                                         .version = "1.0",
                                         .host = "host0",
                                         .last_call_ms = -1},
                          .key = &s->key,
                          .self = s,
                          .describe = describe};
}

static void begin_with(scene *s, const head_options *opt)
{
    net_address any;

    assert_ok(poller_create(&s->loop));
    assert_ok(head_create(s->loop, opt, &s->head));
    assert_ok(net_address_decode("127.0.0.1:0", &any));
    assert_ok(head_listen(s->head, &any, &s->at));
}

/* A job of n nodes by their numbers. */
static scene *begin(int n_nodes, int max_restarts)
{
    scene *s = calloc(1, sizeof(*s));
    head_options opt;

    assert_non_null(s);
    assert_ok(net_key_random(&s->key));
    opt = options_of(s);
    opt.rendezvous.min_nodes = opt.rendezvous.max_nodes = n_nodes;
    opt.rendezvous.max_restarts = max_restarts;
    begin_with(s, &opt);
    return s;
}

static void leave(fake *a)
{
    frame_link_close(&a->link);
}

static void finish(scene *s)
{
    for (int i = 0; i < FAKES; i++) {
        leave(&s->fakes[i]);
        text_free(&s->fakes[i].said);
        text_free(&s->fakes[i].report);
    }
    head_destroy(s->head);
    poller_destroy(s->loop);
    free(s);
}

#define until(s, condition)                                                                        \
    do {                                                                                           \
        for (int64_t until_ms = ls_deadline_ms(SOON); !(condition);) {                             \
            if (ls_deadline_left(until_ms) == 0)                                                   \
                fail_msg("%s:%d: %s does not come", __FILE__, __LINE__, #condition);               \
            assert_ok(poller_run_once((s)->loop, 20));                                             \
        }                                                                                          \
    } while (0)

static void turn(scene *s)
{
    for (int i = 0; i < 20; i++)
        assert_ok(poller_run_once(s->loop, 0));
}

static void pass(scene *s, int64_t ms)
{
    for (const int64_t until_ms = ls_deadline_ms(ms); ls_deadline_left(until_ms) > 0;)
        assert_ok(poller_run_once(s->loop, ls_deadline_left(until_ms)));
}

/* --- what agents say --- */

static void attach(scene *s, fake *a, int fd)
{
    a->link = (frame_link){.self = a, .message = on_message, .ended = on_ended};
    assert_ok(frame_link_open(&a->link, s->loop, fd, "the head", NODE_BODY_MAX, NODE_QUEUE_MAX));
}

/* The i-th connects. */
static void come(scene *s, int i)
{
    door_guest guest = {.pid = 0};
    int fds[2];

    if (i == 0) {
        assert_ok(head_connect_own(s->head, &fds[0]));
    } else {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        guest.fd = fds[1];
        text_format(guest.peer, sizeof(guest.peer), "guest %d", i);
        head_node_enter(s->head, &guest);
    }
    attach(s, &s->fakes[i], fds[0]);
}

static void send_body(fake *a, node_message type, wire_writer *w)
{
    assert_ok(wire_writer_status(w));
    frame_link_send(&a->link, type, w->data, w->bytes);
    wire_writer_free(w);
}

static void send_number(fake *a, node_message type, uint32_t number)
{
    wire_writer w = {0};

    wire_write_u32(&w, number);
    send_body(a, type, &w);
}

static void say_hello(scene *s, int i, int n_local)
{
    char host[16];
    const rdzv_hello hello = {.uid = 100 + (uint64_t)i,
                              .id = i,
                              .n_local = n_local,
                              .version = "1.0",
                              .host = text_format(host, sizeof(host), "host%d", i)};
    wire_writer w = {0};

    node_write_hello(&w, &hello);
    send_body(&s->fakes[i], NODE_HELLO, &w);
}

static void come_in(scene *s, int i, int n_local)
{
    come(s, i);
    say_hello(s, i, n_local);
    turn(s);
}

static void say_failure(fake *a, uint32_t generation, int local_rank, int code)
{
    node_failure failure = {.generation = generation, .local_rank = local_rank, .exit_code = code};
    wire_writer w = {0};

    text_format(failure.text, sizeof(failure.text), "local rank %d exited with code %d", local_rank,
                code);
    node_write_failure(&w, &failure);
    send_body(a, NODE_FAILED, &w);
}

static void say_left(fake *a, uint32_t generation, int local_rank)
{
    wire_writer w = {0};

    node_write_left(&w, &(node_left){generation, local_rank, 4711});
    send_body(a, NODE_RANK_LEFT, &w);
}

static void say_end(fake *a, const node_end *end)
{
    wire_writer w = {0};

    node_write_end(&w, end);
    send_body(a, NODE_FINISHED, &w);
}

static void say_finished(fake *a, uint32_t generation, bool stopped)
{
    say_end(a, &(node_end){.generation = generation,
                           .stopped = stopped,
                           .local_rank = -1,
                           .text = "",
                           .details = ""});
}

static void say_stream(fake *a, uint32_t id, const void *bytes, size_t n)
{
    wire_writer w = {0};

    wire_write_u32(&w, id);
    wire_write_raw(&w, bytes, n);
    send_body(a, NODE_STREAM, &w);
}

static bool was_told(const fake *a, const char *part)
{
    return strstr(text_str(&a->said), part) != NULL;
}

/* All n are here, ready and started. */
static void start(scene *s, int n, int n_local, uint32_t generation)
{
    for (int i = 0; i < n; i++)
        until(s, s->fakes[i].welcome.place.generation == generation);
    for (int i = 0; i < n; i++)
        send_number(&s->fakes[i], NODE_READY, generation);
    for (int i = 0; i < n; i++)
        until(s, s->fakes[i].started == generation);
    assert_int_equal(s->head->world_size, n * n_local);
}

static scene *begin_running(int n_nodes, int n_local, int max_restarts)
{
    scene *s = begin(n_nodes, max_restarts);

    for (int i = 0; i < n_nodes; i++)
        come_in(s, i, n_local);
    start(s, n_nodes, n_local, 1);
    return s;
}

static head_node *find_node(const scene *s, int i)
{
    head_node *found = NULL;
    char peer[16];

    text_format(peer, sizeof(peer), i == 0 ? "this node" : "guest %d", i);
    list_for_each (it, &s->head->nodes)
        if (text_equal(list_entry(it, head_node, node)->peer, peer))
            found = list_entry(it, head_node, node);
    return found;
}

static head_node *node_of(const scene *s, int i)
{
    head_node *node = find_node(s, i);

    if (node == NULL) {
        fail_msg("agent %d is not there any more", i);
        abort(); /* fail() does not return, but its declaration does not say so */
    }
    return node;
}

/* Everybody hears the end with this code, in these words. */
static void expect_over(scene *s, int n, int code, const char *part)
{
    for (int i = 0; i < n; i++) {
        fake *a = &s->fakes[i];

        until(s, a->n[NODE_OVER] == 1);
        assert_int_equal(a->over.exit_code, code);
        if (strstr(text_str(&a->report), part) == NULL)
            fail_msg("agent %d: \"%s\" does not say \"%s\"", i, text_str(&a->report), part);
    }
}

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
    assert_true(a->welcome.store_port == b->welcome.store_port && a->welcome.store_port > 0);
    send_number(a, NODE_READY, 1);
    turn(s);
    assert_int_equal(a->n[NODE_START], 0); /* not before all are ready */
    send_number(b, NODE_READY, 1);
    until(s, a->started == 1 && b->started == 1);
    say_finished(a, 1, false);
    turn(s);
    assert_int_equal(a->n[NODE_OVER], 0);
    say_finished(b, 1, false);
    expect_over(s, 2, 0, "");
    assert_false(a->over.failed);
    assert_true(head_has_guests(s->head));
    until(s, b->n_ended == 1);
    leave(b);
    until(s, !head_has_guests(s->head));
    assert_int_equal(a->n_ended, 0); /* the own one is not sent away */
    finish(s);
}

static void a_node_comes_by_tcp_and_proves_the_key(void **state)
{
    scene *s = begin(2, 0);
    const handshake_claim claim = {
        .purpose = NET_PURPOSE_NODE, .from = HANDSHAKE_ANYONE, .to = HANDSHAKE_ANYONE};
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
    expect_over(s, 3, 7, "| caf\xc3\xa9 ?[31m\n  1 other rank failed after it\n");
    assert_true(s->fakes[2].over.failed);
    finish(s);
}

static void a_report_of_any_size_reaches_everybody(void **state)
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
    say_end(b, &end); /* makes no sense, so it is as good as lost */
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

static void those_that_wait_see_who_is_there(void **state)
{
    scene *s = begin(3, 0);

    LS_UNUSED(state);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    until(s, was_told(&s->fakes[1], "2/3 nodes joined"));
    leave(&s->fakes[1]);
    until(s, was_told(&s->fakes[0], "1/3 nodes joined"));
    finish(s);
}

static void a_node_that_does_not_fit_hears_why_and_the_others_too(void **state)
{
    scene *s = begin(2, 0);
    fake *c = &s->fakes[2];

    LS_UNUSED(state);
    come_in(s, 0, 1);
    come_in(s, 2, 1); /* of two, this is number 2 */
    until(s, c->n[NODE_REJECT] == 1 && c->n_ended == 1);
    assert_true(was_told(c, "too many nodes: host2 says that it is node 2"));
    assert_true(was_told(&s->fakes[0], "too many nodes: host2"));
    leave(c);
    come_in(s, 1, 1);
    start(s, 2, 1, 1);
    finish(s);
}

/* --- generations --- */

static void what_is_said_of_an_earlier_generation_is_ignored(void **state)
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
    assert_true(was_told(a, "restart 1 of 1: "));
    say_failure(b, 1, 0, 5);
    say_left(b, 1, 0);
    say_finished(b, 1, false);
    send_number(b, NODE_READY, 1);
    wire_write_u32(&w, 1);
    wire_write_u8(&w, 'R');
    send_body(b, NODE_STATES, &w);
    turn(s);
    assert_int_equal(b->n_ended, 0);
    assert_int_equal(a->n[NODE_ABORT], 1);
    assert_false(s->head->ranks[1].ended);
    assert_int_equal(node_of(s, 1)->states[0], 0);
    assert_true(s->head->failed_ms == 0 && !s->head->ends[1].has_come);
    say_finished(a, 2, false);
    say_finished(b, 2, false);
    expect_over(s, 2, 0, "");
    finish(s);
}

static void a_generation_that_cannot_be_opened_ends_the_job_in_words(void **state)
{
    scene *s = begin(2, 0);

    LS_UNUSED(state);
    /* an address that is nobody's */
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
    begin_with(s, &opt);
    come_in(s, 0, 1);
    come_in(s, 1, 1);
    for (int i = 0; i < 2; i++) {
        until(s, s->fakes[i].n[NODE_ABORT] == 1);
        say_finished(&s->fakes[i], 1, true);
    }
    expect_over(s, 2, 1, "the store for PyTorch programs (--store=none: without it)");
    (void)close(fd);
    finish(s);
}

/* --- nodes that are lost --- */

static void a_node_that_is_gone_is_named(void **state)
{
    scene *s = begin_running(2, 2, 0);

    LS_UNUSED(state);
    leave(&s->fakes[1]);
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1, "node 1 (host1) with ranks 2-3 was lost: its connection was closed");
    finish(s);
}

static void a_node_that_is_silent_for_5_s_is_lost(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    until(s, s->fakes[1].n[NODE_BEAT] >= 1); /* and hears that the head is there */
    node_of(s, 1)->link.heard_ms -= NODE_SILENCE_MS;
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    until(s, s->fakes[1].n_ended == 1);
    say_finished(&s->fakes[0], 1, true);
    expect_over(s, 1, 1, "was lost: it has been silent for 5 s");
    finish(s);
}

static void neither_the_own_node_nor_one_that_is_stopped_is_missed(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    frame_link_send(&s->fakes[1].link, NODE_PAUSE, NULL, 0);
    until(s, s->fakes[0].n[NODE_PAUSE] == 1); /* all are told, but whoever said it */
    node_of(s, 0)->link.heard_ms -= NODE_SILENCE_MS * 2;
    node_of(s, 1)->link.heard_ms -= NODE_SILENCE_MS * 2;
    pass(s, 2 * NODE_BEAT_MS + 100);
    assert_int_equal(s->fakes[1].n[NODE_PAUSE], 0);
    assert_int_equal(s->fakes[0].n[NODE_ABORT], 0);
    frame_link_send(&s->fakes[1].link, NODE_RESUME, NULL, 0);
    until(s, s->fakes[0].n[NODE_RESUME] == 1);
    assert_int_equal(s->fakes[1].n[NODE_RESUME], 0);
    node_of(s, 1)->link.heard_ms -= NODE_SILENCE_MS; /* now it counts again */
    until(s, s->fakes[0].n[NODE_ABORT] == 1);
    finish(s);
}

static void after_a_sleep_of_its_own_the_head_reads_first(void **state)
{
    scene *s = begin_running(2, 1, 0);

    LS_UNUSED(state);
    node_of(s, 1)->link.heard_ms -= NODE_SILENCE_MS * 2;
    s->head->beat.due_ms -= NODE_SILENCE_MS * 2; /* as if this process had stood still */
    frame_link_send(&s->fakes[1].link, NODE_BEAT, NULL, 0);
    pass(s, 2 * NODE_BEAT_MS + 100);
    assert_int_equal(s->fakes[0].n[NODE_ABORT], 0);
    finish(s);
}

static void a_node_that_is_lost_before_it_has_said_who_it_is_is_nobody(void **state)
{
    scene *s = begin(2, 0);

    LS_UNUSED(state);
    come(s, 1);
    leave(&s->fakes[1]);
    come(s, 2); /* and one that says nothing at all */
    turn(s);
    assert_false(head_has_guests(s->head)); /* nobody waits for it */
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
        {NODE_READY, "123", 3, "a node's message: bad field at byte 0"},
        {NODE_READY, "12345", 5, "a node's message: 1 bytes too many"},
        {NODE_FAILED, "", 0, "a rank's failure: bad field"},
        {NODE_RANK_LEFT, "1234", 4, "the end of a rank: bad field"},
        {NODE_FINISHED, "12345678901234567890123456789012345", 35, "the end of a node's ranks"},
        {NODE_STOP, "", 0, "a node's message: bad field"},
        {NODE_STREAM, "1", 1, "half a piece of a stream"},
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
    expect_dropped_alone(s, 1, "a frame of 262145 bytes where at most 262144 are allowed");
}

static void nothing_is_heard_before_the_hello(void **state)
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

/* Everything it says is allowed, and each piece of a stream that nobody has is answered. */
static void a_node_that_floods_and_does_not_read_is_dropped_and_harms_nobody(void **state)
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
    poller_unwatch(b->link.watch); /* it reads nothing from now on */
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

static void states_of_ranks_are_kept_if_they_are_of_all_of_them(void **state)
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
    assert_int_equal(b->welcome.store_port, 0);
    assert_int_equal(s->fakes[0].welcome.store_port, s->head->store_port);
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
    until(s, was_told(spare, "this one waits until there is a place"));
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
        cmocka_unit_test(a_report_of_any_size_reaches_everybody),
        cmocka_unit_test(a_failed_job_does_not_end_with_0_whatever_a_node_says),
        cmocka_unit_test(a_rank_may_be_named_by_its_own_node_only),
        cmocka_unit_test(any_node_may_stop_the_job),
        cmocka_unit_test(those_that_wait_see_who_is_there),
        cmocka_unit_test(a_node_that_does_not_fit_hears_why_and_the_others_too),
        cmocka_unit_test(what_is_said_of_an_earlier_generation_is_ignored),
        cmocka_unit_test(a_generation_that_cannot_be_opened_ends_the_job_in_words),
        cmocka_unit_test(a_store_that_cannot_listen_is_named),
        cmocka_unit_test(a_node_that_is_gone_is_named),
        cmocka_unit_test(a_node_that_is_silent_for_5_s_is_lost),
        cmocka_unit_test(neither_the_own_node_nor_one_that_is_stopped_is_missed),
        cmocka_unit_test(after_a_sleep_of_its_own_the_head_reads_first),
        cmocka_unit_test(a_node_that_is_lost_before_it_has_said_who_it_is_is_nobody),
        cmocka_unit_test(a_second_hello_ends_the_connection),
        cmocka_unit_test(garbage_behind_the_hello_ends_the_connection),
        cmocka_unit_test(a_frame_that_is_too_large_ends_the_connection),
        cmocka_unit_test(nothing_is_heard_before_the_hello),
        cmocka_unit_test(a_node_that_floods_and_does_not_read_is_dropped_and_harms_nobody),
        cmocka_unit_test(states_of_ranks_are_kept_if_they_are_of_all_of_them),
        cmocka_unit_test(streams_lead_to_the_store_of_the_job),
        cmocka_unit_test(a_node_that_waits_for_a_place_has_no_store),
        cmocka_unit_test(a_head_may_end_at_any_time),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
