/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_ranks.c - the hub and the store of one generation, and the events of its ranks there. Both
 * are opened before the first welcome of a generation and closed before the next one. Called by
 * head.c and head_nodes.c.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "host/process.h"
#include "host/process_id.h"
#include "net/socket.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BROKEN_MS = 60000, /* a second broken group within this time is a consequence of the first */
    BACKLOG = 4096,
    RESUMED_MS = 2000,  /* after Ctrl-Z and fg no wait is reported for this time */
    CHECK_MS = 1000,    /* between checks for stopped ranks */
    HUB_FIRST_MS = 1000 /* the hub may name a stopped rank first */
};

/* --- events of the hub --- */

const rdzv_place *head_place_of_slot(const head *h, int slot)
{
    for (int i = 0; i < h->n_places; i++) {
        const rdzv_place *p = &h->places[i];

        if (slot >= p->rank_base && slot < p->rank_base + p->n_local)
            return p;
    }
    return NULL;
}

head_node *head_node_of_slot(const head *h, int slot, int *local)
{
    const rdzv_place *p = head_place_of_slot(h, slot);
    head_node *node = p != NULL ? head_find_node(h, p->conn) : NULL;

    if (node == NULL || node->place == NULL) /* it has no place when it has left the generation */
        return NULL;
    *local = slot - p->rank_base;
    return node;
}

static bool is_running(const head *h)
{
    return rdzv_phase_now(h->machine) == RDZV_RUN;
}

/* The node of a rank that has aborted or left a group reports this rank if it fails, even if
 * another one exits first. */
static void send_aborted(head *h, const job_cause *cause)
{
    node_failure aborted = {.generation = h->generation, .exit_code = 1};
    wire_writer w = {0};
    head_node *node = head_node_of_slot(h, head_slot_of_rank(h, cause->rank), &aborted.local_rank);

    if (node == NULL)
        return;
    if (node->is_own) {
        if (h->opt.note_abort != NULL)
            h->opt.note_abort(h->opt.self, aborted.local_rank);
        return;
    }
    node_write_failure(&w, &aborted);
    head_send_free(node, NODE_ABORTED, &w);
}

static void note_broken(head *h, const job_cause *cause)
{
    if (h->broken.kind != CAUSE_NONE && ls_now_ms() - h->broken_ms < BROKEN_MS)
        return;
    h->broken = *cause;
    h->broken_ms = ls_now_ms();
    if (cause->kind == CAUSE_ABORTED || cause->kind == CAUSE_LEFT)
        send_aborted(h, cause);
}

ls_status head_handle_cause(head_node *node, const frame *f)
{
    head *h = node->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t generation = wire_read_u32(&r);
    job_cause cause;

    cause_read(&r, &cause);
    LS_TRY(wire_reader_end(&r, "a cause"));
    if (generation == h->generation && node->place != NULL && is_running(h) && h->elastic == NULL &&
        cause.rank < h->world_size)
        note_broken(h, &cause);
    return LS_OK;
}

/* A rank has exited with code 0 while another one joins a group of both: that would wait
 * forever. */
static void fail_early_exits(head *h)
{
    int gone = -1;
    int most = 0;
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL};

    for (int i = 0; i < h->world_size; i++) {
        const head_rank *r = &h->ranks[i];

        if (r->ended && (gone < 0 || r->n_joins < h->ranks[gone].n_joins))
            gone = i;
        if (!r->ended && !r->left && r->n_joins > most)
            most = r->n_joins;
    }
    if (gone < 0 || h->ranks[gone].n_joins >= most || !is_running(h))
        return;
    cause.rank = gone;
    text_format(cause.text, sizeof(cause.text), "rank %d (pid %d) exited with code 0 %s", gone,
                (int)h->ranks[gone].pid,
                h->ranks[gone].n_joins == 0 ? "without joining the job"
                                            : "and does not join again");
    note_broken(h, &cause);
    hub_abort(h->hub, &cause);
}

static void on_joined(void *self, int rank, pid_t pid)
{
    head *h = self;

    h->ranks[rank].pid = pid;
    h->ranks[rank].n_joins++;
    h->ranks[rank].left = false;
    fail_early_exits(h);
}

