/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_link.c - opens, keeps alive and closes the agent's connection to the head of its job, and
 * starts that head where this agent hosts it. Without the head the agent's ranks end; in an elastic
 * job it then joins again. Messages are handled by agent_messages.c.
 */
#include "launch/agent/node/agent_link.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "net/reach.h"
#include "net/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WAIT_LINE_MS = 900,
    WAIT_LINE_AGAIN_MS = 10000,
    JOIN_MS = 600000,
    MOVE_MS = 15000 /* and the time of a silence: from the loss of a head to the next one */
};

/* --- sending --- */

void agent_link_send(agent_link *l, node_message type, const wire_writer *body)
{
    if (!l->is_linked)
        return;
    if (body == NULL)
        frame_link_send(&l->link, type, NULL, 0);
    else if (wire_writer_status(body) != LS_OK) // the head would wait for it without an end
        frame_link_fail(&l->link, ls_last_error());
    else
        frame_link_send(&l->link, type, body->data, body->bytes);
}

static void send_hello(const agent_link *l)
{
    const agent_spec *spec = l->ctx->spec;
    const rdzv_options *o = &spec->rendezvous;
    char host[RDZV_HOST_BYTES] = "?";
    rdzv_hello hello = {.uid = l->uid,
                        .id = spec->nodes != NULL ? spec->nodes->id : -1,
                        .n_local = spec->n_ranks,
                        .min_nodes = o->min_nodes,
                        .max_nodes = o->max_nodes,
                        .per_node = o->per_node,
                        .n_per_node = o->per_node != NULL ? o->max_nodes : 0,
                        .run_id = o->run_id,
                        .run_name = o->run_name,
                        .version = ls_version(),
                        .host = host};
    char standby_at[NET_ADDRESS_TEXT_MAX];
    wire_writer w = {0};

    if (net_address_family(&l->standby_at) != NET_NONE) {
        wire_write_text(&w, net_address_text(standby_at, sizeof(standby_at), &l->standby_at));
        agent_send(l->ctx, NODE_STANDBY, &w);
        w = (wire_writer){0};
    }
    if (spec->nodes != NULL && spec->nodes->name != NULL)
        text_format(host, sizeof(host), "%s", spec->nodes->name);
    else
        (void)gethostname(host, sizeof(host) - 1);
    node_write_hello(&w, &hello);
    agent_send(l->ctx, NODE_HELLO, &w);
}

ls_status agent_link_answer_clock(const agent_link *l, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const int64_t asked_ns = wire_read_i64(&r);
    wire_writer w = {0};

    (void)wire_read_i64(&r);
    LS_TRY(wire_reader_end(&r, "a clock"));
    wire_write_i64(&w, asked_ns);
    wire_write_i64(&w, ls_now_ns());
    agent_send(l->ctx, NODE_CLOCK, &w);
    return LS_OK;
}

/* --- heartbeats, where the head is another process --- */

void agent_link_leave(agent_link *l)
{
    l->is_linked = false;
    stream_mux_close(&l->streams);
    agent_relay_end(&l->relay);
    frame_link_close(&l->link);
    poller_timer_cancel(&l->beat);
    poller_timer_cancel(&l->wait_line);
    dial_close(l->dial);
    l->dial = NULL;
}

void agent_link_quit(agent_link *l)
{
    agent_link_leave(l);
    poller_timer_cancel(&l->move_limit);
    head_destroy(l->head);
    l->head = NULL;
    standby_destroy(l->standby);
    l->standby = NULL;
}

static int64_t move_deadline(void)
{
    return ls_deadline_ms(net_silence_ms() + MOVE_MS);
}

bool agent_link_waits(const agent_link *l)
{
    return !l->is_linked && l->move_limit.is_set;
}

static void end_job(agent_link *l, const char *why);

/* The job goes on without the ranks here, or ends. */
static void leave_job(agent_link *l, const char *why)
{
    const agent_spec *spec = l->ctx->spec;
    /* In an elastic job the other machines go on without this one, and take it back. */
    const bool may_rejoin = l->head == NULL && agent_is_elastic(l->ctx) &&
                            l->ctx->phase == AGENT_RUNNING && l->ctx->stop_signal == 0 &&
                            spec->nodes != NULL && spec->remote == NULL;

    if (l->ctx->is_over || l->is_rejoining)
        return;
    if (!may_rejoin) {
        end_job(l, why);
        return;
    }
    text_format(l->lost_why, sizeof(l->lost_why), "%s", why);
    agent_note(
        l->ctx,
        "this machine is lost for the job at %s: %s; its ranks end, and it joins the job again",
        l->head_text, why);
    agent_link_leave(l);
    poller_timer_cancel(&l->move_limit);
    l->is_rejoining = true;
    if (l->standby != NULL)
        standby_retire(l->standby);
    l->lost(l->agent);
}

