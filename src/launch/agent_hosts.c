/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts.c - the other hosts of a job that is started from here: which ranks each gets, what its agent is told, and what its ranks
 * print, which goes the way of our own ranks' lines.
 */
#include "launch/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/orders.h"
#include "launch/starter.h"
#include "net/interface.h"

#include <string.h>

enum {
    PATIENCE_MS = 900, /* until a line says whom we wait for; then again */
    PATIENCE_AGAIN_MS = 10000,
    OTHERS_MS = 12000, /* for the others, once a host could not be started */
    RESTART_MS = 200,
    FINISH_MS =
        5000, /* without a byte, from the job's end until a host's agent is not waited for any more */
    NAMES_SHOWN = 8
};

typedef enum host_phase { NOT_THERE, IS_THERE, HAS_ORDERS, HAS_FAILED } host_phase;

typedef struct far_host {
    host_phase phase;
    int cores;
    int node; /* -1: it has no ranks */
    int rank_base;
    char failure[LS_ERROR_BYTES]; /* its agent's own words */
    poll_timer again;             /* until it is started once more */
    int n_again;
    struct agent_hosts *owner;
} far_host;

struct agent_hosts {
    agent *agent;
    const agent_hosts_spec *spec;
    starter *starter;
    far_host *list; /* as in spec->list */
    bool *skip;
    bool is_placed;
    int n_failed;
    int world_size;
    output_stream *streams; /* two a rank of the job; those of our own ranks are not used */
    poll_timer patience;
    poll_timer patience_for_others;
};

static const char *host_name(const agent_hosts *h, int i)
{
    return h->spec->list->hosts[i].name;
}

/* --- orders --- */

/* All that may be ours seen from elsewhere; the agent there tries them together. */
static ls_status list_heads(const agent *a, orders *o)
{
    net_interface found[DIAL_ADDRESSES_MAX];
    const int port = net_address_port(&a->listens_at);
    int n = 0;

    if (net_address_is_any(&a->listens_at))
        LS_TRY(net_interfaces(a->spec->net, found, DIAL_ADDRESSES_MAX, &n));
    for (int i = 0; i < n; i++)
        o->heads[i] = found[i].address;
    if (n == 0 && net_address_is_any(&a->listens_at))
        LS_TRY(net_address_parse("127.0.0.1:0", 0, &o->heads[n++]));
    else if (n == 0)
        o->heads[n++] = a->listens_at;
    for (int i = 0; i < n; i++)
        net_address_set_port(&o->heads[i], port);
    o->n_heads = n;
    return LS_OK;
}

/* Under Slurm the environment has come along, and a node's own devices must stay its own. */
static ls_status fill_orders(const agent_hosts *h, int i, orders *o)
{
    const agent *a = h->agent;

    agent_fill_orders(a, o);
    o->key = a->base;
    o->node = h->list[i].node;
    o->n_ranks = h->spec->list->hosts[i].slots;
    o->host = host_name(h, i);
    o->folder = h->spec->folder;
    o->security = a->own_nodes.security;
    LS_TRY(list_heads(a, o));
    return agent_list_env(h->spec->exports, h->spec->n_exports, h->spec->start.way == START_SSH, o);
}

static ls_status send_orders(const agent_hosts *h, int i)
{
    orders o = {0};
    wire_writer w = {0};
    ls_status st;

    st = fill_orders(h, i, &o);
    if (st == LS_OK) {
        orders_write(&w, &o);
        st = wire_writer_status(&w);
    }
    if (st == LS_OK && w.bytes > ORDERS_BODY_MAX)
        st = ls_fail(LS_EINVAL, "arguments and variables of %zu bytes; %zu are the most", w.bytes,
                     ORDERS_BODY_MAX);
    if (st == LS_OK)
        st = starter_order(h->starter, i, FAR_ORDERS, w.data, w.bytes);
    if (w.data != NULL)
        explicit_bzero(w.data, w.bytes);
    wire_writer_free(&w);
    net_key_wipe(&o.key);
    ls_free(o.env);
    return st;
}

static void order(agent_hosts *h, int i)
{
    far_host *host = &h->list[i];

    if (host->phase != IS_THERE)
        return;
    if (host->node < 0) { /* the ranks were placed before it */
        starter_dismiss(h->starter, i);
        return;
    }
    host->phase = HAS_ORDERS;
    if (send_orders(h, i) != LS_OK)
        agent_give_up(h->agent, LS_ESYSTEM);
}

/* --- places --- */

