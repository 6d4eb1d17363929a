/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_cgroup.c - the kernel's tables of mounts and groups, and names of groups, which any user may
 * choose. The input is two tables with a zero byte between them.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "host/cgroup.h"

#include <stdbool.h>
#include <string.h>

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void check_place(const char *mounts, const char *groups, const char *controller)
{
    static cgroup_place place;

    if (cgroup_find_place(mounts, groups, controller, &place) != LS_OK)
        return;
    must(strlen(place.path) < sizeof(place.path) && place.n_mount <= strlen(place.path));
    must(strstr(place.path + place.n_mount, "/..") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char job[CGROUP_JOB_BYTES];
    process_id agent;
    const char *groups;
    char *text;

    if (size > 65536 || (text = ls_calloc(size + 2, 1)) == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    groups = text + strlen(text) + 1;
    groups = groups > text + size ? "" : groups;
    check_place(text, groups, NULL);
    check_place(text, groups, "memory");
    if (cgroup_parse_name(groups, job, &agent))
        must(strlen(job) < sizeof(job) && agent.pid > 0);
    ls_free(text);
    return 0;
}
