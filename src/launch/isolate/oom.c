/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.c - reads the counters of out-of-memory kills of control groups (version 2 or 1) or of the
 * machine. Called by the agent when a rank dies of SIGKILL.
 */
#include "launch/isolate/oom.h"

#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNLIMITED (INT64_C(1) << 60) /* version 1 writes the largest whole page instead */

/*
 * The number behind `name` in a file of "name number" lines ("": the file is one number), -1: none.
 */
static int64_t count_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[256];
    int64_t n = -1;

    while (file != NULL && n < 0 && fgets(line, sizeof(line), file) != NULL)
        if (text_starts(line, name)) {
            char *end;
            n = strtoll(line + strlen(name), &end, 10);
            n = end == line + strlen(name) || n < 0 ? -1 : n; /* "max" is no number */
        }
    if (file != NULL)
        (void)fclose(file);
    return n;
}

static int64_t count_at(const oom_watch *w, const oom_level *level, const char *file,
                        const char *name)
{
    char path[CGROUP_PATH_BYTES + 64];

    text_format(path, sizeof(path), "%.*s/%s", (int)level->length, w->place.path, file);
    return count_in(path, name);
}

static int64_t kills_at(const oom_watch *w, const oom_level *level)
{
    return count_at(w, level, w->is_v2 ? "memory.events" : "memory.oom_control", "oom_kill ");
}

static int64_t hits_at(const oom_watch *w, const oom_level *level)
{
    return w->is_v2 ? count_at(w, level, "memory.events", "oom ")
                    : count_at(w, level, "memory.failcnt", "");
}

static int64_t limit_at(const oom_watch *w, const oom_level *level)
{
    const int64_t limit = count_at(w, level, w->is_v2 ? "memory.max" : "memory.limit_in_bytes", "");

    return limit < UNLIMITED ? limit : -1;
}

static int64_t machine_kills(const oom_watch *w)
{
    char path[PATH_MAX];

    text_format(path, sizeof(path), "%s/proc/vmstat", w->root);
    return count_in(path, "oom_kill ");
}

/* Lists the groups that count kills, from the innermost outwards. */
static void list_levels(oom_watch *w)
{
    size_t length = strlen(w->place.path);

    w->n = 0;
    while (w->n < OOM_LEVELS_MOST) {
        oom_level *level = &w->levels[w->n];
        *level = (oom_level){.length = length};
        level->kills = kills_at(w, level);
        level->hits = hits_at(w, level);
        w->n += level->kills >= 0;
        if (length <= w->place.n_mount)
            return;
        while (length > w->place.n_mount && w->place.path[length - 1] != '/')
            length--;
        length -= length > w->place.n_mount;
    }
}

void oom_begin(oom_watch *w, const char *root, const cgroup_place *group)
{
    char saved[LS_ERROR_BYTES];

    *w = (oom_watch){.root = root, .is_v2 = true};
    ls_error_save(saved); /* no group is no failure */
    if (group != NULL)
        w->place = *group;
    if (group != NULL || cgroup_locate(root, NULL, &w->place) == LS_OK)
        list_levels(w);
    if (w->n == 0 && cgroup_locate(root, "memory", &w->place) == LS_OK) {
        w->is_v2 = false;
        list_levels(w);
    }
    ls_error_restore(saved);
    w->machine_kills = machine_kills(w);
}

/* The innermost group whose limit was reached since; NULL: none. */
static const oom_level *find_limiting_group(const oom_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (hits_at(w, &w->levels[i]) > w->levels[i].hits && limit_at(w, &w->levels[i]) >= 0)
            return &w->levels[i];
    return NULL;
}

static void describe(const oom_watch *w, char *text, size_t n)
{
    const oom_level *limiting = find_limiting_group(w);
    const char *name;
    char shown[512];
    char limit[32];
    int length;

    if (limiting == NULL) {
        text_format(text, n, "%s",
                    w->n > 0 ? "this machine, or the container around this process, has none left"
                             : "this machine has none left");
        return;
    }
    name = w->place.path + w->place.n_mount;
    length = (int)(limiting->length - w->place.n_mount);
    text_format(shown, sizeof(shown), "%.*s", length > 0 ? length : 1, length > 0 ? name : "/");
    text_printable(shown, sizeof(shown), shown);
    text_format(text, n, "limit %s of cgroup %s",
                text_bytes(limit, sizeof(limit), (uint64_t)limit_at(w, limiting)), shown);
}

bool oom_happened(oom_watch *w, char *text, size_t n)
{
    const int64_t machine = machine_kills(w);
    /* Outer groups also count kills in other groups. */
    const bool has = w->n > 0 ? kills_at(w, &w->levels[0]) > w->levels[0].kills
                              : machine > w->machine_kills && w->machine_kills >= 0;

    if (has)
        describe(w, text, n);
    for (int i = 0; i < w->n; i++) {
        w->levels[i].kills = kills_at(w, &w->levels[i]);
        w->levels[i].hits = hits_at(w, &w->levels[i]);
    }
    w->machine_kills = machine;
    return has;
}