static void on_left(void *self, int rank)
{
    head *h = self;

    h->ranks[rank].left = true;
}

static void on_failed(void *self, const job_cause *cause)
{
    head *h = self;

    if (is_running(h))
        note_broken(h, cause);
}

static void on_late(void *self, const char *text)
{
    head *h = self;
    char name[16];

    for (int i = 0; i < h->world_size; i++) {
        if (strstr(text, text_format(name, sizeof(name), " %d (", i)) != NULL)
            h->ranks[i].named_ms = ls_now_ms();
    }
    if (ls_now_ms() - h->resumed_ms > RESUMED_MS)
        head_broadcast_note(h, text);
}

static void describe_rank(void *self, int rank, char *buf, size_t n)
{
    const head *h = self;
    int local = 0;
    const head_node *node = head_node_of_slot(h, head_slot_of_rank(h, rank), &local);
    char letter = 0;

    if (node != NULL && node->states != NULL)
        letter = node->states[local];
    if (node != NULL && node->is_own)
        h->opt.describe_rank(h->opt.self, local, buf, n);
    else if (node != NULL && letter != 0)
        text_format(buf, n, "%s on %s", letter == 'E' ? "ended" : process_state_text(letter),
                    node->place->host);
}

/* --- ranks that are stopped --- */

/* The hub names a stopped rank that others wait for in an operation; this covers all other waits,
 * above all that of the user for the end of the job. */
static void check_stopped_rank(head *h, int rank)
{
    head_rank *r = &h->ranks[rank];
    char doing[128] = "";
    char pid[24] = "";
    char text[256];

    describe_rank(h, rank, doing, sizeof(doing));
    if (head_is_paused(h) || ls_now_ms() - h->resumed_ms < RESUMED_MS ||
        !text_starts(doing, process_state_text('T'))) {
        r->is_stopped = false;
        return;
    }
    if (!r->is_stopped)
        r->stopped = wait_report_begin(wait_report_setting_ms() + HUB_FIRST_MS);
    r->is_stopped = true;
    if (!wait_report_is_due(&r->stopped) || r->named_ms >= r->stopped.since_ms)
        return;
    if (r->pid > 0)
        text_format(pid, sizeof(pid), " (pid %d)", (int)r->pid);
    text_format(text, sizeof(text),
                "rank %d%s has been %s for %.1f s; fix: continue it with SIGCONT", rank, pid, doing,
                wait_report_seconds(&r->stopped));
    head_broadcast_note(h, text);
}

void head_check_stopped_ranks(void *arg)
{
    head *h = arg;
    const int64_t late_ms = wait_report_setting_ms();

    for (int i = 0; i < h->world_size; i++)
        check_stopped_rank(h, i);
    poller_timer_set(h->loop, &h->stop_watch,
                     ls_now_ms() + (late_ms < CHECK_MS ? late_ms : CHECK_MS),
                     head_check_stopped_ranks, h);
}

void head_rank_ended_well(head *h, int slot, const node_exit *left)
{
    head_rank *r;
    int rank;

    head_elastic_ended(h, slot); // may have formed the next group, of other ranks
    rank = head_rank_in_slot(h, slot);
    if (rank < 0)
        return;
    r = &h->ranks[rank];
    r->ended = true;
    r->pid = left->pid;
    r->state = left->state;
    if (r->n_joins > 0 && !r->left)
        hub_rank_exited(h->hub, rank); /* fails only the ranks that wait for it */
    fail_early_exits(h);
    head_fail_early_mpi_exits(h);
}

/* --- the end of a node's ranks --- */

static void free_end(head_end *end)
{
    text_free(&end->text);
    text_free(&end->details);
}

void head_store_end(head *h, int node, const head_end *end)
{
    free_end(&h->ends[node]);
    h->ends[node] = *end;
    head_fail_early_mpi_exits(h);
}

/* --- the store, for remote nodes --- */

ls_status head_open_store(void *arg, int *fd)
{
    const head_node *node = arg;
    const head *h = node->owner;
    int fds[2];

    if (h->store == NULL || node->place == NULL)
        return ls_fail(LS_ENOTFOUND, "there is no store for this node");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return ls_fail_errno("a socket pair");
    *fd = fds[0];
    if (c10d_store_adopt(h->store, fds[1]) == LS_OK)
        return LS_OK;
    file_close(fd);
    return LS_ESYSTEM;
}

