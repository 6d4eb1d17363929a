/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts.c - starts the agents on other hosts, restarts those that are lost, and fails the job
 * when a host that it needs does not start. Equal errors of many hosts become one line. Called by
 * the agent, and by the starter for each event of a host.
 */
#include "launch/agent/streams/agent_hosts_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/hosts/hostlist.h"

enum {
    WAIT_LINE_MS = 900,
    WAIT_LINE_AGAIN_MS = 10000,
    OTHERS_MS = 12000, /* for the other hosts, once a host could not be started */
    LAUNCHED_MS = 300, /* for an agent to report that it cannot carry out its launch request */
    RESTART_MS = 200,
    START_AGAIN_MS = 10000, /* a host that was lost and could not be started */
    NOTES_MS = 100,         /* for the same note of other hosts */
    NOTES_MOST = 4096,
    NAMES_SHOWN = 400 /* bytes of a list of names in one line */
};

static void set_timer(const agent_hosts *h, poll_timer *t, int64_t after_ms, void (*fn)(void *arg),
                      void *arg)
{
    poller_timer_set(h->ctx->poller, t, ls_now_ms() + after_ms, fn, arg);
}

static void give_up(const agent_hosts *h, ls_status st)
{
    h->ctx->give_up(h->ctx->agent, st);
}

/* --- lines about hosts --- */

/* "b[1-3],c": the hosts in this phase; returns their number. */
static int list_names(const agent_hosts *h, host_phase phase, text_buf *out)
{
    const char **names = ls_calloc((size_t)h->spec->list->n, sizeof(*names));
    size_t n = 0;

    for (int i = 0; names != NULL && i < h->spec->list->n; i++)
        if (!h->skip[i] && h->list[i].phase == phase)
            names[n++] = hosts_name(h, i);
    hostlist_fold(names, n, out);
    ls_free(names);
    return (int)n;
}

static int count_others(const agent_hosts *h)
{
    int n = 0;

    for (int i = 0; i < h->spec->list->n; i++)
        n += !h->skip[i];
    return n;
}

static void print_line(void *arg, const char *text)
{
    agent_note(arg, "%s", text);
}

static void print_report(const agent_hosts *h, host_report *report)
{
    host_report_write(report, print_line, (void *)(uintptr_t)h->ctx);
    host_report_free(report);
}

static void flush_notes(void *arg)
{
    agent_hosts *h = arg;

    poller_timer_cancel(&h->notes_timer);
    print_report(h, &h->notes);
}

void hosts_flush_notes(agent_hosts *h)
{
    flush_notes(h);
    print_report(h, &h->failures);
}

/* Adds a line to a report, which prints equal lines of several hosts once. */
static void add_line(const agent_hosts *h, host_report *report, int i, const char *text)
{
    if (host_report_add(report, hosts_name(h, i), text) != LS_OK)
        agent_note(h->ctx, "host %s: %s", hosts_name(h, i), text);
}

void hosts_note(agent_hosts *h, int i, const char *text)
{
    add_line(h, &h->notes, i, text);
    if (h->notes.n >= NOTES_MOST)
        flush_notes(h);
    else if (h->notes.n > 0 && !h->notes_timer.is_set)
        set_timer(h, &h->notes_timer, NOTES_MS, flush_notes, h);
}

static void note_wait(void *arg)
{
    agent_hosts *h = arg;
    text_buf names = {0};
    char failed[64] = "";
    int n_missing;

    if (starter_is_settled(h->starter))
        return;
    n_missing = list_names(h, HOST_STARTING, &names);
    if (h->n_failed > 0)
        text_format(failed, sizeof(failed), ", %d cannot be started", h->n_failed);
    agent_note(h->ctx, "%d of %d other hosts are ready%s; waiting for %.*s%s",
               count_others(h) - n_missing - h->n_failed, count_others(h), failed, NAMES_SHOWN,
               text_str(&names), names.length > NAMES_SHOWN ? "..." : "");
    text_free(&names);
    set_timer(h, &h->wait_line, WAIT_LINE_AGAIN_MS, note_wait, h);
}

