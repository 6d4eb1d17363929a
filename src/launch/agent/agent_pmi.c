/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pmi.c - the sockets behind PMI_FD, one a rank, and what a rank's MPI means for the job. A rank that is no MPI program never
 * speaks; one that does not read its replies is not listened to.
 */
#include "launch/agent/agent.h"

#include "base/file.h"
#include "launch/process/program.h"

#include <errno.h>
#include <sys/socket.h>

enum { TAKEN_AT_ONCE = 64 /* pieces; then others have their turn */ };

#define KEYS_AT_ONCE (NODE_BODY_MAX / 2) /* and the last of them, which is short */

/* Its number among those of this node. */
static int index_of(const agent_rank *r)
{
    return (int)(r - r->agent->ranks);
}

static pmi_rank *words_of(const agent_rank *r)
{
    return &r->agent->pmi->ranks[index_of(r)];
}

static void on_pmi(void *rank, unsigned events)
{
    LS_UNUSED(events);
    agent_hear_pmi(rank);
}

ls_status agent_open_pmi(agent_rank *r, int *child_end)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return ls_fail_errno("a socket to rank %d", r->rank);
    r->pmi_fd = fds[0];
    *child_end = fds[1];
    return poller_watch(r->agent->poller, r->pmi_fd, POLL_READ, on_pmi, r, &r->pmi_watch);
}

void agent_end_pmi(agent_rank *r)
{
    if (r->pmi_fd < 0)
        return;
    pmi_end_rank(r->agent->pmi, index_of(r));
    poller_unwatch(r->pmi_watch);
    r->pmi_watch = NULL;
    file_close(&r->pmi_fd);
}