/* Neither the lost head nor another one has answered. The lost one may lead on, and take this
 * machine back; where another one leads no machine can join. */
static void no_head_came(void *arg)
{
    agent_link *l = arg;

    if (l->is_returning)
        end_job(l, "another machine hosts it now, and cannot be reached");
    else
        leave_job(l, "it does not answer, and no other one has taken over");
}

static void lose_head(agent_link *l, const char *why)
{
    if (l->ctx->is_over)
        return;
    if (l->is_rejoining) { // cut off again, before it had a place
        if (l->ctx->stop_signal == 0)
            agent_link_leave(l);
        else
            end_job(l, why);
        return;
    }
    l->lost_ms = ls_now_ms();
    if (l->has_started(l->agent) && l->standby != NULL && standby_is_ready(l->standby)) {
        if (l->head != NULL) { /* while it leads, no other one comes */
            agent_link_quit(l);
            end_job(l, why);
            return;
        }
        agent_note(l->ctx, "the head of the job at %s is lost: %s", l->head_text, why);
        agent_link_leave(l);
        poller_timer_set(l->ctx->poller, &l->move_limit, move_deadline(), no_head_came, l);
        return;
    }
    leave_job(l, why);
}

static void end_job(agent_link *l, const char *why)
{
    if (l->ctx->is_over)
        return;
    agent_link_leave(l);
    poller_timer_cancel(&l->move_limit); /* or the agent would wait for another head */
    l->lost(l->agent);
    (void)ls_fail(LS_EPEER, "the head of the job at %s is lost: %s", l->head_text, why);
    l->ctx->give_up(l->ctx->agent, LS_EPEER);
}

static void on_beat(void *arg)
{
    agent_link *l = arg;
    const int64_t now_ms = ls_now_ms();
    /* This process was stopped: what the head has sent meanwhile is not read yet. */
    const bool was_stopped = now_ms - l->beat.due_ms > NODE_BEAT_MS;
    char why[NODE_SILENCE_TEXT];

    if (!was_stopped && !l->is_paused && now_ms - l->link.received_ms > net_silence_ms()) {
        lose_head(l, node_silence_text(why, net_silence_ms()));
        return;
    }
    l->before_beat(l->agent);
    agent_link_send(l, NODE_BEAT, NULL);
    poller_timer_set(l->ctx->poller, &l->beat, now_ms + NODE_BEAT_MS, on_beat, l);
}

void agent_link_pause(agent_link *l, bool pauses)
{
    l->is_paused = pauses;
    l->link.received_ms = ls_now_ms();
}

void agent_link_resumed(agent_link *l)
{
    if (l->head != NULL)
        head_resumed(l->head);
    l->link.received_ms = ls_now_ms();
}

/* --- the connection --- */

static ls_status on_message(void *arg, const frame *f)
{
    const agent_link *l = arg;

    return l->message(l->agent, f);
}

static void on_ended(void *arg, const char *why)
{
    lose_head(arg, why);
}

static void on_drained(void *arg)
{
    agent_link *l = arg;

    stream_mux_resume(&l->streams);
    agent_relay_resume(&l->relay);
}

static ls_status open_link(agent_link *l, int fd, const seal_pair *seals)
{
    poller *p = l->ctx->poller;

    l->link.self = l;
    l->link.message = on_message;
    l->link.ended = on_ended;
    l->link.drained = on_drained;
    LS_TRY(frame_link_open(&l->link, p, fd, l->head_text, NODE_BODY_MAX, NODE_QUEUE_MAX));
    frame_link_seal(&l->link, seals);
    l->is_linked = true;
    poller_timer_cancel(&l->move_limit);
    stream_mux_init(&l->streams, p, &l->link, NODE_STREAM);
    LS_TRY(agent_relay_begin(&l->relay, &l->link));
    if (l->head == NULL)
        poller_timer_set(p, &l->beat, ls_now_ms() + NODE_BEAT_MS, on_beat, l);
    if (l->ctx->spec->n_ranks > 0)
        send_hello(l);
    if (l->is_returning)
        l->returned(l->agent);
    return LS_OK;
}

