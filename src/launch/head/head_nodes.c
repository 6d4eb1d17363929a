/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_nodes.c - the connections of nodes: their messages become events of the rendezvous machine.
 * A node is trusted to have the key and no further: each message is checked. Called by the head's
 * listener and by the agent that hosts the head.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <signal.h>
#include <string.h>

enum {
    HELLO_MS = 5000,
    CLOSE_WAIT_MS = 200 /* for a better reason than a closed connection; ranks wait 300 ms */
};

/* --- sending --- */

void head_send(head_node *node, node_message type, const wire_writer *body)
{
    if (body == NULL)
        frame_link_send(&node->link, type, NULL, 0);
    else if (wire_writer_status(body) != LS_OK) // the node would wait for it without an end
        frame_link_fail(&node->link, ls_last_error());
    else
        frame_link_send(&node->link, type, body->data, body->bytes);
}

void head_send_free(head_node *node, node_message type, wire_writer *body)
{
    if (node != NULL)
        head_send(node, type, body);
    wire_writer_free(body);
}

void head_send_text(head_node *node, node_message type, const char *text)
{
    wire_writer w = {0};

    wire_write_text(&w, text);
    head_send_free(node, type, &w);
}

head_node *head_find_node(const head *h, uint64_t id)
{
    list_for_each_entry (head_node, node, &h->nodes, node)
        if (node->id == id)
            return node;
    return NULL;
}

/* --- the end of a connection --- */

static void free_node(head_node *node)
{
    list_remove(&node->node);
    poller_timer_cancel(&node->hello_limit);
    poller_timer_cancel(&node->close_wait);
    stream_mux_close(&node->streams);
    stream_mux_close(&node->hub_streams);
    stream_mux_close(&node->member_streams);
    head_drop_ring(node);
    frame_link_close(&node->link);
    ls_free(node->states);
    ls_free(node);
}

static void reap(void *arg)
{
    head *h = arg;

    while (!list_empty(&h->gone))
        free_node(list_entry(h->gone.next, head_node, node));
}

/* Records a loss for the report, which may be about several. */
static void note_loss(head *h, const head_node *node, const char *why)
{
    head_loss *loss;

    if (node->place == NULL || h->n_losses == h->n_places || h->ends[node->place->node].received ||
        rdzv_phase_now(h->machine) == RDZV_END)
        return;
    loss = &h->losses[h->n_losses++];
    *loss = (head_loss){.node = node->place->node};
    text_printable(loss->why, sizeof(loss->why), why);
}

bool head_explain_loss(head *h, int number, const char *why)
{
    for (int i = 0; i < h->n_losses; i++) {
        if (h->losses[i].node != number)
            continue;
        text_printable(h->losses[i].more, sizeof(h->losses[i].more), why);
        return true;
    }
    return false;
}

static void lose(head_node *node, int64_t last_seen_ms, const char *why)
{
    head *h = node->owner;
    rdzv_event gone = {
        .kind = RDZV_GONE, .conn = node->id, .last_seen_ms = last_seen_ms, .text = why};

    head_forget_node(node);
    head_recover_place(h, node->place, &gone);
    if (!gone.is_tolerated)
        note_loss(h, node, why);
    list_remove(&node->node);
    list_append(&h->gone, &node->node);
    poller_timer_cancel(&node->close_wait);
    frame_link_close(&node->link);
    if (!h->reaper.is_set)
        poller_timer_set(h->loop, &h->reaper, ls_now_ms(), reap, h);
    if (node->id != 0)
        head_event(h, &gone);
}

static void close_is_final(void *arg)
{
    head_node *node = arg;

    lose(node, node->closed_ms, "connection closed");
}

