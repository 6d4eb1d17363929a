/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous_nodes.c - the queue of messages, and what the nodes do (rendezvous_nodes.h). */
#include "rendezvous_nodes.h"

#include "base/text.h"

#include <signal.h>

#define SILENT_MS 5000

sim_node sim_nodes[NODES_MAX];

int sim_below(sim *s, int n)
{
    return (int)ls_rng_below(&s->rng, (uint64_t)n);
}

bool sim_chance(sim *s, int percent)
{
    return sim_below(s, 100) < percent;
}

bool sim_fault(sim *s, int percent)
{
    return s->now < s->calm_ms && sim_below(s, 10000) < percent * s->fault_percent;
}

/* --- messages in order of time --- */

static bool is_before(const message *a, const message *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

message *sim_post(sim *s, message_kind kind, int node, int64_t at_ms)
{
    message *m;
    int i = s->n_box++;

    CHECK(s, s->n_unused > 0);
    m = s->unused[--s->n_unused];
    *m = (message){.at_ms = at_ms,
                   .order = s->order++,
                   .kind = kind,
                   .node = node,
                   .conn = sim_nodes[node].conn};
    for (; i > 0 && is_before(m, s->box[(i - 1) / 2]); i = (i - 1) / 2)
        s->box[i] = s->box[(i - 1) / 2];
    s->box[i] = m;
    return m;
}

message sim_take(sim *s)
{
    message *const first = s->box[0];
    message *const last = s->box[--s->n_box];
    int i = 0;

    for (;;) {
        int child = 2 * i + 1;

        if (child >= s->n_box)
            break;
        if (child + 1 < s->n_box && is_before(s->box[child + 1], s->box[child]))
            child++;
        if (!is_before(s->box[child], last))
            break;
        s->box[i] = s->box[child];
        i = child;
    }
    s->box[i] = last;
    s->unused[s->n_unused++] = first;
    return *first;
}

int64_t sim_arrival(sim *s, int64_t *last_ms)
{
    const int64_t at = s->now + 1 + (sim_chance(s, 90) ? sim_below(s, 20) : sim_below(s, 900));

    *last_ms = at > *last_ms ? at : *last_ms;
    return *last_ms;
}

/* --- messages of a node --- */

static message *tell_head(sim *s, int i, rdzv_event_kind kind)
{
    sim_node *node = &sim_nodes[i];
    message *m;

    if (node->is_cut || node->conn == 0)
        return NULL;
    m = sim_post(s, MSG_EVENT, i, sim_arrival(s, &node->to_head_ms));
    m->event = (rdzv_event){.kind = kind, .conn = node->conn, .generation = node->generation};
    return m;
}

static void come(sim *s, int i)
{
    sim_node *node = &sim_nodes[i];

    if (node->life != LIFE_AWAY || node->rejected || s->ended)
        return;
    if (node->stays_away && s->n_conns > 0 && sim_chance(s, 50)) {
        node->rejected = true;
        s->n_rejected++;
        return;
    }
    node->life = LIFE_COMING;
    CHECK(s, s->n_conns < CONNS_MAX - 1);
    node->conn = ++s->n_conns;
    node->uid = sim_chance(s, 50) ? ls_rng_next(&s->rng) : 0;
    node->is_cut = false;
    node->generation = 0;
    node->to_head_ms = node->to_node_ms = s->now;
    tell_head(s, i, RDZV_ARRIVED);
}

/* The head receives it at once, or after 5 s of silence. */
static void lose_connection(sim *s, int i, bool silent)
{
    sim_node *node = &sim_nodes[i];
    message *m;

    if (node->conn == 0)
        return;
    m = sim_post(s, MSG_EVENT, i,
                 silent                          ? s->now + SILENT_MS
                 : node->to_head_ms > s->now + 1 ? node->to_head_ms
                                                 : s->now + 1);
    m->event = (rdzv_event){
        .kind = RDZV_GONE, .conn = node->conn, .last_seen_ms = silent ? s->now : INT64_MAX};
    node->conn = 0;
}

static void go_away(sim *s, int i, bool silent)
{
    lose_connection(s, i, silent);
    sim_nodes[i].life = LIFE_AWAY;
    sim_nodes[i].is_cut = false;
    /* The node is restarted; after the calm always. */
    if (!sim_nodes[i].rejected)
        sim_post(s, MSG_COME, i, s->now + 1 + sim_below(s, 8000));
}

static void report_failure(sim *s, int i, bool crashed)
{
    message *m;

    if (sim_nodes[i].life != LIFE_RUNNING)
        return;
    m = tell_head(s, i, RDZV_FAILED);
    if (m != NULL) {
        m->event.local_rank = sim_below(s, sim_nodes[i].n_local);
        m->event.crashed = crashed;
        m->event.exit_code = crashed ? 137 : 1 + sim_below(s, 100);
    }
}

/* The others' pending calls fail, some time after the ranks of node i are gone. */
static void drag_others(sim *s, int i)
{
    for (int n = 0; n < 3; n++) {
        const int other = sim_below(s, s->n_nodes);

        if (other != i && sim_nodes[other].life == LIFE_RUNNING)
            sim_post(s, MSG_DRAG, other, s->now + sim_below(s, 60))->generation =
                sim_nodes[other].generation;
    }
}

/* --- what a node does with an action --- */

static void end_ranks(sim *s, int i)
{
    sim_node *node = &sim_nodes[i];
    message *m;

    if (node->life == LIFE_ENDED)
        return; // finished has been sent
    if (node->unkillable && node->life == LIFE_RUNNING) {
        node->life = LIFE_STUCK;
        return;
    }
    node->life = LIFE_ENDED;
    m = tell_head(s, i, RDZV_FINISHED);
    if (m != NULL) {
        m->event.stopped = true;
    }
}

static void start_ranks(sim *s, int i)
{
    sim_nodes[i].life = LIFE_RUNNING;
    if (sim_fault(s, 4))
        sim_post(s, MSG_FAIL, i, s->now + sim_below(s, 4000))->generation = sim_nodes[i].generation;
    sim_post(s, MSG_DONE, i, s->now + 20000 + sim_below(s, 50))->generation =
        sim_nodes[i].generation;
}

static void obey(sim *s, int i, rdzv_action_kind action)
{
    sim_node *node = &sim_nodes[i];

    switch (action) {
    case RDZV_DO_WELCOME:
        CHECK(s, node->life != LIFE_RUNNING && node->life != LIFE_STUCK);
        node->life = LIFE_AGREED;
        if (!sim_fault(s, 1))
            tell_head(s, i, RDZV_READY);
        return;
    case RDZV_DO_START:
        CHECK(s, node->life == LIFE_AGREED);
        start_ranks(s, i);
        return;
    case RDZV_DO_STOP:
    case RDZV_DO_ABORT:
    case RDZV_DO_KILL:
        end_ranks(s, i);
        return;
    case RDZV_DO_REJECT:
        node->rejected = node->life == LIFE_STUCK;
        s->n_rejected += node->rejected;
        lose_connection(s, i, false);
        go_away(s, i, false);
        return;
    case RDZV_DO_END:
        node->rejected = true;
        lose_connection(s, i, false);
        go_away(s, i, false);
        return;
    case RDZV_DO_WAIT:
    case RDZV_DO_ROSTER:
    case RDZV_DO_NOTE:
    case RDZV_DO_RESTART:
    case RDZV_DO_FINISH:
        return;
    }
}

/* --- a message arrives --- */

static void deliver_event(sim *s, const message *m)
{
    sim_node *node = &sim_nodes[m->node];
    rdzv_hello hello = {.uid = node->uid,
                        .is_head = m->node == 0,
                        .id = node->id,
                        .n_local = node->n_local,
                        .version = "1",
                        .min_nodes = s->opt.min_nodes,
                        .max_nodes = s->opt.max_nodes};
    rdzv_event e = m->event;
    char host[16];
    char text[48];

    text_format(host, sizeof(host), "h%d", node->host);
    hello.host = host;
    e.hello = &hello;
    if (e.kind == RDZV_FAILED) {
        text_format(text, sizeof(text), "failure %" PRIu64, m->order);
        e.text = text;
    }
    sim_step(s, &e, m->node);
}

static void deliver_action(sim *s, const message *m)
{
    if (sim_nodes[m->node].conn != m->conn || sim_nodes[m->node].is_cut || m->conn == 0)
        return;
    if (m->action == RDZV_DO_WELCOME)
        sim_nodes[m->node].generation = m->generation;
    obey(s, m->node, m->action);
    if (m->action == RDZV_DO_WELCOME && sim_fault(s, 3))
        sim_post(s, MSG_CRASH, m->node, s->now + sim_below(s, 100));
}

static void connect_again(sim *s, int i)
{
    sim_node *node = &sim_nodes[i];

    if (node->conn == 0 || node->is_cut || node->uid == 0)
        return;
    CHECK(s, s->n_conns < CONNS_MAX - 1);
    node->conn = ++s->n_conns; // the old one is left open and says nothing any more
    node->life = LIFE_COMING;
    node->generation = 0;
    node->to_head_ms = node->to_node_ms = s->now;
    tell_head(s, i, RDZV_ARRIVED);
}

void sim_deliver(sim *s, const message *m)
{
    sim_node *node = &sim_nodes[m->node];
    const bool is_running = node->life == LIFE_RUNNING && node->generation == m->generation;
    message *sent;

    switch (m->kind) {
    case MSG_EVENT:
        deliver_event(s, m);
        return;
    case MSG_ACTION:
        deliver_action(s, m);
        return;
    case MSG_COME:
        come(s, m->node);
        return;
    case MSG_CRASH:
        if (node->life == LIFE_AWAY)
            return;
        drag_others(s, m->node);
        go_away(s, m->node, sim_chance(s, 30));
        return;
    case MSG_CUT: // both sides notice after 5 s; the node ends its ranks then
        if (node->conn == 0 || node->is_cut)
            return;
        drag_others(s, m->node);
        node->is_cut = true;
        sim_post(s, MSG_CRASH, m->node, s->now + SILENT_MS);
        lose_connection(s, m->node, true);
        return;
    case MSG_RECONNECT:
        connect_again(s, m->node);
        return;
    case MSG_FAIL:
    case MSG_DRAG:
        if (!is_running)
            return;
        report_failure(s, m->node, m->kind == MSG_FAIL && sim_chance(s, 50));
        if (m->kind == MSG_FAIL)
            drag_others(s, m->node);
        return;
    case MSG_DONE:
        if (!is_running)
            return;
        node->life = LIFE_ENDED;
        sent = tell_head(s, m->node, RDZV_FINISHED);
        if (sent != NULL)
            sent->event.n_well = sim_nodes[m->node].n_local;
        return;
    case MSG_LEAVE:
    case MSG_LEAVE_AGAIN:
        sent = tell_head(s, m->node, m->kind == MSG_LEAVE ? RDZV_LEAVE : RDZV_STOP);
        if (sent == NULL)
            return;
        sent->event.signal = SIGTERM;
        if (m->kind == MSG_LEAVE && sim_chance(s, 30))
            sim_post(s, MSG_LEAVE_AGAIN, m->node, s->now + sim_below(s, 2000));
        return;
    case MSG_STOP:
        s->stop_signal = s->stop_signal == 0 ? SIGINT : s->stop_signal;
        if (!s->ended)
            sim_step(s, &(rdzv_event){.kind = RDZV_STOP, .signal = SIGINT}, 0);
        return;
    }
}