static int count_nodes(const agent_hosts *h)
{
    int n = 0;

    for (int i = 0; i < h->spec->list->n; i++)
        n += h->spec->list->hosts[i].slots > 0;
    return n;
}

/* What each host of the job is: its number, its ranks. The same for this machine, if it is one of them. */
static void number_hosts(agent_hosts *h)
{
    int node = 0;

    h->world_size = 0;
    for (int i = 0; i < h->spec->list->n; i++) {
        const int slots = h->spec->list->hosts[i].slots;

        h->list[i].node = slots > 0 ? node++ : -1;
        h->list[i].rank_base = h->world_size;
        h->world_size += slots;
    }
}

static void settle_own(agent_hosts *h)
{
    agent *a = h->agent;
    const int own = h->spec->own;

    a->own_spec.n_ranks = own >= 0 ? h->spec->list->hosts[own].slots : 0;
    a->own_spec.rendezvous.by_id = true;
    a->own_spec.rendezvous.min_nodes = a->own_spec.rendezvous.max_nodes = count_nodes(h);
    a->own_nodes.id = own >= 0 ? h->list[own].node : -1;
    if (own >= 0)
        a->own_nodes.name = host_name(h, own);
}

static ls_status open_streams(agent_hosts *h)
{
    agent *a = h->agent;

    h->streams = ls_calloc((size_t)h->world_size * 2, sizeof(*h->streams));
    if (h->streams == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the lines of %d ranks", h->world_size);
    LS_TRY(agent_open_fold(a));
    for (int i = 0; i < 2 * h->world_size; i++) {
        output_sink *sink = &a->sinks[i % 2];

        h->streams[i] = (output_stream){.sink = sink,
                                        .rank = i / 2,
                                        .n_ranks = h->world_size,
                                        .prefix = a->spec->prefix && h->world_size > 1,
                                        .fold = sink->terminal ? a->fold : NULL};
    }
    return LS_OK;
}

/* Once it is known how many ranks each host takes: the head may say who the nodes are. */
static ls_status place(agent_hosts *h)
{
    LS_TRY(hostlist_place(h->spec->list, h->spec->n_ranks));
    number_hosts(h);
    h->is_placed = true;
    settle_own(h);
    LS_TRY(open_streams(h));
    LS_TRY(agent_open_head(h->agent));
    for (int i = 0; i < h->spec->list->n; i++)
        order(h, i);
    return LS_OK;
}

static bool all_slots_are_known(const agent_hosts *h)
{
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->spec->list->hosts[i].slots == 0)
            return false;
    return true;
}

static void give_up_start(void *arg);

static void on_greeted(void *arg, int i, int cores)
{
    agent_hosts *h = arg;
    hostlist_host *host = &h->spec->list->hosts[i];

    h->list[i].phase = IS_THERE;
    if (h->n_failed > 0) {
        if (starter_is_settled(h->starter))
            give_up_start(h);
        return;
    }
    if (h->is_placed) {
        order(h, i);
        return;
    }
    if (host->slots == 0)
        host->slots = cores < RDZV_LOCAL_MAX ? cores : RDZV_LOCAL_MAX;
    if (all_slots_are_known(h) && place(h) != LS_OK)
        agent_give_up(h->agent, LS_EINVAL);
}

/* --- what agents say --- */

static output_stream *stream_of(const agent_hosts *h, int i, int rank, int which)
{
    const far_host *host = &h->list[i];

    if (rank < host->rank_base || rank >= host->rank_base + h->spec->list->hosts[i].slots)
        return NULL;
    return &h->streams[2 * rank + which];
}

static ls_status take_output(agent_hosts *h, int i, const frame *f)
{
    output_stream *s;
    const char *bytes;
    size_t n;
    int rank;
    int which;

    LS_TRY(orders_read_output(f, &rank, &which, &bytes, &n));
    s = stream_of(h, i, rank, which);
    if (s == NULL)
        return ls_fail(LS_EPROTO, "lines of rank %d, which it has not", rank);
    if (n > 0)
        output_feed(s, bytes, n);
    else
        output_end(s);
    agent_mind_output(h->agent);
    return LS_OK;
}

static ls_status take_text(agent_hosts *h, int i, const frame *f)
{
    text_buf text = {0};
    const ls_status st = node_read_text(f, &text);

    if (st == LS_OK && f->type == FAR_FAILED)
        text_format(h->list[i].failure, sizeof(h->list[i].failure), "%s", text_str(&text));
    else if (st == LS_OK)
        agent_note(h->agent, "host %s: %s", host_name(h, i), text_str(&text));
    text_free(&text);
    return st;
}

