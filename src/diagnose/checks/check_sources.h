/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources.h - the sources of the facts that checks judge: files below a root folder and
 * functions. Tests replace them to simulate a machine.
 */
#ifndef LS_DIAGNOSE_CHECKS_CHECK_SOURCES_H
#define LS_DIAGNOSE_CHECKS_CHECK_SOURCES_H

#include "diagnose/checks/check.h"
#include "diagnose/gpu/gpu_probe.h"
#include "diagnose/gpu/gpu_try.h"
#include "diagnose/gpu/nccl_try.h"
#include "host/process_id.h"
#include "net/interface.h"

#include <sys/resource.h>

struct check_sources {
    bool is_static;   /* the program is statically linked: it cannot load libraries */
    const char *root; /* prefix of /proc, /sys, /etc and /usr */
    void *self;       /* first argument of the functions below */

    const char *(*host_name)(void *self, char *buf, size_t n);
    /* Resolves a name. LS_ENOTFOUND: no address. LS_ETIMEOUT: not within limit_ms. */
    ls_status (*resolve)(void *self, const char *name, int64_t limit_ms, net_address *out, int max,
                         int *n);
    /* As net_interfaces(). */
    ls_status (*interfaces)(void *self, const char *filter, net_interface *out, int max, int *n);
    const char *(*variable)(void *self, const char *name); /* of the environment; NULL when unset */
    bool (*limit)(void *self, int resource, struct rlimit *out);
    int (*usable_cores)(void *self);
    bool (*space)(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes);
    int64_t (*seconds)(void *self);            /* since 1970 */
    bool (*clock_is_synchronized)(void *self); /* by NTP or PTP */
    bool (*has_pidfd)(void *self);
    bool (*has_vm_read)(void *self); /* process_vm_readv() is not denied */
    ls_status (*key_path)(void *self, char *buf, size_t n);
    ls_status (*gpus)(void *self, gpu_list *out); /* as gpu_probe(); LS_EUNSUPPORTED: not checked */
    ls_status (*try_gpus)(void *self, const gpu_list *gpus, gpu_trials *out); /* as gpu_try() */
    ls_status (*try_nccl)(void *self, nccl_trial *out);                       /* as nccl_try() */
};

#endif
