/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_succession_sim.c - the machines of launch/head/elastic/succession.h on simulated nodes, by
 * thousands of seeded schedules.
 *
 * Time is simulated. Messages take random times, come in any order, twice or not at all. Nodes die,
 * are stopped for a while, retire and return, and are cut off from others, in one direction too;
 * connections end without a reason, but not in every second schedule, where no head may act after
 * another one has led. Each head makes new states and asks whether it is still the head. Checked:
 * the promises of succession.h. In further schedules one node at a time is cut off from all others,
 * and nothing else happens: the job must keep its head, or get one soon.
 *
 * LS_TEST_ROUNDS multiplies the number of schedules, LS_TEST_SEED=N runs that one alone.
 */
#include "base/unit.h"

#include "base/rng.h"
#include "launch/head/elastic/succession.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODES_MAX = 7,
    MESSAGES_MAX = 4000,
    STATES_MAX = 120, /* of a schedule */
    ROUNDS_MAX = 400,
    TERMS_MAX = 4000,
    SCHEDULES = 10000,
    BEAT_MS = 100,
    SILENCE_MS = 500,
    FAULTS_MS = 6000, /* then all that live are connected, and nothing more happens */
    CALM_MS = 5000,
    CUT_SCHEDULES = 3000,
    CUTS = 6,                                         /* of a schedule, one node at a time */
    TWO_HEADS_MS = SILENCE_MS + 2 * BEAT_MS + 2 * 60, /* messages take up to 60 ms */
    TAKEOVER_MS = 2000                                /* from the loss of a connection, at most */
};

typedef struct history {
    int n;
    int ids[STATES_MAX]; /* all states so far, in order: the last is the newest */
} history;

typedef enum sim_kind { DELIVER, CONNECT, DISCONNECT } sim_kind;

typedef struct sim_message {
    int64_t at_ms;
    uint64_t order;
    sim_kind kind;
    int from;
    int to;
    succession_message message;
    history state;
} sim_message;

typedef struct sim_node {
    succession *machine;
    bool is_dead;
    bool has_left;
    int64_t stopped_until_ms;
    int64_t wake_ms;
    history state;
    int n_at_index[STATES_MAX + 64]; /* states contained, by index of the present term */
    uint64_t asked_term[ROUNDS_MAX]; /* by round: the latest term that led when it asked */
} sim_node;

static struct {
    uint64_t seed;
    ls_rng rng;
    int64_t now_ms;
    uint64_t order;
    sim_message *queue;
    int n_queue;
    int n_nodes;
    int delay_ms;
    bool is_calm;
    bool has_cuts_only;
    bool has_leases;      /* no connection ends */
    int64_t two_heads_ms; /* since then; 0: there is at most one */
    sim_node nodes[NODES_MAX];
    bool is_cut[NODES_MAX][NODES_MAX]; /* from, to */
    int n_states;
    uint64_t acknowledged_term[STATES_MAX]; /* 0: it is not */
    int leader[TERMS_MAX];                  /* by term; -1: none */
    uint64_t latest_term;                   /* that led */
} w;

static struct {
    int led, renewed, committed, confirmed, left, calm_heads, no_majority, cuts, heads_cut;
} met;

