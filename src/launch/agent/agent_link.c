/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_link.c - the agent's connection to the head of its job: a socket pair where the head is in this process, else TCP. Orders
 * come in, reports go out.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process_id.h"
#include "net/reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 900, PATIENCE_AGAIN_MS = 10000, JOIN_MS = 600000 };

/* --- sending --- */

void agent_send(agent *a, node_message type, const wire_writer *body)
{
    if (!a->is_linked)
        return;
    if (body == NULL)
        frame_link_send(&a->link, type, NULL, 0);
    else if (wire_writer_status(body) == LS_OK)
        frame_link_send(&a->link, type, body->data, body->bytes);
}

void agent_send_number(agent *a, node_message type, uint32_t number)
{
    wire_writer w = {0};

    wire_write_u32(&w, number);
    agent_send(a, type, &w);
    wire_writer_free(&w);
}

void agent_tell_failure(agent *a, const agent_rank *r)
{
    node_failure failure = {
        .generation = a->place.place.generation, .local_rank = -1, .exit_code = 1};
    wire_writer w = {0};

    if (r == NULL) {
        text_format(failure.text, sizeof(failure.text), "%s", ls_last_error());
    } else {
        failure.local_rank = (int)(r - a->ranks);
        failure.exit_code = agent_exit_code(r);
        failure.crashed = agent_has_crashed(r);
        agent_describe_end(a, r, failure.text, sizeof(failure.text));
    }
    node_write_failure(&w, &failure);
    agent_send(a, NODE_FAILED, &w);
    wire_writer_free(&w);
}

void agent_tell_finished(agent *a)
{
    node_end end = {.generation = a->place.place.generation,
                    .stopped = a->phase != AGENT_RUNNING,
                    .local_rank = -1,
                    .text = "",
                    .details = ""};
    text_buf details = {0};
    char text[LS_ERROR_BYTES + 64] = "";
    wire_writer w = {0};

    if (a->root >= 0) {
        agent_make_report(a, &end, &details);
        agent_describe_end(a, &a->ranks[end.local_rank], text, sizeof(text));
        end.text = text;
        end.details = text_str(&details);
    }
    agent_count_ends(a, &end);
    node_write_end(&w, &end);
    agent_send(a, NODE_FINISHED, &w);
    a->finished = end.generation;
    text_free(&details);
    wire_writer_free(&w);
}

static void say_hello(agent *a)
{
    const rdzv_options *o = &a->spec->rendezvous;
    char host[RDZV_HOST_BYTES] = "?";
    rdzv_hello hello = {.uid = a->uid,
                        .id = a->spec->nodes != NULL ? a->spec->nodes->id : -1,
                        .n_local = a->spec->n_ranks,
                        .min_nodes = o->min_nodes,
                        .max_nodes = o->max_nodes,
                        .per_node = o->per_node,
                        .n_per_node = o->per_node != NULL ? o->max_nodes : 0,
                        .run_id = o->run_id,
                        .version = ls_version(),
                        .host = host};
    wire_writer w = {0};

    if (a->spec->nodes != NULL && a->spec->nodes->name != NULL)
        text_format(host, sizeof(host), "%s", a->spec->nodes->name);
    else
        (void)gethostname(host, sizeof(host) - 1);
    node_write_hello(&w, &hello);
    agent_send(a, NODE_HELLO, &w);
    wire_writer_free(&w);
}

/* --- heartbeats, where the head is another process --- */

void agent_leave_job(agent *a)
{
    a->is_linked = false;
    stream_mux_close(&a->streams);
    frame_link_close(&a->link);
    poller_timer_cancel(&a->beat);
    agent_kill_ranks(a);
}

static void head_is_lost(agent *a, const char *why)
{
    if (a->is_over)
        return;
    agent_leave_job(a);
    (void)ls_fail(LS_EPEER, "the head of the job at %s is lost: %s", a->head_text, why);
    agent_give_up(a, LS_EPEER);
}

static void send_states(agent *a)
{
    wire_writer w = {0};

    if (a->phase == AGENT_IDLE)
        return;
    wire_write_u32(&w, a->place.place.generation);
    for (int i = 0; i < a->spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];

        wire_write_u8(&w, (uint8_t)(r->ended ? 'E' : process_state(r->pid)));
    }
    agent_send(a, NODE_STATES, &w);
    wire_writer_free(&w);
}

