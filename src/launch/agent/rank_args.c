/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_args.c - copies the arguments of the job for one rank and replaces "${local_rank}" in them.
 * Called by agent_ranks.c before it starts a rank.
 */
#include "launch/agent/rank_args.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>

static const char macro[] = "${local_rank}";

/* NULL when there is no memory. */
static char *substitute(const char *arg, int local_rank)
{
    text_buf out = {0};
    const char *at;

    for (; (at = strstr(arg, macro)) != NULL; arg = at + strlen(macro)) {
        text_append_bytes(&out, arg, (size_t)(at - arg));
        text_append(&out, "%d", local_rank);
    }
    text_append(&out, "%s", arg);
    if (!out.failed)
        return out.data;
    text_free(&out);
    return NULL;
}

ls_status rank_args_make(char *const *argv, int local_rank, char ***out)
{
    char **copy;
    size_t n = 0;

    while (argv[n] != NULL)
        n++;
    copy = ls_calloc(n + 1, sizeof(*copy));
    for (size_t i = 0; copy != NULL && i < n; i++) {
        copy[i] = i == 0 ? ls_strdup(argv[i]) : substitute(argv[i], local_rank);
        if (copy[i] != NULL)
            continue;
        rank_args_free(copy);
        copy = NULL;
    }
    if (copy == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu arguments", n);
    *out = copy;
    return LS_OK;
}

void rank_args_free(char **argv)
{
    for (char **arg = argv; argv != NULL && *arg != NULL; arg++)
        ls_free(*arg);
    ls_free(argv);
}
