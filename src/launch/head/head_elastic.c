/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_elastic.c - an elastic job (--elastic): the store in which ranks ask for a place in the next
 * group, the ends of processes, and the actions of recovery.h. The rendezvous machine is not
 * involved until a roster is given up: then the failure is handled as in other jobs. Called by
 * head.c, head_nodes.c and head_ranks.c.
 *
 * With a standby (standby.h) the actions of a step are carried out when a majority of the agents
 * knows the state after it; the next event waits until then.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "net/socket.h"
#include "store/seat_text.h"

#include <inttypes.h>
#include <string.h>

enum {
    ROSTERS_MOST = INT16_MAX - 1, /* of a generation: their numbers are parts of the hubs' */
    LOSS_BYTES = 256,
    SHOWN_MOST = 4,      /* losses in one line */
    EVENTS_PER_SLOT = 16 /* that may wait */
};

/* What has happened in a slot. */
typedef struct slot_loss {
    char loss[LOSS_BYTES]; /* since the last roster: "rank 1 (pid 4711) was killed by ..." or "" */
    int64_t lost_ms;       /* of the first loss that no member has replaced yet; 0: none */
    bool has_ended_well;   /* a rank has ended with code 0 */
} slot_loss;

/* A member asks whether it is in the present roster. */
typedef struct seat_check {
    bool is_open;
    int member;
    uint64_t number;
    uint64_t round; /* of the standby: then the answer is certain */
} seat_check;

struct elastic {
    recovery *machine;
    hub *store;
    net_address at_unix;
    int port;
    int n_slots; /* ranks of the first group */
    slot_loss *slots;
    poll_timer tick;
    bool has_given_up;
    poll_timer fails;   /* the generation, */
    const char *why;    /* for this reason */
    seat_check *checks; /* n_slots */
    /* With a standby: */
    recovery_action *held; /* until the state with this index is committed */
    int n_held;
    bool is_held;
    uint64_t held_index;     /* UINT64_MAX: never */
    recovery_event *waiting; /* n_waiting, at most EVENTS_PER_SLOT for each slot */
    int n_waiting;
};

/* --- slots: ranks of the first roster --- */

int head_slot_of_rank(const head *h, int rank)
{
    const recovery_seat *seats;
    int64_t roster;
    int n;

    if (h->elastic == NULL)
        return rank;
    seats = recovery_roster(h->elastic->machine, &n, &roster);
    return rank >= 0 && rank < n ? seats[rank].slot : rank;
}

int head_rank_in_slot(const head *h, int slot)
{
    return h->elastic == NULL ? slot : recovery_rank_in(h->elastic->machine, slot);
}

/* --- actions --- */

static void send_slot(const head *h, node_message type, int slot, int member)
{
    node_slot body = {.generation = h->generation, .member = member};
    head_node *node = head_node_of_slot(h, slot, &body.local_rank);
    wire_writer w = {0};

    node_write_slot(&w, &body);
    head_send_free(node, type, &w);
}

static void fail_soon(head *h, const char *why);

/* Without it a rank would wait without an end. */
static void put(head *h, const char *key, const char *text)
{
    if (hub_set(h->elastic->store, key, text) == LS_OK)
        return;
    ls_log(LS_LOG_ERROR, "head", "%s", ls_last_error());
    fail_soon(h, "--elastic: the head has no memory for an answer to a rank");
}

static void call_members(head *h)
{
    char key[SEAT_KEY_BYTES];
    int64_t roster;
    int n;

    (void)recovery_roster(h->elastic->machine, &n, &roster);
    put(h, seat_call_key(key, roster), "1");
}

static void abort_roster(head *h, int slot)
{
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL};

    cause.rank = head_rank_in_slot(h, slot);
    if (cause.rank < 0) /* its replacement has been noted already */
        cause.rank = 0;
    text_format(cause.text, sizeof(cause.text), "%s", h->elastic->slots[slot].loss);
    hub_abort(h->hub, &cause);
}

