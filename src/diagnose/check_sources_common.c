/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources_common.c - facts of this machine that need no loaded library. Both tables of
 * sources contain these functions (CHECK_COMMON_SOURCES).
 */
#include "diagnose/check_sources_common.h"

#include "base/text.h"
#include "base/thread.h"
#include "launch/process/process.h"
#include "net/key.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

const char *check_common_host_name(void *self, char *buf, size_t n)
{
    LS_UNUSED(self);
    if (gethostname(buf, n) != 0)
        text_format(buf, n, "localhost");
    buf[n - 1] = 0;
    return buf;
}

ls_status check_common_interfaces(void *self, const char *filter, net_interface *out, int max,
                                  int *n)
{
    LS_UNUSED(self);
    return net_interfaces(filter, out, max, n);
}

const char *check_common_variable(void *self, const char *name)
{
    LS_UNUSED(self);
    return getenv(name); // NOLINT(concurrency-mt-unsafe): no thread sets it
}

bool check_common_limit(void *self, int resource, struct rlimit *out)
{
    LS_UNUSED(self);
    return getrlimit((__rlimit_resource_t)resource, out) == 0;
}

int check_common_usable_cores(void *self)
{
    LS_UNUSED(self);
    return ls_usable_cores(NULL);
}

bool check_common_space(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes)
{
    struct statvfs facts;

    LS_UNUSED(self);
    if (statvfs(path, &facts) != 0)
        return false;
    *total_bytes = (uint64_t)facts.f_blocks * facts.f_frsize;
    *free_bytes = (uint64_t)facts.f_bavail * facts.f_frsize;
    return true;
}

int64_t check_common_seconds(void *self)
{
    LS_UNUSED(self);
    return (int64_t)time(NULL);
}

bool check_common_clock_is_synchronized(void *self)
{
    struct timex facts = {.modes = 0};

    LS_UNUSED(self);
    return adjtimex(&facts) >= 0 && (facts.status & STA_UNSYNC) == 0;
}

bool check_common_has_pidfd(void *self)
{
    const int fd = process_open(getpid());

    LS_UNUSED(self);
    if (fd < 0)
        return false;
    (void)close(fd);
    return true;
}

/* A process may always read its own memory, so a failure means that the call itself is denied. */
bool check_common_has_vm_read(void *self)
{
    char from = 1;
    char to = 0;
    const struct iovec there = {&from, 1};
    const struct iovec here = {&to, 1};

    LS_UNUSED(self);
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

ls_status check_common_key_path(void *self, char *buf, size_t n)
{
    LS_UNUSED(self);
    return net_key_user_path(buf, n);
}
