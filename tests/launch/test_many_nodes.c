/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A head with up to 512 nodes of 8 ranks: the head of `lockstep run` in a process of its own, and
 * all agents and ranks as connections of this process, over TCP, with all messages from the first
 * hello until each rank has the records of all others. What it costs the head grows linearly with
 * the number of ranks. LS_TEST_FULL=1 includes 1024 nodes.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/head/head.h"
#include "launch/head/node_messages.h"
#include "launch/network/net_choice.h"
#include "net/auth/dial.h"
#include "net/messages/frame_link.h"
#include "hub/hub_messages.h"
#include "hub/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW 1
#else
#define IS_SLOW 0
#endif

#define PER_NODE 8
#define SOON_MS  120000
#define SCOPE    "j1/boot/"
/* Of the head: CPU time for 512 nodes, memory for each rank; and bytes of each record to all. */
#define HEAD_CPU_MS  3000
#define RANK_KIB     16
#define RECORD_BYTES 64

typedef struct world world;

typedef struct fake_rank {
    world *w;
    int rank;
    char name[16];
    dial *dialing;
    frame_link link;
    int n_replies;
    int n_records;
} fake_rank;

typedef struct fake_agent {
    world *w;
    int number;
    char name[16];
    dial *dialing;
    frame_link link;
    node_welcome welcome;
    bool has_ended;
} fake_agent;

struct world {
    poller *loop;
    net_key key;
    net_key job_key;
    net_address head_at;
    net_address hub_at;
    int n_nodes;
    int n_started;
    int n_done; /* ranks */
    int n_over;
    size_t received; /* by all ranks in answers with records */
    fake_agent *agents;
    fake_rank *ranks;
};

// --- the head's process ---

static void serve(const net_key *key, int n_nodes, int out)
{
    const head_options opt = {.rendezvous = {.min_nodes = n_nodes,
                                             .max_nodes = n_nodes,
                                             .by_id = true,
                                             .version = "1.0",
                                             .host = "head",
                                             .last_call_ms = -1},
                              .key = key,
                              .quiet_roster = true};
    net_address at;
    poller *loop;
    head *h;

    if (poller_create(&loop) != LS_OK || head_create(loop, &opt, &h) != LS_OK ||
        net_address_decode("127.0.0.1:0", &at) != LS_OK || head_listen(h, &at, &at) != LS_OK ||
        write(out, &at, sizeof(at)) != (ssize_t)sizeof(at))
        _exit(1);
    while (!head_has_started(h) || head_has_remote_nodes(h))
        if (poller_run_once(loop, -1) != LS_OK)
            _exit(2);
    head_destroy(h);
    poller_destroy(loop);
    _exit(0);
}

static pid_t start_head(world *w)
{
    int fds[2];
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        serve(&w->key, w->n_nodes, fds[1]);
    assert_int_equal(read(fds[0], &w->head_at, sizeof(w->head_at)), sizeof(w->head_at));
    (void)close(fds[0]);
    (void)close(fds[1]);
    return pid;
}

// The most memory of its own that a process has had, in KiB.
static long peak_kib(pid_t pid)
{
    char path[64];
    char line[256];
    long kib = -1;
    FILE *f = fopen(text_format(path, sizeof(path), "/proc/%d/status", (int)pid), "r");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    (void)fclose(f);
    assert_true(kib > 0);
    return kib;
}

// --- a rank ---

static void end_of_link(void *self, const char *why)
{
    LS_UNUSED(self);
    fail_msg("a connection has ended: %s", why);
}

static void ask(fake_rank *r, uint32_t type, wire_writer *w)
{
    assert_ok(wire_writer_status(w));
    frame_link_send(&r->link, type, w->data, w->bytes);
    wire_writer_free(w);
}

static const char *key_of(const fake_rank *r, char key[32])
{
    return text_format(key, 32, SCOPE "%d", r->rank);
}