/* "rank 1 (pid 4711) was killed by signal 9 (SIGKILL): 3 ranks go on after 0.03 s" */
static void note_roster(head *h, const recovery_seat *seats, int n)
{
    struct elastic *e = h->elastic;
    text_buf line = {0};
    int64_t since_ms = 0;
    int n_shown = 0;
    int n_lost = 0;

    for (int i = 0; i < h->elastic->n_slots; i++) {
        slot_loss *s = &e->slots[i];

        if (s->loss[0] == 0)
            continue;
        if (n_shown++ < SHOWN_MOST)
            text_append(&line, "%s%s", line.length > 0 ? "; " : "", s->loss);
        n_lost++;
        if (since_ms == 0 || s->lost_ms < since_ms)
            since_ms = s->lost_ms;
        s->loss[0] = 0;
    }
    if (n_shown > SHOWN_MOST)
        text_append(&line, "; and %d more", n_shown - SHOWN_MOST);
    for (int i = 0; i < n; i++) {
        slot_loss *s = &e->slots[seats[i].slot];

        if (!seats[i].is_new)
            continue;
        text_append(&line, "%srank %d has been replaced", line.length > 0 ? "; " : "",
                    seats[i].slot);
        if (since_ms == 0 || (s->lost_ms > 0 && s->lost_ms < since_ms))
            since_ms = s->lost_ms;
        s->lost_ms = 0;
    }
    if (line.length == 0)
        text_append(&line, "the group of all ranks has failed");
    text_append(&line, ": %d rank%s go%s on", n, text_plural(n), n == 1 ? "es" : "");
    if (since_ms > 0)
        text_append(&line, " after %.2f s", (double)(ls_now_ms() - since_ms) / 1e3);
    head_broadcast_note(h, text_str(&line));
    text_free(&line);
}

static void give_seats(head *h, const recovery_seat *seats, int n, int64_t roster)
{
    seat_answer answer = {
        .roster = roster, .size = n, .generation = head_hub_generation(h), .port = h->hub_port};
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];

    if (h->has_standby)
        text_format(answer.unix_url, sizeof(answer.unix_url), "%s", SEAT_SAME_HUB);
    else
        net_address_text(answer.unix_url, sizeof(answer.unix_url), &h->hub_unix);
    for (int i = 0; i < n; i++) {
        answer.rank = i;
        put(h, seat_answer_key(key, seats[i].member, seats[i].number),
            seat_write_answer(&answer, text));
    }
}

static void make_roster(head *h)
{
    const recovery_seat *seats;
    int64_t roster;
    int n;

    seats = recovery_roster(h->elastic->machine, &n, &roster);
    if (roster > ROSTERS_MOST) {
        head_fail_generation(h, "--elastic: too many groups were formed");
        return;
    }
    if (head_open_next_hub(h, n) != LS_OK) {
        head_fail_generation(h, ls_last_error());
        return;
    }
    note_roster(h, seats, n);
    give_seats(h, seats, n, roster);
}

uint32_t head_hub_generation(const head *h)
{
    const recovery_seat *seats;
    int64_t roster = 0;
    int n;

    if (h->elastic == NULL)
        return h->generation;
    seats = recovery_roster(h->elastic->machine, &n, &roster);
    LS_UNUSED(seats);
    return h->generation + ((uint32_t)roster << 16);
}

static void refuse(head *h, const recovery_action *a)
{
    char key[SEAT_KEY_BYTES];

    put(h, seat_answer_key(key, a->member, a->number),
        "refused the other ranks have gone on without it: it did not answer in time, or its node "
        "has left");
}

static void fail_generation(void *arg)
{
    head *h = arg;

    if (rdzv_phase_now(h->machine) == RDZV_RUN)
        head_fail_generation(h, h->elastic->why);
}

/* Not at once: the caller may be a callback of the standby, or carry out actions of the rendezvous
 * machine, or report the failure of a rank, which then is the reason. */
static void fail_soon(head *h, const char *why)
{
    h->elastic->why = why;
    poller_timer_set(h->loop, &h->elastic->fails, ls_now_ms(), fail_generation, h);
}

static void carry_out(head *h, const recovery_action *a)
{
    switch (a->kind) {
    case RECOVERY_DO_ABORT:
        abort_roster(h, a->slot);
        return;
    case RECOVERY_DO_CALL:
        call_members(h);
        return;
    case RECOVERY_DO_ROSTER:
        make_roster(h);
        return;
    case RECOVERY_DO_START:
        send_slot(h, NODE_REPLACE, a->slot, a->member);
        return;
    case RECOVERY_DO_DROP:
        send_slot(h, NODE_DROP, a->slot, a->member);
        return;
    case RECOVERY_DO_KILL:
        send_slot(h, NODE_EVICT, a->slot, a->member);
        return;
    case RECOVERY_DO_REFUSE:
        refuse(h, a);
        return;
    case RECOVERY_DO_GIVE_UP:
        h->elastic->has_given_up = true;
        fail_soon(h, "--elastic: too few ranks are left that can go on, or none of them has the "
                     "state of the training");
        return;
    }
}

static void step(head *h, const recovery_event *event);

