/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.c - what a seed does to the job, and what must hold then.
 *
 * At any time   a step has one state on all ranks, and each shard once, and buffers are those of
 *               shard 0 (rank.c compares); a roster has one size, each rank of it one process, and
 *               one head gives it out; no head gives out a roster after another one has given out a
 *               later one; no rank saves that is not in the newest roster; no launcher that returns
 *               has memory or descriptors left.
 * SETTLE_S after the last fault, the last call that failed, and the last end of a process
 *               all ranks that live are in the group, and each that was lost has been replaced, if
 *               it can be; ranks that live make steps.
 * At the end    all launchers have ended within a bound; no rank, shim or guardian is left; code
 *               0 means that the training is complete; without faults all codes are 0; where more
 *               than half of the machines stay connected and are not harmed while the ranks train,
 *               theirs are 0. One that was silent and came back counts with them.
 */
#include "sim/sim.h"

#include "store/seat_text.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum {
    STEPS_MAX = 1000,
    ROSTERS_MAX = 400,
    LIMIT_S = 240,  /* after the last fault, and the time of the training */
    SETTLE_S = 15,  /* after the last fault, and the last end of a process: the job is complete */
    STALL_S = 25,   /* ... and makes a step */
    BACK_S = 7,     /* a machine that was silent is in the job again, at most */
    AGAIN_S = 20,   /* ... and counts for the majority again */
    LEFT_MS = 15000 /* after the last launcher: shims and guardians end */
};

typedef struct roster {
    int64_t number; /* group_number() */
    int size;
    int head;             /* machine; -1: unknown */
    int n_members;        /* that have read their seats */
    unsigned hosts;       /* of these, as bits */
    uint64_t members[32]; /* by rank, + 1 */
} roster;

typedef struct history {
    uint64_t states[STEPS_MAX + 1];
    roster rosters[ROSTERS_MAX];
    int64_t last_group; /* that a head has given out */
    int last_head;      /* machine */
    uint64_t started;   /* members that have made a step, as bits */
    int64_t all_started_at;
    int64_t finished_at;
    int64_t stepped_at;
    int saved_step;
    int64_t first_fault_at;
    int64_t last_fault_at; /* its end */
    int least_size;        /* of the group, when the job has settled */
    char errors[HOSTS_MAX][160];
} history;

/* --- what is reported --- */

/* Rosters of a generation, in which all ranks were started again, have later numbers. */
static int64_t group_number(int64_t generation, int64_t number)
{
    return (generation << 16) + number;
}

static roster *roster_of(int64_t number)
{
    roster *r = &W->history->rosters[number % ROSTERS_MAX];

    if (r->number != number)
        *r = (roster){.number = number};
    return r;
}

static int64_t settled_at(void)
{
    int64_t at = W->history->last_fault_at;

    at = at > W->last_end ? at : W->last_end;
    return (at > W->last_failed_call ? at : W->last_failed_call) + SETTLE_S * SECOND;
}

/* Processes that live are ranks of the group again, and have been replaced. */
static void check_group(void)
{
    const history *h = W->history;
    const int64_t number = W->current->group;
    const int size =
        (number & 0xffff) == 0 ? W->spec->n_nodes * W->spec->n_local : roster_of(number)->size;

    if (!W->spec->is_elastic || number != h->last_group || W->now < settled_at())
        return;
    for (const process *p = W->processes; p != NULL; p = p->next)
        if (p->role == ROLE_RANK && !p->is_dead && p->group != number &&
            p->began_at + SETTLE_S * SECOND < W->now)
            world_fail("%s (pid %d) is not in group %" PRIx64, p->name, p->pid, number);
    if (W->n_takeovers == 0 && number >> 16 == 1 && size < h->least_size)
        world_fail("group %" PRIx64 " has %d ranks, at least %d can be in it", number, size,
                   h->least_size);
}

