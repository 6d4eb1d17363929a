/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.c - see recovery.h. Events change the table of members; settle() then makes the next
 * roster when all have asked, or gives up. Called by head_elastic.c.
 */
#include "launch/head/elastic/recovery.h"

#include "base/alloc.h"
#include "base/text.h"

#include <inttypes.h>
#include <limits.h>

enum {
    SPARE_ACTIONS = 8,  /* of one event, beside one for each member */
    READ_MOST = 1 << 17 /* replacements, or other members, that recovery_read() takes */
};

typedef enum member_state {
    MEMBER_NEW, /* started, not in a roster yet */
    MEMBER_IN,  /* in the present roster */
    MEMBER_OUT, /* did not ask in time, or was dismissed: its process may still exist */
    MEMBER_GONE /* its process has ended */
} member_state;

typedef struct member {
    int slot;
    member_state state;
    bool has_state;   /* of the training */
    bool can_recover; /* it has asked, or reported a state */
    bool has_asked;   /* for the next roster */
    uint64_t number;  /* of its last question */
} member;

struct recovery {
    recovery_options opt;
    member *members; /* n_members of capacity */
    int n_members;
    int capacity;
    int *in_slot; /* the newest member of each slot */
    recovery_seat *seats;
    int n_seats;
    int64_t roster;
    bool has_failed; /* the present roster: its members meet */
    bool was_called;
    bool is_over;          /* given up, or all have ended: no more rosters */
    int64_t meet_until_ms; /* RECOVERY_NEVER: no member has asked */
    int n_started;         /* replacements */
    int64_t now_ms;
    recovery_action *actions;
    int n_actions;
    int n_actions_max;
};

static recovery_action *act(recovery *r, recovery_action_kind kind, int number)
{
    recovery_action *a = &r->actions[r->n_actions];

    LS_ASSERT(r->n_actions < r->n_actions_max);
    r->n_actions++;
    *a = (recovery_action){.kind = kind,
                           .member = number,
                           .slot = number >= 0 ? r->members[number].slot : -1,
                           .number = number >= 0 ? r->members[number].number : 0};
    return a;
}

static bool is_living(const member *m)
{
    return m->state == MEMBER_IN || m->state == MEMBER_NEW;
}

static int count(const recovery *r, member_state state)
{
    int n = 0;

    for (int i = 0; i < r->n_members; i++)
        n += r->members[i].state == state;
    return n;
}

/* --- events --- */

/* The members of the present roster are to ask for the next one. */
static void ask_all(recovery *r)
{
    r->has_failed = true;
    if (r->meet_until_ms == RECOVERY_NEVER)
        r->meet_until_ms = r->now_ms + r->opt.meet_ms;
}

static bool may_start(const recovery *r)
{
    return r->n_started < r->opt.max_replacements && r->n_members < r->capacity &&
           count(r, MEMBER_IN) > 0 && !r->is_over;
}

/* Whether the present roster, of which a member has died or asked, cannot go on. A member may have
 * a state until it asks. n_more: processes that will be started. */
static bool is_lost(const recovery *r, int n_more)
{
    int n = n_more;
    int n_states = 0;

    for (int i = 0; i < r->n_members; i++) {
        const member *m = &r->members[i];

        if (m->state == MEMBER_IN && !m->can_recover)
            return true;
        n += is_living(m) || (m->state == MEMBER_OUT && may_start(r));
        n_states += m->state == MEMBER_IN && (m->has_state || !m->has_asked);
    }
    return n_states == 0 || n < r->opt.min_ranks;
}

static void give_up(recovery *r)
{
    r->is_over = true;
    act(r, RECOVERY_DO_GIVE_UP, -1);
}

static void start(recovery *r, int slot)
{
    r->in_slot[slot] = r->n_members;
    r->members[r->n_members++] = (member){.slot = slot, .state = MEMBER_NEW};
    act(r, RECOVERY_DO_START, r->in_slot[slot]);
}

