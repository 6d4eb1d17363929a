/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey.c - the starting machine: agents are started, each says what its machine is like, then all try the ways to each other.
 */
#include "launch/survey.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "launch/agent.h"
#include "launch/orders.h"
#include "launch/starter.h"
#include "launch/survey_node.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    QUESTIONS = 8, /* about a host's clock */
    LOOK_MS =
        60000, /* for a host to say the next thing: a resolver, a GPU driver and Python that all hang */
    TRIAL_MS = 70000, /* ... and GPUs that do */
    WAYS_MS = 20000,  /* to try all ways, and for each of them: */
    WAY_MS = 250,
    PATIENCE_MS = 900,
    PATIENCE_AGAIN_MS = 10000,
    NAMES_SHOWN = 8,
    TRIES_AT_ONCE = 512 /* descriptors */
};

typedef enum phase { LOOKING, TRYING, DONE } phase;

typedef struct run_host {
    struct survey_run *run;
    int index;
    bool is_over; /* nothing more is expected of it */
    bool has_offer;
    bool has_checked;
    bool has_report;
    uint32_t n_asked; /* about its clock */
    int64_t asked_ns;
    poll_timer limit;
    char failure[LS_ERROR_BYTES]; /* its agent's own words */
} run_host;

struct survey_run {
    const survey_options *opt;
    survey *out;
    poller *loop;
    starter *starter;
    bool *skip;
    survey_node *own; /* this machine: one of the hosts, or only there to be called */
    run_host *list;
    int n;
    phase phase;
    ls_status failure;
    poll_timer turn;
    poll_timer patience;
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
};

static void turn_soon(struct survey_run *run);

static const char *name_of(const struct survey_run *run, int i)
{
    return run->opt->hosts->list->hosts[i].name;
}

static bool is_own(const struct survey_run *run, int i)
{
    return i == run->opt->hosts->own;
}

/* --- hosts that are not there (any more) --- */

static void end_host(run_host *host)
{
    host->is_over = true;
    poller_timer_cancel(&host->limit);
    turn_soon(host->run);
}

static void lose_host(run_host *host, const char *why)
{
    struct survey_run *run = host->run;
    char mend[512];

    if (host->is_over)
        return;
    if (run->opt->hosts->start.way == START_SSH)
        text_format(mend, sizeof(mend), "lockstep check   # there, by hand");
    else
        text_format(mend, sizeof(mend), "srun -N1 -n1 -w %s --overlap lockstep check",
                    name_of(run, host->index));
    finding_add(&run->out->hosts[host->index].found, FINDING_HOST_LOST_KIND, FINDING_ERROR, mend,
                "its agent is gone: %s", why);
    end_host(host);
}

static void host_is_late(void *arg)
{
    run_host *host = arg;

    lose_host(host, "it has been silent for too long");
    if (host->run->starter != NULL && !is_own(host->run, host->index))
        starter_dismiss(host->run->starter, host->index);
}

static void wait_for(run_host *host)
{
    int64_t limit_ms = LOOK_MS + (host->run->opt->checks.tries_gpus ? TRIAL_MS : 0);

    if (host->run->phase == TRYING)
        limit_ms = WAYS_MS + (int64_t)WAY_MS * host->run->n * NET_ADDRESSES_MAX;
    poller_timer_set(host->run->loop, &host->limit, ls_now_ms() + limit_ms, host_is_late, host);
}

/* The words of ssh, and what to do about them behind them in brackets. */
static void add_unstarted(const struct survey_run *run, int i, const char *why)
{
    const char *advice = starter_advice(run->starter, i);
    const size_t n_advice = strlen(advice);
    const size_t n = strlen(why);
    char what[LS_ERROR_BYTES];

    text_format(what, sizeof(what), "%s", why);
    if (n_advice > 0 && n > n_advice + 3 && n < sizeof(what))
        what[n - n_advice - 3] = 0; /* " (" and ")" */
    finding_add(&run->out->hosts[i].found, FINDING_HOST_UNSTARTED_KIND, FINDING_ERROR,
                n_advice > 0 ? advice : "lockstep check   # there, by hand",
                "it could not be started: %s", what);
}

