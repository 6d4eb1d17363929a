/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_numa.c - the NUMA nodes of the machine, and the kernel's settings for large pages. Subjects
 * of check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/alloc.h"
#include "base/text.h"
#include "host/topology.h"

#include <stdlib.h>
#include <string.h>

/* MemTotal of a node in KiB: "Node 1 MemTotal:  65536 kB"; -1: not known. */
static int64_t node_memory(const check *c, int node)
{
    static const char key[] = "MemTotal:";
    char path[96];
    char text[1024];
    const char *at;

    text_format(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
    at = check_read(c, path, text, sizeof(text)) ? strstr(text, key) : NULL;
    return at == NULL ? -1 : strtoll(at + strlen(key), NULL, 10);
}

static void check_node_memory(check *c, const topology *t)
{
    for (int node = 0; node < TOPOLOGY_NODES; node++)
        if (cpu_mask_has(&t->nodes, node) && node_memory(c, node) == 0)
            finding_add(c->out, FINDING_NUMA_MEMORY_KIND, FINDING_WARNING,
                        "dmidecode -t memory   # slots without modules",
                        "NUMA node %d has cores but no memory", node);
}

void check_numa(check *c)
{
    topology *t = ls_calloc(1, sizeof(*t));
    char saved[LS_ERROR_BYTES];
    int64_t is_on;
    int n = 1;

    ls_error_save(saved); // missing files are not failures
    if (t != NULL && topology_read(c->from->root, t) == LS_OK) {
        n = cpu_mask_count(&t->nodes);
        check_node_memory(c, t);
    }
    ls_error_restore(saved);
    ls_free(t);
    if (n == 1) {
        finding_add(c->out, FINDING_NUMA_OK_KIND, FINDING_OK, NULL, "one NUMA node");
        return;
    }
    finding_add(c->out, FINDING_NUMA_UNBOUND_KIND, FINDING_NOTE, "lockstep run --numa-binding node",
                "%d NUMA nodes, and ranks are not bound to them by default", n);
    if (check_read_number(c, "/proc/sys/kernel/numa_balancing", &is_on) && is_on != 0)
        finding_add(c->out, FINDING_NUMA_BALANCING_KIND, FINDING_NOTE,
                    "sysctl kernel.numa_balancing=0   # with ranks that are bound",
                    "the kernel moves pages between NUMA nodes (numa_balancing)");
}

/* Whether "[never]" is the selected word of a file of transparent_hugepage. */
static bool is_selected(const check *c, const char *file, const char *word)
{
    char path[96];
    char text[128];

    text_format(path, sizeof(path), "/sys/kernel/mm/transparent_hugepage/%s", file);
    return check_read(c, path, text, sizeof(text)) && strstr(text, word) != NULL;
}

void check_pages(check *c)
{
    if (is_selected(c, "enabled", "[never]"))
        finding_add(c->out, FINDING_PAGES_SMALL_KIND, FINDING_NOTE,
                    "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled   # as root",
                    "transparent huge pages are off");
    else if (is_selected(c, "defrag", "[always]"))
        finding_add(c->out, FINDING_PAGES_STALL_KIND, FINDING_NOTE,
                    "echo defer+madvise >/sys/kernel/mm/transparent_hugepage/defrag   # as root",
                    "the kernel makes huge pages while a process waits (defrag: always)");
    else
        finding_add(c->out, FINDING_PAGES_OK_KIND, FINDING_OK, NULL,
                    "transparent huge pages are available, or this kernel has none");
}
