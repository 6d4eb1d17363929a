/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_text.c - what the rendezvous machine says to people.
 */
#include "launch/head/rendezvous_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 8 }; /* in one list; the others are counted */

void rdzv_say(char *buf, size_t n, const char *format, ...)
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

/* --- who is missing --- */

/* Marks the ids that have come, or the numbers of the last view that are here again. */
static const bool *mark_here(const rdzv *m, bool by_id)
{
    memset(m->here, 0, (size_t)m->opt.max_nodes * sizeof(*m->here));
    for (int i = 0; i < m->capacity; i++) {
        const rdzv_node *node = &m->nodes[i];
        const int number = by_id ? node->id : node->index;

        if (node->state == NODE_WAITING && number >= 0 && number < m->opt.max_nodes)
            m->here[number] = true;
    }
    return m->here;
}

/* "node 1", "nodes 1, 3-7 and 5 more". */
static void say_missing_ids(const rdzv *m, char *buf, size_t n)
{
    const int n_missing = m->opt.max_nodes - rdzv_count(m, NODE_WAITING, NODE_WAITING);
    const bool *here = mark_here(m, true);
    int n_named = 0;
    int n_shown = 0;

    rdzv_say(buf, n, "node%s", n_missing == 1 ? "" : "s");
    for (int id = 0; id < m->opt.max_nodes && n_shown < NAMES_SHOWN; id++) {
        const int first = id;

        while (id < m->opt.max_nodes && !here[id])
            id++;
        if (id == first)
            continue;
        rdzv_say(buf, n, "%s%d", n_shown == 0 ? " " : ", ", first);
        if (id - first > 1)
            rdzv_say(buf, n, "-%d", id - 1);
        n_named += id - first;
        n_shown++;
    }
    if (n_named < n_missing)
        rdzv_say(buf, n, " and %d more", n_missing - n_named);
}

/* " (not back: b, c)": the hosts of the last view that are not here; nothing when all are. */
static void say_not_back(const rdzv *m, char *buf, size_t n)
{
    const bool *here = mark_here(m, false);
    int n_missing = 0;

    for (int i = 0; i < m->n_places; i++) {
        if (here[i])
            continue;
        if (n_missing < NAMES_SHOWN)
            rdzv_say(buf, n, "%s%s", n_missing == 0 ? " (not back: " : ", ", m->places[i].host);
        n_missing++;
    }
    if (n_missing > NAMES_SHOWN)
        rdzv_say(buf, n, " and %d more", n_missing - NAMES_SHOWN);
    if (n_missing > 0)
        rdzv_say(buf, n, ")");
}

void rdzv_say_missing(const rdzv *m, char *buf, size_t n)
{
    const int n_here = rdzv_count(m, NODE_WAITING, NODE_WAITING);
    char nodes[32];

    if (m->opt.by_id) {
        say_missing_ids(m, buf, n);
        rdzv_say(buf, n, " did not come%s", m->n_places > 0 ? " back" : "");
        return;
    }
    rdzv_say(buf, n, "only %s of at least %d came%s", rdzv_nodes_text(nodes, sizeof(nodes), n_here),
             m->opt.min_nodes, m->n_places > 0 ? " back" : "");
    say_not_back(m, buf, n);
}

/* --- the roster --- */

static void say_waiting_for(const rdzv *m, int n_here, char *buf, size_t n)
{
    const int n_needed = m->opt.min_nodes - n_here;

    if (m->opt.by_id) {
        rdzv_say(buf, n, "; waiting for ");
        say_missing_ids(m, buf, n);
    } else if (n_needed > 0) {
        rdzv_say(buf, n, "; waiting for %s%d more",
                 m->opt.min_nodes < m->opt.max_nodes ? "at least " : "", n_needed);
        say_not_back(m, buf, n);
    } else {
        rdzv_say(buf, n, "; starting unless more come within %" PRId64 " s",
                 m->opt.last_call_ms / 1000);
    }
}

void rdzv_write_roster(const rdzv *m, char *buf, size_t n)
{
    const int n_here = rdzv_count(m, NODE_WAITING, NODE_ENDED);

    buf[0] = 0;
    if (m->phase != RDZV_COLLECT) {
        char nodes[32];
        rdzv_say(buf, n, "%s, %d rank%s", rdzv_nodes_text(nodes, sizeof(nodes), m->n_places),
                 m->places[0].world_size, m->places[0].world_size == 1 ? "" : "s");
        return;
    }
    if (m->opt.min_nodes == m->opt.max_nodes)
        rdzv_say(buf, n, "%d/%d nodes joined", n_here, m->opt.max_nodes);
    else
        rdzv_say(buf, n, "%d of %d to %d nodes joined", n_here, m->opt.min_nodes, m->opt.max_nodes);
    say_waiting_for(m, n_here, buf, n);
}
