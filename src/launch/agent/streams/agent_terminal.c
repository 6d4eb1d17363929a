/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_terminal.c - the size of the ranks' terminals (--pty): the columns of our terminal that the
 * prefix of a rank's lines leaves. Called when a stream is opened, and at SIGWINCH.
 */
#include "launch/agent/streams/agent_output.h"

#include "host/pseudo_terminal.h"

#include <string.h>
#include <unistd.h>

enum { DEFAULT_ROWS = 24, DEFAULT_COLUMNS = 80, COLUMNS_LEAST = 20 };

pty_size agent_terminal_size(const agent_output *o, int n_ranks)
{
    static const int fds[] = {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO};
    pty_size size = {.rows = DEFAULT_ROWS, .columns = DEFAULT_COLUMNS};
    char prefix[32] = "";

    if (o->ctx->spec->remote != NULL)
        return o->remote_size;
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++)
        if (pty_size_of(fds[i], &size))
            break;
    if (o->ctx->spec->prefix && n_ranks > 1)
        text_format(prefix, sizeof(prefix), "rank %d| ", n_ranks - 1);
    size.columns -= (int)strlen(prefix);
    if (size.columns < COLUMNS_LEAST)
        size.columns = COLUMNS_LEAST;
    return size;
}

void agent_terminal_resize(agent_output *o, pty_size size)
{
    o->remote_size = size;
    for (int i = 0; o->ctx->phase != AGENT_IDLE && i < o->ctx->spec->n_ranks; i++)
        for (int which = 0; which < 2; which++)
            if (o->ranks[i].fd[which] >= 0)
                pty_resize(o->ranks[i].fd[which], size);
}
