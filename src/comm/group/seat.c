/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seat.c - how a process of an elastic job leaves a group that has failed and joins the next one.
 * The launcher decides which processes that are; this side asks, and joins as it answers. ddp/
 * calls it.
 */
#include "comm/group/seat.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/group/group.h"
#include "comm/join/identity_location.h"
#include "store/seat_text.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 50 /* between questions for new processes */

struct seat {
    ls_store *store;
    net_address at;
    int member;
    int64_t roster;
    uint64_t n_asked;
    uint64_t n_checked;
    bool is_new;
    bool is_called;
    int64_t next_look_ms;
    /* How it joins. */
    identity id;
    join_settings settings;
    char *transport;
    engine_parts parts; /* of an engine that has not joined */
};

/* --- life --- */

bool seat_is_given(const comm_env *env, const identity *id)
{
    return !id->is_inner && identity_get(env, "LOCKSTEP_ELASTIC") != NULL &&
           text_equal(id->family, "LOCKSTEP");
}

static ls_status connect_store(seat *s, const char *url)
{
    net_key key;
    bool has_key;
    ls_status st;

    LS_TRY(net_address_parse(url, NET_PORT_REQUIRED, &s->at));
    LS_TRY(net_key_inherit(&key, &has_key));
    if (!has_key && net_address_family(&s->at) != NET_UNIX)
        return ls_fail(LS_EAUTH, "the launcher has passed no key");
    st = control_open_store(&s->at, has_key ? &key : NULL, s->settings.security,
                            s->settings.join_ms, &s->store);
    net_key_wipe(&key);
    return st;
}

