/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_sim.c - whole jobs of simulated nodes around the rendezvous machine, by thousands
 * of seeded schedules.
 *
 * Time is simulated: messages take random times, in order on one connection and in any order
 * between nodes; connections die with or without a word; nodes crash, come back, come twice, come
 * as spares, do not get ready, cannot be killed, get SIGTERM; ranks fail, and drag others along.
 * After a while no new faults happen. The head is ticked only when it asked for it.
 *
 * LS_TEST_ROUNDS multiplies the number of schedules, LS_TEST_SEED=N runs that one alone.
 */
#include "base/unit.h"

#include "base/rng.h"
#include "base/text.h"
#include "launch/head/rendezvous/rendezvous.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NODES_MAX = 1100,
    MESSAGES_MAX = 65536,
    SILENT_MS = 5000,
    ROUNDS = 6000,
    STEPS_MAX = 2000000
};

/* --- the world --- */

typedef enum life {
    LIFE_AWAY,    /* no process, no connection */
    LIFE_COMING,  /* its hello is on the way, or it is collected */
    LIFE_AGREED,  /* ready has been sent */
    LIFE_RUNNING, /* its ranks run */
    LIFE_ENDED,   /* they have ended, of the generation it knows */
    LIFE_STUCK    /* runs, and cannot be ended */
} life;

typedef struct sim_node {
    life life;
    uint64_t conn; /* of this life; 0: none */
    uint64_t uid;
    int id;
    int n_local;
    int host;
    uint32_t generation;
    bool is_cut;        /* nothing gets through in either direction any more */
    int64_t to_head_ms; /* nothing may arrive before what was sent before */
    int64_t to_node_ms;
    bool unkillable;
    bool stays_away; /* once it has gone */
    bool rejected;   /* or at the end: it stays away */
} sim_node;

typedef enum message_kind {
    MSG_EVENT,       /* to the head, from a connection that may be gone by then */
    MSG_ACTION,      /* to a node */
    MSG_CRASH,       /* a node's process ends */
    MSG_CUT,         /* a node's network is cut */
    MSG_COME,        /* a node starts and connects */
    MSG_RECONNECT,   /* a connected node connects again, leaving its old connection open */
    MSG_FAIL,        /* a rank of a node fails by itself */
    MSG_DONE,        /* the ranks of a node end well */
    MSG_DRAG,        /* a rank of a node fails because another node's ranks are gone */
    MSG_LEAVE,       /* a node gets SIGTERM */
    MSG_LEAVE_AGAIN, /* a second one */
    MSG_STOP         /* the end is requested */
} message_kind;

typedef struct message {
    int64_t at_ms;
    uint64_t order;
    message_kind kind;
    int node;
    uint64_t conn;
    uint32_t generation;
    rdzv_event event;
    rdzv_action_kind action;
} message;

typedef struct sim {
    uint64_t seed;
    ls_rng rng;
    rdzv *m;
    rdzv_options opt;
    int64_t now;
    int64_t wake_at;
    int64_t calm_ms; /* no faults after it */
    int64_t last_status_ms;
    int fault_percent;
    int n_nodes;
    uint64_t n_conns;
    uint64_t order;
    message *box[MESSAGES_MAX]; /* a heap by time */
    message store[MESSAGES_MAX];
    message *unused[MESSAGES_MAX];
    int n_box;
    int n_unused;

    /* What the head.s actions have announced. */
    uint32_t generation;
    int status_nodes;
    bool started;
    int n_restarts;
    bool ended;
    int exit_code;
    char end_text[RDZV_TEXT_BYTES];
    bool has_cause; /* the oracle's: the first failure that the head received in this roster */
    bool cause_crash;
    int64_t cause_ms;
    char cause_text[64];
    int stop_signal;
    int n_rejected;
} sim;

static sim world;

/* What all schedules together have met: a simulator that meets nothing proves nothing. */
static struct {
    int rosters;
    int starts;
    int restarts;
    int free_restarts;
    int good_ends;
    int failed_ends;
    int stopped_ends;
    int late_ends; /* nodes did not come (back) */
    int rejects;
    int spares;
    int kills;
    int leaves;
    int needed; /* nodes that the job could not spare */
} met;

