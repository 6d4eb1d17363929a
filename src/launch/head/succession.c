/* SPDX-License-Identifier: Apache-2.0 */
/*
 * succession.c - see succession.h. Called by standby.c.
 */
#include "launch/head/succession.h"

#include "base/alloc.h"
#include "base/rng.h"

enum {
    FIRST_MS = 30, /* the next node after a lost head asks for votes after this time, */
    STEP_MS = 120, /* the one behind it after this time more */
    STEPS_MOST = 20,
    AGAIN_MS = 40,   /* between questions of a candidate to a node that has not voted for it */
    RETRY_MS = 300,  /* a candidate without a majority begins a new term, */
    SPREAD_MS = 600, /* up to this later, so that two of them do not always meet */
    ACTIONS_MORE = 8 /* than nodes, in a step */
};

typedef enum succession_role { FOLLOWER, CANDIDATE, HEAD, OUT } succession_role;

typedef struct peer {
    bool is_connected;
    bool has_voted;       /* for this candidate */
    uint64_t state_index; /* the newest of this term that it keeps */
    uint64_t round;       /* the last one that it has answered */
    int64_t received_ms;
} peer;

struct succession {
    succession_options opt;
    peer *peers;
    succession_role role;
    uint64_t term;
    int voted_for; /* in this term; -1: none */
    int head;      /* -1: none */
    int last_head;
    bool has_led; /* DO_LEAD was given in this term */
    uint64_t state_term;
    uint64_t state_index;
    uint64_t committed;
    uint64_t round;
    uint64_t confirmed;
    int64_t received_ms; /* of the head; HEAD: when its term began */
    int64_t headless_ms; /* since then */
    int64_t elect_ms;    /* FOLLOWER, CANDIDATE: when a new term begins */
    int64_t beat_ms;     /* HEAD, CANDIDATE: the next messages to all */
    int64_t now_ms;
    succession_action *actions;
    int n_actions;
    int n_actions_max;
};

/* --- actions --- */

static succession_action *act(succession *s, succession_action_kind kind)
{
    succession_action *a = &s->actions[s->n_actions];

    LS_ASSERT(s->n_actions < s->n_actions_max);
    s->n_actions++;
    *a = (succession_action){.kind = kind, .node = -1};
    return a;
}

static void send_round(succession *s, int node, succession_kind kind, bool has_state,
                       uint64_t round)
{
    succession_action *a;

    if (!s->peers[node].is_connected)
        return;
    a = act(s, SUCCESSION_DO_SEND);
    a->node = node;
    a->message = (succession_message){.kind = kind,
                                      .term = s->term,
                                      .state_term = s->state_term,
                                      .state_index = s->state_index,
                                      .round = round,
                                      .has_state = has_state};
}

static void send(succession *s, int node, succession_kind kind, bool has_state)
{
    send_round(s, node, kind, has_state, s->round);
}

static void send_state(succession *s, int node)
{
    send(s, node, SUCCESSION_STATE, s->peers[node].state_index < s->state_index);
}

/* The head's state to all, or the candidate's question to those that have not voted. */
static void send_all(succession *s)
{
    for (int i = 0; i < s->opt.n_nodes; i++) {
        if (i == s->opt.self)
            continue;
        if (s->role == HEAD)
            send_state(s, i);
        else if (!s->peers[i].has_voted)
            send(s, i, SUCCESSION_ASK, false);
    }
    s->beat_ms = s->now_ms + (s->role == HEAD ? s->opt.beat_ms : AGAIN_MS);
}

static void leave(succession *s)
{
    s->role = OUT;
    s->head = -1;
    act(s, SUCCESSION_DO_LEAVE);
}

/* --- majorities --- */

static bool is_majority(const succession *s, int n)
{
    return n > s->opt.n_nodes / 2;
}

/* The largest number that a majority has reached: `of` counts the nodes. */
static uint64_t reached(const succession *s, uint64_t own, uint64_t (*of)(const peer *p))
{
    uint64_t best = 0;

    for (int i = 0; i < s->opt.n_nodes; i++) {
        const uint64_t number = i == s->opt.self ? own : of(&s->peers[i]);
        int n = 0;

        for (int k = 0; k < s->opt.n_nodes; k++)
            n += (k == s->opt.self ? own : of(&s->peers[k])) >= number;
        if (is_majority(s, n) && number > best)
            best = number;
    }
    return best;
}