/* --- a head in another process --- */

static const char *name_of_head(const agent_link *l)
{
    return l->ctx->spec->remote != NULL ? "the starting machine" : "node 0";
}

/* Other agents reach this one at the address at which it reaches the head. */
static void open_standby(agent_link *l, int fd)
{
    net_address own;

    if (l->standby == NULL || net_address_family(&l->standby_at) != NET_NONE)
        return;
    if (net_address_of_socket(fd, &own) == LS_OK &&
        standby_listen(l->standby, &own, &l->standby_at) == LS_OK)
        return;
    ls_log(LS_LOG_WARN, "launch", "this agent cannot take over the head: %s", ls_last_error());
    standby_destroy(l->standby);
    l->standby = NULL;
}

static void on_dialled(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    agent_link *l = arg;

    poller_timer_cancel(&l->wait_line);
    if (fd < 0 && l->is_rejoining) {
        (void)ls_fail(LS_EPEER, "the head of the job at %s is lost: %s; joining again failed: %s",
                      l->head_text, l->lost_why, why);
        st = LS_EPEER;
    } else if (fd < 0) {
        (void)ls_fail(st, "%s at %s: %s%s", name_of_head(l), l->ctx->spec->nodes->head, why,
                      l->not_head);
    } else {
        l->head_at = *at;
        net_address_text(l->head_text, sizeof(l->head_text), at);
        open_standby(l, fd);
        st = open_link(l, fd, dial_seals(l->dial));
    }
    if (st != LS_OK)
        l->ctx->give_up(l->ctx->agent, st);
}

static void note_wait(void *arg)
{
    agent_link *l = arg;
    const char *error = dial_last_error(l->dial);

    agent_note(l->ctx, "waiting for %s at %s%s%s%s", name_of_head(l), l->ctx->spec->nodes->head,
               error[0] != 0 ? ": " : "", error, l->not_head);
    poller_timer_set(l->ctx->poller, &l->wait_line, ls_now_ms() + WAIT_LINE_AGAIN_MS, note_wait, l);
}

static handshake_claim claim_of(const agent_nodes *nodes, uint32_t from)
{
    return (handshake_claim){.purpose = NET_PURPOSE_NODE,
                             .from = from,
                             .to = HANDSHAKE_ANY_RANK,
                             .security = nodes->security};
}

static ls_status connect_to_head(agent_link *l)
{
    const agent_nodes *nodes = l->ctx->spec->nodes;
    const int64_t given_ms = l->ctx->spec->rendezvous.join_ms;
    const int64_t join_ms = given_ms > 0 ? given_ms : JOIN_MS;
    dial_options options = {
        .to = nodes->n_heads > 0 ? NULL : nodes->head,
        .addresses = nodes->heads,
        .n_addresses = nodes->n_heads,
        .default_port = NET_PORT_REQUIRED,
        .key = nodes->key != NULL ? &l->key : NULL,
        .claim = claim_of(nodes, HANDSHAKE_ANY_RANK),
        .deadline_ms = ls_deadline_ms(join_ms),
        .self = l,
        .done = on_dialled,
    };

    if (l->is_rejoining) { // a head that refuses the connection has ended
        options.to = NULL;
        options.addresses = &l->head_at;
        options.n_addresses = 1;
        options.accept_timeout_ms = join_ms;
    }
    poller_timer_set(l->ctx->poller, &l->wait_line, ls_now_ms() + WAIT_LINE_MS, note_wait, l);
    return dial_open(l->ctx->poller, &options, &l->dial);
}

bool agent_link_must_join(const agent_link *l)
{
    return l->is_rejoining && !l->is_linked && l->dial == NULL;
}

ls_status agent_link_rejoin(agent_link *l)
{
    return connect_to_head(l);
}

/* --- a head in this process --- */

