/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_text.h - a set of cores in the form that cpu_mask_parse() reads, for tests. */
#ifndef TESTS_HARNESS_CPU_TEXT_H
#define TESTS_HARNESS_CPU_TEXT_H

#include "base/text.h"
#include "host/topology.h"

#include <string.h>

/* Into buf, which it returns. */
static inline const char *cpu_mask_text(const cpu_mask *m, char *buf, size_t n)
{
    size_t used = 0;

    text_format(buf, n, "%s", "");
    for (int cpu = 0; cpu < TOPOLOGY_CPUS && used + 1 < n; cpu++) {
        const int first = cpu;

        if (!cpu_mask_has(m, cpu))
            continue;
        while (cpu + 1 < TOPOLOGY_CPUS && cpu_mask_has(m, cpu + 1))
            cpu++;
        text_format(buf + used, n - used, cpu > first ? "%s%d-%d" : "%s%d", used > 0 ? "," : "",
                    first, cpu);
        used += strlen(buf + used);
    }
    return buf;
}

#endif