/* Its starter may soon report the reason: head_node_lost(). */
static void on_ended(void *arg, const char *why)
{
    head_node *node = arg;
    head *h = node->owner;

    if (node->link.is_closed_by_peer && h->opt.node_silent != NULL && !node->link.is_finishing &&
        node->id != 0) {
        node->closed_ms = ls_now_ms();
        poller_timer_set(h->loop, &node->close_wait, node->closed_ms + CLOSE_WAIT_MS,
                         close_is_final, node);
        return;
    }
    if (node->link.is_closed_by_peer)
        why = "connection closed"; /* clearer than the system's text */
    else
        ls_log(LS_LOG_WARN, "head", "connection of %s is dropped: %s", node->peer, why);
    lose(node, ls_now_ms(), why);
}

static void hello_timed_out(void *arg)
{
    head_node *node = arg;

    ls_log(LS_LOG_WARN, "head", "%s authenticated but sent no hello", node->peer);
    frame_link_finish(&node->link);
}

/* --- heartbeats --- */

/* A node without a heartbeat for too long; NULL: none. */
static head_node *find_silent(const head *h, int64_t now_ms)
{
    list_for_each_entry (head_node, node, &h->nodes, node)
        if (!node->is_own && !node->is_paused && !node->close_wait.is_set &&
            now_ms - node->link.received_ms > h->silence_ms)
            return node;
    return NULL;
}

bool head_has_remote_nodes(const head *h)
{
    list_for_each_entry (const head_node, node, &h->nodes, node)
        if (!node->is_own && node->id != 0)
            return true;
    return false;
}

static bool is_alone(const head *h)
{
    list_for_each_entry (const head_node, node, &h->nodes, node)
        if (!node->is_own)
            return false;
    return true;
}

static void lose_silent(head_node *node)
{
    head *h = node->owner;
    const int number = node->number;
    char why[NODE_SILENCE_TEXT];

    node_silence_text(why, h->silence_ms);
    lose(node, node->link.received_ms, why);
    if (h->opt.node_silent != NULL)
        h->opt.node_silent(h->opt.self, number, why);
}

void head_beat(void *arg)
{
    head *h = arg;
    const int64_t now_ms = ls_now_ms();
    const bool slept = now_ms - h->beat.due_ms > NODE_BEAT_MS; /* messages may still wait */
    head_node *silent;

    list_for_each_entry (head_node, node, &h->nodes, node) {
        head_send(node, NODE_BEAT, NULL);
        head_compare_clock(node);
    }
    while (!slept && (silent = find_silent(h, now_ms)) != NULL)
        lose_silent(silent);
    head_begin_standby(h);
    if (!is_alone(h))
        poller_timer_set(h->loop, &h->beat, now_ms + NODE_BEAT_MS, head_beat, h);
}

/* --- messages --- */

static void send_request(head_node *node)
{
    head *h = node->owner;
    wire_writer w = {0};

    if (h->opt.write_request(h->opt.self, &w) == LS_OK)
        head_send(node, NODE_LAUNCH_REQUEST, &w);
    else
        head_send_text(node, NODE_REJECT, ls_last_error());
    wire_writer_free(&w);
    poller_timer_cancel(&node->hello_limit);
    frame_link_finish(&node->link);
}

static ls_status handle_standby(head_node *node, const frame *f)
{
    text_buf text = {0};
    ls_status st = node_read_text(f, &text);

    if (st == LS_OK)
        st = net_address_decode(text_str(&text), &node->standby_at);
    text_free(&text);
    return st;
}

/* A machine that returns may have noticed its loss before this head has. */
static void lose_earlier(head *h, uint64_t uid)
{
    list_for_each_entry (head_node, node, &h->nodes, node) {
        if (uid == 0 || node->is_own || node->id == 0 || node->uid != uid)
            continue;
        lose(node, node->link.received_ms, "it has connected again");
        return;
    }
}

