/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_limits.c - compares the limits of this user and of the control group (open files, locked
 * memory, processes) with what the ranks need. Subjects of check_quick() and check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/file.h"
#include "base/text.h"
#include "host/process.h"

#include <dirent.h>
#include <limits.h>
#include <string.h>

enum { RANK_PROCESSES = 16 /* the rank, its shim, and its threads and data loaders */ };

static const char *limit_text(char *buf, size_t n, rlim_t limit)
{
    if (limit == RLIM_INFINITY)
        return text_format(buf, n, "unlimited");
    return text_format(buf, n, "%llu", (unsigned long long)limit);
}

void check_files(check *c)
{
    const rlim_t least = AGENT_FILES_LEAST + AGENT_FILES_LEAST_RANK * (rlim_t)c->n_ranks;
    const rlim_t enough = AGENT_FILES + AGENT_FILES_RANK * (rlim_t)c->n_ranks;
    struct rlimit limit;
    char most[32];
    char fix[128];

    if (!c->from->limit(c->from->self, RLIMIT_NOFILE, &limit))
        return;
    limit_text(most, sizeof(most), limit.rlim_max);
    text_format(fix, sizeof(fix), "ulimit -Hn %llu   # as root, or in /etc/security/limits.conf",
                (unsigned long long)enough);
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= enough)
        finding_add(c->out, FINDING_FILES_OK_KIND, FINDING_OK, NULL, "hard limit of open files: %s",
                    most);
    else if (limit.rlim_max < least)
        finding_add(c->out, FINDING_FILES_LOW_KIND, FINDING_ERROR, fix,
                    "hard limit of open files is %s; the launcher of %d rank%s needs %llu", most,
                    c->n_ranks, text_plural(c->n_ranks), (unsigned long long)least);
    else
        finding_add(c->out, FINDING_FILES_LOW_KIND, FINDING_WARNING, fix,
                    "hard limit of open files is %s; the launcher of %d rank%s may need %llu for "
                    "PyTorch's connections",
                    most, c->n_ranks, text_plural(c->n_ranks), (unsigned long long)enough);
}

/* Whether the machine has an adapter that needs locked memory. */
static bool has_infiniband(const check *c)
{
    char path[PATH_MAX];
    DIR *folder = opendir(check_path(c, path, sizeof(path), "/sys/class/infiniband"));
    const struct dirent *entry;
    bool found = false;

    if (folder == NULL)
        return false;
    while (!found && (entry = file_next_entry(folder)) != NULL)
        found = entry->d_name[0] != '.';
    closedir(folder);
    return found;
}

void check_memlock(check *c)
{
    struct rlimit limit;

    if (!c->from->limit(c->from->self, RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur == RLIM_INFINITY || !has_infiniband(c))
        finding_add(c->out, FINDING_MEMLOCK_OK_KIND, FINDING_OK, NULL, "%s",
                    limit.rlim_cur == RLIM_INFINITY
                        ? "locked memory limit: unlimited"
                        : "locked memory is limited, and no InfiniBand adapter needs it");
    else
        finding_add(c->out, FINDING_MEMLOCK_LOW_KIND, FINDING_WARNING,
                    "ulimit -l unlimited   # as root, or in /etc/security/limits.conf; "
                    "docker run --ulimit memlock=-1",
                    "locked memory limit is %llu KiB, too low for InfiniBand",
                    (unsigned long long)limit.rlim_cur / 1024);
}

void check_processes(check *c)
{
    const uint64_t needed = 2 + RANK_PROCESSES * (uint64_t)c->n_ranks;
    struct rlimit limit;
    uint64_t left;

    if (c->from->limit(c->from->self, RLIMIT_NPROC, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < needed)
        finding_add(c->out, FINDING_PROCESSES_LOW_KIND, FINDING_WARNING,
                    "ulimit -u unlimited   # as root, or in /etc/security/limits.conf",
                    "this user's limit of %llu processes and threads is too low for %d rank%s",
                    (unsigned long long)limit.rlim_cur, c->n_ranks, text_plural(c->n_ranks));
    else if (check_group_limit(c, "pids", "pids.max", "pids.current", &left) && left < needed)
        finding_add(
            c->out, FINDING_PROCESSES_LOW_KIND, FINDING_WARNING,
            "docker run --pids-limit=-1   # or the limit of the pod or of the service",
            "the control group allows %llu more processes and threads, too few for %d rank%s",
            (unsigned long long)left, c->n_ranks, text_plural(c->n_ranks));
    else
        finding_add(c->out, FINDING_PROCESSES_OK_KIND, FINDING_OK, NULL,
                    "process limits suffice for %d rank%s", c->n_ranks, text_plural(c->n_ranks));
}