/* The command with which another machine joins; this machine if the head listens on loopback. */
static void write_join_hint(agent_link *l)
{
    const agent_nodes *nodes = l->ctx->spec->nodes;
    const net_reach reach = net_reach_of(nodes->head);
    const char *port = strrchr(nodes->head, ':');
    char own[NET_REACH_TEXT_MAX];
    char place[NET_ADDRESS_TEXT_MAX] = "";
    net_address best;

    if (reach == NET_REACH_WILDCARD && port != NULL &&
        *net_reach_addresses(own, sizeof(own), &best) != 0) {
        net_address_set_port(&best, (int)strtol(port + 1, NULL, 10));
        net_address_text(place, sizeof(place), &best);
    }
    text_format(l->join_hint, sizeof(l->join_hint), "on %s machine: lockstep join %s%s%s",
                reach == NET_REACH_LOOPBACK ? "this" : "another",
                place[0] != 0 ? place + strlen("tcp://") : nodes->head,
                l->ctx->spec->rendezvous.by_id ? " --node-rank I" : "",
                nodes->key == NULL ? " --insecure" : "");
}

static void warn_of_address(const agent_link *l)
{
    char warning[2 * NET_REACH_TEXT_MAX];

    net_reach_warning(warning, sizeof(warning), "node 0", l->ctx->spec->nodes->head);
    if (warning[0] != 0)
        agent_note(l->ctx, "warning: %s", warning);
}

/* --- two machines that are both node 0 --- */

static void other_head_is_certain(void *arg)
{
    agent_link *l = arg;

    if (l->has_found_self || l->ctx->is_over || agent_generation(l->ctx) != 0)
        return;
    l->ctx->give_up(l->ctx->agent,
                    ls_fail(LS_EMISMATCH,
                            "another machine at %s is node 0, too: --node-rank (-i) 0 was given on "
                            "both; give each machine its own",
                            l->ctx->spec->nodes->head));
}

static void on_other_head(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    agent_link *l = arg;

    LS_UNUSED(at);
    LS_UNUSED(st);
    LS_UNUSED(why);
    dial_close(l->dial);
    l->dial = NULL;
    if (fd < 0)
        return;
    file_close(&fd);
    poller_timer_set(l->ctx->poller, &l->wait_line, ls_now_ms() + WAIT_LINE_MS,
                     other_head_is_certain, l);
}

/* A head in this process has been called by an agent that is node 0. */
static void on_called_by_head(void *arg, const char *peer)
{
    agent_link *l = arg;

    if (l->seeks_other_head)
        l->has_found_self = true;
    else
        agent_note(
            l->ctx,
            "another machine, %s, is node 0, too: --node-rank (-i) 0 was given on both; give "
            "each machine its own",
            peer);
}

static void seek_other_head(agent_link *l)
{
    const agent_nodes *nodes = l->ctx->spec->nodes;
    const dial_options options = {.to = nodes->head,
                                  .default_port = NET_PORT_REQUIRED,
                                  .key = nodes->key != NULL ? &l->key : NULL,
                                  .claim = claim_of(nodes, NODE_CALLER_HEAD),
                                  .deadline_ms = ls_deadline_ms(JOIN_MS),
                                  .self = l,
                                  .done = on_other_head};

    if (!l->ctx->spec->rendezvous.by_id || net_reach_of(nodes->head) != NET_REACH_ELSEWHERE)
        return;
    l->seeks_other_head = true;
    if (dial_open(l->ctx->poller, &options, &l->dial) != LS_OK)
        ls_log(LS_LOG_WARN, "launch", "%s", ls_last_error());
}

static void fill_options(agent_link *l, head_options *out)
{
    const agent_spec *spec = l->ctx->spec;
    head_options options = l->head_calls;

    options.rendezvous = spec->rendezvous;
    options.key = &l->key;
    options.insecure = spec->nodes != NULL && spec->nodes->key == NULL;
    options.security = spec->nodes != NULL ? spec->nodes->security : NET_AUTH;
    options.hosts_store = spec->job->hosts_store;
    options.net = spec->job->net;
    options.ports = spec->job->ports;
    options.store_port = spec->nodes == NULL ? spec->master_port : 0;
    options.quiet_roster = spec->nodes == NULL || spec->hosts != NULL;
    options.rendezvous.version = ls_version();
    options.rendezvous.grace_ms = spec->job->grace_ms;
    options.standby = l->standby;
    options.link = l;
    options.other_head = on_called_by_head;
    *out = options;
}

