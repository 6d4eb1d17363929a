/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.c - the phases of the rendezvous machine and the transitions between them.
 *
 * Events change the table of nodes and may begin a drain; settle() then makes transitions until
 * none is possible. All decisions about time are made there, so a tick is an event without
 * content. Called by head.c.
 */
#include "launch/head/rendezvous/rendezvous_internal.h"

#include "base/alloc.h"
#include "host/process.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

enum {
    GATHER_MS = 200,     /* losses before the start within this time lead to one new roster */
    ACTIONS_PER_NODE = 4 /* in one step, at most */
};

static const int64_t time_max_ms = INT64_C(1000) * 3600 * 24 * 3650;

/* --- events --- */

/* No rank has started yet, so the other nodes end nothing: their next welcome replaces this one. */
static void lose_before_start(rdzv *m, rdzv_node *node, const char *why)
{
    char name[RDZV_HOST_BYTES + 32];
    char *text = rdzv_new_text(m);

    rdzv_append(text, RDZV_TEXT_BYTES, "%s was lost before the start: %s",
                rdzv_node_text(name, sizeof(name), rdzv_place_of(m, node)), why);
    rdzv_act_text(m, RDZV_DO_NOTE, RDZV_HEAD, text);
    node->state = NODE_NONE;
    if (m->dissolve_ms == RDZV_NEVER)
        m->dissolve_ms = m->now_ms + GATHER_MS;
}

static bool is_tolerable(const rdzv *m, const rdzv_node *node)
{
    return m->phase == RDZV_RUN && rdzv_is_running(node);
}

/* A node that could not take the place of a lost one. None of its ranks has run. */
static bool is_beginner(const rdzv *m, const rdzv_node *node)
{
    return m->phase == RDZV_RUN && node->state == NODE_WELCOMED;
}

/* The others go on, and another node may take its place. */
static void vacate(rdzv_node *node)
{
    node->lost = node->done = node->is_vacant = true;
    node->state = NODE_ENDED;
}

static void lose_node(rdzv *m, rdzv_node *node, int64_t last_seen_ms, const char *why,
                      bool is_tolerated)
{
    if (is_beginner(m, node) || (is_tolerated && is_tolerable(m, node))) {
        vacate(node);
    } else if (m->phase == RDZV_AGREE && rdzv_is_member(node)) {
        lose_before_start(m, node, why);
    } else if (m->phase == RDZV_END || !rdzv_is_running(node)) {
        node->lost = m->phase != RDZV_END && node->done;
        node->state = node->lost ? NODE_ENDED : NODE_NONE;
    } else {
        rdzv_record_loss(m, node, last_seen_ms, why);
        node->state = NODE_NONE;
        rdzv_abort_for_failure(m);
    }
}

static void drop_duplicate(rdzv *m, const rdzv_event *e)
{
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->state == NODE_NONE || node->lost || e->hello->uid == 0 ||
            node->uid != e->hello->uid)
            continue;
        rdzv_act_text(m, RDZV_DO_REJECT, node->conn, "this node has connected a second time");
        lose_node(m, node, m->now_ms, "it connected a second time", false);
        return;
    }
}

static void on_arrived(rdzv *m, const rdzv_event *e)
{
    rdzv_node *known = rdzv_find(m, e->conn);
    const rdzv_node *holder;
    char *why;

    if (known != NULL) {
        rdzv_act_text(m, RDZV_DO_REJECT, e->conn, "a second hello on one connection");
        lose_node(m, known, m->now_ms, "it sent two hellos", false);
        return;
    }
    drop_duplicate(m, e);
    why = rdzv_new_text(m);
    if (rdzv_accepts(m, e->hello, why, RDZV_TEXT_BYTES, &holder)) {
        rdzv_add_node(m, e->conn, e->hello);
        return;
    }
    rdzv_act_text(m, RDZV_DO_REJECT, e->conn, why);
    rdzv_act_text(m, RDZV_DO_NOTE, RDZV_HEAD, why);
    if (rdzv_ends_with(m, e->hello))
        rdzv_end_job(m, 1, why);
    if (holder != NULL)
        rdzv_act_text(m, RDZV_DO_NOTE, holder->conn, why);
}

static const char *printable_or(char *buf, size_t n, const char *text, const char *otherwise)
{
    text_printable(buf, n, text == NULL || text[0] == 0 ? otherwise : text);
    return buf;
}