// What a rank publishes: comm/join/boot_record.c. Nodes have addresses and names of their own.
static void write_record(const fake_rank *r, wire_writer *w)
{
    const int node = r->rank / PER_NODE;
    char text[96];

    wire_write_u16(w, 3);
    wire_write_u32(w, (uint32_t)r->rank);
    wire_write_u32(w, 20000 + (uint32_t)(r->rank % PER_NODE) * 7 + (uint32_t)node * 3);
    wire_write_u64(w, (uint64_t)r->rank * UINT64_C(0x9e3779b97f4a7c15));
    wire_write_u32(w, 1);
    wire_write_text(w, text_format(text, sizeof(text), "node%04d.cluster", node));
    wire_write_u64(w, (uint64_t)node * UINT64_C(0xbf58476d1ce4e5b9));
    wire_write_u64(w, (uint64_t)r->rank * UINT64_C(0x94d049bb133111eb));
    wire_write_u32(w, 1);
    wire_write_text(w, "native");
    wire_write_text(w, "auto");
    wire_write_u64(w, 262144);
    wire_write_text(w, "");
    wire_write_u8(w, 0);
    wire_write_u8(w, 1);
    wire_write_text(w, text_format(text, sizeof(text), "unix:@lockstep-rank-%016llx",
                                   (unsigned long long)r->rank * 0x9e3779b97f4a7c15ULL));
    wire_write_u16(w, 1);
    wire_write_text(w, text_format(text, sizeof(text), "tcp://10.77.%d.%d:%d", node / 200,
                                   node % 200 + 10, 32768 + r->rank * 31 % 28000));
}

static void ask_for_records(fake_rank *r)
{
    wire_writer w = {0};

    wire_write_u64(&w, 3);
    wire_write_i64(&w, SOON_MS);
    wire_write_u32(&w, (uint32_t)(r->w->n_nodes * PER_NODE));
    wire_write_text(&w, SCOPE);
    wire_write_u32(&w, (uint32_t)r->n_records);
    ask(r, HUB_MESSAGE_GATHER, &w);
}

static void publish(fake_rank *r)
{
    wire_writer record = {0};
    wire_writer w = {0};
    char key[32];

    write_record(r, &record);
    assert_ok(wire_writer_status(&record));
    wire_write_u64(&w, 2);
    wire_write_text(&w, key_of(r, key));
    wire_write_bytes(&w, record.data, record.bytes);
    wire_writer_free(&record);
    ask(r, HUB_MESSAGE_SET, &w);
}

static void count_join(fake_rank *r)
{
    wire_writer w = {0};
    char key[32];

    wire_write_u64(&w, 1);
    wire_write_text(&w, text_format(key, sizeof(key), "joins/%d", r->rank));
    wire_write_i64(&w, 1);
    ask(r, HUB_MESSAGE_ADD, &w);
}

static ls_status take_records(fake_rank *r, wire_reader *reader, size_t bytes)
{
    const int n_ranks = r->w->n_nodes * PER_NODE;
    byte_queue value = {0};
    ls_status st = LS_OK;

    r->w->received += bytes;
    for (int i = 0; i < HUB_MESSAGE_VALUES && r->n_records < n_ranks && st == LS_OK; i++) {
        st = values_read(reader, &value);
        r->n_records++;
    }
    byte_queue_free(&value);
    LS_TRY(st);
    LS_TRY(wire_reader_end(reader, "records"));
    if (r->n_records < n_ranks)
        ask_for_records(r);
    else
        r->w->n_done++;
    return LS_OK;
}

static ls_status on_hub(void *self, const frame *f)
{
    fake_rank *r = self;
    wire_reader reader = wire_reader_over(f->body, f->bytes);

    if (f->type == HUB_MESSAGE_WELCOME) {
        count_join(r);
        return LS_OK;
    }
    assert_int_equal(f->type, HUB_MESSAGE_REPLY);
    (void)wire_read_u64(&reader);
    assert_int_equal(wire_read_u32(&reader), LS_OK);
    if (++r->n_replies == 1)
        publish(r);
    else if (r->n_replies == 2)
        ask_for_records(r);
    else
        return take_records(r, &reader, f->bytes);
    return LS_OK;
}

