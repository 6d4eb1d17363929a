/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_terminal.c - terminals of ranks (--pty): how large they are, which is how much of ours a rank's prefix leaves.
 */
#include "launch/agent/agent.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROWS_USUAL = 24, COLUMNS_USUAL = 80, COLUMNS_LEAST = 20 };

pty_size agent_terminal_size(const agent *a, int n_ranks)
{
    static const int fds[] = {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO};
    pty_size size = {.rows = ROWS_USUAL, .columns = COLUMNS_USUAL};
    char prefix[32] = "";

    if (a->spec->remote != NULL)
        return a->size;
    for (size_t i = 0; i < LS_COUNT_OF(fds); i++)
        if (pty_size_of(fds[i], &size))
            break;
    if (a->spec->prefix && n_ranks > 1)
        text_format(prefix, sizeof(prefix), "rank %d| ", n_ranks - 1);
    size.columns -= (int)strlen(prefix);
    if (size.columns < COLUMNS_LEAST)
        size.columns = COLUMNS_LEAST;
    return size;
}

void agent_resize_ranks(agent *a, pty_size size)
{
    a->size = size;
    for (int i = 0; a->spec->pty && a->phase != AGENT_IDLE && i < a->spec->n_ranks; i++)
        for (int which = 0; which < 2; which++)
            if (a->ranks[i].stream_fd[which] >= 0)
                pty_resize(a->ranks[i].stream_fd[which], size);
    if (a->spec->pty)
        agent_signal_ranks(a, SIGWINCH);
}

void agent_on_resize(agent *a)
{
    if (!a->spec->pty || a->spec->remote != NULL)
        return;
    agent_resize_ranks(a, agent_terminal_size(a, a->place.place.world_size));
    agent_hosts_resize(a->hosts);
}