#define CHECK(expr)                                                                                \
    do {                                                                                           \
        if (!(expr))                                                                               \
            fail_msg("LS_TEST_SEED=%" PRIu64 ": %s, at %" PRId64 " ms", w.seed, #expr, w.now_ms);  \
    } while (0)

static int below(int bound)
{
    return (int)ls_rng_below(&w.rng, (uint64_t)bound);
}

static bool lives(int i)
{
    return !w.nodes[i].is_dead && !w.nodes[i].has_left;
}

/* --- the network --- */

static sim_message *post(sim_kind kind, int from, int to, int in_ms)
{
    sim_message *m = &w.queue[w.n_queue++];

    CHECK(w.n_queue < MESSAGES_MAX);
    *m = (sim_message){.at_ms = w.now_ms + in_ms, .order = ++w.order, .kind = kind};
    m->from = from;
    m->to = to;
    return m;
}

static void transmit(int from, int to, const succession_message *message)
{
    const int copies = w.is_calm ? 1 : below(12) == 0 ? 2 : below(12) == 0 ? 0 : 1;

    for (int i = 0; i < copies && !w.is_cut[from][to]; i++) {
        sim_message *m = post(DELIVER, from, to, 1 + below(w.delay_ms));

        m->message = *message;
        if (message->has_state)
            m->state = w.nodes[from].state;
    }
}

/* --- one node --- */

static void lead(int i)
{
    const sim_node *node = &w.nodes[i];
    const uint64_t term = succession_term(node->machine);

    CHECK(term < TERMS_MAX);
    CHECK(w.leader[term] < 0);
    w.leader[term] = i;
    if (term > w.latest_term)
        w.latest_term = term;
    for (int id = 0; id < w.n_states; id++) {
        bool is_known = false;

        for (int k = 0; k < node->state.n; k++)
            is_known |= node->state.ids[k] == id;
        CHECK(is_known || w.acknowledged_term[id] == 0 || w.acknowledged_term[id] > term);
    }
    met.led++;
}

/* A head that acts: no other one has led since. */
static void check_lease(int i)
{
    CHECK(!w.has_leases || w.latest_term <= succession_term(w.nodes[i].machine));
}

static void commit(int i, uint64_t index)
{
    const sim_node *node = &w.nodes[i];
    const uint64_t term = succession_term(node->machine);
    const int n = node->n_at_index[index];

    check_lease(i);
    for (int k = 0; k < n; k++) {
        uint64_t *known = &w.acknowledged_term[node->state.ids[k]];

        if (*known == 0 || term < *known)
            *known = term;
    }
    met.committed++;
}

static void confirm(int i, uint64_t round)
{
    const sim_node *node = &w.nodes[i];

    CHECK(node->asked_term[round] <= succession_term(node->machine));
    check_lease(i);
    met.confirmed++;
}

static void carry_out(int i, const succession_action *a, const history *state)
{
    sim_node *node = &w.nodes[i];

    switch (a->kind) {
    case SUCCESSION_DO_SEND:
        transmit(i, a->node, &a->message);
        return;
    case SUCCESSION_DO_STORE:
        node->state = *state;
        return;
    case SUCCESSION_DO_LEAD:
        node->n_at_index[succession_index(node->machine)] = node->state.n;
        lead(i);
        return;
    case SUCCESSION_DO_COMMIT:
        commit(i, a->number);
        return;
    case SUCCESSION_DO_CONFIRM:
        confirm(i, a->number);
        return;
    case SUCCESSION_DO_LEAVE:
        node->has_left = true;
        met.left++;
        return;
    case SUCCESSION_DO_DIAL:
    case SUCCESSION_DO_FOLLOW:
        return;
    }
}

/* The head may have begun a later term with the votes of a majority. */
static void note_term(int i)
{
    const sim_node *node = &w.nodes[i];
    const uint64_t term = succession_term(node->machine);

    if (!succession_is_head(node->machine) || w.leader[term] == i)
        return;
    CHECK(term < TERMS_MAX);
    CHECK(w.leader[term] < 0);
    w.leader[term] = i;
    if (term > w.latest_term)
        w.latest_term = term;
    met.renewed++;
}

/* While no node is stopped, the earlier head of two ends soon. */
static void count_heads(void)
{
    int n = 0;

    for (int i = 0; i < w.n_nodes; i++)
        n += lives(i) && succession_is_head(w.nodes[i].machine);
    if (n < 2)
        w.two_heads_ms = 0;
    else if (w.two_heads_ms == 0)
        w.two_heads_ms = w.now_ms;
    else
        CHECK(w.now_ms - w.two_heads_ms <= TWO_HEADS_MS);
}

static void step(int i, const succession_event *e, const history *state)
{
    sim_node *node = &w.nodes[i];
    const succession_result r = succession_step(node->machine, e, w.now_ms);

    CHECK(r.wake_at_ms > w.now_ms || e->kind != SUCCESSION_TICK);
    node->wake_ms = r.wake_at_ms;
    if (succession_is_head(node->machine))
        node->n_at_index[succession_index(node->machine)] = node->state.n;
    for (int k = 0; k < r.n_actions; k++)
        carry_out(i, &r.actions[k], state);
    note_term(i);
    if (w.has_cuts_only)
        count_heads();
}

static void make_state(int i)
{
    sim_node *node = &w.nodes[i];

    if (!succession_is_head(node->machine) || w.n_states == STATES_MAX)
        return;
    node->state.ids[node->state.n++] = w.n_states++;
    step(i, &(succession_event){.kind = SUCCESSION_PROPOSE}, NULL);
}

static void ask_confirmation(int i)
{
    sim_node *node = &w.nodes[i];
    const uint64_t round = succession_round(node->machine) + 1;

    if (!succession_is_head(node->machine) || round == ROUNDS_MAX)
        return;
    node->asked_term[round] = w.latest_term;
    step(i, &(succession_event){.kind = SUCCESSION_CONFIRM}, NULL);
}

/* --- faults --- */

static void connect_pair(int a, int b)
{
    post(CONNECT, a, b, 1 + below(w.delay_ms));
    post(CONNECT, b, a, 1 + below(w.delay_ms));
}

static void disconnect_pair(int a, int b)
{
    if (w.has_leases)
        return;
    post(DISCONNECT, a, b, 1 + below(w.delay_ms));
    post(DISCONNECT, b, a, 1 + below(w.delay_ms));
}

static void kill_node(int i)
{
    w.nodes[i].is_dead = true;
    for (int k = 0; k < w.n_nodes && below(3) > 0; k++)
        if (k != i)
            post(DISCONNECT, i, k, 1 + below(w.delay_ms));
}

static void cut(int a, int b, bool is_cut)
{
    w.is_cut[a][b] = is_cut;
    if (below(4) > 0)
        w.is_cut[b][a] = is_cut;
    if (is_cut && below(2) == 0)
        disconnect_pair(a, b);
    else if (!is_cut)
        connect_pair(a, b);
}

static int count_lives(void)
{
    int n = 0;

    for (int i = 0; i < w.n_nodes; i++)
        n += lives(i);
    return n;
}

static void cause_fault(void)
{
    const int i = below(w.n_nodes);
    const int k = (i + 1 + below(w.n_nodes - 1)) % w.n_nodes;
    const int what = below(40);

    if (what < 12)
        make_state(i);
    else if (what < 20)
        ask_confirmation(i);
    else if (what < 23)
        cut(i, k, true);
    else if (what < 28)
        cut(i, k, false);
    else if (what == 28)
        disconnect_pair(i, k);
    else if (what == 29 && (count_lives() > w.n_nodes / 2 + 1 || below(20) == 0))
        kill_node(i);
    else if (what == 30)
        w.nodes[i].stopped_until_ms = w.now_ms + below(3 * SILENCE_MS);
    else if (what == 31 && lives(i))
        step(i, &(succession_event){.kind = SUCCESSION_RETIRE}, NULL);
    else if (what == 32 && lives(i))
        step(i, &(succession_event){.kind = SUCCESSION_RETURN}, NULL);
}

static void run_until(int64_t until_ms);

/* After the ends of connections that are still on their way. */
static void calm_down(void)
{
    w.is_calm = true;
    memset(w.is_cut, 0, sizeof(w.is_cut));
    run_until(w.now_ms + 4 * SILENCE_MS);
    for (int i = 0; i < w.n_nodes; i++) {
        for (int k = 0; k < i; k++)
            connect_pair(i, k);
        if (lives(i))
            step(i, &(succession_event){.kind = SUCCESSION_RETURN}, NULL);
        for (int k = 0; k < w.n_nodes; k++)
            if (k != i && !lives(i))
                post(DISCONNECT, i, k, 1 + below(w.delay_ms));
    }
}

/* --- a schedule --- */

/* What comes next: a message (its index), or a tick of *node; -1: neither before `until`. */
static int find_next(int64_t until_ms, int *node)
{
    int next = -1;
    int64_t at_ms = until_ms;
    uint64_t order = UINT64_MAX;

    *node = -1;
    for (int i = 0; i < w.n_queue; i++) {
        const sim_message *m = &w.queue[i];

        if (m->at_ms > at_ms || (m->at_ms == at_ms && m->order > order))
            continue;
        next = i;
        at_ms = m->at_ms;
        order = m->order;
    }
    for (int i = 0; i < w.n_nodes; i++) {
        int64_t due_ms = w.nodes[i].wake_ms;

        if (due_ms < w.nodes[i].stopped_until_ms)
            due_ms = w.nodes[i].stopped_until_ms;
        if (!lives(i) || due_ms >= at_ms)
            continue;
        *node = i;
        next = -1;
        at_ms = due_ms;
    }
    if (at_ms > w.now_ms)
        w.now_ms = at_ms;
    return next;
}

static void deliver(int index)
{
    const sim_message m = w.queue[index];
    const sim_node *node = &w.nodes[m.to];
    succession_event e = {.kind = SUCCESSION_MESSAGE, .node = m.from, .message = &m.message};

    w.queue[index] = w.queue[--w.n_queue];
    if (!lives(m.to) || (m.kind == CONNECT && !lives(m.from)))
        return;
    if (node->stopped_until_ms > w.now_ms) { // it waits in the socket
        sim_message *again = &w.queue[w.n_queue++];

        *again = m;
        again->at_ms = node->stopped_until_ms;
        return;
    }
    if (m.kind == CONNECT)
        e.kind = SUCCESSION_CONNECTED;
    else if (m.kind == DISCONNECT)
        e.kind = SUCCESSION_LOST;
    step(m.to, &e, &m.state);
}

static void run_until(int64_t until_ms)
{
    for (;;) {
        int node;
        const int next = find_next(until_ms, &node);

        if (next >= 0)
            deliver(next);
        else if (node >= 0)
            step(node, &(succession_event){.kind = SUCCESSION_TICK}, NULL);
        else
            break;
    }
}

static void begin(uint64_t seed, int n_nodes, int delay_ms, int head)
{
    sim_message *queue = w.queue;

    memset(&w, 0, sizeof(w));
    w.queue = queue;
    w.seed = seed;
    w.n_nodes = n_nodes;
    w.delay_ms = delay_ms;
    memset(w.leader, -1, sizeof(w.leader));
    ls_rng_seed(&w.rng, seed);
    for (int i = 0; i < n_nodes; i++) {
        const succession_options options = {.self = i,
                                            .n_nodes = n_nodes,
                                            .head = head,
                                            .beat_ms = BEAT_MS,
                                            .silence_ms = SILENCE_MS,
                                            .give_up_ms = 1000000};

        assert_ok(succession_create(&options, 0, &w.nodes[i].machine));
        for (int k = 0; k < i; k++)
            connect_pair(i, k);
    }
    w.leader[1] = head;
    w.latest_term = 1;
}

static void end(void)
{
    for (int i = 0; i < w.n_nodes; i++)
        succession_destroy(w.nodes[i].machine);
}

static int find_head(void)
{
    int head = -1;

    for (int i = 0; i < w.n_nodes; i++)
        if (lives(i) && succession_is_head(w.nodes[i].machine))
            head = i;
    return head;
}

static void run_schedule(uint64_t seed)
{
    int head;

    begin(seed, 3, 1, 0);
    end();
    begin(seed, 3 + below(NODES_MAX - 2), 1 + below(60), below(3));
    w.has_leases = seed % 2 == 0;
    while (w.now_ms < FAULTS_MS) {
        run_until(w.now_ms + 1 + below(60));
        cause_fault();
    }
    calm_down();
    run_until(w.now_ms + CALM_MS);
    head = find_head();
    if (count_lives() <= w.n_nodes / 2) {
        met.no_majority++;
        CHECK(head < 0);
    } else {
        CHECK(head >= 0);
        for (int i = 0; i < w.n_nodes; i++)
            CHECK(!lives(i) || succession_head(w.nodes[i].machine) == head);
        met.calm_heads++;
    }
    end();
}

static void any_schedule_keeps_the_promises(void **state)
{
    const char *one = getenv("LS_TEST_SEED");
    const char *factor = getenv("LS_TEST_ROUNDS");
    const int rounds = SCHEDULES * (factor != NULL ? (int)strtol(factor, NULL, 10) : 1);

    (void)state;
    if (one != NULL) {
        run_schedule(strtoull(one, NULL, 10));
        return;
    }
    print_message("seeds 0 to %d\n", rounds - 1);
    for (int seed = 0; seed < rounds; seed++)
        run_schedule((uint64_t)seed);
    print_message("met: %d elections, %d later terms of a head, %d states committed, %d "
                  "confirmations, %d nodes left, %d schedules ended with a head, %d without a "
                  "majority\n",
                  met.led, met.renewed, met.committed, met.confirmed, met.left, met.calm_heads,
                  met.no_majority);
    assert_true(met.led > 5000 && met.committed > 10000 && met.confirmed > 5000);
    assert_true(met.left > 1000 && met.calm_heads > 1000 && met.no_majority > 50);
}

/* --- one node at a time is cut off --- */

typedef enum cut_kind { BOTH_WAYS, RECEIVES_NOTHING, SENDS_NOTHING, CUT_KINDS } cut_kind;

/* Its connections end, or stay open and carry nothing. */
static void cut_off(int i, cut_kind kind, bool is_cut)
{
    const bool ends = below(2) == 0;

    for (int k = 0; k < w.n_nodes; k++) {
        if (k == i)
            continue;
        if (kind != RECEIVES_NOTHING)
            w.is_cut[i][k] = is_cut;
        if (kind != SENDS_NOTHING)
            w.is_cut[k][i] = is_cut;
        if (!is_cut)
            connect_pair(i, k);
        else if (ends)
            disconnect_pair(i, k);
    }
}

static int choose_living(void)
{
    int i = below(w.n_nodes);

    while (!lives(i))
        i = (i + 1) % w.n_nodes;
    return i;
}

static int count_left(void)
{
    int n = 0;

    for (int i = 0; i < w.n_nodes; i++)
        n += w.nodes[i].has_left;
    return n;
}

/* The head stays the head, unless it is itself the one that is cut off; then only it leaves. */
static void cut_in_turn(void)
{
    const int head = find_head();
    const int i = choose_living();
    const int n_left = count_left();

    CHECK(head >= 0);
    if (count_lives() <= w.n_nodes / 2 + 1)
        return; // the others are no majority
    met.cuts++;
    met.heads_cut += i == head;
    cut_off(i, (cut_kind)below(CUT_KINDS), true);
    make_state(head);
    run_until(w.now_ms + w.delay_ms + 2 + below(3 * SILENCE_MS)); // ends of connections arrive
    cut_off(i, BOTH_WAYS, false);
    run_until(w.now_ms + 2 * TAKEOVER_MS + below(SILENCE_MS));
    CHECK(i == head || (find_head() == head && count_left() == n_left));
    CHECK(i != head || find_head() == head || count_left() <= n_left + 1);
    CHECK(find_head() >= 0);
    for (int k = 0; k < w.n_nodes; k++)
        CHECK(!lives(k) || succession_head(w.nodes[k].machine) == find_head());
}

static void run_cuts(uint64_t seed)
{
    begin(seed, 3, 1, 0);
    end();
    begin(seed, 3 + below(NODES_MAX - 2), 1 + below(60), below(3));
    w.is_calm = true; // no other message is lost
    w.has_cuts_only = true;
    run_until(w.now_ms + SILENCE_MS);
    for (int i = 0; i < CUTS; i++)
        cut_in_turn();
    end();
}

/* A majority is connected all the time, so the job is never lost. */
static void node_that_is_cut_off_and_returns_ends_no_head(void **state)
{
    const char *one = getenv("LS_TEST_SEED");
    const char *factor = getenv("LS_TEST_ROUNDS");
    const int rounds = CUT_SCHEDULES * (factor != NULL ? (int)strtol(factor, NULL, 10) : 1);

    (void)state;
    for (int seed = 0; one == NULL && seed < rounds; seed++)
        run_cuts((uint64_t)seed);
    if (one != NULL)
        run_cuts(strtoull(one, NULL, 10));
    print_message("seeds 0 to %d: %d cuts, %d of them of the head\n", rounds - 1, met.cuts,
                  met.heads_cut);
    assert_true(one != NULL || (met.cuts > 10000 && met.heads_cut > 1000));
}

/* Its election has failed, so it is in a later term: the head takes it back and stays the head. */
static void head_takes_back_a_node_of_a_later_term(void **state)
{
    const int n_renewed = met.renewed;

    (void)state;
    begin(1, 5, 5, 0);
    w.is_calm = w.has_cuts_only = true;
    run_until(1000);
    for (int k = 0; k < 4; k++) // node 4 gets the answers to its first question, and no others
        w.is_cut[k][4] = w.is_cut[4][k] = k == 0;
    disconnect_pair(0, 4);
    disconnect_pair(0, 3);
    disconnect_pair(0, 2);
    while (succession_term(w.nodes[4].machine) == 1 && succession_term(w.nodes[3].machine) == 1 &&
           succession_term(w.nodes[2].machine) == 1 && w.now_ms < 1000 + TAKEOVER_MS)
        run_until(w.now_ms + 1);
    CHECK(succession_is_head(w.nodes[0].machine));
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++) // what is under way arrives; then only node 0 is connected
            w.is_cut[a][b] = a != 0 && b != 0;
    w.n_queue = 0;
    for (int k = 1; k < 5; k++)
        connect_pair(0, k);
    run_until(w.now_ms + TAKEOVER_MS);
    CHECK(find_head() == 0 && succession_is_head(w.nodes[0].machine));
    for (int k = 1; k < 5; k++)
        CHECK(succession_head(w.nodes[k].machine) == 0);
    CHECK(succession_term(w.nodes[0].machine) > 1 && met.renewed > n_renewed);
    end();
}

