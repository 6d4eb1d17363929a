/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - searches three folders for a module and opens it with dlopen(). The devices of tensor/
 * and the backends of comm/ are loaded with it.
 */
#include "base/module.h"

#include "base/config.h"
#include "base/text.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char here; // an address in the object that contains this code

/* The folder of that object; `buf` has PATH_MAX bytes. */
static bool own_folder(char *buf)
{
    Dl_info info;
    char *slash;

    // A program's path may be relative to its start folder; the kernel has the absolute one.
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

/* The folders to search. */
typedef struct module_folders {
    const char *list[3];
    int n;
    char own[PATH_MAX];
    char beside[PATH_MAX + 8];
} module_folders;

enum { MODULE_PATH_BYTES = PATH_MAX + 64 };

static ls_status find_folders(module_folders *f)
{
    const char *asked;

    f->n = 0;
    LS_TRY(config_text(CONFIG_MODULE_DIR, &asked));
    if (asked[0] != '\0')
        f->list[f->n++] = asked;
    if (own_folder(f->own)) {
        (void)text_format(f->beside, sizeof(f->beside), "%s/../lib", f->own);
        f->list[f->n++] = f->own;
        f->list[f->n++] = f->beside;
    }
    return LS_OK;
}

/* Sets `path` to the first existing FOLDER/liblockstep_NAME.so. */
static ls_status find_file(const char *name, char *path)
{
    module_folders f;

    LS_TRY(find_folders(&f));
    for (int i = 0; i < f.n; i++) {
        (void)text_format(path, MODULE_PATH_BYTES, "%s/liblockstep_%s.so", f.list[i], name);
        if (access(path, R_OK) == 0)
            return LS_OK;
    }
    return ls_fail(LS_ENOTFOUND, "no liblockstep_%s.so in %s%s%s", name,
                   f.n > 0 ? f.list[0] : "any folder", f.n > 1 ? ", " : "",
                   f.n > 1 ? f.list[1] : "");
}

ls_status module_find(const char *name)
{
    char path[MODULE_PATH_BYTES];

    return find_file(name, path);
}

ls_status module_open(const char *name, void **out)
{
    char path[MODULE_PATH_BYTES];

    LS_TRY(find_file(name, path));
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*out == NULL) {
        const char *why = dlerror(); // NOLINT(concurrency-mt-unsafe): glibc's is per thread

        if (why == NULL || strstr(why, path) != NULL)
            return ls_fail(LS_EUNSUPPORTED, "cannot load %s", why == NULL ? path : why);
        return ls_fail(LS_EUNSUPPORTED,
                       "cannot load %s, which needs a library: %s; install that library, or add "
                       "its folder to LD_LIBRARY_PATH",
                       path, why);
    }
    return LS_OK;
}
