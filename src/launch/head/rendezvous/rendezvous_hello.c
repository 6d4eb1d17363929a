/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_hello.c - which nodes may join. A rejected node receives both sides' values, as either
 * may have the typing error. Called by rendezvous.c.
 */
#include "launch/head/rendezvous/rendezvous_internal.h"

#include <string.h>

/* "-g 8,2", of which a long list is cut; "no -g". */
static const char *list_text(char *buf, size_t n, const int *list, int count)
{
    if (count == 0 || list == NULL)
        return text_format(buf, n, "no -g");
    text_format(buf, n, "-g %d", list[0]);
    for (int i = 1; i < count; i++) {
        if (strlen(buf) + 16 > n) {
            rdzv_append(buf, n, ",...");
            break;
        }
        rdzv_append(buf, n, ",%d", list[i]);
    }
    return buf;
}

/* "--nnodes 2", "--nnodes 2:4". */
static const char *range_text(char *buf, size_t n, int min, int max)
{
    if (min == max)
        return text_format(buf, n, "--nnodes %d", max);
    return text_format(buf, n, "--nnodes %d:%d", min, max);
}

static bool is_same_job(const rdzv *m, const rdzv_hello *h, const char *host, char *why, size_t n)
{
    char shown[64];

    text_printable(shown, sizeof(shown), h->version == NULL ? "" : h->version);
    if (!text_equal(shown, m->version)) {
        text_format(why, n,
                    "version mismatch: %s runs Lockstep %s, the head %s runs %s; fix: install the "
                    "same version on both",
                    host, shown, m->host, m->version);
        return false;
    }
    if (h->run_id != m->opt.run_id) {
        text_printable(shown, sizeof(shown), h->run_name == NULL ? "" : h->run_name);
        text_format(
            why, n,
            "%s belongs to another job than the head %s: --rdzv-id is %s there and %s at the "
            "head; fix: pass the same --rdzv-id on all nodes",
            host, m->host, shown[0] != 0 ? shown : "unknown",
            m->run_name[0] != 0 ? m->run_name : "unknown");
        return false;
    }
    return true;
}

static bool has_same_list(const rdzv *m, const rdzv_hello *h)
{
    const rdzv_options *o = &m->opt;

    return o->per_node != NULL && h->n_per_node == o->max_nodes &&
           memcmp(h->per_node, o->per_node, (size_t)h->n_per_node * sizeof(int)) == 0;
}

static bool is_same_size(const rdzv *m, const rdzv_hello *h, const char *host, char *why, size_t n)
{
    const rdzv_options *o = &m->opt;
    char theirs[160];
    char ours[160];

    if (h->max_nodes != 0 && (h->min_nodes != o->min_nodes || h->max_nodes != o->max_nodes)) {
        text_format(why, n,
                    "%s was started with %s (-n), the head %s with %s; fix: pass the same on all "
                    "nodes",
                    host, range_text(theirs, sizeof(theirs), h->min_nodes, h->max_nodes), m->host,
                    range_text(ours, sizeof(ours), o->min_nodes, o->max_nodes));
        return false;
    }
    if (h->n_per_node == 0 || h->per_node == NULL)
        return true;
    if (!has_same_list(m, h)) {
        text_format(why, n,
                    "%s was started with %s, the head %s with %s; fix: pass the same on all nodes",
                    host, list_text(theirs, sizeof(theirs), h->per_node, h->n_per_node), m->host,
                    list_text(ours, sizeof(ours), o->per_node, o->max_nodes));
        return false;
    }
    return true;
}

static bool has_good_id(const rdzv *m, const rdzv_hello *h, const char *host, char *why, size_t n)
{
    const rdzv_options *o = &m->opt;

    if (!o->by_id)
        return true;
    if (h->id < 0) {
        text_format(
            why, n,
            "%s has no node rank, but this job needs one; fix: pass --node-rank (-i) 0 to %d", host,
            o->max_nodes - 1);
        return false;
    }
    if (h->id >= o->max_nodes) {
        text_format(why, n,
                    "too many nodes: %s has node rank %d, the head %s expects 0 to %d; fix: pass "
                    "the same --nnodes on all nodes",
                    host, h->id, m->host, o->max_nodes - 1);
        return false;
    }
    if (o->per_node != NULL && h->n_local != o->per_node[h->id]) {
        text_format(why, n,
                    "%s starts %d rank%s, but -g on the head %s has %d for node %d; fix: pass the "
                    "same -g on all nodes",
                    host, h->n_local, text_plural(h->n_local), m->host, o->per_node[h->id], h->id);
        return false;
    }
    return true;
}

static bool has_free_place(const rdzv *m, const rdzv_hello *h, const char *host, char *why,
                           size_t n, const rdzv_node **holder)
{
    int n_present = 0;

    for (int i = 0; i < m->capacity; i++) {
        const rdzv_node *node = &m->nodes[i];

        n_present += node->state != NODE_NONE && !node->lost;
        if (!m->opt.by_id || node->state == NODE_NONE || node->lost || node->id != h->id)
            continue;
        text_format(
            why, n,
            "duplicate node rank %d: given to %s, which has joined, and to %s; fix: give each node "
            "its own --node-rank (-i), or retry in 5 s if the first one is dead",
            h->id, node->host, host);
        *holder = node;
        return false;
    }
    if (n_present < m->opt.max_nodes + m->opt.max_spares)
        return true;
    text_format(why, n, "too many nodes: the head %s has %d and takes at most %d, with %d spares",
                m->host, n_present, m->opt.max_nodes, m->opt.max_spares);
    return false;
}

/* One of the two lists is wrong, and no later node can repair it: neither machine waits. */
bool rdzv_ends_with(const rdzv *m, const rdzv_hello *h)
{
    return m->phase == RDZV_COLLECT && m->n_places == 0 && m->opt.per_node != NULL &&
           h->n_per_node > 0 && h->run_id == m->opt.run_id && !has_same_list(m, h);
}

bool rdzv_accepts(const rdzv *m, const rdzv_hello *h, char *why, size_t n, const rdzv_node **holder)
{
    char host[RDZV_HOST_BYTES];

    *holder = NULL;
    text_printable(host, sizeof(host), h->host == NULL ? "a node" : h->host);
    if (m->phase == RDZV_END) {
        text_format(why, n, "the job of the head %s is over", m->host);
        return false;
    }
    if (!is_same_job(m, h, host, why, n) || !is_same_size(m, h, host, why, n) ||
        !has_good_id(m, h, host, why, n))
        return false;
    if (h->n_local < 1 || h->n_local > RDZV_LOCAL_MAX) {
        text_format(why, n, "%s asks for %d ranks; a node has 1 to %d", host, h->n_local,
                    RDZV_LOCAL_MAX);
        return false;
    }
    return has_free_place(m, h, host, why, n, holder);
}