void history_step(int member, int step, uint64_t state)
{
    history *h = W->history;
    const int n = W->spec->n_nodes * W->spec->n_local;

    if (step > STEPS_MAX)
        return;
    world_trace((uint64_t)step, state);
    h->stepped_at = W->now;
    check_group();
    if (h->states[step] == 0)
        h->states[step] = state;
    else if (h->states[step] != state)
        world_fail("step %d has two states", step);
    if (member < 64)
        h->started |= UINT64_C(1) << member;
    if (h->all_started_at == 0 && __builtin_popcountll(h->started) >= n)
        h->all_started_at = W->now;
    if (step % 20 == 0)
        world_log("%s: step %d", W->current->name, step);
}

void history_begin(int generation)
{
    W->current->group = group_number(generation, 0);
    if (W->current->group > W->history->last_group)
        W->history->last_group = W->current->group;
}

static void take_seat(int64_t number, int rank, int size)
{
    roster *r = roster_of(number);
    int64_t *calls = &W->hosts[W->current->host].rank_calls[W->current->local_rank];

    world_log("%s: rank %d of %d in roster %" PRIx64, W->current->name, rank, size, number);
    if (rank >= 32)
        return;
    if (r->size != 0 && r->size != size)
        world_fail("roster %" PRIx64 " has %d ranks and %d", number, r->size, size);
    r->size = size;
    if (r->members[rank] != 0 && r->members[rank] != (uint64_t)W->current->pid)
        world_fail("roster %" PRIx64 " has two ranks %d, the second on machine %d", number, rank,
                   W->current->host);
    r->n_members += r->members[rank] == 0;
    r->hosts |= 1U << W->current->host;
    r->members[rank] = (uint64_t)W->current->pid;
    W->current->group = number;
    W->current->calls_left = *calls;
    *calls = 0;
}

/* A rank reads which seat it has. */
ls_status __real_seat_read_answer(const char *text, seat_answer *out);
ls_status __wrap_seat_read_answer(const char *text, seat_answer *out);
ls_status __wrap_seat_read_answer(const char *text, seat_answer *out)
{
    LS_TRY(__real_seat_read_answer(text, out));
    take_seat(group_number(out->generation & 0xffff, out->roster), out->rank, out->size);
    return LS_OK;
}

/* The head gives out a seat. */
const char *__real_seat_write_answer(const seat_answer *a, char text[SEAT_TEXT_BYTES]);
const char *__wrap_seat_write_answer(const seat_answer *a, char text[SEAT_TEXT_BYTES]);
const char *__wrap_seat_write_answer(const seat_answer *a, char text[SEAT_TEXT_BYTES])
{
    history *h = W->history;
    const int host = W->current->host;
    const int64_t number = group_number(a->generation & 0xffff, a->roster);

    if (number < h->last_group && host != h->last_head)
        world_fail("two heads: machine %d gives out roster %" PRIx64 " after roster %" PRIx64
                   " of machine %d",
                   host, number, h->last_group, h->last_head);
    else if (number == h->last_group && host != h->last_head)
        world_fail("two heads: machines %d and %d give out roster %" PRIx64, h->last_head, host,
                   number);
    W->n_takeovers += host != h->last_head;
    W->n_groups += a->rank == 0;
    h->last_group = number;
    h->last_head = host;
    return __real_seat_write_answer(a, text);
}

/* Of a rank that is one of the job. */
void history_save(int step)
{
    if (W->current->group < W->history->last_group)
        world_fail("%s saves in group %" PRIx64 " after group %" PRIx64 " was given out",
                   W->current->name, W->current->group, W->history->last_group);
    if (step < W->history->saved_step && W->spec->max_restarts == 0)
        world_fail("step %d is saved after step %d", step, W->history->saved_step);
    W->history->saved_step = step;
}

void history_finish(void)
{
    if (W->history->finished_at == 0)
        W->history->finished_at = W->now;
}