static void refill(recovery *r, int slot)
{
    if (!may_start(r)) {
        act(r, RECOVERY_DO_DROP, r->in_slot[slot]);
        return;
    }
    r->n_started++;
    start(r, slot);
}

/* For members beside those that replacements may add. */
static bool extend_capacity(recovery *r, int capacity)
{
    member *members = ls_realloc(r->members, (size_t)capacity, sizeof(*members));
    recovery_action *actions =
        ls_realloc(r->actions, (size_t)capacity + SPARE_ACTIONS, sizeof(*actions));

    r->members = members != NULL ? members : r->members;
    r->actions = actions != NULL ? actions : r->actions;
    if (members == NULL || actions == NULL)
        return false;
    r->capacity = capacity;
    r->n_actions_max = capacity + SPARE_ACTIONS;
    return true;
}

static void on_offered(recovery *r, int slot)
{
    if (slot < 0 || slot >= r->opt.n_slots || recovery_exists(r, r->in_slot[slot]))
        return;
    if (r->is_over || count(r, MEMBER_IN) == 0 || !extend_capacity(r, r->capacity + 1))
        act(r, RECOVERY_DO_DROP, r->in_slot[slot]);
    else
        start(r, slot);
}

static void on_died(recovery *r, const recovery_event *e)
{
    member *m = &r->members[e->member];
    const bool was_in = m->state == MEMBER_IN;
    const bool is_first = was_in && !r->has_failed;

    if (m->state == MEMBER_GONE)
        return;
    m->state = MEMBER_GONE;
    m->has_state = false;
    if (was_in)
        ask_all(r);
    if (was_in && !r->is_over && is_lost(r, !e->is_lost && may_start(r))) {
        give_up(r);
        return;
    }
    if (is_first)
        act(r, RECOVERY_DO_ABORT, e->member);
    if (!e->is_lost)
        refill(r, m->slot);
}

/* After the last one processes that have not joined have nothing to join. */
static void on_ended(recovery *r, const recovery_event *e)
{
    member *m = &r->members[e->member];

    if (m->state == MEMBER_GONE)
        return;
    m->state = MEMBER_GONE;
    m->has_state = false;
    if (count(r, MEMBER_IN) > 0)
        return;
    r->is_over = true;
    for (int i = 0; i < r->n_members; i++) {
        if (r->members[i].state != MEMBER_NEW)
            continue;
        r->members[i].state = MEMBER_OUT;
        act(r, RECOVERY_DO_KILL, i);
    }
}

static void on_asked(recovery *r, const recovery_event *e)
{
    member *m = &r->members[e->member];

    if (e->number <= m->number)
        return; // repeated, or overtaken by a later one
    if (!is_living(m)) {
        m->number = e->number;
        act(r, RECOVERY_DO_REFUSE, e->member);
        return;
    }
    if (m->state == MEMBER_IN && e->roster > r->roster)
        return; // with an earlier roster it has not received its seat in this one
    m->number = e->number;
    m->can_recover = true;
    m->has_asked = true;
    m->has_state = e->has_state;
    if (m->state == MEMBER_IN)
        ask_all(r);
}

/* A member that has not reported yet whether it can recover may do so now: one that cannot ends
 * with its group. A group of one has no hub, and goes on; if its member has not received its seat
 * it asks again. */
static void on_moved(recovery *r)
{
    if (r->is_over)
        return;
    r->was_called = false;
    for (int i = 0; i < r->n_members; i++) {
        r->members[i].has_asked = false;
        r->members[i].can_recover |= r->members[i].state == MEMBER_IN;
    }
    if (r->n_seats > 1)
        ask_all(r);
}

