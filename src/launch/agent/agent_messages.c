/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_messages.c - handles the messages of the head and sends it the reports of this node. A
 * message of another generation changes nothing. Called by agent_link.c for each message, and by
 * the head where it runs in this process.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/log.h"
#include "comm/record/recorder.h"
#include "host/process_id.h"
#include "launch/agent/streams/agent_request.h"

#define CAUSE_NS (INT64_C(60) * 1000000000) /* a broken group explains an exit for this time */

/* --- reports to the head --- */

/* r NULL: of the start of the ranks, for the reason `why`. */
void agent_send_failure(const agent *a, int local_rank, const agent_rank *r, const char *why)
{
    node_failure failure = {
        .generation = agent_generation(&a->ctx), .local_rank = local_rank, .exit_code = 1};
    wire_writer w = {0};

    if (r == NULL) {
        text_format(failure.text, sizeof(failure.text), "%s", why);
    } else {
        failure.exit_code = agent_exit_code(r);
        failure.crashed = agent_has_crashed(r);
        agent_describe_end(r, failure.text, sizeof(failure.text));
    }
    node_write_failure(&w, &failure);
    agent_send(&a->ctx, NODE_FAILED, &w);
}

void agent_send_cause(const agent *a, const agent_rank *r)
{
    recorder_cause found;
    wire_writer w = {0};

    if (agent_is_elastic(&a->ctx) || !recorder_read_cause(r->ring_fd, &found) ||
        found.rank != r->rank || found.n_ranks != a->ctx.place.place.world_size ||
        ls_now_ns() - found.at_ns > CAUSE_NS)
        return;
    wire_write_u32(&w, agent_generation(&a->ctx));
    cause_write(&w, &found.cause);
    agent_send(&a->ctx, NODE_CAUSE, &w);
}

void agent_send_finished(agent *a)
{
    node_end end = {.generation = agent_generation(&a->ctx),
                    .stopped = a->ctx.phase != AGENT_RUNNING,
                    .local_rank = -1,
                    .text = "",
                    .details = ""};
    text_buf details = {0};
    char text[LS_ERROR_BYTES + 64] = "";
    wire_writer w = {0};

    if (a->root >= 0) {
        agent_make_report(a, &end, &details);
        agent_describe_end(&a->ranks[end.local_rank], text, sizeof(text));
        end.text = text;
        end.details = text_str(&details);
    }
    agent_count_ends(a, &end);
    a->last_end = end;
    a->last_end.text = a->last_end.details = "";
    node_write_end(&w, &end);
    agent_send(&a->ctx, NODE_FINISHED, &w);
    a->finished = end.generation;
    text_free(&details);
}

/* The state of each rank, with every heartbeat. */
static void send_states(void *arg)
{
    const agent *a = arg;
    wire_writer w;

    if (a->ctx.phase == AGENT_IDLE)
        return;
    w = agent_begin_message(&a->ctx);
    for (int i = 0; i < a->ctx.spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];

        wire_write_u8(&w, (uint8_t)(r->ended ? 'E' : process_state(r->pid)));
    }
    agent_send(&a->ctx, NODE_STATES, &w);
}

/* --- the beginning of a generation --- */

/* Reports that the ranks may be started, or why not. */
static void send_ready(agent *a)
{
    node_master master = {.generation = agent_generation(&a->ctx)};
    wire_writer w = {0};

    if (agent_store_choose_port(&a->store, &master.port) != LS_OK) {
        agent_fail_start(&a->ctx);
        return;
    }
    node_write_master(&w, &master);
    agent_send(&a->ctx, NODE_READY, &w);
}