static void rank_dialed(void *self, int fd, const net_address *at, ls_status st, const char *why)
{
    fake_rank *r = self;
    wire_writer w = {0};

    LS_UNUSED(at);
    if (st != LS_OK || fd < 0)
        fail_msg("rank %d: %s", r->rank, why);
    dial_close(r->dialing);
    r->dialing = NULL;
    r->link = (frame_link){.self = r, .message = on_hub, .ended = end_of_link};
    text_format(r->name, sizeof(r->name), "rank %d", r->rank);
    assert_ok(frame_link_open(&r->link, r->w->loop, fd, r->name, HUB_MESSAGE_BODY_MAX,
                              HUB_MESSAGE_QUEUE_MAX));
    wire_write_u32(&w, (uint32_t)r->rank);
    wire_write_u32(&w, (uint32_t)(r->w->n_nodes * PER_NODE));
    wire_write_u32(&w, (uint32_t)getpid());
    ask(r, HUB_MESSAGE_HELLO, &w);
}

static void start_rank(fake_agent *a, int local)
{
    world *w = a->w;
    fake_rank *r = &w->ranks[a->number * PER_NODE + local];
    dial_options opt = {.addresses = &w->hub_at,
                        .n_addresses = 1,
                        .key = &w->job_key,
                        .claim = {.purpose = NET_PURPOSE_CONTROL, .to = HANDSHAKE_ANY_RANK},
                        .deadline_ms = ls_deadline_ms(SOON_MS),
                        .self = r,
                        .done = rank_dialed};

    r->w = w;
    r->rank = a->number * PER_NODE + local;
    opt.claim.from = (uint32_t)r->rank;
    opt.claim.generation = a->welcome.place.generation;
    text_format(opt.claim.job, sizeof(opt.claim.job), "%s", a->welcome.job);
    assert_ok(dial_open(w->loop, &opt, &r->dialing));
}

// --- an agent ---

static void say(fake_agent *a, node_message type, wire_writer *w)
{
    assert_ok(wire_writer_status(w));
    frame_link_send(&a->link, type, w->data, w->bytes);
    wire_writer_free(w);
}

static void offer_address(fake_agent *a)
{
    net_offer offer = {.machine = 1000 + (uint64_t)a->number, .n = 1};
    wire_writer w = {0};
    char text[64];

    text_format(offer.host, sizeof(offer.host), "node%04d", a->number);
    text_format(offer.at[0].name, sizeof(offer.at[0].name), "eth0");
    assert_ok(net_address_decode(text_format(text, sizeof(text), "tcp://10.77.%d.%d:4711",
                                             a->number / 200, a->number % 200 + 10),
                                 &offer.at[0].address));
    offer.at[0].prefix = 16;
    wire_write_u32(&w, a->welcome.place.generation);
    net_offer_write(&w, &offer);
    say(a, NODE_OFFER, &w);
}

static ls_status report_probes(fake_agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    wire_writer w = {0};
    net_try tries[NET_PEERS_MAX];
    net_report report = {.tries = tries};
    net_peer peer;

    wire_write_u32(&w, wire_read_u32(&r));
    report.n = (int)wire_read_u32(&r);
    assert_in_range(report.n, 1, NET_PEERS_MAX);
    for (int i = 0; i < report.n; i++) {
        net_peer_read(&r, &peer);
        tries[i] = (net_try){.peer = (uint16_t)peer.node,
                             .local = 0,
                             .outcome = NET_OK,
                             .round_trip_us = 100,
                             .bytes_per_s = peer.measure ? 1000000000 : 0};
    }
    LS_TRY(wire_reader_end(&r, "peers"));
    net_report_write(&w, &report);
    say(a, NODE_PROBED, &w);
    return LS_OK;
}

static ls_status on_welcome(fake_agent *a, const frame *f)
{
    world *w = a->w;

    LS_TRY(node_read_welcome(f, &a->welcome));
    w->hub_at = w->head_at;
    net_address_set_port(&w->hub_at, a->welcome.hub_port);
    LS_TRY(head_job_key(&w->key, a->welcome.job, &w->job_key));
    offer_address(a);
    return LS_OK;
}