static ls_status handle_hello(head_node *node, const frame *f)
{
    head *h = node->owner;
    node_hello hello;
    rdzv_event arrived = {.kind = RDZV_ARRIVED, .hello = &hello.hello};

    if (f->type == NODE_FETCH_REQUEST && !node->is_own) {
        send_request(node);
        return LS_OK;
    }
    if (f->type == NODE_STANDBY)
        return handle_standby(node, f);
    if (f->type != NODE_HELLO)
        return ls_fail(LS_EPROTO, "message %u before the hello", f->type);
    LS_TRY(node_read_hello(f, &hello));
    if (h->moved != NULL) {
        const ls_status st = head_return(node, &hello.hello);

        node_hello_free(&hello);
        return st;
    }
    if (h->opt.rendezvous.min_ranks > 0)
        lose_earlier(h, hello.hello.uid);
    hello.hello.is_head = node->is_own;
    poller_timer_cancel(&node->hello_limit);
    node->id = ++h->last_id;
    node->uid = hello.hello.uid;
    node->number = hello.hello.id;
    arrived.conn = node->id;
    head_event(h, &arrived);
    node_hello_free(&hello);
    return LS_OK;
}

static ls_status handle_ready(head_node *node, const frame *f)
{
    head *h = node->owner;
    node_master master;
    rdzv_event ready = {.kind = RDZV_READY, .conn = node->id};

    LS_TRY(node_read_master(f, &master));
    if (master.generation == h->generation && node->place != NULL && node->place->node == 0 &&
        master.port != 0)
        h->store_port = master.port;
    ready.generation = master.generation;
    head_event(h, &ready);
    return LS_OK;
}

static ls_status handle_failure(head_node *node, const frame *f)
{
    head *h = node->owner;
    node_failure failure;
    rdzv_event failed = {.kind = RDZV_FAILED, .conn = node->id};

    LS_TRY(node_read_failure(f, &failure));
    failed.generation = failure.generation;
    failed.local_rank = failure.local_rank;
    failed.exit_code = failure.exit_code;
    failed.crashed = failure.crashed;
    failed.text = failure.text;
    failed.aborted = head_recent_abort(h);
    if (failure.generation == h->generation && node->place != NULL && h->failed_ms == 0)
        h->failed_ms = ls_now_ms();
    if (failure.generation != h->generation ||
        !head_recovers_rank(h, node, failure.local_rank, failure.text))
        head_event(h, &failed);
    return LS_OK;
}

static ls_status handle_rank_exit(head_node *node, const frame *f)
{
    const head *h = node->owner;
    node_exit left;

    LS_TRY(node_read_exit(f, &left));
    if (left.generation == h->generation && node->place != NULL &&
        left.local_rank < node->place->n_local)
        head_rank_ended_well(node->owner, node->place->rank_base + left.local_rank, &left);
    return LS_OK;
}

static ls_status handle_finished(head_node *node, const frame *f)
{
    head *h = node->owner;
    head_end end = {.received = true};
    rdzv_event finished = {.kind = RDZV_FINISHED, .conn = node->id};
    const ls_status st = node_read_end(f, &end.end, &end.text, &end.details);
    const bool is_current = st == LS_OK && end.end.generation == h->generation;

    finished.generation = end.end.generation;
    finished.stopped = end.end.stopped;
    finished.n_well = end.end.n_well;
    if (is_current && node->place != NULL) {
        if (!end.end.stopped && end.end.n_well > 0)
            head_elastic_finished(h, node->place);
        head_store_end(h, node->place->node, &end);
    } else {
        text_free(&end.text);
        text_free(&end.details);
    }
    if (st == LS_OK)
        head_event(h, &finished);
    return st;
}

static const char *name_sender(const head_node *node, char *by, size_t n)
{
    if (!node->is_own && node->place != NULL)
        text_format(by, n, "node %d (%s)", node->place->node, node->place->host);
    return by;
}

static ls_status handle_stop(head_node *node, const frame *f)
{
    char by[RDZV_HOST_BYTES + 32] = "";
    uint32_t number;
    /* The own agent may have no ranks: then it is not a node of the job. */
    rdzv_event stop = {.kind = RDZV_STOP, .conn = node->is_own ? RDZV_HEAD : node->id};

    LS_TRY(node_read_number(f, &number));
    stop.text = name_sender(node, by, sizeof(by));
    stop.signal = number < 65 ? (int)number : 0;
    head_event(node->owner, &stop);
    return LS_OK;
}

