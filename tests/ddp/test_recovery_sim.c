/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recovery_sim.c - elastic jobs of simulated ranks around the machine of launch/head/
 * recovery.h and the choice of ddp/newest_state.h, by thousands of seeded schedules.
 *
 * Time is simulated. Messages take random times and come in any order; those to and from the head
 * also come twice. Processes die at any point (while they train, meet, receive a state, several at
 * once, before they have joined), some with their node, of which half are offered another one
 * later, or are stopped for so long that they are replaced, which to the others is a partition. The
 * head may move to another node: its messages are lost, the groups fail, and the agents report
 * their processes. A step needs the shards of all ranks of a roster. Checked: no step has two
 * states, at most one completed step is done again, each schedule ends in bounded time.
 *
 * LS_TEST_ROUNDS multiplies the number of schedules, LS_TEST_SEED=N runs that one alone.
 */
#include "base/unit.h"

#include "base/rng.h"
#include "ddp/newest_state.h"
#include "ddp/shard_tree.h"
#include "launch/head/elastic/recovery.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PROCESSES_MAX = 48,
    RANKS_MAX = 8,
    SHARDS = 8,
    MESSAGES_MAX = 20000,
    STEPS = 12, /* of a training */
    SCHEDULES = 10000,
    MEET_MS = 1000,
    OP_TIMEOUT_MS = 400,
    END_MS = 600000 /* a schedule that lasts longer hangs */
};

typedef enum message_kind {
    /* to the head */
    TO_HEAD,
    /* to a process */
    ABORT,
    CALL,
    SEAT,
    REFUSE,
    RECORD, /* of another rank of its roster, before the first step */
    PIECE,  /* of a state */
    SHARES, /* of a step */
    STARTED,
    TIMEOUT,
    MOVED, /* the connection to the head has ended */
    MOVE,  /* of the head, by the schedule */
    KILL,  /* by the head, or by the schedule */
    STOP,
    CONTINUE
} message_kind;

typedef struct message {
    int64_t at_ms;
    uint64_t order;
    message_kind kind;
    int to; /* a process: its member's number */
    int from;
    recovery_event event;
    int64_t roster;
    uint64_t number; /* of a question */
    int64_t step;
    uint64_t state;
    int rank;
    int size;
    int ranks[RANKS_MAX]; /* members of the roster */
    state_record record;
    bool calls;
} message;

typedef enum activity { PREPARES, ASKS, COMPARES, RECEIVES, TRAINS, FINISHED } activity;

typedef struct process {
    bool exists;
    bool is_stopped;
    bool is_out; /* the head has sent it away */
    int slot;
    activity doing;
    int64_t roster;
    uint64_t n_asked;
    int rank;
    int size;
    int ranks[RANKS_MAX];
    bool has_state;
    int64_t step;
    uint64_t state;
    bool is_called;   /* has read RECOVERY_DO_CALL */
    bool is_aborted;  /* its group has failed */
    int64_t began_ms; /* to wait */
    bool has_record[RANKS_MAX];
    state_record records[RANKS_MAX];
    bool has_shares[RANKS_MAX];
    uint64_t shares[RANKS_MAX];
    bool meets; /* after this step */
    int n_pieces;
    newest_state newest;
} process;

static struct {
    uint64_t seed;
    ls_rng rng;
    int64_t now_ms;
    uint64_t order;
    message *queue;
    int n;
    int64_t wake_ms;
    recovery *r;
    process p[PROCESSES_MAX];
    int n_processes;
    bool is_given_up;
    int n_slots;
    int min_ranks;
    int delay_ms;
    int64_t newest_step;
    bool has_state_of[STEPS + 1];
    uint64_t state_of[STEPS + 1];
} w;

static struct {
    int rosters, replaced, offered, given_up, finished, refused, redone, behind, killed, called;
    int moved;
} met;

