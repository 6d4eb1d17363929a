/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores.c - counts the cores that this process can use. A container's limit is a cgroup quota,
 * which sysconf() and the affinity mask do not show; threads above it are throttled together.
 * Called when the number of compute threads is chosen. And reads how many tasks Slurm has put on a
 * node.
 */
#include "host/cores.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_FILE  65536
#define VALUE_BYTES 64
#define TASKS_MOST  65536 /* of a node */

/* The affinity mask; a machine may have more cores than a cpu_set_t holds. */
typedef struct affinity {
    int cores;
    uint64_t id; /* equal for equal masks */
} affinity;

static affinity read_affinity(void)
{
    for (int n = CPU_SETSIZE; n <= 1 << 20; n *= 2) {
        const size_t bytes = CPU_ALLOC_SIZE(n);
        cpu_set_t *set = ls_calloc(1, bytes);
        affinity a = {.cores = 1};
        bool is_small = false;

        if (set == NULL)
            break;
        if (sched_getaffinity(0, bytes, set) == 0)
            a = (affinity){.cores = CPU_COUNT_S(bytes, set), .id = ls_hash_bytes(set, bytes, 1)};
        else
            is_small = errno == EINVAL;
        ls_free(set);
        if (!is_small)
            return a;
    }
    return (affinity){.cores = 1};
}

/* The text of FOLDER/NAME without its newline; false when it cannot be read. */
static bool read_value(const char *folder, const char *name, char text[VALUE_BYTES])
{
    char path[4096];

    (void)text_format(path, sizeof(path), "%s/%s", folder, name);
    if (file_read_start(path, text, VALUE_BYTES) < 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return true;
}

/* Whole cores in quota per period, at least 1. */
static int quota_cores(const char *quota, const char *period)
{
    int64_t q;
    int64_t p;

    if (text_parse_int(quota, "quota", 1, INT64_MAX, &q) != LS_OK ||
        text_parse_int(period, "period", 1, INT64_MAX, &p) != LS_OK)
        return 0; // "max" or -1: no limit
    if (q / p < 1)
        return 1;
    return q / p > INT32_MAX ? INT32_MAX : (int)(q / p);
}

/* The limit of this folder; 0 = none. */
static int folder_cores(const char *folder)
{
    char quota[VALUE_BYTES];
    char period[VALUE_BYTES];

    if (read_value(folder, "cpu.max", quota)) {
        char *space = strchr(quota, ' ');

        if (space == NULL)
            return 0;
        *space = '\0';
        return quota_cores(quota, space + 1);
    }
    return read_value(folder, "cpu.cfs_quota_us", quota) &&
                   read_value(folder, "cpu.cfs_period_us", period)
               ? quota_cores(quota, period)
               : 0;
}

/* The smallest limit of MOUNT/GROUP and all folders between it and MOUNT; 0 = none. When the
 * group's name is that outside of the container its folder does not exist; then only the mount
 * counts. */
static int group_cores(const char *mount, const char *group)
{
    const size_t n_mount = strlen(mount);
    char folder[4096];
    int least = 0;

    if (n_mount + strlen(group) >= sizeof(folder))
        return 0;
    (void)text_format(folder, sizeof(folder), "%s%s", mount, group);
    for (;;) {
        const int cores = folder_cores(folder);
        char *slash = strrchr(folder + n_mount, '/');

        if (cores > 0 && (least == 0 || cores < least))
            least = cores;
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Whether `list`, "cpu,cpuacct", names the cpu controller. */
static bool has_cpu(const char *list)
{
    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (text_equal(p, "cpu") || text_starts(p, "cpu,"))
            return true;
    }
    return false;
}

/* The limit of one line of /proc/self/cgroup, "ID:CONTROLLERS:GROUP"; 0 = none. */
static int line_cores(const char *root, char *line)
{
    char *list = strchr(line, ':');
    char *group = list == NULL ? NULL : strchr(list + 1, ':');
    char mount[1024];

    if (group == NULL)
        return 0;
    *group++ = '\0';
    list++;
    if (*list == '\0') // version 2 has one tree for all controllers
        return group_cores(root, group);
    if (!has_cpu(list))
        return 0;
    (void)text_format(mount, sizeof(mount), "%s/cpu", root);
    if (strlen(mount) + 1 == sizeof(mount))
        return 0;
    return group_cores(mount, group);
}

int cores_in_cgroup(const char *membership, const char *root)
{
    char saved[LS_ERROR_BYTES];
    char *text = NULL;
    char *rest;
    char *line;
    size_t bytes;
    int least = 0;

    ls_error_save(saved); // missing files are not an error here
    if (file_read(membership, SMALL_FILE, &text, &bytes) != LS_OK)
        text = NULL;
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL) {
        const int cores = line_cores(root, line);

        if (cores > 0 && (least == 0 || cores < least))
            least = cores;
    }
    ls_free(text);
    ls_error_restore(saved);
    return least;
}

int ls_usable_cores(uint64_t *share)
{
    const affinity mask = read_affinity();
    const int by_quota = cores_in_cgroup("/proc/self/cgroup", "/sys/fs/cgroup");
    const bool is_quota = by_quota > 0 && by_quota < mask.cores;

    if (share != NULL)
        *share = is_quota ? 0 : mask.id;
    return is_quota ? by_quota : mask.cores;
}

ls_status cores_slurm_tasks(const char *text, const char *what, int node, int *out)
{
    const char *p = text;

    for (int first = 0; *p != '\0';) {
        int tasks = 0;
        int repeat = 1;
        int used = 0;

        for (; *p >= '0' && *p <= '9' && tasks < TASKS_MOST; p++, used++)
            tasks = tasks * 10 + (*p - '0');
        if (used > 0 && p[0] == '(' && p[1] == 'x') {
            repeat = 0;
            for (p += 2; *p >= '0' && *p <= '9' && repeat < TASKS_MOST; p++)
                repeat = repeat * 10 + (*p - '0');
            used = repeat > 0 && *p == ')' ? used : 0;
            p += *p == ')';
        }
        if (used == 0 || tasks == 0 || tasks > TASKS_MOST || (*p != ',' && *p != '\0') ||
            (p[0] == ',' && p[1] == '\0'))
            return ls_fail(LS_EINVAL, "%s \"%.80s\": must be task counts as 4(x2),2", what, text);
        if (node < first + repeat) {
            *out = tasks;
            return LS_OK;
        }
        first += repeat;
        p += *p == ',';
    }
    return ls_fail(LS_EINVAL, "%s \"%.80s\": has no node %d", what, text, node);
}
