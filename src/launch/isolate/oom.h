/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.h - detects kills by the kernel's out-of-memory killer and finds the limit that caused them.
 *
 * The kernel does not report why it kills, but counts kills: in the control groups around the
 * process, or for the whole machine without groups. A count that has grown since the start is the
 * evidence.
 */
#ifndef LS_LAUNCH_ISOLATE_OOM_H
#define LS_LAUNCH_ISOLATE_OOM_H

#include "host/cgroup.h"

enum { OOM_LEVELS_MOST = 16 };

typedef struct oom_level {
    size_t length; /* of the group's path in place.path */
    int64_t kills; /* -1: not counted in this group */
    int64_t hits;  /* times its limit was reached */
} oom_level;

typedef struct oom_watch {
    const char *root;
    cgroup_place place;
    bool is_v2;
    int n; /* levels, the innermost group first; 0: use machine_kills */
    oom_level levels[OOM_LEVELS_MOST];
    int64_t machine_kills; /* -1: not counted */
} oom_watch;

/*
 * Starts the watch of `group`, or of this process's group when it is NULL. `root`, borrowed for the
 * life of the watch, is a prefix of "/proc" and of the hierarchy.
 */
void oom_begin(oom_watch *w, const char *root, const cgroup_place *group);

/*
 * Whether a kill has happened since oom_begin() or since the last call. The text continues "out of
 * memory": "limit 512 MiB of cgroup /x", "this machine has none left".
 */
bool oom_happened(oom_watch *w, char *text, size_t n);

#endif
