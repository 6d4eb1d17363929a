/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby.c - see standby.h. Two agents may be connected twice, when both have dialled; a message
 * goes over either. The agent's link and its head call it.
 */
#include "launch/head/standby.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/head/node_messages.h"
#include "net/auth/dial.h"
#include "net/auth/listener.h"
#include "net/messages/frame_link.h"

#include <string.h>

enum {
    STANDBY_FRAME = 1,
    BACKLOG = 64,
    DIAL_MS = 5000,
    GIVE_UP_MS = 10000, /* and the time of a silence: without a head */
    LATE_MS = 200       /* after this process was stopped: for messages that wait in its sockets */
};

#define BODY_MAX (STANDBY_STATE_MAX + (size_t)64 * 1024)

typedef struct standby_link {
    struct standby_peer *peer;
    frame_link link;
    bool is_open;
} standby_link;

typedef struct standby_peer {
    standby *owner;
    int node;
    net_address at; /* none: unknown */
    dial *dial;     /* while it connects */
    standby_link out;
    standby_link in;
    char name[32];
} standby_peer;

struct standby {
    poller *loop;
    standby_options opt;
    listener *listener;
    /* Of the present generation: */
    standby_group group; /* without its addresses */
    succession *machine; /* NULL: none */
    standby_peer *peers; /* group.n_nodes */
    net_address *addresses;
    void *state;
    size_t bytes;
    net_address leads_at; /* where this head accepts agents */
    int followed_node;    /* of the last head that was followed */
    poll_timer tick;
};

static void step(standby *s, const succession_event *e, const standby_message *m);

static void step_simple(standby *s, succession_event_kind kind, int node)
{
    step(s, &(succession_event){.kind = kind, .node = node}, NULL);
}

/* --- connections --- */

static bool is_connected(const standby_peer *p)
{
    return p->out.is_open || p->in.is_open;
}

static void on_ended(void *arg, const char *why)
{
    standby_link *l = arg;
    standby_peer *p = l->peer;
    standby *s = p->owner;

    ls_log(LS_LOG_DEBUG, "standby", "the connection to node %d has ended: %s", p->node, why);
    l->is_open = false;
    if (!is_connected(p))
        step_simple(s, SUCCESSION_LOST, p->node);
}

static ls_status on_frame(void *arg, const frame *f)
{
    const standby_link *l = arg;
    standby *s = l->peer->owner;
    standby_message m;
    ls_status st;

    if (f->type != STANDBY_FRAME)
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    st = standby_read_message(f->body, f->bytes, &m);
    if (st == LS_OK && m.message.has_state && m.state.n_addresses != s->group.n_nodes)
        st = ls_fail(LS_EPROTO, "a state of %d nodes in a group of %d", m.state.n_addresses,
                     s->group.n_nodes);
    if (st == LS_OK && m.generation == s->group.generation)
        step(s,
             &(succession_event){
                 .kind = SUCCESSION_MESSAGE, .node = l->peer->node, .message = &m.message},
             &m);
    standby_message_free(&m);
    return st;
}

/* Takes fd. */
static void open_link(standby_link *l, int fd, const seal_pair *seals)
{
    standby_peer *p = l->peer;

    frame_link_close(&l->link); // frees one that has ended
    l->link = (frame_link){.self = l, .message = on_frame, .ended = on_ended};
    l->is_open =
        frame_link_open(&l->link, p->owner->loop, fd, p->name, BODY_MAX, NODE_QUEUE_MAX) == LS_OK;
    if (!l->is_open)
        return;
    frame_link_seal(&l->link, seals);
    step_simple(p->owner, SUCCESSION_CONNECTED, p->node);
}

static void on_dialled(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    standby_peer *p = arg;
    dial *d = p->dial;

    LS_UNUSED(at);
    LS_UNUSED(st);
    p->dial = NULL;
    if (fd < 0)
        ls_log(LS_LOG_DEBUG, "standby", "node %d cannot be reached: %s", p->node, why);
    else
        open_link(&p->out, fd, dial_seals(d));
    dial_close(d);
}

