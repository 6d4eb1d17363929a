/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pmi.c - the sockets behind PMI_FD, one a rank. A rank that does not read its replies is not
 * read either, and one that sends something else than PMI loses its socket. Called by the agent
 * when ranks start and end, and for messages of the head.
 */
#include "launch/agent/node/agent_pmi.h"

#include "base/alloc.h"
#include "host/program.h"

#include <errno.h>
#include <sys/socket.h>

enum { READS_AT_ONCE = 64 /* of one rank, before other events are handled */ };

#define KEYS_AT_ONCE (NODE_BODY_MAX / 2) /* bytes of keys in a message, besides its last key */

static pmi_rank *server_side(const rank_pmi *r)
{
    return &r->owner->server->ranks[r->local_rank];
}

static void close_rank(rank_pmi *r)
{
    if (r->fd < 0)
        return;
    pmi_end_rank(r->owner->server, r->local_rank);
    poller_close(&r->watch, &r->fd);
}

/* False: the rank has to read before it gets more. */
static bool send_reply(rank_pmi *r)
{
    const text_buf *reply = &server_side(r)->reply;

    while (r->fd >= 0 && reply->length > 0) {
        const ssize_t n = send(r->fd, reply->data, reply->length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            pmi_sent(r->owner->server, r->local_rank, (size_t)n);
        else if (errno == EAGAIN && poller_change(r->watch, POLL_WRITE) == LS_OK)
            return false;
        else if (errno != EINTR)
            close_rank(r); /* the rank has closed its end */
    }
    return true;
}

/* --- failures of MPI programs --- */

/* An exit code of a process, from any number; never 0. */
static int exit_code_of(int abort_code)
{
    const int low = abort_code & 0xff;

    return low != 0 ? low : 1;
}

static void note_abort(rank_pmi *r)
{
    const pmi_rank *state = server_side(r);
    const agent_context *ctx = r->owner->ctx;
    char why[LS_ERROR_BYTES];

    if (!state->has_aborted)
        return;
    text_format(why, sizeof(why), "ended the job with MPI_Abort, code %d%s%s", state->abort_code,
                state->text[0] != 0 ? ": " : "", state->text);
    (void)ctx->fail(ctx->agent, r->local_rank, exit_code_of(state->abort_code), why);
}

/*
 * A program that writes to a descriptor that it does not know does no harm. In an MPI program the
 * same is a failure, because it waits for a reply that will not come.
 */
static void note_fault(rank_pmi *r)
{
    const pmi_rank *state = server_side(r);
    const agent_context *ctx = r->owner->ctx;
    char why[128];

    if (state->fault == NULL || r->fd < 0)
        return;
    text_format(why, sizeof(why), "sent to PMI_FD what is not PMI-1 (%s)", state->fault);
    close_rank(r);
    if (state->state != PMI_JOINED || !ctx->fail(ctx->agent, r->local_rank, 1, why))
        agent_note(ctx, "rank %d %s; its PMI socket is closed",
                   ctx->place.place.rank_base + r->local_rank, why);
}

void agent_pmi_note_open_mpi(const agent_context *ctx)
{
    const rdzv_place *p = &ctx->place.place;
    const char *program = ctx->spec->job->argv[0];

    if (p->world_size > 1 && program_needs(program, "libmpi.so."))
        agent_note(ctx,
                   "%s is linked to Open MPI, which does not support this launcher: each of the %d "
                   "ranks will be a job of its own; to make them one job: %smpirun -np %d %s%s",
                   program, p->world_size, p->n_nodes == 1 ? "lockstep run " : "", p->world_size,
                   p->n_nodes == 1 ? "" : "-H HOST:SLOTS,... ", program);
}

/* --- through the head, with the other nodes --- */

static void send_keys(agent_pmi *p)
{
    wire_writer w = agent_begin_message(p->ctx);

    while (pmi_write_new_keys(p->server, &w, KEYS_AT_ONCE)) {
        agent_send(p->ctx, NODE_MPI_KEYS, &w);
        w = agent_begin_message(p->ctx);
    }
    wire_writer_free(&w);
}

/* All ranks of this node are in a barrier. */
static void enter_barrier(agent_pmi *p)
{
    const node_barrier barrier = {.generation = agent_generation(p->ctx),
                                  .number = p->server->n_passed + 1};
    wire_writer w = {0};

    if (p->ctx->place.place.n_nodes > 1)
        send_keys(p);
    node_write_barrier(&w, &barrier);
    agent_send(p->ctx, NODE_MPI_BARRIER, &w);
}

void agent_pmi_report(agent_pmi *p)
{
    node_mpi now = {.generation = agent_generation(p->ctx)};
    wire_writer w = {0};

    if (p->server == NULL)
        return;
    now.barrier = p->server->n_waiting > 0 ? p->server->n_passed + 1 : 0;
    for (int i = 0; i < p->ctx->spec->n_ranks; i++)
        now.has_members |= !p->ranks[i].has_exited && p->server->ranks[i].state == PMI_JOINED;
    if (now.barrier == p->sent.barrier && now.has_members == p->sent.has_members)
        return;
    p->sent = now;
    node_write_mpi(&w, &now);
    agent_send(p->ctx, NODE_MPI, &w);
}

static bool is_present(const agent_pmi *p, uint32_t generation)
{
    return p->server != NULL && generation == agent_generation(p->ctx);
}

ls_status agent_pmi_take_keys(agent_pmi *p, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    ls_status st;

    if (!is_present(p, wire_read_u32(&r)))
        return LS_OK;
    st = pmi_read_keys(p->server, &r);
    if (st != LS_ENOMEM)
        return st;
    agent_fail_start(p->ctx);
    return LS_OK;
}

ls_status agent_pmi_take_barrier(agent_pmi *p, const frame *f)
{
    node_barrier barrier;

    LS_TRY(node_read_barrier(f, &barrier));
    if (!is_present(p, barrier.generation) || barrier.number != p->server->n_passed + 1)
        return LS_OK;
    pmi_release_barrier(p->server);
    for (int i = 0; i < p->ctx->spec->n_ranks; i++)
        (void)send_reply(&p->ranks[i]);
    agent_pmi_report(p);
    return LS_OK;
}

/* --- the socket of a rank --- */

/* Passes what the rank has sent to the server. False when there was nothing. */
static bool take_bytes(rank_pmi *r)
{
    char bytes[PMI_LINE_MOST];
    ssize_t n;

    if (r->fd < 0 || server_side(r)->fault != NULL)
        return false;
    do {
        n = recv(r->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        (void)pmi_receive(r->owner->server, r->local_rank, bytes, (size_t)n);
        return true;
    }
    if (n == 0 || errno != EAGAIN)
        close_rank(r);
    return false;
}

/* False: the rank has to read before it gets more. */
static bool answer(rank_pmi *r)
{
    while (pmi_receive(r->owner->server, r->local_rank, NULL, 0))
        if (!send_reply(r))
            return false;
    return true;
}

static void serve(rank_pmi *r)
{
    bool reads;

    if (r->fd < 0)
        return;
    reads = answer(r);
    for (int i = 0; reads && i < READS_AT_ONCE && take_bytes(r); i++)
        reads = answer(r);
    if (reads && r->fd >= 0 && poller_change(r->watch, POLL_READ) != LS_OK)
        close_rank(r);
    note_abort(r);
    note_fault(r);
    if (pmi_take_full_barrier(r->owner->server))
        enter_barrier(r->owner);
    agent_pmi_report(r->owner);
}

static void on_event(void *rank, unsigned events)
{
    LS_UNUSED(events);
    serve(rank);
}

ls_status agent_pmi_open_rank(agent_pmi *p, int local_rank, int *child_end)
{
    rank_pmi *r = &p->ranks[local_rank];
    int fds[2];

    if (p->server == NULL)
        return LS_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return ls_fail_errno("a socket to rank %d", p->ctx->place.place.rank_base + local_rank);
    r->fd = fds[0];
    *child_end = fds[1];
    return poller_watch(p->ctx->poller, r->fd, POLL_READ, on_event, r, &r->watch);
}

void agent_pmi_end_rank(agent_pmi *p, int local_rank)
{
    rank_pmi *r = &p->ranks[local_rank];

    serve(r);
    close_rank(r);
    r->has_exited = true;
}

pmi_state agent_pmi_state(const agent_pmi *p, int local_rank)
{
    return p->server != NULL ? p->server->ranks[local_rank].state : PMI_SILENT;
}

/* --- life --- */

ls_status agent_pmi_begin(agent_pmi *p)
{
    const agent_spec *spec = p->ctx->spec;

    p->sent = (node_mpi){0};
    if (spec->job->argv == NULL)
        return LS_OK;
    return pmi_create(p->ctx->place.job, spec->n_ranks, p->ctx->place.place.world_size,
                      p->ctx->place.mpi_layout, &p->server);
}

void agent_pmi_end(agent_pmi *p)
{
    for (int i = 0; i < p->ctx->spec->n_ranks; i++) {
        close_rank(&p->ranks[i]);
        p->ranks[i] = (rank_pmi){.owner = p, .local_rank = i, .fd = -1};
    }
    pmi_destroy(p->server);
    p->server = NULL;
}

ls_status agent_pmi_open(agent_pmi *p, const agent_context *ctx)
{
    const int n = ctx->spec->n_ranks;

    *p = (agent_pmi){.ctx = ctx};
    LS_TRY(LS_NEW(&p->ranks, (size_t)n + 1, "for PMI of %d rank%s", n, text_plural(n)));
    for (int i = 0; i < n; i++)
        p->ranks[i] = (rank_pmi){.owner = p, .local_rank = i, .fd = -1};
    return LS_OK;
}

void agent_pmi_close(agent_pmi *p)
{
    ls_free(p->ranks);
}
