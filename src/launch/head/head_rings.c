/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_rings.c - receives the flight recorders of ranks that have ended on other nodes, and
 * measures the offsets of the nodes' clocks. A lost recorder never fails the job. Called by
 * head_nodes.c.
 */
#include "launch/head/head_internal.h"

#include "base/clock.h"
#include "base/file.h"
#include "host/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

enum {
    CLOCK_ROUNDS = 8,
    DRIFT_NS = 100000 /* by which clocks may drift apart between two measurements */
};

/* --- clocks --- */

static void ask_clock(head_node *node)
{
    wire_writer w = {0};

    wire_write_i64(&w, ls_now_ns());
    wire_write_i64(&w, 0);
    head_send_free(node, NODE_CLOCK, &w);
}

void head_compare_clock(head_node *node)
{
    if (node->owner->opt.keep_ring == NULL || node->is_own || node->id == 0)
        return;
    node->clock_round = (clock_offset){0};
    node->clock.round_trip_ns += DRIFT_NS; // an old measurement is less exact
    ask_clock(node);
}

ls_status head_handle_clock(head_node *node, const frame *f)
{
    const int64_t now_ns = ls_now_ns();
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const int64_t sent_ns = wire_read_i64(&r);
    const int64_t there_ns = wire_read_i64(&r);

    LS_TRY(wire_reader_end(&r, "a clock"));
    (void)clock_offset_add(&node->clock_round, sent_ns, there_ns, there_ns, now_ns);
    if (node->clock.n == 0 || node->clock_round.round_trip_ns <= node->clock.round_trip_ns)
        node->clock = node->clock_round;
    if (node->clock_round.n < CLOCK_ROUNDS)
        ask_clock(node);
    return LS_OK;
}

/* --- recorders --- */

void head_drop_ring(head_node *node)
{
    file_close(&node->ring_fd);
    node->ring_rank = -1;
}

static ls_status begin_ring(head_node *node, const node_ring *piece)
{
    head_drop_ring(node);
    LS_TRY(ls_context(memory_file_make("lockstep-ring", piece->total, &node->ring_fd),
                      "a flight recorder"));
    node->ring_rank = piece->local_rank;
    return LS_OK;
}

static void keep_ring(head_node *node)
{
    const head *h = node->owner;

    h->opt.keep_ring(h->opt.self, h->generation, node->place->rank_base + node->ring_rank,
                     node->place->host, -node->clock.offset_ns, node->ring_fd);
    head_drop_ring(node);
}

static ls_status write_piece(const head_node *node, const node_ring *piece)
{
    size_t done = 0;

    while (done < piece->n) {
        const ssize_t n = pwrite(node->ring_fd, piece->bytes + done, piece->n - done,
                                 (off_t)(piece->offset + done));
        if (n <= 0)
            return ls_fail_errno("memory for a flight recorder");
        done += (size_t)n;
    }
    return LS_OK;
}

/* Without memory for it, or after its generation, the timeline lacks this rank. */
ls_status head_handle_ring(head_node *node, const frame *f)
{
    const head *h = node->owner;
    node_ring piece;

    LS_TRY(node_read_ring(f, &piece));
    if (h->opt.keep_ring == NULL || piece.generation != h->generation || node->place == NULL ||
        piece.local_rank >= node->place->n_local)
        return LS_OK;
    if (piece.local_rank != node->ring_rank && begin_ring(node, &piece) != LS_OK) {
        head_drop_ring(node);
        return LS_OK;
    }
    if (piece.n == 0)
        keep_ring(node);
    else if (write_piece(node, &piece) != LS_OK)
        head_drop_ring(node);
    return LS_OK;
}