static sim_node nodes[NODES_MAX];
/* Of the roster, by node. */
static uint64_t status_conn[NODES_MAX];
static unsigned char is_ready[NODES_MAX];
static unsigned char has_ended[NODES_MAX];
static bool is_given_up; /* a node of it, before it started */

/* What the head has received from each connection and answered, as far as it counts for SIGTERM. */
enum { CONNS_MAX = 1 << 16 };
typedef enum standing { UNKNOWN, STAYING, LEAVING } standing;
static unsigned char standing_of[CONNS_MAX];

#define CHECK(s, expr)                                                                             \
    do {                                                                                           \
        if (!(expr))                                                                               \
            fail_msg("LS_TEST_SEED=%" PRIu64 ": %s, at %" PRId64 " ms", (s)->seed, #expr,          \
                     (s)->now);                                                                    \
    } while (0)

static int below(sim *s, int n)
{
    return (int)ls_rng_below(&s->rng, (uint64_t)n);
}

static bool chance(sim *s, int percent)
{
    return below(s, 100) < percent;
}

/* Only before the calm, and as often as this schedule has it. */
static bool fault(sim *s, int percent)
{
    return s->now < s->calm_ms && below(s, 10000) < percent * s->fault_percent;
}

/* --- message in order of time --- */

static bool is_before(const message *a, const message *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

static message *post(sim *s, message_kind kind, int node, int64_t at_ms)
{
    message *m;
    int i = s->n_box++;

    CHECK(s, s->n_unused > 0);
    m = s->unused[--s->n_unused];
    *m = (message){
        .at_ms = at_ms, .order = s->order++, .kind = kind, .node = node, .conn = nodes[node].conn};
    for (; i > 0 && is_before(m, s->box[(i - 1) / 2]); i = (i - 1) / 2)
        s->box[i] = s->box[(i - 1) / 2];
    s->box[i] = m;
    return m;
}

static message take(sim *s)
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

/* When a message that is sent now arrives: not before what was sent before it. */
static int64_t arrival(sim *s, int64_t *last_ms)
{
    const int64_t at = s->now + 1 + (chance(s, 90) ? below(s, 20) : below(s, 900));

    *last_ms = at > *last_ms ? at : *last_ms;
    return *last_ms;
}

/* --- messages of a node --- */

static message *tell_head(sim *s, int i, rdzv_event_kind kind)
{
    sim_node *node = &nodes[i];
    message *m;

    if (node->is_cut || node->conn == 0)
        return NULL;
    m = post(s, MSG_EVENT, i, arrival(s, &node->to_head_ms));
    m->event = (rdzv_event){.kind = kind, .conn = node->conn, .generation = node->generation};
    return m;
}

static void come(sim *s, int i)
{
    sim_node *node = &nodes[i];

    if (node->life != LIFE_AWAY || node->rejected || s->ended)
        return;
    if (node->stays_away && s->n_conns > 0 && chance(s, 50)) {
        node->rejected = true;
        s->n_rejected++;
        return;
    }
    node->life = LIFE_COMING;
    CHECK(s, s->n_conns < CONNS_MAX - 1);
    node->conn = ++s->n_conns;
    node->uid = chance(s, 50) ? ls_rng_next(&s->rng) : 0;
    node->is_cut = false;
    node->generation = 0;
    node->to_head_ms = node->to_node_ms = s->now;
    tell_head(s, i, RDZV_ARRIVED);
}

/* The head receives it at once, or after 5 s of silence. */
static void lose_connection(sim *s, int i, bool silent)
{
    sim_node *node = &nodes[i];
    message *m;

    if (node->conn == 0)
        return;
    m = post(s, MSG_EVENT, i,
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
    nodes[i].life = LIFE_AWAY;
    nodes[i].is_cut = false;
    /* The node is restarted; after the calm always. */
    if (!nodes[i].rejected)
        post(s, MSG_COME, i, s->now + 1 + below(s, 8000));
}

static void report_failure(sim *s, int i, bool crashed)
{
    message *m;

    if (nodes[i].life != LIFE_RUNNING)
        return;
    m = tell_head(s, i, RDZV_FAILED);
    if (m != NULL) {
        m->event.local_rank = below(s, nodes[i].n_local);
        m->event.crashed = crashed;
        m->event.exit_code = crashed ? 137 : 1 + below(s, 100);
    }
}

/* The others' pending calls fail, some time after the ranks of node i are gone. */
static void drag_others(sim *s, int i)
{
    for (int n = 0; n < 3; n++) {
        const int other = below(s, s->n_nodes);

        if (other != i && nodes[other].life == LIFE_RUNNING)
            post(s, MSG_DRAG, other, s->now + below(s, 60))->generation = nodes[other].generation;
    }
}

/* --- what a node does with an action --- */

static void end_ranks(sim *s, int i)
{
    sim_node *node = &nodes[i];
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
    nodes[i].life = LIFE_RUNNING;
    if (fault(s, 4))
        post(s, MSG_FAIL, i, s->now + below(s, 4000))->generation = nodes[i].generation;
    post(s, MSG_DONE, i, s->now + 20000 + below(s, 50))->generation = nodes[i].generation;
}

static void obey(sim *s, int i, rdzv_action_kind action)
{
    sim_node *node = &nodes[i];

    switch (action) {
    case RDZV_DO_WELCOME:
        CHECK(s, node->life != LIFE_RUNNING && node->life != LIFE_STUCK);
        node->life = LIFE_AGREED;
        if (!fault(s, 1))
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

/* --- what the head does, and what must hold about it --- */

static int count_staying(const sim *s)
{
    int n = 0;

    for (uint64_t i = 1; i <= s->n_conns; i++)
        n += standing_of[i] == STAYING;
    return n;
}

/* The job goes on without a node, or ends as at any other stop. A second signal changes nothing,
 * and nothing comes of one on a connection that the head has ended. */
static void judge_signal(sim *s, const rdzv_event *e, int node)
{
    unsigned char *own = &standing_of[e->conn];

    if (s->ended || *own == UNKNOWN || (e->kind == RDZV_STOP && *own == LEAVING))
        return;
    if (e->kind == RDZV_LEAVE && s->stop_signal == 0 && !s->opt.by_id && node != 0 &&
        count_staying(s) - (*own == STAYING) >= s->opt.min_nodes) {
        *own = LEAVING;
        return;
    }
    met.needed += e->kind == RDZV_LEAVE;
    s->stop_signal = s->stop_signal == 0 ? e->signal : s->stop_signal;
}

/* All that leave are dismissed before the others restart. */
static void check_leaving(sim *s, const rdzv_event *e, const rdzv_result *r)
{
    bool restarts = false;

    if (e->kind == RDZV_GONE)
        standing_of[e->conn] = UNKNOWN;
    if (e->kind == RDZV_ARRIVED)
        standing_of[e->conn] = STAYING;
    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_action *a = &r->actions[i];

        restarts = restarts || a->kind == RDZV_DO_RESTART;
        if (a->kind != RDZV_DO_REJECT && a->kind != RDZV_DO_END)
            continue;
        if (text_starts(a->text, "stopped by SIGTERM: this node has left")) {
            CHECK(s, standing_of[a->conn] == LEAVING);
            s->n_rejected++;
            met.leaves++;
        }
        standing_of[a->conn] = UNKNOWN;
    }
    for (uint64_t i = 1; restarts && i <= s->n_conns; i++)
        CHECK(s, standing_of[i] != LEAVING);
}

static int node_of(uint64_t conn, const sim *s)
{
    for (int i = 0; i < s->n_nodes; i++)
        if (nodes[i].conn == conn && conn != 0)
            return i;
    return -1;
}

/* The node number that a connection has in the roster, by its welcome. */
static int place_of(const sim *s, uint64_t conn)
{
    for (int i = 0; i < s->status_nodes; i++)
        if (status_conn[i] == conn)
            return i;
    return -1;
}

/* A whole roster in one step: each number once, ranks without a gap, one world for all. */
static void check_view(sim *s, const rdzv_result *r)
{
    static unsigned char seen[NODES_MAX];
    const rdzv_place *first = NULL;
    int n = 0;
    int ranks = 0;
    int n_places;

    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_place *p = r->actions[i].place;

        if (r->actions[i].kind != RDZV_DO_WELCOME)
            continue;
        if (first == NULL) {
            first = p;
            memset(seen, 0, sizeof(seen));
        }
        CHECK(s, p->conn == r->actions[i].conn);
        CHECK(s, p->generation == first->generation && p->world_size == first->world_size);
        CHECK(s, p->n_nodes == first->n_nodes && p->n_restarts == first->n_restarts);
        CHECK(s, p->node >= 0 && p->node < p->n_nodes && !seen[p->node]);
        CHECK(s, p->node == 0 || p->rank_base == p[-1].rank_base + p[-1].n_local);
        CHECK(s, p->node != 0 || p->rank_base == 0);
        seen[p->node] = 1;
        ranks += p->n_local;
        n++;
    }
    if (first == NULL)
        return;
    CHECK(s, n == first->n_nodes && ranks == first->world_size);
    CHECK(s, n >= s->opt.min_nodes && n <= s->opt.max_nodes);
    CHECK(s, first->generation > s->generation);
    for (int i = 0; s->started && i < s->status_nodes; i++)
        CHECK(s, has_ended[i]); // of the roster before
    CHECK(s, rdzv_places(s->m, &n_places)[0].generation == first->generation && n_places == n);
    met.rosters++;
    s->generation = first->generation;
    s->status_nodes = n;
    for (int i = 0; i < n; i++)
        status_conn[i] = rdzv_places(s->m, &n_places)[i].conn;
    s->started = false;
    is_given_up = false;
    memset(is_ready, 0, sizeof(is_ready));
    memset(has_ended, 0, sizeof(has_ended));
}

/* All start, and only when all have sent ready. No node is lost as far as the head knows. */
static void check_start(sim *s, const rdzv_result *r)
{
    int n = 0;

    for (int i = 0; i < r->n_actions; i++) {
        if (r->actions[i].kind != RDZV_DO_START)
            continue;
        CHECK(s, r->actions[i].place->generation == s->generation);
        CHECK(s, is_ready[r->actions[i].place->node]);
        n++;
    }
    if (n == 0)
        return;
    CHECK(s, n == s->status_nodes && !s->started);
    met.starts++;
    s->started = true;
    s->has_cause = false;
}

static void check_restart(sim *s, const rdzv_action *a)
{
    CHECK(s, !s->ended && a->text[0] != 0);
    s->n_restarts += text_starts(a->text, "restart ");
    met.restarts += text_starts(a->text, "restart ");
    met.free_restarts += !text_starts(a->text, "restart ");
    CHECK(s, s->n_restarts <= s->opt.max_restarts);
}

/* The first failure of the roster, as this test has seen it, is what the job ends with. */
static void check_finish(sim *s, const rdzv_action *a)
{
    CHECK(s, !s->ended);
    s->ended = true;
    s->exit_code = a->exit_code;
    text_format(s->end_text, sizeof(s->end_text), "%s", a->text);
    CHECK(s, (a->exit_code == 0) == (a->text[0] == 0));
    met.good_ends += a->exit_code == 0;
    met.stopped_ends += text_starts(a->text, "stopped by ");
    met.late_ends += strstr(a->text, "join") != NULL;
    met.failed_ends += a->exit_code != 0;
    if (text_starts(a->text, "stopped by "))
        CHECK(s, s->stop_signal != 0 && a->exit_code == 128 + s->stop_signal);
    else if (a->exit_code != 0 && s->has_cause && strstr(a->text, s->cause_text) == NULL)
        fail_msg("LS_TEST_SEED=%" PRIu64 ": the cause is \"%s\", and the job ends with \"%s\"",
                 s->seed, s->cause_text, a->text);
}

/* The oracle of the root cause, from the messages to the head only. */
static void judge(sim *s, const rdzv_event *e, int place, int64_t at_ms, bool is_strong)
{
    if (s->has_cause && (s->cause_crash || !is_strong || at_ms - s->cause_ms >= 100))
        return;
    s->has_cause = true;
    s->cause_crash = is_strong;
    s->cause_ms = at_ms;
    if (e->kind == RDZV_FAILED)
        text_format(s->cause_text, sizeof(s->cause_text), "%s", e->text);
    else
        text_format(s->cause_text, sizeof(s->cause_text), "node %d ", place);
}

/* A member that the head itself gives up: it came twice, or did not get ready. */
static void judge_reject(sim *s, const rdzv_action *a)
{
    const int place = place_of(s, a->conn);

    if (place < 0 || has_ended[place])
        return;
    has_ended[place] = 1;
    if (text_starts(a->text, "ranks cannot be killed"))
        return; // that follows from something else
    if (!s->started && !text_starts(a->text, "not ready within"))
        return; // nothing was lost yet
    if (!s->started && !is_given_up)
        s->has_cause = false;
    is_given_up = true;
    judge(s, &(rdzv_event){.kind = RDZV_GONE}, place, s->now, true);
}

static void carry_out(sim *s, const rdzv_result *r)
{
    const bool was_over = s->ended;

    for (int i = 0; i < r->n_actions; i++)
        if (r->actions[i].kind == RDZV_DO_REJECT)
            judge_reject(s, &r->actions[i]);
    check_view(s, r);
    check_start(s, r);
    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_action *a = &r->actions[i];
        const int node = node_of(a->conn, s);
        message *m;

        CHECK(s, !was_over || a->kind == RDZV_DO_REJECT || a->kind == RDZV_DO_NOTE);
        CHECK(s, !s->ended || was_over);
        met.rejects += a->kind == RDZV_DO_REJECT;
        met.spares += a->kind == RDZV_DO_WAIT;
        met.kills += a->kind == RDZV_DO_KILL;
        if (a->kind == RDZV_DO_RESTART)
            check_restart(s, a);
        else if (a->kind == RDZV_DO_FINISH)
            check_finish(s, a);
        if (a->conn == RDZV_HEAD || node < 0 || nodes[node].is_cut)
            continue;
        m = post(s, MSG_ACTION, node, arrival(s, &nodes[node].to_node_ms));
        m->action = a->kind;
        m->generation = a->place == NULL ? 0 : a->place->generation;
    }
}

/* What the head is about to receive. */
static void watch(sim *s, const rdzv_event *e)
{
    const rdzv_phase phase = rdzv_phase_now(s->m);
    const int place = place_of(s, e->conn);
    const bool is_now = place >= 0 && (e->kind == RDZV_GONE || e->generation == s->generation);

    if (!is_now)
        return;
    if (e->kind == RDZV_READY || e->kind == RDZV_GONE)
        is_ready[place] = e->kind == RDZV_READY;
    if (e->kind == RDZV_FINISHED && phase != RDZV_AGREE)
        has_ended[place] = 1;
    if (!s->started || has_ended[place])
        return;
    if (e->kind == RDZV_GONE && (phase == RDZV_RUN || phase == RDZV_DRAIN)) {
        has_ended[place] = 1;
        judge(s, e, place, e->last_seen_ms, true);
    }
    if (e->kind == RDZV_FAILED && (phase == RDZV_RUN || (phase == RDZV_DRAIN && s->has_cause)))
        judge(s, e, place, s->now, e->crashed);
}

static void step(sim *s, rdzv_event *e, int node)
{
    rdzv_result r;

    if (e->kind == RDZV_GONE && e->last_seen_ms == INT64_MAX)
        e->last_seen_ms = s->now;
    watch(s, e);
    if (e->kind == RDZV_LEAVE || (e->kind == RDZV_STOP && e->conn != RDZV_HEAD))
        judge_signal(s, e, node);
    r = rdzv_step(s->m, e, s->now);
    check_leaving(s, e, &r);
    CHECK(s, r.wake_at_ms > s->now);
    s->wake_at = r.wake_at_ms;
    carry_out(s, &r);
}

/* --- message arrives --- */

static void deliver_event(sim *s, const message *m)
{
    sim_node *node = &nodes[m->node];
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
    step(s, &e, m->node);
}

static void deliver_action(sim *s, const message *m)
{
    if (nodes[m->node].conn != m->conn || nodes[m->node].is_cut || m->conn == 0)
        return;
    if (m->action == RDZV_DO_WELCOME)
        nodes[m->node].generation = m->generation;
    obey(s, m->node, m->action);
    if (m->action == RDZV_DO_WELCOME && fault(s, 3))
        post(s, MSG_CRASH, m->node, s->now + below(s, 100));
}

static void connect_again(sim *s, int i)
{
    sim_node *node = &nodes[i];

    if (node->conn == 0 || node->is_cut || node->uid == 0)
        return;
    CHECK(s, s->n_conns < CONNS_MAX - 1);
    node->conn = ++s->n_conns; // the old one is left open and says nothing any more
    node->life = LIFE_COMING;
    node->generation = 0;
    node->to_head_ms = node->to_node_ms = s->now;
    tell_head(s, i, RDZV_ARRIVED);
}

static void deliver(sim *s, const message *m)
{
    sim_node *node = &nodes[m->node];
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
        go_away(s, m->node, chance(s, 30));
        return;
    case MSG_CUT: // both sides notice after 5 s; the node ends its ranks then
        if (node->conn == 0 || node->is_cut)
            return;
        drag_others(s, m->node);
        node->is_cut = true;
        post(s, MSG_CRASH, m->node, s->now + SILENT_MS);
        lose_connection(s, m->node, true);
        return;
    case MSG_RECONNECT:
        connect_again(s, m->node);
        return;
    case MSG_FAIL:
    case MSG_DRAG:
        if (!is_running)
            return;
        report_failure(s, m->node, m->kind == MSG_FAIL && chance(s, 50));
        if (m->kind == MSG_FAIL)
            drag_others(s, m->node);
        return;
    case MSG_DONE:
        if (!is_running)
            return;
        node->life = LIFE_ENDED;
        sent = tell_head(s, m->node, RDZV_FINISHED);
        if (sent != NULL)
            sent->event.stopped = false;
        return;
    case MSG_LEAVE:
    case MSG_LEAVE_AGAIN:
        sent = tell_head(s, m->node, m->kind == MSG_LEAVE ? RDZV_LEAVE : RDZV_STOP);
        if (sent == NULL)
            return;
        sent->event.signal = SIGTERM;
        if (m->kind == MSG_LEAVE && chance(s, 30))
            post(s, MSG_LEAVE_AGAIN, m->node, s->now + below(s, 2000));
        return;
    case MSG_STOP:
        s->stop_signal = s->stop_signal == 0 ? SIGINT : s->stop_signal;
        if (!s->ended)
            step(s, &(rdzv_event){.kind = RDZV_STOP, .signal = SIGINT}, 0);
        return;
    }
}