void history_error(process *p, const char *text)
{
    char *to = W->history->errors[p->host];

    world_log("%s: %s", p->name, text);
    if (p->role == ROLE_AGENT)
        (void)snprintf(to, sizeof(W->history->errors[0]), "%.150s", text);
}

/* --- the schedule of a seed --- */

static int pick(ls_rng *r, int n)
{
    return (int)ls_rng_below(r, (uint64_t)n);
}

static fault_kind pick_kind(ls_rng *r)
{
    static const fault_kind kinds[] = {
        FAULT_CUT,      FAULT_CUT_ONE, FAULT_ISOLATE, FAULT_ISOLATE, FAULT_ISOLATE,   FAULT_DELAY,
        FAULT_POWER,    FAULT_KILL,    FAULT_KILL,    FAULT_KILL_AT, FAULT_KILL_AT,   FAULT_STOP,
        FAULT_TERM,     FAULT_RANK,    FAULT_RANK,    FAULT_RANK_AT, FAULT_RANK_STOP, FAULT_SHIM,
        FAULT_GUARDIAN, FAULT_SLOW,    FAULT_CLOCK,   FAULT_CALL,    FAULT_CALL,      FAULT_FULL};

    return kinds[pick(r, (int)LS_COUNT_OF(kinds))];
}

static bool is_of_rank(fault_kind k)
{
    return k == FAULT_RANK || k == FAULT_RANK_AT || k == FAULT_RANK_STOP || k == FAULT_SHIM;
}

static fault make_fault(ls_rng *r, const scenario *s)
{
    const int lengths_ms[] = {300, 2000, 4000, 6000, 7000, 9000, 12000, 20000};
    fault f = {.kind = pick_kind(r), .a = pick(r, s->n_nodes)};

    f.at_ms = pick(r, 8) == 0 ? pick(r, 4000) : 4000 + pick(r, s->n_steps * s->step_ms);
    f.length_ms = lengths_ms[pick(r, (int)LS_COUNT_OF(lengths_ms))] + pick(r, 1000);
    f.b = (f.a + 1 + (s->n_nodes > 1 ? pick(r, s->n_nodes - 1) : 0)) % s->n_nodes;
    f.number = 1 + pick(r, 400);
    if ((f.kind == FAULT_POWER || f.kind == FAULT_KILL || f.kind == FAULT_KILL_AT ||
         f.kind == FAULT_STOP || f.kind == FAULT_TERM || f.kind == FAULT_ISOLATE) &&
        pick(r, 3) == 0)
        f.a = 0; /* the head */
    if (is_of_rank(f.kind))
        f.b = pick(r, s->n_local);
    if (f.kind == FAULT_CALL)
        f.b = pick(r, CALLS);
    if (f.kind == FAULT_DELAY)
        f.number = 1 + pick(r, 150);
    if (f.kind == FAULT_CLOCK && pick(r, 2) == 0)
        f.length_ms = 100;
    return f;
}

void scenario_make(uint64_t seed, scenario *s)
{
    const int sizes[] = {1, 2, 3, 3, 3, 3, 3, 3, 4, 5};
    const int steps_ms[] = {100, 300, 900};
    ls_rng r;

    ls_rng_seed(&r, ls_hash3(seed, 1, 2));
    *s = (scenario){.seed = seed,
                    .n_nodes = sizes[pick(&r, (int)LS_COUNT_OF(sizes))],
                    .n_local = 1 + pick(&r, 2),
                    .step_ms = steps_ms[pick(&r, 3)],
                    .n_shards = 10 + pick(&r, 20), // at least one for each rank
                    .max_restarts = pick(&r, 4),
                    .is_elastic = pick(&r, 12) != 0,
                    .latency = 50000 + pick(&r, 2) * (int64_t)pick(&r, 5000000),
                    .jitter = 100000 + pick(&r, 2) * (int64_t)pick(&r, 10000000)};
    s->n_steps = (15000 + pick(&r, 15000)) / s->step_ms;
    s->n_faults = pick(&r, 20) == 0 ? 0 : 1 + pick(&r, 4);
    for (int i = 0; i < s->n_faults; i++)
        s->faults[i] = make_fault(&r, s);
    s->has_buffer = pick(&r, 3) == 0;
    s->by_arrival = pick(&r, 4) == 0;
}