#define CHECK(expr)                                                                                \
    do {                                                                                           \
        if (!(expr))                                                                               \
            fail_msg("LS_TEST_SEED=%" PRIu64 ": %s, at %" PRId64 " ms", w.seed, #expr, w.now_ms);  \
    } while (0)

static int64_t below(int64_t bound)
{
    return (int64_t)ls_rng_below(&w.rng, (uint64_t)bound);
}

static void post(const message *m, int64_t in_ms)
{
    message *at = &w.queue[w.n++];

    CHECK(w.n < MESSAGES_MAX);
    *at = *m;
    at->at_ms = w.now_ms + in_ms;
    at->order = ++w.order;
}

static void send(const message *m)
{
    post(m, below(w.delay_ms) + 1);
}

/* To or from the head: sometimes twice. */
static void send_repeatedly(const message *m)
{
    send(m);
    if (below(8) == 0)
        post(m, below(4 * w.delay_ms) + 1);
}

/* --- the head --- */

static void step_head(const recovery_event *e);

static int64_t present_view(const recovery_seat **seats, int *n)
{
    int64_t roster;

    *seats = recovery_roster(w.r, n, &roster);
    return roster;
}

static void tell_view(message_kind kind)
{
    const recovery_seat *seats;
    int n;
    const int64_t roster = present_view(&seats, &n);

    for (int i = 0; i < n; i++)
        send_repeatedly(&(message){.kind = kind, .to = seats[i].member, .roster = roster});
}

static void give_seats(void)
{
    const recovery_seat *seats;
    message m = {.kind = SEAT};

    m.roster = present_view(&seats, &m.size);
    CHECK(m.size >= w.min_ranks && m.size <= w.n_slots);
    for (int i = 0; i < m.size; i++)
        m.ranks[i] = seats[i].member;
    for (int i = 0; i < m.size; i++) {
        m.to = seats[i].member;
        m.rank = i;
        m.number = seats[i].number;
        CHECK(i == 0 || seats[i].member > seats[i - 1].member);
        send_repeatedly(&m);
    }
    met.rosters++;
}

static void start_process(int member, int slot)
{
    if (member < w.n_processes)
        return; // started before the head has moved
    CHECK(member == w.n_processes && member < PROCESSES_MAX);
    w.p[member] = (process){.exists = true, .slot = slot};
    w.n_processes++;
    met.replaced++;
    post(&(message){.kind = STARTED, .to = member}, 5 + below(300));
    if (below(10) == 0)
        post(&(message){.kind = KILL, .to = member}, below(600));
}

/* No process of the roster that may still come has a state, or too few are left. */
static void check_give_up(void)
{
    const recovery_seat *seats;
    int n;
    int n_states = 0;
    int n_left = 0;

    (void)present_view(&seats, &n);
    for (int i = 0; i < n; i++) {
        const process *p = &w.p[seats[i].member];

        n_states += p->exists && !p->is_out && p->has_state;
    }
    for (int i = 0; i < w.n_processes; i++)
        n_left += w.p[i].exists && !w.p[i].is_out;
    CHECK(n_states == 0 || n_left < w.min_ranks);
}

static void carry_out(const recovery_action *a)
{
    switch (a->kind) {
    case RECOVERY_DO_ABORT:
        tell_view(ABORT);
        break;
    case RECOVERY_DO_CALL:
        tell_view(CALL);
        met.called++;
        break;
    case RECOVERY_DO_ROSTER:
        give_seats();
        break;
    case RECOVERY_DO_START:
        start_process(a->member, a->slot);
        break;
    case RECOVERY_DO_KILL:
        w.p[a->member].is_out = true;
        send_repeatedly(&(message){.kind = KILL, .to = a->member});
        met.killed++;
        break;
    case RECOVERY_DO_REFUSE:
        send_repeatedly(&(message){.kind = REFUSE, .to = a->member, .number = a->number});
        break;
    case RECOVERY_DO_GIVE_UP:
        check_give_up();
        w.is_given_up = true;
        break;
    case RECOVERY_DO_DROP:
        break;
    }
}

static void step_head(const recovery_event *e)
{
    const recovery_result result = recovery_step(w.r, e, w.now_ms);

    w.wake_ms = result.wake_at_ms;
    CHECK(w.wake_ms == RECOVERY_NEVER || w.wake_ms > w.now_ms);
    for (int i = 0; i < result.n_actions; i++)
        carry_out(&result.actions[i]);
}

/* --- a rank --- */

static void tell_head(const process *p, recovery_event_kind kind)
{
    const int member = (int)(p - w.p);
    const message m = {.kind = TO_HEAD,
                       .event = {.kind = kind,
                                 .member = member,
                                 .roster = p->roster,
                                 .number = p->n_asked,
                                 .has_state = p->has_state}};

    send_repeatedly(&m);
}

/* Its group has failed, or ends. */
static void ask(process *p)
{
    p->n_asked++;
    p->doing = ASKS;
    p->is_called = false;
    p->is_aborted = false;
    tell_head(p, RECOVERY_ASKED);
}

static void send_to_group(const process *p, message m)
{
    m.roster = p->roster;
    m.from = p->rank;
    for (int i = 0; i < p->size; i++) {
        m.to = p->ranks[i];
        send(&m);
    }
}

/* While it waits for others: the operation may time out, when one of them is stopped. */
static void begin_waiting(process *p)
{
    p->began_ms = w.now_ms;
    post(&(message){.kind = TIMEOUT, .to = (int)(p - w.p), .roster = p->roster, .step = p->step},
         OP_TIMEOUT_MS);
}

static void begin_step(process *p)
{
    const shard_node range = shard_range(SHARDS, p->rank, p->size);
    uint64_t sum = 0;

    if (p->step == STEPS) {
        p->doing = FINISHED;
        p->exists = false;
        met.finished++;
        /* The driver reports each end of a process once. */
        send(&(message){.kind = TO_HEAD,
                        .event = {.kind = RECOVERY_ENDED, .member = (int)(p - w.p)}});
        return;
    }
    p->doing = TRAINS;
    p->meets = false;
    memset(p->has_shares, 0, sizeof(p->has_shares));
    for (int i = 0; i < range.n; i++)
        sum += ls_hash3(p->state, (uint64_t)p->step, (uint64_t)(range.first + i));
    send_to_group(p, (message){.kind = SHARES,
                               .step = p->step,
                               .state = sum,
                               .calls = p->rank == 0 && p->is_called});
    begin_waiting(p);
}

static void commit(process *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->size; i++)
        sum += p->shares[i];
    p->state = ls_mix(p->state + sum);
    p->step++;
    CHECK(!w.has_state_of[p->step] || w.state_of[p->step] == p->state);
    w.has_state_of[p->step] = true;
    w.state_of[p->step] = p->state;
    if (p->step > w.newest_step)
        w.newest_step = p->step;
}

