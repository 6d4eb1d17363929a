/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_drain.c - how the rendezvous machine ends the ranks of a roster, which failure is the
 * root cause, and whether the job then restarts or ends. A drain ends only when no rank of the
 * roster runs any more. Called by rendezvous.c.
 */
#include "launch/head/rendezvous/rendezvous_internal.h"

#include "host/process.h"

#include <signal.h>

enum {
    /* A crash or loss within this time after a reported exit is the cause of that exit. */
    ROOT_MS = 100,
    ABORT_MS = 3000, /* from abort to kill: a node needs 1 s by itself */
    SLACK_MS = 2000, /* beyond the grace, which the nodes measure themselves */
    STUCK_MS = 6000  /* from kill until a node that has not finished is dropped */
};

/* --- actions --- */

rdzv_action *rdzv_act(rdzv *m, rdzv_action_kind kind, uint64_t conn)
{
    rdzv_action *a = &m->actions[m->n_actions];

    LS_ASSERT(m->n_actions < m->n_actions_max);
    m->n_actions++;
    *a = (rdzv_action){.kind = kind, .conn = conn};
    return a;
}

char *rdzv_new_text(rdzv *m)
{
    char *text = m->notes.text[m->notes.n];

    LS_ASSERT(m->notes.n < (int)LS_COUNT_OF(m->notes.text));
    m->notes.n++;
    text[0] = 0;
    return text;
}

void rdzv_act_text(rdzv *m, rdzv_action_kind kind, uint64_t conn, const char *text)
{
    rdzv_act(m, kind, conn)->text = text;
}

void rdzv_end_job(rdzv *m, int exit_code, const char *text)
{
    rdzv_action *a;

    m->phase = RDZV_END;
    for (int i = 0; i < m->capacity; i++) {
        if (m->nodes[i].state == NODE_NONE || m->nodes[i].lost)
            continue;
        a = rdzv_act(m, RDZV_DO_END, m->nodes[i].conn);
        a->exit_code = exit_code;
        a->text = text;
    }
    a = rdzv_act(m, RDZV_DO_FINISH, RDZV_HEAD);
    a->exit_code = exit_code;
    a->text = text;
}

void rdzv_end_stopped(rdzv *m)
{
    char *text = rdzv_new_text(m);

    if (m->phase != RDZV_DRAIN || m->reason != DRAIN_STOP)
        m->failure = (rdzv_failure){0}; /* earlier failures have been reported */
    rdzv_append(text, RDZV_TEXT_BYTES, "stopped by %s%s%s", process_signal_name(m->stop_signal),
                m->stop_by[0] == 0 ? "" : " from ", m->stop_by);
    rdzv_end_job(m, 128 + m->stop_signal, text);
}

void rdzv_dismiss(rdzv *m, rdzv_node *node)
{
    rdzv_action *a = rdzv_act(m, RDZV_DO_END, node->conn);

    a->exit_code = 128 + SIGTERM;
    a->text = "stopped by SIGTERM: this node has left the job, which goes on";
    *node = (rdzv_node){0};
}

int rdzv_count_staying(const rdzv *m)
{
    int n = 0;

    for (int i = 0; i < m->capacity; i++)
        n += m->nodes[i].state != NODE_NONE && !m->nodes[i].lost && !m->nodes[i].leaves;
    return n;
}

/* --- failures --- */

/* The first reported failure of a roster is the cause, unless its own cause is reported shortly
 * after it. */
static void record(rdzv *m, const rdzv_failure *found)
{
    const int n_after = m->failure.n_after + 1;

    if (m->phase != RDZV_DRAIN || m->failure.weight == FAILURE_NONE) {
        m->failure = *found;
        return;
    }
    if (found->weight > m->failure.weight && found->at_ms - m->failure.at_ms < ROOT_MS)
        m->failure = *found;
    m->failure.n_after = n_after;
}