static ls_status on_message(void *self, const frame *f)
{
    fake_agent *a = self;
    wire_writer w = {0};
    text_buf text = {0};

    switch (f->type) {
    case NODE_WELCOME:
        return on_welcome(a, f);
    case NODE_PROBE:
        return report_probes(a, f);
    case NODE_NETWORK:
        node_write_master(&w, &(node_master){.generation = a->welcome.place.generation,
                                             .port = a->number == 0 ? 29500 : 0});
        say(a, NODE_READY, &w);
        return LS_OK;
    case NODE_START:
        a->w->n_started++;
        for (int i = 0; i < PER_NODE; i++)
            start_rank(a, i);
        return LS_OK;
    case NODE_BEAT:
        say(a, NODE_BEAT, &w);
        return LS_OK;
    case NODE_OVER:
        a->w->n_over++;
        a->has_ended = true;
        return LS_OK;
    case NODE_REJECT:
    case NODE_NOTE:
        LS_TRY(node_read_text(f, &text));
        fail_msg("node %d receives \"%s\"", a->number, text_str(&text));
        return LS_OK;
    default:
        return LS_OK;
    }
}

static void agent_ended(void *self, const char *why)
{
    const fake_agent *a = self;

    if (!a->has_ended)
        fail_msg("the connection of node %d has ended: %s", a->number, why);
}

static void agent_dialed(void *self, int fd, const net_address *at, ls_status st, const char *why)
{
    fake_agent *a = self;
    const rdzv_hello hello = {.uid = 100 + (uint64_t)a->number,
                              .id = a->number,
                              .n_local = PER_NODE,
                              .version = "1.0",
                              .host = a->name};
    wire_writer w = {0};

    LS_UNUSED(at);
    if (st != LS_OK || fd < 0)
        fail_msg("node %d: %s", a->number, why);
    dial_close(a->dialing);
    a->dialing = NULL;
    a->link = (frame_link){.self = a, .message = on_message, .ended = agent_ended};
    assert_ok(frame_link_open(&a->link, a->w->loop, fd, "the head", NODE_BODY_MAX, NODE_QUEUE_MAX));
    node_write_hello(&w, &hello);
    say(a, NODE_HELLO, &w);
}

static void start_agent(world *w, int number)
{
    fake_agent *a = &w->agents[number];
    const dial_options opt = {.addresses = &w->head_at,
                              .n_addresses = 1,
                              .key = &w->key,
                              .claim = {.purpose = NET_PURPOSE_NODE,
                                        .from = HANDSHAKE_ANY_RANK,
                                        .to = HANDSHAKE_ANY_RANK},
                              .deadline_ms = ls_deadline_ms(SOON_MS),
                              .self = a,
                              .done = agent_dialed};

    *a = (fake_agent){.w = w, .number = number};
    text_format(a->name, sizeof(a->name), "node%04d", number);
    assert_ok(dial_open(w->loop, &opt, &a->dialing));
}

// --- a job ---

typedef struct cost {
    int64_t start_ms; /* until all agents may start their ranks */
    int64_t join_ms;  /* and until each rank has all records */
    int64_t end_ms;
    int64_t cpu_ms; /* of the head */
    long kib;       /* its peak */
    size_t received;
} cost;

static void await(world *w, const int *n, int wanted, const char *what)
{
    const int64_t until_ms = ls_deadline_ms(SOON_MS);

    while (*n < wanted) {
        if (ls_deadline_left(until_ms) == 0)
            fail_msg("%d of %d %s", *n, wanted, what);
        assert_ok(poller_run_once(w->loop, 100));
    }
}

static void end_job(world *w)
{
    for (int i = 0; i < w->n_nodes * PER_NODE; i++) {
        frame_link_send(&w->ranks[i].link, HUB_MESSAGE_LEAVE_JOB, NULL, 0);
        frame_link_close(&w->ranks[i].link);
    }
    for (int i = 0; i < w->n_nodes; i++) {
        wire_writer out = {0};

        node_write_end(&out, &(node_end){.generation = w->agents[i].welcome.place.generation,
                                         .n_well = PER_NODE,
                                         .local_rank = -1,
                                         .text = "",
                                         .details = ""});
        say(&w->agents[i], NODE_FINISHED, &out);
    }
    await(w, &w->n_over, w->n_nodes, "nodes have received the end of the job");
    for (int i = 0; i < w->n_nodes; i++)
        frame_link_close(&w->agents[i].link);
}