static uint64_t stored_of(const peer *p)
{
    return p->state_index;
}

static uint64_t round_of(const peer *p)
{
    return p->round;
}

static void count_answers(succession *s)
{
    const uint64_t committed = reached(s, s->state_index, stored_of);
    uint64_t confirmed;

    if (committed > s->committed) {
        s->committed = committed;
        if (!s->has_led) {
            s->has_led = true;
            act(s, SUCCESSION_DO_LEAD);
        }
        act(s, SUCCESSION_DO_COMMIT)->number = committed;
    }
    if (!s->has_led)
        return;
    confirmed = reached(s, s->round, round_of);
    if (confirmed > s->confirmed) {
        s->confirmed = confirmed;
        act(s, SUCCESSION_DO_CONFIRM)->number = confirmed;
    }
}

/* --- terms --- */

/* How many nodes come before this one in the order of succession. */
static int64_t position(const succession *s)
{
    const int n = s->opt.n_nodes;
    const int steps = (s->opt.self - s->last_head - 1 + n) % n;

    return steps < STEPS_MOST ? steps : STEPS_MOST;
}

static int64_t retry_ms(const succession *s)
{
    return RETRY_MS + (int64_t)(ls_hash3((uint64_t)s->opt.self, s->term, 0) % SPREAD_MS);
}

static void lose_head(succession *s)
{
    s->head = -1;
    s->headless_ms = s->now_ms;
    s->elect_ms = s->now_ms + FIRST_MS + STEP_MS * position(s);
}

/* A later term: this node votes anew, and is no candidate or head any more. */
static void enter_term(succession *s, uint64_t term)
{
    s->term = term;
    s->voted_for = -1;
    if (s->role == HEAD) {
        leave(s);
        return;
    }
    if (s->head >= 0)
        lose_head(s);
    else if (s->role == CANDIDATE)
        s->elect_ms = s->now_ms + retry_ms(s);
    s->role = FOLLOWER;
}

static void become_head(succession *s)
{
    s->role = HEAD;
    s->head = s->last_head = s->opt.self;
    s->has_led = false;
    s->state_term = s->term;
    s->state_index++;
    s->committed = 0;
    s->round = s->confirmed = 0;
    s->received_ms = s->now_ms;
    for (int i = 0; i < s->opt.n_nodes; i++) {
        s->peers[i].state_index = 0;
        s->peers[i].round = 0;
        s->peers[i].received_ms = s->now_ms;
    }
    send_all(s);
}

static void count_votes(succession *s)
{
    int n = 1;

    for (int i = 0; i < s->opt.n_nodes; i++)
        n += i != s->opt.self && s->peers[i].has_voted;
    if (is_majority(s, n))
        become_head(s);
}

static void become_candidate(succession *s)
{
    s->role = CANDIDATE;
    s->term++;
    s->voted_for = s->opt.self;
    s->elect_ms = s->now_ms + retry_ms(s);
    for (int i = 0; i < s->opt.n_nodes; i++)
        s->peers[i].has_voted = false;
    act(s, SUCCESSION_DO_DIAL);
    send_all(s);
}