/* One that has retired votes, and becomes no head. */
static void retired_node_votes_and_is_not_elected(void **state)
{
    (void)state;
    begin(1, 3, 5, 0);
    w.is_calm = true;
    run_until(1000);
    step(1, &(succession_event){.kind = SUCCESSION_RETIRE}, NULL);
    w.nodes[0].is_dead = true;
    disconnect_pair(0, 1);
    disconnect_pair(0, 2);
    run_until(w.now_ms + TAKEOVER_MS);
    CHECK(find_head() == 2 && succession_head(w.nodes[1].machine) == 2);
    step(1, &(succession_event){.kind = SUCCESSION_RETURN}, NULL);
    run_until(w.now_ms + TAKEOVER_MS);
    CHECK(find_head() == 2);
    end();
}

/* With any number of nodes, and whichever it is; also when its connections stay open. */
static void a_lost_head_is_followed_soon(void **state)
{
    (void)state;
    for (int n = 3; n <= NODES_MAX; n++) {
        for (int head = 0; head < n; head++) {
            for (int silent = 0; silent < 2; silent++) {
                begin((uint64_t)n, n, 5, head);
                run_until(1000);
                make_state(head);
                run_until(1100);
                CHECK(w.acknowledged_term[0] == 1);
                w.nodes[head].is_dead = true;
                for (int k = 0; k < n && !silent; k++)
                    if (k != head)
                        post(DISCONNECT, head, k, 1);
                run_until(w.now_ms + TAKEOVER_MS + (silent ? SILENCE_MS : 0));
                CHECK(find_head() >= 0);
                end();
            }
        }
    }
}

