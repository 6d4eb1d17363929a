/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_tree.c - reads a process and its descendants from /proc; a process that cannot be read is
 * left out. Called by the agent to see whether ranks still work.
 */
#include "host/process_tree.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "host/process.h"
#include "host/process_id.h"

#include <string.h>

#define MAPS_BYTES ((size_t)16 * 1024 * 1024)

static char *read_maps(pid_t pid)
{
    char saved[LS_ERROR_BYTES];
    char path[64];
    char *text = NULL;
    size_t bytes;

    ls_error_save(saved);
    text_format(path, sizeof(path), "/proc/%d/maps", (int)pid);
    if (file_read(path, MAPS_BYTES, &text, &bytes) != LS_OK)
        text = NULL;
    ls_error_restore(saved);
    return text;
}

void process_tree_read(pid_t root, process_tree *out)
{
    memset(out, 0, sizeof(*out));
    out->all_sleep = true;
    out->pids[out->n++] = root;
    for (int i = 0; i < out->n; i++) {
        process_stat stat;

        out->n +=
            process_list_children(out->pids[i], out->pids + out->n, PROCESS_TREE_MOST - out->n);
        if (!process_stat_read("", out->pids[i], &stat))
            continue;
        out->all_sleep &= stat.state == 'S';
        out->cpu_ticks += stat.cpu_ticks;
    }
}

int process_tree_count_mapped(const process_tree *tree, const char *part)
{
    int n = 0;

    for (int i = 0; i < tree->n; i++) {
        char *maps = read_maps(tree->pids[i]);

        n += maps != NULL && strstr(maps, part) != NULL;
        ls_free(maps);
    }
    return n;
}