static void open_dial(standby_peer *p)
{
    const standby *s = p->owner;
    const dial_options options = {
        .addresses = &p->at,
        .n_addresses = 1,
        .default_port = NET_PORT_REQUIRED,
        .key = s->opt.key,
        .claim = {.purpose = NET_PURPOSE_STANDBY,
                  .from = (uint32_t)s->group.self,
                  .to = HANDSHAKE_ANY_RANK,
                  .security = s->opt.security},
        .deadline_ms = ls_deadline_ms(DIAL_MS),
        .self = p,
        .done = on_dialled,
    };

    if (p->dial != NULL || p->out.is_open || p->node == s->group.self ||
        net_address_family(&p->at) == NET_NONE)
        return;
    if (dial_open(s->loop, &options, &p->dial) != LS_OK)
        ls_log(LS_LOG_WARN, "standby", "%s", ls_last_error());
}

/* A connection over which nothing has come for so long may carry nothing any more. */
static void close_silent(standby_link *l, int64_t silence_ms)
{
    if (!l->is_open || ls_now_ms() - l->link.received_ms < silence_ms)
        return;
    frame_link_close(&l->link);
    l->is_open = false;
}

static void dial_all(const standby *s)
{
    for (int i = 0; i < s->group.n_nodes; i++) {
        close_silent(&s->peers[i].out, s->group.silence_ms);
        open_dial(&s->peers[i]);
    }
}

/* The head does, for as long as it leads: the others may not know where it listens. */
static void dial_lost(const standby *s)
{
    for (int i = 0; i < s->group.n_nodes; i++)
        if (!is_connected(&s->peers[i]))
            open_dial(&s->peers[i]);
}

static void on_accepted(void *arg, const listener_peer *peer)
{
    standby *s = arg;
    const uint32_t node = peer->claim.from;
    int fd = peer->fd;

    if (s->machine == NULL || node >= (uint32_t)s->group.n_nodes ||
        node == (uint32_t)s->group.self) {
        file_close(&fd);
        return;
    }
    open_link(&s->peers[node].in, fd, &peer->seals);
}

/* --- messages --- */

/* The connection over which the last message has come: the other one may carry nothing. */
static standby_link *best_link(standby_peer *p)
{
    if (p->out.is_open && p->in.is_open)
        return p->in.link.received_ms > p->out.link.received_ms ? &p->in : &p->out;
    return p->out.is_open ? &p->out : &p->in;
}

static void send_message(standby *s, int node, const succession_message *message)
{
    standby_peer *p = &s->peers[node];
    standby_message m = {.generation = s->group.generation, .message = *message};
    wire_writer w = {0};

    if (!is_connected(p))
        return;
    m.leads_at = s->leads_at;
    m.message.has_state = message->has_state && s->state != NULL;
    if (m.message.has_state)
        m.state = (standby_state){s->addresses, s->group.n_nodes, s->state, s->bytes};
    standby_write_message(&w, &m);
    if (wire_writer_status(&w) == LS_OK)
        frame_link_send(&best_link(p)->link, STANDBY_FRAME, w.data, w.bytes);
    wire_writer_free(&w);
}

static ls_status store_state(standby *s, const void *state, size_t bytes)
{
    void *copy = ls_calloc(bytes + 1, 1);

    if (copy == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the state of the head");
    memcpy(copy, state, bytes);
    ls_free(s->state);
    s->state = copy;
    s->bytes = bytes;
    return LS_OK;
}

static void take_state(standby *s, const standby_message *m)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is a message
    if (store_state(s, m->state.bytes, m->state.n) != LS_OK) {
        ls_log(LS_LOG_ERROR, "standby", "%s", ls_last_error());
        ls_free(s->state); // the head counts this node as one that has the newer one
        s->state = NULL;
        s->opt.calls.leave(s->opt.calls.self);
        return;
    }
    for (int i = 0; i < s->group.n_nodes; i++)
        s->peers[i].at = s->addresses[i] = m->state.addresses[i];
}