static void take_shares(process *p, const message *m)
{
    if (p->doing == ASKS || p->roster != m->roster || p->step != m->step)
        return; /* of a step that it did not begin in this roster, or has completed */
    p->has_shares[m->from] = true;
    p->shares[m->from] = m->state;
    p->meets = p->meets || m->calls;
}

static void go_on(process *p)
{
    if (p->doing != TRAINS)
        return;
    for (int i = 0; i < p->size; i++)
        if (!p->has_shares[i])
            return;
    commit(p);
    if (p->meets || p->is_aborted)
        ask(p);
    else
        begin_step(p);
}

static void compare(process *p)
{
    for (int i = 0; i < p->size; i++)
        if (!p->has_record[i])
            return;
    if (newest_state_find(p->records, p->size, &p->newest) != LS_OK) {
        CHECK(false); /* the head gives up before */
    }
    CHECK(p->newest.step >= w.newest_step - 1);
    met.redone += p->rank == 0 && p->newest.step < w.newest_step;
    met.behind += p->rank == 0 && p->newest.n_behind > 0;
    if (!p->newest.is_sent) {
        begin_step(p);
        return;
    }
    p->doing = RECEIVES;
    p->n_pieces = 0;
    if (p->rank == p->newest.source)
        for (int i = 0; i < 2; i++)
            send_to_group(p, (message){.kind = PIECE, .step = p->step, .state = p->state});
    begin_waiting(p);
}

