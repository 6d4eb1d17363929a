/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover_internal.h - what finding leftovers (leftover.c) and killing them (leftover_end.c)
 * share.
 */
#ifndef LS_HOST_LEFTOVER_INTERNAL_H
#define LS_HOST_LEFTOVER_INTERNAL_H

#include "host/leftover.h"

#define LEFTOVER_SPARED_MOST 64

/* One scan of /proc. */
typedef struct leftover_scan {
    const leftover_query *query;
    leftovers *out;
    uint64_t pid_ns;
    int64_t uptime_s;
    pid_t spared[LEFTOVER_SPARED_MOST];
    int n_spared;
} leftover_scan;

LS_MUST_USE ls_status leftover_begin(const leftover_query *query, leftovers *out, leftover_scan *s);

/* Whether this process is a leftover; it may not belong to query->job. */
bool leftover_examine(const leftover_scan *s, pid_t pid, leftover *out);

#endif
