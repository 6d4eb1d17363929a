/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_roster.c - the table of nodes, and how a roster is made of the waiting nodes. Called
 * by the other files of the machine.
 *
 * By id a node's number is its id. Otherwise: the head's own node is number 0; a node of the last
 * roster keeps its number if the new roster has it; the free numbers go to the other nodes of the
 * last roster, then to nodes that request an id, in the ids' order, then to the other nodes in the
 * order of their arrival. So a rank keeps its number over a restart unless the job has become too
 * small.
 */
#include "launch/head/rendezvous/rendezvous_internal.h"

#include <stdlib.h>
#include <string.h>

rdzv_node *rdzv_find(const rdzv *m, uint64_t conn)
{
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->state != NODE_NONE && !node->lost && node->conn == conn)
            return node;
    }
    return NULL;
}

int rdzv_count(const rdzv *m, node_state from, node_state to)
{
    int n = 0;

    for (int i = 0; i < m->capacity; i++)
        n += m->nodes[i].state >= from && m->nodes[i].state <= to && !m->nodes[i].lost;
    return n;
}

bool rdzv_is_member(const rdzv_node *node)
{
    return node->state >= NODE_WELCOMED;
}

bool rdzv_is_running(const rdzv_node *node)
{
    return node->state == NODE_WELCOMED || node->state == NODE_READY;
}

const rdzv_place *rdzv_place_of(const rdzv *m, const rdzv_node *node)
{
    return &m->places[node->index];
}

int rdzv_count_done(const rdzv *m)
{
    int n = 0;

    for (int i = 0; i < m->capacity; i++)
        n += m->nodes[i].state == NODE_ENDED && m->nodes[i].done;
    return n;
}

bool rdzv_has_finished_node(const rdzv *m)
{
    for (int i = 0; i < m->capacity; i++)
        if (m->nodes[i].state == NODE_ENDED && m->nodes[i].done && m->nodes[i].ended_well)
            return true;
    return false;
}

/* Nodes that have not begun have nothing to do any more. */
bool rdzv_has_finished(const rdzv *m)
{
    return rdzv_count_done(m) + rdzv_count(m, NODE_WELCOMED, NODE_WELCOMED) == m->n_places &&
           rdzv_has_finished_node(m);
}

rdzv_node *rdzv_find_spare(const rdzv *m, const rdzv_node *lost)
{
    rdzv_node *found = NULL;

    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->state == NODE_WAITING && node->n_local == lost->n_local &&
            (!m->opt.by_id || node->id == lost->id) &&
            (found == NULL || node->order < found->order))
            found = node;
    }
    return found;
}

/* --- a node joins --- */

static bool is_number_taken(const rdzv *m, int index)
{
    for (int i = 0; i < m->capacity; i++)
        if (m->nodes[i].state != NODE_NONE && m->nodes[i].index == index)
            return true;
    return false;
}

/* The number of the last roster that a node of the same host has left, or -1. */
static int free_number_on(const rdzv *m, const char *host)
{
    for (int i = 0; i < m->n_places; i++)
        if (text_equal(m->places[i].host, host) && !is_number_taken(m, i))
            return i;
    return -1;
}

rdzv_node *rdzv_add_node(rdzv *m, uint64_t conn, const rdzv_hello *hello)
{
    rdzv_node *node = m->nodes;
    char host[RDZV_HOST_BYTES];

    while (node->state != NODE_NONE)
        node++; // rdzv_accepts() has found a free slot
    text_printable(host, sizeof(host), hello->host == NULL ? "?" : hello->host);
    *node = (rdzv_node){.state = NODE_WAITING,
                        .conn = conn,
                        .uid = hello->uid,
                        .order = ++m->n_arrivals,
                        .id = hello->id,
                        .index = m->opt.by_id ? -1 : free_number_on(m, host),
                        .n_local = hello->n_local,
                        .is_head = hello->is_head};
    memcpy(node->host, host, sizeof(host));
    return node;
}

/* --- a roster is made --- */