/* A state counts when all of it has come. Survivors keep theirs until then. */
static void take_piece(process *p, const message *m)
{
    if (p->roster != m->roster || p->doing == ASKS)
        return;
    CHECK(p->doing == RECEIVES || p->doing == COMPARES);
    if (++p->n_pieces < 2 || p->doing != RECEIVES)
        return;
    p->state = m->state;
    p->step = m->step;
    if (!p->has_state)
        tell_head(p, RECOVERY_READY);
    p->has_state = true;
    begin_step(p);
}

static void take_seat(process *p, const message *m)
{
    if (p->doing != ASKS || m->number != p->n_asked)
        return;
    p->roster = m->roster;
    p->rank = m->rank;
    p->size = m->size;
    memcpy(p->ranks, m->ranks, sizeof(p->ranks));
    memset(p->has_record, 0, sizeof(p->has_record));
    memset(p->has_shares, 0, sizeof(p->has_shares));
    p->doing = COMPARES;
    p->n_pieces = 0;
    send_to_group(
        p, (message){.kind = RECORD, .record = {.has_state = p->has_state, .step = p->step}});
    begin_waiting(p);
}

static void refuse(process *p, const message *m)
{
    if (p->doing != ASKS || m->number != p->n_asked)
        return;
    CHECK(p->is_out);
    p->exists = false;
    met.refused++;
    send(&(message){.kind = TO_HEAD, .event = {.kind = RECOVERY_DIED, .member = (int)(p - w.p)}});
}

static void die(process *p)
{
    const bool is_lost = below(4) == 0;

    if (!p->exists)
        return;
    p->exists = false;
    send(
        &(message){.kind = TO_HEAD,
                   .event = {.kind = RECOVERY_DIED, .member = (int)(p - w.p), .is_lost = is_lost}});
    if (is_lost && below(2) == 0)
        post(&(message){.kind = TO_HEAD, .event = {.kind = RECOVERY_OFFERED, .slot = p->slot}},
             w.delay_ms + below(1000) + 1);
}

static bool is_waiting(const process *p)
{
    return p->doing == COMPARES || p->doing == RECEIVES || p->doing == TRAINS;
}

/* --- the head moves --- */

/* Messages to the lost head are lost, and some of its own. */
static void lose_messages(void)
{
    int n = 0;

    for (int i = 0; i < w.n; i++) {
        const message_kind kind = w.queue[i].kind;
        const bool is_own = kind == ABORT || kind == CALL || kind == SEAT || kind == REFUSE;

        if (kind != TO_HEAD && !(is_own && below(2) == 0))
            w.queue[n++] = w.queue[i];
    }
    w.n = n;
}

static void find_process(int member)
{
    const process *p = &w.p[member];
    const recovery_event found = {.kind = RECOVERY_FOUND,
                                  .member = member,
                                  .slot = p->slot,
                                  .found = p->exists              ? RECOVERY_RUNS
                                           : p->doing == FINISHED ? RECOVERY_HAS_ENDED
                                                                  : RECOVERY_HAS_FAILED};

    send_repeatedly(&(message){.kind = TO_HEAD, .event = found});
}

static void move_head(void)
{
    wire_writer bytes = {0};
    wire_reader reader;
    int in_slot[RANKS_MAX];

    recovery_write(w.r, &bytes);
    recovery_destroy(w.r);
    reader = wire_reader_over(bytes.data, bytes.bytes);
    assert_ok(recovery_read(&reader, w.n_slots, &w.r));
    assert_ok(wire_reader_end(&reader, "a machine"));
    wire_writer_free(&bytes);
    lose_messages();
    met.moved++;
    step_head(&(recovery_event){.kind = RECOVERY_MOVED});
    for (int i = 0; i < w.n_processes; i++) {
        in_slot[w.p[i].slot] = i;
        if (w.p[i].exists)
            send(&(message){.kind = MOVED, .to = i});
    }
    for (int i = 0; i < w.n_slots; i++)
        find_process(in_slot[i]);
}