/* --- one schedule --- */

static void plan_faults(sim *s)
{
    for (int i = 0; i < s->n_nodes; i++) {
        const int n = 1 + below(s, 3);

        post(s, MSG_COME, i, below(s, 3000));
        for (int k = 0; k < n; k++) {
            const int64_t at = below(s, (int)s->calm_ms);

            if (fault(s, 15))
                post(s, MSG_CRASH, i, at);
            if (fault(s, 8))
                post(s, MSG_CUT, i, at);
            if (fault(s, 5))
                post(s, MSG_RECONNECT, i, at);
            if (fault(s, 4))
                post(s, MSG_LEAVE, i, at);
        }
        nodes[i].unkillable = fault(s, 1);
        nodes[i].stays_away = fault(s, 3);
    }
    if (fault(s, 5))
        post(s, MSG_STOP, 0, below(s, (int)s->calm_ms));
}

static void open_world(sim *s, uint64_t seed, int size)
{
    int n_extra;

    memset(s, 0, offsetof(sim, box));
    memset(&s->generation, 0, sizeof(*s) - offsetof(sim, generation));
    s->n_box = 0;
    s->n_unused = 0;
    for (int i = 0; i < MESSAGES_MAX; i++)
        s->unused[s->n_unused++] = &s->store[i];
    memset(nodes, 0, sizeof(nodes));
    memset(standing_of, 0, sizeof(standing_of));
    s->seed = seed;
    ls_rng_seed(&s->rng, seed);
    s->opt.by_id = chance(s, 40);
    s->opt.max_nodes = size > 0 ? size : 1 + below(s, 8);
    s->opt.min_nodes =
        s->opt.by_id || chance(s, 30) ? s->opt.max_nodes : 1 + below(s, s->opt.max_nodes);
    s->opt.max_restarts = chance(s, 30) ? 0 : below(s, 6);
    s->opt.max_spares = 4;
    s->opt.version = "1";
    s->opt.host = "head";
    s->opt.join_ms = 60000;
    s->opt.last_call_ms = chance(s, 30) ? -1 : 1 + below(s, 5000);
    s->opt.ready_ms = 8000;
    s->opt.grace_ms = 3000;
    s->fault_percent = chance(s, 20) ? 0 : 1 + below(s, size > 0 ? 10 : 100);
    s->calm_ms = 1 + below(s, 60000);
    n_extra = s->opt.by_id ? 0 : below(s, 4);
    s->n_nodes = s->opt.max_nodes + n_extra;
    for (int i = 0; i < s->n_nodes; i++) {
        nodes[i].id = s->opt.by_id ? i : chance(s, 30) ? below(s, 5) : -1;
        nodes[i].n_local = 1 + below(s, 8);
        nodes[i].host = chance(s, 90) ? i : below(s, s->n_nodes);
    }
    assert_ok(rdzv_create(&s->opt, 0, &s->m));
    s->wake_at = s->opt.join_ms;
    plan_faults(s);
}