void fault_text(const fault *f, char *buf, size_t n)
{
    static const char *const names[] = {"cut machines a and b off each other",
                                        "cut a off b in one direction",
                                        "cut machine a off all",
                                        "delay the packets of a",
                                        "switch machine a off",
                                        "kill launcher a",
                                        "kill launcher a at a call",
                                        "stop launcher a",
                                        "SIGTERM to launcher a",
                                        "kill rank b of a",
                                        "kill rank b of a soon after its next group",
                                        "stop rank b of a",
                                        "kill the shim of rank b of a",
                                        "kill the guardian of a",
                                        "slow machine a down",
                                        "clock of a jumps",
                                        "a call of launcher a fails",
                                        "small buffers"};

    (void)snprintf(buf, n, "%7.3f s: %s (a=%d b=%d, %.3f s, %d)", (double)f->at_ms / 1e3,
                   names[f->kind], f->a, f->b, (double)f->length_ms / 1e3, f->number);
}

void scenario_print(const scenario *s)
{
    char text[160];

    (void)printf("%d machines %s with %d ranks each, %s, %d restarts, %d steps of %d ms, "
                 "packets take %.2f to %.2f ms\n",
                 s->n_nodes, s->by_arrival ? "without node ranks" : "with node ranks", s->n_local,
                 s->is_elastic ? "--elastic" : "not elastic", s->max_restarts, s->n_steps,
                 s->step_ms, (double)s->latency / 1e6, (double)(s->latency + s->jitter) / 1e6);
    for (int i = 0; i < s->n_faults; i++) {
        fault_text(&s->faults[i], text, sizeof(text));
        (void)printf("  fault %d %s\n", i, text);
    }
}

/* --- faults happen --- */

static void cut_all(int a, bool is_cut)
{
    for (int i = 0; i < W->spec->n_nodes; i++)
        if (i != a) {
            net_cut(a, i, is_cut);
            net_cut(i, a, is_cut);
        }
}

static void switch_off(int a)
{
    machine *h = &W->hosts[a];

    h->was_killed = h->was_killed || !h->has_ended;
    net_host_off(a);
    h->is_off = true;
    for (process *p = W->processes; p != NULL; p = p->next)
        if (p->host == a)
            process_die(p, SIGKILL);
}

static void begin_fault(void *arg, uint64_t number)
{
    const fault *f = &W->spec->faults[number];
    machine *h = &W->hosts[f->a];
    const int64_t until = W->now + f->length_ms * MS;
    char text[160];

    (void)arg;
    fault_text(f, text, sizeof(text));
    world_log("FAULT %s", text);
    if (W->history->first_fault_at == 0)
        W->history->first_fault_at = W->now;
    switch (f->kind) {
    case FAULT_CUT:
        net_cut(f->a, f->b, true);
        net_cut(f->b, f->a, true);
        return;
    case FAULT_CUT_ONE:
        net_cut(f->a, f->b, true);
        return;
    case FAULT_ISOLATE:
        cut_all(f->a, true);
        return;
    case FAULT_DELAY:
        h->delay_until = until;
        h->delay = f->number * MS;
        return;
    case FAULT_POWER:
        switch_off(f->a);
        return;
    case FAULT_KILL:
        h->was_killed |= h->agent != NULL && !h->has_ended;
        process_signal(h->agent, SIGKILL);
        return;
    case FAULT_KILL_AT:
        h->calls_left = f->number;
        return;
    case FAULT_STOP:
        process_signal(h->agent, SIGSTOP);
        return;
    case FAULT_TERM:
        process_signal(h->agent, SIGTERM);
        return;
    case FAULT_RANK:
        process_signal(h->ranks[f->b], SIGKILL);
        return;
    case FAULT_RANK_AT:
        h->rank_calls[f->b] = f->number;
        return;
    case FAULT_RANK_STOP:
        process_signal(h->ranks[f->b], SIGSTOP);
        return;
    case FAULT_SHIM:
        process_signal(h->shims[f->b], SIGKILL);
        return;
    case FAULT_GUARDIAN:
        process_signal(h->guardian, SIGKILL);
        return;
    case FAULT_SLOW:
        h->slow_until = until;
        return;
    case FAULT_CLOCK:
        h->clock += f->length_ms * MS;
        return;
    case FAULT_CALL:
        h->call_fails[f->b] = 1 + f->number % 3;
        h->call_skips[f->b] = f->skipped;
        return;
    case FAULT_FULL:
        W->full_until = until;
        return;
    case FAULT_KINDS:
        return;
    }
}

