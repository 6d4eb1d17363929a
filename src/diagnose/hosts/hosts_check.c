/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check.c - runs the check of several hosts on the starting machine: starts agents, waits
 * until each has checked its machine, then lets all test the networks to each other. Every host
 * passes both phases or is reported as lost. Called by lockstep check -H.
 */
#include "diagnose/hosts/hosts_check_run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "diagnose/hosts/hosts_check_internal.h"
#include "host/process.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    WAIT_REPORT_MS = 900,
    WAIT_REPORT_AGAIN_MS = 10000,

    TEST_FILES = 512, /* file descriptors of network tests */
    FILES_HOST = 8    /* of a host: two for its agent, others for its network tests */
};

bool hosts_check_has_checked(const run_host *host)
{
    return host->is_over ||
           (host->has_offer && host->has_checked &&
            (host->n_asked > HOSTS_CHECK_QUESTIONS || hosts_check_is_own(host->run, host->index)));
}

/*
 * Lists the hosts that are not lost, in order: a host's place in the list is its node number in
 * net_choice.h.
 */
static int list_members(const struct hosts_check_run *run, int *members)
{
    int n = 0;

    for (int i = 0; i < run->n; i++)
        if (!run->list[i].is_over)
            members[n++] = i;
    return n;
}

/*
 * Lists the peers that member k tests: those of net_peers_of(), and the starting machine unless it
 * is a member.
 */
static int list_peers(struct hosts_check_run *run, const int *members, int n_members,
                      const net_offer *offers, int k, net_peer *out)
{
    int peers[NET_PEERS_MAX];
    int n = net_peers_of(k, offers, n_members, peers);

    for (int i = 0; i < n; i++)
        out[i] = (net_peer){.node = members[peers[i]],
                            .measure = n_members <= HOSTS_CHECK_MEASURED_MOST ||
                                       net_peer_is_next(k, peers[i], n_members),
                            .offer = offers[peers[i]]};
    run->out->has_start &= n < NET_PEERS_MAX; /* the list may be full */
    if (run->out->has_start && run->out->start.machine != offers[k].machine)
        out[n++] = (net_peer){.node = run->n, .offer = run->out->start};
    return n;
}

static void request_tests(struct hosts_check_run *run, const int *members, int n_members,
                          const net_offer *offers, net_peer *peers)
{
    for (int k = 0; k < n_members; k++) {
        run_host *host = &run->list[members[k]];
        const int n = list_peers(run, members, n_members, offers, k, peers);
        wire_writer w = {0};

        net_peers_write(&w, &(net_peers){n, peers});
        hosts_check_wait_for(host);
        if (hosts_check_ask(run, members[k], HOSTS_CHECK_TRY, &w) != LS_OK)
            hosts_check_lose_host(host, ls_last_error());
        wire_writer_free(&w);
    }
}

static ls_status begin_network_tests(struct hosts_check_run *run)
{
    const size_t n = (size_t)run->n;
    int *members = ls_calloc(n, sizeof(*members));
    net_offer *offers = ls_calloc(n, sizeof(*offers));
    net_peer *peers = ls_calloc(NET_PEERS_MAX, sizeof(*peers));
    const bool has_memory = members != NULL && offers != NULL && peers != NULL;

    run->phase = HOSTS_CHECK_NETWORK;
    if (has_memory) {
        const int n_members = list_members(run, members);

        for (int k = 0; k < n_members; k++)
            offers[k] = run->out->hosts[members[k]].offer;
        request_tests(run, members, n_members, offers, peers);
    }
    ls_free(members);
    ls_free(offers);
    ls_free(peers);
    return has_memory ? LS_OK : ls_fail(LS_ENOMEM, "no memory for %zu hosts", n);
}

static bool all_are(const struct hosts_check_run *run, bool (*is)(const run_host *host))
{
    for (int i = 0; i < run->n; i++)
        if (!is(&run->list[i]))
            return false;
    return true;
}

static bool has_tested_network(const run_host *host)
{
    return host->is_over || host->has_report;
}

static void take_turn(void *arg)
{
    struct hosts_check_run *run = arg;

    if (run->phase == HOSTS_CHECK_LOCAL && all_are(run, hosts_check_has_checked))
        run->failure = begin_network_tests(run);
    if (run->phase == HOSTS_CHECK_NETWORK && all_are(run, has_tested_network))
        run->phase = HOSTS_CHECK_DONE;
}

void hosts_check_turn_soon(struct hosts_check_run *run)
{
    poller_timer_set(run->loop, &run->turn, ls_now_ms(), take_turn, run);
}

static void report_waiting(void *arg)
{
    struct hosts_check_run *run = arg;
    bool (*is_done)(const run_host *host) =
        run->phase == HOSTS_CHECK_LOCAL ? hosts_check_has_checked : has_tested_network;
    bool marks[HOSTS_CHECK_HOSTS_MOST];
    text_buf line = {0};
    bool is_waiting = false;

    for (int i = 0; i < run->n; i++) {
        marks[i] = !is_done(&run->list[i]);
        is_waiting |= marks[i];
    }
    text_append(&line, "waiting for %s from ",
                run->phase == HOSTS_CHECK_LOCAL ? "checks" : "network tests");
    hosts_check_names(run->out, marks, &line);
    if (is_waiting)
        run->opt->note(run->opt->self, text_str(&line));
    text_free(&line);
    poller_timer_set(run->loop, &run->wait_report, ls_now_ms() + WAIT_REPORT_AGAIN_MS,
                     report_waiting, run);
}