/* It asks the new head, under a new number. */
static void ask_again(process *p)
{
    if (is_waiting(p) || p->doing == ASKS)
        ask(p);
}

/* What a stopped process gets is read when it continues. */
static void deliver(const message *m)
{
    process *p = &w.p[m->to];

    if (m->kind == TO_HEAD) {
        const int n = w.n_processes;

        step_head(&m->event);
        met.offered += m->event.kind == RECOVERY_OFFERED && w.n_processes > n;
        return;
    }
    if (m->kind == MOVE) {
        move_head();
        return;
    }
    if (m->kind == KILL) {
        die(p);
        return;
    }
    if (m->kind == CONTINUE)
        p->is_stopped = false;
    if (!p->exists)
        return;
    if (p->is_stopped) {
        post(m, 20);
        return;
    }
    switch (m->kind) {
    case STARTED:
        ask(p);
        break;
    case STOP:
        p->is_stopped = true;
        post(&(message){.kind = CONTINUE, .to = m->to}, below(3 * MEET_MS) + 1);
        break;
    case ABORT:
        if (is_waiting(p) && m->roster == p->roster)
            ask(p);
        break;
    case MOVED:
        ask_again(p);
        break;
    case CALL:
        p->is_called = p->is_called || m->roster == p->roster;
        break;
    case SEAT:
        take_seat(p, m);
        break;
    case REFUSE:
        refuse(p, m);
        break;
    case RECORD:
        if (p->doing == COMPARES && p->roster == m->roster) {
            p->has_record[m->from] = true;
            p->records[m->from] = m->record;
            compare(p);
        } else if (p->doing == ASKS || p->roster < m->roster) {
            post(m, 5); /* it has not read its seat yet: the connection keeps what comes */
        }
        break;
    case PIECE:
        if (p->roster < m->roster || (p->roster == m->roster && p->doing == COMPARES))
            post(m, 5);
        else if (p->doing == RECEIVES)
            take_piece(p, m);
        break;
    case SHARES:
        if (p->roster < m->roster ||
            (p->roster == m->roster &&
             (p->doing == COMPARES || p->doing == RECEIVES || p->step < m->step)))
            post(m, 5);
        else
            take_shares(p, m);
        go_on(p);
        break;
    case TIMEOUT:
        if (is_waiting(p) && p->roster == m->roster && w.now_ms >= p->began_ms + OP_TIMEOUT_MS)
            ask(p);
        break;
    case TO_HEAD:
    case MOVE:
    case KILL:
    case CONTINUE:
        break;
    }
}

/* --- schedules --- */

static void plan_faults(void)
{
    const int n = (int)below(6);

    for (int i = (int)below(3); i > 0; i--)
        post(&(message){.kind = MOVE}, below(1500));
    for (int i = 0; i < n; i++) {
        const int64_t at = below(1500);
        const message_kind kind = below(4) == 0 ? STOP : KILL;

        post(&(message){.kind = kind, .to = (int)below(w.n_slots)}, at);
        if (below(3) == 0) /* several at once */
            post(&(message){.kind = kind, .to = (int)below(w.n_slots)}, at + below(4));
    }
}

static int next_message(void)
{
    int first = 0;

    for (int i = 1; i < w.n; i++)
        if (w.queue[i].at_ms < w.queue[first].at_ms ||
            (w.queue[i].at_ms == w.queue[first].at_ms && w.queue[i].order < w.queue[first].order))
            first = i;
    return first;
}