static void on_beat(void *arg)
{
    agent *a = arg;
    const int64_t now_ms = ls_now_ms();
    const bool slept =
        now_ms - a->beat.due_ms > NODE_BEAT_MS; /* what it has sent is not read yet */

    if (!slept && !a->is_paused && now_ms - a->link.received_ms > NODE_SILENCE_MS) {
        head_is_lost(a, "no heartbeat for 5 s");
        return;
    }
    send_states(a);
    agent_send(a, NODE_BEAT, NULL);
    poller_timer_set(a->poller, &a->beat, now_ms + NODE_BEAT_MS, on_beat, a);
}

/* --- orders --- */

static ls_status take_welcome(agent *a, const frame *f)
{
    node_welcome welcome;
    ls_status st;

    LS_TRY(node_read_welcome(f, &welcome));
    if (welcome.place.n_local != a->spec->n_ranks)
        return ls_fail(LS_EPROTO, "a welcome with %d rank%s for a node that has %d",
                       welcome.place.n_local, text_plural(welcome.place.n_local), a->spec->n_ranks);
    if (a->place.job[0] != 0 && !text_equal(a->place.job, welcome.job))
        return ls_fail(LS_EPROTO, "a welcome to another job");
    if (a->phase != AGENT_IDLE)
        return ls_fail(LS_EPROTO, "a welcome while ranks of generation %u are here",
                       a->place.place.generation);
    a->place = welcome;
    a->pick.n = 0;
    st = agent_open_job(a);
    if (st == LS_OK && welcome.place.n_nodes > 1)
        st = agent_offer_addresses(a);
    else if (st == LS_OK)
        agent_tell_ready(a);
    if (st != LS_OK)
        agent_tell_failure(a, NULL);
    return LS_OK;
}

static ls_status take_start(agent *a, const frame *f)
{
    node_master master;

    LS_TRY(node_read_master(f, &master));
    if (master.generation != a->place.place.generation || a->phase != AGENT_IDLE)
        return LS_OK;
    a->master_port = master.port;
    if (agent_start_ranks(a) == LS_OK)
        return LS_OK;
    if (a->head != NULL && a->spec->nodes == NULL)
        agent_give_up(a, LS_ESYSTEM); /* nobody else needs to hear it */
    agent_tell_failure(a, NULL);
    agent_close_ranks(a);
    return LS_OK;
}

/* Ranks that are not there any more, or were never started, have finished. */
static bool has_ranks(agent *a)
{
    if (a->phase != AGENT_IDLE)
        return true;
    if (a->finished != a->place.place.generation)
        agent_tell_finished(a);
    return false;
}

static ls_status take_end_ranks(agent *a, const frame *f)
{
    node_stop stop;

    LS_TRY(node_read_stop(f, &stop));
    if (a->spec->n_ranks == 0)
        agent_note_stop(a, &stop);
    else if (has_ranks(a))
        agent_stop_ranks(a, &stop);
    return LS_OK;
}

static ls_status take_over(agent *a, const frame *f)
{
    node_over over;

    LS_TRY(node_read_over(f, &over, &a->result->report));
    a->result->exit_code = over.exit_code;
    a->result->failed =
        over.failed || (over.exit_code != 0 && a->stop_signal == 0); /* who has not asked is told */
    a->is_over = true;
    agent_kill_ranks(a); /* if the head has given some of ours up */
    return LS_OK;
}

static ls_status take_text(agent *a, const frame *f)
{
    text_buf text = {0};
    const ls_status st = node_read_text(f, &text);

    if (st == LS_OK && f->type == NODE_REJECT) {
        (void)ls_fail(LS_EMISMATCH, "%s", text_str(&text));
        agent_give_up(a, LS_EMISMATCH);
        agent_kill_ranks(a);
    } else if (st == LS_OK && (a->spec->capture || a->spec->nodes != NULL) &&
               a->spec->remote == NULL) {
        agent_note(a, "%s", text_str(&text));
    } else if (st == LS_OK && a->spec->remote == NULL) { /* else the starter has said it */
        ls_log(LS_LOG_WARN, "launch", "%s", text_str(&text));
    }
    text_free(&text);
    return st;
}

static void take_pause(agent *a, bool pauses)
{
    a->is_paused = pauses;
    a->link.received_ms = ls_now_ms();
    agent_signal_ranks(a, pauses ? SIGSTOP : SIGCONT);
}

static ls_status tell_clock(agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const int64_t asked_ns = wire_read_i64(&r);
    wire_writer w = {0};

    (void)wire_read_i64(&r);
    LS_TRY(wire_reader_end(&r, "a clock"));
    wire_write_i64(&w, asked_ns);
    wire_write_i64(&w, ls_now_ns());
    agent_send(a, NODE_CLOCK, &w);
    wire_writer_free(&w);
    return LS_OK;
}