static void on_found(recovery *r, const recovery_event *e)
{
    member *m = &r->members[e->member];
    member *newest = &r->members[r->in_slot[m->slot]];

    if (m->slot != e->slot)
        return;
    if (e->found == RECOVERY_HAS_ENDED) {
        on_ended(r, e);
    } else if (e->found == RECOVERY_RUNS) {
        if (is_living(m))
            return;
        if (!is_living(newest)) // lost with its node for the head before: an end is still to come
            newest->state = MEMBER_OUT;
        act(r, RECOVERY_DO_KILL, e->member);
    } else if (is_living(m)) {
        on_died(r, e);
    } else if (e->found == RECOVERY_HAS_FAILED) {
        act(r, newest != m && is_living(newest) ? RECOVERY_DO_START : RECOVERY_DO_DROP,
            r->in_slot[m->slot]);
    }
}

static void take_event(recovery *r, const recovery_event *e)
{
    if (e->kind == RECOVERY_OFFERED) {
        on_offered(r, e->slot);
        return;
    }
    if (e->kind == RECOVERY_MOVED)
        on_moved(r);
    if (e->kind == RECOVERY_TICK || e->kind == RECOVERY_MOVED || e->member < 0 ||
        e->member >= r->n_members)
        return;
    if (e->kind == RECOVERY_DIED)
        on_died(r, e);
    else if (e->kind == RECOVERY_ENDED)
        on_ended(r, e);
    else if (e->kind == RECOVERY_ASKED)
        on_asked(r, e);
    else if (e->kind == RECOVERY_FOUND)
        on_found(r, e);
    else if (is_living(&r->members[e->member]))
        r->members[e->member].has_state = r->members[e->member].can_recover = true;
}

/* --- rosters --- */

static void remove_absent(recovery *r)
{
    for (int i = 0; i < r->n_members; i++) {
        member *m = &r->members[i];

        if (m->state != MEMBER_IN || m->has_asked)
            continue;
        m->state = MEMBER_OUT;
        m->has_state = false;
        act(r, RECOVERY_DO_KILL, i);
    }
}

static int count_asked(const recovery *r, bool *all_members)
{
    int n = 0;

    *all_members = true;
    for (int i = 0; i < r->n_members; i++) {
        const member *m = &r->members[i];

        n += is_living(m) && m->has_asked;
        if (m->state == MEMBER_IN && !m->has_asked)
            *all_members = false;
    }
    return n;
}

static void make_roster(recovery *r)
{
    r->n_seats = 0;
    for (int i = 0; i < r->n_members; i++) {
        member *m = &r->members[i];

        if (!is_living(m) || !m->has_asked)
            continue;
        r->seats[r->n_seats++] = (recovery_seat){
            .member = i, .slot = m->slot, .number = m->number, .is_new = m->state == MEMBER_NEW};
        m->state = MEMBER_IN;
        m->has_asked = false;
    }
    r->roster++;
    r->has_failed = false;
    r->was_called = false;
    r->meet_until_ms = RECOVERY_NEVER;
    act(r, RECOVERY_DO_ROSTER, -1);
}

static void settle(recovery *r)
{
    bool all_members;
    int n;

    if (r->is_over)
        return;
    if (r->has_failed && r->now_ms >= r->meet_until_ms) {
        r->meet_until_ms = RECOVERY_NEVER;
        remove_absent(r);
    }
    n = count_asked(r, &all_members);
    if (r->has_failed && is_lost(r, 0)) {
        give_up(r);
    } else if (r->has_failed && all_members && n >= r->opt.min_ranks) {
        make_roster(r);
    } else if (!r->has_failed && n > 0 && !r->was_called) {
        r->was_called = true;
        act(r, RECOVERY_DO_CALL, -1);
    }
}

recovery_result recovery_step(recovery *r, const recovery_event *e, int64_t now_ms)
{
    r->now_ms = now_ms;
    r->n_actions = 0;
    take_event(r, e);
    settle(r);
    return (recovery_result){r->actions, r->n_actions,
                             r->is_over ? RECOVERY_NEVER : r->meet_until_ms};
}

/* --- questions --- */

