/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sources_static.c - the facts of this machine for a statically linked program. It cannot
 * load libraries, so getent resolves names and GPUs are not queried. Used by the agent binary that
 * is copied to hosts without Lockstep.
 */
#include "diagnose/check_sources_common.h"

#include "base/text.h"
#include "diagnose/child.h"

#include <string.h>

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

const check_sources check_static_machine = {.is_static = true,
                                            CHECK_COMMON_SOURCES,
                                            .resolve = resolve_by_getent,
                                            .gpus = list_no_gpus,
                                            .try_gpus = try_no_gpus};