void rdzv_record_loss(rdzv *m, const rdzv_node *node, int64_t last_seen_ms, const char *why)
{
    const rdzv_place *place = rdzv_place_of(m, node);
    rdzv_failure found = {.weight = FAILURE_CRASH,
                          .reason = DRAIN_LOSS,
                          .node = place->node,
                          .at_ms = last_seen_ms,
                          .exit_code = 1,
                          .cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = -1}};
    char name[RDZV_HOST_BYTES + 32];
    char ranks[32];

    if (place->n_local == 1)
        found.cause.rank = place->rank_base;
    text_format(found.cause.text, sizeof(found.cause.text), "%s with %s was lost: %s",
                rdzv_node_text(name, sizeof(name), place),
                rdzv_ranks_text(ranks, sizeof(ranks), place), why);
    record(m, &found);
}

void rdzv_record_failure(rdzv *m, const rdzv_node *node, const rdzv_event *e, const char *text)
{
    const rdzv_place *place = rdzv_place_of(m, node);
    rdzv_failure found = {.weight = e->crashed ? FAILURE_CRASH : FAILURE_EXIT,
                          .reason = DRAIN_FAILURE,
                          .at_ms = m->now_ms,
                          .exit_code = e->exit_code >= 1 && e->exit_code <= 255 ? e->exit_code : 1,
                          .cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = -1}};
    char name[RDZV_HOST_BYTES + 32];

    if (e->local_rank >= 0 && e->local_rank < place->n_local)
        found.cause.rank = place->rank_base + e->local_rank;
    if (e->aborted != NULL && !e->crashed) { /* the end of this rank is its consequence */
        found.cause.rank = e->aborted->rank;
        text = e->aborted->text;
    } else if (m->n_places > 1) {
        text_format(found.cause.text, sizeof(found.cause.text),
                    "%s: ", rdzv_node_text(name, sizeof(name), place));
    }
    rdzv_append(found.cause.text, sizeof(found.cause.text), "%s", text);
    record(m, &found);
}

/* --- draining: every rank of the roster is ended --- */

static void begin_drain(rdzv *m, drain_reason reason)
{
    m->phase = RDZV_DRAIN;
    m->reason = reason;
    m->aborted = false;
    m->killed = false;
}

static void abort_ranks(rdzv *m)
{
    m->aborted = true;
    m->drain_until_ms = m->now_ms + ABORT_MS;
    for (int i = 0; i < m->capacity; i++)
        if (rdzv_is_running(&m->nodes[i]))
            rdzv_act(m, RDZV_DO_ABORT, m->nodes[i].conn)->cause = &m->failure.cause;
}

void rdzv_stop_ranks(rdzv *m, drain_reason reason, int number, const char *text)
{
    begin_drain(m, reason);
    m->drain_until_ms = m->now_ms + m->opt.grace_ms + SLACK_MS;
    for (int i = 0; i < m->capacity; i++) {
        if (rdzv_is_running(&m->nodes[i])) {
            rdzv_action *a = rdzv_act(m, RDZV_DO_STOP, m->nodes[i].conn);
            a->signal = number;
            a->grace_ms = m->opt.grace_ms;
            a->text = text;
        }
    }
}

void rdzv_kill_ranks(rdzv *m)
{
    m->killed = true;
    m->drain_until_ms = m->now_ms + STUCK_MS;
    for (int i = 0; i < m->capacity; i++)
        if (rdzv_is_running(&m->nodes[i]))
            rdzv_act(m, RDZV_DO_KILL, m->nodes[i].conn);
}

void rdzv_abort_for_failure(rdzv *m)
{
    if (m->phase != RDZV_DRAIN)
        begin_drain(m, m->failure.reason);
    else if (m->reason != DRAIN_STOP)
        m->reason = m->failure.reason;
    if (!m->aborted && !m->killed)
        abort_ranks(m);
}