static void on_signal(void *arg, unsigned events)
{
    struct hosts_check_run *run = arg;
    struct signalfd_siginfo info;

    LS_UNUSED(events);
    while (read(run->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        continue;
    if (run->starter != NULL)
        starter_reap(run->starter);
}

/* --- life --- */

static ls_status take_signals(struct hosts_check_run *run)
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

static ls_status open_own(struct hosts_check_run *run)
{
    const agent_hosts_spec *hosts = run->opt->hosts;
    hosts_check_node_options options = {.loop = run->loop,
                                        .key = run->opt->key,
                                        .node = hosts->own >= 0 ? hosts->own : run->n,
                                        .net = run->opt->net,
                                        .ports = run->opt->ports,
                                        .checks = run->opt->checks,
                                        .is_quick = run->opt->is_quick,
                                        .is_passive = hosts->own < 0,
                                        .self = run,
                                        .send = hosts_check_take_own};

    options.checks.several_nodes = true;
    options.checks.n_ranks = hosts->own >= 0 ? hosts->list->hosts[hosts->own].slots : 0;
    if (hosts_check_node_open(&options, &run->own) == LS_OK)
        return LS_OK;
    if (hosts->own < 0)
        finding_add(&run->out->common, FINDING_PATH_HERE_KIND, FINDING_ERROR, "ip address show",
                    "agents cannot connect to this machine: %s", ls_last_error());
    else
        hosts_check_lose_host(&run->list[hosts->own], ls_last_error());
    return LS_OK;
}

static ls_status allocate(struct hosts_check_run *run)
{
    const size_t n = (size_t)run->n;

    LS_TRY(LS_NEW(&run->list, n, "for %zu hosts", n));
    LS_TRY(LS_NEW(&run->skip, n, "for %zu hosts", n));
    LS_TRY(LS_NEW(&run->out->hosts, n, "for %zu hosts", n));
    run->out->n = run->n;
    for (int i = 0; i < run->n; i++) {
        run->list[i] = (run_host){.run = run, .index = i};
        run->skip[i] = hosts_check_is_own(run, i);
        run->out->hosts[i].name = hosts_check_name_of(run, i);
        run->out->hosts[i].is_here = hosts_check_is_own(run, i);
    }
    return LS_OK;
}

static ls_status open_run(struct hosts_check_run *run)
{
    const agent_hosts_spec *hosts = run->opt->hosts;
    const starter_events events = {.self = run,
                                   .greeted = hosts_check_on_greeted,
                                   .message = hosts_check_take_message,
                                   .line = hosts_check_on_line,
                                   .ended = hosts_check_on_ended};

    LS_TRY(allocate(run));
    process_allow_files(64 + TEST_FILES + FILES_HOST * (uint64_t)run->n);
    LS_TRY(poller_create(&run->loop));
    LS_TRY(take_signals(run));
    LS_TRY(starter_create(run->loop, &hosts->start, hosts->list, run->skip, &run->old_mask, &events,
                          &run->starter));
    LS_TRY(open_own(run));
    poller_timer_set(run->loop, &run->wait_report, ls_now_ms() + WAIT_REPORT_MS, report_waiting,
                     run);
    hosts_check_turn_soon(run);
    return LS_OK;
}

static void close_run(struct hosts_check_run *run)
{
    starter_destroy(run->starter);
    hosts_check_node_close(run->own);
    poller_timer_cancel(&run->turn);
    poller_timer_cancel(&run->wait_report);
    for (int i = 0; run->list != NULL && i < run->n; i++)
        poller_timer_cancel(&run->list[i].limit);
    poller_unwatch(&run->signal_watch);
    if (run->signal_fd >= 0) {
        file_close(&run->signal_fd);
        pthread_sigmask(SIG_SETMASK, &run->old_mask, NULL);
    }
    poller_destroy(run->loop);
    ls_free(run->list);
    ls_free(run->skip);
}

ls_status hosts_check_run(const hosts_check_options *opt, hosts_check *out)
{
    struct hosts_check_run run = {
        .opt = opt, .out = out, .n = opt->hosts->list->n, .signal_fd = -1};
    ls_status st;

    *out = (hosts_check){.way = opt->hosts->start.way, .filter = opt->net};
    if (run.n > HOSTS_CHECK_HOSTS_MOST)
        return ls_fail(LS_EINVAL, "%d hosts; at most %d can be checked together", run.n,
                       HOSTS_CHECK_HOSTS_MOST);
    st = open_run(&run);
    while (st == LS_OK && run.phase != HOSTS_CHECK_DONE) {
        st = poller_run_once(run.loop, -1);
        if (st == LS_OK)
            st = run.failure;
    }
    run.phase = HOSTS_CHECK_DONE;
    close_run(&run);
    if (st != LS_OK)
        hosts_check_free(out);
    return st;
}
