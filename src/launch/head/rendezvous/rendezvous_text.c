/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_text.c - the texts of the rendezvous machine for users: the roster, and which nodes
 * are missing. Called by the other files of the machine.
 */
#include "launch/head/rendezvous/rendezvous_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 8 }; /* in one list; the others are counted */

void rdzv_append(char *buf, size_t n, const char *format, ...)
{
    const size_t used = strlen(buf);
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(buf + used, n - used, format, args);
    va_end(args);
    if (length < 0)
        buf[used] = 0;
}

const char *rdzv_nodes_text(char *buf, size_t n, int count)
{
    return text_format(buf, n, "%d node%s", count, count == 1 ? "" : "s");
}

const char *rdzv_node_text(char *buf, size_t n, const rdzv_place *place)
{
    return text_format(buf, n, "node %d (%s)", place->node, place->host);
}

const char *rdzv_ranks_text(char *buf, size_t n, const rdzv_place *place)
{
    if (place->n_local == 1)
        return text_format(buf, n, "rank %d", place->rank_base);
    return text_format(buf, n, "ranks %d-%d", place->rank_base,
                       place->rank_base + place->n_local - 1);
}

/* --- missing nodes --- */

/* Marks the ids that have joined, or the numbers of the last roster that have rejoined. */
static const bool *mark_present(const rdzv *m, bool by_id)
{
    memset(m->present, 0, (size_t)m->opt.max_nodes * sizeof(*m->present));
    for (int i = 0; i < m->capacity; i++) {
        const rdzv_node *node = &m->nodes[i];
        const int number = by_id ? node->id : node->index;

        if (node->state == NODE_WAITING && number >= 0 && number < m->opt.max_nodes)
            m->present[number] = true;
    }
    return m->present;
}

/* "node 1", "nodes 1, 3-7 and 5 more". */
static void append_missing_ids(const rdzv *m, char *buf, size_t n)
{
    const int n_missing = m->opt.max_nodes - rdzv_count(m, NODE_WAITING, NODE_WAITING);
    const bool *present = mark_present(m, true);
    int n_named = 0;
    int n_shown = 0;

    rdzv_append(buf, n, "node%s", n_missing == 1 ? "" : "s");
    for (int id = 0; id < m->opt.max_nodes && n_shown < NAMES_SHOWN; id++) {
        const int first = id;

        while (id < m->opt.max_nodes && !present[id])
            id++;
        if (id == first)
            continue;
        rdzv_append(buf, n, "%s%d", n_shown == 0 ? " " : ", ", first);
        if (id - first > 1)
            rdzv_append(buf, n, "-%d", id - 1);
        n_named += id - first;
        n_shown++;
    }
    if (n_named < n_missing)
        rdzv_append(buf, n, " and %d more", n_missing - n_named);
}

/* " (missing: b, c)": the hosts of the last roster that have not rejoined; nothing when all
 * have. */
static void append_missing_hosts(const rdzv *m, char *buf, size_t n)
{
    const bool *present = mark_present(m, false);
    int n_missing = 0;

    for (int i = 0; i < m->n_places; i++) {
        if (present[i])
            continue;
        if (n_missing < NAMES_SHOWN)
            rdzv_append(buf, n, "%s%s", n_missing == 0 ? " (missing: " : ", ", m->places[i].host);
        n_missing++;
    }
    if (n_missing > NAMES_SHOWN)
        rdzv_append(buf, n, " and %d more", n_missing - NAMES_SHOWN);
    if (n_missing > 0)
        rdzv_append(buf, n, ")");
}

void rdzv_append_missing(const rdzv *m, char *buf, size_t n)
{
    const int n_present = rdzv_count(m, NODE_WAITING, NODE_WAITING);
    char nodes[32];

    if (m->opt.by_id) {
        append_missing_ids(m, buf, n);
        rdzv_append(buf, n, " did not %sjoin", m->n_places > 0 ? "re" : "");
        return;
    }
    rdzv_append(buf, n, "only %s of at least %d %sjoined",
                rdzv_nodes_text(nodes, sizeof(nodes), n_present), m->opt.min_nodes,
                m->n_places > 0 ? "re" : "");
    append_missing_hosts(m, buf, n);
}

/* --- the roster --- */

static void append_waiting_for(const rdzv *m, int n_present, char *buf, size_t n)
{
    const int n_needed = m->opt.min_nodes - n_present;

    if (m->opt.by_id) {
        rdzv_append(buf, n, "; waiting for ");
        append_missing_ids(m, buf, n);
    } else if (n_needed > 0) {
        rdzv_append(buf, n, "; waiting for %s%d more",
                    m->opt.min_nodes < m->opt.max_nodes ? "at least " : "", n_needed);
        append_missing_hosts(m, buf, n);
    } else {
        rdzv_append(buf, n, "; starting in %" PRId64 " s unless more nodes join",
                    m->opt.last_call_ms / 1000);
    }
}

void rdzv_write_roster(const rdzv *m, char *buf, size_t n)
{
    const int n_present = rdzv_count(m, NODE_WAITING, NODE_ENDED);

    buf[0] = 0;
    if (m->phase != RDZV_COLLECT) {
        char nodes[32];
        rdzv_append(buf, n, "%s, %d rank%s", rdzv_nodes_text(nodes, sizeof(nodes), m->n_places),
                    m->places[0].world_size, m->places[0].world_size == 1 ? "" : "s");
        return;
    }
    if (m->opt.min_nodes == m->opt.max_nodes)
        rdzv_append(buf, n, "%d/%d nodes joined", n_present, m->opt.max_nodes);
    else
        rdzv_append(buf, n, "%d of %d to %d nodes joined", n_present, m->opt.min_nodes,
                    m->opt.max_nodes);
    append_waiting_for(m, n_present, buf, n);
}
