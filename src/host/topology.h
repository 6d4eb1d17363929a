/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topology.h - the cores of a machine and where they are: NUMA node, socket, physical core, and the
 * cache that some cores share. Read from sysfs below a root folder, which tests replace.
 */
#ifndef LS_HOST_TOPOLOGY_H
#define LS_HOST_TOPOLOGY_H

#include "base/status.h"

#include <stdbool.h>

enum { TOPOLOGY_CPUS = 4096, TOPOLOGY_NODES = 1024 };

/* A set of logical cores. */
typedef struct cpu_mask {
    uint64_t words[TOPOLOGY_CPUS / 64];
} cpu_mask;

static inline bool cpu_mask_has(const cpu_mask *m, int cpu)
{
    return (m->words[cpu / 64] >> (cpu % 64) & 1) != 0;
}

static inline void cpu_mask_add(cpu_mask *m, int cpu)
{
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): cpu is not below 0
    m->words[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

int cpu_mask_count(const cpu_mask *m);

/* The kernel's form, "0-3,7"; an empty text is an empty set. False: malformed, or a number of
 * TOPOLOGY_CPUS or more. */
bool cpu_mask_parse(const char *list, cpu_mask *out);

/* The cores that this process may use now. */
void cpu_mask_of_process(cpu_mask *out);

/* Where a logical core is. Of an unknown place the numbers are 0, and `core` the core itself. */
typedef struct topology_cpu {
    int node;
    int socket;
    int core;  /* the first logical core of its physical core */
    int cache; /* the first logical core that shares its last cache */
} topology_cpu;

typedef struct topology {
    cpu_mask online;
    cpu_mask nodes;                   /* that have cores, by number */
    topology_cpu cpus[TOPOLOGY_CPUS]; /* of those online */
} topology;

/* Where a process runs. The numbers differ between sockets, and between last caches. */
typedef struct topology_place {
    int socket; /* -1: unknown, or its cores are in several */
    int cache;  /* the same for the last cache */
} topology_place;

/* The place of a process that may use these cores. Reads what it needs only. */
topology_place topology_find_place(const char *root, const cpu_mask *cores);

/* LS_ENOTFOUND: there is no list of the cores. `root` is "" for this machine. */
LS_MUST_USE ls_status topology_read(const char *root, topology *out);

#endif
