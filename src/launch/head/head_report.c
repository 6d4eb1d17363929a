/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_report.c - the report of a failed job, with one root cause: from the failure that the
 * rendezvous machine has recorded, the aborts that the hub has received, and the report of the
 * failed rank's agent. Called by head.c at the end of the job.
 */
#include "launch/head/head_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/head/host_report.h"
#include "launch/hosts/hostlist.h"

#include <string.h>

enum {
    CAUSE_MS = 60000, /* a broken group explains exits of ranks for this time */
    LAST_LINES = 20,  /* of all lost nodes together */
    LAST_NODES = 4    /* with last lines */
};

/* Some nodes of the roster. */
typedef struct node_set {
    bool *has; /* by node */
    int n;
} node_set;

static void append_hosts(const head *h, const node_set *set, text_buf *out)
{
    const char **names = ls_calloc((size_t)h->n_places, sizeof(*names));
    size_t n = 0;

    for (int i = 0; names != NULL && i < h->n_places; i++)
        if (set->has[i])
            names[n++] = h->places[i].host;
    hostlist_fold(names, n, out);
    ls_free(names);
}

/* "1-3,7": the nodes' numbers, or those of their ranks, which are numbered node by node. */
static void append_numbers(const head *h, const node_set *set, bool of_ranks, text_buf *out)
{
    const char *between = "";

    for (int i = 0; i < h->n_places; i++) {
        const int first = i;
        int a;
        int b;

        if (!set->has[i])
            continue;
        while (i + 1 < h->n_places && set->has[i + 1])
            i++;
        a = of_ranks ? h->places[first].rank_base : first;
        b = of_ranks ? h->places[i].rank_base + h->places[i].n_local - 1 : i;
        text_append(out, a < b ? "%s%d-%d" : "%s%d", between, a, b);
        between = ",";
    }
}

/* --- lost nodes --- */

static const head_loss *find_loss(const head *h, int node)
{
    for (int i = 0; i < h->n_losses; i++)
        if (h->losses[i].node == node)
            return &h->losses[i];
    return NULL;
}

/* The nodes that were lost for the same reason. */
static void find_like(const head *h, const head_loss *loss, node_set *set)
{
    set->n = 0;
    memset(set->has, 0, (size_t)h->n_places * sizeof(*set->has));
    for (int i = 0; i < h->n_losses; i++)
        if (text_equal(h->losses[i].why, loss->why)) {
            set->has[h->losses[i].node] = true;
            set->n++;
        }
}

/* "nodes 1-3 (b[1-3]) with ranks 2-7 were lost: no heartbeat for 5 s" */
static void append_losses(const head *h, const head_loss *loss, const node_set *set, text_buf *out)
{
    const bool one_rank = set->n == 1 && h->places[loss->node].n_local == 1;

    text_append(out, set->n == 1 ? "node " : "nodes ");
    append_numbers(h, set, false, out);
    text_append(out, " (");
    append_hosts(h, set, out);
    text_append(out, one_rank ? ") with rank " : ") with ranks ");
    append_numbers(h, set, true, out);
    text_append(out, " %s lost: %s\n", set->n == 1 ? "was" : "were", loss->why);
}

static void append_line(void *out, const char *text)
{
    text_append(out, "  %s\n", text);
}

/* What the starter has reported about lost nodes. */
static void append_explanations(const head *h, text_buf *out)
{
    host_report report = {0};

    for (int i = 0; i < h->n_losses; i++)
        if (h->losses[i].more[0] != 0 &&
            host_report_add(&report, h->places[h->losses[i].node].host, h->losses[i].more) != LS_OK)
            break; /* no memory: the report lacks the explanations */
    host_report_write(&report, append_line, out);
    host_report_free(&report);
}

static void append_last_lines(const head *h, const node_set *set, text_buf *out)
{
    const int n_shown = set->n < LAST_NODES ? set->n : LAST_NODES;
    int n = 0;

    for (int i = 0; i < h->n_places && n < n_shown; i++) {
        text_buf lines = {0};

        if (!set->has[i] || h->opt.append_last_lines == NULL)
            continue;
        h->opt.append_last_lines(h->opt.self, i, (size_t)(LAST_LINES / n_shown), &lines);
        if (lines.length > 0)
            text_append(out, "  last lines of %s:\n%s", h->places[i].host, text_str(&lines));
        text_free(&lines);
        n++;
    }
}

/* All lost nodes, the root cause first, with the last lines of its nodes. */
static void append_all_losses(const head *h, const head_loss *root, node_set *set, text_buf *out)
{
    if (root != NULL) {
        find_like(h, root, set);
        append_losses(h, root, set, out);
    }
    append_explanations(h, out);
    if (root != NULL)
        append_last_lines(h, set, out);
    for (int i = 0; i < h->n_losses; i++) {
        bool is_first = root == NULL || !text_equal(h->losses[i].why, root->why);

        for (int k = 0; k < i; k++)
            is_first = is_first && !text_equal(h->losses[k].why, h->losses[i].why);
        if (!is_first)
            continue;
        find_like(h, &h->losses[i], set);
        text_append(out, "  then ");
        append_losses(h, &h->losses[i], set, out);
    }
}

/* --- ranks --- */

/* The report of the node on which this rank ran, if one of its ranks failed. */
static const head_end *end_of_rank(const head *h, int rank)
{
    const rdzv_place *p = head_place_of_slot(h, head_slot_of_rank(h, rank));
    const head_end *end = p == NULL ? NULL : &h->ends[p->node];

    return end != NULL && end->received && end->end.local_rank >= 0 ? end : NULL;
}

/* A rank may exit because of a broken connection before the rank that broke it has exited. As with
 * torchrun, the earliest error file decides; a crash is a root cause without one. */
