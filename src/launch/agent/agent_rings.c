/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_rings.c - sends the flight recorders of ranks that have ended to the head, which makes one
 * timeline of all. A recorder is sent in pieces; pieces that were never written are left out.
 * Called when all ranks of a generation have ended.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/file.h"

#include <string.h>
#include <sys/stat.h>

enum {
    PIECE_BYTES = 8192,
    QUEUE_BYTES = 1024 * 1024, /* queued for the head, before more is read */
    SEND_MS = 10000            /* for all recorders: a timeline must not delay the end of the job */
};

static bool is_written(const uint8_t *bytes, size_t n)
{
    return bytes[0] != 0 || memcmp(bytes, bytes + 1, n - 1) != 0;
}

/* *has_space: the head has taken enough before the deadline. */
static ls_status wait_for_queue(const agent *a, int64_t deadline_ms, bool *has_space)
{
    while (a->link.is_linked && frame_queue_bytes(&a->link.link.out) > QUEUE_BYTES &&
           ls_deadline_left(deadline_ms) > 0)
        LS_TRY(poller_run_once(a->ctx.poller, ls_deadline_left(deadline_ms)));
    *has_space = a->link.is_linked && frame_queue_bytes(&a->link.link.out) <= QUEUE_BYTES;
    return LS_OK;
}

static void send_piece(const agent *a, const node_ring *piece)
{
    wire_writer w = {0};

    node_write_ring(&w, piece);
    agent_send(&a->ctx, NODE_RING, &w);
}

static ls_status send_ring(const agent *a, const agent_rank *r, int64_t deadline_ms)
{
    node_ring piece = {.generation = agent_generation(&a->ctx), .local_rank = agent_local_rank(r)};
    uint8_t bytes[PIECE_BYTES];
    struct stat info;
    bool has_space = true;

    if (r->ring_fd < 0 || fstat(r->ring_fd, &info) != 0 || info.st_size > NODE_RING_MAX)
        return LS_OK;
    piece.total = (uint32_t)info.st_size;
    for (; has_space && piece.offset < piece.total; piece.offset += PIECE_BYTES) {
        const size_t left = piece.total - piece.offset;

        piece.n = left < PIECE_BYTES ? left : PIECE_BYTES;
        piece.bytes = bytes;
        LS_TRY(file_pread_all(r->ring_fd, "a flight recorder", bytes, piece.n, piece.offset));
        if (is_written(bytes, piece.n))
            send_piece(a, &piece);
        LS_TRY(wait_for_queue(a, deadline_ms, &has_space));
    }
    piece.n = 0;
    piece.offset = piece.total;
    if (has_space)
        send_piece(a, &piece);
    return LS_OK;
}

ls_status agent_send_rings(agent *a)
{
    const int64_t deadline_ms = ls_deadline_ms(SEND_MS);

    for (int i = 0; a->ctx.place.collects_rings && i < a->ctx.spec->n_ranks; i++)
        LS_TRY(send_ring(a, &a->ranks[i], deadline_ms));
    return LS_OK;
}
