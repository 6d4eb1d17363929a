/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_cores.c - compares the machine's cores with those that this process may use, and both with
 * the number of ranks. A subject of check_quick().
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"
#include "host/cores.h"
#include "host/process_id.h"
#include "host/topology.h"

#include <string.h>

enum { THREADS_MAX = 1 << 16, LIST_BYTES = 4096 };

/* The count of numbers in a list such as "0-3,7"; 0 for malformed text. */
static int count_list(const char *list)
{
    cpu_mask cores;

    return cpu_mask_parse(list, &cores) ? cpu_mask_count(&cores) : 0;
}

/* The cores of the affinity mask; 0 when /proc does not show it. */
static int masked_cores(const check *c)
{
    char list[LIST_BYTES];

    return process_status_line(c->from->root, "self", "Cpus_allowed_list", list, sizeof(list))
               ? count_list(list)
               : 0;
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

/* Threads of a rank by OMP_NUM_THREADS ("4", "4,2"); without it the launcher divides the cores. */
static int threads_of_rank(const check *c)
{
    const char *text = c->from->variable(c->from->self, "OMP_NUM_THREADS");
    char first[16];
    int64_t n;

    if (text == NULL || !text_next_item(&text, first, sizeof(first)) ||
        text_parse_int(first, "OMP_NUM_THREADS", 1, THREADS_MAX, &n) != LS_OK)
        return 1;
    return (int)n;
}

/* More threads than cores, although there are enough cores for the ranks. */
static void check_threads(check *c, int cores, const char *why)
{
    const int threads = threads_of_rank(c);
    char fix[96];

    if (cores < c->n_ranks || (int64_t)threads * c->n_ranks <= cores)
        return;
    text_format(fix, sizeof(fix), "export OMP_NUM_THREADS=%d", cores / c->n_ranks);
    finding_add(c->out, FINDING_CORES_THREADS_KIND, FINDING_WARNING, fix,
                "%d rank%s with %d threads each (OMP_NUM_THREADS) on %d core%s%s", c->n_ranks,
                text_plural(c->n_ranks), threads, cores, text_plural(cores), why);
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
    check_threads(c, cores, why);
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
