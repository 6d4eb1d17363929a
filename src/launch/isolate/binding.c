/* SPDX-License-Identifier: Apache-2.0 */
/* binding.c - chooses cores and memory of ranks for --numa-binding; agent_ranks.c calls it. */
#include "launch/isolate/binding.h"

#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH_BYTES = 512, VALUE_BYTES = 32, ADDRESS_BYTES = 32 };

static const char *const names[BINDING_KINDS] = {"", "node", "socket", "exclusive", "core-complex"};

ls_status binding_parse(const char *text, binding_kind *out)
{
    *out = BINDING_NONE;
    if (text == NULL)
        return LS_OK;
    for (int i = BINDING_NONE + 1; i < BINDING_KINDS; i++)
        if (text_equal(text, names[i]))
            *out = (binding_kind)i;
    return *out != BINDING_NONE ? LS_OK
                                : ls_fail(LS_EINVAL,
                                          "--numa-binding %s: node, socket, exclusive or "
                                          "core-complex",
                                          text);
}

// --- GPUs ---

typedef struct bus_gpu {
    char address[ADDRESS_BYTES];
    int node;
} bus_gpu;

typedef struct bus_gpus {
    bus_gpu list[BINDING_GPUS];
    int n;
} bus_gpus;

static bool read_value(const char *folder, const char *name, char text[VALUE_BYTES])
{
    char path[PATH_BYTES];

    text_format(path, sizeof(path), "%s/%s", folder, name);
    if (file_read_start(path, text, VALUE_BYTES) < 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return true;
}

/* Display and 3D controllers of NVIDIA. */
static bool is_gpu(const char *folder)
{
    char text[VALUE_BYTES];

    return read_value(folder, "vendor", text) && text_equal(text, "0x10de") &&
           read_value(folder, "class", text) && text_starts(text, "0x03");
}

static void add_gpu(const char *bus, const char *address, bus_gpus *out)
{
    char folder[PATH_BYTES / 2];
    char text[VALUE_BYTES];
    bus_gpu *g = &out->list[out->n];
    int64_t node;

    text_format(folder, sizeof(folder), "%s/%.31s", bus, address);
    if (out->n == BINDING_GPUS || !is_gpu(folder))
        return;
    text_format(g->address, sizeof(g->address), "%s", address);
    g->node = -1;
    if (read_value(folder, "numa_node", text) &&
        text_parse_int(text, "numa_node", -1, TOPOLOGY_NODES - 1, &node) == LS_OK)
        g->node = (int)node;
    out->n++;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const bus_gpu *)a)->address, ((const bus_gpu *)b)->address);
}

static void read_bus(const char *root, bus_gpus *out)
{
    char path[PATH_BYTES / 2 - ADDRESS_BYTES];
    const struct dirent *entry;
    DIR *folder;

    out->n = 0;
    text_format(path, sizeof(path), "%s/sys/bus/pci/devices", root);
    folder = opendir(path);
    while (folder != NULL && (entry = file_next_entry(folder)) != NULL)
        if (entry->d_name[0] != '.')
            add_gpu(path, entry->d_name, out);
    if (folder != NULL)
        closedir(folder);
    qsort(out->list, (size_t)out->n, sizeof(out->list[0]), by_address);
}

void binding_read_gpus(const char *root, const char *visible, binding_gpus *out)
{
    char saved[LS_ERROR_BYTES];
    char item[ADDRESS_BYTES];
    bus_gpus bus;

    ls_error_save(saved); // missing files are not failures
    read_bus(root, &bus);
    out->n = 0;
    for (int i = 0; visible == NULL && i < bus.n; i++)
        out->nodes[out->n++] = bus.list[i].node;
    while (visible != NULL && out->n < BINDING_GPUS &&
           text_next_item(&visible, item, sizeof(item))) {
        int64_t i;
        const bool is_known =
            bus.n > 0 && text_parse_int(item, "CUDA_VISIBLE_DEVICES", 0, bus.n - 1, &i) == LS_OK;

        out->nodes[out->n++] = is_known ? bus.list[i].node : -1;
    }
    ls_error_restore(saved);
}

// --- the choice ---

typedef struct scene {
    const topology *t;
    cpu_mask usable;
    int nodes[TOPOLOGY_NODES]; /* that have usable cores, rising */
    int n_nodes;
} scene;

static void look(const topology *t, const cpu_mask *allowed, scene *s)
{
    cpu_mask nodes = {.words = {0}};

    *s = (scene){.t = t};
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++) {
        if (!cpu_mask_has(allowed, cpu) || !cpu_mask_has(&t->online, cpu))
            continue;
        cpu_mask_add(&s->usable, cpu);
        cpu_mask_add(&nodes, t->cpus[cpu].node);
    }
    for (int node = 0; node < TOPOLOGY_NODES; node++)
        if (cpu_mask_has(&nodes, node))
            s->nodes[s->n_nodes++] = node;
}

