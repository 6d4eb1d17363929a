/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_report.c - one root cause for the whole job, in words: from what the machine blames, what the hub has heard, and what the
 * agent of the guilty rank's node saw when it ended.
 */
#include "launch/head_internal.h"

#include <string.h>

enum { CAUSE_MS = 60000 /* how long a broken group explains the exit of a rank */ };

/* The end of the node on which this rank ran, if a rank of it failed. */
static const head_end *end_of_rank(const head *h, int rank)
{
    for (int i = 0; i < h->n_places; i++) {
        const rdzv_place *p = &h->places[i];

        if (rank >= p->rank_base && rank < p->rank_base + p->n_local)
            return h->ends[i].has_come && h->ends[i].end.local_rank >= 0 ? &h->ends[i] : NULL;
    }
    return NULL;
}

/* A rank whose connection broke may exit before the one that broke it has. As torchrun, we believe the earliest of their error
 * files; but a crash needs no such witness. */
static const head_end *settle(const head *h, const head_end *blamed)
{
    const head_end *root = blamed;

    if (blamed == NULL || blamed->end.crashed || blamed->end.error_s == 0)
        return blamed;
    for (int i = 0; i < h->n_places; i++) {
        const head_end *other = &h->ends[i];

        if (other->has_come && other->end.local_rank >= 0 && other->end.error_s > 0 &&
            other->end.error_s < root->end.error_s)
            root = other;
    }
    return root;
}

/* A crash explains itself. An exit is explained by what broke its group shortly before. */
static bool has_cause(const head *h, const head_end *root)
{
    return h->broken.kind != CAUSE_NONE && (root == NULL || !root->end.crashed) &&
           h->failed_ms - h->broken_ms < CAUSE_MS;
}

static int count_failed(const head *h)
{
    int n = 0;

    for (int i = 0; i < h->n_places; i++)
        n += h->ends[i].has_come ? h->ends[i].end.n_failed : 0;
    return n;
}

/* "node 1 (b): ", where there are several, or it is elsewhere. */
static void append_node(const head *h, const head_end *root, text_buf *out)
{
    const rdzv_place *p = &h->places[root - h->ends];

    const head_node *node = head_find_node(h, p->conn);

    if (h->n_places > 1 || (node != NULL && !node->is_own))
        text_append(out, "node %d (%s): ", p->node, p->host);
}

bool head_has_failed(const head *h, int exit_code)
{
    return exit_code != 0 &&
           (exit_code < 128 || rdzv_root_cause(h->machine, NULL)->kind != CAUSE_NONE);
}

void head_make_report(const head *h, const char *otherwise, text_buf *out, int *exit_code)
{
    const job_cause *blamed = rdzv_root_cause(h->machine, NULL);
    const head_end *root;
    int n_after;

    if (blamed->kind == CAUSE_NONE) {
        text_append(out, "%s\n", otherwise != NULL ? otherwise : "");
        return;
    }
    root = settle(h, end_of_rank(h, blamed->rank));
    if (has_cause(h, root))
        text_append(out, "%s\n  then ", h->broken.text);
    if (root == NULL) {
        text_append(out, "%s\n", blamed->text);
    } else {
        append_node(h, root, out);
        text_append(out, "%s\n%s", root->end.text, root->end.details);
        *exit_code = root->end.exit_code;
    }
    n_after = count_failed(h) - (root != NULL);
    if (n_after > 0)
        text_append(out, "  %d other rank%s failed after it\n", n_after, n_after == 1 ? "" : "s");
}
