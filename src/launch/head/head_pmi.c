/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_pmi.c - keys and barriers of the MPI programs of a generation. Agents answer their own ranks
 * (agent_pmi.c). The head passes new keys to all other nodes; they arrive there before the barrier
 * that follows them, as both take the same connection. Called by head_nodes.c.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"

/* Bytes of keys before one barrier. The queue to an agent holds the keys of two barriers at most:
 * no node enters the next one before it has left the last. */
#define KEYS_MOST (NODE_QUEUE_MAX / 3)

void head_open_mpi(head *h)
{
    int *n_local = ls_calloc((size_t)h->n_places, sizeof(*n_local));

    h->n_barriers = 0;
    h->key_bytes = 0;
    h->mpi_layout[0] = 0;
    for (int i = 0; n_local != NULL && i < h->n_places; i++)
        n_local[i] = h->places[i].n_local;
    if (n_local != NULL)
        pmi_write_layout(n_local, h->n_places, h->mpi_layout);
    ls_free(n_local);
}

static bool is_current(const head_node *node, uint32_t generation)
{
    return node->place != NULL && generation == node->owner->generation;
}

/* --- ranks that exit early --- */

/* The agent reports a rank of its own. When all ranks of its node have ended, the head does. */
static void fail_rank(head *h, int rank)
{
    const head_rank *r = &h->ranks[rank];
    const rdzv_place *p = head_place_of_slot(h, rank);
    node_failure failure = {.generation = h->generation, .exit_code = 1};
    rdzv_event failed = {
        .kind = RDZV_FAILED, .generation = h->generation, .exit_code = 1, .text = failure.text};
    wire_writer w = {0};

    if (p == NULL)
        return;
    failure.local_rank = rank - p->rank_base;
    if (!h->ends[p->node].received) {
        head_node *node = head_find_node(h, p->conn);

        text_format(failure.text, sizeof(failure.text), "%s", pmi_early_exit_text(r->state));
        node_write_failure(&w, &failure);
        head_send_free(node, NODE_EXITED_EARLY, &w);
        return;
    }
    text_format(failure.text, sizeof(failure.text), "rank %d (pid %d): %s", rank, (int)r->pid,
                pmi_early_exit_text(r->state));
    failed.conn = p->conn;
    failed.local_rank = failure.local_rank;
    head_event(h, &failed);
}

void head_fail_early_mpi_exits(head *h)
{
    bool waits = false;
    bool has_members = false;

    list_for_each_entry (const head_node, node, &h->nodes, node) {
        waits |= node->place != NULL && node->mpi.barrier == h->n_barriers + 1;
        has_members |= node->place != NULL && node->mpi.has_members;
    }
    if (!(waits || has_members) || rdzv_phase_now(h->machine) != RDZV_RUN)
        return;
    for (int i = 0; i < h->world_size; i++) {
        const head_rank *r = &h->ranks[i];

        if (!r->ended || !(waits || r->state == PMI_JOINED))
            continue;
        fail_rank(h, i);
        return;
    }
}

ls_status head_handle_mpi(head_node *node, const frame *f)
{
    node_mpi mpi;

    LS_TRY(node_read_mpi(f, &mpi));
    if (!is_current(node, mpi.generation))
        return LS_OK;
    node->mpi = mpi;
    head_fail_early_mpi_exits(node->owner);
    return LS_OK;
}

/* --- keys and barriers --- */

ls_status head_handle_mpi_keys(head_node *node, const frame *f)
{
    head *h = node->owner;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    char why[RDZV_TEXT_BYTES];

    if (!is_current(node, wire_read_u32(&r)))
        return LS_OK;
    h->key_bytes += f->bytes;
    if (h->key_bytes > KEYS_MOST) {
        text_format(why, sizeof(why), "the MPI programs have put more than %zu MiB of PMI keys",
                    KEYS_MOST / 1024 / 1024);
        head_fail_generation(h, why);
        return LS_OK;
    }
    list_for_each_entry (head_node, other, &h->nodes, node)
        if (other != node && other->place != NULL)
            frame_link_send(&other->link, NODE_MPI_KEYS, f->body, f->bytes);
    return LS_OK;
}

static bool all_are_in(const head *h, uint32_t number)
{
    int n = 0;

    list_for_each_entry (const head_node, node, &h->nodes, node)
        n += node->place != NULL && node->mpi_barrier == number;
    return n == h->n_places;
}

ls_status head_handle_mpi_barrier(head_node *node, const frame *f)
{
    head *h = node->owner;
    node_barrier barrier;
    wire_writer w = {0};

    LS_TRY(node_read_barrier(f, &barrier));
    if (!is_current(node, barrier.generation) || barrier.number != h->n_barriers + 1)
        return LS_OK;
    node->mpi_barrier = barrier.number;
    if (!all_are_in(h, barrier.number))
        return LS_OK;
    h->n_barriers++;
    h->key_bytes = 0;
    node_write_barrier(&w, &barrier);
    list_for_each_entry (head_node, other, &h->nodes, node)
        if (other->place != NULL)
            head_send(other, NODE_MPI_BARRIER, &w);
    wire_writer_free(&w);
    return LS_OK;
}