const recovery_seat *recovery_roster(const recovery *r, int *n, int64_t *roster)
{
    *n = r->n_seats;
    *roster = r->roster;
    return r->seats;
}

int recovery_member_in(const recovery *r, int slot)
{
    return r->in_slot[slot];
}

bool recovery_exists(const recovery *r, int number)
{
    return r->members[number].state != MEMBER_GONE;
}

bool recovery_can_spare(const recovery *r, int first_slot, int n_slots)
{
    int n = 0;
    int n_states = 0;

    for (int i = 0; i < r->n_members; i++) {
        const member *m = &r->members[i];

        if (!is_living(m) || (m->slot >= first_slot && m->slot < first_slot + n_slots))
            continue;
        if (m->state == MEMBER_IN && !m->can_recover)
            return false;
        n++;
        n_states += m->state == MEMBER_IN && (m->has_state || !m->has_asked);
    }
    return !r->is_over && n_states > 0 && n >= r->opt.min_ranks;
}

int recovery_rank_in(const recovery *r, int slot)
{
    for (int i = 0; i < r->n_seats; i++)
        if (r->seats[i].slot == slot)
            return r->seats[i].member == r->in_slot[slot] ? i : -1;
    return -1;
}

/* --- life --- */

ls_status recovery_create(const recovery_options *opt, recovery **out)
{
    recovery *r;
    size_t capacity;

    if (opt->n_slots < 1 || opt->min_ranks < 1 || opt->min_ranks > opt->n_slots ||
        opt->max_replacements < 0 || opt->max_replacements > INT_MAX / 2 - opt->n_slots ||
        opt->meet_ms < 0)
        return ls_fail(LS_EINVAL,
                       "--elastic=%d of %d rank%s with %d replacements within %" PRId64
                       " ms is not possible",
                       opt->min_ranks, opt->n_slots, text_plural(opt->n_slots),
                       opt->max_replacements, opt->meet_ms);
    LS_TRY(LS_NEW(&r, 1, "for the members of a job"));
    r->opt = *opt;
    capacity = (size_t)opt->n_slots + (size_t)opt->max_replacements;
    r->capacity = (int)capacity;
    r->n_actions_max = r->capacity + SPARE_ACTIONS;
    r->members = ls_calloc(capacity, sizeof(*r->members));
    r->in_slot = ls_calloc((size_t)opt->n_slots, sizeof(*r->in_slot));
    r->seats = ls_calloc((size_t)opt->n_slots, sizeof(*r->seats));
    r->actions = ls_calloc((size_t)r->n_actions_max, sizeof(*r->actions));
    if (r->members == NULL || r->in_slot == NULL || r->seats == NULL || r->actions == NULL) {
        recovery_destroy(r);
        return ls_fail(LS_ENOMEM, "no memory for %zu members of a job", capacity);
    }
    for (int i = 0; i < opt->n_slots; i++) {
        r->members[i] = (member){.slot = i, .state = MEMBER_IN};
        r->in_slot[i] = i;
        r->seats[i] = (recovery_seat){.member = i, .slot = i};
    }
    r->n_members = opt->n_slots;
    r->n_seats = opt->n_slots;
    r->meet_until_ms = RECOVERY_NEVER;
    *out = r;
    return LS_OK;
}

/* --- as bytes --- */

void recovery_write(const recovery *r, wire_writer *w)
{
    wire_write_u32(w, (uint32_t)r->opt.n_slots);
    wire_write_u32(w, (uint32_t)r->opt.min_ranks);
    wire_write_u32(w, (uint32_t)r->opt.max_replacements);
    wire_write_i64(w, r->opt.meet_ms);
    wire_write_i64(w, r->roster);
    wire_write_u32(w, (uint32_t)r->n_started);
    wire_write_u8(w, r->is_over);
    wire_write_u32(w, (uint32_t)r->n_members);
    for (int i = 0; i < r->n_members; i++) {
        const member *m = &r->members[i];

        wire_write_u32(w, (uint32_t)m->slot);
        wire_write_u8(w, (uint8_t)m->state);
        wire_write_u8(w, (uint8_t)(m->has_state | m->can_recover << 1));
        wire_write_u64(w, m->number);
    }
    wire_write_u32(w, (uint32_t)r->n_seats);
    for (int i = 0; i < r->n_seats; i++)
        wire_write_u32(w, (uint32_t)r->seats[i].member);
}