/* The ranks of the other nodes go on at once; this node is notified before the connection ends. */
static void let_leave(head_node *node)
{
    head *h = node->owner;
    rdzv_event gone = {.kind = RDZV_GONE,
                       .conn = node->id,
                       .last_seen_ms = ls_now_ms(),
                       .text = "it has left after SIGTERM"};

    head_send(node, NODE_LEAVE, NULL);
    frame_link_finish(&node->link);
    head_recover_place(h, node->place, &gone);
    head_event(h, &gone);
}

static ls_status handle_leave(head_node *node, const frame *f)
{
    rdzv_event leave = {.kind = RDZV_LEAVE, .conn = node->is_own ? RDZV_HEAD : node->id};
    char by[RDZV_HOST_BYTES + 32] = "";
    uint32_t number;

    LS_TRY(node_read_number(f, &number));
    leave.signal = number < 65 ? (int)number : 0;
    leave.text = name_sender(node, by, sizeof(by));
    if (!node->is_own && leave.signal == SIGTERM && head_can_spare(node->owner, node->place))
        let_leave(node);
    else
        head_event(node->owner, &leave);
    return LS_OK;
}

static ls_status handle_states(head_node *node, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t generation = wire_read_u32(&r);

    if (r.failed || generation != node->owner->generation || node->place == NULL ||
        node->states == NULL || r.bytes - r.at != (size_t)node->place->n_local)
        return LS_OK;
    memcpy(node->states, f->body + r.at, r.bytes - r.at);
    return LS_OK;
}

/* Ctrl-Z at one node stops all. A paused node sends no heartbeats until it resumes. */
static ls_status handle_pause(head_node *node, const frame *f)
{
    head *h = node->owner;

    node->is_paused = f->type == NODE_PAUSE;
    h->resumed_ms = ls_now_ms();
    list_for_each_entry (head_node, other, &h->nodes, node)
        if (other != node)
            head_send(other, f->type, NULL);
    return LS_OK;
}

static ls_status handle_stream(head_node *node, const frame *f)
{
    return stream_mux_receive(f->type == NODE_STREAM       ? &node->streams
                              : f->type == NODE_HUB_STREAM ? &node->hub_streams
                                                           : &node->member_streams,
                              f);
}

static const struct {
    node_message type;
    ls_status (*handle)(head_node *node, const frame *f);
} handlers[] = {
    {NODE_READY, handle_ready},
    {NODE_OFFER, head_handle_offer},
    {NODE_PROBED, head_handle_probed},
    {NODE_FAILED, handle_failure},
    {NODE_CAUSE, head_handle_cause},
    {NODE_RANK_EXITED, handle_rank_exit},
    {NODE_FINISHED, handle_finished},
    {NODE_STOP, handle_stop},
    {NODE_LEAVE, handle_leave},
    {NODE_MPI, head_handle_mpi},
    {NODE_MPI_KEYS, head_handle_mpi_keys},
    {NODE_MPI_BARRIER, head_handle_mpi_barrier},
    {NODE_STATES, handle_states},
    {NODE_PAUSE, handle_pause},
    {NODE_RESUME, handle_pause},
    {NODE_STREAM, handle_stream},
    {NODE_HUB_STREAM, handle_stream},
    {NODE_MEMBER_STREAM, handle_stream},
    {NODE_FOUND, head_handle_found},
    {NODE_OWNER_QUERY, head_handle_owner_query},
    {NODE_OWNER_ANSWER, head_handle_owner_answer},
    {NODE_RING, head_handle_ring},
    {NODE_CLOCK, head_handle_clock},
    {NODE_STATUS, head_handle_status},
};

