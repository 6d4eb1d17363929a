/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process/process_tree.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "launch/process/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STAT_BYTES ((size_t)4096)
#define MAPS_BYTES ((size_t)16 * 1024 * 1024)

static char *read_proc_of(pid_t pid, const char *name, size_t most)
{
    char kept[LS_ERROR_BYTES];
    char path[64];
    char *text = NULL;
    size_t bytes;

    ls_error_save(kept);
    text_format(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    if (file_read(path, most, &text, &bytes) != LS_OK)
        text = NULL;
    ls_error_restore(kept);
    return text;
}

/* State and processor time: fields 3, 14 and 15 of stat, behind the name in parentheses. */
static bool read_stat(pid_t pid, char *state, uint64_t *ticks)
{
    char *text = read_proc_of(pid, "stat", STAT_BYTES);
    const char *behind = text != NULL ? strrchr(text, ')') : NULL;
    uint64_t user = 0;
    uint64_t system = 0;
    bool found;

    found =
        behind != NULL && sscanf(behind + 1, // NOLINT(cert-err34-c): the kernel writes it
                                 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                                 state, &user, &system) == 3;
    *ticks = user + system;
    ls_free(text);
    return found;
}

void process_tree_read(pid_t root, process_tree *out)
{
    memset(out, 0, sizeof(*out));
    out->all_sleep = true;
    out->pids[out->n++] = root;
    for (int i = 0; i < out->n; i++) {
        uint64_t ticks = 0;
        char state = 0;

        out->n +=
            process_list_children(out->pids[i], out->pids + out->n, PROCESS_TREE_MOST - out->n);
        if (!read_stat(out->pids[i], &state, &ticks))
            continue;
        out->all_sleep &= state == 'S';
        out->cpu_ticks += ticks;
    }
}

int process_tree_count_mapped(const process_tree *tree, const char *part)
{
    int n = 0;

    for (int i = 0; i < tree->n; i++) {
        char *maps = read_proc_of(tree->pids[i], "maps", MAPS_BYTES);

        n += maps != NULL && strstr(maps, part) != NULL;
        ls_free(maps);
    }
    return n;
}