static ls_status create_head(agent_link *l)
{
    const agent_spec *spec = l->ctx->spec;
    head_options options;
    char host[RDZV_HOST_BYTES] = "?";

    fill_options(l, &options);
    (void)gethostname(host, sizeof(host) - 1);
    options.rendezvous.host = host;
    if (options.rendezvous.max_nodes == 0)
        options.rendezvous.min_nodes = options.rendezvous.max_nodes = 1;
    if (spec->nodes != NULL && spec->hosts == NULL && spec->job->argv != NULL) {
        write_join_hint(l);
        options.hint = l->join_hint;
    }
    return head_create(l->ctx->poller, &options, &l->head);
}

/* --- another head after the loss of the first --- */

static void on_committed(void *arg, uint64_t index)
{
    const agent_link *l = arg;

    if (l->head != NULL)
        head_committed(l->head, index);
}

static void on_confirmed(void *arg, uint64_t round)
{
    const agent_link *l = arg;

    if (l->head != NULL)
        head_confirmed(l->head, round);
}

static void on_leave(void *arg)
{
    leave_job(arg, "this machine is not connected to a majority of the job's machines");
}

/* The head that this agent has lost, or has not reached, leads on, so this machine is lost. That is
 * certain after the time of a silence: a head without a majority has ended then, and another one
 * may be elected. */
static void on_still_led(void *arg)
{
    agent_link *l = arg;

    if (agent_link_waits(l) && ls_now_ms() - l->lost_ms > net_silence_ms() + NODE_BEAT_MS)
        leave_job(l, "it was silent for too long");
}

static ls_status take_over(agent_link *l, const void *state, size_t bytes)
{
    const seal_pair clear = {0}; /* of a socket pair */
    net_address at = l->standby_at;
    head_options options;
    int fd;

    fill_options(l, &options);
    LS_TRY(head_take_over(l->ctx->poller, &options, state, bytes, &l->head));
    net_address_set_port(&at, 0);
    LS_TRY(head_listen(l->head, &at, &l->listens_at));
    standby_announce(l->standby, &l->listens_at);
    LS_TRY(head_connect_own(l->head, &fd));
    text_format(l->head_text, sizeof(l->head_text), "this node");
    l->is_returning = true;
    LS_TRY(open_link(l, fd, &clear));
    head_begin_again(l->head);
    return LS_OK;
}

static void on_lead(void *arg, const void *state, size_t bytes)
{
    agent_link *l = arg;

    if (l->ctx->is_over)
        return;
    agent_link_leave(l);
    agent_note(l->ctx, "the head of the job is lost: it goes on with its head on this machine");
    if (take_over(l, state, bytes) != LS_OK)
        end_job(l, ls_last_error());
}

static void follow_dialled(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    agent_link *l = arg;

    LS_UNUSED(at);
    if (fd >= 0) {
        st = open_link(l, fd, dial_seals(l->dial));
    } else {
        (void)ls_fail(st, "%s", why);
    }
    if (st != LS_OK)
        end_job(l, ls_last_error());
}

/* The head has been lost, and another agent hosts it at this address. */
static void on_follow(void *arg, const net_address *at)
{
    agent_link *l = arg;
    const dial_options options = {
        .addresses = &l->head_at,
        .n_addresses = 1,
        .default_port = NET_PORT_REQUIRED,
        .key = &l->key,
        .claim = claim_of(l->ctx->spec->nodes, HANDSHAKE_ANY_RANK),
        .deadline_ms = move_deadline(),
        .self = l,
        .done = follow_dialled,
    };

    if (l->ctx->is_over)
        return;
    if (l->is_rejoining || agent_generation(l->ctx) == 0) { // without ranks
        end_job(l, "another machine hosts it now, and no machine can join there");
        return;
    }
    agent_link_leave(l);
    l->lost_ms = ls_now_ms(); // the next one has its time to take this agent in
    l->is_returning = true;
    l->head_at = *at;
    net_address_text(l->head_text, sizeof(l->head_text), at);
    agent_note(l->ctx, "the head of the job is at %s now", l->head_text);
    poller_timer_set(l->ctx->poller, &l->move_limit, move_deadline(), no_head_came, l);
    if (dial_open(l->ctx->poller, &options, &l->dial) != LS_OK)
        end_job(l, ls_last_error());
}