static int home_of(const scene *s, const binding_gpus *gpus, int local_rank, int n_local)
{
    const int of_gpu = gpus->n > 0 ? gpus->nodes[local_rank % gpus->n] : -1;

    for (int i = 0; i < s->n_nodes; i++)
        if (s->nodes[i] == of_gpu)
            return of_gpu;
    return s->nodes[(int)((int64_t)local_rank * s->n_nodes / n_local)];
}

/* The first usable logical cores of each physical core (is_cache: of each cache) of the home. */
static int list_first(const scene *s, int home, bool is_cache, uint16_t out[TOPOLOGY_CPUS])
{
    int n = 0;

    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++) {
        const topology_cpu *at = &s->t->cpus[cpu];
        const int unit = is_cache ? at->cache : at->core;
        bool is_known = false;

        if (!cpu_mask_has(&s->usable, cpu) || at->node != home)
            continue;
        for (int i = 0; i < n && !is_known; i++)
            is_known = out[i] == unit;
        if (!is_known)
            out[n++] = (uint16_t)unit;
    }
    return n;
}

static void add_core(const scene *s, int cpu, rank_binding *out)
{
    cpu_mask_add(&out->cores, cpu);
    cpu_mask_add(&out->nodes, s->t->cpus[cpu].node);
}

/* The cores of the home whose unit is units[0..n). */
static void add_units(const scene *s, int home, bool is_cache, const uint16_t *units, int n,
                      rank_binding *out)
{
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++) {
        const topology_cpu *at = &s->t->cpus[cpu];

        if (!cpu_mask_has(&s->usable, cpu) || at->node != home)
            continue;
        for (int i = 0; i < n; i++)
            if (units[i] == (is_cache ? at->cache : at->core))
                add_core(s, cpu, out);
    }
}

static void add_node_or_socket(const scene *s, int home, bool is_socket, rank_binding *out)
{
    int socket = -1;

    for (int cpu = 0; cpu < TOPOLOGY_CPUS && socket < 0; cpu++)
        if (cpu_mask_has(&s->usable, cpu) && s->t->cpus[cpu].node == home)
            socket = s->t->cpus[cpu].socket;
    for (int cpu = 0; cpu < TOPOLOGY_CPUS; cpu++) {
        const topology_cpu *at = &s->t->cpus[cpu];

        if (cpu_mask_has(&s->usable, cpu) && (is_socket ? at->socket == socket : at->node == home))
            add_core(s, cpu, out);
    }
}

ls_status binding_choose(const topology *t, const cpu_mask *allowed, const binding_gpus *gpus,
                         binding_kind kind, int local_rank, int n_local, rank_binding *out)
{
    const bool is_cache = kind == BINDING_CORE_COMPLEX;
    uint16_t units[TOPOLOGY_CPUS];
    int n_units;
    int home;
    int before = 0; /* ranks of the home with a lower number */
    int n_ranks = 0;
    scene s;

    memset(out, 0, sizeof(*out));
    if (kind == BINDING_NONE)
        return LS_OK;
    look(t, allowed, &s);
    if (s.n_nodes == 0)
        return ls_fail(LS_ENOTFOUND, "--numa-binding %s: no core of this machine is allowed",
                       names[kind]);
    out->is_set = true;
    home = home_of(&s, gpus, local_rank, n_local);
    if (kind == BINDING_NODE || kind == BINDING_SOCKET) {
        add_node_or_socket(&s, home, kind == BINDING_SOCKET, out);
        return LS_OK;
    }
    for (int r = 0; r < n_local; r++) {
        const bool is_here = home_of(&s, gpus, r, n_local) == home;

        before += is_here && r < local_rank;
        n_ranks += is_here;
    }
    n_units = list_first(&s, home, is_cache, units);
    if (is_cache) {
        add_units(&s, home, true, &units[before % n_units], 1, out);
        return LS_OK;
    }
    if (n_units < n_ranks)
        return ls_fail(
            LS_EINVAL,
            "--numa-binding exclusive: NUMA node %d has %d physical core%s for %d ranks; "
            "start fewer ranks, or use --numa-binding node",
            home, n_units, text_plural(n_units), n_ranks);
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this rank is one of them
    add_units(&s, home, false, &units[before * n_units / n_ranks],
              (before + 1) * n_units / n_ranks - before * n_units / n_ranks, out);
    return LS_OK;
}

// --- the process ---

#define MPOL_PREFERRED      1
#define MPOL_PREFERRED_MANY 5 /* Linux 5.15 */

/* Without it the kernel allocates where the first access is, which is on these cores. */
static void prefer_memory(const cpu_mask *nodes)
{
    const int policy = cpu_mask_count(nodes) == 1 ? MPOL_PREFERRED : MPOL_PREFERRED_MANY;

    (void)syscall(SYS_set_mempolicy, policy, nodes->words, (unsigned long)TOPOLOGY_NODES);
}

int binding_apply(const rank_binding *b)
{
    if (!b->is_set)
        return 0;
    if (sched_setaffinity(0, sizeof(b->cores), (const cpu_set_t *)(const void *)b->cores.words) !=
        0)
        return errno;
    prefer_memory(&b->nodes);
    return 0;
}