/* The answers to its last state wait until then: it acts if no other node can be the head, after
 * the next answers if none is, and not if one is. */
static void a_stopped_head_acts_while_it_leads(void **state)
{
    static const struct {
        int stopped_ms;
        bool acts_at_once;
        bool leads_on;
    } cases[] = {
        {SILENCE_MS - 20, true, true}, {SILENCE_MS + 25, false, true}, {3000, false, false}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        int n_confirmed;

        begin(1, 3, 5, 0);
        w.is_calm = w.has_leases = true;
        run_until(1000);
        n_confirmed = met.confirmed;
        make_state(0);
        ask_confirmation(0);
        w.nodes[0].stopped_until_ms = w.now_ms + cases[i].stopped_ms;
        run_until(w.nodes[0].stopped_until_ms - 1);
        CHECK(succession_is_head(w.nodes[1].machine) != cases[i].leads_on);
        run_until(w.nodes[0].stopped_until_ms);
        CHECK((w.acknowledged_term[0] == 1) == cases[i].acts_at_once);
        CHECK((met.confirmed > n_confirmed) == cases[i].acts_at_once);
        run_until(w.now_ms + TAKEOVER_MS);
        CHECK((w.acknowledged_term[0] == 1) == cases[i].leads_on);
        CHECK((met.confirmed > n_confirmed) == cases[i].leads_on);
        CHECK(find_head() == (cases[i].leads_on ? 0 : 1));
        end();
    }
}