static void on_failed(rdzv *m, rdzv_node *node, const rdzv_event *e)
{
    char text[sizeof(m->failure.cause.text)];

    if (m->phase == RDZV_DRAIN && !m->aborted)
        return; // any exit code is right after an orderly stop
    if (is_tolerable(m, node) && e->local_rank < 0 && rdzv_place_of(m, node)->is_late) {
        char *why = rdzv_new_text(m);

        rdzv_append(why, RDZV_TEXT_BYTES, "its ranks could not be started: %s",
                    printable_or(text, sizeof(text), e->text, "unknown"));
        rdzv_act_text(m, RDZV_DO_REJECT, node->conn, why);
        vacate(node);
        return;
    }
    rdzv_record_failure(m, node, e, printable_or(text, sizeof(text), e->text, "a rank failed"));
    rdzv_abort_for_failure(m);
}

static void on_ready(rdzv *m, rdzv_node *node)
{
    if (node->state != NODE_WELCOMED)
        return;
    node->state = NODE_READY;
    if (m->phase == RDZV_RUN) // it takes the place of a lost one
        rdzv_act(m, RDZV_DO_START, node->conn)->place = rdzv_place_of(m, node);
}

static void on_finished(rdzv *m, rdzv_node *node, const rdzv_event *e)
{
    if (m->phase == RDZV_AGREE || is_beginner(m, node) || !rdzv_is_running(node))
        return;
    node->state = NODE_ENDED;
    node->done = !e->stopped && (m->opt.min_ranks > 0 || e->n_well == node->n_local);
    node->ended_well = e->n_well > 0;
    if (m->phase == RDZV_RUN && !node->done) {
        const rdzv_event unasked = {.local_rank = -1, .exit_code = 1};
        rdzv_record_failure(m, node, &unasked,
                            e->stopped ? "its agent ended its ranks without a request"
                                       : "not all of its ranks have ended with code 0");
        rdzv_abort_for_failure(m);
    }
}

static void on_stop(rdzv *m, const rdzv_event *e)
{
    const bool is_second = m->stop_signal != 0;
    char *text;

    if (m->phase == RDZV_END)
        return;
    if (!is_second) {
        m->stop_signal = e->signal >= 1 && e->signal <= 64 ? e->signal : SIGTERM;
        text_printable(m->stop_by, sizeof(m->stop_by), e->text == NULL ? "" : e->text);
    }
    if (m->phase == RDZV_COLLECT || m->phase == RDZV_AGREE) {
        rdzv_end_stopped(m);
    } else if (m->phase == RDZV_RUN) {
        text = rdzv_new_text(m);
        rdzv_append(text, RDZV_TEXT_BYTES, "%s%s%s", process_signal_name(m->stop_signal),
                    m->stop_by[0] == 0 ? "" : " from ", m->stop_by);
        rdzv_stop_ranks(m, DRAIN_STOP, m->stop_signal, text);
    } else if (m->reason <= DRAIN_LEAVE) {
        m->reason = DRAIN_STOP; // the ranks have the signal already
    } else if (!m->killed) {
        rdzv_kill_ranks(m);
    }
}

static bool may_leave(const rdzv *m, const rdzv_node *node, int number)
{
    return node != NULL && number == SIGTERM && !m->opt.by_id && !node->is_head &&
           m->stop_signal == 0 && rdzv_count_staying(m) - !node->leaves >= m->opt.min_nodes;
}

/* As for a node that joins, all ranks end in good order and restart: none has to wait for one that
 * is gone. */
static void on_leave(rdzv *m, rdzv_node *node, const rdzv_event *e)
{
    char *text;

    if (m->phase == RDZV_END || !may_leave(m, node, e->signal)) {
        on_stop(m, e);
        return;
    }
    if (!rdzv_is_member(node) || m->phase == RDZV_AGREE) {
        if (rdzv_is_member(node))
            lose_before_start(m, node, "it leaves after SIGTERM");
        rdzv_dismiss(m, node);
        return;
    }
    node->leaves = true;
    if (m->phase != RDZV_RUN)
        return;
    text = rdzv_new_text(m);
    rdzv_append(text, RDZV_TEXT_BYTES, "SIGTERM: %s leaves, the others restart without it",
                e->text == NULL ? "a node" : e->text);
    rdzv_stop_ranks(m, DRAIN_LEAVE, SIGTERM, text);
}

