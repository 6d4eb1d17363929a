/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_plain.h - what both kinds of sources have in common.
 */
#ifndef LS_DIAGNOSE_CHECK_PLAIN_H
#define LS_DIAGNOSE_CHECK_PLAIN_H

#include "diagnose/check_sources.h"

const char *check_plain_host_name(void *self, char *buf, size_t n);
ls_status check_plain_interfaces(void *self, const char *filter, net_interface *out, int max,
                                 int *n);
const char *check_plain_variable(void *self, const char *name);
bool check_plain_limit(void *self, int resource, struct rlimit *out);
int check_plain_usable_cores(void *self);
bool check_plain_space(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes);
int64_t check_plain_seconds(void *self);
bool check_plain_clock_is_kept(void *self);
bool check_plain_has_pidfd(void *self);
bool check_plain_has_vm_read(void *self);
ls_status check_plain_key_path(void *self, char *buf, size_t n);

#define CHECK_PLAIN_SOURCES                                                                        \
    .root = "", .host_name = check_plain_host_name, .interfaces = check_plain_interfaces,          \
    .variable = check_plain_variable, .limit = check_plain_limit,                                  \
    .usable_cores = check_plain_usable_cores, .space = check_plain_space,                          \
    .seconds = check_plain_seconds, .clock_is_kept = check_plain_clock_is_kept,                    \
    .has_pidfd = check_plain_has_pidfd, .has_vm_read = check_plain_has_vm_read,                    \
    .key_path = check_plain_key_path

#endif
