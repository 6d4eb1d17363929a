/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_node.c - messages of an authenticated node to the head of its job, and messages to an agent.
 * The first byte selects: 0 a stream of bytes behind the node's hello, 1 messages (type, length,
 * body), otherwise one body for a decoder of messages.
 */
#include "fuzz/fuzz.h"

#include "base/log.h"
#include "launch/head/head_internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define INPUT_MAX  (32 * 1024)
#define FRAMES_MAX 200

/* A job of two nodes: the head's own, which behaves, and a node that sends the input. */
typedef struct session {
    poller *loop;
    head *head;
    net_key key;
    frame_link own;
    int remote_fd;
} session;

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* --- decoders: a decoded message can be encoded and decoded again --- */

static frame again(const wire_writer *w)
{
    must(wire_writer_status(w) == LS_OK && w->bytes <= NODE_BODY_MAX);
    return (frame){.body = w->data, .bytes = w->bytes};
}

static void try_hello(const frame *f)
{
    node_hello hello;
    node_hello second;
    wire_writer w = {0};
    frame g;

    if (node_read_hello(f, &hello) != LS_OK)
        return;
    fuzz_must_be_printable(hello.host, "\n\t");
    fuzz_must_be_printable(hello.version, "\n\t");
    node_write_hello(&w, &hello.hello);
    g = again(&w);
    must(node_read_hello(&g, &second) == LS_OK);
    must(second.hello.uid == hello.hello.uid && second.hello.n_per_node == hello.hello.n_per_node);
    node_hello_free(&hello);
    node_hello_free(&second);
    wire_writer_free(&w);
}

static void try_failure(const frame *f)
{
    node_failure failure;
    wire_writer w = {0};
    frame g;

    if (node_read_failure(f, &failure) != LS_OK)
        return;
    fuzz_must_be_printable(failure.text, "\n\t");
    node_write_failure(&w, &failure);
    g = again(&w);
    must(node_read_failure(&g, &failure) == LS_OK);
    wire_writer_free(&w);
}

static void try_ring(const frame *f)
{
    node_ring ring;
    node_ring second;
    wire_writer w = {0};
    frame g;

    if (node_read_ring(f, &ring) != LS_OK)
        return;
    must(ring.total <= NODE_RING_MAX && ring.offset + ring.n <= ring.total);
    node_write_ring(&w, &ring);
    g = again(&w);
    must(node_read_ring(&g, &second) == LS_OK && second.n == ring.n);
    wire_writer_free(&w);
}

static void try_end(const frame *f)
{
    text_buf texts[4] = {{0}};
    wire_writer w = {0};
    node_end end;
    node_end second;
    frame g;

    if (node_read_end(f, &end, &texts[0], &texts[1]) == LS_OK) {
        fuzz_must_be_printable(end.text, "\n\t");
        fuzz_must_be_printable(end.details, "\n\t");
        node_write_end(&w, &end);
        g = again(&w);
        must(node_read_end(&g, &second, &texts[2], &texts[3]) == LS_OK);
    }
    wire_writer_free(&w);
    for (int i = 0; i < 4; i++)
        text_free(&texts[i]);
}

static void try_welcome(const frame *f)
{
    node_welcome welcome;
    wire_writer w = {0};
    frame g;

    if (node_read_welcome(f, &welcome) != LS_OK)
        return;
    must(welcome.place.rank_base <= welcome.place.world_size - welcome.place.n_local);
    node_write_welcome(&w, &welcome);
    g = again(&w);
    must(node_read_welcome(&g, &welcome) == LS_OK);
    wire_writer_free(&w);
}

static void try_request(const frame *f)
{
    text_buf report = {0};
    wire_writer w = {0};
    node_over over;
    node_stop stop;
    frame g;

    if (node_read_over(f, &over, &report) == LS_OK)
        fuzz_must_be_printable(over.report, "\n\t");
    text_free(&report);
    if (node_read_stop(f, &stop) == LS_OK) {
        fuzz_must_be_printable(stop.text, "\n\t");
        must(stop.grace_ms >= 0 && stop.signal >= 1);
        node_write_stop(&w, &stop);
        g = again(&w);
        must(node_read_stop(&g, &stop) == LS_OK);
    }
    wire_writer_free(&w);
}

static void try_slot(const frame *f)
{
    wire_writer w = {0};
    node_slot slot;
    node_slot second;
    frame g;

    if (node_read_slot(f, &slot) != LS_OK)
        return;
    must(slot.local_rank >= 0 && slot.local_rank < RDZV_LOCAL_MAX && slot.member >= 0);
    node_write_slot(&w, &slot);
    g = again(&w);
    must(node_read_slot(&g, &second) == LS_OK && second.generation == slot.generation &&
         second.local_rank == slot.local_rank && second.member == slot.member);
    wire_writer_free(&w);
}

