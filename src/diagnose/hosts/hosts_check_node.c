/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_node.c - one host's part in a check of several: a child process checks the machine
 * and sends its results through a pipe, while this process answers requests and tests networks. The
 * child dies with its parent. Used on the starting machine by hosts_check.c, on other hosts by
 * hosts_check_agent.c.
 */
#include "diagnose/hosts/hosts_check_node.h"

#include "base/alloc.h"
#include "diagnose/checks/check_sources.h"
#include "host/process.h"
#include "launch/network/net_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ_BYTES = 8192, MESSAGE_MOST = 16384 };

struct hosts_check_node {
    hosts_check_node_options opt;
    net_probe *probe;
    bool is_testing;
    pid_t child; /* checks this machine; 0: none, or reaped */
    int fd;      /* the child's messages */
    poll_watch *watch;
    frame_reader from_child;
};

/* --- the child --- */

static ls_status send_facts(int fd, const hosts_check_node_options *opt)
{
    hosts_check_facts facts;
    wire_writer w = {0};
    ls_status st;

    hosts_check_facts_gather(opt->is_quick, opt->checks.sources->is_static, &facts);
    hosts_check_facts_write(&w, &facts);
    st = hosts_check_write(fd, "a pipe", HOSTS_CHECK_FACTS, &w);
    wire_writer_free(&w);
    return st;
}

static ls_status send_findings(int fd, const findings *found)
{
    wire_writer w = {0};
    ls_status st = LS_OK;

    for (int i = 0; i < found->n && i < HOSTS_CHECK_FINDINGS_MAX && st == LS_OK; i++) {
        wire_writer_reset(&w);
        hosts_check_finding_write(&w, &found->items[i]);
        st = hosts_check_write(fd, "a pipe", HOSTS_CHECK_FINDING, &w);
    }
    wire_writer_free(&w);
    return st;
}

static void check_folder(const char *folder, findings *out)
{
    if (folder != NULL && chdir(folder) != 0)
        finding_add(out, FINDING_HOST_FOLDER_KIND, FINDING_WARNING,
                    "cd to a folder that all hosts have   # or mount it on this host",
                    "cannot enter folder %s: %s", folder, ls_errno_text(errno));
}

static ls_status run_checks(int fd, const hosts_check_node_options *opt)
{
    findings found = {0};
    ls_status st = send_facts(fd, opt);

    if (st == LS_OK)
        st = opt->is_quick ? check_quick(&opt->checks, &found) : check_all(&opt->checks, &found);
    check_folder(opt->folder, &found);
    if (st == LS_OK)
        st = send_findings(fd, &found);
    findings_free(&found);
    return st;
}

/* The last message is the failure of the checks, or "". */
static void run_child(int fd, const hosts_check_node_options *opt, pid_t parent)
{
    const int keep[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, fd};
    wire_writer w = {0};
    sigset_t none;

    sigemptyset(&none);
    (void)pthread_sigmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    /* The parent's connections must close with the parent. */
    process_close_all_but(keep, (int)LS_COUNT_OF(keep));
    wire_write_text(&w, run_checks(fd, opt) == LS_OK ? "" : ls_last_error());
    _exit(hosts_check_write(fd, "a pipe", HOSTS_CHECK_LOCAL_DONE, &w) == LS_OK ? 0 : 1);
}

/* --- messages of the child --- */

static void send_text(const hosts_check_node *node, hosts_check_message type, const char *text)
{
    wire_writer w = {0};

    wire_write_text(&w, text);
    node->opt.send(node->opt.self, type, &w);
    wire_writer_free(&w);
}

static void close_child(hosts_check_node *node)
{
    poller_close(&node->watch, &node->fd);
    frame_reader_free(&node->from_child);
    if (node->child > 0) {
        kill(node->child, SIGKILL);
        (void)waitpid(node->child, NULL, WNOHANG); /* PDEATHSIG ends it otherwise */
    }
    node->child = 0;
}

static void forward(hosts_check_node *node, const frame *f)
{
    const wire_writer body = {.data = (uint8_t *)(uintptr_t)f->body, .bytes = f->bytes};

    node->opt.send(node->opt.self, (hosts_check_message)f->type, &body);
}

static void on_child_exit(hosts_check_node *node)
{
    char end[96] = "ended";
    char text[160];
    int wait_status = 0;

    if (waitpid(node->child, &wait_status, 0) == node->child)
        process_end_text(end, sizeof(end), wait_status);
    node->child = 0;
    close_child(node);
    send_text(node, HOSTS_CHECK_LOCAL_DONE,
              text_format(text, sizeof(text), "the checking process %s", end));
}

