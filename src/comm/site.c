/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/site.h"

#include "base/text.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <string.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* Long names keep their beginning, and always their offset. */
static void resolve(const void *address, char out[STAMP_SITE_BYTES])
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
    // Call sites of one loop often lie a power of two apart: Fibonacci hashing (Knuth 6.4) parts them.
    const size_t slot =
        (size_t)(((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15)) >> SITE_SHIFT);

    if (cache->slots[slot].address != address) {
        cache->slots[slot].address = address;
        resolve(address, cache->slots[slot].text);
    }
    return cache->slots[slot].text;
}
