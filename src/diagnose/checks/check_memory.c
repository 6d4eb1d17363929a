/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_memory.c - compares available memory and /dev/shm with what the ranks need. Subjects of
 * check_quick() and check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MIB            ((uint64_t)1 << 20)
#define SHM_LEAST      (512 * MIB)
#define SHM_OF_RANK    (64 * MIB)  /* NCCL's channels and one or two data loaders */
#define MEMORY_OF_RANK (256 * MIB) /* of a PyTorch program that has only started */

void check_shm(check *c)
{
    const uint64_t wanted = SHM_OF_RANK * (uint64_t)c->n_ranks;
    uint64_t total = 0;
    uint64_t unused = 0;
    char total_text[32];
    char unused_text[32];

    if (!c->from->space(c->from->self, "/dev/shm", &total, &unused)) {
        finding_add(c->out, FINDING_SHM_MISSING_KIND, FINDING_WARNING,
                    "mount -t tmpfs -o mode=1777 tmpfs /dev/shm", "/dev/shm does not exist");
        return;
    }
    text_bytes(total_text, sizeof(total_text), total);
    text_bytes(unused_text, sizeof(unused_text), unused);
    if (total < SHM_LEAST)
        finding_add(c->out, FINDING_SHM_SMALL_KIND, FINDING_WARNING,
                    "mount -o remount,size=8G /dev/shm   # docker run --shm-size=8g",
                    "/dev/shm has %s", total_text);
    else if (unused < wanted)
        finding_add(c->out, FINDING_SHM_SMALL_KIND, FINDING_WARNING, "ls -lS /dev/shm",
                    "/dev/shm has %s free of %s, too little for %d rank%s", unused_text, total_text,
                    c->n_ranks, text_plural(c->n_ranks));
    else
        finding_add(c->out, FINDING_SHM_OK_KIND, FINDING_OK, NULL, "/dev/shm has %s free",
                    unused_text);
}

/* MemAvailable of /proc/meminfo; false when it is missing. */
static bool machine_memory(const check *c, uint64_t *bytes)
{
    char text[4096];
    const char *line;

    if (!check_read(c, "/proc/meminfo", text, sizeof(text)))
        return false;
    line = strstr(text, "MemAvailable:");
    if (line == NULL)
        return false;
    *bytes = (uint64_t)strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024;
    return true;
}

void check_memory(check *c)
{
    const uint64_t wanted = MEMORY_OF_RANK * (uint64_t)c->n_ranks;
    const char *owner = "the machine";
    uint64_t available;
    uint64_t left;
    char text[32];

    if (!machine_memory(c, &available))
        return;
    if ((check_group_limit(c, "memory", "memory.max", "memory.current", &left) &&
         left < available) ||
        (check_group_limit(c, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", &left) &&
         left < available)) {
        available = left;
        owner = "the control group";
    }
    text_bytes(text, sizeof(text), available);
    if (available < wanted)
        finding_add(c->out, FINDING_MEMORY_LOW_KIND, FINDING_WARNING,
                    "ps -eo pid,user,rss,args --sort=-rss | head",
                    "%s has %s of memory available, too little for %d rank%s", owner, text,
                    c->n_ranks, text_plural(c->n_ranks));
    else
        finding_add(c->out, FINDING_MEMORY_OK_KIND, FINDING_OK, NULL,
                    "%s has %s of memory available", owner, text);
}