static ls_status on_message(void *arg, int i, const frame *f)
{
    switch (f->type) {
    case FAR_OUTPUT:
        return take_output(arg, i, f);
    case FAR_NOTE:
    case FAR_FAILED:
        return take_text(arg, i, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

static void on_line(void *arg, int i, const char *text)
{
    const agent_hosts *h = arg;

    agent_note(h->agent, "host %s: %s", host_name(h, i), text);
}

/* --- hosts that are not there --- */

/* "b, c and 3 more": those in this phase, or also in the next. */
static void list_names(const agent_hosts *h, host_phase first, host_phase last, text_buf *out)
{
    int n = 0;

    for (int i = 0; i < h->spec->list->n; i++) {
        if (h->skip[i] || h->list[i].phase < first || h->list[i].phase > last)
            continue;
        if (n < NAMES_SHOWN)
            text_append(out, "%s%s", n == 0 ? "" : ", ", host_name(h, i));
        n++;
    }
    if (n > NAMES_SHOWN)
        text_append(out, " and %d more", n - NAMES_SHOWN);
}

static void give_up_start(void *arg)
{
    agent_hosts *h = arg;
    text_buf names = {0};
    int n_hosts = 0;

    for (int i = 0; i < h->spec->list->n; i++)
        n_hosts += !h->skip[i];
    list_names(h, HAS_FAILED, HAS_FAILED, &names);
    (void)ls_fail(LS_EPEER, "%d of %d other hosts could not be started: %s", h->n_failed, n_hosts,
                  text_str(&names));
    text_free(&names);
    agent_give_up(h->agent, LS_EPEER);
}

/* Each is told by its own line; when nothing more is to come, the job has failed. */
static void start_failed(agent_hosts *h, int i, const char *why)
{
    agent *a = h->agent;

    h->list[i].phase = HAS_FAILED;
    h->n_failed++;
    agent_note(a, "host %s: %s", host_name(h, i), why);
    if (starter_is_settled(h->starter))
        give_up_start(h);
    else if (!h->patience_for_others.is_set)
        poller_timer_set(a->poller, &h->patience_for_others, ls_now_ms() + OTHERS_MS, give_up_start,
                         h);
}

static void start_again(void *arg)
{
    const far_host *host = arg;
    const agent_hosts *h = host->owner;

    if (!h->agent->is_over)
        starter_restart(h->starter, (int)(host - h->list));
}

/* An agent that had its orders is gone before the job was over. */
static void lost(agent_hosts *h, int i, const char *why)
{
    agent *a = h->agent;
    far_host *host = &h->list[i];
    const bool was_node = head_lose_node(a->head, host->node, why);

    host->phase = NOT_THERE;
    host->failure[0] = 0;
    if (!was_node && !head_waits(a->head)) /* its agent's end was heard first; this may be why */
        agent_note(a, "host %s: %s", host_name(h, i), why);
    if (host->n_again < a->spec->rendezvous.max_restarts) {
        host->n_again++;
        poller_timer_set(a->poller, &host->again, ls_now_ms() + RESTART_MS, start_again, host);
    } else if (!was_node && head_waits(a->head)) {
        (void)ls_fail(LS_EPEER, "host %s: %s", host_name(h, i), why);
        agent_give_up(a, LS_EPEER);
    }
}

static void on_ended(void *arg, int i, bool was_ordered, const char *why)
{
    agent_hosts *h = arg;
    const far_host *host = &h->list[i];
    char said[LS_ERROR_BYTES];

    for (int k = 0; was_ordered && k < 2 * h->spec->list->hosts[i].slots; k++)
        output_end(&h->streams[2 * host->rank_base + k]);
    if (h->agent->is_over || host->node < 0)
        return;
    if (was_ordered && host->failure[0] != 0)
        lost(h, i, text_format(said, sizeof(said), "%s", host->failure));
    else if (was_ordered)
        lost(h, i, why);
    else
        start_failed(h, i, why);
}

/* --- waiting --- */

static void say_whom_we_wait_for(void *arg)
{
    agent_hosts *h = arg;
    agent *a = h->agent;
    text_buf names = {0};
    int n_there = 0;
    int n_hosts = 0;

    for (int i = 0; i < h->spec->list->n; i++) {
        n_hosts += !h->skip[i];
        n_there += !h->skip[i] && h->list[i].phase != NOT_THERE;
    }
    if (starter_is_settled(h->starter))
        return;
    list_names(h, NOT_THERE, NOT_THERE, &names);
    agent_note(a, "%d of %d other hosts are there; waiting for %s", n_there, n_hosts,
               text_str(&names));
    text_free(&names);
    poller_timer_set(a->poller, &h->patience, ls_now_ms() + PATIENCE_AGAIN_MS, say_whom_we_wait_for,
                     h);
}

/* --- for the agent --- */

bool agent_hosts_show(const agent_hosts *h, int *n_ranks, int *n_shown)
{
    if (h == NULL)
        return false;
    *n_ranks = h->world_size;
    *n_shown = 0;
    for (int i = 0; i < h->spec->list->n; i++)
        for (int local = 0; local < h->spec->list->hosts[i].slots; local++)
            *n_shown += agent_shows_any(h->agent->spec, local, h->list[i].rank_base + local);
    return true;
}

void agent_hosts_show_deferred(const agent_hosts *h)
{
    for (int i = 0; h != NULL && i < 2 * h->world_size; i++)
        output_show_deferred(&h->streams[i]);
}

void agent_hosts_pause(const agent_hosts *h, bool pauses)
{
    if (h != NULL && h->starter != NULL)
        starter_pause(h->starter, pauses);
}

void agent_hosts_reap(const agent_hosts *h)
{
    if (h != NULL && h->starter != NULL)
        starter_reap(h->starter);
}

/* What they print last is printed, however slow its reader is. */
ls_status agent_finish_hosts(agent *a)
{
    const agent_hosts *h = a->hosts;
    int64_t since_ms = ls_now_ms();

    if (h == NULL)
        return LS_OK;
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->list[i].phase != HAS_ORDERS)
            starter_dismiss(h->starter, i);
    while (starter_count(h->starter) > 0) {
        if (!agent_output_is_taken(a))
            since_ms = ls_now_ms();
        if (starter_heard_ms(h->starter) > since_ms)
            since_ms = starter_heard_ms(h->starter);
        if (ls_now_ms() - since_ms > FINISH_MS)
            break;
        LS_TRY(poller_run_once(a->poller, 200));
    }
    if (a->fold != NULL)
        output_fold_flush_all(a->fold);
    agent_mind_output(a);
    while (!agent_output_is_taken(a))
        LS_TRY(poller_run_once(a->poller, -1));
    return LS_OK;
}

static ls_status allocate(agent *a, agent_hosts **out)
{
    const agent_hosts_spec *spec = a->spec->hosts;
    const size_t n = (size_t)spec->list->n;
    agent_hosts *h = ls_calloc(1, sizeof(*h));

    *out = h;
    if (h == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
    h->agent = a;
    h->spec = spec;
    h->list = ls_calloc(n, sizeof(*h->list));
    h->skip = ls_calloc(n, sizeof(*h->skip));
    if (h->list == NULL || h->skip == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
    for (size_t i = 0; i < n; i++)
        h->list[i].owner = h;
    return LS_OK;
}

ls_status agent_open_hosts(agent *a)
{
    const starter_events events = {
        .greeted = on_greeted, .message = on_message, .line = on_line, .ended = on_ended};
    agent_hosts *h;
    starter_events mine = events;

    LS_TRY(allocate(a, &a->hosts));
    h = a->hosts;
    mine.self = h;
    if (all_slots_are_known(h))
        LS_TRY(place(h));
    for (int i = 0; i < h->spec->list->n; i++)
        h->skip[i] = i == h->spec->own || (h->is_placed && h->list[i].node < 0);
    poller_timer_set(a->poller, &h->patience, ls_now_ms() + PATIENCE_MS, say_whom_we_wait_for, h);
    return starter_create(a->poller, &h->spec->start, h->spec->list, h->skip, &a->old_mask, &mine,
                          &h->starter);
}

void agent_close_hosts(agent *a)
{
    agent_hosts *h = a->hosts;

    if (h == NULL)
        return;
    a->hosts = NULL;
    starter_destroy(h->starter);
    poller_timer_cancel(&h->patience);
    poller_timer_cancel(&h->patience_for_others);
    for (int i = 0; h->list != NULL && i < h->spec->list->n; i++)
        poller_timer_cancel(&h->list[i].again);
    for (int i = 0; h->streams != NULL && i < 2 * h->world_size; i++)
        output_free(&h->streams[i]);
    ls_free(h->streams);
    ls_free(h->list);
    ls_free(h->skip);
    ls_free(h);
}