static void take_event(rdzv *m, const rdzv_event *e)
{
    rdzv_node *node = rdzv_find(m, e->conn);
    char why[128];

    switch (e->kind) {
    case RDZV_TICK:
        return;
    case RDZV_STOP:
    case RDZV_LEAVE:
        if (e->conn != RDZV_HEAD && node == NULL)
            return; // it has left, or was rejected
        if (e->kind == RDZV_LEAVE)
            on_leave(m, node, e);
        else if (node == NULL || !node->leaves) // its agent kills its ranks itself
            on_stop(m, e);
        return;
    case RDZV_ARRIVED:
        on_arrived(m, e);
        return;
    case RDZV_GONE:
        if (node == NULL)
            return;
        node->ended_well |= e->n_well > 0;
        lose_node(m, node, e->last_seen_ms < m->now_ms ? e->last_seen_ms : m->now_ms,
                  printable_or(why, sizeof(why), e->text, "connection closed"), e->is_tolerated);
        return;
    case RDZV_READY:
    case RDZV_FAILED:
    case RDZV_FINISHED:
        break;
    }
    if (node == NULL || !rdzv_is_member(node) || e->generation != m->generation ||
        m->phase == RDZV_END)
        return;
    if (e->kind == RDZV_FAILED)
        on_failed(m, node, e);
    else if (e->kind == RDZV_FINISHED)
        on_finished(m, node, e);
    else
        on_ready(m, node);
}

/* --- transitions between phases --- */

static void welcome(rdzv *m)
{
    rdzv_make_roster(m);
    for (int i = 0; i < m->n_places; i++) {
        rdzv_act(m, RDZV_DO_WELCOME, m->places[i].conn)->place = &m->places[i];
        rdzv_find(m, m->places[i].conn)->wait_sent = false;
    }
    m->phase = RDZV_AGREE;
    m->ready_until_ms = m->now_ms + m->opt.ready_ms;
    m->dissolve_ms = RDZV_NEVER;
    m->last_call_ms = RDZV_NEVER;
}

static void give_up_collecting(rdzv *m)
{
    char *text = rdzv_new_text(m);

    if (m->failure.weight != FAILURE_NONE)
        rdzv_append(text, RDZV_TEXT_BYTES, "%s; then ", m->failure.cause.text);
    rdzv_append_missing(m, text, RDZV_TEXT_BYTES);
    rdzv_append(text, RDZV_TEXT_BYTES, " within %" PRId64 " s", m->opt.join_ms / 1000);
    rdzv_end_job(m, m->failure.weight != FAILURE_NONE ? m->failure.exit_code : 1, text);
}

static void settle_collect(rdzv *m)
{
    if (rdzv_count(m, NODE_WAITING, NODE_WAITING) < m->opt.min_nodes)
        m->last_call_ms = RDZV_NEVER;
    else if (m->last_call_ms == RDZV_NEVER)
        m->last_call_ms = m->now_ms + m->opt.last_call_ms;
    if (rdzv_is_complete(m))
        welcome(m);
    else if (m->now_ms >= m->join_until_ms)
        give_up_collecting(m);
}

/* Nodes that are not ready in time count as lost. */
static void give_up_unready(rdzv *m)
{
    char *why = rdzv_new_text(m);

    rdzv_append(why, RDZV_TEXT_BYTES, "not ready within %" PRId64 " s", m->opt.ready_ms / 1000);
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->state != NODE_WELCOMED)
            continue;
        rdzv_record_loss(m, node, m->now_ms, why);
        rdzv_act_text(m, RDZV_DO_REJECT, node->conn, why);
        node->state = NODE_NONE;
        rdzv_abort_for_failure(m);
    }
}

static void start_ranks(rdzv *m)
{
    m->phase = RDZV_RUN;
    m->failure = (rdzv_failure){0};
    for (int i = 0; i < m->n_places; i++)
        rdzv_act(m, RDZV_DO_START, m->places[i].conn)->place = &m->places[i];
}

/* New nodes are admitted freely while no rank runs, but all at once: nodes that join one by one
 * would otherwise each make a roster. */