static ls_status check_welcome(const agent *a, const node_welcome *welcome)
{
    const char *job = a->ctx.place.job;

    if (welcome->place.n_local != a->ctx.spec->n_ranks)
        return ls_fail(LS_EPROTO, "a welcome with %d rank%s for a node that has %d",
                       welcome->place.n_local, text_plural(welcome->place.n_local),
                       a->ctx.spec->n_ranks);
    if (job[0] != 0 && !text_equal(job, welcome->job))
        return ls_fail(LS_EPROTO, "a welcome to another job");
    if (a->ctx.phase != AGENT_IDLE)
        return ls_fail(LS_EPROTO, "a welcome while ranks of generation %u are here",
                       agent_generation(&a->ctx));
    return LS_OK;
}

static ls_status take_welcome(agent *a, const frame *f)
{
    node_welcome welcome;
    ls_status st;

    LS_TRY(node_read_welcome(f, &welcome));
    LS_TRY(check_welcome(a, &welcome));
    a->ctx.place = welcome;
    a->network.pick.n = 0;
    st = agent_link_take_silence(&a->link);
    if (st == LS_OK)
        st = agent_open_job(a);
    if (st == LS_OK)
        st = agent_link_begin_standby(&a->link);
    if (st == LS_OK && welcome.place.n_nodes > 1)
        st = agent_network_offer(&a->network, &a->key);
    else if (st == LS_OK)
        send_ready(a);
    if (st != LS_OK)
        agent_fail_start(&a->ctx);
    return LS_OK;
}

static ls_status take_network(agent *a, const frame *f)
{
    bool is_picked;

    LS_TRY(agent_network_take(&a->network, f, &is_picked));
    if (is_picked)
        send_ready(a);
    return LS_OK;
}

/* The machine's part in the job, where nothing else says that it has one. */
static void note_place(const agent *a)
{
    const rdzv_place *p = &a->ctx.place.place;

    if (a->link.head == NULL && a->ctx.spec->remote == NULL)
        agent_note(&a->ctx, "node %d of %d, ranks %d-%d, output of rank 0 on node 0", p->node,
                   p->n_nodes, p->rank_base, p->rank_base + p->n_local - 1);
}

static ls_status take_start(agent *a, const frame *f)
{
    node_master master;

    LS_TRY(node_read_master(f, &master));
    if (master.generation != agent_generation(&a->ctx) || a->ctx.phase != AGENT_IDLE)
        return LS_OK;
    a->store.master_port = master.port;
    if (agent_start_ranks(a) == LS_OK) {
        a->link.is_rejoining = false;
        note_place(a);
        return LS_OK;
    }
    if (a->link.head != NULL && a->ctx.spec->nodes == NULL)
        a->ctx.give_up(a, LS_ESYSTEM); /* a job of one node: the error is the result */
    agent_fail_start(&a->ctx);
    agent_close_ranks(a);
    return LS_OK;
}

/* --- elastic jobs --- */

/* Fails the rank again when no process can be started, which the head then drops. */
static void replace(agent *a, const node_slot *slot)
{
    agent_rank *r = &a->ranks[slot->local_rank];
    char why[LS_ERROR_BYTES];

    agent_link_has_returned(&a->link); /* a majority of the machines knows this action */
    if (!r->ended || agent_replace_rank(a, slot) == LS_OK)
        return;
    ls_error_save(why);
    agent_note(&a->ctx, "rank %d cannot be replaced: %s", r->rank, why);
    r->is_undecided = true;
    agent_send_failure(a, slot->local_rank, r, NULL);
}

static ls_status take_slot(agent *a, const frame *f)
{
    node_slot slot;

    LS_TRY(node_read_slot(f, &slot));
    if (slot.generation != agent_generation(&a->ctx) || a->ctx.phase != AGENT_RUNNING ||
        slot.local_rank >= a->ctx.spec->n_ranks)
        return LS_OK;
    if (f->type == NODE_REPLACE)
        replace(a, &slot);
    else if (f->type == NODE_EVICT)
        agent_evict_rank(a, slot.local_rank);
    else {
        a->ranks[slot.local_rank].is_undecided = false;
        agent_forget_failure(a, slot.local_rank);
    }
    return LS_OK;
}

