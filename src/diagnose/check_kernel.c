/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_kernel.c - what this kernel, or the container around us, does not offer. A job runs without any of it.
 */
#include "diagnose/check_internal.h"

#include "base/text.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Yama's levels: 0 and 1 are fine (ranks name those who may read them), 2 is for root, 3 for nobody. */
static bool may_read_memory(const check *c)
{
    int64_t level;

    if (!c->from->has_vm_read(c->from->self))
        return false;
    return !check_read_number(c, "/proc/sys/kernel/yama/ptrace_scope", &level) || level < 2;
}

static bool may_make_namespaces(const check *c)
{
    int64_t most;
    int64_t allowed;

    if (geteuid() == 0)
        return true;
    if (check_read_number(c, "/proc/sys/kernel/unprivileged_userns_clone", &allowed) &&
        allowed == 0)
        return false;
    return !check_read_number(c, "/proc/sys/user/max_user_namespaces", &most) || most > 0;
}

/* Whether this process's group of version 2 is its own to divide. */
static bool has_group(const check *c)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char groups[4096];
    const char *own = NULL;

    if (check_read(c, "/proc/self/cgroup", groups, sizeof(groups)))
        own = strstr(groups, "0::/");
    if (own == NULL)
        return false;
    own += strlen("0::");
    for (size_t i = 0; i < LS_COUNT_OF(mounts); i++) {
        char path[PATH_MAX];
        check_path(c, path, sizeof(path), "%s%.*s/cgroup.procs", mounts[i], (int)strcspn(own, "\n"),
                   own);
        if (access(path, W_OK) == 0)
            return true;
    }
    return false;
}

void check_kernel(check *c)
{
    const int before = c->out->n;

    if (!c->from->has_pidfd(c->from->self))
        finding_add(c->out, FINDING_KERNEL_PIDFD_KIND, FINDING_NOTE, "uname -r",
                    "the kernel has no pidfd");
    if (!may_read_memory(c))
        finding_add(c->out, FINDING_KERNEL_VM_KIND, FINDING_NOTE,
                    "sysctl kernel.yama.ptrace_scope=1   # docker run --cap-add SYS_PTRACE",
                    "processes may not read each other's memory");
    if (!may_make_namespaces(c))
        finding_add(c->out, FINDING_KERNEL_USERNS_KIND, FINDING_NOTE,
                    "sysctl user.max_user_namespaces=10000", "users may not make namespaces");
    if (!has_group(c))
        finding_add(c->out, FINDING_KERNEL_CGROUP_KIND, FINDING_NOTE,
                    "systemd-run --user --scope -p Delegate=yes lockstep run ...",
                    "there is no control group (version 2) of this user's own");
    if (c->out->n == before)
        finding_add(c->out, FINDING_KERNEL_OK_KIND, FINDING_OK, NULL,
                    "the kernel offers everything that jobs can use");
}