static void on_tick(void *arg)
{
    step(arg, &(recovery_event){.kind = RECOVERY_TICK});
}

/* A roster that is given up concerns no other head. */
static bool gives_up(const recovery_result *r)
{
    for (int i = 0; i < r->n_actions; i++)
        if (r->actions[i].kind == RECOVERY_DO_GIVE_UP)
            return true;
    return false;
}

static ls_status keep(struct elastic *e, const recovery_result *r)
{
    ls_free(e->held);
    e->n_held = 0;
    LS_TRY(LS_NEW(&e->held, (size_t)r->n_actions, "for %d actions", r->n_actions));
    memcpy(e->held, r->actions, (size_t)r->n_actions * sizeof(*e->held));
    e->n_held = r->n_actions;
    return LS_OK;
}

/* Without a standby that has the state, another head would act on the one before: nothing may be
 * done any more. */
static bool hold(head *h, const recovery_result *r)
{
    struct elastic *e = h->elastic;
    ls_status st;

    if (r->n_actions == 0 || gives_up(r) || h->opt.standby == NULL || h->proposed != h->generation)
        return false;
    e->is_held = true;
    st = keep(e, r);
    if (st == LS_OK)
        st = head_propose(h, &e->held_index);
    if (st != LS_OK) {
        ls_log(LS_LOG_ERROR, "head", "%s", ls_last_error());
        e->held_index = UINT64_MAX;
        fail_soon(h, "--elastic: the state of the head cannot reach the other nodes");
    }
    return true;
}

/* A member asks again that has not received its seat in the present roster, or could not connect to
 * its hub. The others wait for it there, and the hub does not know of it. */
static void end_unformed(head *h, const recovery_event *question)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = -1};
    int64_t roster;
    int n;
    const recovery_seat *seats = recovery_roster(h->elastic->machine, &n, &roster);

    if (question->roster > roster || h->hub == NULL || hub_has_formed(h->hub))
        return;
    for (int i = 0; i < n; i++)
        if (seats[i].member == question->member && seats[i].number < question->number)
            cause.rank = i;
    if (cause.rank < 0)
        return;
    text_format(cause.text, sizeof(cause.text), "rank %d could not join the group", cause.rank);
    hub_abort(h->hub, &cause);
}

static void take(head *h, const recovery_event *event)
{
    recovery_result r;

    if (event->kind == RECOVERY_ASKED)
        end_unformed(h, event);
    r = recovery_step(h->elastic->machine, event, ls_now_ms());
    if (r.wake_at_ms == RECOVERY_NEVER)
        poller_timer_cancel(&h->elastic->tick);
    else
        poller_timer_set(h->loop, &h->elastic->tick, r.wake_at_ms, on_tick, h);
    if (hold(h, &r))
        return;
    for (int i = 0; i < r.n_actions; i++)
        carry_out(h, &r.actions[i]);
}

static void step(head *h, const recovery_event *event)
{
    struct elastic *e = h->elastic;
    recovery_event *longer = NULL;

    if (!e->is_held) {
        take(h, event);
        return;
    }
    if (e->n_waiting < EVENTS_PER_SLOT * e->n_slots)
        longer = ls_realloc(e->waiting, (size_t)e->n_waiting + 1, sizeof(*longer));
    if (longer == NULL) {
        fail_soon(h, "--elastic: the head has lost an event of a rank: too many wait, or it has no "
                     "memory");
        return;
    }
    e->waiting = longer;
    e->waiting[e->n_waiting++] = *event;
}

/* Events that have waited: their failures have not been handled otherwise. */
static void take_waiting(head *h)
{
    struct elastic *e = h->elastic;
    int n = 0;

    while (n < e->n_waiting && !e->is_held && !e->has_given_up)
        take(h, &e->waiting[n++]);
    e->n_waiting -= n;
    if (n > 0)
        memmove(e->waiting, e->waiting + n, (size_t)e->n_waiting * sizeof(*e->waiting));
}

void head_committed(head *h, uint64_t index)
{
    struct elastic *e = h->elastic;

    if (e == NULL || !e->is_held || index < e->held_index)
        return;
    e->is_held = false;
    for (int i = 0; i < e->n_held && h->elastic == e; i++)
        carry_out(h, &e->held[i]);
    if (h->elastic == e)
        take_waiting(h);
}

/* --- checks of seats --- */

static void answer_check(head *h, seat_check *c)
{
    const recovery_seat *seats;
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];
    int64_t roster;
    int n;

    seats = recovery_roster(h->elastic->machine, &n, &roster);
    LS_UNUSED(seats);
    c->is_open = false;
    put(h, seat_checked_key(key, c->member, c->number),
        text_format(text, sizeof(text), "%" PRId64, roster));
}