static void drop_stuck(rdzv *m)
{
    char *text = rdzv_new_text(m);
    int n = 0;

    rdzv_append(text, RDZV_TEXT_BYTES, "ranks cannot be killed on");
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];
        char name[RDZV_HOST_BYTES + 32];

        if (!rdzv_is_running(node))
            continue;
        rdzv_append(text, RDZV_TEXT_BYTES, "%s%s", n++ == 0 ? " " : ", ",
                    rdzv_node_text(name, sizeof(name), rdzv_place_of(m, node)));
        rdzv_act_text(m, RDZV_DO_REJECT, node->conn, text);
        node->state = NODE_NONE;
    }
    rdzv_act_text(m, RDZV_DO_NOTE, RDZV_HEAD, text);
}

static void end_failed(rdzv *m)
{
    const int n_left = rdzv_count(m, NODE_WAITING, NODE_ENDED);
    char nodes[32];
    char *text = rdzv_new_text(m);

    rdzv_append(text, RDZV_TEXT_BYTES, "%s", m->failure.cause.text);
    if (m->opt.min_nodes < m->opt.max_nodes && n_left < m->opt.min_nodes)
        rdzv_append(text, RDZV_TEXT_BYTES, "; %s left of at least %d",
                    rdzv_nodes_text(nodes, sizeof(nodes), n_left), m->opt.min_nodes);
    rdzv_end_job(m, m->failure.exit_code, text);
}

static void restart(rdzv *m, bool is_free)
{
    char *text = rdzv_new_text(m);

    for (int i = 0; i < m->capacity; i++)
        if (m->nodes[i].state != NODE_NONE && m->nodes[i].leaves && !m->nodes[i].lost)
            rdzv_dismiss(m, &m->nodes[i]);
    m->n_restarts += !is_free;
    if (m->reason == DRAIN_JOIN)
        rdzv_append(text, RDZV_TEXT_BYTES, "restarting with more nodes");
    else if (m->reason == DRAIN_LEAVE)
        rdzv_append(text, RDZV_TEXT_BYTES, "restarting without the nodes that have left");
    else if (is_free)
        rdzv_append(text, RDZV_TEXT_BYTES, "restarting without the lost node: %s",
                    m->failure.cause.text);
    else
        rdzv_append(text, RDZV_TEXT_BYTES, "restart %d of %d: %s", m->n_restarts,
                    m->opt.max_restarts, m->failure.cause.text);
    rdzv_act_text(m, RDZV_DO_RESTART, RDZV_HEAD, text);
    rdzv_start_collecting(m);
}

/* The job was to restart, but a stop signal has arrived meanwhile. */
static void end_in_place_of_restart(rdzv *m)
{
    char *text;

    if (m->failure.weight != FAILURE_NONE) {
        text = rdzv_new_text(m);
        rdzv_append(text, RDZV_TEXT_BYTES, "no restart after %s: %s",
                    process_signal_name(m->stop_signal), m->failure.cause.text);
        rdzv_act_text(m, RDZV_DO_NOTE, RDZV_HEAD, text);
    }
    rdzv_end_stopped(m);
}

/* All ranks of the roster have ended. */
static void decide(rdzv *m)
{
    const bool is_enough = !m->opt.by_id && rdzv_count_staying(m) >= m->opt.min_nodes;
    const bool is_free = m->reason == DRAIN_JOIN || m->reason == DRAIN_LEAVE ||
                         (m->reason == DRAIN_LOSS && is_enough);
    const bool is_affordable = is_free || m->n_restarts < m->opt.max_restarts;

    if (m->reason <= DRAIN_STOP && rdzv_has_finished(m))
        rdzv_end_job(m, 0, ""); // the ranks had ended before the signal reached them
    else if (m->reason == DRAIN_STOP)
        rdzv_end_stopped(m);
    else if (is_affordable && m->stop_signal != 0)
        end_in_place_of_restart(m);
    else if (!is_affordable)
        end_failed(m);
    else
        restart(m, is_free);
}

void rdzv_settle_drain(rdzv *m)
{
    if (m->now_ms >= m->drain_until_ms && m->killed)
        drop_stuck(m);
    if (rdzv_count(m, NODE_WELCOMED, NODE_READY) == 0)
        decide(m);
    else if (m->now_ms >= m->drain_until_ms)
        rdzv_kill_ranks(m);
}