static void settle_agree(rdzv *m)
{
    const int n_waiting = rdzv_count(m, NODE_WAITING, NODE_WAITING);
    const int n_ready = rdzv_count(m, NODE_READY, NODE_READY);
    const bool is_agreed = n_ready == m->n_places;

    if (m->dissolve_ms != RDZV_NEVER) {
        if (m->now_ms >= m->dissolve_ms || m->now_ms >= m->ready_until_ms ||
            n_ready == rdzv_count(m, NODE_WELCOMED, NODE_READY))
            rdzv_start_collecting(m);
    } else if (is_agreed && n_waiting > 0 && m->n_places < m->opt.max_nodes) {
        rdzv_start_collecting(m);
        m->last_call_ms = m->now_ms;
    } else if (is_agreed) {
        start_ranks(m);
    } else if (m->now_ms >= m->ready_until_ms) {
        give_up_unready(m);
    }
}

/* Beginners that are not ready in time. */
static void drop_beginners(rdzv *m)
{
    char *why = NULL;

    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (!is_beginner(m, node))
            continue;
        if (why == NULL) {
            why = rdzv_new_text(m);
            rdzv_append(why, RDZV_TEXT_BYTES, "not ready within %" PRId64 " s",
                        m->opt.ready_ms / 1000);
        }
        rdzv_act_text(m, RDZV_DO_REJECT, node->conn, why);
        vacate(node);
    }
}

static void take_place(rdzv *m, rdzv_node *node, rdzv_node *lost)
{
    rdzv_place *place = &m->places[lost->index];

    place->conn = node->conn;
    place->is_late = true;
    memcpy(place->host, node->host, sizeof(place->host));
    node->index = lost->index;
    node->state = NODE_WELCOMED;
    node->wait_sent = false;
    *lost = (rdzv_node){0};
    m->ready_until_ms = m->now_ms + m->opt.ready_ms;
    rdzv_act(m, RDZV_DO_WELCOME, node->conn)->place = place;
}

static void fill_vacant_places(rdzv *m)
{
    if (rdzv_has_finished_node(m))
        return;
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *lost = &m->nodes[i];
        rdzv_node *node = lost->is_vacant ? rdzv_find_spare(m, lost) : NULL;

        if (node != NULL)
            take_place(m, node, lost);
    }
}

static void settle_run(rdzv *m)
{
    int n_waiting;
    char *text;

    if (m->now_ms >= m->ready_until_ms)
        drop_beginners(m);
    fill_vacant_places(m);
    n_waiting = rdzv_count(m, NODE_WAITING, NODE_WAITING);
    // An elastic job of which all ranks are lost is given up by head_elastic.c.
    if (rdzv_has_finished(m)) {
        rdzv_end_job(m, 0, "");
    } else if (n_waiting > 0 && rdzv_count_done(m) == 0 && m->n_places < m->opt.max_nodes) {
        text = rdzv_new_text(m);
        rdzv_append(text, RDZV_TEXT_BYTES, "%d more node%s joined: all ranks restart", n_waiting,
                    text_plural(n_waiting));
        rdzv_stop_ranks(m, DRAIN_JOIN, SIGTERM, text);
    }
}

static void settle(rdzv *m)
{
    rdzv_phase before;

    do {
        before = m->phase;
        switch (m->phase) {
        case RDZV_COLLECT:
            settle_collect(m);
            break;
        case RDZV_AGREE:
            settle_agree(m);
            break;
        case RDZV_RUN:
            settle_run(m);
            break;
        case RDZV_DRAIN:
            rdzv_settle_drain(m);
            break;
        case RDZV_END:
            break;
        }
    } while (m->phase != before);
}

/* --- a step --- */

/* Each node that the present roster has no place for is notified once. */
static void send_waits(rdzv *m)
{
    char *text = NULL;

    if (m->phase == RDZV_COLLECT || m->phase == RDZV_END)
        return;
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->state != NODE_WAITING || node->wait_sent)
            continue;
        if (text == NULL) {
            text = rdzv_new_text(m);
            rdzv_append(text, RDZV_TEXT_BYTES,
                        "the job has %d of at most %d nodes; this node waits until it can join",
                        m->n_places, m->opt.max_nodes);
        }
        node->wait_sent = true;
        rdzv_act_text(m, RDZV_DO_WAIT, node->conn, text);
    }
}