static void keep_ring(void *self, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int fd)
{
    const agent *a = self;

    a->spec->keep_ring(a->spec->ring_keeper, generation, rank, host, behind_ns, fd);
}

static ls_status take_abort(agent *a, const frame *f)
{
    node_failure aborted;

    LS_TRY(node_read_failure(f, &aborted));
    if (has_ranks(a) && aborted.generation == a->place.place.generation &&
        aborted.local_rank < a->spec->n_ranks)
        agent_note_abort(a, aborted.local_rank);
    return LS_OK;
}

static ls_status on_message(void *arg, const frame *f)
{
    agent *a = arg;

    switch (f->type) {
    case NODE_WELCOME:
        return take_welcome(a, f);
    case NODE_PROBE:
        return agent_try_networks(a, f);
    case NODE_NETWORK:
        return agent_take_network(a, f);
    case NODE_START:
        return take_start(a, f);
    case NODE_END_RANKS:
        return take_end_ranks(a, f);
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
        take_pause(a, f->type == NODE_PAUSE);
        return LS_OK;
    case NODE_MPI_KEYS:
        return agent_learn_keys(a, f);
    case NODE_MPI_BARRIER:
        return agent_pass_barrier(a, f);
    case NODE_EXITED_EARLY:
        return agent_take_early_exit(a, f);
    case NODE_STREAM:
        return stream_mux_receive(&a->streams, f);
    case NODE_OWNER_QUERY:
        return agent_tell_owner(a, f);
    case NODE_OWNER_ANSWER:
        return agent_take_owned(a, f);
    case NODE_CLOCK:
        return tell_clock(a, f);
    case NODE_BEAT:
        return LS_OK;
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

static void on_ended(void *arg, const char *why)
{
    head_is_lost(arg, why);
}

static void on_drained(void *arg)
{
    agent *a = arg;

    stream_mux_resume(&a->streams);
}

/* --- connecting --- */

static ls_status open_link(agent *a, int fd, const seal_pair *seals)
{
    a->link.self = a;
    a->link.message = on_message;
    a->link.ended = on_ended;
    a->link.drained = on_drained;
    LS_TRY(frame_link_open(&a->link, a->poller, fd, a->head_text, NODE_BODY_MAX, NODE_QUEUE_MAX));
    frame_link_seal(&a->link, seals);
    a->is_linked = true;
    stream_mux_init(&a->streams, a->poller, &a->link, NODE_STREAM);
    if (a->head == NULL)
        poller_timer_set(a->poller, &a->beat, ls_now_ms() + NODE_BEAT_MS, on_beat, a);
    if (a->spec->n_ranks > 0)
        say_hello(a);
    return LS_OK;
}

static const char *name_of_head(const agent *a)
{
    return a->spec->remote != NULL ? "the starting machine" : "node 0";
}

static void on_dialled(void *arg, int fd, const net_address *at, ls_status st, const char *why)
{
    agent *a = arg;
    ls_status opened;

    poller_timer_cancel(&a->patience);
    if (fd < 0) {
        (void)ls_fail(st, "%s at %s: %s%s", name_of_head(a), a->spec->nodes->head, why,
                      a->not_head);
        agent_give_up(a, st);
        return;
    }
    a->head_at = *at;
    net_address_text(a->head_text, sizeof(a->head_text), at);
    opened = open_link(a, fd, dial_seals(a->dial));
    if (opened != LS_OK)
        agent_give_up(a, opened);
}

static void say_what_we_wait_for(void *arg)
{
    agent *a = arg;
    const char *trouble = dial_last_error(a->dial);

    agent_note(a, "waiting for %s at %s%s%s%s", name_of_head(a), a->spec->nodes->head,
               trouble[0] != 0 ? ": " : "", trouble, a->not_head);
    poller_timer_set(a->poller, &a->patience, ls_now_ms() + PATIENCE_AGAIN_MS, say_what_we_wait_for,
                     a);
}

static ls_status call_head(agent *a)
{
    const int64_t join_ms = a->spec->rendezvous.join_ms;
    const dial_options options = {
        .to = a->spec->nodes->n_heads > 0 ? NULL : a->spec->nodes->head,
        .addresses = a->spec->nodes->heads,
        .n_addresses = a->spec->nodes->n_heads,
        .default_port = NET_PORT_REQUIRED,
        .key = a->spec->nodes->key != NULL ? &a->base : NULL,
        .claim = {.purpose = NET_PURPOSE_NODE,
                  .from = HANDSHAKE_ANY_RANK,
                  .to = HANDSHAKE_ANY_RANK,
                  .security = a->spec->nodes->security},
        .deadline_ms = ls_deadline_ms(join_ms > 0 ? join_ms : JOIN_MS),
        .self = a,
        .done = on_dialled,
    };

    poller_timer_set(a->poller, &a->patience, ls_now_ms() + PATIENCE_MS, say_what_we_wait_for, a);
    return dial_open(a->poller, &options, &a->dial);
}

/*
 * How another machine takes part; where none can, because the head is at a loopback address, this
 * machine.
 */
static void write_join_hint(agent *a)
{
    const agent_nodes *nodes = a->spec->nodes;
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
    text_format(a->join_hint, sizeof(a->join_hint), "on %s machine: lockstep join %s%s%s",
                reach == NET_REACH_LOOPBACK ? "this" : "another",
                place[0] != 0 ? place + strlen("tcp://") : nodes->head,
                a->spec->rendezvous.by_id ? " --node-rank I" : "",
                nodes->key == NULL ? " --insecure" : "");
}

static void warn_of_address(agent *a)
{
    char warning[2 * NET_REACH_TEXT_MAX];

    net_reach_warning(warning, sizeof(warning), "node 0", a->spec->nodes->head);
    if (warning[0] != 0)
        agent_note(a, "warning: %s", warning);
}

ls_status agent_open_head(agent *a)
{
    const agent_spec *spec = a->spec;
    head_options options = {.rendezvous = spec->rendezvous,
                            .key = &a->base,
                            .insecure = spec->nodes != NULL && spec->nodes->key == NULL,
                            .security = spec->nodes != NULL ? spec->nodes->security : NET_AUTH,
                            .hosts_store = spec->hosts_store,
                            .net = spec->net,
                            .ports = spec->ports,
                            .store_port = spec->nodes == NULL ? spec->master_port : 0,
                            .quiet_roster = spec->nodes == NULL || spec->hosts != NULL,
                            .self = a,
                            .write_request = agent_write_request,
                            .describe_rank = agent_describe_rank,
                            .note_abort = agent_note_abort,
                            .keep_ring = spec->keep_ring != NULL ? keep_ring : NULL,
                            .append_last_lines = agent_hosts_append_last,
                            .node_silent = spec->hosts != NULL ? agent_end_host : NULL};
    char host[RDZV_HOST_BYTES] = "?";
    const seal_pair clear = {0}; /* a socket pair's */
    int fd;

    (void)gethostname(host, sizeof(host) - 1);
    options.rendezvous.host = host;
    options.rendezvous.version = ls_version();
    options.rendezvous.grace_ms = spec->grace_ms;
    if (options.rendezvous.max_nodes == 0)
        options.rendezvous.min_nodes = options.rendezvous.max_nodes = 1;
    if (spec->nodes != NULL && spec->hosts == NULL && spec->argv != NULL) {
        write_join_hint(a);
        options.hint = a->join_hint;
    }
    LS_TRY(head_create(a->poller, &options, &a->head));
    if (spec->nodes != NULL &&
        head_listen(a->head, &spec->nodes->listen, &a->listens_at) != LS_OK) {
        const bool is_taken = errno == EADDRINUSE;

        text_format(a->not_head, sizeof(a->not_head), "; this launcher is not the head: %s",
                    ls_last_error());
        head_destroy(a->head);
        a->head = NULL;
        return spec->nodes->may_join && is_taken ? call_head(a) : LS_ESYSTEM;
    }
    if (spec->nodes != NULL && spec->hosts == NULL)
        warn_of_address(a);
    LS_TRY(spec->n_ranks > 0 ? head_connect_own(a->head, &fd)
                             : head_connect_observer(a->head, &fd));
    text_format(a->head_text, sizeof(a->head_text), "this node");
    return open_link(a, fd, &clear);
}

ls_status agent_open_link(agent *a)
{
    const agent_nodes *nodes = a->spec->nodes;

    if (nodes == NULL)
        LS_TRY(net_key_random(&a->base));
    else if (nodes->key != NULL)
        a->base = *nodes->key;
    if (a->spec->hosts != NULL)
        return agent_open_hosts(a);
    return nodes == NULL || nodes->is_head ? agent_open_head(a) : call_head(a);
}

void agent_close_link(agent *a)
{
    poller_timer_cancel(&a->beat);
    poller_timer_cancel(&a->patience);
    dial_close(a->dial);
    a->dial = NULL;
    net_probe_close(a->probe);
    a->probe = NULL;
    stream_mux_close(&a->streams);
    frame_link_close(&a->link);
    a->is_linked = false;
    head_destroy(a->head);
    a->head = NULL;
    net_key_wipe(&a->base);
}
