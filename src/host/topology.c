/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c - sets of cores, and the places of cores from sysfs. For --numa-binding and checks. */
#include "host/topology.h"

#include "base/file.h"
#include "base/text.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 4096, PATH_BYTES = 512, CACHES = 8 };

// --- sets ---

int cpu_mask_count(const cpu_mask *m)
{
    int n = 0;

    for (size_t i = 0; i < LS_COUNT_OF(m->words); i++)
        n += __builtin_popcountll(m->words[i]);
    return n;
}

bool cpu_mask_parse(const char *list, cpu_mask *out)
{
    memset(out, 0, sizeof(*out));
    for (const char *at = list; *at != '\0';) {
        char *end;
        long first;
        long last;

        if (!isdigit((unsigned char)*at))
            return false;
        first = last = strtol(at, &end, 10);
        if (*end == '-' && isdigit((unsigned char)end[1]))
            last = strtol(end + 1, &end, 10);
        if (first > last || last >= TOPOLOGY_CPUS || (*end != ',' && *end != '\0'))
            return false;
        for (long cpu = first; cpu <= last; cpu++)
            cpu_mask_add(out, (int)cpu);
        at = end + (*end == ',');
    }
    return true;
}

void cpu_mask_of_process(cpu_mask *out)
{
    memset(out, 0, sizeof(*out));
    (void)sched_getaffinity(0, sizeof(*out), (cpu_set_t *)(void *)out->words);
}

// --- places ---

static bool read_list(const char *path, cpu_mask *out)
{
    char text[LIST_BYTES];
    const ssize_t n = file_read_start(path, text, sizeof(text));

    if (n < 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return cpu_mask_parse(text, out);
}

static int read_number(const char *path, int otherwise)
{
    char text[32];
    char *end;
    long value;

    if (file_read_start(path, text, sizeof(text)) <= 0)
        return otherwise;
    value = strtol(text, &end, 10);
    return end == text || value < 0 || value > TOPOLOGY_CPUS ? otherwise : (int)value;
}

static int first_of(const cpu_mask *m, int otherwise)
{
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++)
        if (cpu_mask_has(m, cpu))
            return cpu;
    return otherwise;
}

/* The cores that share the cache of the highest level with the core; false: they are not known. */
static bool read_cache(const char *folder, cpu_mask *out)
{
    char path[PATH_BYTES];
    int highest = -1;

    for (int i = 0; i < CACHES; i++) {
        cpu_mask shared;
        int level;

        text_format(path, sizeof(path), "%s/cache/index%d/level", folder, i);
        level = read_number(path, -1);
        text_format(path, sizeof(path), "%s/cache/index%d/shared_cpu_list", folder, i);
        if (level <= highest || !read_list(path, &shared))
            continue;
        highest = level;
        *out = shared;
    }
    return highest >= 0;
}

static void read_cpu(const char *root, int cpu, topology_cpu *out)
{
    char folder[PATH_BYTES / 2];
    char path[PATH_BYTES];
    cpu_mask shared;

    text_format(folder, sizeof(folder), "%s/sys/devices/system/cpu/cpu%d", root, cpu);
    *out = (topology_cpu){.core = cpu};
    text_format(path, sizeof(path), "%s/topology/physical_package_id", folder);
    out->socket = read_number(path, 0);
    text_format(path, sizeof(path), "%s/topology/thread_siblings_list", folder);
    if (read_list(path, &shared))
        out->core = first_of(&shared, cpu);
    out->cache = read_cache(folder, &shared) ? first_of(&shared, cpu) : cpu;
}

static bool contains(const cpu_mask *all, const cpu_mask *some)
{
    for (size_t i = 0; i < LS_COUNT_OF(all->words); i++)
        if ((some->words[i] & ~all->words[i]) != 0)
            return false;
    return true;
}

topology_place topology_find_place(const char *root, const cpu_mask *cores)
{
    topology_place place = {.socket = -1, .cache = -1};
    const int cpu = first_of(cores, -1);
    char folder[PATH_BYTES / 2];
    char path[PATH_BYTES];
    cpu_mask shared;

    if (cpu < 0)
        return place;
    text_format(folder, sizeof(folder), "%s/sys/devices/system/cpu/cpu%d", root, cpu);
    if (read_cache(folder, &shared) && contains(&shared, cores))
        place.cache = first_of(&shared, cpu);
    text_format(path, sizeof(path), "%s/topology/package_cpus_list", folder);
    if (!read_list(path, &shared)) { // its name before Linux 5.1
        text_format(path, sizeof(path), "%s/topology/core_siblings_list", folder);
        if (!read_list(path, &shared))
            return place;
    }
    if (contains(&shared, cores))
        place.socket = first_of(&shared, cpu);
    return place;
}

/* Gives the cores of a node its number. */
static void read_node(const char *root, int node, topology *out)
{
    char path[PATH_BYTES];
    cpu_mask cores;

    text_format(path, sizeof(path), "%s/sys/devices/system/node/node%d/cpulist", root, node);
    if (!read_list(path, &cores))
        return;
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++) {
        if (!cpu_mask_has(&cores, cpu) || !cpu_mask_has(&out->online, cpu))
            continue;
        out->cpus[cpu].node = node;
        cpu_mask_add(&out->nodes, node);
    }
}

ls_status topology_read(const char *root, topology *out)
{
    char path[PATH_BYTES];
    cpu_mask nodes;

    memset(out, 0, sizeof(*out));
    text_format(path, sizeof(path), "%s/sys/devices/system/cpu/online", root);
    if (!read_list(path, &out->online) || cpu_mask_count(&out->online) == 0)
        return ls_fail(LS_ENOTFOUND, "%s does not list the cores of this machine", path);
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++)
        if (cpu_mask_has(&out->online, cpu))
            read_cpu(root, cpu, &out->cpus[cpu]);
    text_format(path, sizeof(path), "%s/sys/devices/system/node/online", root);
    if (read_list(path, &nodes)) {
        for (int node = 0; node < TOPOLOGY_NODES; node++)
            if (cpu_mask_has(&nodes, node))
                read_node(root, node, out);
    }
    if (cpu_mask_count(&out->nodes) == 0)
        cpu_mask_add(&out->nodes, 0);
    return LS_OK;
}
