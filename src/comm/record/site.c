/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.c - turns return addresses into call sites with dladdr(), for the engine's stamps. Each
 * address is resolved once, while its slot of the cache lasts.
 */
#include "comm/record/site.h"

#include "base/text.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static const void *module_of(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

/* Whether the address is in the shared library that contains this file. */
static bool is_inside_library(const void *address)
{
    static const char here;
    const void *own = module_of(&here);
    const void *program = module_of((const void *)(uintptr_t)getauxval(AT_ENTRY));

    return own != program && module_of(address) == own;
}

/* An operation that the library starts without a label: its public function, if known. */
static void resolve_inside(const void *address, char out[STAMP_SITE_BYTES])
{
    Dl_info info;
    const bool is_found = dladdr(address, &info) != 0 && info.dli_sname != NULL;

    text_format(out, STAMP_SITE_BYTES, "%s", is_found ? info.dli_sname : "Lockstep");
}

/* Long names are cut before the offset. */
static void resolve_program(const void *address, char out[STAMP_SITE_BYTES])
{
    const uintptr_t at = (uintptr_t)address;
    const char *name = "?";
    uintptr_t from = 0;
    char offset[24];
    Dl_info info;

    if (dladdr(address, &info) != 0 && info.dli_sname != NULL) {
        name = info.dli_sname;
        from = (uintptr_t)info.dli_saddr;
    } else if (dladdr(address, &info) != 0 && info.dli_fname != NULL) {
        name = base_name(info.dli_fname);
        from = (uintptr_t)info.dli_fbase;
    }
    text_format(offset, sizeof(offset), "+0x%" PRIxPTR, at - from);
    text_format(out, STAMP_SITE_BYTES, "%.*s%s", (int)(STAMP_SITE_BYTES - 1 - strlen(offset)), name,
                offset);
}

const char *site_text(site_cache *cache, const void *address)
{
    // Fibonacci hashing (Knuth 6.4): call sites of one loop are often a power of two apart.
    const size_t slot =
        (size_t)(((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15)) >> SITE_SHIFT);

    if (cache->slots[slot].address != address) {
        cache->slots[slot].address = address;
        if (is_inside_library(address))
            resolve_inside(address, cache->slots[slot].text);
        else
            resolve_program(address, cache->slots[slot].text);
    }
    return cache->slots[slot].text;
}