/* --- actions --- */

static void lead(const standby *s)
{
    const standby_calls *c = &s->opt.calls;

    if (s->state != NULL)
        c->lead(c->self, s->state, s->bytes);
    else
        c->leave(c->self); // the first head was lost before it had a state
}

static void carry_out(standby *s, const succession_action *a, const standby_message *m)
{
    const standby_calls *c = &s->opt.calls;

    switch (a->kind) {
    case SUCCESSION_DO_SEND:
        send_message(s, a->node, &a->message);
        return;
    case SUCCESSION_DO_STORE:
        take_state(s, m);
        return;
    case SUCCESSION_DO_DIAL:
        dial_all(s);
        return;
    case SUCCESSION_DO_LEAD:
        lead(s);
        return;
    case SUCCESSION_DO_COMMIT:
        c->committed(c->self, a->number);
        return;
    case SUCCESSION_DO_CONFIRM:
        c->confirmed(c->self, a->number);
        return;
    case SUCCESSION_DO_FOLLOW: // when it has announced its address
        return;
    case SUCCESSION_DO_LEAVE:
        c->leave(c->self);
        return;
    }
}

static void follow(standby *s, const standby_message *m, int node)
{
    const standby_calls *c = &s->opt.calls;

    if (m->message.kind != SUCCESSION_STATE || m->message.term != succession_term(s->machine) ||
        succession_head(s->machine) != node)
        return;
    if (node == s->followed_node) {
        c->still_led(c->self);
        return;
    }
    if (net_address_family(&m->leads_at) == NET_NONE)
        return;
    s->followed_node = node;
    c->follow(c->self, &m->leads_at);
}

static void on_tick(void *arg)
{
    standby *s = arg;

    if (ls_now_ms() - s->tick.due_ms > NODE_BEAT_MS)
        poller_timer_set(s->loop, &s->tick, ls_now_ms() + LATE_MS, on_tick, s);
    else
        step_simple(s, SUCCESSION_TICK, -1);
}

/* The calls of an action may propose a state, which is another step. */
static void step(standby *s, const succession_event *e, const standby_message *m)
{
    succession_action actions[SUCCESSION_ACTIONS_MAX];
    succession_result r;

    if (s->machine == NULL)
        return;
    r = succession_step(s->machine, e, ls_now_ms());
    if (r.wake_at_ms == INT64_MAX)
        poller_timer_cancel(&s->tick);
    else
        poller_timer_set(s->loop, &s->tick, r.wake_at_ms, on_tick, s);
    memcpy(actions, r.actions, (size_t)r.n_actions * sizeof(*actions));
    for (int i = 0; i < r.n_actions; i++)
        carry_out(s, &actions[i], m);
    if (m != NULL)
        follow(s, m, e->node);
    if (s->machine != NULL && succession_is_head(s->machine))
        dial_lost(s);
}

/* --- the head --- */

bool standby_is_ready(const standby *s)
{
    return s->machine != NULL && s->state != NULL;
}

ls_status standby_propose(standby *s, const wire_writer *state, uint64_t *index)
{
    LS_TRY(wire_writer_status(state));
    if (state->bytes > STANDBY_STATE_MAX)
        return ls_fail(LS_EINVAL, "the state of the head has %zu bytes, more than %zu",
                       state->bytes, STANDBY_STATE_MAX);
    LS_TRY(store_state(s, state->data, state->bytes));
    step_simple(s, SUCCESSION_PROPOSE, -1);
    *index = succession_index(s->machine);
    return LS_OK;
}