/* --- asking --- */

static ls_status ask(struct survey_run *run, int i, survey_message type, const wire_writer *body)
{
    LS_TRY(wire_writer_status(body));
    if (is_own(run, i)) {
        const frame f = {.type = type, .body = body->data, .bytes = body->bytes};

        return survey_node_hear(run->own, &f);
    }
    return starter_tell(run->starter, i, type, body->data, body->bytes);
}

static ls_status ask_time(run_host *host)
{
    wire_writer w = {0};
    ls_status st;

    wire_write_u32(&w, ++host->n_asked);
    host->asked_ns = survey_now_ns();
    st = ask(host->run, host->index, SURVEY_ASK_TIME, &w);
    wire_writer_free(&w);
    return st;
}

/* --- answers --- */

static ls_status take_offer(run_host *host, const frame *f)
{
    LS_TRY(survey_offer_read(f, &host->run->out->hosts[host->index].offer));
    if (host->has_offer)
        return ls_fail(LS_EPROTO, "its addresses came twice");
    host->has_offer = true;
    return is_own(host->run, host->index) ? LS_OK : ask_time(host);
}

static ls_status take_time(run_host *host, const frame *f)
{
    const int64_t answered_ns = survey_now_ns();
    survey_time t;

    LS_TRY(survey_time_read(f, &t));
    if (t.number != host->n_asked || host->n_asked == 0)
        return ls_fail(LS_EPROTO, "an answer that nobody has asked for");
    (void)survey_clock_add(&host->run->out->hosts[host->index].clock, host->asked_ns, t.heard_ns,
                           t.told_ns, answered_ns);
    if (host->n_asked < QUESTIONS)
        return ask_time(host);
    host->n_asked++; /* all is known */
    return LS_OK;
}

static ls_status take_checked(run_host *host, const frame *f)
{
    char why[LS_ERROR_BYTES];

    LS_TRY(survey_text_read(f, why, sizeof(why)));
    if (why[0] != 0)
        finding_add(&host->run->out->hosts[host->index].found, FINDING_HOST_LOST_KIND,
                    FINDING_ERROR, "lockstep check   # there, by hand",
                    "it could not be looked at whole: %s", why);
    host->has_checked = true;
    return LS_OK;
}

static ls_status take_report(run_host *host, const frame *f)
{
    survey_host *facts = &host->run->out->hosts[host->index];

    if (host->run->phase != TRYING || host->has_report)
        return ls_fail(LS_EPROTO, "it tells of tries that nobody has asked for");
    LS_TRY(survey_report_read(f, &facts->report));
    host->has_report = true;
    facts->has_come = true;
    return LS_OK;
}

static ls_status take_facts(run_host *host, const frame *f)
{
    survey_host *facts = &host->run->out->hosts[host->index];

    LS_TRY(survey_facts_read(f, &facts->facts));
    facts->has_facts = true;
    return LS_OK;
}