static const head_end *earliest_error(const head *h, const head_end *cause)
{
    const head_end *root = cause;

    if (cause == NULL || cause->end.crashed || cause->end.error_s == 0)
        return cause;
    for (int i = 0; i < h->n_places; i++) {
        const head_end *other = &h->ends[i];

        if (other->received && other->end.local_rank >= 0 && other->end.error_s > 0 &&
            other->end.error_s < root->end.error_s)
            root = other;
    }
    return root;
}

const job_cause *head_recent_abort(const head *h)
{
    return h->broken.kind == CAUSE_ABORTED && ls_now_ms() - h->broken_ms < CAUSE_MS ? &h->broken
                                                                                    : NULL;
}

static int rank_of_end(const head *h, const head_end *end)
{
    return h->places[end - h->ends].rank_base + end->end.local_rank;
}

/* The rank that has left its group, if it has failed then. */
static const head_end *failed_leaver(const head *h)
{
    const head_end *end = h->broken.kind == CAUSE_LEFT ? end_of_rank(h, h->broken.rank) : NULL;

    return end != NULL && rank_of_end(h, end) == h->broken.rank &&
                   h->failed_ms - h->broken_ms < CAUSE_MS
               ? end
               : NULL;
}

/* A crash explains itself, and so does a rank that has left and failed. An exit is explained by
 * what broke its group shortly before. */
static bool has_cause(const head *h, const head_end *root)
{
    return h->broken.kind != CAUSE_NONE && (root == NULL || !root->end.crashed) &&
           (root == NULL || root != failed_leaver(h)) && h->failed_ms - h->broken_ms < CAUSE_MS;
}

/* How many other ranks failed or were stopped. */
static void append_others(const head *h, const head_end *root, text_buf *out)
{
    int n_failed = root != NULL ? -1 : 0;
    int n_stopped = 0;

    for (int i = 0; i < h->n_places; i++) {
        if (!h->ends[i].received)
            continue;
        n_failed += h->ends[i].end.n_failed;
        n_stopped += h->ends[i].end.n_stopped;
    }
    if (n_failed > 0)
        text_append(out, "  %d other rank%s failed after it\n", n_failed, text_plural(n_failed));
    if (n_stopped > 0)
        text_append(out, "  %d other rank%s stopped because of it\n", n_stopped,
                    n_stopped == 1 ? " was" : "s were");
}

/* "node 1 (b): ", if there are several nodes, or it is a remote one. */
static void append_node(const head *h, const head_end *root, text_buf *out)
{
    const rdzv_place *p = &h->places[root - h->ends];

    const head_node *node = head_find_node(h, p->conn);

    if (h->n_places > 1 || (node != NULL && !node->is_own))
        text_append(out, "node %d (%s): ", p->node, p->host);
}

/* "cannot run ./train: No such file" of "rank 3 (pid 4711): ...": the error of a rank that never
 * ran; NULL: it did run. */
static const char *own_error(const head_end *end)
{
    const char *at = end->received && end->end.local_rank >= 0 ? end->end.text : NULL;

    at = at != NULL ? strstr(at, "): ") : NULL;
    return at != NULL ? at + strlen("): ") : NULL;
}

/* The hosts with the same error, which is not a consequence of the root cause. */
static void append_same_errors(const head *h, const head_end *root, node_set *set, text_buf *out)
{
    const char *error = own_error(root);

    set->n = 0;
    for (int i = 0; i < h->n_places; i++) {
        const char *other = own_error(&h->ends[i]);

        set->has[i] =
            error != NULL && &h->ends[i] != root && other != NULL && text_equal(error, other);
        set->n += set->has[i];
    }
    if (set->n == 0)
        return;
    text_append(out, "  the same on ");
    append_hosts(h, set, out);
    text_append(out, "\n");
}

bool head_has_failed(const head *h, int exit_code)
{
    return exit_code != 0 &&
           (exit_code < 128 || rdzv_root_cause(h->machine, NULL)->kind != CAUSE_NONE);
}

/* The death of a rank on a lost node is a consequence of the loss. */
static bool is_on_lost_node(const head *h, const job_cause *cause)
{
    const rdzv_place *p = head_place_of_slot(h, head_slot_of_rank(h, cause->rank));

    return p != NULL && find_loss(h, p->node) != NULL;
}

static void append_root(const head *h, const job_cause *cause, const head_end *root, node_set *set,
                        text_buf *out)
{
    const head_loss *loss = root == NULL ? find_loss(h, rdzv_root_loss(h->machine)) : NULL;

    if (has_cause(h, root) && (loss == NULL || !is_on_lost_node(h, &h->broken)))
        text_append(out, "%s\n  then ", h->broken.text);
    if (root != NULL) {
        append_node(h, root, out);
        text_append(out, "%s\n%s", root->end.text, root->end.details);
        append_same_errors(h, root, set, out);
    } else if (loss == NULL) {
        text_append(out, "%s\n", cause->text);
    }
    append_all_losses(h, loss, set, out);
}

void head_make_report(const head *h, const char *fallback, text_buf *out, int *exit_code)
{
    const job_cause *cause = rdzv_root_cause(h->machine, NULL);
    const head_end *root;
    node_set set = {.has = ls_calloc((size_t)h->n_places + 1, sizeof(*set.has))};

    if (cause->kind == CAUSE_NONE || set.has == NULL) {
        text_append(out, "%s\n", fallback != NULL ? fallback : "");
        ls_free(set.has);
        return;
    }
    root = failed_leaver(h);
    if (root == NULL)
        root = earliest_error(h, end_of_rank(h, cause->rank));
    append_root(h, cause, root, &set, out);
    if (root != NULL)
        *exit_code = root->end.exit_code;
    append_others(h, root, out);
    ls_free(set.has);
}