static void try_found(const frame *f)
{
    wire_writer w = {0};
    node_found found;
    node_found second;
    frame g;

    if (node_read_found(f, &found) != LS_OK)
        return;
    must(found.local_rank >= 0 && found.member >= 0 && found.found <= RECOVERY_HAS_ENDED);
    node_write_found(&w, &found);
    g = again(&w);
    must(node_read_found(&g, &second) == LS_OK && second.member == found.member);
    wire_writer_free(&w);
}

/* Between agents that may host the head. */
static void try_standby(const frame *f)
{
    standby_message first;
    standby_message second;
    wire_writer w = {0};

    if (standby_read_message(f->body, f->bytes, &first) == LS_OK) {
        standby_write_message(&w, &first);
        must(wire_writer_status(&w) == LS_OK);
        must(standby_read_message(w.data, w.bytes, &second) == LS_OK);
        must(second.message.term == first.message.term && second.state.n == first.state.n &&
             second.state.n_addresses == first.state.n_addresses);
        standby_message_free(&second);
    }
    standby_message_free(&first);
    wire_writer_free(&w);
}

/* The state with which a head takes over. */
static void try_take_over(const frame *f)
{
    const net_key key = {.bytes = {1}};
    const head_options opt = {.rendezvous = {.min_nodes = 1, .max_nodes = 1}, .key = &key};
    poller *loop;
    head *h;

    must(poller_create(&loop) == LS_OK);
    if (head_take_over(loop, &opt, f->body, f->bytes, &h) == LS_OK)
        head_begin_again(h);
    head_destroy(h);
    poller_destroy(loop);
}

static void try_small_ones(const frame *f)
{
    text_buf text = {0};
    node_barrier barrier;
    node_exit left;
    node_mpi mpi;
    uint32_t number;

    if (node_read_text(f, &text) == LS_OK)
        fuzz_must_be_printable(text_str(&text), "\n\t");
    text_free(&text);
    try_ring(f);
    try_slot(f);
    try_found(f);
    try_standby(f);
    try_take_over(f);
    if (node_read_exit(f, &left) == LS_OK)
        must(left.local_rank >= 0 && left.pid >= 0 && left.state <= PMI_LEFT);
    must((node_read_barrier(f, &barrier) == LS_OK) == (f->bytes == 8));
    if (node_read_mpi(f, &mpi) == LS_OK)
        must(f->bytes == 9);
    must((node_read_number(f, &number) == LS_OK) == (f->bytes == 4));
}

/* --- the head --- */

static void say_finished(session *s, uint32_t generation)
{
    const node_end end = {
        .generation = generation, .stopped = true, .local_rank = -1, .text = "", .details = ""};
    wire_writer w = {0};

    node_write_end(&w, &end);
    frame_link_send(&s->own, NODE_FINISHED, w.data, w.bytes);
    wire_writer_free(&w);
}

/* The head's own agent obeys, and all messages that it receives are valid. */
static ls_status on_own_message(void *self, const frame *f)
{
    session *s = self;
    uint8_t number[8] = {0}; /* also of a ready node without a port */
    text_buf text = {0};
    node_welcome welcome;
    node_over over;

    wire_put_u32(number, s->head->generation);
    switch (f->type) {
    case NODE_WELCOME:
        must(node_read_welcome(f, &welcome) == LS_OK);
        frame_link_send(&s->own, NODE_READY, number, sizeof(number));
        break;
    case NODE_END_RANKS:
    case NODE_ABORT:
    case NODE_KILL:
        say_finished(s, s->head->generation);
        break;
    case NODE_OVER:
        must(node_read_over(f, &over, &text) == LS_OK);
        fuzz_must_be_printable(over.report, "\n\t");
        break;
    case NODE_NOTE:
        must(node_read_text(f, &text) == LS_OK);
        fuzz_must_be_printable(text_str(&text), "\n\t");
        break;
    default:
        break;
    }
    text_free(&text);
    return LS_OK;
}

static void on_own_ended(void *self, const char *why)
{
    LS_UNUSED(self);
    LS_UNUSED(why);
    must(false); /* whatever another node says */
}

static void describe(void *self, int local_rank, char *buf, size_t n)
{
    LS_UNUSED(self);
    LS_UNUSED(local_rank);
    text_format(buf, n, "here");
}

static void turn(session *s)
{
    uint8_t received[4096];

    for (int i = 0; i < 4; i++)
        must(poller_run_once(s->loop, 0) == LS_OK);
    while (recv(s->remote_fd, received, sizeof(received), MSG_DONTWAIT) > 0)
        continue;
}

