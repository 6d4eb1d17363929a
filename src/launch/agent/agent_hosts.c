/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts.c - the other hosts of a job that is started from here: those that come, those that cannot be started, and those that are lost.
 */
#include "launch/agent/agent_hosts_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/hosts/hostlist.h"

enum {
    PATIENCE_MS = 900, /* until a line says whom we wait for; then again */
    PATIENCE_AGAIN_MS = 10000,
    OTHERS_MS = 12000, /* for the others, once a host could not be started */
    LAUNCHED_MS = 300, /* for an agent to find that it cannot carry out its launch request */
    RESTART_MS = 200,
    NOTES_MS = 100, /* for the same note of other hosts */
    NOTES_MOST = 4096,
    NAMES_SHOWN = 400 /* bytes of a list of names in a line of its own */
};

/* --- coming --- */

static void give_up_start(void *arg);

static void on_greeted(void *arg, int i, int cores)
{
    agent_hosts *h = arg;
    hostlist_host *host = &h->spec->list->hosts[i];

    h->list[i].phase = IS_THERE;
    if (h->n_failed > 0 && starter_is_settled(h->starter))
        poller_timer_set(h->agent->poller, &h->patience_for_others, ls_now_ms() + LAUNCHED_MS,
                         give_up_start, h);
    if (h->is_placed) { /* also in vain: it may say what it lacks, too */
        hosts_order(h, i);
        return;
    }
    if (h->n_failed > 0)
        return;
    if (host->slots == 0)
        host->slots = cores < RDZV_LOCAL_MAX ? cores : RDZV_LOCAL_MAX;
    if (hosts_slots_are_known(h) && hosts_place(h) != LS_OK)
        agent_give_up(h->agent, LS_EINVAL);
}

/* --- hosts that are not there --- */

/* "b[1-3],c": those in this phase, and how many they are. */
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

static void tell_line(void *arg, const char *text)
{
    agent_note(arg, "%s", text);
}

static void tell_notes(void *arg)
{
    agent_hosts *h = arg;

    poller_timer_cancel(&h->notes_timer);
    host_report_write(&h->notes, tell_line, h->agent);
    host_report_free(&h->notes);
}

void hosts_note(agent_hosts *h, int i, const char *text)
{
    if (host_report_add(&h->notes, hosts_name(h, i), text) != LS_OK)
        agent_note(h->agent, "host %s: %s", hosts_name(h, i), text);
    if (h->notes.n >= NOTES_MOST)
        tell_notes(h);
    else if (h->notes.n > 0 && !h->notes_timer.is_set)
        poller_timer_set(h->agent->poller, &h->notes_timer, ls_now_ms() + NOTES_MS, tell_notes, h);
}

void hosts_tell(agent_hosts *h)
{
    tell_notes(h);
    host_report_write(&h->failures, tell_line, h->agent);
    host_report_free(&h->failures);
}

static void give_up_start(void *arg)
{
    agent_hosts *h = arg;
    text_buf names = {0};

    hosts_tell(h);
    (void)list_names(h, HAS_FAILED, &names);
    if (names.length <= NAMES_SHOWN)
        (void)ls_fail(LS_EPEER, "%d of %d other hosts could not be started: %s", h->n_failed,
                      count_others(h), text_str(&names));
    else /* the lines above name them */
        (void)ls_fail(LS_EPEER, "%d of %d other hosts could not be started", h->n_failed,
                      count_others(h));
    text_free(&names);
    for (int i = 0; i < h->spec->list->n; i++)
        starter_dismiss(h->starter, i); /* those that are there need not hear why */
    agent_give_up(h->agent, LS_EPEER);
}

/* When nothing more is to come, the job has failed; the same of many hosts is told once. */
static void start_failed(agent_hosts *h, int i, int64_t pause_ms, const char *why)
{
    agent *a = h->agent;

    h->list[i].phase = HAS_FAILED;
    h->n_failed++;
    if (host_report_add(&h->failures, hosts_name(h, i), why) != LS_OK)
        agent_note(a, "host %s: %s", hosts_name(h, i), why);
    if (starter_is_settled(h->starter))
        poller_timer_set(a->poller, &h->patience_for_others, ls_now_ms() + pause_ms, give_up_start,
                         h);
    else if (!h->patience_for_others.is_set)
        poller_timer_set(a->poller, &h->patience_for_others, ls_now_ms() + OTHERS_MS, give_up_start,
                         h);
}

static void start_again(void *arg)
{
    const remote_host *host = arg;
    const agent_hosts *h = host->owner;

    if (!h->agent->is_over)
        starter_restart(h->starter, (int)(host - h->list));
}

