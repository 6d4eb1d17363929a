/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.h - whether the kernel has killed for want of memory, and whose limit that was.
 *
 * The kernel tells nobody why it kills, but counts: in the control groups around the killed, from its own up to the tree's root, or for
 * the whole machine where there are none. So a count that has grown since is what there is to go by.
 */
#ifndef LS_LAUNCH_OOM_H
#define LS_LAUNCH_OOM_H

#include "launch/process/cgroup.h"

enum { OOM_LEVELS_MOST = 16 };

typedef struct oom_level {
    size_t length; /* of the group's path in place.path */
    int64_t kills; /* -1: this group does not count them */
    int64_t hits;  /* how often its limit was reached */
} oom_level;

typedef struct oom_watch {
    const char *root;
    cgroup_place place;
    bool is_v2;
    int n; /* levels, the innermost group first; 0: only the machine counts */
    oom_level levels[OOM_LEVELS_MOST];
    int64_t machine_kills; /* -1: nobody counts */
} oom_watch;

/* From now on. `group` is where the processes will be, NULL: where this one is. `root` (kept) stands before "/proc" and the tree. */
void oom_begin(oom_watch *w, const char *root, const cgroup_place *group);

/* Whether it has happened since oom_begin(), or since this was asked last. The text goes on after "out of memory": "limit 512 MiB of
 * cgroup /x", "this machine has none left". */
bool oom_happened(oom_watch *w, char *text, size_t n);

#endif
