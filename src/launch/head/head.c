/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.c - passes events to the rendezvous machine and carries out its actions, in their order.
 * Called by the agent that hosts the head, and by the other parts of the head.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

enum {
    ROSTER_FIRST_MS = 700, /* a job that has formed by then needs no roster */
    ROSTER_AGAIN_MS = 10000
};

/* --- the machine --- */

static void on_tick(void *arg)
{
    const rdzv_event tick = {.kind = RDZV_TICK};

    head_event(arg, &tick);
}

void head_broadcast_note(head *h, const char *text)
{
    list_for_each_entry (head_node, node, &h->nodes, node)
        head_send_text(node, NODE_NOTE, text);
}

/* --- the roster --- */

static void show_roster(void *arg)
{
    head *h = arg;

    if (rdzv_phase_now(h->machine) != RDZV_COLLECT)
        return;
    head_broadcast_note(h, rdzv_roster(h->machine));
    if (!h->roster_shown && h->opt.hint != NULL)
        head_broadcast_note(h, h->opt.hint);
    h->roster_shown = true;
    poller_timer_set(h->loop, &h->roster_timer, ls_now_ms() + ROSTER_AGAIN_MS, show_roster, h);
}

/* A change is shown at once after the first roster, which is shown only if the job forms slowly. */
static void roster_changed(head *h)
{
    if (h->opt.quiet_roster)
        return;
    if (h->roster_shown) {
        head_broadcast_note(h, rdzv_roster(h->machine));
        poller_timer_set(h->loop, &h->roster_timer, ls_now_ms() + ROSTER_AGAIN_MS, show_roster, h);
    } else if (!h->roster_timer.is_set) {
        poller_timer_set(h->loop, &h->roster_timer, ls_now_ms() + ROSTER_FIRST_MS, show_roster, h);
    }
}

/* --- actions --- */

/* The present generation has it in the place of a lost node. */
static void replace_node(head *h, const rdzv_place *place)
{
    char text[2 * RDZV_HOST_BYTES + 96];

    text_format(text, sizeof(text), "node %d (%s) is replaced by %s", place->node,
                h->places[place->node].host, place->host);
    head_broadcast_note(h, text);
    h->places[place->node] = *place;
    h->has_offer[place->node] = false;
}

static int own_node(const head *h)
{
    list_for_each_entry (const head_node, node, &h->nodes, node)
        for (int i = 0; node->is_own && i < h->n_places; i++)
            if (h->places[i].conn == node->id)
                return i;
    return 0;
}

static void welcome(head *h, head_node *node, const rdzv_place *place)
{
    node_welcome v = {.place = *place,
                      .has_store = h->store != NULL,
                      .collects_rings = h->opt.keep_ring != NULL,
                      .silence_ms = (int)h->silence_ms,
                      .max_restarts = h->opt.rendezvous.max_restarts};
    wire_writer w = {0};
    int n;
    const rdzv_place *places = rdzv_places(h->machine, &n);

    if (place->is_late)
        replace_node(h, place);
    node->place = h->places == NULL ? NULL : &h->places[place - places];
    ls_free(node->states);
    node->states = ls_calloc((size_t)place->n_local + 1, 1);
    node->mpi = (node_mpi){0};
    node->mpi_barrier = 0;
    memcpy(v.job, h->job, sizeof(v.job));
    memcpy(v.mpi_layout, h->mpi_layout, sizeof(v.mpi_layout));
    v.has_standby = h->has_standby;
    v.head_node = own_node(h);
    if (node->is_own || h->has_standby)
        net_address_text(v.hub_unix, sizeof(v.hub_unix), &h->hub_unix);
    else
        v.hub_port = h->hub_port;
    head_write_members(h, node, &v);
    node_write_welcome(&w, &v);
    head_send_free(node, NODE_WELCOME, &w);
}

static void send_start(const head *h, head_node *node, uint32_t generation)
{
    const node_master master = {.generation = generation, .port = h->store_port};
    wire_writer w = {0};

    node_write_master(&w, &master);
    head_send_free(node, NODE_START, &w);
}

static void send_stop(head_node *node, const rdzv_action *action)
{
    node_stop stop = {.signal = action->signal, .grace_ms = action->grace_ms};
    wire_writer w = {0};

    text_format(stop.text, sizeof(stop.text), "%s", action->text != NULL ? action->text : "");
    node_write_stop(&w, &stop);
    head_send_free(node, NODE_END_RANKS, &w);
}