/* Exactly the nodes of the last roster have rejoined: there is nothing to wait for. */
static bool all_have_rejoined(const rdzv *m)
{
    int n_back = 0;
    int n_other = 0;

    for (int i = 0; i < m->capacity; i++) {
        if (m->nodes[i].state != NODE_WAITING)
            continue;
        n_back += m->nodes[i].index >= 0;
        n_other += m->nodes[i].index < 0;
    }
    return m->n_places > 0 && n_back == m->n_places && n_other == 0;
}

bool rdzv_is_complete(const rdzv *m)
{
    const int n = rdzv_count(m, NODE_WAITING, NODE_WAITING);

    if (n < m->opt.min_nodes)
        return false;
    return n >= m->opt.max_nodes || m->now_ms >= m->last_call_ms || m->now_ms >= m->join_until_ms ||
           all_have_rejoined(m);
}

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Nodes without a number come last. */
static int compare_optional(int a, int b)
{
    return compare(a < 0 ? INT64_MAX : a, b < 0 ? INT64_MAX : b);
}

static int compare_nodes(const void *left, const void *right)
{
    const rdzv_node *a = *(rdzv_node *const *)left;
    const rdzv_node *b = *(rdzv_node *const *)right;

    if (a->is_head != b->is_head)
        return a->is_head ? -1 : 1;
    if (a->index != b->index)
        return compare_optional(a->index, b->index);
    if (a->id != b->id)
        return compare_optional(a->id, b->id);
    return compare((int64_t)a->order, (int64_t)b->order);
}

/* The waiting nodes, in the order in which a roster takes them. */
static int sort_waiting(rdzv *m)
{
    int n = 0;

    for (int i = 0; i < m->capacity; i++)
        if (m->nodes[i].state == NODE_WAITING)
            m->order[n++] = &m->nodes[i];
    qsort(m->order, (size_t)n, sizeof(rdzv_node *), compare_nodes);
    return n;
}

/* The first n of m->order by their numbers, into the list that it returns. */
static rdzv_node **number_nodes(rdzv *m, int n)
{
    rdzv_node **by_number = m->order + m->capacity;
    int hole = 0;

    memset(by_number, 0, (size_t)n * sizeof(rdzv_node *));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            rdzv_node *node = m->order[i];
            int wanted = m->opt.by_id ? node->id : node->is_head ? 0 : node->index;

            if (node->state != NODE_WAITING)
                continue;
            if (pass == 0 && (wanted < 0 || wanted >= n || by_number[wanted] != NULL))
                continue;
            while (pass == 1 && by_number[hole] != NULL)
                hole++;
            wanted = pass == 0 ? wanted : hole;
            by_number[wanted] = node;
            node->index = wanted;
            node->state = NODE_WELCOMED;
        }
    }
    return by_number;
}

void rdzv_make_roster(rdzv *m)
{
    const int n_present = sort_waiting(m);
    const int n = n_present < m->opt.max_nodes ? n_present : m->opt.max_nodes;
    rdzv_node **by_number = number_nodes(m, n);
    int base = 0;

    m->generation++;
    m->n_places = n;
    for (int i = 0; i < n; i++) {
        rdzv_place *place = &m->places[i];

        *place = (rdzv_place){.conn = by_number[i]->conn,
                              .generation = m->generation,
                              .n_restarts = m->n_restarts,
                              .node = i,
                              .n_nodes = n,
                              .rank_base = base,
                              .n_local = by_number[i]->n_local};
        memcpy(place->host, by_number[i]->host, sizeof(place->host));
        base += place->n_local;
    }
    for (int i = 0; i < n; i++)
        m->places[i].world_size = base;
    for (int i = n; i < n_present; i++)
        m->order[i]->index = -1;
}

void rdzv_start_collecting(rdzv *m)
{
    for (int i = 0; i < m->capacity; i++) {
        rdzv_node *node = &m->nodes[i];

        if (node->lost)
            *node = (rdzv_node){0};
        if (!rdzv_is_member(node))
            continue;
        node->state = NODE_WAITING;
        node->done = node->ended_well = false;
    }
    m->phase = RDZV_COLLECT;
    m->join_until_ms = m->now_ms + m->opt.join_ms;
}
