/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources.c - the facts of this machine for a dynamically linked program: the C library
 * resolves names and NVIDIA's libraries list GPUs, each in a child process with a time limit. Used
 * by the lockstep tool.
 */
#include "diagnose/checks/check_sources.h"

#include "base/text.h"
#include "diagnose/child.h"

#include <string.h>

#define ADDRESSES_MAX 16

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

static ls_status try_nccl(void *self, nccl_trial *out)
{
    LS_UNUSED(self);
    return nccl_try(GPU_TRY_LIBRARY, NCCL_TRY_LIBRARY, NCCL_TRY_MS, out);
}

const check_sources *check_this_machine(void)
{
    static check_sources sources;

    sources = check_static_machine;
    sources.is_static = false;
    sources.resolve = resolve;
    sources.gpus = list_gpus;
    sources.try_gpus = try_gpus;
    sources.try_nccl = try_nccl;
    return &sources;
}