static int64_t ms_of(struct timeval t)
{
    return (int64_t)t.tv_sec * 1000 + t.tv_usec / 1000;
}

static cost run_job(int n_nodes)
{
    const int64_t began_ms = ls_now_ms();
    world w = {.n_nodes = n_nodes};
    struct rusage used;
    cost c = {0};
    int status;
    pid_t pid;

    assert_ok(net_key_random(&w.key));
    assert_ok(net_set_silence(SOON_MS)); // on a busy machine heartbeats come late
    pid = start_head(&w);
    assert_ok(poller_create(&w.loop));
    w.agents = ls_calloc((size_t)n_nodes, sizeof(*w.agents));
    w.ranks = ls_calloc((size_t)n_nodes * PER_NODE, sizeof(*w.ranks));
    assert_true(w.agents != NULL && w.ranks != NULL);
    for (int i = 0; i < n_nodes; i++)
        start_agent(&w, i);
    await(&w, &w.n_started, n_nodes, "nodes have started");
    c.start_ms = ls_now_ms() - began_ms;
    await(&w, &w.n_done, n_nodes * PER_NODE, "ranks have joined");
    c.join_ms = ls_now_ms() - began_ms - c.start_ms;
    c.kib = peak_kib(pid);
    end_job(&w);
    c.end_ms = ls_now_ms() - began_ms - c.start_ms - c.join_ms;
    c.received = w.received;
    assert_int_equal(wait4(pid, &status, 0, &used), pid);
    assert_int_equal(status, 0);
    c.cpu_ms = ms_of(used.ru_utime) + ms_of(used.ru_stime);
    ls_free(w.agents);
    ls_free(w.ranks);
    poller_destroy(w.loop);
    return c;
}

// Descriptors: a connection of each agent and rank in this process, as many in the head's.
static bool can_open(int n_nodes)
{
    const rlim_t n = (rlim_t)n_nodes * (1 + PER_NODE) + 200;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    if (limit.rlim_cur < n)
        limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= n;
}

static void check_slope(long kib, int n_ranks)
{
    print_message("  slope: %.1f KiB a rank\n", (double)kib / n_ranks);
    assert_true(IS_SLOW || kib <= (long)RANK_KIB * n_ranks);
}

static void cost_of_the_head_grows_linearly(void **state)
{
    static const int sizes[] = {64, 128, 256, 512, 1024};
    const size_t n_sizes = IS_SLOW ? 2 : getenv("LS_TEST_FULL") != NULL ? 5 : 4;
    cost costs[LS_COUNT_OF(sizes)];
    size_t n = 0;

    LS_UNUSED(state);
    for (; n < n_sizes && can_open(sizes[n]); n++) {
        cost *c = &costs[n];
        const int n_ranks = sizes[n] * PER_NODE;

        *c = run_job(sizes[n]);
        print_message("%d nodes, %d ranks: start %d ms, join %d ms, end %d ms; head: %d ms of CPU, "
                      "%.1f MiB; %.1f KiB of records to each rank\n",
                      sizes[n], n_ranks, (int)c->start_ms, (int)c->join_ms, (int)c->end_ms,
                      (int)c->cpu_ms, (double)c->kib / 1024, (double)c->received / n_ranks / 1024);
        assert_true(c->received <= (size_t)n_ranks * (size_t)n_ranks * RECORD_BYTES);
        if (n > 0)
            check_slope(c->kib - costs[n - 1].kib, n_ranks - sizes[n - 1] * PER_NODE);
    }
    if (n < 2) {
        print_message("skipped: not so many descriptors (ulimit -Hn)\n");
        skip();
    }
    assert_true(IS_SLOW || n < 4 || costs[3].cpu_ms <= HEAD_CPU_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cost_of_the_head_grows_linearly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