static void send_abort(head *h, head_node *node, const rdzv_action *action)
{
    wire_writer w = {0};

    if (h->hub != NULL)
        hub_abort(h->hub, action->cause); /* no effect after the first */
    cause_write(&w, action->cause);
    head_send_free(node, NODE_ABORT, &w);
}

static void send_over(const head *h, head_node *node, const rdzv_action *action)
{
    wire_writer w = {0};
    text_buf report = {0};
    node_over over = {.exit_code = action->exit_code};

    if (action->exit_code != 0)
        head_make_report(h, action->text, &report, &over.exit_code);
    over.failed = head_has_failed(h, over.exit_code);
    over.report = text_str(&report);
    node_write_over(&w, &over);
    head_send(node, NODE_OVER, &w);
    text_free(&report);
    wire_writer_free(&w);
    if (!node->is_own)
        frame_link_finish(&node->link);
}

static void act_on_node(head *h, head_node *node, const rdzv_action *action)
{
    switch (action->kind) {
    case RDZV_DO_WELCOME:
        welcome(h, node, action->place);
        break;
    case RDZV_DO_WAIT:
        head_send_text(node, NODE_WAIT, action->text);
        break;
    case RDZV_DO_REJECT:
        head_send_text(node, NODE_REJECT, action->text);
        frame_link_finish(&node->link);
        break;
    case RDZV_DO_START:
        send_start(h, node, action->place->generation);
        head_compare_clock(node);
        if (action->place->is_late)
            head_offer_slots(h, action->place);
        break;
    case RDZV_DO_STOP:
        send_stop(node, action);
        break;
    case RDZV_DO_ABORT:
        send_abort(h, node, action);
        break;
    case RDZV_DO_KILL:
        head_send(node, NODE_KILL, NULL);
        break;
    case RDZV_DO_END:
        send_over(h, node, action);
        break;
    case RDZV_DO_NOTE:
        head_send_text(node, NODE_NOTE, action->text);
        break;
    case RDZV_DO_ROSTER:
    case RDZV_DO_RESTART:
    case RDZV_DO_FINISH:
        break;
    }
}

/* The end of the job, or a stop: observers have no ranks to end, but print it. */
static void act_on_observers(const head *h, const rdzv_action *action)
{
    list_for_each_entry (head_node, node, &h->nodes, node)
        if (node->is_observer && action->kind == RDZV_DO_STOP)
            send_stop(node, action);
        else if (node->is_observer)
            send_over(h, node, action);
}

static void act(head *h, const rdzv_action *action)
{
    head_node *node = action->conn == RDZV_HEAD ? NULL : head_find_node(h, action->conn);

    if (node != NULL)
        act_on_node(h, node, action);
    else if (action->kind == RDZV_DO_FINISH)
        act_on_observers(h, action);
    else if (action->kind == RDZV_DO_ROSTER)
        roster_changed(h);
    else if (action->kind == RDZV_DO_RESTART ||
             (action->kind == RDZV_DO_NOTE && action->conn == RDZV_HEAD))
        head_broadcast_note(h, action->text);
}

static bool has_new_roster(const head *h, const rdzv_result *r)
{
    for (int i = 0; i < r->n_actions; i++)
        if (r->actions[i].kind == RDZV_DO_WELCOME &&
            r->actions[i].place->generation != h->generation)
            return true;
    return false;
}

static void carry_out(head *h, const rdzv_result *r)
{
    const rdzv_action *stop = NULL;

    for (int i = 0; i < r->n_actions; i++) {
        if (r->actions[i].kind == RDZV_DO_STOP)
            stop = &r->actions[i];
        act(h, &r->actions[i]);
    }
    if (stop != NULL)
        act_on_observers(h, stop);
    head_begin_standby(h);
    if (r->wake_at_ms == RDZV_NEVER)
        poller_timer_cancel(&h->tick);
    else
        poller_timer_set(h->loop, &h->tick, r->wake_at_ms, on_tick, h);
}