static void on_child(void *arg, unsigned events)
{
    hosts_check_node *node = arg;
    char bytes[READ_BYTES];
    const ssize_t n = read(node->fd, bytes, sizeof(bytes));
    bool have = true;
    bool is_last = false;
    ls_status st;
    frame f;

    LS_UNUSED(events);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    st = n > 0 ? frame_reader_feed(&node->from_child, bytes, (size_t)n) : LS_EPEER;
    while (st == LS_OK && have && !is_last) {
        st = frame_reader_next(&node->from_child, &f, &have);
        if (st != LS_OK || !have)
            continue;
        is_last = f.type == HOSTS_CHECK_LOCAL_DONE;
        forward(node, &f);
    }
    if (is_last)
        close_child(node);
    else if (st != LS_OK)
        on_child_exit(node);
}

static ls_status start_child(hosts_check_node *node)
{
    const pid_t parent = getpid();
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe");
    node->child = fork();
    if (node->child == 0)
        run_child(fds[1], &node->opt, parent);
    (void)close(fds[1]);
    node->fd = fds[0];
    if (node->child < 0) {
        node->child = 0;
        return ls_fail_errno("a process for the checks");
    }
    if (fcntl(node->fd, F_SETFL, O_NONBLOCK) != 0)
        return ls_fail_errno("a pipe");
    return poller_watch(node->opt.loop, node->fd, POLL_READ, on_child, node, &node->watch);
}

/* --- requests --- */

static ls_status send_time(const hosts_check_node *node, const frame *f, int64_t received_ns)
{
    hosts_check_time t = {.received_ns = received_ns};
    wire_writer w = {0};

    LS_TRY(hosts_check_number_read(f, &t.number));
    t.sent_ns = hosts_check_now_ns();
    hosts_check_time_write(&w, &t);
    node->opt.send(node->opt.self, HOSTS_CHECK_TIME, &w);
    wire_writer_free(&w);
    return LS_OK;
}

static void on_network_tested(void *self, const net_report *report)
{
    const hosts_check_node *node = self;
    wire_writer w = {0};

    net_report_write(&w, report);
    node->opt.send(node->opt.self, HOSTS_CHECK_REPORT, &w);
    wire_writer_free(&w);
}

static ls_status start_network_test(hosts_check_node *node, const frame *f)
{
    net_peers peers;
    ls_status st;

    if (node->is_testing)
        return ls_fail(LS_EPROTO, "hosts to test received twice");
    LS_TRY(wire_read_frame(f, &net_peers_table, &peers));
    st = net_probe_start(node->probe, peers.list, peers.n, on_network_tested, node);
    node->is_testing = true;
    net_peers_free(&peers);
    return st;
}

ls_status hosts_check_node_receive(hosts_check_node *node, const frame *f)
{
    const int64_t received_ns = hosts_check_now_ns();

    switch (f->type) {
    case HOSTS_CHECK_ASK_TIME:
        return send_time(node, f, received_ns);
    case HOSTS_CHECK_TRY:
        return start_network_test(node, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

/* --- life --- */

static ls_status offer(hosts_check_node *node)
{
    char host[NET_HOST_BYTES] = "?";
    const net_probe_options options = {.loop = node->opt.loop,
                                       .key = node->opt.key,
                                       .job = "survey", /* part of the wire format */
                                       .generation = 1,
                                       .node = node->opt.node,
                                       .host = host,
                                       .filter = node->opt.net,
                                       .ports = node->opt.ports};
    wire_writer w = {0};

    (void)gethostname(host, sizeof(host) - 1);
    LS_TRY(net_probe_open(&options, &node->probe));
    net_offer_write(&w, net_probe_offer(node->probe));
    node->opt.send(node->opt.self, HOSTS_CHECK_OFFER, &w);
    wire_writer_free(&w);
    return LS_OK;
}

ls_status hosts_check_node_open(const hosts_check_node_options *opt, hosts_check_node **out)
{
    hosts_check_node *node;
    ls_status st = LS_OK;

    *out = NULL;
    LS_TRY(LS_NEW(&node, 1, "to check this machine"));
    node->opt = *opt;
    node->fd = -1;
    frame_reader_init(&node->from_child, MESSAGE_MOST);
    if (!opt->is_passive)
        st = start_child(node);
    if (st == LS_OK)
        st = offer(node);
    if (st == LS_OK)
        *out = node;
    else
        hosts_check_node_close(node);
    return st;
}

void hosts_check_node_close(hosts_check_node *node)
{
    if (node == NULL)
        return;
    close_child(node);
    net_probe_close(node->probe);
    ls_free(node);
}