static void end_fault(void *arg, uint64_t number)
{
    const fault *f = &W->spec->faults[number];
    machine *h = &W->hosts[f->a];

    (void)arg;
    world_log("fault %d ends", (int)number);
    if (f->kind == FAULT_CUT || f->kind == FAULT_CUT_ONE)
        net_cut(f->a, f->b, false);
    if (f->kind == FAULT_CUT)
        net_cut(f->b, f->a, false);
    if (f->kind == FAULT_ISOLATE)
        cut_all(f->a, false);
    if (f->kind == FAULT_STOP)
        process_signal(h->agent, SIGCONT);
    if (f->kind == FAULT_RANK_STOP)
        process_signal(h->ranks[f->b], SIGCONT);
}

static bool has_length(fault_kind k)
{
    return k == FAULT_CUT || k == FAULT_CUT_ONE || k == FAULT_ISOLATE || k == FAULT_STOP ||
           k == FAULT_RANK_STOP || k == FAULT_DELAY || k == FAULT_SLOW || k == FAULT_FULL;
}

/* How many ranks the group has at least when the first head leads on: each process that ended by
 * itself is replaced while there are restarts, and machines that were cut off come back. */
static int least_size(const scenario *s)
{
    int n = s->n_nodes * s->n_local;
    int n_restarts = s->max_restarts;

    for (int i = 0; i < s->n_faults; i++) {
        const fault_kind k = s->faults[i].kind;

        if (is_of_rank(k))
            n -= s->faults[i].b < s->n_local && n_restarts-- <= 0;
        else if (k == FAULT_POWER || k == FAULT_KILL || k == FAULT_KILL_AT || k == FAULT_TERM ||
                 k == FAULT_CALL || k == FAULT_GUARDIAN || k == FAULT_CLOCK)
            n -= s->n_local;
    }
    return n;
}

void faults_begin(void)
{
    W->history = sim_alloc(sizeof(history));
    W->history->least_size = least_size(W->spec);
    for (int i = 0; i < W->spec->n_faults; i++) {
        const fault *f = &W->spec->faults[i];

        if (f->kind == FAULT_KINDS)
            continue;
        const int64_t end = W->now + (f->at_ms + (has_length(f->kind) ? f->length_ms : 0)) * MS;

        world_at(W->now + f->at_ms * MS, begin_fault, NULL, (uint64_t)i);
        if (has_length(f->kind))
            world_at(end, end_fault, NULL, (uint64_t)i);
        if (end > W->history->last_fault_at)
            W->history->last_fault_at = end;
    }
}

/* --- the end --- */

static int64_t limit(void)
{
    const scenario *s = W->spec;
    int64_t ms = 0;

    for (int i = 0; i < s->n_faults; i++)
        if (s->faults[i].kind != FAULT_KINDS && s->faults[i].at_ms + s->faults[i].length_ms > ms)
            ms = s->faults[i].at_ms + s->faults[i].length_ms;
    return (ms + (int64_t)s->n_steps * s->step_ms) * MS + LIMIT_S * SECOND;
}

