/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_ranks.c - ranks of the native backend as threads of one process, for the tests of
 * links, messages and plans.
 */
#include "comm/native_mesh_ranks.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 7000

typedef struct mesh_threads {
    mesh_rank ranks[MESH_RANKS_MAX];
    boot_record records[MESH_RANKS_MAX][MESH_RANKS_MAX]; /* as each rank knows all */
    net_address addresses[MESH_RANKS_MAX];
    ls_thread threads[MESH_RANKS_MAX];
    net_key key;
} mesh_threads;

#define work_of(backend) list_entry(backend, mesh_work, b)

static void on_done(void *self, backend_work *b, ls_status status, const char *text)
{
    mesh_work *w = work_of(b);

    LS_UNUSED(self);
    w->is_done = true;
    w->status = status;
    if (status != LS_OK && w->group->status == LS_OK) {
        w->group->status = status;
        text_format(w->group->cause.text, sizeof(w->group->cause.text), "%s",
                    text == NULL ? "" : text);
    }
}

static void on_broken(void *self, const job_cause *cause)
{
    mesh_rank *r = self;

    for (int i = 0; i < r->n_groups; i++) {
        mesh_group *g = r->groups[i];

        if ((cause->group != GROUP_ALL && cause->group != g->info.id) || g->is_broken)
            continue;
        g->is_broken = true;
        g->cause = *cause;
        g->status = cause_status(cause->kind);
    }
}

static int64_t on_now(void *self)
{
    LS_UNUSED(self);
    return ls_now_ns();
}

ls_status mesh_open_group(mesh_rank *r, mesh_group *g, uint32_t id, const int *members, int n)
{
    *g = (mesh_group){.rank = r, .info = {.id = id, .size = n, .rank = -1}};
    for (int i = 0; i < n; i++) {
        g->members[i] = members == NULL ? i : members[i];
        if (g->members[i] == r->rank)
            g->info.rank = i;
    }
    g->info.members = g->members;
    LS_TRY(native_backend_ops.open_group(r->state, &g->info, &g->group));
    r->groups[r->n_groups++] = g;
    return LS_OK;
}

void mesh_close_group(mesh_group *g)
{
    mesh_rank *r = g->rank;

    if (g->group == NULL)
        return;
    native_backend_ops.abort_group(g->group, LS_ECANCELED, "closed");
    native_backend_ops.close_group(g->group);
    g->group = NULL;
    for (int i = 0; i < r->n_groups; i++) {
        if (r->groups[i] == g)
            r->groups[i--] = r->groups[--r->n_groups];
    }
}

static void stamp(mesh_group *g, coll *op)
{
    const bool is_message = op->kind == COLL_SEND || op->kind == COLL_RECV;
    const bool reduces =
        op->kind == COLL_ALL_REDUCE || op->kind == COLL_REDUCE || op->kind == COLL_REDUCE_SCATTER;
    const bool has_root = is_message || op->kind == COLL_REDUCE || op->kind == COLL_BROADCAST ||
                          op->kind == COLL_GATHER || op->kind == COLL_SCATTER;

    op->stamp = (op_stamp){.group = g->info.id,
                           .sequence = is_message ? 1 : ++g->sequence,
                           .kind = (uint8_t)op->kind,
                           .dtype = op->kind == COLL_BARRIER ? 255 : (uint8_t)op->dtype,
                           .redop = reduces ? (uint8_t)op->redop : 255,
                           .root = has_root ? op->root : -1,
                           .form = op->src_counts != NULL || op->dst_counts != NULL,
                           .count = op->count};
}

void mesh_start(mesh_group *g, mesh_work *w, const coll *op)
{
    w->b = (backend_work){.op = *op, .group = g->group, .source = -1};
    w->b.op.divisor = g->info.size;
    w->group = g;
    w->is_done = false;
    w->status = LS_OK;
    stamp(g, &w->b.op);
    native_backend_ops.start(g->group, &w->b);
}

static void abort_broken(mesh_rank *r)
{
    for (int i = 0; i < r->n_groups; i++) {
        mesh_group *g = r->groups[i];

        if (g->is_broken)
            native_backend_ops.abort_group(g->group, g->status, g->cause.text);
    }
}

void mesh_drive(mesh_rank *r)
{
    const bool moved = native_backend_ops.progress(r->state);

    abort_broken(r);
    if (!moved)
        native_backend_ops.wait(r->state, WAIT_MS);
}

ls_status mesh_wait(mesh_work *w)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);

    abort_broken(w->group->rank);
    while (!w->is_done) {
        if (ls_deadline_left(deadline_ms) == 0)
            return LS_ETIMEOUT;
        mesh_drive(w->group->rank);
    }
    return w->status;
}

ls_status mesh_do(mesh_group *g, const coll *op)
{
    mesh_work w = {0};
    ls_status st;

    mesh_start(g, &w, op);
    st = mesh_wait(&w);
    LS_ASSERT(w.is_done); // it is on this stack
    return st;
}

