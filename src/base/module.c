/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module.h"

#include "base/config.h"
#include "base/text.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char here; // in the object that this code was linked into

/* The folder of that object; `buf` holds PATH_MAX bytes. */
static bool own_folder(char *buf)
{
    Dl_info info;
    char *slash;

    // A program's own path may be relative to where it was started; its true one is the kernel's.
    if (dladdr(&here, &info) == 0 || info.dli_fname == NULL)
        return false;
    if (realpath(info.dli_fname, buf) == NULL && realpath("/proc/self/exe", buf) == NULL)
        return false;
    slash = strrchr(buf, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

/* FOLDER/liblockstep_NAME.so; *found tells whether there is such a file. */
static ls_status try_folder(const char *folder, const char *name, void **out, bool *found)
{
    char path[PATH_MAX + 64];

    (void)text_format(path, sizeof(path), "%s/liblockstep_%s.so", folder, name);
    *found = access(path, R_OK) == 0;
    if (!*found)
        return LS_OK;
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*out == NULL) {
        const char *why = dlerror(); // NOLINT(concurrency-mt-unsafe): glibc's is per thread

        return ls_fail(LS_EUNSUPPORTED, "cannot load %s", why == NULL ? path : why);
    }
    return LS_OK;
}

ls_status module_open(const char *name, void **out)
{
    char own[PATH_MAX];
    char beside[PATH_MAX + 8];
    const char *folders[3];
    const char *asked;
    int n = 0;

    LS_TRY(config_text(CONFIG_MODULE_DIR, &asked));
    if (asked[0] != '\0')
        folders[n++] = asked;
    if (own_folder(own)) {
        (void)text_format(beside, sizeof(beside), "%s/../lib", own);
        folders[n++] = own;
        folders[n++] = beside;
    }
    for (int i = 0; i < n; i++) {
        bool found;
        const ls_status st = try_folder(folders[i], name, out, &found);

        if (found)
            return st;
    }
    return ls_fail(LS_ENOTFOUND, "no liblockstep_%s.so in %s%s%s", name,
                   n > 0 ? folders[0] : "any folder", n > 1 ? ", " : "", n > 1 ? folders[1] : "");
}