static bool agents_have_ended(void)
{
    for (int i = 0; i < W->spec->n_nodes; i++)
        if (!W->hosts[i].has_ended && !W->hosts[i].was_killed)
            return false;
    return true;
}

static bool is_cut_between(fault_kind k)
{
    return k == FAULT_CUT || k == FAULT_CUT_ONE;
}

/* By which machine a, and where it is a cut machine b too, may be lost for the job. */
static bool is_harmful(fault_kind k)
{
    return is_cut_between(k) || k == FAULT_ISOLATE || k == FAULT_POWER || k == FAULT_KILL ||
           k == FAULT_KILL_AT || k == FAULT_STOP || k == FAULT_TERM || k == FAULT_CLOCK ||
           k == FAULT_CALL || is_of_rank(k);
}

/* A machine without the head was silent, and counts again before anything else happens. */
static bool has_passed(const scenario *s, const fault *f)
{
    if ((f->kind != FAULT_ISOLATE && f->kind != FAULT_STOP) || f->a == 0)
        return false;
    for (int i = 0; i < s->n_faults; i++)
        if (&s->faults[i] != f && s->faults[i].kind != FAULT_KINDS &&
            s->faults[i].at_ms < f->at_ms + f->length_ms + AGAIN_S * 1000)
            return false;
    return true;
}

/* Machines that are not lost, also if their ranks are, and stay connected with each other: `set`
 * has a bit for each. Of two that are cut off each other one may stay; after further losses
 * neither (docs/elastic.md: a lost machine does not count until it is back, and after a takeover
 * it does not come back). */
static bool is_unharmed(const scenario *s, unsigned set)
{
    int n_harmful = 0;

    for (int i = 0; i < s->n_faults; i++)
        n_harmful += is_harmful(s->faults[i].kind);
    for (int i = 0; i < s->n_faults; i++) {
        const fault *f = &s->faults[i];
        const bool has_a = (set >> f->a & 1) != 0;
        const bool has_b = (set >> f->b & 1) != 0;

        if (!is_harmful(f->kind) || is_of_rank(f->kind) || has_passed(s, f))
            continue;
        if (!is_cut_between(f->kind) ? has_a : n_harmful == 1 ? has_a && has_b : has_a || has_b)
            return false;
    }
    return true;
}

/* Faults before all ranks train, and while they end, may end the job. */
static bool are_in_time(const scenario *s)
{
    const history *h = W->history;

    if (h->finished_at != 0 && W->last_kill + SECOND > h->finished_at)
        return false;
    for (int i = 0; i < s->n_faults; i++) {
        const fault *f = &s->faults[i];
        const int64_t at = SECOND + f->at_ms * MS;
        const int64_t lasts = has_length(f->kind) ? f->length_ms * MS + BACK_S * SECOND : SECOND;

        if (f->kind != FAULT_KINDS && (h->all_started_at == 0 || at < h->all_started_at ||
                                       (h->finished_at != 0 && at + lasts > h->finished_at)))
            return false;
    }
    return true;
}

/* A head whose own system calls fail ends the job: it does not move for that. */
static bool may_end_job(const fault *f)
{
    return f->kind == FAULT_CALL && f->b != CALL_ACCEPT &&
           (f->a == 0 || f->a == W->history->last_head);
}

/* Whether the newest group has a rank on one of these machines, of those that keep their ranks.
 * If not, they counted as lost when the machines of that group were lost, and nothing was left
 * to go on with. docs/elastic.md: until a lost machine is back, the loss of another one may end
 * the job; so does the lack of a living rank with the state. A group of which not all ranks have
 * read their seats may have one. */