static void take_check(head *h, const seat_report *r)
{
    struct elastic *e = h->elastic;

    for (int i = 0; i < e->n_slots; i++) {
        seat_check *c = &e->checks[i];

        if (c->is_open && c->member != r->member)
            continue;
        *c = (seat_check){.is_open = true, .member = r->member, .number = r->number};
        if (h->proposed == h->generation)
            c->round = standby_confirm(h->opt.standby);
        else
            answer_check(h, c);
        return;
    }
}

void head_confirmed(head *h, uint64_t round)
{
    struct elastic *e = h->elastic;

    for (int i = 0; e != NULL && i < e->n_slots; i++)
        if (e->checks[i].is_open && e->checks[i].round <= round)
            answer_check(h, &e->checks[i]);
}

/* --- events --- */

static bool is_active(const head *h)
{
    return h->elastic != NULL && !h->elastic->has_given_up &&
           rdzv_phase_now(h->machine) == RDZV_RUN;
}

static void note_loss(head *h, int slot, const char *why)
{
    slot_loss *s = &h->elastic->slots[slot];

    text_printable(s->loss, sizeof(s->loss), why);
    if (s->lost_ms == 0)
        s->lost_ms = ls_now_ms();
}

bool head_recovers_rank(head *h, const head_node *node, int local_rank, const char *why)
{
    int slot;

    if (!is_active(h) || node->place == NULL || local_rank < 0 ||
        local_rank >= node->place->n_local)
        return false;
    slot = node->place->rank_base + local_rank;
    note_loss(h, slot, why);
    step(h, &(recovery_event){.kind = RECOVERY_DIED,
                              .member = recovery_member_in(h->elastic->machine, slot)});
    return !h->elastic->has_given_up;
}

void head_recover_place(head *h, const rdzv_place *place, rdzv_event *gone)
{
    char text[LOSS_BYTES];
    int n_well = 0;
    bool loses_one = false;

    if (place == NULL || !is_active(h) || h->ends[place->node].received)
        return;
    for (int i = 0; i < place->n_local && !h->elastic->has_given_up; i++) {
        const int slot = place->rank_base + i;

        if (!recovery_exists(h->elastic->machine, recovery_member_in(h->elastic->machine, slot))) {
            n_well += h->elastic->slots[slot].has_ended_well;
            continue;
        }
        loses_one = true;
        text_format(text, sizeof(text), "rank %d was lost with node %d (%s): %s", slot, place->node,
                    place->host, gone->text);
        note_loss(h, slot, text);
        step(h, &(recovery_event){.kind = RECOVERY_DIED,
                                  .member = recovery_member_in(h->elastic->machine, slot),
                                  .is_lost = true});
    }
    gone->n_well = loses_one ? 0 : n_well;
    gone->is_tolerated = !h->elastic->has_given_up;
}

bool head_can_spare(const head *h, const rdzv_place *place)
{
    return is_active(h) && place != NULL &&
           recovery_can_spare(h->elastic->machine, place->rank_base, place->n_local);
}

void head_elastic_finished(head *h, const rdzv_place *place)
{
    for (int i = 0; is_active(h) && i < place->n_local; i++)
        if (recovery_exists(h->elastic->machine,
                            recovery_member_in(h->elastic->machine, place->rank_base + i)))
            head_elastic_ended(h, place->rank_base + i);
}

void head_offer_slots(head *h, const rdzv_place *place)
{
    for (int i = 0; i < place->n_local && h->elastic != NULL; i++)
        step(h, &(recovery_event){.kind = RECOVERY_OFFERED, .slot = place->rank_base + i});
}

void head_elastic_ended(head *h, int slot)
{
    if (h->elastic == NULL)
        return;
    h->elastic->slots[slot].has_ended_well = true;
    step(h, &(recovery_event){.kind = RECOVERY_ENDED,
                              .member = recovery_member_in(h->elastic->machine, slot)});
}

/* What a client writes is not trusted: other keys and values change nothing. Ranks that end because
 * of a signal save their state, so checks are answered then, too. */
static void on_stored(void *self, const char *key, const char *value)
{
    head *h = self;
    seat_report r;

    if (h->elastic->has_given_up || !seat_read_report(key, value, &r))
        return;
    if (r.is_check) {
        take_check(h, &r);
        return;
    }
    if (!is_active(h))
        return;
    step(h, &(recovery_event){.kind = r.is_ready ? RECOVERY_READY : RECOVERY_ASKED,
                              .member = r.member,
                              .roster = r.roster,
                              .number = r.number,
                              .has_state = r.has_state});
}

