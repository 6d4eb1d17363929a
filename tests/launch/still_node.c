/* SPDX-License-Identifier: Apache-2.0 */
/*
 * still_node.c - in the place of `lockstep agent --stdio`: reads its launch request, joins the
 * head, offers addresses, then probes no node and answers no probe, so that all others go on
 * probing networks for as long as a test needs. It ends with its stdin or its head.
 */
#include "base/clock.h"
#include "launch/head/head.h"
#include "launch/network/net_probe.h"
#include "launch/head/node_messages.h"
#include "launch/spec/launch_request.h"
#include "net/auth/dial.h"
#include "net/messages/frame_link.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct still {
    launch_request request;
    poller *loop;
    poller *never; /* never run */
    dial *dial;
    frame_link link;
    poll_timer beat;
    net_probe *probe;
    bool is_over;
} still;

static void send_message(still *s, node_message type, const wire_writer *w)
{
    frame_link_send(&s->link, type, w == NULL ? NULL : w->data, w == NULL ? 0 : w->bytes);
}

static void on_beat(void *arg)
{
    still *s = arg;

    send_message(s, NODE_BEAT, NULL);
    poller_timer_set(s->loop, &s->beat, ls_now_ms() + NODE_BEAT_MS, on_beat, s);
}

static ls_status offer(still *s, const frame *f)
{
    net_probe_options options = {.loop = s->never, .host = s->request.host};
    wire_writer w = {0};
    node_welcome welcome;
    net_key key;

    LS_TRY(node_read_welcome(f, &welcome));
    LS_TRY(head_job_key(&s->request.key, welcome.job, &key));
    options.key = &key;
    options.job = welcome.job;
    options.generation = welcome.place.generation;
    options.node = welcome.place.node;
    net_probe_close(s->probe);
    LS_TRY(net_probe_open(&options, &s->probe));
    wire_write_u32(&w, welcome.place.generation);
    net_offer_write(&w, net_probe_offer(s->probe));
    send_message(s, NODE_OFFER, &w);
    wire_writer_free(&w);
    return LS_OK;
}

static ls_status on_message(void *arg, const frame *f)
{
    still *s = arg;

    if (f->type == NODE_WELCOME)
        return offer(s, f);
    if (f->type == NODE_PROBE)
        fprintf(stderr, "networks are tried\n");
    s->is_over = s->is_over || f->type == NODE_OVER || f->type == NODE_REJECT;
    return LS_OK;
}

static void on_ended(void *arg, const char *why)
{
    still *s = arg;

    LS_UNUSED(why);
    s->is_over = true;
}

static void say_hello(still *s)
{
    const launch_request *o = &s->request;
    const rdzv_hello hello = {.uid = (uint64_t)getpid(),
                              .id = o->node,
                              .n_local = o->n_ranks,
                              .min_nodes = o->n_nodes,
                              .max_nodes = o->n_nodes,
                              .run_id = o->run_hash,
                              .version = ls_version(),
                              .host = o->host};
    wire_writer w = {0};

    node_write_hello(&w, &hello);
    send_message(s, NODE_HELLO, &w);
    wire_writer_free(&w);
}

static void on_dialled(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    still *s = arg;

    LS_UNUSED(at);
    if (fd < 0) {
        fprintf(stderr, "status %d: %s\n", (int)st, why);
        s->is_over = true;
        return;
    }
    s->link.self = s;
    s->link.message = on_message;
    s->link.ended = on_ended;
    s->is_over =
        frame_link_open(&s->link, s->loop, fd, "head", NODE_BODY_MAX, NODE_QUEUE_MAX) != LS_OK;
    if (s->is_over)
        return;
    frame_link_seal(&s->link, dial_seals(s->dial));
    say_hello(s);
    on_beat(s);
}

/* Nothing comes there after the orders but its end. */
static void on_stdin(void *arg, unsigned events)
{
    still *s = arg;

    LS_UNUSED(events);
    s->is_over = true;
}

static ls_status take_request(still *s)
{
    static char bytes[65536];
    frame_reader reader;
    bool have = false;
    ls_status st = LS_OK;
    frame f;

    frame_reader_init(&reader, LAUNCH_REQUEST_BODY_MAX);
    while (st == LS_OK && !have) {
        const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

        st = n > 0 ? frame_reader_feed(&reader, bytes, (size_t)n)
                   : ls_fail(LS_EPEER, "the starter has gone");
        if (st == LS_OK)
            st = frame_reader_next(&reader, &f, &have);
    }
    if (st == LS_OK)
        st = launch_request_read(&f, &s->request);
    frame_reader_free(&reader);
    return st;
}

static ls_status run(still *s)
{
    dial_options options = {.default_port = NET_PORT_REQUIRED,
                            .key = &s->request.key,
                            .claim = {.purpose = NET_PURPOSE_NODE,
                                      .from = HANDSHAKE_ANY_RANK,
                                      .to = HANDSHAKE_ANY_RANK},
                            .deadline_ms = ls_deadline_ms(10000),
                            .self = s,
                            .done = on_dialled};
    poll_watch *watch;

    LS_TRY(take_request(s));
    LS_TRY(poller_create(&s->loop));
    LS_TRY(poller_create(&s->never));
    LS_TRY(poller_watch(s->loop, STDIN_FILENO, POLL_READ, on_stdin, s, &watch));
    options.addresses = s->request.heads;
    options.n_addresses = s->request.n_heads;
    options.claim.security = s->request.security;
    LS_TRY(dial_open(s->loop, &options, &s->dial));
    while (!s->is_over)
        LS_TRY(poller_run_once(s->loop, -1));
    return LS_OK;
}

int main(void)
{
    static still s;
    char line[128];

    printf("%s", remote_greeting(line, sizeof(line), 1));
    if (fflush(stdout) != 0 || run(&s) != LS_OK) {
        fprintf(stderr, "a still node: %s\n", ls_last_error());
        return 1;
    }
    _exit(0); /* it has nothing to give back that does not go with it */
}