/* Three of five nodes lose their connection to it and elect another one. Of these node 2 had its
 * state before; node 4, which still follows it, keeps it later. */
static void a_head_counts_no_node_whose_connection_has_ended(void **state)
{
    (void)state;
    begin(1, 5, 5, 0);
    w.is_calm = true;
    run_until(1000);
    w.is_cut[1][0] = w.is_cut[3][0] = w.is_cut[4][0] = w.is_cut[1][4] = true;
    make_state(0);
    run_until(1020);
    for (int k = 1; k < 4; k++)
        disconnect_pair(0, k);
    run_until(1250);
    CHECK(succession_is_head(w.nodes[1].machine) && succession_is_head(w.nodes[0].machine));
    CHECK(w.acknowledged_term[0] == succession_term(w.nodes[1].machine));
    w.is_cut[4][0] = false;
    run_until(1250 + TAKEOVER_MS);
    CHECK(w.acknowledged_term[0] == succession_term(w.nodes[1].machine) && find_head() == 1);
    end();
}

/* One node of two or more cannot become the head, and the head of a minority ends. */
static void a_minority_has_no_head(void **state)
{
    (void)state;
    begin(1, 5, 5, 0);
    run_until(1000);
    for (int a = 0; a < 2; a++)
        for (int b = 2; b < 5; b++)
            w.is_cut[a][b] = w.is_cut[b][a] = true;
    ask_confirmation(0);
    run_until(3000);
    CHECK(w.nodes[0].has_left);
    CHECK(find_head() >= 2);
    end();
}