static bool is_over(void)
{
    if (w.is_given_up)
        return true;
    for (int i = 0; i < w.n_processes; i++)
        if (w.p[i].exists)
            return false;
    return true;
}

static void begin(void)
{
    const recovery_options options = {.n_slots = w.n_slots,
                                      .min_ranks = w.min_ranks,
                                      .max_replacements = (int)below(6),
                                      .meet_ms = MEET_MS};

    assert_ok(recovery_create(&options, &w.r));
    w.n_processes = w.n_slots;
    w.has_state_of[0] = true;
    w.state_of[0] = w.seed;
    for (int i = 0; i < w.n_slots; i++) {
        process *p = &w.p[i];

        *p = (process){.exists = true,
                       .slot = i,
                       .rank = i,
                       .size = w.n_slots,
                       .has_state = true,
                       .state = w.seed};
        for (int k = 0; k < w.n_slots; k++)
            p->ranks[k] = k;
        tell_head(p, RECOVERY_READY);
    }
    w.now_ms = 40 * w.delay_ms; /* a program that dies before is not elastic yet */
    while (w.n > 0) {
        const message m = w.queue[--w.n];
        step_head(&m.event);
    }
    for (int i = 0; i < w.n_slots; i++)
        begin_step(&w.p[i]);
    plan_faults();
}

static void run_schedule(uint64_t seed)
{
    message *queue = w.queue;

    memset(&w, 0, sizeof(w));
    w.queue = queue;
    w.seed = seed;
    ls_rng_seed(&w.rng, seed);
    w.n_slots = (int)below(RANKS_MAX) + 1;
    w.min_ranks = below(3) == 0 ? (int)below(w.n_slots) + 1 : 1;
    w.delay_ms = below(2) == 0 ? 3 : 60;
    begin();
    while (!is_over()) {
        const int i = w.n > 0 ? next_message() : -1;

        CHECK(i >= 0 || w.wake_ms != RECOVERY_NEVER);
        if (i < 0 || w.wake_ms <= w.queue[i].at_ms) {
            w.now_ms = w.wake_ms;
            step_head(&(recovery_event){.kind = RECOVERY_TICK});
        } else {
            const message m = w.queue[i];

            w.now_ms = m.at_ms;
            w.queue[i] = w.queue[--w.n];
            deliver(&m);
        }
        CHECK(w.now_ms < END_MS);
    }
    met.given_up += w.is_given_up;
    recovery_destroy(w.r);
}

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : (int)strtol(text, NULL, 10);
}

static void any_schedule_keeps_the_promises(void **state)
{
    const int only = number_from("LS_TEST_SEED", -1);
    const int rounds = SCHEDULES * number_from("LS_TEST_ROUNDS", 1);

    (void)state;
    w.queue = calloc(MESSAGES_MAX, sizeof(*w.queue));
    assert_non_null(w.queue);
    if (only >= 0) {
        run_schedule((uint64_t)only);
        free(w.queue);
        return;
    }
    print_message("seeds 0 to %d\n", rounds - 1);
    for (int seed = 0; seed < rounds; seed++)
        run_schedule((uint64_t)seed);
    free(w.queue);
    print_message(
        "met: %d moves of the head, %d views, %d replacements, %d of them on other nodes, "
        "%d calls, %d kills, %d refused, %d steps redone, "
        "%d states sent to ranks that missed an update, %d ranks finished, %d jobs given "
        "up\n",
        met.moved, met.rosters, met.replaced, met.offered, met.called, met.killed, met.refused,
        met.redone, met.behind, met.finished, met.given_up);
    assert_true(met.rosters > 1000 && met.replaced > 1000 && met.offered > 100 &&
                met.called > 100 && met.killed > 100);
    assert_true(met.refused > 10 && met.redone > 10 && met.behind > 100 && met.given_up > 100);
}

/* The last head has taken its node for lost, and may have had another one in its place, which
 * follows no other head; but this node comes to the next head. */