/* What has become of the ranks, for a head that has taken over. */
static void report_ranks(void *arg)
{
    agent *a = arg;
    wire_writer w = {0};

    for (int i = 0; a->ctx.phase == AGENT_RUNNING && i < a->ctx.spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];
        const node_found v = {.generation = agent_generation(&a->ctx),
                              .local_rank = i,
                              .member = r->member,
                              .found = !r->ended             ? RECOVERY_RUNS
                                       : r->is_vacant        ? RECOVERY_HAS_FAILED
                                       : agent_ended_well(r) ? RECOVERY_HAS_ENDED
                                       : r->is_undecided     ? RECOVERY_HAS_FAILED
                                                             : RECOVERY_WAS_DROPPED};

        node_write_found(&w, &v);
        agent_send(&a->ctx, NODE_FOUND, &w);
        w = (wire_writer){0};
    }
    if (a->ctx.phase != AGENT_IDLE || a->finished != agent_generation(&a->ctx))
        return;
    node_write_end(&w, &a->last_end);
    agent_send(&a->ctx, NODE_FINISHED, &w);
}

/* --- the end of ranks and job --- */

/* Ranks that have ended, or were never started, are reported as finished. */
static bool has_ranks(agent *a)
{
    if (a->ctx.phase != AGENT_IDLE)
        return true;
    if (a->finished != agent_generation(&a->ctx))
        agent_send_finished(a);
    return false;
}

static ls_status take_stop(agent *a, const frame *f)
{
    node_stop stop;

    LS_TRY(node_read_stop(f, &stop));
    if (a->ctx.spec->n_ranks == 0)
        agent_note_stop(a, &stop);
    else if (has_ranks(a))
        agent_stop_ranks(a, &stop);
    return LS_OK;
}

/* A job that this agent was asked to end has not failed. */
static ls_status take_over(agent *a, const frame *f)
{
    node_over over;

    LS_TRY(node_read_over(f, &over, &a->result->report));
    a->outcome.is_known = true;
    a->outcome.exit_code = over.exit_code;
    a->outcome.has_failed = over.failed || (over.exit_code != 0 && a->ctx.stop_signal == 0);
    a->ctx.is_over = true;
    agent_kill_ranks(a); /* if the head has given up some of this node */
    return LS_OK;
}

static ls_status take_abort(agent *a, const frame *f)
{
    node_failure aborted;

    LS_TRY(node_read_failure(f, &aborted));
    if (has_ranks(a) && aborted.generation == agent_generation(&a->ctx) &&
        aborted.local_rank < a->ctx.spec->n_ranks)
        a->aborter = aborted.local_rank;
    return LS_OK;
}

/* A rank has exited with code 0 while other ranks wait for it in MPI: it has failed. */
static ls_status take_early_exit(agent *a, const frame *f)
{
    node_failure failure;
    int local;

    LS_TRY(node_read_failure(f, &failure));
    local = failure.local_rank;
    if (failure.generation == agent_generation(&a->ctx) && a->ctx.phase == AGENT_RUNNING &&
        local >= 0 && local < a->ctx.spec->n_ranks && a->ranks[local].ended &&
        agent_ended_well(&a->ranks[local]))
        (void)agent_fail_rank(a, local, failure.exit_code, failure.text);
    return LS_OK;
}

/* --- the rest --- */

static ls_status take_text(agent *a, const frame *f)
{
    const agent_spec *spec = a->ctx.spec;
    text_buf text = {0};
    const ls_status st = node_read_text(f, &text);

    if (st == LS_OK && f->type == NODE_REJECT) {
        (void)ls_fail(LS_EMISMATCH, "%s", text_str(&text));
        a->ctx.give_up(a, LS_EMISMATCH);
        agent_kill_ranks(a);
    } else if (st == LS_OK && spec->remote == NULL) { /* else the starter prints it */
        if (spec->capture || spec->nodes != NULL)
            agent_note(&a->ctx, "%s", text_str(&text));
        else
            ls_log(LS_LOG_WARN, "launch", "%s", text_str(&text));
    }
    text_free(&text);
    return st;
}