static int with_world(mesh_rank *r)
{
    int failed;

    if (mesh_open_group(r, &r->world, 0, NULL, r->size) != LS_OK) {
        fprintf(stderr, "rank %d: %s\n", r->rank, ls_last_error());
        return 1;
    }
    failed = r->job->fn(r, r->job->arg);
    mesh_close_group(&r->world);
    return failed;
}

static void run_rank(void *arg)
{
    mesh_rank *r = arg;

    if (r->job->no_world) {
        r->failed = r->job->fn(r, r->job->arg);
        return;
    }
    if (native_backend_ops.open(&r->boot, &r->host, &r->state) != LS_OK) {
        fprintf(stderr, "rank %d: %s\n", r->rank, ls_last_error());
        r->failed = 1;
        return;
    }
    r->failed = with_world(r);
    if (r->state != NULL) // fn may have closed it
        native_backend_ops.close(r->state, 5000);
}

static int connections_of(const mesh_job *job)
{
    const char *number = getenv("LS_TEST_CONNECTIONS");

    if (job->connections != 0 || number == NULL)
        return job->connections;
    return (int)strtol(number, NULL, 10);
}

static ls_status prepare(mesh_threads *t, const mesh_job *job, int rank)
{
    mesh_rank *r = &t->ranks[rank];
    boot_record *record = &t->records[rank][rank];
    net_address loopback;

    *record = (boot_record){
        .rank = rank, .pid = getpid(), .instance = 4711, .generation = 1, .host = "here"};
    r->rank = rank;
    r->size = job->size;
    r->job = job;
    r->boot = (comm_boot){.rank = rank,
                          .size = job->size,
                          .job = "0123456789abcdef",
                          .generation = 1,
                          .key = job->keys != NULL ? &job->keys[rank] : &t->key,
                          .security = job->modes != NULL ? job->modes[rank] : NET_AUTH,
                          .records = t->records[rank],
                          .local_fd = -1,
                          .listen_fd = -1,
                          .control_fd = -1,
                          .transport = job->transport,
                          .deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS),
                          .segment_bytes = job->segment_bytes,
                          .algorithms = job->algorithms,
                          .connections = connections_of(job)};
    r->host = (comm_host){
        .abi = BACKEND_ABI, .self = r, .done = on_done, .broken = on_broken, .now_ns = on_now};
    if (!text_equal(job->transport, "tcp")) {
        LS_TRY(net_address_fresh_unix("test", &record->local));
        LS_TRY(net_listen(&record->local, NET_PACKET, 64, &r->boot.local_fd, NULL));
    }
    LS_TRY(net_address_parse("tcp://127.0.0.1:0", 0, &loopback));
    LS_TRY(net_listen(&loopback, NET_STREAM, 64, &r->boot.listen_fd, &t->addresses[rank]));
    record->addresses = &t->addresses[rank];
    record->n_addresses = 1;
    return LS_OK;
}

// Every rank knows every other; local sockets of other hosts cannot be reached.
static ls_status publish(mesh_threads *t, const mesh_job *job)
{
    for (int to = 0; to < job->size; to++) {
        for (int from = 0; from < job->size; from++) {
            boot_record *record = &t->records[to][from];

            *record = t->records[from][from];
            if (job->hosts != NULL && job->hosts[to] != job->hosts[from])
                LS_TRY(net_address_fresh_unix("nowhere", &record->local));
        }
    }
    return LS_OK;
}

int mesh_run(const mesh_job *job)
{
    mesh_threads *t = ls_calloc(1, sizeof(*t));
    int failed = 0;

    if (t == NULL || job->size > MESH_RANKS_MAX || net_key_random(&t->key) != LS_OK)
        return job->size;
    for (int i = 0; i < job->size; i++) {
        if (prepare(t, job, i) != LS_OK) {
            fprintf(stderr, "rank %d: %s\n", i, ls_last_error());
            return job->size;
        }
    }
    if (publish(t, job) != LS_OK)
        return job->size;
    for (int i = 0; i < job->size; i++)
        if (ls_thread_start(&t->threads[i], "rank", run_rank, &t->ranks[i]) != LS_OK)
            failed++;
    for (int i = 0; i < job->size; i++) {
        ls_thread_join(&t->threads[i]);
        failed += t->ranks[i].failed != 0;
    }
    ls_free(t);
    return failed;
}

void mesh_drive_until(mesh_rank *r, const atomic_int *what, int value)
{
    const int64_t deadline_ms = ls_deadline_ms(MESH_TIMEOUT_MS);

    while (atomic_load(what) < value && ls_deadline_left(deadline_ms) != 0) {
        struct pollfd nothing = {.fd = -1};

        (void)native_backend_ops.progress(r->state);
        (void)poll(&nothing, 1, 1);
    }
}
