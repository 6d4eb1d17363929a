/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources.c - this machine.
 */
#include "launch/check_sources.h"

#include "base/text.h"
#include "base/thread.h"
#include "launch/child.h"
#include "launch/process.h"
#include "net/key.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ADDRESSES_MAX 16

static const char *host_name(void *self, char *buf, size_t n)
{
    LS_UNUSED(self);
    if (gethostname(buf, n) != 0)
        text_format(buf, n, "localhost");
    buf[n - 1] = 0;
    return buf;
}

typedef struct resolved {
    net_address found[ADDRESSES_MAX];
    int n;
} resolved;

static ls_status ask_resolver(void *name, void *answer)
{
    resolved *r = answer;

    return net_address_resolve(name, 0, r->found, ADDRESSES_MAX, &r->n);
}

static ls_status resolve(void *self, const char *name, int64_t limit_ms, net_address *out, int max,
                         int *n)
{
    char copy[256];
    resolved answer;
    ls_status st;

    LS_UNUSED(self);
    text_format(copy, sizeof(copy), "%s", name);
    st = child_ask("the resolver", limit_ms, ask_resolver, copy, &answer, sizeof(answer));
    *n = answer.n < max ? answer.n : max;
    memcpy(out, answer.found, (size_t)*n * sizeof(*out));
    return st;
}

static ls_status interfaces(void *self, const char *filter, net_interface *out, int max, int *n)
{
    LS_UNUSED(self);
    return net_interfaces(filter, out, max, n);
}

static const char *variable(void *self, const char *name)
{
    LS_UNUSED(self);
    return getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
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

static bool clock_is_kept(void *self)
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

/* Reading oneself is allowed wherever the call exists at all. */
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

static ls_status list_gpus(void *self, gpu_list *out)
{
    LS_UNUSED(self);
    return gpu_probe(GPU_PROBE_LIBRARY, GPU_PROBE_MS, out);
}

static ls_status try_gpus(void *self, const gpu_list *gpus, gpu_trials *out)
{
    LS_UNUSED(self);
    return gpu_try(GPU_TRY_LIBRARY, GPU_TRY_MS, gpus, out);
}

/* --- without libraries --- */

/* The C library asks for names through others that it loads; getent, which has them, is on every machine. */
static ls_status resolve_by_getent(void *self, const char *name, int64_t limit_ms, net_address *out,
                                   int max, int *n)
{
    char *const argv[] = {(char *)(uintptr_t)"getent", (char *)(uintptr_t)"ahosts",
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
        for (int i = 0; i < *n; i++) /* once for each kind of socket */
            is_new = is_new && !net_address_equal(&out[i], &out[*n]);
        *n += is_new;
    }
    return *n > 0 ? LS_OK : ls_fail(LS_ENOTFOUND, "%s has no address", name);
}

static ls_status list_no_gpus(void *self, gpu_list *out)
{
    LS_UNUSED(self);
    out->n = 0;
    return ls_fail(LS_EUNSUPPORTED, "lockstep is not installed there, and the agent that travels "
                                    "cannot load NVIDIA's libraries");
}

static ls_status try_no_gpus(void *self, const gpu_list *gpus, gpu_trials *out)
{
    LS_UNUSED(self);
    LS_UNUSED(gpus);
    out->n = 0;
    return LS_OK;
}

#define CHECK_PLAIN_SOURCES                                                                        \
    .root = "", .host_name = host_name, .interfaces = interfaces, .variable = variable,            \
    .limit = limit, .usable_cores = usable_cores, .space = space, .seconds = seconds,              \
    .clock_is_kept = clock_is_kept, .has_pidfd = has_pidfd, .has_vm_read = has_vm_read,            \
    .key_path = key_path

const check_sources check_this_machine = {
    CHECK_PLAIN_SOURCES, .resolve = resolve, .gpus = list_gpus, .try_gpus = try_gpus};

const check_sources check_the_bare_machine = {CHECK_PLAIN_SOURCES,
                                              .resolve = resolve_by_getent,
                                              .gpus = list_no_gpus,
                                              .try_gpus = try_no_gpus};