/* False when the rank does not take it all now. */
static bool send_reply(agent_rank *r)
{
    const text_buf *reply = &words_of(r)->reply;

    while (r->pmi_fd >= 0 && reply->length > 0) {
        const ssize_t n = send(r->pmi_fd, reply->data, reply->length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            pmi_sent(r->agent->pmi, index_of(r), (size_t)n);
        else if (errno == EAGAIN && poller_change(r->pmi_watch, POLL_WRITE) == LS_OK)
            return false;
        else if (errno != EINTR)
            agent_end_pmi(r); /* it does not want to hear it */
    }
    return true;
}

/* --- what it means --- */

/* A code for a process, of what may be any number; never 0. */
static int exit_code(int abort_code)
{
    const int low = abort_code & 0xff;

    return low != 0 ? low : 1;
}

static void note_abort(agent_rank *r)
{
    const pmi_rank *said = words_of(r);

    if (!said->has_aborted || r->failed_code != 0)
        return;
    text_format(r->message, sizeof(r->message), "ended the job with MPI_Abort, code %d%s%s",
                said->abort_code, said->text[0] != 0 ? ": " : "", said->text);
    agent_rank_failed(r, exit_code(said->abort_code));
}

/* Whoever writes to a descriptor that it does not know does no harm, but an MPI that is not understood waits for ever. */
static void note_fault(agent_rank *r)
{
    const pmi_rank *said = words_of(r);
    char text[128];

    if (said->fault == NULL || r->pmi_fd < 0)
        return;
    text_format(text, sizeof(text), "sent to PMI_FD what is not PMI-1 (%s)", said->fault);
    agent_end_pmi(r);
    if (said->stage == PMI_JOINED && r->failed_code == 0) {
        text_format(r->message, sizeof(r->message), "%s", text);
        agent_rank_failed(r, 1);
    } else {
        agent_note(r->agent, "rank %d (pid %d) %s, which is closed now", r->rank, (int)r->pid,
                   text);
    }
}

/* Open MPI asks for its launcher in another language, and without it makes every rank a job of one, silently. */
void agent_note_open_mpi(agent *a)
{
    const rdzv_place *p = &a->place.place;
    const char *program = a->spec->argv[0];

    if (p->world_size > 1 && program_needs(program, "libmpi.so."))
        agent_note(a,
                   "%s is linked to Open MPI: each of the %d ranks will be a job of its own; to "
                   "make them one: %smpirun -np %d %s%s",
                   program, p->world_size, p->n_nodes == 1 ? "lockstep run " : "", p->world_size,
                   p->n_nodes == 1 ? "" : "-H HOST:SLOTS,... ", program);
}

/* --- with the other nodes, by way of the head --- */

/* The first part of each message. */
static wire_writer begin(const agent *a)
{
    wire_writer w = {0};

    wire_write_u32(&w, a->place.place.generation);
    return w;
}

static void tell_keys(agent *a)
{
    wire_writer w = begin(a);

    while (pmi_write_new_keys(a->pmi, &w, KEYS_AT_ONCE)) {
        agent_send(a, NODE_MPI_KEYS, &w);
        wire_writer_free(&w);
        w = begin(a);
    }
    wire_writer_free(&w);
}

/* All ranks here are in a barrier. */
static void ask(agent *a)
{
    const node_barrier barrier = {.generation = a->place.place.generation,
                                  .number = a->pmi->n_passed + 1};
    wire_writer w = {0};

    if (a->place.place.n_nodes > 1)
        tell_keys(a);
    node_write_barrier(&w, &barrier);
    agent_send(a, NODE_MPI_BARRIER, &w);
    wire_writer_free(&w);
}

void agent_tell_mpi(agent *a)
{
    node_mpi now = {.generation = a->place.place.generation};
    wire_writer w = {0};

    if (a->pmi == NULL)
        return;
    now.barrier = a->pmi->n_waiting > 0 ? a->pmi->n_passed + 1 : 0;
    for (int i = 0; i < a->spec->n_ranks; i++)
        now.has_members |= !a->ranks[i].ended && a->pmi->ranks[i].stage == PMI_JOINED;
    if (now.barrier == a->mpi_told.barrier && now.has_members == a->mpi_told.has_members)
        return;
    a->mpi_told = now;
    node_write_mpi(&w, &now);
    agent_send(a, NODE_MPI, &w);
    wire_writer_free(&w);
}

static bool is_present(const agent *a, uint32_t generation)
{
    return a->pmi != NULL && generation == a->place.place.generation;
}

ls_status agent_learn_keys(agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    ls_status st;

    if (!is_present(a, wire_read_u32(&r)))
        return LS_OK;
    st = pmi_read_keys(a->pmi, &r);
    if (st != LS_ENOMEM)
        return st;
    agent_tell_failure(a, NULL);
    return LS_OK;
}

ls_status agent_pass_barrier(agent *a, const frame *f)
{
    node_barrier barrier;

    LS_TRY(node_read_barrier(f, &barrier));
    if (!is_present(a, barrier.generation) || barrier.number != a->pmi->n_passed + 1)
        return LS_OK;
    pmi_release_barrier(a->pmi);
    for (int i = 0; i < a->spec->n_ranks; i++)
        (void)send_reply(&a->ranks[i]);
    agent_tell_mpi(a);
    return LS_OK;
}

ls_status agent_take_early_exit(agent *a, const frame *f)
{
    node_failure failure;
    agent_rank *r;

    LS_TRY(node_read_failure(f, &failure));
    if (!is_present(a, failure.generation) || a->phase != AGENT_RUNNING || failure.local_rank < 0 ||
        failure.local_rank >= a->spec->n_ranks)
        return LS_OK;
    r = &a->ranks[failure.local_rank];
    if (!r->ended || !agent_ended_well(r))
        return LS_OK;
    text_format(r->message, sizeof(r->message), "%s", failure.text);
    agent_rank_failed(r, failure.exit_code);
    return LS_OK;
}

/* --- the conversation --- */

/* Gives what the rank has sent to the answering side. False when there was nothing. */
static bool take_bytes(agent_rank *r)
{
    char bytes[PMI_LINE_MOST];
    ssize_t n;

    if (r->pmi_fd < 0 || words_of(r)->fault != NULL)
        return false;
    do {
        n = recv(r->pmi_fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        (void)pmi_receive(r->agent->pmi, index_of(r), bytes, (size_t)n);
        return true;
    }
    if (n == 0 || errno != EAGAIN)
        agent_end_pmi(r);
    return false;
}

/* False when the rank has to read first. */
static bool answer(agent_rank *r)
{
    while (pmi_receive(r->agent->pmi, index_of(r), NULL, 0))
        if (!send_reply(r))
            return false;
    return true;
}

void agent_hear_pmi(agent_rank *r)
{
    agent *a = r->agent;
    bool reads;

    if (r->pmi_fd < 0)
        return;
    reads = answer(r);
    for (int i = 0; reads && i < TAKEN_AT_ONCE && take_bytes(r); i++)
        reads = answer(r);
    if (reads && r->pmi_fd >= 0 && poller_change(r->pmi_watch, POLL_READ) != LS_OK)
        agent_end_pmi(r);
    note_abort(r);
    note_fault(r);
    if (pmi_take_full_barrier(a->pmi))
        ask(a);
    agent_tell_mpi(a);
}