bool head_store_was_used(const head *h)
{
    return h->store != NULL && c10d_store_was_used(h->store);
}

ls_status head_serve_store(head *h, int fd)
{
    if (h->store != NULL)
        return c10d_store_adopt(h->store, fd);
    file_close(&fd);
    return ls_fail(LS_ENOTFOUND, "there is no store");
}

/* --- the user of a connection to the store --- */

static bool has_address(const net_offer *offer, const net_address *a)
{
    net_address host = *a;

    net_address_set_port(&host, 0);
    for (int i = 0; i < offer->n; i++) {
        net_address own = offer->at[i].address;

        net_address_set_port(&own, 0);
        if (net_address_equal(&own, &host))
            return true;
    }
    return false;
}

static head_node *node_with_address(const head *h, const net_address *a)
{
    for (int k = 1; k < h->n_places; k++)
        if (h->offers != NULL && h->has_offer[k] && has_address(&h->offers[k], a))
            return head_find_node(h, h->places[k].conn);
    return NULL;
}

static void answer_owner(const head *h, const node_owner_answer *answer)
{
    head_node *node = head_find_node(h, h->places[0].conn);
    wire_writer w = {0};

    node_write_owner_answer(&w, answer);
    head_send_free(node, NODE_OWNER_ANSWER, &w);
}

ls_status head_handle_owner_query(head_node *node, const frame *f)
{
    const head *h = node->owner;
    node_owner_query o;
    head_node *owner;
    wire_writer w = {0};

    LS_TRY(node_read_owner_query(f, &o));
    if (o.generation != h->generation || node->place == NULL || node->place->node != 0)
        return LS_OK;
    owner = node_with_address(h, &o.client);
    if (owner == NULL) {
        const node_owner_answer no = {.generation = o.generation, .question = o.question};

        answer_owner(h, &no);
        return LS_OK;
    }
    node_write_owner_query(&w, &o);
    head_send_free(owner, NODE_OWNER_QUERY, &w);
    return LS_OK;
}

ls_status head_handle_owner_answer(head_node *node, const frame *f)
{
    node_owner_answer answer;

    LS_TRY(node_read_owner_answer(f, &answer));
    if (answer.generation == node->owner->generation && node->place != NULL)
        answer_owner(node->owner, &answer);
    return LS_OK;
}

/* --- life --- */

/* Whether ranks of this roster run on other nodes. */
static bool has_remote_ranks(const head *h)
{
    for (int i = 0; i < h->n_places; i++) {
        const head_node *node = head_find_node(h, h->places[i].conn);

        if (node != NULL && !node->is_own)
            return true;
    }
    return false;
}

ls_status head_listen_hub(head *h, hub *server, const char *purpose, net_address *unix_at,
                          int *port)
{
    net_address at;
    int fd;

    LS_TRY(net_address_fresh_unix(purpose, &at));
    LS_TRY(hub_listen(server, &at, unix_at));
    if (!has_remote_ranks(h) || h->has_standby)
        return LS_OK;
    at = h->listens_at;
    net_address_set_port(&at, 0);
    LS_TRY(net_listen_in(&at, h->opt.ports, 0, NET_STREAM, BACKLOG, &fd, &at));
    *port = net_address_port(&at);
    return hub_listen_take(server, fd);
}

static ls_status open_hub(head *h)
{
    const hub_events events = {.self = h,
                               .joined = on_joined,
                               .left = on_left,
                               .failed = on_failed,
                               .wait_report = on_late,
                               .describe = describe_rank};
    hub_options options = {.world_size = h->world_size,
                           .generation = head_hub_generation(h),
                           .key = &h->job_key,
                           .security = h->opt.security,
                           .events = events};

    memcpy(options.job, h->job, sizeof(options.job));
    LS_TRY(hub_create(h->loop, &options, &h->hub));
    return head_listen_hub(h, h->hub, "hub", &h->hub_unix, &h->hub_port);
}