/* --- hosts that cannot be started --- */

static void fail_start(void *arg)
{
    agent_hosts *h = arg;
    text_buf names = {0};
    const char *lead = ": ";

    hosts_flush_notes(h);
    (void)list_names(h, HOST_FAILED, &names);
    if (names.length > NAMES_SHOWN) { /* the lines above name the hosts */
        text_free(&names);
        lead = "";
    }
    (void)ls_fail(LS_EPEER, "%d of %d other hosts could not be started%s%s", h->n_failed,
                  count_others(h), lead, text_str(&names));
    text_free(&names);
    for (int i = 0; i < h->spec->list->n; i++)
        starter_dismiss(h->starter, i);
    give_up(h, LS_EPEER);
}

/* The job fails when all hosts have started or failed, so that one report has all of them. */
static void host_failed(agent_hosts *h, int i, int64_t pause_ms, const char *why)
{
    h->list[i].phase = HOST_FAILED;
    h->n_failed++;
    add_line(h, &h->failures, i, why);
    if (starter_is_settled(h->starter))
        set_timer(h, &h->give_up, pause_ms, fail_start, h);
    else if (!h->give_up.is_set)
        set_timer(h, &h->give_up, OTHERS_MS, fail_start, h);
}

static void on_greeted(void *arg, int i, int cores)
{
    agent_hosts *h = arg;
    hostlist_host *host = &h->spec->list->hosts[i];

    h->list[i].phase = HOST_READY;
    if (h->n_failed > 0 && starter_is_settled(h->starter))
        set_timer(h, &h->give_up, LAUNCHED_MS, fail_start, h);
    if (h->is_placed) { /* also after failures: this host may report an error, too */
        hosts_launch(h, i);
        return;
    }
    if (h->n_failed > 0)
        return;
    if (host->slots == 0)
        host->slots = cores < RDZV_LOCAL_MAX ? cores : RDZV_LOCAL_MAX;
    if (hosts_slots_are_known(h) && hosts_place(h) != LS_OK)
        give_up(h, LS_EINVAL);
}

/* --- hosts that are lost --- */

static void restart(void *arg)
{
    const remote_host *host = arg;
    const agent_hosts *h = host->owner;

    if (!h->ctx->is_over)
        starter_restart(h->starter, (int)(host - h->list));
}

/*
 * The host is not restarted. The job fails only if it waits for the host when its ranks have ended.
 */
static void give_up_host(void *arg)
{
    remote_host *host = arg;
    const agent_hosts *h = host->owner;

    if (h->ctx->is_over)
        return;
    if (!head_is_waiting(h->opt.link->head)) {
        set_timer(h, &host->again, RESTART_MS, give_up_host, host);
        return;
    }
    (void)ls_fail(LS_EPEER, "host %s: %s", hosts_name(h, (int)(host - h->list)), host->last_end);
    give_up(h, LS_EPEER);
}

void agent_hosts_end_node(agent_hosts *h, int node, const char *why)
{
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->list[i].node == node && !h->skip[i]) {
            h->list[i].is_end_reported = true;
            starter_end(h->starter, i, why);
        }
}

/* The job goes on without the host until it is there again. */
static void start_again(const agent_hosts *h, remote_host *host, int64_t pause_ms, const char *why)
{
    text_format(host->last_end, sizeof(host->last_end), "%s", why);
    if (host->n_restarts >= h->ctx->spec->rendezvous.max_restarts) {
        give_up_host(host);
        return;
    }
    host->n_restarts++;
    set_timer(h, &host->again, pause_ms, restart, host);
}

