/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pmi.c - the sockets behind PMI_FD, one a rank, and what a rank's MPI means for the job. A rank that is no MPI program never
 * speaks; one that does not read its replies is not listened to.
 */
#include "launch/agent.h"

#include "base/file.h"
#include "launch/program.h"

#include <errno.h>
#include <sys/socket.h>

enum { TAKEN_AT_ONCE = 64 /* pieces; then others have their turn */ };

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
    pmi_gone(r->agent->pmi, r->rank);
    poller_unwatch(r->pmi_watch);
    r->pmi_watch = NULL;
    file_close(&r->pmi_fd);
}

/* False when the rank does not take it all now. */
static bool send_reply(agent_rank *r)
{
    const text_buf *reply = &r->agent->pmi->ranks[r->rank].reply;

    while (r->pmi_fd >= 0 && reply->length > 0) {
        const ssize_t n = send(r->pmi_fd, reply->data, reply->length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            pmi_sent(r->agent->pmi, r->rank, (size_t)n);
        else if (errno == EAGAIN && poller_change(r->pmi_watch, POLL_WRITE) == LS_OK)
            return false;
        else if (errno != EINTR)
            agent_end_pmi(r); /* it does not want to hear it */
    }
    return true;
}

/* Everybody is told that a barrier is passed. */
static void send_all(agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        (void)send_reply(&a->ranks[i]);
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
    const pmi_rank *said = &r->agent->pmi->ranks[r->rank];

    if (!said->has_aborted || r->failed_code != 0)
        return;
    text_format(r->message, sizeof(r->message), "ended the job with MPI_Abort, code %d%s%s",
                said->abort_code, said->text[0] != 0 ? ": " : "", said->text);
    agent_rank_failed(r, exit_code(said->abort_code));
}

/* Whoever writes to a descriptor that it does not know does no harm, but an MPI that is not understood waits for ever. */
static void note_fault(agent_rank *r)
{
    const pmi_rank *said = &r->agent->pmi->ranks[r->rank];
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

static const char *describe_vain(const pmi_rank *gone)
{
    switch (gone->stage) {
    case PMI_SILENT:
        return "exited with code 0 without MPI_Init, where other ranks wait for it";
    case PMI_JOINED:
        return "exited with code 0 without MPI_Finalize, while other ranks were in MPI with it";
    case PMI_LEFT:
        return "exited with code 0, while other ranks wait for it in MPI";
    }
    return "";
}

void agent_end_vain_mpi(agent *a)
{
    bool has_members = false;

    if (a->pmi == NULL || a->phase != AGENT_RUNNING || a->n_ended == 0)
        return;
    for (int i = 0; i < a->spec->n_ranks; i++)
        has_members |= !a->ranks[i].ended && a->pmi->ranks[i].stage == PMI_JOINED;
    for (int i = 0; i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        const pmi_rank *said = &a->pmi->ranks[i];
        if (!r->ended || !(a->pmi->n_waiting > 0 || (has_members && said->stage == PMI_JOINED)))
            continue;
        text_format(r->message, sizeof(r->message), "%s", describe_vain(said));
        agent_rank_failed(r, 1);
        return;
    }
}

/* Open MPI asks for its launcher in another language, and without it makes every rank a job of one, silently. */
void agent_note_open_mpi(agent *a)
{
    const char *program = a->spec->argv[0];

    if (a->spec->n_ranks > 1 && program_needs(program, "libmpi.so."))
        agent_note(
            a,
            "%s is linked to Open MPI: each of the %d ranks will be a job of its own; to make "
            "them one: lockstep run mpirun -np %d %s",
            program, a->spec->n_ranks, a->spec->n_ranks, program);
}

/* --- the conversation --- */

/* Gives what the rank has sent to the answering side. False when there was nothing. */
static bool take_bytes(agent_rank *r)
{
    char bytes[PMI_LINE_MOST];
    ssize_t n;

    if (r->pmi_fd < 0 || r->agent->pmi->ranks[r->rank].fault != NULL)
        return false;
    do {
        n = recv(r->pmi_fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        (void)pmi_hear(r->agent->pmi, r->rank, bytes, (size_t)n);
        return true;
    }
    if (n == 0 || errno != EAGAIN)
        agent_end_pmi(r);
    return false;
}

/* False when the rank has to read first. */
static bool answer(agent_rank *r)
{
    while (pmi_hear(r->agent->pmi, r->rank, NULL, 0))
        if (!send_reply(r))
            return false;
    return true;
}

void agent_hear_pmi(agent_rank *r)
{
    agent *a = r->agent;
    unsigned passed;
    bool reads;

    if (r->pmi_fd < 0)
        return;
    passed = a->pmi->n_passed;
    reads = answer(r);
    for (int i = 0; reads && i < TAKEN_AT_ONCE && take_bytes(r); i++)
        reads = answer(r);
    if (reads && r->pmi_fd >= 0 && poller_change(r->pmi_watch, POLL_READ) != LS_OK)
        agent_end_pmi(r);
    if (a->pmi->n_passed != passed)
        send_all(a);
    note_abort(r);
    note_fault(r);
    agent_end_vain_mpi(a);
}