ls_status head_open_next_hub(head *h, int n)
{
    head_rank *ranks;

    LS_TRY(LS_NEW(&ranks, (size_t)n, "for %d rank%s", n, text_plural(n)));
    ls_free(h->ranks);
    h->ranks = ranks;
    h->world_size = n;
    h->broken = (job_cause){0};
    h->failed_ms = 0;
    hub_destroy(h->hub);
    h->hub = NULL;
    return open_hub(h);
}

static void free_places(head *h)
{
    ls_free(h->ends);
    ls_free(h->losses);
    ls_free(h->places);
    ls_free(h->voters);
    ls_free(h->ranks);
    h->losses = NULL;
    h->n_losses = 0;
    h->ends = NULL;
    h->places = NULL;
    h->voters = NULL;
    h->ranks = NULL;
    h->n_places = 0;
    h->world_size = 0;
}

static ls_status copy_places(head *h)
{
    const rdzv_place *places = rdzv_places(h->machine, &h->n_places);

    h->generation = places[0].generation;
    h->world_size = places[0].world_size;
    h->places = ls_calloc((size_t)h->n_places, sizeof(*h->places));
    h->ends = ls_calloc((size_t)h->n_places, sizeof(*h->ends));
    h->losses = ls_calloc((size_t)h->n_places, sizeof(*h->losses));
    h->ranks = ls_calloc((size_t)h->world_size, sizeof(*h->ranks));
    if (h->places == NULL || h->ends == NULL || h->losses == NULL || h->ranks == NULL) {
        const ls_status st = ls_fail(LS_ENOMEM, "no memory for %d rank%s", h->world_size,
                                     text_plural(h->world_size));

        free_places(h);
        return st;
    }
    memcpy(h->places, places, (size_t)h->n_places * sizeof(*places));
    return LS_OK;
}

/* A free port, for programs that host a store of their own at MASTER_PORT. */
static ls_status free_port(int *port)
{
    net_address any;
    net_address bound;
    int fd;

    LS_TRY(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any));
    LS_TRY(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    close(fd);
    *port = net_address_port(&bound);
    return LS_OK;
}

/*
 * The store holds its port from now on, so no other process can take it. With several nodes
 * node 0's agent listens.
 */
static ls_status open_store(head *h)
{
    const c10d_store_options options = {.port = h->opt.store_port, .user = geteuid()};

    h->store_port = h->n_places > 1 ? 0 : h->opt.store_port;
    if (h->n_places > 1)
        return h->opt.hosts_store ? c10d_store_create_closed(h->loop, &h->store) : LS_OK;
    if (!h->opt.hosts_store)
        return h->store_port != 0 ? LS_OK : free_port(&h->store_port);
    LS_TRY(ls_context(c10d_store_create(h->loop, &options, &h->store),
                      "the store for PyTorch programs (--store=none disables it)"));
    h->store_port = c10d_store_port(h->store);
    return LS_OK;
}

ls_status head_open_generation(head *h)
{
    head_close_generation(h);
    LS_TRY(copy_places(h));
    head_choose_standby(h);
    head_open_mpi(h);
    LS_TRY(head_open_networks(h));
    LS_TRY(head_open_elastic(h));
    LS_TRY(open_hub(h));
    LS_TRY(open_store(h));
    head_check_stopped_ranks(h);
    return LS_OK;
}

void head_close_generation(head *h)
{
    list_for_each_entry (head_node, node, &h->nodes, node) {
        node->place = NULL;
        head_drop_ring(node);
        stream_mux_close(&node->streams);
        stream_mux_close(&node->hub_streams);
        stream_mux_close(&node->member_streams);
    }
    poller_timer_cancel(&h->stop_watch);
    hub_destroy(h->hub);
    h->hub = NULL;
    h->hub_port = 0;
    head_close_elastic(h);
    h->has_standby = h->standby_begun = false;
    c10d_store_destroy(h->store);
    h->store = NULL;
    head_close_networks(h);
    for (int i = 0; h->ends != NULL && i < h->n_places; i++)
        free_end(&h->ends[i]);
    free_places(h);
    h->broken = (job_cause){0};
    h->failed_ms = 0;
}