static bool has_rank_left(const scenario *s, unsigned set)
{
    const int64_t number = W->history->last_group;
    const roster *r = roster_of(number);

    for (int i = 0; i < s->n_faults; i++)
        if (is_of_rank(s->faults[i].kind))
            set &= ~(1U << s->faults[i].a);
    if (set == 0)
        return false;
    return (number & 0xffff) == 0 || r->n_members == 0 || r->n_members < r->size ||
           (r->hosts & set) != 0;
}

static bool has_majority_unharmed(const scenario *s)
{
    for (int i = 0; i < s->n_faults; i++)
        if (may_end_job(&s->faults[i]))
            return false;
    for (unsigned set = 1; set < 1U << s->n_nodes; set++)
        if (2 * __builtin_popcount(set) > s->n_nodes && is_unharmed(s, set) &&
            has_rank_left(s, set))
            return true;
    return false;
}

/* The promise of docs/elastic.md: with a majority that stays connected the job goes on, and ends
 * with 0 on a majority. Where parts of the network are cut it may be another one. */
static void check_majority(void)
{
    const scenario *s = W->spec;
    const history *h = W->history;
    const bool has_faults = h->first_fault_at != 0;
    int n_well = 0;

    if (has_faults &&
        (!s->is_elastic || s->n_nodes < 3 || !are_in_time(s) || !has_majority_unharmed(s)))
        return;
    for (int i = 0; i < s->n_nodes; i++)
        n_well += W->hosts[i].has_ended && W->hosts[i].exit_code == 0;
    if (has_faults ? 2 * n_well > s->n_nodes : n_well == s->n_nodes)
        return;
    for (int i = 0; i < s->n_nodes; i++)
        if (W->hosts[i].has_ended && W->hosts[i].exit_code != 0)
            world_fail("a connected majority loses the job: launcher %d ends with code %d: %s", i,
                       W->hosts[i].exit_code, h->errors[i]);
}

static void check_codes(void)
{
    for (int i = 0; i < W->spec->n_nodes; i++) {
        const machine *m = &W->hosts[i];

        if (!m->has_ended)
            continue;
        if (m->exit_code == 0 && W->history->finished_at == 0)
            world_fail("launcher %d ends with code 0, and no rank has finished", i);
        if (m->exit_code != 0 && m->exit_code != 1 && m->exit_code != 128 + SIGKILL &&
            m->exit_code != 128 + SIGTERM)
            world_fail("launcher %d ends with code %d", i, m->exit_code);
    }
    check_majority();
}

/* Ranks that live make steps, or end. */
static void check_stall(void)
{
    const history *h = W->history;
    const int64_t since = settled_at() > h->stepped_at ? settled_at() : h->stepped_at;

    if (h->finished_at != 0 || W->now < since + STALL_S * SECOND)
        return;
    for (const process *p = W->processes; p != NULL; p = p->next)
        if (p->role == ROLE_RANK && !p->is_dead)
            world_fail("%s (pid %d) has made no step for %d s", p->name, p->pid, STALL_S);
}

void faults_end(void)
{
    const int64_t last = W->now + limit();

    while (!agents_have_ended() && W->now < last && W->failure[0] == 0) {
        world_run(W->now + 200 * MS < last ? W->now + 200 * MS : last);
        check_stall();
    }
    for (int i = 0; i < W->spec->n_nodes && W->failure[0] == 0; i++)
        if (!W->hosts[i].has_ended && !W->hosts[i].was_killed)
            world_fail("launcher %d has not ended after %.0f s", i, (double)W->now / 1e9);
    if (W->failure[0] == 0)
        check_codes();
    if (W->failure[0] == 0)
        world_run(W->now + LEFT_MS * MS);
    for (const process *p = W->processes; p != NULL && W->failure[0] == 0; p = p->next)
        if (!p->is_dead)
            world_fail("%s (pid %d) is left", p->name, p->pid);
    sim_free(W->history);
}
