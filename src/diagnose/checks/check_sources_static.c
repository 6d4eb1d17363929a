/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources_static.c - the facts of this machine for a statically linked program. It cannot
 * load libraries, so getent resolves names and GPUs are not queried. Used by the agent binary that
 * is copied to hosts without Lockstep; check_sources.c replaces what libraries do better.
 */
#include "diagnose/checks/check_sources.h"

#include "base/text.h"
#include "diagnose/child.h"
#include "host/cores.h"
#include "host/process.h"
#include "net/key.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char *host_name(void *self, char *buf, size_t n)
{
    LS_UNUSED(self);
    if (gethostname(buf, n) != 0)
        text_format(buf, n, "localhost");
    buf[n - 1] = 0;
    return buf;
}

static ls_status interfaces(void *self, const char *filter, net_interface *out, int max, int *n)
{
    LS_UNUSED(self);
    return net_interfaces(filter, out, max, n);
}

static const char *variable(void *self, const char *name)
{
    LS_UNUSED(self);
    return getenv(name); // NOLINT(concurrency-mt-unsafe): no thread sets it
}

static bool limit(void *self, int resource, struct rlimit *out)
{
    LS_UNUSED(self);
    return getrlimit((__rlimit_resource_t)resource, out) == 0;
}

static int usable_cores(void *self)
{
    LS_UNUSED(self);
    return ls_usable_cores(NULL);
}

static bool space(void *self, const char *path, uint64_t *total_bytes, uint64_t *free_bytes)
{
    struct statvfs facts;

    LS_UNUSED(self);
    if (statvfs(path, &facts) != 0)
        return false;
    *total_bytes = (uint64_t)facts.f_blocks * facts.f_frsize;
    *free_bytes = (uint64_t)facts.f_bavail * facts.f_frsize;
    return true;
}

static int64_t seconds(void *self)
{
    LS_UNUSED(self);
    return (int64_t)time(NULL);
}

static bool clock_is_synchronized(void *self)
{
    struct timex facts = {.modes = 0};

    LS_UNUSED(self);
    return adjtimex(&facts) >= 0 && (facts.status & STA_UNSYNC) == 0;
}

static bool has_pidfd(void *self)
{
    const int fd = process_open(getpid());

    LS_UNUSED(self);
    if (fd < 0)
        return false;
    (void)close(fd);
    return true;
}

/* A process may always read its own memory, so a failure means that the call itself is denied. */
static bool has_vm_read(void *self)
{
    char from = 1;
    char to = 0;
    const struct iovec there = {&from, 1};
    const struct iovec here = {&to, 1};

    LS_UNUSED(self);
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

static ls_status key_path(void *self, char *buf, size_t n)
{
    LS_UNUSED(self);
    return net_key_user_path(buf, n);
}

/* A static C library cannot load resolver modules. getent can, and every machine has it. */
static ls_status resolve_by_getent(void *self, const char *name, int64_t limit_ms, net_address *out,
                                   int max, int *n)
{
    char *const argv[] = {(char *)(uintptr_t) "getent", (char *)(uintptr_t) "ahosts",
                          (char *)(uintptr_t)name, NULL};
    char text[4096];
    char host[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(self);
    *n = 0;
    LS_TRY(child_run("getent", argv, limit_ms, text, sizeof(text)));
    for (const char *line = text; *line != 0 && *n < max; line += strcspn(line, "\n")) {
        bool is_new = true;

        line += *line == '\n';
        text_format(host, sizeof(host), memchr(line, ':', strcspn(line, " \n")) ? "[%.*s]" : "%.*s",
                    (int)strcspn(line, " \n"), line);
        if (net_address_parse(host, 0, &out[*n]) != LS_OK)
            continue;
        for (int i = 0; i < *n; i++) /* getent repeats an address for each socket type */
            is_new = is_new && !net_address_equal(&out[i], &out[*n]);
        *n += is_new;
    }
    return *n > 0 ? LS_OK : ls_fail(LS_ENOTFOUND, "%s has no address", name);
}

static ls_status list_no_gpus(void *self, gpu_list *out)
{
    LS_UNUSED(self);
    out->n = 0;
    return ls_fail(LS_EUNSUPPORTED, "Lockstep is not installed on this host, and the agent binary "
                                    "that is copied to it cannot load NVIDIA's libraries");
}

static ls_status try_no_gpus(void *self, const gpu_list *gpus, gpu_trials *out)
{
    LS_UNUSED(self);
    LS_UNUSED(gpus);
    out->n = 0;
    return LS_OK;
}

static ls_status try_no_nccl(void *self, nccl_trial *out)
{
    LS_UNUSED(self);
    *out = (nccl_trial){.fix = ""};
    return ls_fail(LS_ENOTFOUND, "the agent binary cannot load NCCL");
}

const check_sources check_static_machine = {.is_static = true,
                                            .root = "",
                                            .host_name = host_name,
                                            .interfaces = interfaces,
                                            .variable = variable,
                                            .limit = limit,
                                            .usable_cores = usable_cores,
                                            .space = space,
                                            .seconds = seconds,
                                            .clock_is_synchronized = clock_is_synchronized,
                                            .has_pidfd = has_pidfd,
                                            .has_vm_read = has_vm_read,
                                            .key_path = key_path,
                                            .resolve = resolve_by_getent,
                                            .gpus = list_no_gpus,
                                            .try_gpus = try_no_gpus,
                                            .try_nccl = try_no_nccl};