static ls_status on_message(void *arg, const frame *f)
{
    agent *a = arg;

    switch (f->type) {
    case NODE_WELCOME:
        return take_welcome(a, f);
    case NODE_PROBE:
        return agent_network_try(&a->network, f);
    case NODE_NETWORK:
        return take_network(a, f);
    case NODE_START:
        return take_start(a, f);
    case NODE_END_RANKS:
        return take_stop(a, f);
    case NODE_ABORT:
        if (has_ranks(a))
            agent_abort_ranks(a);
        return LS_OK;
    case NODE_ABORTED:
        return take_abort(a, f);
    case NODE_KILL:
        if (has_ranks(a))
            agent_kill_ranks(a);
        return LS_OK;
    case NODE_OVER:
        return take_over(a, f);
    case NODE_WAIT:
    case NODE_REJECT:
    case NODE_NOTE:
        return take_text(a, f);
    case NODE_PAUSE:
    case NODE_RESUME:
        agent_link_pause(&a->link, f->type == NODE_PAUSE);
        agent_signal_ranks(a, f->type == NODE_PAUSE ? SIGSTOP : SIGCONT);
        return LS_OK;
    case NODE_LEAVE:
        agent_leave_orderly(a);
        return LS_OK;
    case NODE_MPI_KEYS:
        return agent_pmi_take_keys(&a->pmi, f);
    case NODE_MPI_BARRIER:
        return agent_pmi_take_barrier(&a->pmi, f);
    case NODE_REPLACE:
    case NODE_DROP:
    case NODE_EVICT:
        return take_slot(a, f);
    case NODE_EXITED_EARLY:
        return take_early_exit(a, f);
    case NODE_STREAM:
        return stream_mux_receive(&a->link.streams, f);
    case NODE_HUB_STREAM:
    case NODE_MEMBER_STREAM:
        return agent_relay_receive(&a->link.relay, f);
    case NODE_OWNER_QUERY:
        return agent_store_answer_owner(&a->store, f);
    case NODE_OWNER_ANSWER:
        return agent_store_take_owned(&a->store, f);
    case NODE_CLOCK:
        return agent_link_answer_clock(&a->link, f);
    case NODE_STATUS_ASK:
        return agent_status_answer(a, f);
    case NODE_BEAT:
        return LS_OK;
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

/* --- calls of a head in this process --- */

static ls_status write_request(void *arg, wire_writer *w)
{
    const agent *a = arg;

    return agent_request_write(&a->output, w);
}

static void note_abort(void *arg, int local_rank)
{
    agent *a = arg;

    a->aborter = local_rank;
}

static void take_ring(void *arg, uint32_t generation, int rank, const char *host, int64_t behind_ns,
                      int fd)
{
    const agent_spec *spec = ((const agent *)arg)->ctx.spec;

    spec->keep_ring(spec->ring_keeper, generation, rank, host, behind_ns, fd);
}

static void append_recent(void *arg, int node, size_t most, text_buf *out)
{
    const agent *a = arg;

    agent_hosts_append_recent(a->hosts, node, most, out);
}

static void end_node(void *arg, int node, const char *why)
{
    const agent *a = arg;

    agent_hosts_end_node(a->hosts, node, why);
}

void agent_set_link_calls(agent *a)
{
    const agent_spec *spec = a->ctx.spec;

    a->link.agent = a;
    a->link.message = on_message;
    a->link.before_beat = send_states;
    a->link.has_started = agent_has_started;
    a->link.lost = agent_kill_ranks;
    a->link.returned = report_ranks;
    a->link.head_calls = (head_options){.self = a,
                                        .write_request = write_request,
                                        .describe_rank = agent_describe_rank,
                                        .note_abort = note_abort,
                                        .keep_ring = spec->keep_ring != NULL ? take_ring : NULL,
                                        .append_last_lines = append_recent,
                                        .take_status = agent_status_take,
                                        .node_silent = spec->hosts != NULL ? end_node : NULL};
}