static void wrong_options_are_refused(void **state)
{
    succession *s;

    (void)state;
    assert_status(succession_create(&(succession_options){.n_nodes = 2}, 0, &s), LS_EINVAL);
    assert_last_error("node 0 of 2");
    assert_status(succession_create(&(succession_options){.n_nodes = 3, .self = 3}, 0, &s),
                  LS_EINVAL);
}

static int allocate(void **state)
{
    (void)state;
    w.queue = calloc(MESSAGES_MAX, sizeof(*w.queue));
    return w.queue == NULL;
}

static int release(void **state)
{
    (void)state;
    free(w.queue);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_keeps_the_promises),
        cmocka_unit_test(node_that_is_cut_off_and_returns_ends_no_head),
        cmocka_unit_test(head_takes_back_a_node_of_a_later_term),
        cmocka_unit_test(retired_node_votes_and_is_not_elected),
        cmocka_unit_test(a_lost_head_is_followed_soon),
        cmocka_unit_test(a_stopped_head_acts_while_it_leads),
        cmocka_unit_test(a_head_counts_no_node_whose_connection_has_ended),
        cmocka_unit_test(a_minority_has_no_head),
        cmocka_unit_test(wrong_options_are_refused),
    };

    return cmocka_run_group_tests(tests, allocate, release);
}
