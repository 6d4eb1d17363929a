/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_internal.h - what the subjects of a check share. Each subject appends its findings; none
 * fails.
 */
#ifndef LS_DIAGNOSE_CHECKS_CHECK_INTERNAL_H
#define LS_DIAGNOSE_CHECKS_CHECK_INTERNAL_H

#include "diagnose/checks/check_sources.h"

#define CHECK_INTERFACES_MAX 64

typedef struct check {
    const check_options *options;
    const check_sources *from;
    findings *out;
    int n_ranks; /* at least 1 */
    char host[256];
    net_interface ifaces[CHECK_INTERFACES_MAX]; /* net_interfaces() without a filter */
    int n_ifaces;
    bool is_full; /* the full check: seconds are acceptable */
} check;

/* WARNING where the job has several nodes, else NOTE. */
finding_severity check_between_nodes(const check *c);

/* ROOT + PATH into buf, which it returns. */
const char *check_path(const check *c, char *buf, size_t n, const char *format, ...)
    LS_PRINTF(4, 5);
/*
 * Reads the beginning of a small file below the root, without a final newline; false when it cannot
 * be read.
 */
bool check_read(const check *c, const char *path, char *buf, size_t n);
/* Reads a file that contains one number; false for anything else. */
bool check_read_number(const check *c, const char *path, int64_t *out);
bool check_exists(const check *c, const char *path);

/*
 * The smallest limit that the control group of this process or one above it sets in `file` of
 * `controller` ("pids.max"), minus the same group's usage in file `used` ("": nothing is
 * subtracted). False when no group has a limit.
 */
bool check_group_limit(const check *c, const char *controller, const char *file, const char *used,
                       uint64_t *out);

/* --- the subjects --- */
void check_name(check *c);
void check_networks(check *c);
void check_network_variables(check *c);
void check_files(check *c);
void check_memlock(check *c);
void check_processes(check *c);
void check_cores(check *c);
void check_numa(check *c);
void check_pages(check *c);
void check_fabric(check *c);
void check_shm(check *c);
void check_memory(check *c);
void check_ports(check *c);
void check_clock(check *c);
void check_key(check *c);
void check_kernel(check *c);
void check_ssh(check *c);
void check_gpus(check *c);
void check_leftovers(check *c);
void check_version(check *c);
void check_settings(check *c);

#endif
