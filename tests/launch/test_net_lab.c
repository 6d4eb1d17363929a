/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_lab.c - network tests over real networks between namespaces. Each node is this program
 * again, started in its namespace with the argument "node": it writes its addresses to stdout,
 * reads its peers from stdin and writes its report to stdout.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "harness/netlab.h"
#include "launch/network/net_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TOTAL_MS 15000
#else
#define TOTAL_MS 3000
#endif

enum { NODES = 3, MESSAGE_BYTES = 1024 * 1024 };

static const net_key key = {.bytes = {1, 2, 3}};

/* --- messages over pipes --- */

static bool move_all(int fd, void *data, size_t bytes, bool is_write)
{
    char *at = data;

    while (bytes > 0) {
        const ssize_t n = is_write ? write(fd, at, bytes) : read(fd, at, bytes);

        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool send_word(int fd, const wire_writer *w)
{
    uint8_t length[4];

    wire_put_u32(length, (uint32_t)w->bytes);
    return move_all(fd, length, 4, true) && move_all(fd, w->data, w->bytes, true);
}

/* Returns a block that the caller frees, or NULL. */
static uint8_t *read_message(int fd, size_t *bytes)
{
    uint8_t length[4];
    uint8_t *message;

    if (!move_all(fd, length, 4, false))
        return NULL;
    *bytes = wire_get_u32(length);
    message = *bytes > MESSAGE_BYTES ? NULL : ls_calloc(*bytes + 1, 1);
    if (message != NULL && !move_all(fd, message, *bytes, false)) {
        ls_free(message);
        return NULL;
    }
    return message;
}

/* --- a node --- */

static net_probe *probe;
static bool is_over;

static void tell_report(void *self, const net_report *report)
{
    wire_writer w = {0};

    LS_UNUSED(self);
    net_report_write(&w, report);
    is_over = is_over || !send_word(1, &w);
    wire_writer_free(&w);
}

/* Reads the peers; false at the end of stdin. */
static void on_stdin(void *arg, unsigned events)
{
    net_peer *peers = ls_calloc(NET_PEERS_MAX, sizeof(*peers));
    size_t bytes = 0;
    uint8_t *message = read_message(0, &bytes);
    wire_reader r = wire_reader_over(message, bytes);
    int n = 0;

    LS_UNUSED(arg);
    LS_UNUSED(events);
    is_over = message == NULL || peers == NULL;
    while (!is_over && r.at < r.bytes && n < NET_PEERS_MAX)
        net_peer_read(&r, &peers[n++]);
    if (!is_over && (wire_reader_end(&r, "peers") != LS_OK ||
                     net_probe_start(probe, peers, n, tell_report, NULL) != LS_OK)) {
        fprintf(stderr, "%s\n", ls_last_error());
        is_over = true;
    }
    ls_free(peers);
    ls_free(message);
}

static int be_node(int number, const char *filter)
{
    char host[64] = "";
    net_probe_options opt = {.key = &key,
                             .job = "lab",
                             .node = number,
                             .host = host,
                             .filter = filter,
                             // the same port everywhere: the worst case of wrong nodes
                             .ports = {47000, 47000}};
    poll_watch *watch;
    wire_writer w = {0};

    (void)gethostname(host, sizeof(host) - 1);
    if (poller_create(&opt.loop) != LS_OK || net_probe_open(&opt, &probe) != LS_OK ||
        poller_watch(opt.loop, 0, POLL_READ, on_stdin, NULL, &watch) != LS_OK) {
        fprintf(stderr, "node %d: %s\n", number, ls_last_error());
        return 1;
    }
    net_offer_write(&w, net_probe_offer(probe));
    is_over = !send_word(1, &w);
    wire_writer_free(&w);
    while (!is_over && poller_run_once(opt.loop, -1) == LS_OK)
        continue;
    poller_unwatch(&watch);
    net_probe_close(probe);
    poller_destroy(opt.loop);
    return 0;
}

/* --- the head --- */

typedef struct job {
    netlab lab;
    pid_t pids[NODES];
    int in[NODES];
    int out[NODES];
    net_offer offers[NODES];
    net_report reports[NODES];
    int64_t took_ms;
} job;

static job the_job;

/* Pipes to the nodes' stdin (in) and from their stdout (out), CLOEXEC in the parent. */
static void start_nodes(job *j, const char *filter)
{
    for (int i = 0; i < NODES; i++) {
        char number[8];
        const char *const argv[] = {"/proc/self/exe", "node", number, filter, NULL};
        char self[4096] = "";
        const char *argv_self[] = {self, argv[1], argv[2], argv[3], NULL};
        int to[2];
        int from[2];

        text_format(number, sizeof(number), "%d", i);
        assert_true(readlink(argv[0], self, sizeof(self) - 1) > 0);
        assert_int_equal(pipe2(to, O_CLOEXEC), 0);
        assert_int_equal(pipe2(from, O_CLOEXEC), 0);
        j->pids[i] = netlab_start(&j->lab, i, argv_self, to[0], from[1]);
        assert_true(j->pids[i] > 0);
        (void)close(to[0]);
        (void)close(from[1]);
        j->in[i] = to[1];
        j->out[i] = from[0];
    }
}

static void read_offers(job *j)
{
    for (int i = 0; i < NODES; i++) {
        size_t bytes = 0;
        uint8_t *message = read_message(j->out[i], &bytes);
        wire_reader r = wire_reader_over(message, bytes);

        assert_non_null(message);
        net_offer_read(&r, &j->offers[i]);
        assert_ok(wire_reader_end(&r, "an offer"));
        ls_free(message);
    }
}

static void tell_peers(job *j)
{
    static net_peer peer;

    for (int i = 0; i < NODES; i++) {
        int peers[NET_PEERS_MAX];
        const int n = net_peers_of(i, j->offers, NODES, peers);
        wire_writer w = {0};

        for (int k = 0; k < n; k++) {
            peer = (net_peer){.node = peers[k],
                              .measure = net_peer_is_next(i, peers[k], NODES),
                              .offer = j->offers[peers[k]]};
            net_peer_write(&w, &peer);
        }
        assert_true(send_word(j->in[i], &w));
        wire_writer_free(&w);
    }
}

static void read_reports(job *j)
{
    for (int i = 0; i < NODES; i++) {
        size_t bytes = 0;
        uint8_t *message = read_message(j->out[i], &bytes);
        wire_reader r = wire_reader_over(message, bytes);

        assert_non_null(message);
        net_report_read(&r, &j->reports[i]);
        assert_ok(wire_reader_end(&r, "a report"));
        ls_free(message);
    }
}

/* A whole run, from the first offer to all reports. */
static void run_job(job *j, const char *lab_options, const char *filter)
{
    const int code = netlab_up(&j->lab, NODES, lab_options);
    int64_t start_ms;

    if (code == NETLAB_SKIPPED)
        skip();
    assert_int_equal(code, 0);
    start_nodes(j, filter);
    read_offers(j);
    start_ms = ls_now_ms();
    tell_peers(j);
    read_reports(j);
    j->took_ms = ls_now_ms() - start_ms;
}

static int end_job(void **state)
{
    job *j = &the_job;

    LS_UNUSED(state);
    for (int i = 0; i < NODES; i++) {
        file_close(&j->in[i]); // ends the node
        file_close(&j->out[i]);
        if (j->pids[i] > 0)
            (void)waitpid(j->pids[i], NULL, 0);
        net_report_free(&j->reports[i]);
    }
    netlab_down(&j->lab);
    memset(j, 0, sizeof(*j));
    return 0;
}

static int begin_job(void **state)
{
    LS_UNUSED(state);
    memset(&the_job, 0, sizeof(the_job));
    for (int i = 0; i < NODES; i++)
        the_job.in[i] = the_job.out[i] = -1;
    return 0;
}

/* The test by `from` of the address of `to` with this prefix; the worst one of several. */
static const net_try *met(const job *j, int from, int to, const char *beginning)
{
    for (int a = 0; a < j->offers[to].n; a++) {
        char host[NET_ADDRESS_TEXT_MAX];

        if (!text_starts(net_address_host(host, sizeof(host), &j->offers[to].at[a].address),
                         beginning))
            continue;
        for (int i = 0; i < j->reports[from].n; i++) {
            const net_try *t = &j->reports[from].tries[i];

            if (t->peer == to && t->address == a)
                return t;
        }
    }
    fail_msg("node %d has not tried %s... of node %d", from, beginning, to);
    return NULL;
}

static void expect_all(const job *j, const char *beginning, net_outcome wanted)
{
    for (int from = 0; from < NODES; from++)
        for (int to = 0; to < NODES; to++) {
            const net_outcome o =
                from == to ? wanted : (net_outcome)met(j, from, to, beginning)->outcome;

            if (o != wanted)
                fail_msg("%s... of node %d from node %d: %s, not %s", beginning, to, from,
                         net_outcome_text(o), net_outcome_text(wanted));
        }
}

static void expect_names(const net_choice *c, const char *first, const char *last)
{
    for (int i = 0; i < NODES; i++)
        assert_string_equal(c->picks[i].at[0].name, i == NODES - 1 ? last : first);
}

static void fast_network_is_found_among_faulty_ones(void **state)
{
    job *j = &the_job;
    net_choice c;
    text_buf matrix = {0};

    LS_UNUSED(state);
    run_job(j, "--mixed --dead --black-hole", "");
    assert_ok(net_choose(j->offers, j->reports, NODES, NULL, &c));
    net_matrix_text(j->offers, j->reports, NODES, &matrix);
    print_message("%s\nafter %d ms\n%s", text_str(&c.text), (int)j->took_ms, text_str(&matrix));
    text_free(&matrix);
    expect_names(&c, "eth0", "ens3");
    net_choice_free(&c);
    assert_string_equal(j->offers[1].host, "node1");
    expect_all(j, "10.77.", NET_OK);
    expect_all(j, "10.78.", NET_OK);
    expect_all(j, "10.79.", NET_TIMED_OUT);
    expect_all(j, "10.80.", NET_BLACK_HOLE);
    expect_all(j, "172.17.", NET_WRONG_NODE);
    for (int i = 0; i < NODES; i++) {
        const net_try *slow = met(j, i, (i + 1) % NODES, "10.78.");

        assert_true(slow->bytes_per_s > 2000000 && slow->bytes_per_s < 40000000); // 25 MB/s
        assert_int_equal(met(j, i, (i + 2) % NODES, "10.77.")->bytes_per_s, 0);
    }
    assert_true(j->took_ms < TOTAL_MS);
}

static void interface_name_of_the_fast_network_does_not_matter(void **state)
{
    job *j = &the_job;
    net_choice c;

    LS_UNUSED(state);
    run_job(j, "--slow-first", "");
    assert_ok(net_choose(j->offers, j->reports, NODES, NULL, &c));
    expect_names(&c, "eth1", "eth1");
    net_choice_free(&c);
    assert_true(j->took_ms < TOTAL_MS);
}

static void network_that_the_user_names_is_selected(void **state)
{
    job *j = &the_job;
    net_choice c;

    LS_UNUSED(state);
    run_job(j, "--mixed", "10.78.0.0/16");
    for (int i = 0; i < NODES; i++)
        assert_int_equal(j->offers[i].n, 1);
    assert_ok(net_choose(j->offers, j->reports, NODES, NULL, &c));
    expect_names(&c, "eth1", "eth1");
    net_choice_free(&c);
}

static void failure_of_all_networks_is_reported(void **state)
{
    job *j = &the_job;
    net_choice c;

    LS_UNUSED(state);
    run_job(j, "--dead --black-hole", "eth2,eth3,docker0");
    assert_status(net_choose(j->offers, j->reports, NODES, NULL, &c), LS_EPEER);
    print_message("%s", text_str(&c.text));
    assert_non_null(strstr(text_str(&c.text),
                           "    eth2       10.79.0.11/24        from nodes 0,2: timed out\n"));
    assert_non_null(strstr(text_str(&c.text), "from nodes 0,2: MTU black hole\n"));
    assert_non_null(strstr(text_str(&c.text), "from nodes 0,2: wrong node\n"));
    assert_non_null(strstr(text_str(&c.text), "ip link set dev eth3 mtu 1500"));
    net_choice_free(&c);
}

/* --- the lab itself --- */

static bool lab_exists(const netlab *lab)
{
    char command[128];

    text_format(command, sizeof(command), "ip netns list | grep -q '^%s-'", lab->name);
    return system(command) == 0;
}

static void concurrent_labs_have_separate_hosts(void **state)
{
    netlab labs[2];
    int codes[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        codes[i] = netlab_up(&labs[i], 2, "");
    if (codes[0] == NETLAB_SKIPPED)
        skip();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(codes[i], 0);
        assert_true(netlab_run(&labs[i], 1, "test $(hostname) = node1"));
        assert_true(netlab_run(&labs[i], 1, "grep -q '127.0.1.1 node1' /etc/hosts"));
        assert_true(netlab_run(&labs[i], 1, "grep -q '10.77.0.10 node0' /etc/hosts"));
        assert_true(netlab_run(&labs[i], 0, "ip addr show docker0 | grep -q 172.17.0.1/16"));
        assert_false(netlab_run(&labs[i], 0, "exit 3"));
    }
    netlab_down(&labs[0]);
    assert_true(lab_exists(&labs[1]));
    assert_true(netlab_run(&labs[1], 0, "true"));
    netlab_down(&labs[1]);
}

static void lab_is_removed_when_its_owner_is_killed(void **state)
{
    const int64_t deadline_ms = ls_deadline_ms(30000);
    netlab lab = {{0}};
    int code = 1;
    int up[2];
    pid_t owner;

    LS_UNUSED(state);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    owner = fork();
    if (owner == 0) {
        code = netlab_up(&lab, 1, "");
        (void)!write(up[1], &code, sizeof(code));
        (void)!write(up[1], &lab, sizeof(lab));
        for (;;)
            (void)pause();
    }
    assert_true(move_all(up[0], &code, sizeof(code), false));
    assert_true(move_all(up[0], &lab, sizeof(lab), false));
    (void)close(up[0]);
    (void)close(up[1]);
    (void)kill(owner, SIGKILL);
    (void)waitpid(owner, NULL, 0);
    if (code == NETLAB_SKIPPED)
        skip();
    assert_int_equal(code, 0);
    while (lab_exists(&lab)) {
        assert_true(ls_deadline_left(deadline_ms) > 0);
        (void)usleep(100000);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fast_network_is_found_among_faulty_ones, begin_job,
                                        end_job),
        cmocka_unit_test_setup_teardown(interface_name_of_the_fast_network_does_not_matter,
                                        begin_job, end_job),
        cmocka_unit_test_setup_teardown(network_that_the_user_names_is_selected, begin_job,
                                        end_job),
        cmocka_unit_test_setup_teardown(failure_of_all_networks_is_reported, begin_job, end_job),
        cmocka_unit_test(concurrent_labs_have_separate_hosts),
        cmocka_unit_test(lab_is_removed_when_its_owner_is_killed),
    };
    netlab lab;
    int code;

    if (argc == 4 && text_equal(argv[1], "node"))
        return be_node(argv[2][0] - '0', argv[3]);
    code = netlab_up(&lab, 1, "");
    netlab_down(&lab);
    if (code == NETLAB_SKIPPED)
        return NETLAB_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