/* --- messages --- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool is_newer(uint64_t term, uint64_t index, uint64_t than_term, uint64_t than_index)
{
    return term > than_term || (term == than_term && index > than_index);
}

static bool has_head(const succession *s)
{
    return s->role == HEAD || (s->head >= 0 && s->now_ms - s->received_ms < s->opt.silence_ms);
}

static void on_ask(succession *s, int node, const succession_message *m)
{
    bool is_older;
    bool is_granted;

    if (has_head(s)) {
        send(s, node, SUCCESSION_REFUSE, false);
        return;
    }
    if (m->term > s->term)
        enter_term(s, m->term);
    is_older = is_newer(s->state_term, s->state_index, m->state_term, m->state_index);
    is_granted = m->term == s->term && (s->voted_for < 0 || s->voted_for == node) && !is_older;
    if (is_granted) {
        s->voted_for = node;
        s->elect_ms = s->now_ms + retry_ms(s);
    } else if (is_older && s->role == FOLLOWER) { // this node is the better candidate
        s->elect_ms = earlier(s->elect_ms, s->now_ms + FIRST_MS + STEP_MS * position(s));
    }
    send(s, node, is_granted ? SUCCESSION_VOTE : SUCCESSION_REFUSE, false);
}

static void on_state(succession *s, int node, const succession_message *m)
{
    if (m->term < s->term || s->role == HEAD) {
        send(s, node, SUCCESSION_REFUSE, false);
        return;
    }
    if (m->term > s->term)
        enter_term(s, m->term);
    s->role = FOLLOWER;
    s->received_ms = s->now_ms;
    if (s->head != node) {
        s->head = s->last_head = node;
        act(s, SUCCESSION_DO_FOLLOW)->node = node;
    }
    if (m->has_state && is_newer(m->state_term, m->state_index, s->state_term, s->state_index)) {
        s->state_term = m->state_term;
        s->state_index = m->state_index;
        act(s, SUCCESSION_DO_STORE);
    }
    send_round(s, node, SUCCESSION_STORED, false, m->round);
}

static void on_stored(succession *s, int node, const succession_message *m)
{
    peer *p = &s->peers[node];

    if (s->role != HEAD || m->term != s->term)
        return;
    p->received_ms = s->now_ms;
    if (m->state_term == s->term && m->state_index > p->state_index)
        p->state_index = m->state_index;
    if (m->round > p->round)
        p->round = m->round;
    count_answers(s);
}

static void on_refuse(succession *s, const succession_message *m)
{
    const bool is_candidate = s->role == CANDIDATE;

    if (s->role == FOLLOWER && s->head >= 0)
        return;
    if (m->term > s->term)
        enter_term(s, m->term);
    if (!is_candidate || !is_newer(m->state_term, m->state_index, s->state_term, s->state_index))
        return;
    s->role = FOLLOWER; // the other one is the better candidate
    s->elect_ms = s->now_ms + s->opt.silence_ms + retry_ms(s);
}

static void on_message(succession *s, int node, const succession_message *m)
{
    switch (m->kind) {
    case SUCCESSION_STATE:
        on_state(s, node, m);
        return;
    case SUCCESSION_STORED:
        on_stored(s, node, m);
        return;
    case SUCCESSION_ASK:
        on_ask(s, node, m);
        return;
    case SUCCESSION_VOTE:
        if (s->role == CANDIDATE && m->term == s->term) {
            s->peers[node].has_voted = true;
            count_votes(s);
        }
        return;
    case SUCCESSION_REFUSE:
        on_refuse(s, m);
        return;
    }
}

/* --- connections and time --- */

static void on_connected(succession *s, int node)
{
    peer *p = &s->peers[node];

    p->is_connected = true;
    if (s->role == HEAD) {
        p->state_index = 0; // it may lack what was sent before
        send_state(s, node);
    } else if (s->role == CANDIDATE && !p->has_voted) {
        send(s, node, SUCCESSION_ASK, false);
    }
}

static void on_lost(succession *s, int node)
{
    s->peers[node].is_connected = false;
    if (s->role == FOLLOWER && s->head == node)
        lose_head(s);
}

/* A head that a majority does not answer: another one may have been elected. */
static bool has_lost_majority(const succession *s)
{
    int n = 1;

    for (int i = 0; i < s->opt.n_nodes; i++)
        n += i != s->opt.self && s->now_ms - s->peers[i].received_ms < s->opt.silence_ms;
    return !is_majority(s, n);
}

static void on_time(succession *s)
{
    if (s->role == HEAD && has_lost_majority(s)) {
        leave(s);
        return;
    }
    if (s->role == FOLLOWER && s->head >= 0) {
        if (s->now_ms - s->received_ms >= s->opt.silence_ms)
            lose_head(s);
        return;
    }
    if (s->role != HEAD && s->now_ms - s->headless_ms >= s->opt.give_up_ms) {
        leave(s);
        return;
    }
    if (s->role != HEAD && s->now_ms >= s->elect_ms)
        become_candidate(s);
    else if (s->role != FOLLOWER && s->now_ms >= s->beat_ms)
        send_all(s);
}

