/* SPDX-License-Identifier: Apache-2.0 */
/* startup_peak.h - the most memory that this process has had, for both sides of bench/startup. */
#ifndef BENCH_STARTUP_PEAK_H
#define BENCH_STARTUP_PEAK_H

#include <stdio.h>

static inline void print_peak(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;

    while (status != NULL && fgets(line, sizeof(line), status) != NULL)
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            break;
    if (status != NULL)
        fclose(status);
    printf("peak %ld\n", kib);
}

#endif