/* Of an elastic job in which each agent was started by itself. */
static ls_status create_standby(agent_link *l)
{
    const agent_spec *spec = l->ctx->spec;
    const agent_nodes *nodes = spec->nodes;
    const standby_options options = {.key = &l->key,
                                     .security = nodes != NULL ? nodes->security : NET_AUTH,
                                     .ports = spec->job->ports,
                                     .calls = {.self = l,
                                               .committed = on_committed,
                                               .confirmed = on_confirmed,
                                               .lead = on_lead,
                                               .follow = on_follow,
                                               .still_led = on_still_led,
                                               .leave = on_leave}};

    if (l->standby != NULL || nodes == NULL || nodes->key == NULL || spec->hosts != NULL ||
        spec->remote != NULL || spec->rendezvous.min_ranks == 0 || spec->n_ranks < 1)
        return LS_OK;
    return standby_create(l->ctx->poller, &options, &l->standby);
}

ls_status agent_link_take_silence(const agent_link *l)
{
    LS_TRY(net_set_silence(l->ctx->place.silence_ms));
    return l->head != NULL ? LS_OK : net_set_stream_options(l->link.fd, net_silence_ms());
}

ls_status agent_link_begin_standby(agent_link *l)
{
    const node_welcome *welcome = &l->ctx->place;
    const standby_group g = {.generation = welcome->place.generation,
                             .self = welcome->place.node,
                             .n_nodes = welcome->place.n_nodes,
                             .head = welcome->head_node,
                             .silence_ms = welcome->silence_ms};
    bool is_known;

    if (l->standby == NULL)
        return LS_OK;
    /* A machine that was lost and takes its own place again keeps its vote. */
    is_known = welcome->place.is_late && standby_is_member(l->standby, g.generation);
    if (l->head == NULL && !is_known)
        standby_end(l->standby);
    if (!welcome->has_standby)
        return LS_OK;
    LS_TRY(agent_relay_open(&l->relay, l->ctx->poller));
    LS_TRY(agent_relay_begin(&l->relay, &l->link));
    /* A node in the place of a lost one is none of those that elect a head. */
    return l->head == NULL && !welcome->place.is_late ? standby_begin(l->standby, &g) : LS_OK;
}

void agent_link_has_returned(agent_link *l)
{
    if (l->standby != NULL && l->head == NULL)
        standby_return(l->standby);
}

/* --- life --- */

ls_status agent_link_open_head(agent_link *l)
{
    const agent_spec *spec = l->ctx->spec;
    const seal_pair clear = {0}; /* of a socket pair */
    int fd;

    LS_TRY(create_standby(l));
    LS_TRY(create_head(l));
    if (spec->nodes != NULL &&
        head_listen(l->head, &spec->nodes->listen, &l->listens_at) != LS_OK) {
        const bool is_taken = errno == EADDRINUSE;
        char why[LS_ERROR_BYTES];

        ls_error_save(why);
        text_format(l->not_head, sizeof(l->not_head), "; this launcher is not the head: %s",
                    ls_last_error());
        head_destroy(l->head);
        l->head = NULL;
        if (is_taken && spec->rendezvous.by_id)
            return ls_fail(LS_ESYSTEM,
                           "%s; if that is node 0 of this job, give this command its "
                           "own --node-rank (-i)",
                           why);
        return spec->nodes->may_join && is_taken ? connect_to_head(l) : LS_ESYSTEM;
    }
    if (spec->nodes != NULL && spec->hosts == NULL) {
        warn_of_address(l);
        seek_other_head(l);
    }
    LS_TRY(spec->n_ranks > 0 ? head_connect_own(l->head, &fd)
                             : head_connect_observer(l->head, &fd));
    text_format(l->head_text, sizeof(l->head_text), "this node");
    return open_link(l, fd, &clear);
}

ls_status agent_link_open(agent_link *l)
{
    const agent_nodes *nodes = l->ctx->spec->nodes;

    if (nodes == NULL || nodes->is_head)
        return agent_link_open_head(l);
    LS_TRY(create_standby(l));
    return connect_to_head(l);
}

void agent_link_close(agent_link *l)
{
    poller_timer_cancel(&l->beat);
    poller_timer_cancel(&l->move_limit);
    poller_timer_cancel(&l->wait_line);
    dial_close(l->dial);
    l->dial = NULL;
    stream_mux_close(&l->streams);
    agent_relay_close(&l->relay);
    frame_link_close(&l->link);
    l->is_linked = false;
    head_destroy(l->head);
    l->head = NULL;
    standby_destroy(l->standby);
    l->standby = NULL;
    net_key_wipe(&l->key);
}