/* It does not come again. Whether it is needed is known when the ranks of the others have ended. */
static void give_up_waiting(void *arg)
{
    remote_host *host = arg;
    const agent_hosts *h = host->owner;
    agent *a = h->agent;

    if (a->is_over)
        return;
    if (!head_is_waiting(a->head)) {
        poller_timer_set(a->poller, &host->again, ls_now_ms() + RESTART_MS, give_up_waiting, host);
        return;
    }
    (void)ls_fail(LS_EPEER, "host %s: %s", hosts_name(h, (int)(host - h->list)), host->last_end);
    agent_give_up(a, LS_EPEER);
}

void agent_end_host(void *arg, int node, const char *why)
{
    const agent *a = arg;
    const agent_hosts *h = a->hosts;

    for (int i = 0; i < h->spec->list->n; i++)
        if (h->list[i].node == node && !h->skip[i]) {
            h->list[i].is_told = true;
            starter_end(h->starter, i, why);
        }
}

/* An agent that had its launch request is gone before the job was over. */
static void lost(agent_hosts *h, int i, const char *why)
{
    agent *a = h->agent;
    remote_host *host = &h->list[i];
    const bool was_node = head_node_lost(a->head, host->node, why);

    host->phase = NOT_THERE;
    host->failure[0] = 0;
    /* If its agent's end was heard first this is why. */
    if (!was_node && !host->is_told && !head_is_waiting(a->head) &&
        !head_explain_loss(a->head, host->node, why))
        agent_note(a, "host %s: %s", hosts_name(h, i), why);
    text_format(host->last_end, sizeof(host->last_end), "%s", why);
    if (host->n_again < a->spec->rendezvous.max_restarts) {
        host->n_again++;
        poller_timer_set(a->poller, &host->again, ls_now_ms() + RESTART_MS, start_again, host);
    } else if (!was_node && !host->is_told && head_is_waiting(a->head)) {
        start_failed(h, i, LAUNCHED_MS, why);
    } else {
        give_up_waiting(host);
    }
    host->is_told = false;
}

static void on_ended(void *arg, int i, bool was_launched, const char *why)
{
    agent_hosts *h = arg;
    const remote_host *host = &h->list[i];
    char said[LS_ERROR_BYTES];

    if (was_launched)
        hosts_end_streams(h, i);
    if (h->agent->is_over || host->node < 0)
        return;
    if (was_launched && host->failure[0] != 0)
        lost(h, i, text_format(said, sizeof(said), "%s", host->failure));
    else if (was_launched)
        lost(h, i, why);
    else
        start_failed(h, i, 0, why);
}

/* --- waiting --- */

static void say_whom_we_wait_for(void *arg)
{
    agent_hosts *h = arg;
    agent *a = h->agent;
    text_buf names = {0};
    char failed[64] = "";
    int n_missing;

    if (starter_is_settled(h->starter))
        return;
    n_missing = list_names(h, NOT_THERE, &names);
    if (h->n_failed > 0)
        text_format(failed, sizeof(failed), ", %d cannot be started", h->n_failed);
    agent_note(a, "%d of %d other hosts are there%s; waiting for %.*s%s",
               count_others(h) - n_missing - h->n_failed, count_others(h), failed, NAMES_SHOWN,
               text_str(&names), names.length > NAMES_SHOWN ? "..." : "");
    text_free(&names);
    poller_timer_set(a->poller, &h->patience, ls_now_ms() + PATIENCE_AGAIN_MS, say_whom_we_wait_for,
                     h);
}

/* --- for the agent --- */

void agent_hosts_reap(const agent_hosts *h)
{
    if (h != NULL && h->starter != NULL)
        starter_reap(h->starter);
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
    starter_events events = {.greeted = on_greeted,
                             .message = hosts_take_message,
                             .line = hosts_take_line,
                             .ended = on_ended};
    agent_hosts *h;

    LS_TRY(allocate(a, &a->hosts));
    h = a->hosts;
    events.self = h;
    if (hosts_slots_are_known(h))
        LS_TRY(hosts_place(h));
    for (int i = 0; i < h->spec->list->n; i++)
        h->skip[i] = i == h->spec->own || (h->is_placed && h->list[i].node < 0);
    poller_timer_set(a->poller, &h->patience, ls_now_ms() + PATIENCE_MS, say_whom_we_wait_for, h);
    return starter_create(a->poller, &h->spec->start, h->spec->list, h->skip, &a->old_mask, &events,
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
    hosts_tell(h); /* if the job was stopped before that */
    hosts_close_streams(h);
    ls_free(h->list);
    ls_free(h->skip);
    ls_free(h);
}