static void read_members(wire_reader *reader, recovery *r)
{
    for (int i = 0; i < r->n_members; i++) {
        const uint32_t slot = wire_read_u32(reader);
        const uint8_t state = wire_read_u8(reader);
        const uint8_t flags = wire_read_u8(reader);

        if (slot >= (uint32_t)r->opt.n_slots || state > MEMBER_GONE || flags > 3 ||
            (i < r->opt.n_slots && slot != (uint32_t)i)) {
            reader->failed = true;
            return;
        }
        r->members[i] = (member){.slot = (int)slot,
                                 .state = (member_state)state,
                                 .has_state = (flags & 1) != 0,
                                 .can_recover = (flags & 2) != 0,
                                 .number = wire_read_u64(reader)};
        r->in_slot[slot] = i;
    }
}

static void read_seats(wire_reader *reader, recovery *r)
{
    for (int i = 0; i < r->n_seats; i++) {
        const uint32_t number = wire_read_u32(reader);

        if (number >= (uint32_t)r->n_members ||
            (i > 0 && number <= (uint32_t)r->seats[i - 1].member)) {
            reader->failed = true;
            return;
        }
        r->seats[i] = (recovery_seat){.member = (int)number,
                                      .slot = r->members[number].slot,
                                      .number = r->members[number].number};
    }
}

static int read_count(wire_reader *reader, int least, int most)
{
    const uint32_t n = wire_read_u32(reader);

    if (n >= (uint32_t)least && n <= (uint32_t)most)
        return (int)n;
    reader->failed = true;
    return least;
}

static ls_status fill(wire_reader *reader, recovery *r)
{
    int n;

    r->roster = wire_read_i64(reader);
    r->n_started = read_count(reader, 0, r->opt.max_replacements);
    r->is_over = wire_read_u8(reader) != 0;
    n = read_count(reader, r->opt.n_slots, r->opt.n_slots + READ_MOST);
    if (!extend_capacity(r, n + r->opt.max_replacements - r->n_started))
        return ls_fail(LS_ENOMEM, "no memory for %d members of an elastic job", n);
    r->n_members = n;
    if (!reader->failed)
        read_members(reader, r);
    r->n_seats = read_count(reader, 1, r->opt.n_slots);
    if (!reader->failed)
        read_seats(reader, r);
    if (!reader->failed && r->roster >= 0 && r->roster <= INT32_MAX)
        return LS_OK;
    return ls_fail(LS_EPROTO, "the members of an elastic job: malformed at byte %zu", reader->at);
}

ls_status recovery_read(wire_reader *reader, int n_slots, recovery **out)
{
    recovery_options options = {0};
    recovery *r;
    ls_status st;

    options.n_slots = read_count(reader, n_slots, n_slots);
    options.min_ranks = read_count(reader, 1, n_slots);
    options.max_replacements = read_count(reader, 0, READ_MOST);
    options.meet_ms = wire_read_i64(reader);
    if (reader->failed || options.meet_ms < 0 || options.meet_ms > INT32_MAX)
        return ls_fail(LS_EPROTO, "the options of an elastic job: malformed");
    LS_TRY(recovery_create(&options, &r));
    st = fill(reader, r);
    if (st == LS_OK)
        *out = r;
    else
        recovery_destroy(r);
    return st;
}

void recovery_destroy(recovery *r)
{
    if (r == NULL)
        return;
    ls_free(r->members);
    ls_free(r->in_slot);
    ls_free(r->seats);
    ls_free(r->actions);
    ls_free(r);
}