static void say(session *s, const uint8_t *data, size_t size)
{
    while (size > 0) {
        const ssize_t n = send(s->remote_fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);

        turn(s);
        if (n <= 0)
            return; // dropped
        data += n;
        size -= (size_t)n;
    }
}

static void say_message(session *s, uint32_t type, const uint8_t *body, size_t bytes)
{
    uint8_t data[FRAME_HEADER_BYTES + 512];

    must(bytes <= 512);
    wire_put_u32(data, (uint32_t)bytes);
    wire_put_u32(data + 4, type);
    if (bytes > 0)
        memcpy(data + FRAME_HEADER_BYTES, body, bytes);
    say(s, data, FRAME_HEADER_BYTES + bytes);
}

static void say_hello(const session *s, frame_link *link, int id)
{
    const rdzv_hello hello = {
        .uid = 1 + (uint64_t)id, .id = id, .n_local = 2, .version = "1", .host = "a"};
    wire_writer w = {0};
    uint8_t data[256];

    node_write_hello(&w, &hello);
    must(w.bytes < sizeof(data) - FRAME_HEADER_BYTES);
    wire_put_u32(data, (uint32_t)w.bytes);
    wire_put_u32(data + 4, NODE_HELLO);
    memcpy(data + FRAME_HEADER_BYTES, w.data, w.bytes);
    if (link != NULL)
        frame_link_send(link, NODE_HELLO, w.data, w.bytes);
    else
        must(write(s->remote_fd, data, FRAME_HEADER_BYTES + w.bytes) > 0);
    wire_writer_free(&w);
}

static void keep_ring(void *self, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int ring_fd)
{
    LS_UNUSED(self);
    LS_UNUSED(behind_ns);
    must(generation >= 1 && rank >= 0 && host[0] != 0);
    must(lseek(ring_fd, 0, SEEK_END) <= NODE_RING_MAX);
}

static void begin(session *s)
{
    const head_options opt = {.rendezvous = {.min_nodes = 2,
                                             .max_nodes = 2,
                                             .by_id = true,
                                             .max_restarts = 2,
                                             .version = "1",
                                             .host = "b"},
                              .key = &s->key,
                              .hosts_store = true,
                              .self = s,
                              .describe_rank = describe,
                              .keep_ring = keep_ring};
    net_address any;
    int own[2] = {-1, -1};
    int pair[2];

    memset(s, 0, sizeof(*s));
    must(poller_create(&s->loop) == LS_OK && head_create(s->loop, &opt, &s->head) == LS_OK);
    must(net_address_decode("127.0.0.1:0", &any) == LS_OK);
    s->head->listens_at = any; /* where the hub will listen; no node connects there in this test */
    must(head_connect_own(s->head, &own[0]) == LS_OK);
    s->own = (frame_link){.self = s, .message = on_own_message, .ended = on_own_ended};
    must(frame_link_open(&s->own, s->loop, own[0], "the head", NODE_BODY_MAX, NODE_QUEUE_MAX) ==
         LS_OK);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    s->remote_fd = pair[0];
    head_node_enter(s->head, &(listener_peer){.fd = pair[1], .name = "a node"});
    say_hello(s, &s->own, 0);
    say_hello(s, NULL, 1);
    turn(s);
    turn(s);
    must(s->head->generation == 1);
}

static void end(session *s)
{
    close(s->remote_fd);
    for (int i = 0; i < 4; i++)
        must(poller_run_once(s->loop, 0) == LS_OK);
    frame_link_close(&s->own);
    head_destroy(s->head);
    poller_destroy(s->loop);
}

static void try_head(const uint8_t *data, size_t size, bool is_framed)
{
    session s;
    size_t at = 0;

    begin(&s);
    if (!is_framed)
        say(&s, data, size);
    for (int i = 0; is_framed && i < FRAMES_MAX && size - at >= 2; i++) {
        const size_t bytes = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;

        say_message(&s, data[at], data + at + 2, bytes);
        at += 2 + bytes;
    }
    turn(&s);
    end(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(const frame *f) = {try_hello,   try_failure, try_end,
                                                      try_welcome, try_request, try_small_ones};
    frame f;

    if (size < 1 || size > INPUT_MAX || log_configure("error") != LS_OK)
        return 0;
    if (data[0] < 2) {
        try_head(data + 1, size - 1, data[0] == 1);
        return 0;
    }
    f = (frame){.body = data + 1, .bytes = size - 1};
    readers[(data[0] - 2U) % LS_COUNT_OF(readers)](&f);
    return 0;
}