static int64_t wake_at(const succession *s)
{
    switch (s->role) {
    case HEAD:
        return s->beat_ms;
    case CANDIDATE:
        return earlier(earlier(s->beat_ms, s->elect_ms), s->headless_ms + s->opt.give_up_ms);
    case FOLLOWER:
        if (s->head >= 0)
            return s->received_ms + s->opt.silence_ms;
        return earlier(s->elect_ms, s->headless_ms + s->opt.give_up_ms);
    case OUT:
        break;
    }
    return INT64_MAX;
}

static void propose(succession *s)
{
    s->state_index++;
    send_all(s);
}

static void take_event(succession *s, const succession_event *e)
{
    const bool has_peer = e->node >= 0 && e->node < s->opt.n_nodes && e->node != s->opt.self;

    if (e->kind == SUCCESSION_MESSAGE && has_peer)
        on_message(s, e->node, e->message);
    else if (e->kind == SUCCESSION_CONNECTED && has_peer)
        on_connected(s, e->node);
    else if (e->kind == SUCCESSION_LOST && has_peer)
        on_lost(s, e->node);
    else if (e->kind == SUCCESSION_PROPOSE && succession_is_head(s))
        propose(s);
    else if (e->kind == SUCCESSION_CONFIRM && succession_is_head(s)) {
        s->round++;
        send_all(s);
    }
}

succession_result succession_step(succession *s, const succession_event *e, int64_t now_ms)
{
    s->now_ms = now_ms;
    s->n_actions = 0;
    if (s->role != OUT)
        take_event(s, e);
    if (s->role != OUT && e->kind == SUCCESSION_TICK)
        on_time(s);
    return (succession_result){s->actions, s->n_actions, wake_at(s)};
}

/* --- questions --- */

bool succession_is_head(const succession *s)
{
    return s->role == HEAD && s->has_led;
}

int succession_head(const succession *s)
{
    return s->head;
}

uint64_t succession_term(const succession *s)
{
    return s->term;
}

uint64_t succession_index(const succession *s)
{
    return s->state_index;
}

uint64_t succession_round(const succession *s)
{
    return s->round;
}

/* --- life --- */

ls_status succession_create(const succession_options *opt, int64_t now_ms, succession **out)
{
    succession *s;

    if (opt->n_nodes < 3 || opt->n_nodes > SUCCESSION_NODES_MAX || opt->self < 0 ||
        opt->self >= opt->n_nodes || opt->head < 0 || opt->head >= opt->n_nodes)
        return ls_fail(LS_EINVAL, "a standby head on node %d of %d, with the head on node %d",
                       opt->self, opt->n_nodes, opt->head);
    s = ls_calloc(1, sizeof(*s));
    if (s == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a standby head");
    s->opt = *opt;
    s->n_actions_max = opt->n_nodes + ACTIONS_MORE;
    s->peers = ls_calloc((size_t)opt->n_nodes, sizeof(*s->peers));
    s->actions = ls_calloc((size_t)s->n_actions_max, sizeof(*s->actions));
    if (s->peers == NULL || s->actions == NULL) {
        succession_destroy(s);
        return ls_fail(LS_ENOMEM, "no memory for a standby head of %d nodes", opt->n_nodes);
    }
    s->term = s->state_term = 1;
    s->head = s->last_head = s->voted_for = opt->head;
    s->role = opt->self == opt->head ? HEAD : FOLLOWER;
    s->has_led = s->role == HEAD;
    s->now_ms = s->received_ms = s->headless_ms = now_ms;
    s->beat_ms = s->role == HEAD ? now_ms + opt->beat_ms : INT64_MAX;
    s->elect_ms = INT64_MAX;
    for (int i = 0; i < opt->n_nodes; i++)
        s->peers[i].received_ms = now_ms;
    *out = s;
    return LS_OK;
}

void succession_destroy(succession *s)
{
    if (s == NULL)
        return;
    ls_free(s->peers);
    ls_free(s->actions);
    ls_free(s);
}
