/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources_common.h - the functions that both tables of sources have in common:
 * check_this_machine and check_static_machine.
 */
#ifndef LS_DIAGNOSE_CHECK_SOURCES_COMMON_H
#define LS_DIAGNOSE_CHECK_SOURCES_COMMON_H

#include "diagnose/check_sources.h"

const char *check_common_host_name(void *self, char *buf, size_t n);
ls_status check_common_interfaces(void *self, const char *filter, net_interface *out, int max,
                                  int *n);
const char *check_common_variable(void *self, const char *name);
bool check_common_limit(void *self, int resource, struct rlimit *out);
int check_common_usable_cores(void *self);
bool check_common_space(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes);
int64_t check_common_seconds(void *self);
bool check_common_clock_is_synchronized(void *self);
bool check_common_has_pidfd(void *self);
bool check_common_has_vm_read(void *self);
ls_status check_common_key_path(void *self, char *buf, size_t n);

#define CHECK_COMMON_SOURCES                                                                       \
    .root = "", .host_name = check_common_host_name, .interfaces = check_common_interfaces,        \
    .variable = check_common_variable, .limit = check_common_limit,                                \
    .usable_cores = check_common_usable_cores, .space = check_common_space,                        \
    .seconds = check_common_seconds, .clock_is_synchronized = check_common_clock_is_synchronized,  \
    .has_pidfd = check_common_has_pidfd, .has_vm_read = check_common_has_vm_read,                  \
    .key_path = check_common_key_path

#endif