static void a_process_that_counted_as_lost_is_replaced(void **state)
{
    for (int i = 0; i < 4; i++) {
        const bool has_spare = i >= 2;
        const int n = i % 2;
        const recovery_options options = {
            .n_slots = 3, .min_ranks = 1, .max_replacements = n, .meet_ms = 100};
        wire_writer bytes = {0};
        wire_reader reader;
        recovery_result result;
        recovery *r;

        (void)state;
        assert_ok(recovery_create(&options, &r));
        for (int k = 0; k < 3; k++)
            (void)recovery_step(r, &(recovery_event){.kind = RECOVERY_READY, .member = k}, 1);
        (void)recovery_step(
            r, &(recovery_event){.kind = RECOVERY_DIED, .member = 2, .is_lost = true}, 2);
        if (has_spare)
            (void)recovery_step(r, &(recovery_event){.kind = RECOVERY_OFFERED, .slot = 2}, 2);
        recovery_write(r, &bytes);
        recovery_destroy(r);
        reader = wire_reader_over(bytes.data, bytes.bytes);
        assert_ok(recovery_read(&reader, 3, &r));
        wire_writer_free(&bytes);
        (void)recovery_step(r, &(recovery_event){.kind = RECOVERY_MOVED}, 3);
        assert_int_equal(recovery_member_in(r, 2), has_spare ? 3 : 2);
        if (has_spare)
            (void)recovery_step(
                r, &(recovery_event){.kind = RECOVERY_DIED, .member = 3, .is_lost = true}, 3);
        result = recovery_step(
            r,
            &(recovery_event){
                .kind = RECOVERY_FOUND, .member = 2, .slot = 2, .found = RECOVERY_RUNS},
            4);
        assert_int_equal(result.n_actions, 1);
        assert_int_equal(result.actions[0].kind, RECOVERY_DO_KILL);
        result = recovery_step(
            r, &(recovery_event){.kind = RECOVERY_DIED, .member = recovery_member_in(r, 2)}, 5);
        assert_int_equal(result.n_actions, 1);
        assert_int_equal(result.actions[0].kind, n == 0 ? RECOVERY_DO_DROP : RECOVERY_DO_START);
        assert_int_equal(result.actions[0].slot, 2);
        recovery_destroy(r);
    }
}

static void wrong_options_are_refused(void **state)
{
    recovery *r;

    (void)state;
    assert_status(recovery_create(&(recovery_options){.n_slots = 2, .min_ranks = 3}, &r),
                  LS_EINVAL);
    assert_last_error("--elastic=3");
    assert_status(recovery_create(&(recovery_options){.n_slots = 0, .min_ranks = 1}, &r),
                  LS_EINVAL);
}

static void states_are_chosen(void **state)
{
    newest_state s;
    const state_record none[] = {{0, 0, 7}, {0, 0, 7}};
    const state_record far[] = {{1, 5, 7}, {1, 3, 7}};
    const state_record other[] = {{1, 5, 7}, {1, 5, 8}};
    const state_record mixed[] = {{1, 4, 7}, {0, 0, 7}, {1, 5, 7}, {1, 5, 7}};

    (void)state;
    assert_status(newest_state_find(none, 2, &s), LS_EPEER);
    assert_status(newest_state_find(far, 2, &s), LS_EMISMATCH);
    assert_last_error("rank 1 has completed 3 steps and rank 0 5");
    assert_status(newest_state_find(other, 2, &s), LS_EMISMATCH);
    assert_last_error("rank 1");
    assert_ok(newest_state_find(mixed, 4, &s));
    assert_int_equal(s.source, 2);
    assert_int_equal(s.step, 5);
    assert_int_equal(s.n_behind, 1);
    assert_int_equal(s.n_without, 1);
    assert_true(s.is_sent);
    assert_ok(newest_state_find(mixed + 2, 2, &s));
    assert_false(s.is_sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_keeps_the_promises),
        cmocka_unit_test(a_process_that_counted_as_lost_is_replaced),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(states_are_chosen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
