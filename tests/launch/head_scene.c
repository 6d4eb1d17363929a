/* SPDX-License-Identifier: Apache-2.0 */
/* head_scene.c - a head with fake agents over socket pairs, for the tests of the head. */
#include "launch/head_scene.h"

#include "net/socket.h"

#include <stdlib.h>
#include <sys/socket.h>

static ls_status on_message(void *self, const frame *f)
{
    fake *a = self;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    text_buf text = {0};
    node_master master;

    assert_in_range(f->type, 1, TYPES - 1);
    a->n[f->type]++;
    switch (f->type) {
    case NODE_WELCOME:
        assert_ok(node_read_welcome(f, &a->welcome));
        break;
    case NODE_START:
        assert_ok(node_read_master(f, &master));
        a->started = master.generation;
        a->master_port = master.port;
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
        text_append(&a->notes, "%s\n", text_str(&text));
        text_free(&text);
        break;
    case NODE_STREAM:
    case NODE_MPI_KEYS:
        for (size_t i = 4; i < f->bytes && a->n_stream < sizeof(a->stream); i++)
            a->stream[a->n_stream++] = f->body[i];
        break;
    case NODE_MPI_BARRIER:
        assert_ok(node_read_barrier(f, &a->barrier));
        break;
    case NODE_OWNER_QUERY:
        assert_ok(node_read_owner_query(f, &a->owner));
        break;
    case NODE_OWNER_ANSWER:
        assert_ok(node_read_owner_answer(f, &a->owned));
        break;
    case NODE_EXITED_EARLY:
        assert_ok(node_read_failure(f, &a->early_exit));
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

/* Of node 1 nothing is known. */
static void append_last(void *self, int node, size_t most, text_buf *out)
{
    LS_UNUSED(self);
    if (node != 1)
        text_append(out, "  | node %d, at most %zu lines\n", node, most);
}

head_options options_of(scene *s)
{
    return (head_options){.rendezvous = {.min_nodes = 2,
                                         .max_nodes = 2,
                                         .by_id = true,
                                         .version = "1.0",
                                         .host = "host0",
                                         .last_call_ms = -1},
                          .key = &s->key,
                          .self = s,
                          .describe_rank = describe,
                          .append_last_lines = append_last};
}

void begin_with(scene *s, const head_options *opt)
{
    net_address any;

    assert_ok(poller_create(&s->loop));
    assert_ok(head_create(s->loop, opt, &s->head));
    assert_ok(net_address_decode("127.0.0.1:0", &any));
    assert_ok(head_listen(s->head, &any, &s->at));
}

/* A job of n nodes by their numbers. */
scene *begin(int n_nodes, int max_restarts)
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

void leave(fake *a)
{
    frame_link_close(&a->link);
}

void finish(scene *s)
{
    for (int i = 0; i < FAKES; i++) {
        leave(&s->fakes[i]);
        text_free(&s->fakes[i].notes);
        text_free(&s->fakes[i].report);
    }
    head_destroy(s->head);
    poller_destroy(s->loop);
    free(s);
}

void turn(scene *s)
{
    for (int i = 0; i < 20; i++)
        assert_ok(poller_run_once(s->loop, 0));
}

void pass(scene *s, int64_t ms)
{
    for (const int64_t until_ms = ls_deadline_ms(ms); ls_deadline_left(until_ms) > 0;)
        assert_ok(poller_run_once(s->loop, ls_deadline_left(until_ms)));
}

/* --- what agents say --- */

void attach(scene *s, fake *a, int fd)
{
    a->link = (frame_link){.self = a, .message = on_message, .ended = on_ended};
    assert_ok(frame_link_open(&a->link, s->loop, fd, "the head", NODE_BODY_MAX, NODE_QUEUE_MAX));
}

/* The i-th connects. */
void come(scene *s, int i)
{
    listener_peer peer = {.pid = 0};
    int fds[2];

    if (i == 0) {
        assert_ok(head_connect_own(s->head, &fds[0]));
    } else {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        peer.fd = fds[1];
        text_format(peer.name, sizeof(peer.name), "node %d", i);
        head_node_enter(s->head, &peer);
    }
    attach(s, &s->fakes[i], fds[0]);
}

void send_body(fake *a, node_message type, wire_writer *w)
{
    assert_ok(wire_writer_status(w));
    frame_link_send(&a->link, type, w->data, w->bytes);
    wire_writer_free(w);
}

void send_number(fake *a, node_message type, uint32_t number)
{
    wire_writer w = {0};

    wire_write_u32(&w, number);
    send_body(a, type, &w);
}

void say_hello(scene *s, int i, int n_local)
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

void come_in(scene *s, int i, int n_local)
{
    come(s, i);
    say_hello(s, i, n_local);
    turn(s);
}

void say_failure(fake *a, uint32_t generation, int local_rank, int code)
{
    node_failure failure = {.generation = generation, .local_rank = local_rank, .exit_code = code};
    wire_writer w = {0};

    text_format(failure.text, sizeof(failure.text), "local rank %d exited with code %d", local_rank,
                code);
    node_write_failure(&w, &failure);
    send_body(a, NODE_FAILED, &w);
}

void say_left(fake *a, uint32_t generation, int local_rank)
{
    wire_writer w = {0};

    node_write_exit(&w, &(node_exit){generation, local_rank, 4711, PMI_SILENT});
    send_body(a, NODE_RANK_EXITED, &w);
}

void say_end(fake *a, const node_end *end)
{
    wire_writer w = {0};

    node_write_end(&w, end);
    send_body(a, NODE_FINISHED, &w);
}

void say_finished(fake *a, uint32_t generation, bool stopped)
{
    say_end(a, &(node_end){.generation = generation,
                           .stopped = stopped,
                           .n_well = stopped ? 0 : a->welcome.place.n_local,
                           .local_rank = -1,
                           .text = "",
                           .details = ""});
}

void say_stream(fake *a, uint32_t id, const void *bytes, size_t n)
{
    wire_writer w = {0};

    wire_write_u32(&w, id);
    wire_write_raw(&w, bytes, n);
    send_body(a, NODE_STREAM, &w);
}

bool was_notified(const fake *a, const char *part)
{
    return strstr(text_str(&a->notes), part) != NULL;
}

void say_ready(fake *a, uint32_t generation, int port)
{
    const node_master master = {.generation = generation, .port = port};
    wire_writer w = {0};

    node_write_master(&w, &master);
    send_body(a, NODE_READY, &w);
}

/* All n are here, ready and started. */
void start(scene *s, int n, int n_local, uint32_t generation)
{
    for (int i = 0; i < n; i++)
        until(s, s->fakes[i].welcome.place.generation == generation);
    for (int i = 0; i < n; i++)
        say_ready(&s->fakes[i], generation, 0);
    for (int i = 0; i < n; i++)
        until(s, s->fakes[i].started == generation);
    assert_int_equal(s->head->world_size, n * n_local);
}

scene *begin_running(int n_nodes, int n_local, int max_restarts)
{
    scene *s = begin(n_nodes, max_restarts);

    for (int i = 0; i < n_nodes; i++)
        come_in(s, i, n_local);
    start(s, n_nodes, n_local, 1);
    return s;
}

head_node *find_node(const scene *s, int i)
{
    head_node *found = NULL;
    char peer[16];

    text_format(peer, sizeof(peer), i == 0 ? "this node" : "node %d", i);
    list_for_each (it, &s->head->nodes)
        if (text_equal(list_entry(it, head_node, node)->peer, peer))
            found = list_entry(it, head_node, node);
    return found;
}

head_node *node_of(const scene *s, int i)
{
    head_node *node = find_node(s, i);

    if (node == NULL) {
        fail_msg("agent %d is not there any more", i);
        abort(); /* fail() does not return, but its declaration does not say so */
    }
    return node;
}

/* All agents receive the end with this code and text. */
void expect_over(scene *s, int n, int code, const char *part)
{
    for (int i = 0; i < n; i++) {
        fake *a = &s->fakes[i];

        until(s, a->n[NODE_OVER] == 1);
        assert_int_equal(a->over.exit_code, code);
        if (strstr(text_str(&a->report), part) == NULL)
            fail_msg("agent %d: \"%s\" does not say \"%s\"", i, text_str(&a->report), part);
    }
}