static ls_status fill(const comm_env *env, identity *id, seat *s)
{
    int is_new = 0;

    LS_TRY(identity_int(env, "LOCKSTEP_MEMBER", 0, INT32_MAX, &s->member));
    if (identity_get(env, "LOCKSTEP_NEW_MEMBER") != NULL)
        LS_TRY(identity_int(env, "LOCKSTEP_NEW_MEMBER", 0, 1, &is_new));
    s->transport = ls_strdup(s->settings.transport);
    if (s->transport == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the place in an elastic job");
    s->settings.transport = s->transport;
    s->is_new = is_new != 0;
    s->id = *id;
    return ls_context(connect_store(s, identity_get(env, "LOCKSTEP_ELASTIC")),
                      "the launcher's store of members (LOCKSTEP_ELASTIC)");
}

ls_status seat_open(const comm_env *env, identity *id, const join_settings *settings,
                    engine_parts *parts, seat **out)
{
    seat *s;
    ls_status st;

    LS_TRY(LS_NEW(&s, 1, "for the place in an elastic job"));
    s->settings = *settings;
    s->settings.key_file = NULL; // the launcher's key counts
    s->settings.secret = NULL;
    s->settings.secret_bytes = 0;
    s->settings.store = NULL;
    s->parts = *parts;
    st = fill(env, id, s);
    if (st != LS_OK) {
        seat_close(s);
        return st;
    }
    if (s->is_new) {
        // Its number is not a rank: rank 0 is another process, and writes the files.
        log_set_rank(s->member, s->member + 1);
        id->rank = parts->rank = 0;
        id->size = parts->size = 1;
    }
    *out = s;
    return LS_OK;
}

void seat_close(seat *s)
{
    if (s == NULL)
        return;
    ls_store_close(s->store);
    ls_free(s->transport);
    ls_free(s);
}

/* --- questions --- */

bool comm_is_elastic(const ls_comm *comm)
{
    return comm != NULL && comm->seat != NULL;
}

bool comm_is_new(const ls_comm *comm)
{
    return comm_is_elastic(comm) && comm->seat->is_new;
}

static ls_status report(const seat *s, const seat_report *r)
{
    char key[SEAT_KEY_BYTES];
    char text[SEAT_KEY_BYTES];

    if (s->store == NULL)
        return ls_fail(LS_EPEER, "the connection to the launcher is lost");
    seat_write_report(r, key, text);
    return ls_store_set(s->store, key, text, strlen(text));
}

/* The head of the job may be on another machine now: then the connection to this machine's agent
 * has ended, and a new one leads there. At other addresses the store is lost with the head. */
static bool reconnects(seat *s, ls_status st)
{
    char url[NET_ADDRESS_TEXT_MAX];

    if (st != LS_EPEER || net_address_family(&s->at) != NET_UNIX)
        return false;
    ls_store_close(s->store);
    s->store = NULL;
    return connect_store(s, net_address_text(url, sizeof(url), &s->at)) == LS_OK;
}

/* Sends a report and gets its answer. */
static ls_status exchange(const seat *s, const seat_report *r, const char *answer_key,
                          void **answer)
{
    LS_TRY(report(s, r));
    return ls_store_get(s->store, answer_key, s->settings.join_ms, answer, NULL);
}

ls_status ls_comm_report_state(ls_comm *comm)
{
    seat *s;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    s = comm->seat;
    if (s == NULL)
        return LS_OK;
    do {
        st = report(s, &(seat_report){.member = s->member, .is_ready = true});
    } while (reconnects(s, st));
    return st;
}

int ls_comm_is_called(ls_comm *comm)
{
    seat *s = comm != NULL ? comm->seat : NULL;
    char kept[LS_ERROR_BYTES];
    char key[SEAT_KEY_BYTES];
    const char *keys[1] = {key};
    int is_there = 0;

    if (s == NULL || s->is_called || ls_now_ms() < s->next_look_ms)
        return s != NULL && s->is_called;
    s->next_look_ms = ls_now_ms() + LOOK_MS;
    seat_call_key(key, s->roster);
    ls_error_save(kept);
    s->is_called = ls_store_check(s->store, keys, 1, &is_there) == LS_OK && is_there;
    ls_error_restore(kept);
    return s->is_called;
}

ls_status ls_comm_check_seat(ls_comm *comm)
{
    seat *s;
    char key[SEAT_KEY_BYTES];
    int64_t roster = 0;
    void *text = NULL;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    s = comm->seat;
    if (s == NULL || s->is_new)
        return LS_OK;
    do {
        const seat_report check = {.member = s->member, .is_check = true, .number = ++s->n_checked};

        st = exchange(s, &check, seat_checked_key(key, s->member, s->n_checked), &text);
    } while (reconnects(s, st));
    LS_TRY(ls_context(st, "whether this process is still a rank of the job"));
    st = text_parse_int(text, "the roster of an elastic job", 0, INT64_MAX, &roster);
    ls_store_free(text);
    LS_TRY(st);
    if (roster == s->roster)
        return LS_OK;
    return ls_fail(LS_ECANCELED,
                   "rank %d (pid %d) is not a rank of the job any more: the other ranks have gone "
                   "on without it in group %" PRId64 ", and it was in group %" PRId64
                   "; it must not write files",
                   s->id.rank, (int)getpid(), roster, s->roster);
}

/* --- joining again --- */

/* The address of the next roster's hub, which on other nodes than the launcher's is a port of its
 * host. */
static void locate_hub(const seat *s, const seat_answer *answer, char *url, size_t n)
{
    net_address at = s->at;

    if (text_equal(answer->unix_url, SEAT_SAME_HUB))
        return; // url has it
    if (net_address_family(&s->at) == NET_UNIX) {
        text_format(url, n, "%s", answer->unix_url);
        return;
    }
    net_address_set_port(&at, answer->port);
    net_address_text(url, n, &at);
}

static ls_status take_answer(const seat *s, const char *text, seat_answer *out)
{
    const ls_status st = seat_read_answer(text, out);

    if (st == LS_ECANCELED)
        return ls_context(st, "rank %d (pid %d) is not a rank of the job any more", s->id.rank,
                          (int)getpid());
    if (st == LS_OK && out->size > IDENTITY_SIZE_MAX)
        return ls_fail(LS_EPROTO, "the launcher's answer is a job of %d ranks", out->size);
    return st;
}

/* Asks for a place in the next roster. */
static ls_status ask(seat *s, bool has_state, seat_answer *out)
{
    char key[SEAT_KEY_BYTES];
    void *answer;
    ls_status st;

    do {
        const seat_report question = {.member = s->member,
                                      .roster = s->roster,
                                      .number = ++s->n_asked,
                                      .has_state = has_state};

        st = exchange(s, &question, seat_answer_key(key, s->member, s->n_asked), &answer);
    } while (reconnects(s, st));
    LS_TRY(st);
    st = take_answer(s, answer, out);
    ls_store_free(answer);
    return st;
}

static ls_status join_roster(seat *s, const seat_answer *answer, ls_comm *into)
{
    engine_parts parts = s->parts;

    parts.rank = answer->rank;
    parts.size = answer->size;
    s->roster = answer->roster;
    s->is_new = false;
    s->is_called = false;
    s->id.rank = answer->rank;
    s->id.size = answer->size;
    s->id.generation = answer->generation;
    s->id.hub_at = answer->size > 1 ? HUB_AT_URL : HUB_AT_NONE;
    locate_hub(s, answer, s->id.location, sizeof(s->id.location));
    s->settings.deadline_ms = ls_deadline_ms(s->settings.join_ms);
    log_set_rank(answer->rank, answer->size);
    return init_join(&s->id, &s->settings, &parts, into, &into);
}

/* Others die while they join as well: then there is another roster. */
static ls_status find_roster(seat *s, bool has_state, ls_comm *into)
{
    for (;;) {
        seat_answer answer;
        ls_status st = ask(s, has_state, &answer);

        if (st != LS_OK)
            return st;
        st = join_roster(s, &answer, into);
        if (st != LS_EPEER && st != LS_ETIMEOUT && st != LS_ECANCELED)
            return st;
        ls_log(LS_LOG_INFO, "comm", "joining again: %s", ls_last_error());
    }
}

/* What a group is after ls_comm_rejoin() has failed: one of this process alone, which is broken. */
static ls_status make_alone(const seat *s, engine **e, int **members)
{
    engine_parts parts = s->parts;

    parts.rank = 0;
    parts.size = 1;
    *e = NULL;
    LS_TRY(LS_NEW(members, 1, "for a group"));
    return init_engine_alone(&s->id, &parts, e);
}

/* Cannot fail: nothing is left to allocate. */
static void break_alone(engine *e, int *members, ls_comm *comm, ls_status st)
{
    job_cause cause = {.kind = CAUSE_FAULT};
    const ls_status created = group_create_in(e, 0, 0, 1, members, comm);

    LS_ASSERT(created == LS_OK);
    LS_UNUSED(created);
    text_format(cause.text, sizeof(cause.text), "%s", ls_last_error());
    engine_enter(e);
    engine_break(e, comm, &cause, st, false);
    engine_leave(e);
}

ls_status ls_comm_rejoin(ls_comm *comm, int has_state)
{
    seat *s;
    int64_t timeout_ms;
    char kept[LS_ERROR_BYTES];
    int *members;
    engine *alone;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    s = comm->seat;
    if (s == NULL)
        return ls_fail(LS_EUNSUPPORTED, "the job is not elastic: start it with lockstep run "
                                        "--elastic");
    timeout_ms = comm->timeout_ms;
    st = make_alone(s, &alone, &members);
    if (st != LS_OK) {
        ls_free(members);
        return st;
    }
    group_close(comm);
    st = find_roster(s, has_state != 0, comm);
    ls_error_save(kept);
    if (st == LS_OK) {
        comm->timeout_ms = timeout_ms;
        engine_destroy(alone);
        ls_free(members);
    } else {
        break_alone(alone, members, comm, st);
    }
    ls_error_restore(kept);
    return st;
}
