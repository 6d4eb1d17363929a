/* SPDX-License-Identifier: Apache-2.0 */
/*
 * succession.c - see succession.h. Called by standby.c.
 */
#include "launch/head/elastic/succession.h"

#include "base/alloc.h"
#include "base/rng.h"

enum {
    FIRST_MS = 30, /* the next node after a lost head asks for votes after this time, */
    STEP_MS = 120, /* the one behind it after this time more */
    STEPS_MOST = 20,
    AGAIN_MS = 40,   /* between questions of a candidate to a node that has not voted for it */
    RETRY_MS = 300,  /* a candidate without a majority begins again, */
    SPREAD_MS = 600, /* up to this later, so that two of them do not always meet */
    ACTIONS_MORE = 8 /* than nodes, in a step */
};

typedef enum succession_role { FOLLOWER, PRE_CANDIDATE, CANDIDATE, HEAD, OUT } succession_role;

typedef struct peer {
    bool is_connected;
    bool has_voted;       /* for this candidate, or would vote */
    uint64_t state_index; /* the newest of this term that it keeps */
    uint64_t round;       /* the last one that it has answered */
    int64_t received_ms;
    int64_t bound_until_ms; /* HEAD: it follows no other one before this time of the clock here */
} peer;

struct succession {
    succession_options opt;
    peer *peers;
    succession_role role;
    uint64_t term;
    int voted_for; /* in this term; -1: none */
    int head;      /* -1: none */
    int last_head;
    bool has_led;        /* DO_LEAD was given, and this node has been the head since */
    bool is_retired;     /* it asks for no votes */
    bool has_given_up;   /* DO_LEAVE was given since the last head */
    uint64_t asked_term; /* HEAD: the later term in which it asks for votes; not above: none */
    uint64_t state_term;
    uint64_t state_index;
    uint64_t committed;
    uint64_t round;
    uint64_t confirmed;
    int64_t received_ms; /* of the head; HEAD: when its term began */
    int64_t headless_ms; /* since then */
    int64_t elect_ms;    /* neither HEAD nor OUT: when it asks for votes, or asks again */
    int64_t beat_ms;     /* HEAD, and while it asks: the next messages to all */
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

static void send_message(succession *s, int node, succession_message m)
{
    succession_action *a;

    if (!s->peers[node].is_connected)
        return;
    a = act(s, SUCCESSION_DO_SEND);
    a->node = node;
    m.state_term = s->state_term;
    m.state_index = s->state_index;
    a->message = m;
}

static void send(succession *s, int node, succession_kind kind)
{
    send_message(s, node, (succession_message){.kind = kind, .term = s->term});
}

static void send_state(succession *s, int node)
{
    send_message(s, node,
                 (succession_message){.kind = SUCCESSION_STATE,
                                      .term = s->term,
                                      .round = s->round,
                                      .sent_ms = s->now_ms,
                                      .has_state = s->peers[node].state_index < s->state_index});
}

/* The head has asked for votes in a later term, and not got them yet. */
static bool renews(const succession *s)
{
    return s->role == HEAD && s->asked_term > s->term;
}

static void send_ask(succession *s, int node)
{
    const bool is_pre = s->role == PRE_CANDIDATE;

    if (!s->peers[node].has_voted)
        send_message(s, node,
                     (succession_message){.kind = is_pre ? SUCCESSION_PRE_ASK : SUCCESSION_ASK,
                                          .term = renews(s) ? s->asked_term : s->term});
}

/* The head's state, or a question to those that have not voted. */
static void send_all(succession *s)
{
    const bool has_state = s->role == HEAD && !renews(s);

    for (int i = 0; i < s->opt.n_nodes; i++) {
        if (i == s->opt.self)
            continue;
        if (has_state)
            send_state(s, i);
        else
            send_ask(s, i);
    }
    s->beat_ms = s->now_ms + (has_state ? s->opt.beat_ms : AGAIN_MS);
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

/* The head has its lease. Where the newest answers are old, because this process was stopped or the
 * network was cut, another node may be the head by now: what they say counts when a majority has
 * answered a newer message. */
static bool has_lease(const succession *s)
{
    int n = 1;

    for (int i = 0; i < s->opt.n_nodes; i++)
        n += i != s->opt.self && s->now_ms < s->peers[i].bound_until_ms;
    return is_majority(s, n);
}

static void count_answers(succession *s)
{
    const uint64_t committed = reached(s, s->state_index, stored_of);
    uint64_t confirmed;

    if (!has_lease(s))
        return;
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
    const uint64_t self = (uint64_t)s->opt.self;

    return RETRY_MS + (int64_t)(ls_hash3(self, s->term, (uint64_t)s->now_ms) % SPREAD_MS);
}

static void lose_head(succession *s)
{
    s->head = -1;
    s->headless_ms = s->now_ms;
    s->elect_ms = s->now_ms + FIRST_MS + STEP_MS * position(s);
}

static bool asks(const succession *s)
{
    return s->role == PRE_CANDIDATE || s->role == CANDIDATE;
}

/* A later term that another node has begun: this one votes anew, and is no candidate any more. */
static void enter_term(succession *s, uint64_t term)
{
    s->term = term;
    s->voted_for = -1;
    if (s->head >= 0)
        lose_head(s);
    else if (asks(s))
        s->elect_ms = s->now_ms + retry_ms(s);
    s->role = FOLLOWER;
}

/* In a term with the votes of a majority: no state of an earlier term counts as kept. */
static void begin_leading(succession *s)
{
    s->state_term = s->term;
    s->state_index++;
    for (int i = 0; i < s->opt.n_nodes; i++) {
        s->peers[i].state_index = 0;
        s->peers[i].round = 0;
    }
    send_all(s);
}

static void become_head(succession *s)
{
    s->role = HEAD;
    s->head = s->last_head = s->opt.self;
    s->has_led = false;
    s->asked_term = 0;
    s->committed = 0;
    s->round = s->confirmed = 0;
    s->received_ms = s->now_ms;
    for (int i = 0; i < s->opt.n_nodes; i++)
        s->peers[i].received_ms = s->now_ms;
    begin_leading(s);
}

static void clear_votes(succession *s)
{
    for (int i = 0; i < s->opt.n_nodes; i++)
        s->peers[i].has_voted = false;
}

static void become_candidate(succession *s)
{
    s->role = CANDIDATE;
    s->term++;
    s->voted_for = s->opt.self;
    s->elect_ms = s->now_ms + retry_ms(s);
    clear_votes(s);
    send_all(s);
}

static void become_pre_candidate(succession *s)
{
    s->role = PRE_CANDIDATE;
    s->elect_ms = s->now_ms + retry_ms(s);
    clear_votes(s);
    act(s, SUCCESSION_DO_DIAL);
    send_all(s);
}

/* A node that refuses is in a later term: the head leads on, in a term after that one. */
static void renew_term(succession *s, uint64_t later)
{
    if (later <= s->term || later <= s->asked_term)
        return;
    s->asked_term = later + 1;
    clear_votes(s);
    send_all(s);
}

static void count_votes(succession *s)
{
    int n = 1;

    for (int i = 0; i < s->opt.n_nodes; i++)
        n += i != s->opt.self && s->peers[i].has_voted;
    if (!is_majority(s, n))
        return;
    if (s->role == PRE_CANDIDATE) {
        become_candidate(s);
    } else if (s->role == CANDIDATE) {
        become_head(s);
    } else {
        s->term = s->asked_term;
        s->voted_for = s->opt.self;
        begin_leading(s);
    }
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

static bool has_newer_state(const succession *s, const succession_message *m)
{
    return is_newer(s->state_term, s->state_index, m->state_term, m->state_index);
}

/* This node is the better candidate. */
static void hurry(succession *s)
{
    if (s->role == FOLLOWER)
        s->elect_ms = earlier(s->elect_ms, s->now_ms + FIRST_MS + STEP_MS * position(s));
}

static void on_pre_ask(succession *s, int node, const succession_message *m)
{
    if (!has_head(s) && m->term >= s->term && !has_newer_state(s, m)) {
        send_message(s, node, (succession_message){.kind = SUCCESSION_PRE_VOTE, .term = m->term});
        return;
    }
    if (!has_head(s) && has_newer_state(s, m))
        hurry(s);
    send(s, node, SUCCESSION_REFUSE);
}

static void on_renewal(succession *s, int node, const succession_message *m)
{
    if (m->term > s->term) {
        s->term = m->term;
        s->voted_for = node;
    }
    s->received_ms = s->now_ms;
    send(s, node, s->voted_for == node ? SUCCESSION_VOTE : SUCCESSION_REFUSE);
}

static void on_ask(succession *s, int node, const succession_message *m)
{
    bool is_granted;

    if (s->role == FOLLOWER && s->head == node && m->term >= s->term) {
        on_renewal(s, node, m);
        return;
    }
    if (has_head(s)) {
        send(s, node, SUCCESSION_REFUSE);
        return;
    }
    if (m->term > s->term)
        enter_term(s, m->term);
    is_granted =
        m->term == s->term && (s->voted_for < 0 || s->voted_for == node) && !has_newer_state(s, m);
    if (is_granted) {
        s->voted_for = node;
        s->elect_ms = s->now_ms + retry_ms(s);
    } else if (has_newer_state(s, m)) {
        hurry(s);
    }
    send(s, node, is_granted ? SUCCESSION_VOTE : SUCCESSION_REFUSE);
}

static void on_state(succession *s, int node, const succession_message *m)
{
    if (m->term < s->term || (s->role == HEAD && m->term == s->term)) {
        send(s, node, SUCCESSION_REFUSE);
        return;
    }
    if (s->role == HEAD) { // a majority has elected another one
        leave(s);
        return;
    }
    if (m->term > s->term)
        enter_term(s, m->term);
    s->role = FOLLOWER;
    s->received_ms = s->now_ms;
    s->has_given_up = false;
    if (s->head != node) {
        s->head = s->last_head = node;
        act(s, SUCCESSION_DO_FOLLOW)->node = node;
    }
    if (m->has_state && is_newer(m->state_term, m->state_index, s->state_term, s->state_index)) {
        s->state_term = m->state_term;
        s->state_index = m->state_index;
        act(s, SUCCESSION_DO_STORE);
    }
    send_message(
        s, node,
        (succession_message){
            .kind = SUCCESSION_STORED, .term = s->term, .round = m->round, .sent_ms = m->sent_ms});
}

static void on_stored(succession *s, int node, const succession_message *m)
{
    peer *p = &s->peers[node];
    const int64_t until_ms = earlier(m->sent_ms, s->now_ms) + s->opt.silence_ms;

    if (s->role != HEAD || m->term != s->term)
        return;
    p->received_ms = s->now_ms;
    if (until_ms > p->bound_until_ms)
        p->bound_until_ms = until_ms;
    if (m->state_term == s->term && m->state_index > p->state_index)
        p->state_index = m->state_index;
    if (m->round > p->round)
        p->round = m->round;
    count_answers(s);
}

static void on_refuse(succession *s, const succession_message *m)
{
    const bool has_asked = asks(s);

    if (s->role == HEAD) {
        renew_term(s, m->term);
        return;
    }
    if (s->head >= 0)
        return;
    if (m->term > s->term)
        enter_term(s, m->term);
    if (!has_asked || !is_newer(m->state_term, m->state_index, s->state_term, s->state_index))
        return;
    s->role = FOLLOWER; // the other one is the better candidate
    s->elect_ms = s->now_ms + s->opt.silence_ms + retry_ms(s);
}

static void on_vote(succession *s, int node, const succession_message *m)
{
    const succession_role role = m->kind == SUCCESSION_VOTE ? CANDIDATE : PRE_CANDIDATE;
    const bool is_asked = s->role == role && m->term == s->term;

    if (!is_asked && !(renews(s) && m->kind == SUCCESSION_VOTE && m->term == s->asked_term))
        return;
    s->peers[node].has_voted = true;
    s->peers[node].received_ms = s->now_ms;
    count_votes(s);
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
    case SUCCESSION_PRE_ASK:
        on_pre_ask(s, node, m);
        return;
    case SUCCESSION_VOTE:
    case SUCCESSION_PRE_VOTE:
        on_vote(s, node, m);
        return;
    case SUCCESSION_REFUSE:
        on_refuse(s, m);
        return;
    case SUCCESSION_KINDS:
        return;
    }
}

/* --- connections and time --- */

static void on_connected(succession *s, int node)
{
    peer *p = &s->peers[node];

    p->is_connected = true;
    if (s->role == HEAD)
        p->state_index = 0; // it may lack what was sent before
    if (asks(s) || renews(s))
        send_ask(s, node);
    else if (s->role == HEAD)
        send_state(s, node);
}

/* A head that a majority does not answer: another one may have been elected. */
static bool has_lost_majority(const succession *s)
{
    int n = 1;

    for (int i = 0; i < s->opt.n_nodes; i++)
        n += i != s->opt.self && s->now_ms - s->peers[i].received_ms < s->opt.silence_ms;
    return !is_majority(s, n);
}

static void retire(succession *s)
{
    s->is_retired = true;
    if (asks(s))
        s->role = FOLLOWER;
}

static void on_time_of_follower(succession *s)
{
    if (s->head >= 0) {
        if (s->now_ms - s->received_ms >= s->opt.silence_ms)
            lose_head(s);
        return;
    }
    if (!s->has_given_up && s->now_ms - s->headless_ms >= s->opt.give_up_ms) {
        s->has_given_up = true;
        retire(s);
        act(s, SUCCESSION_DO_LEAVE);
    } else if (!s->is_retired && s->now_ms >= s->elect_ms) {
        become_pre_candidate(s);
    } else if (asks(s) && s->now_ms >= s->beat_ms) {
        send_all(s);
    }
}

static void on_time(succession *s)
{
    if (s->role != HEAD)
        on_time_of_follower(s);
    else if (has_lost_majority(s))
        leave(s);
    else if (s->now_ms >= s->beat_ms)
        send_all(s);
}

static int64_t wake_at(const succession *s)
{
    int64_t at = INT64_MAX;

    if (s->role == OUT)
        return at;
    if (s->role == HEAD)
        return s->beat_ms;
    if (s->head >= 0)
        return s->received_ms + s->opt.silence_ms;
    if (!s->has_given_up)
        at = s->headless_ms + s->opt.give_up_ms;
    if (!s->is_retired)
        at = earlier(at, s->elect_ms);
    return asks(s) ? earlier(at, s->beat_ms) : at;
}

static void take_event(succession *s, const succession_event *e)
{
    const bool has_peer = e->node >= 0 && e->node < s->opt.n_nodes && e->node != s->opt.self;

    if (e->kind == SUCCESSION_MESSAGE && has_peer)
        on_message(s, e->node, e->message);
    else if (e->kind == SUCCESSION_CONNECTED && has_peer)
        on_connected(s, e->node);
    else if (e->kind == SUCCESSION_LOST && has_peer) {
        s->peers[e->node].is_connected = false;
        s->peers[e->node].bound_until_ms = 0; // it may have noticed that, too
        if (s->role == FOLLOWER && s->head == e->node)
            lose_head(s);
    } else if (e->kind == SUCCESSION_PROPOSE && succession_is_head(s)) {
        s->state_index++;
        send_all(s);
    } else if (e->kind == SUCCESSION_CONFIRM && succession_is_head(s)) {
        s->round++;
        send_all(s);
    } else if (e->kind == SUCCESSION_RETIRE && s->role != HEAD) {
        retire(s);
    } else if (e->kind == SUCCESSION_RETURN) {
        s->is_retired = false;
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
    LS_TRY(LS_NEW(&s, 1, "for a standby head"));
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