static ls_status on_message(void *arg, const frame *f)
{
    head_node *node = arg;

    if (node->id == 0)
        return handle_hello(node, f);
    for (size_t k = 0; k < LS_COUNT_OF(handlers); k++)
        if (handlers[k].type == f->type)
            return handlers[k].handle(node, f);
    return f->type == NODE_BEAT ? LS_OK : ls_fail(LS_EPROTO, "unknown message %u", f->type);
}

static void on_drained(void *arg)
{
    head_node *node = arg;

    stream_mux_resume(&node->streams);
    stream_mux_resume(&node->hub_streams);
    stream_mux_resume(&node->member_streams);
}

/* --- new connections --- */

static head_node *enter(head *h, int fd, const char *peer, bool is_own)
{
    head_node *node = ls_calloc(1, sizeof(*node));

    if (node == NULL) {
        file_close(&fd);
        return NULL;
    }
    node->owner = h;
    node->number = -1;
    node->ring_fd = -1;
    node->ring_rank = -1;
    node->is_own = is_own;
    text_format(node->peer, sizeof(node->peer), "%s", peer);
    node->link.self = node;
    node->link.message = on_message;
    node->link.ended = on_ended;
    node->link.drained = on_drained;
    stream_mux_init(&node->streams, h->loop, &node->link, NODE_STREAM);
    node->streams.self = node;
    node->streams.open = head_open_store;
    stream_mux_init(&node->hub_streams, h->loop, &node->link, NODE_HUB_STREAM);
    node->hub_streams.self = node;
    node->hub_streams.open = head_open_hub_stream;
    stream_mux_init(&node->member_streams, h->loop, &node->link, NODE_MEMBER_STREAM);
    node->member_streams.self = node;
    node->member_streams.open = head_open_member_stream;
    list_append(&h->nodes, &node->node);
    if (frame_link_open(&node->link, h->loop, fd, node->peer, NODE_BODY_MAX, NODE_QUEUE_MAX) ==
        LS_OK)
        return node;
    ls_log(LS_LOG_ERROR, "head", "%s", ls_last_error());
    free_node(node);
    return NULL;
}

bool head_is_paused(const head *h)
{
    list_for_each_entry (const head_node, node, &h->nodes, node)
        if (node->is_paused)
            return true;
    return false;
}

void head_node_enter(void *arg, const listener_peer *peer)
{
    head *h = arg;
    head_node *node;
    int fd = peer->fd;

    if (peer->pid >= 0 && peer->claim.from == NODE_CALLER_HEAD && h->opt.other_head != NULL) {
        file_close(&fd);
        h->opt.other_head(h->opt.link, peer->name);
        return;
    }
    node = enter(h, peer->fd, peer->name, peer->pid < 0);
    if (node == NULL)
        return;
    frame_link_seal(&node->link, &peer->seals);
    if (head_is_paused(h))
        head_send(node, NODE_PAUSE, NULL); /* it connected after Ctrl-Z */
    poller_timer_set(h->loop, &node->hello_limit, ls_now_ms() + HELLO_MS, hello_timed_out, node);
    if (!node->is_own && !h->beat.is_set)
        poller_timer_set(h->loop, &h->beat, ls_now_ms() + NODE_BEAT_MS, head_beat, h);
}

void head_observer_enter(head *h, int fd)
{
    head_node *node = enter(h, fd, "this node", true);

    if (node == NULL)
        return;
    node->id = ++h->last_id;
    node->is_observer = true;
}

bool head_node_lost(head *h, int number, const char *why)
{
    list_for_each_entry (head_node, node, &h->nodes, node) {
        if (node->is_observer || node->number != number)
            continue;
        lose(node, node->close_wait.is_set ? node->closed_ms : ls_now_ms(), why);
        return true;
    }
    return false;
}

void head_free_nodes(head *h)
{
    while (!list_empty(&h->nodes))
        free_node(list_entry(h->nodes.next, head_node, node));
    reap(h);
}