static void refresh_roster(rdzv *m)
{
    char roster[RDZV_TEXT_BYTES];

    if (m->phase == RDZV_DRAIN || m->phase == RDZV_END)
        return;
    rdzv_write_roster(m, roster, sizeof(roster));
    if (text_equal(roster, m->roster))
        return;
    memcpy(m->roster, roster, sizeof(roster));
    rdzv_act_text(m, RDZV_DO_ROSTER, RDZV_HEAD, m->roster);
}

static int64_t wake_at(const rdzv *m)
{
    switch (m->phase) {
    case RDZV_COLLECT:
        return m->last_call_ms < m->join_until_ms ? m->last_call_ms : m->join_until_ms;
    case RDZV_AGREE:
        return m->dissolve_ms < m->ready_until_ms ? m->dissolve_ms : m->ready_until_ms;
    case RDZV_DRAIN:
        return m->drain_until_ms;
    case RDZV_RUN:
        return rdzv_count(m, NODE_WELCOMED, NODE_WELCOMED) > 0 ? m->ready_until_ms : RDZV_NEVER;
    case RDZV_END:
        break;
    }
    return RDZV_NEVER;
}

rdzv_result rdzv_step(rdzv *m, const rdzv_event *event, int64_t now_ms)
{
    m->now_ms = now_ms;
    m->n_actions = 0;
    m->notes.n = 0;
    take_event(m, event);
    settle(m);
    send_waits(m);
    refresh_roster(m);
    return (rdzv_result){m->actions, m->n_actions, wake_at(m)};
}

rdzv_phase rdzv_phase_now(const rdzv *m)
{
    return m->phase;
}

const rdzv_place *rdzv_places(const rdzv *m, int *n)
{
    *n = m->n_places;
    return m->places;
}

const char *rdzv_roster(const rdzv *m)
{
    return m->roster;
}

int rdzv_root_loss(const rdzv *m)
{
    return m->failure.weight != FAILURE_NONE && m->failure.reason == DRAIN_LOSS ? m->failure.node
                                                                                : -1;
}

const job_cause *rdzv_root_cause(const rdzv *m, int *n_after)
{
    if (n_after != NULL)
        *n_after = m->failure.n_after;
    return &m->failure.cause;
}

/* --- creation --- */

static ls_status check_time(const char *what, int64_t ms)
{
    if (ms < 0 || ms > time_max_ms)
        return ls_fail(LS_EINVAL, "%s: %" PRId64 " ms is negative or more than ten years", what,
                       ms);
    return LS_OK;
}

static ls_status check_options(const rdzv_options *o)
{
    if (o->max_nodes < 1 || o->max_nodes > RDZV_NODES_MAX)
        return ls_fail(LS_EINVAL, "--nnodes: %d nodes; a job has 1 to %d", o->max_nodes,
                       RDZV_NODES_MAX);
    if (o->min_nodes < 1 || o->min_nodes > o->max_nodes)
        return ls_fail(LS_EINVAL, "--nnodes %d:%d: the minimum is 1 to the maximum", o->min_nodes,
                       o->max_nodes);
    if (o->by_id && o->min_nodes != o->max_nodes)
        return ls_fail(LS_EINVAL, "--nnodes %d:%d needs --rdzv-backend c10d, without node ranks",
                       o->min_nodes, o->max_nodes);
    if (o->max_spares < 0 || o->max_spares > RDZV_NODES_MAX)
        return ls_fail(LS_EINVAL, "%d spare nodes; there may be 0 to %d", o->max_spares,
                       RDZV_NODES_MAX);
    if (o->max_restarts < 0)
        return ls_fail(LS_EINVAL, "--max-restarts %d is negative", o->max_restarts);
    for (int i = 0; o->by_id && o->per_node != NULL && i < o->max_nodes; i++)
        if (o->per_node[i] < 1 || o->per_node[i] > RDZV_LOCAL_MAX)
            return ls_fail(LS_EINVAL, "-g: %d ranks on node %d; a node has 1 to %d", o->per_node[i],
                           i, RDZV_LOCAL_MAX);
    LS_TRY(check_time("join timeout", o->join_ms));
    LS_TRY(check_time("last call", o->last_call_ms < 0 ? 0 : o->last_call_ms));
    LS_TRY(check_time("ready timeout", o->ready_ms));
    return check_time("--grace", o->grace_ms);
}

