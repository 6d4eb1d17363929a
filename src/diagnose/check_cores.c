/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_cores.c - compares the machine's cores with those that this process may use, and both with
 * the number of ranks. A subject of check_quick().
 */
#include "diagnose/check_internal.h"

#include "base/text.h"
#include "base/thread.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The count of numbers in a list such as "0-3,7"; 0 for malformed text. */
static int count_list(const char *at)
{
    int64_t n = 0;

    while (isdigit((unsigned char)*at)) {
        char *end;
        const long first = strtol(at, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (last < first || last > 1 << 20)
            return 0;
        n += last - first + 1;
        at = end + (*end == ',');
    }
    return n <= INT_MAX ? (int)n : 0;
}

/* The cores of the affinity mask; 0 when /proc does not show it. */
static int masked_cores(const check *c)
{
    char status[4096];
    const char *line;

    if (!check_read(c, "/proc/self/status", status, sizeof(status)))
        return 0;
    line = strstr(status, "\nCpus_allowed_list:");
    if (line == NULL)
        return 0;
    line += strlen("\nCpus_allowed_list:");
    return count_list(line + strspn(line, " \t"));
}

/* The minimum of online cores, mask and quota; *why names the one that limits. */
static int usable(const check *c, int online, const char **why)
{
    char groups[1024];
    char tree[1024];
    const int mask = masked_cores(c);
    const int quota = cores_in_cgroup(check_path(c, groups, sizeof(groups), "/proc/self/cgroup"),
                                      check_path(c, tree, sizeof(tree), "/sys/fs/cgroup"));
    int least = online;

    *why = "";
    if (mask > 0 && (least == 0 || mask < least)) {
        least = mask;
        *why = " (affinity mask)";
    }
    if (quota > 0 && (least == 0 || quota < least)) {
        least = quota;
        *why = " (cgroup CPU quota)";
    }
    return least;
}

void check_cores(check *c)
{
    char list[1024] = "";
    const int online =
        check_read(c, "/sys/devices/system/cpu/online", list, sizeof(list)) ? count_list(list) : 0;
    const char *why;
    const int cores = usable(c, online, &why);
    char fix[96];

    if (cores == 0)
        return;
    text_format(fix, sizeof(fix), "lockstep run -n %d   # or -n cpu", cores);
    if (cores < c->n_ranks)
        finding_add(c->out, FINDING_CORES_FEW_KIND, FINDING_WARNING, fix,
                    "%d ranks share %d core%s%s", c->n_ranks, cores, cores == 1 ? "" : "s", why);
    else if (cores < online)
        finding_add(c->out, FINDING_CORES_MASKED_KIND, FINDING_NOTE, "lockstep run -n cpu",
                    "this process may use %d of %d cores%s", cores, online, why);
    else
        finding_add(c->out, FINDING_CORES_OK_KIND, FINDING_OK, NULL, "%d core%s for %d rank%s",
                    cores, cores == 1 ? "" : "s", c->n_ranks, c->n_ranks == 1 ? "" : "s");
}