void head_fail_generation(head *h, const char *why)
{
    int n;
    int first = 0;
    const rdzv_place *places = rdzv_places(h->machine, &n);
    rdzv_event failed = {.kind = RDZV_FAILED,
                         .generation = places[0].generation,
                         .local_rank = -1,
                         .exit_code = 1,
                         .text = why};
    rdzv_result r;

    while (first < n - 1 && head_find_node(h, places[first].conn) == NULL)
        first++; // a lost one has no failures
    failed.conn = places[first].conn;
    r = rdzv_step(h->machine, &failed, ls_now_ms());
    carry_out(h, &r);
}

void head_event(head *h, const rdzv_event *event)
{
    const rdzv_result r = rdzv_step(h->machine, event, ls_now_ms());
    char why[LS_ERROR_BYTES] = "";

    if (has_new_roster(h, &r) && head_open_generation(h) != LS_OK)
        text_format(why, sizeof(why), "%s", ls_last_error());
    carry_out(h, &r);
    if (why[0] != 0)
        head_fail_generation(h, why);
}

void head_resumed(head *h)
{
    h->resumed_ms = ls_now_ms();
}

/* --- life --- */

ls_status head_job_key(const net_key *key, const char *job, net_key *out)
{
    return net_key_derive(key, "job", job, out);
}

static ls_status name_job(head *h)
{
    uint64_t random;

    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ls_fail_errno("random bytes for the job's name");
    text_format(h->job, sizeof(h->job), "%016llx", (unsigned long long)random);
    return head_job_key(&h->key, h->job, &h->job_key);
}

ls_status head_allocate(poller *p, const head_options *opt, head **out)
{
    head *h;

    *out = NULL;
    LS_TRY(LS_NEW(&h, 1, "for the head of a job"));
    h->loop = p;
    h->opt = *opt;
    h->key = *opt->key;
    h->silence_ms = net_silence_ms();
    list_init(&h->nodes);
    list_init(&h->gone);
    *out = h;
    return LS_OK;
}

ls_status head_create(poller *p, const head_options *opt, head **out)
{
    ls_status st;

    LS_TRY(head_allocate(p, opt, out));
    st = rdzv_create(&opt->rendezvous, ls_now_ms(), &(*out)->machine);
    if (st == LS_OK)
        st = name_job(*out);
    if (st != LS_OK) {
        head_destroy(*out);
        *out = NULL;
    }
    return st;
}

ls_status head_listen(head *h, const net_address *at, net_address *bound)
{
    const listener_options options = {
        .name = "head",
        .key = h->opt.insecure ? NULL : &h->key,
        .insecure = h->opt.insecure,
        .expected = {.purpose = NET_PURPOSE_NODE,
                     .to = HANDSHAKE_ANY_RANK,
                     .security = h->opt.security},
        .n_expected = h->opt.rendezvous.max_nodes,
        .self = h,
        .accepted = head_node_enter,
    };

    if (h->listener == NULL)
        LS_TRY(listener_create(h->loop, &options, &h->listener));
    LS_TRY(listener_listen(h->listener, at, bound));
    h->listens_at = *bound;
    return LS_OK;
}

ls_status head_connect_own(head *h, int *fd)
{
    listener_peer peer = {.name = "this node", .pid = -1};
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return ls_fail_errno("a socket pair");
    *fd = fds[0];
    peer.fd = fds[1];
    head_node_enter(h, &peer);
    return LS_OK;
}

ls_status head_connect_observer(head *h, int *fd)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return ls_fail_errno("a socket pair");
    *fd = fds[0];
    head_observer_enter(h, fds[1]);
    return LS_OK;
}

bool head_is_waiting(const head *h)
{
    return rdzv_phase_now(h->machine) == RDZV_COLLECT || rdzv_phase_now(h->machine) == RDZV_AGREE;
}

bool head_has_started(const head *h)
{
    return h->generation > 0;
}

void head_destroy(head *h)
{
    if (h == NULL)
        return;
    poller_timer_cancel(&h->tick);
    poller_timer_cancel(&h->beat);
    poller_timer_cancel(&h->roster_timer);
    listener_destroy(h->listener);
    head_free_nodes(h);
    head_close_moved(h);
    poller_timer_cancel(&h->reaper);
    head_close_generation(h);
    head_free_networks(h);
    rdzv_destroy(h->machine);
    net_key_wipe(&h->key);
    net_key_wipe(&h->job_key);
    ls_free(h);
}