/* An agent that had its launch request has ended before the job was over. */
static void lose_host(agent_hosts *h, int i, const char *why)
{
    remote_host *host = &h->list[i];
    head *job_head = h->opt.link->head;
    const bool was_node = head_node_lost(job_head, host->node, why);
    const bool is_unknown = !was_node && !host->is_end_reported;

    host->phase = HOST_STARTING;
    host->failure[0] = 0;
    /* If the head has seen the end of the connection first, this explains it. */
    if (is_unknown && !head_is_waiting(job_head) && !head_explain_loss(job_head, host->node, why))
        agent_note(h->ctx, "host %s: %s", hosts_name(h, i), why);
    if (is_unknown && head_is_waiting(job_head) &&
        host->n_restarts >= h->ctx->spec->rendezvous.max_restarts)
        host_failed(h, i, LAUNCHED_MS, why);
    else
        start_again(h, host, RESTART_MS, why);
    host->is_end_reported = false;
}

/* An agent has ended without its launch request. In an elastic job that runs, it was to replace one
 * that was lost. */
static void miss_host(agent_hosts *h, int i, const char *why)
{
    const head *job_head = h->opt.link->head;
    char line[LS_ERROR_BYTES];

    if (h->ctx->spec->rendezvous.min_ranks == 0 || job_head == NULL ||
        !head_has_started(job_head) || head_is_waiting(job_head)) {
        host_failed(h, i, 0, why);
        return;
    }
    hosts_note(h, i, text_format(line, sizeof(line), "cannot be started again: %s", why));
    start_again(h, &h->list[i], START_AGAIN_MS, why);
}

static void on_ended(void *arg, int i, bool was_launched, const char *why)
{
    agent_hosts *h = arg;
    const remote_host *host = &h->list[i];
    char failure[LS_ERROR_BYTES];

    if (was_launched)
        hosts_end_streams(h, i);
    if (h->ctx->is_over || host->node < 0)
        return;
    text_format(failure, sizeof(failure), "%s", host->failure[0] != 0 ? host->failure : why);
    if (was_launched)
        lose_host(h, i, failure);
    else
        miss_host(h, i, why);
}

void agent_hosts_reap(const agent_hosts *h)
{
    if (h != NULL && h->starter != NULL)
        starter_reap(h->starter);
}

/* --- life --- */

static ls_status allocate(const hosts_options *opt, agent_hosts **out)
{
    const agent_context *ctx = opt->output->ctx;
    const agent_hosts_spec *spec = ctx->spec->hosts;
    const size_t n = (size_t)spec->list->n;
    agent_hosts *h = ls_calloc(1, sizeof(*h));

    *out = h;
    opt->output->hosts = h;
    if (h == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
    h->opt = *opt;
    h->ctx = ctx;
    h->spec = spec;
    LS_TRY(LS_NEW(&h->list, n, "for %zu hosts", n));
    LS_TRY(LS_NEW(&h->skip, n, "for %zu hosts", n));
    for (size_t i = 0; i < n; i++)
        h->list[i].owner = h;
    return LS_OK;
}

ls_status agent_hosts_open(const hosts_options *opt, agent_hosts **out)
{
    starter_events events = {.greeted = on_greeted,
                             .message = hosts_take_message,
                             .line = hosts_take_line,
                             .ended = on_ended};
    agent_hosts *h;

    LS_TRY(allocate(opt, out));
    h = *out;
    events.self = h;
    if (hosts_slots_are_known(h))
        LS_TRY(hosts_place(h));
    for (int i = 0; i < h->spec->list->n; i++)
        h->skip[i] = i == h->spec->own || (h->is_placed && h->list[i].node < 0);
    set_timer(h, &h->wait_line, WAIT_LINE_MS, note_wait, h);
    return starter_create(h->ctx->poller, &h->spec->start, h->spec->list, h->skip, opt->mask,
                          &events, &h->starter);
}

void agent_hosts_close(agent_hosts *h)
{
    if (h == NULL)
        return;
    h->opt.output->hosts = NULL;
    starter_destroy(h->starter);
    poller_timer_cancel(&h->wait_line);
    poller_timer_cancel(&h->give_up);
    for (int i = 0; h->list != NULL && i < h->spec->list->n; i++)
        poller_timer_cancel(&h->list[i].again);
    hosts_flush_notes(h); /* if the job was stopped before that */
    hosts_close_streams(h);
    ls_free(h->list);
    ls_free(h->skip);
    ls_free(h);
}