static ls_status take(run_host *host, const frame *f)
{
    switch (f->type) {
    case SURVEY_OFFER:
        return take_offer(host, f);
    case SURVEY_FACTS:
        return take_facts(host, f);
    case SURVEY_FINDING:
        return survey_finding_read(f, &host->run->out->hosts[host->index].found);
    case SURVEY_CHECKED:
        return take_checked(host, f);
    case SURVEY_TIME:
        return take_time(host, f);
    case SURVEY_TRIED:
        return take_report(host, f);
    case FAR_FAILED:
        return survey_text_read(f, host->failure, sizeof(host->failure));
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

static ls_status take_message(void *arg, int i, const frame *f)
{
    struct survey_run *run = arg;
    run_host *host = &run->list[i];

    if (host->is_over)
        return LS_OK;
    LS_TRY(take(host, f));
    wait_for(host);
    turn_soon(run);
    return LS_OK;
}

/* Of this machine, which is in this process. */
static void take_own(void *arg, survey_message type, const wire_writer *body)
{
    struct survey_run *run = arg;
    const frame f = {.type = type, .body = body->data, .bytes = body->bytes};
    const int own = run->opt->hosts->own;
    ls_status st = wire_writer_status(body);

    if (own < 0 && type == SURVEY_OFFER && st == LS_OK) {
        st = survey_offer_read(&f, &run->out->start);
        run->out->has_start = st == LS_OK;
    } else if (own >= 0 && st == LS_OK) {
        st = take_message(run, own, &f);
    }
    if (st != LS_OK && own >= 0)
        lose_host(&run->list[own], ls_last_error());
}

/* --- starting --- */

static ls_status write_orders(const struct survey_run *run, int i, int cores, wire_writer *w)
{
    static char *words[] = {(char *)(uintptr_t) "lockstep", (char *)(uintptr_t) "check", NULL};
    const agent_hosts_spec *hosts = run->opt->hosts;
    const int slots = hosts->list->hosts[i].slots;
    survey_orders o = {.n_ranks = slots,
                       .master_port = run->opt->checks.master_port,
                       .is_quick = run->opt->is_quick,
                       .tries_gpus = run->opt->checks.tries_gpus,
                       .base = {.key = *run->opt->key,
                                .node = i,
                                .n_nodes = run->n,
                                .n_ranks = slots > 0 ? slots : cores,
                                .host = name_of(run, i),
                                .folder = hosts->folder,
                                .argv = words,
                                .n_argv = 2,
                                .run_id = "",
                                .role = "",
                                .log_dir = "",
                                .master_addr = "",
                                .net = run->opt->net != NULL ? run->opt->net : "",
                                .ports = run->opt->ports}};
    ls_status st =
        agent_list_env(hosts->exports, hosts->n_exports, hosts->start.way == START_SSH, &o.base);

    if (st == LS_OK) {
        survey_orders_write(w, &o);
        st = wire_writer_status(w);
    }
    ls_free(o.base.env);
    net_key_wipe(&o.base.key);
    return st;
}

static void on_greeted(void *arg, int i, int cores)
{
    struct survey_run *run = arg;
    wire_writer w = {0};
    ls_status st = write_orders(run, i, cores, &w);

    if (st == LS_OK)
        st = starter_order(run->starter, i, SURVEY_ORDERS, w.data, w.bytes);
    if (w.data != NULL)
        explicit_bzero(w.data, w.bytes);
    wire_writer_free(&w);
    if (st == LS_OK)
        wait_for(&run->list[i]);
    else
        lose_host(&run->list[i], ls_last_error());
    turn_soon(run);
}

static void on_ended(void *arg, int i, bool was_ordered, const char *why)
{
    struct survey_run *run = arg;
    run_host *host = &run->list[i];

    if (run->phase == DONE || host->is_over)
        return;
    if (was_ordered) {
        lose_host(host, host->failure[0] != 0 ? host->failure : why);
        return;
    }
    add_unstarted(run, i, why);
    end_host(host);
}

static void on_line(void *arg, int i, const char *text)
{
    const struct survey_run *run = arg;
    char line[LS_ERROR_BYTES + 300];

    run->opt->note(run->opt->self,
                   text_format(line, sizeof(line), "host %s: %s", name_of(run, i), text));
}

/* --- one phase after the other --- */

static bool is_looked_at(const run_host *host)
{
    return host->is_over || (host->has_offer && host->has_checked &&
                             (host->n_asked > QUESTIONS || is_own(host->run, host->index)));
}

/* The hosts that are still there, in their order; the numbers that net_choice.h counts by. */
static int list_members(const struct survey_run *run, int *members)
{
    int n = 0;

    for (int i = 0; i < run->n; i++)
        if (!run->list[i].is_over)
            members[n++] = i;
    return n;
}

/* Whom member k is to try: others by net_choice's rule, and the starting machine where that is none of them. */
static int list_peers(const struct survey_run *run, const int *members, int n_members,
                      const net_offer *offers, int k, net_peer *out)
{
    int peers[NET_PEERS_MAX];
    int n = net_peers_of(k, offers, n_members, peers);

    for (int i = 0; i < n; i++)
        out[i] = (net_peer){.node = members[peers[i]],
                            .measure = n_members <= SURVEY_MEASURED_MOST ||
                                       net_peer_is_next(k, peers[i], n_members),
                            .offer = offers[peers[i]]};
    if (run->out->has_start && n < NET_PEERS_MAX && run->out->start.machine != offers[k].machine)
        out[n++] = (net_peer){.node = run->n, .offer = run->out->start};
    return n;
}

static void ask_to_try(struct survey_run *run, const int *members, int n_members,
                       const net_offer *offers, net_peer *peers)
{
    for (int k = 0; k < n_members; k++) {
        run_host *host = &run->list[members[k]];
        const int n = list_peers(run, members, n_members, offers, k, peers);
        wire_writer w = {0};

        survey_peers_write(&w, peers, n);
        wait_for(host);
        if (ask(run, members[k], SURVEY_TRY, &w) != LS_OK)
            lose_host(host, ls_last_error());
        wire_writer_free(&w);
    }
}

static ls_status begin_trying(struct survey_run *run)
{
    const size_t n = (size_t)run->n;
    int *members = ls_calloc(n, sizeof(*members));
    net_offer *offers = ls_calloc(n, sizeof(*offers));
    net_peer *peers = ls_calloc(NET_PEERS_MAX, sizeof(*peers));
    const bool has_memory = members != NULL && offers != NULL && peers != NULL;

    run->phase = TRYING;
    if (has_memory) {
        const int n_members = list_members(run, members);

        for (int k = 0; k < n_members; k++)
            offers[k] = run->out->hosts[members[k]].offer;
        ask_to_try(run, members, n_members, offers, peers);
    }
    ls_free(members);
    ls_free(offers);
    ls_free(peers);
    return has_memory ? LS_OK : ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
}

static bool all_are(const struct survey_run *run, bool (*is)(const run_host *host))
{
    for (int i = 0; i < run->n; i++)
        if (!is(&run->list[i]))
            return false;
    return true;
}

static bool has_tried(const run_host *host)
{
    return host->is_over || host->has_report;
}

static void take_turn(void *arg)
{
    struct survey_run *run = arg;

    if (run->phase == LOOKING && all_are(run, is_looked_at))
        run->failure = begin_trying(run);
    if (run->phase == TRYING && all_are(run, has_tried))
        run->phase = DONE;
}

static void turn_soon(struct survey_run *run)
{
    poller_timer_set(run->loop, &run->turn, ls_now_ms(), take_turn, run);
}

/* --- waiting --- */

static void say_whom_we_wait_for(void *arg)
{
    struct survey_run *run = arg;
    bool (*is_done)(const run_host *host) = run->phase == LOOKING ? is_looked_at : has_tried;
    text_buf line = {0};
    int n = 0;

    text_append(&line, "waiting for what %s tell: ",
                run->phase == LOOKING ? "hosts" : "tries of the ways between hosts");
    for (int i = 0; i < run->n; i++)
        if (!is_done(&run->list[i]) && n++ < NAMES_SHOWN)
            text_append(&line, "%s%s", n > 1 ? ", " : "", name_of(run, i));
    if (n > NAMES_SHOWN)
        text_append(&line, " and %d more", n - NAMES_SHOWN);
    if (n > 0)
        run->opt->note(run->opt->self, text_str(&line));
    text_free(&line);
    poller_timer_set(run->loop, &run->patience, ls_now_ms() + PATIENCE_AGAIN_MS,
                     say_whom_we_wait_for, run);
}

static void on_signal(void *arg, unsigned events)
{
    struct survey_run *run = arg;
    struct signalfd_siginfo info;

    LS_UNUSED(events);
    while (read(run->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        continue;
    if (run->starter != NULL)
        starter_reap(run->starter);
}

/* --- life --- */

/* Two for each host, and those of the ways that are tried. */
static void raise_descriptor_limit(int n)
{
    const rlim_t needed = 64 + TRIES_AT_ONCE + 8 * (rlim_t)n;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static ls_status take_signals(struct survey_run *run)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    if (pthread_sigmask(SIG_BLOCK, &set, &run->old_mask) != 0)
        return ls_fail_errno("blocking signals");
    run->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signal_fd < 0)
        return ls_fail_errno("signalfd");
    return poller_watch(run->loop, run->signal_fd, POLL_READ, on_signal, run, &run->signal_watch);
}

static ls_status open_own(struct survey_run *run)
{
    const agent_hosts_spec *hosts = run->opt->hosts;
    survey_node_options options = {.loop = run->loop,
                                   .key = run->opt->key,
                                   .node = hosts->own >= 0 ? hosts->own : run->n,
                                   .net = run->opt->net,
                                   .ports = run->opt->ports,
                                   .checks = run->opt->checks,
                                   .is_quick = run->opt->is_quick,
                                   .is_silent = hosts->own < 0,
                                   .self = run,
                                   .say = take_own};

    options.checks.several_nodes = true;
    options.checks.n_ranks = hosts->own >= 0 ? hosts->list->hosts[hosts->own].slots : 0;
    if (survey_node_open(&options, &run->own) == LS_OK)
        return LS_OK;
    if (hosts->own < 0)
        return LS_ESYSTEM;
    lose_host(&run->list[hosts->own], ls_last_error());
    return LS_OK;
}

static ls_status allocate(struct survey_run *run)
{
    const size_t n = (size_t)run->n;

    run->list = ls_calloc(n, sizeof(*run->list));
    run->skip = ls_calloc(n, sizeof(*run->skip));
    run->out->hosts = ls_calloc(n, sizeof(*run->out->hosts));
    if (run->list == NULL || run->skip == NULL || run->out->hosts == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
    run->out->n = run->n;
    for (int i = 0; i < run->n; i++) {
        run->list[i] = (run_host){.run = run, .index = i};
        run->skip[i] = is_own(run, i);
        run->out->hosts[i].name = name_of(run, i);
        run->out->hosts[i].is_here = is_own(run, i);
    }
    return LS_OK;
}

static ls_status open_run(struct survey_run *run)
{
    const agent_hosts_spec *hosts = run->opt->hosts;
    const starter_events events = {.self = run,
                                   .greeted = on_greeted,
                                   .message = take_message,
                                   .line = on_line,
                                   .ended = on_ended};

    LS_TRY(allocate(run));
    raise_descriptor_limit(run->n);
    LS_TRY(poller_create(&run->loop));
    LS_TRY(take_signals(run));
    LS_TRY(starter_create(run->loop, &hosts->start, hosts->list, run->skip, &run->old_mask, &events,
                          &run->starter));
    LS_TRY(open_own(run));
    poller_timer_set(run->loop, &run->patience, ls_now_ms() + PATIENCE_MS, say_whom_we_wait_for,
                     run);
    turn_soon(run);
    return LS_OK;
}

static void close_run(struct survey_run *run)
{
    starter_destroy(run->starter);
    survey_node_close(run->own);
    poller_timer_cancel(&run->turn);
    poller_timer_cancel(&run->patience);
    for (int i = 0; run->list != NULL && i < run->n; i++)
        poller_timer_cancel(&run->list[i].limit);
    poller_unwatch(run->signal_watch);
    if (run->signal_fd >= 0) {
        file_close(&run->signal_fd);
        pthread_sigmask(SIG_SETMASK, &run->old_mask, NULL);
    }
    poller_destroy(run->loop);
    ls_free(run->list);
    ls_free(run->skip);
}

ls_status survey_run(const survey_options *opt, survey *out)
{
    struct survey_run run = {.opt = opt, .out = out, .n = opt->hosts->list->n, .signal_fd = -1};
    ls_status st;

    *out = (survey){.way = opt->hosts->start.way, .filter = opt->net};
    if (run.n > SURVEY_HOSTS_MOST)
        return ls_fail(LS_EINVAL, "%d hosts; %d are the most that are looked at together", run.n,
                       SURVEY_HOSTS_MOST);
    st = open_run(&run);
    while (st == LS_OK && run.phase != DONE) {
        st = poller_run_once(run.loop, -1);
        if (st == LS_OK)
            st = run.failure;
    }
    run.phase = DONE;
    close_run(&run);
    if (st != LS_OK)
        survey_free(out);
    return st;
}