/* Enough nodes were up after the calm, and nothing kept them from finishing. */
static void check_outcome(sim *s)
{
    const bool was_late = strstr(s->end_text, "join") != NULL;

    CHECK(s, s->ended);
    CHECK(s, s->exit_code != 0 || s->started);
    CHECK(s, s->exit_code == 0 || s->fault_percent > 0);
    CHECK(s, !was_late || s->n_rejected > 0);
    CHECK(s, s->exit_code == 0 || was_late || s->stop_signal != 0 ||
                 s->n_restarts == s->opt.max_restarts);
}

static void run_schedule(uint64_t seed, int size)
{
    sim *s = &world;
    int n_steps = 0;

    open_world(s, seed, size);
    while (n_steps++ < STEPS_MAX) {
        const bool has_message = s->n_box > 0;

        if (s->ended && !has_message)
            break;
        if (has_message && s->box[0]->at_ms < s->wake_at) {
            const message m = take(s);

            s->now = m.at_ms > s->now ? m.at_ms : s->now;
            deliver(s, &m);
        } else {
            CHECK(s, s->wake_at != RDZV_NEVER); // no message will ever come again
            s->now = s->wake_at;
            step(s, &(rdzv_event){.kind = RDZV_TICK}, 0);
        }
    }
    check_outcome(s);
    rdzv_destroy(s->m);
}

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : (int)strtol(text, NULL, 10);
}