uint64_t standby_confirm(standby *s)
{
    step_simple(s, SUCCESSION_CONFIRM, -1);
    return succession_round(s->machine);
}

void standby_announce(standby *s, const net_address *at)
{
    s->leads_at = *at;
    (void)standby_confirm(s); // sends it to all
}

/* --- life --- */

ls_status standby_begin(standby *s, const standby_group *g)
{
    const succession_options options = {.self = g->self,
                                        .n_nodes = g->n_nodes,
                                        .head = g->head,
                                        .beat_ms = NODE_BEAT_MS,
                                        .silence_ms = g->silence_ms,
                                        .give_up_ms = g->silence_ms + GIVE_UP_MS};
    const size_t n = (size_t)g->n_nodes;

    standby_end(s);
    LS_TRY(succession_create(&options, ls_now_ms(), &s->machine));
    s->group = *g;
    s->group.addresses = NULL;
    s->followed_node = g->head;
    s->peers = ls_calloc(n, sizeof(*s->peers));
    s->addresses = ls_calloc(n, sizeof(*s->addresses));
    if (s->peers == NULL || s->addresses == NULL) {
        standby_end(s);
        return ls_fail(LS_ENOMEM, "no memory for %d agents that may host the head", g->n_nodes);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        standby_peer *p = &s->peers[i];

        *p = (standby_peer){.owner = s, .node = i, .out = {.peer = p}, .in = {.peer = p}};
        text_format(p->name, sizeof(p->name), "node %d", i);
        if (g->addresses != NULL)
            p->at = s->addresses[i] = g->addresses[i];
    }
    if (g->addresses != NULL)
        dial_all(s);
    step_simple(s, SUCCESSION_TICK, -1);
    return LS_OK;
}

void standby_retire(standby *s)
{
    step_simple(s, SUCCESSION_RETIRE, -1);
}

void standby_return(standby *s)
{
    step_simple(s, SUCCESSION_RETURN, -1);
}

bool standby_is_member(const standby *s, uint32_t generation)
{
    return s->machine != NULL && s->group.generation == generation;
}

void standby_end(standby *s)
{
    poller_timer_cancel(&s->tick);
    for (int i = 0; s->peers != NULL && i < s->group.n_nodes; i++) {
        dial_close(s->peers[i].dial);
        frame_link_close(&s->peers[i].out.link);
        frame_link_close(&s->peers[i].in.link);
    }
    succession_destroy(s->machine);
    ls_free(s->peers);
    ls_free(s->addresses);
    ls_free(s->state);
    s->machine = NULL;
    s->peers = NULL;
    s->addresses = NULL;
    s->state = NULL;
    s->bytes = 0;
    s->leads_at = (net_address){.bytes = 0};
}

ls_status standby_create(poller *p, const standby_options *opt, standby **out)
{
    listener_options listens = {.name = "standby",
                                .key = opt->key,
                                .expected = {.purpose = NET_PURPOSE_STANDBY,
                                             .to = HANDSHAKE_ANY_RANK,
                                             .security = opt->security},
                                .accepted = on_accepted};
    standby *s;
    ls_status st;

    LS_TRY(LS_NEW(&s, 1, "for a standby head"));
    s->loop = p;
    s->opt = *opt;
    listens.self = s;
    st = listener_create(p, &listens, &s->listener);
    if (st == LS_OK)
        *out = s;
    else
        standby_destroy(s);
    return st;
}

ls_status standby_listen(standby *s, const net_address *at, net_address *bound)
{
    net_address here = *at;
    int fd;

    net_address_set_port(&here, 0);
    LS_TRY(net_listen_in(&here, s->opt.ports, 0, NET_STREAM, BACKLOG, &fd, bound));
    return listener_listen_take(s->listener, fd);
}

void standby_destroy(standby *s)
{
    if (s == NULL)
        return;
    standby_end(s);
    listener_destroy(s->listener);
    ls_free(s);
}
