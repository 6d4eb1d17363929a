/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_kernel.c - reports kernel features that are missing here or that a container denies. Jobs
 * run without any of them. A subject of check_all().
 */
#include "diagnose/checks/check_internal.h"

#include "base/text.h"
#include "host/cgroup.h"

#include <unistd.h>

/*
 * Yama's ptrace_scope: 0 and 1 suffice (ranks permit each other by prctl), 2 needs root, 3 denies
 * all.
 */
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

/* Whether this process may create groups below its control group (version 2). */
static bool owns_group(const check *c)
{
    char path[CGROUP_PATH_BYTES + 16];
    cgroup_place place;

    if (cgroup_locate(c->from->root, NULL, &place) != LS_OK)
        return false;
    text_format(path, sizeof(path), "%s/cgroup.procs", place.path);
    return access(path, W_OK) == 0;
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
                    "processes cannot read each other's memory (process_vm_readv)");
    if (!may_make_namespaces(c))
        finding_add(c->out, FINDING_KERNEL_USERNS_KIND, FINDING_NOTE,
                    "sysctl user.max_user_namespaces=10000",
                    "unprivileged users cannot create namespaces");
    if (!owns_group(c))
        finding_add(c->out, FINDING_KERNEL_CGROUP_KIND, FINDING_NOTE,
                    "systemd-run --user --scope -p Delegate=yes lockstep run ...",
                    "this user owns no control group (cgroup v2)");
    if (c->out->n == before)
        finding_add(c->out, FINDING_KERNEL_OK_KIND, FINDING_OK, NULL,
                    "the kernel has all features that jobs use");
}