/* --- life --- */

static ls_status open_store(head *h, struct elastic *e)
{
    const hub_options options = {.key = &h->job_key,
                                 .security = h->opt.security,
                                 .events = {.self = h, .stored = on_stored}};

    LS_TRY(hub_create(h->loop, &options, &e->store));
    return head_listen_hub(h, e->store, "members", &e->at_unix, &e->port);
}

static ls_status open_members(head *h, int n_slots)
{
    const size_t n = (size_t)n_slots;
    struct elastic *e;

    LS_TRY(LS_NEW(&h->elastic, 1, "for the members of a job"));
    e = h->elastic;
    e->n_slots = n_slots;
    LS_TRY(LS_NEW(&e->slots, n, "for %d members of a job", n_slots));
    LS_TRY(LS_NEW(&e->checks, n, "for %d members of a job", n_slots));
    return LS_OK;
}

ls_status head_open_elastic(head *h)
{
    const rdzv_options *o = &h->opt.rendezvous;
    recovery_options options = {
        .n_slots = h->world_size, .min_ranks = o->min_ranks, .max_replacements = o->max_restarts};
    ls_status st;

    if (o->min_ranks == 0)
        return LS_OK;
    LS_TRY(config_int(CONFIG_MEET_MS, &options.meet_ms));
    if (options.min_ranks > options.n_slots)
        options.min_ranks = options.n_slots;
    st = open_members(h, h->world_size);
    if (st == LS_OK)
        st = recovery_create(&options, &h->elastic->machine);
    if (st == LS_OK)
        st = open_store(h, h->elastic);
    if (st != LS_OK) // nodes that report now find none
        head_close_elastic(h);
    return st;
}

void head_close_elastic(head *h)
{
    struct elastic *e = h->elastic;

    if (e == NULL)
        return;
    poller_timer_cancel(&e->tick);
    poller_timer_cancel(&e->fails);
    hub_destroy(e->store);
    recovery_destroy(e->machine);
    ls_free(e->slots);
    ls_free(e->checks);
    ls_free(e->held);
    ls_free(e->waiting);
    ls_free(e);
    h->elastic = NULL;
}

void head_write_members(const head *h, const head_node *node, node_welcome *out)
{
    if (h->elastic == NULL)
        return;
    if (node->is_own || h->has_standby)
        net_address_text(out->members_unix, sizeof(out->members_unix), &h->elastic->at_unix);
    else
        out->members_port = h->elastic->port;
}

/* --- another head --- */

void head_write_recovery(const head *h, wire_writer *w)
{
    recovery_write(h->elastic->machine, w);
}

ls_status head_read_recovery(head *h, wire_reader *r)
{
    LS_TRY(open_members(h, h->world_size));
    LS_TRY(recovery_read(r, h->world_size, &h->elastic->machine));
    return open_store(h, h->elastic);
}

const net_address *head_members_at(const head *h)
{
    return h->elastic != NULL ? &h->elastic->at_unix : NULL;
}

/* Ranks that join the hub of the roster that the lost head has formed ask again. */
void head_move_members(head *h, const char *why)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = -1};

    text_format(cause.text, sizeof(cause.text), "%s", why);
    hub_abort(h->hub, &cause);
    step(h, &(recovery_event){.kind = RECOVERY_MOVED});
}

int head_count_seats(const head *h)
{
    int64_t roster;
    int n;

    (void)recovery_roster(h->elastic->machine, &n, &roster);
    return n;
}

ls_status head_handle_found(head_node *node, const frame *f)
{
    head *h = node->owner;
    node_found v;
    char text[LOSS_BYTES];
    int slot;

    LS_TRY(node_read_found(f, &v));
    if (!is_active(h) || h->moved == NULL || v.generation != h->generation || node->place == NULL ||
        v.local_rank >= node->place->n_local)
        return LS_OK;
    slot = node->place->rank_base + v.local_rank;
    if (v.found == RECOVERY_HAS_FAILED && v.member == recovery_member_in(h->elastic->machine, slot))
        note_loss(
            h, slot,
            text_format(text, sizeof(text), "rank %d failed while the job had no head", slot));
    h->elastic->slots[slot].has_ended_well |= v.found == RECOVERY_HAS_ENDED;
    step(h, &(recovery_event){
                .kind = RECOVERY_FOUND, .member = v.member, .slot = slot, .found = v.found});
    return LS_OK;
}