static ls_status allocate(rdzv *m)
{
    const size_t max_nodes = (size_t)m->opt.max_nodes;
    // A lost node keeps its slot until the roster ends.
    const size_t n = max_nodes * 2 + (size_t)m->opt.max_spares;

    m->capacity = (int)n;
    m->n_actions_max = m->capacity * ACTIONS_PER_NODE + 16;
    m->nodes = ls_calloc(n, sizeof(*m->nodes));
    m->places = ls_calloc(max_nodes, sizeof(*m->places));
    m->order = ls_calloc(n * 2, sizeof(rdzv_node *));
    m->present = ls_calloc(max_nodes, sizeof(*m->present));
    m->per_node = ls_calloc(max_nodes, sizeof(*m->per_node));
    m->actions = ls_calloc((size_t)m->n_actions_max, sizeof(*m->actions));
    if (m->nodes == NULL || m->places == NULL || m->order == NULL || m->present == NULL ||
        m->per_node == NULL || m->actions == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu nodes", n);
    return LS_OK;
}

static int64_t or_default(int64_t ms, int64_t otherwise)
{
    return ms == 0 ? otherwise : ms;
}

static void copy_options(rdzv *m, const rdzv_options *from)
{
    rdzv_options *o = &m->opt;

    text_printable(m->version, sizeof(m->version), from->version == NULL ? "" : from->version);
    text_printable(m->host, sizeof(m->host), from->host == NULL ? "?" : from->host);
    text_printable(m->run_name, sizeof(m->run_name), from->run_name == NULL ? "" : from->run_name);
    o->version = m->version;
    o->run_name = m->run_name;
    o->host = m->host;
    o->per_node = NULL;
    if (from->by_id && from->per_node != NULL) {
        memcpy(m->per_node, from->per_node, (size_t)o->max_nodes * sizeof(int));
        o->per_node = m->per_node;
    }
    o->join_ms = or_default(o->join_ms, 600000);
    o->last_call_ms = or_default(o->last_call_ms, 30000);
    if (o->last_call_ms < 0)
        o->last_call_ms = 0;
    o->ready_ms = or_default(o->ready_ms, 60000);
    o->grace_ms = or_default(o->grace_ms, 10000);
}

ls_status rdzv_create(const rdzv_options *opt, int64_t now_ms, rdzv **out)
{
    rdzv *m;
    ls_status st;

    LS_TRY(check_options(opt));
    LS_TRY(LS_NEW(&m, 1, "for the rendezvous"));
    m->opt = *opt;
    st = allocate(m);
    if (st != LS_OK) {
        rdzv_destroy(m);
        return st;
    }
    copy_options(m, opt);
    m->now_ms = now_ms;
    m->join_until_ms = now_ms + m->opt.join_ms;
    m->last_call_ms = RDZV_NEVER;
    rdzv_write_roster(m, m->roster, sizeof(m->roster));
    *out = m;
    return LS_OK;
}

ls_status rdzv_resume(const rdzv_options *opt, const rdzv_place *places, int n, int64_t now_ms,
                      rdzv **out)
{
    rdzv_options o = *opt;
    rdzv *m;

    o.by_id = true;
    o.min_nodes = o.max_nodes = n;
    o.max_spares = 0;
    o.per_node = NULL;
    o.max_restarts = places[0].n_restarts; // none is left
    LS_TRY(rdzv_create(&o, now_ms, &m));
    m->phase = RDZV_RUN;
    m->generation = places[0].generation;
    m->n_restarts = places[0].n_restarts;
    m->n_places = n;
    memcpy(m->places, places, (size_t)n * sizeof(*places));
    for (int i = 0; i < n; i++) {
        m->nodes[i] = (rdzv_node){.state = NODE_READY,
                                  .conn = places[i].conn,
                                  .order = ++m->n_arrivals,
                                  .id = i,
                                  .index = i,
                                  .n_local = places[i].n_local};
        memcpy(m->nodes[i].host, places[i].host, sizeof(places[i].host));
    }
    *out = m;
    return LS_OK;
}

void rdzv_destroy(rdzv *m)
{
    if (m == NULL)
        return;
    ls_free(m->nodes);
    ls_free(m->places);
    ls_free(m->order);
    ls_free(m->present);
    ls_free(m->per_node);
    ls_free(m->actions);
    ls_free(m);
}