static void any_schedule_keeps_the_promises(void **state)
{
    const int only = number_from("LS_TEST_SEED", -1);
    const int rounds = ROUNDS * number_from("LS_TEST_ROUNDS", 1);

    (void)state;
    if (only >= 0) {
        run_schedule((uint64_t)only, 0);
        return;
    }
    print_message("seeds 0 to %d\n", rounds - 1);
    for (int seed = 0; seed < rounds; seed++)
        run_schedule((uint64_t)seed, 0);
    print_message(
        "met: %d views, %d starts, %d restarts, %d free ones, %d good ends, %d failed, %d stopped, "
        "%d too late, %d rejected, %d spares, %d kills, %d left, %d needed\n",
        met.rosters, met.starts, met.restarts, met.free_restarts, met.good_ends, met.failed_ends,
        met.stopped_ends, met.late_ends, met.rejects, met.spares, met.kills, met.leaves,
        met.needed);
    assert_true(met.restarts > 100 && met.free_restarts > 100 && met.late_ends > 10);
    assert_true(met.good_ends > 100 && met.failed_ends > 100 && met.stopped_ends > 10);
    assert_true(met.leaves > 100 && met.needed > 100);
    assert_true(met.rejects > 100 && met.spares > 100 && met.kills > 10);
}

static void a_thousand_nodes_keep_the_promises(void **state)
{
    const int rounds = number_from("LS_TEST_ROUNDS", 1);

    (void)state;
    for (int i = 0; i < 20 * rounds; i++)
        run_schedule((uint64_t)i, 20 + i % 20 * 5);
    for (int i = 0; i < rounds; i++)
        run_schedule((uint64_t)i, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_keeps_the_promises),
        cmocka_unit_test(a_thousand_nodes_keep_the_promises),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
