/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - searches the folders of modules for one and opens it with dlopen(). The devices of
 * tensor/ and the backends of comm/ are loaded with it.
 */
#include "base/module.h"

#include "base/config.h"
#include "base/library.h"
#include "base/text.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char here; // an address in the object that contains this code

bool module_own_folder(char *buf)
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

// Below that object's folder: two of the build tree, two of an installed tree.
static const char *const own_folders[] = {"", "../lib/", MODULES_OF_LIBRARY "/",
                                          MODULES_OF_TOOL "/"};

static bool has_file(const char *folder, const char *below, const char *file, char *path)
{
    (void)text_format(path, MODULE_PATH_BYTES, "%s/%s%s", folder, below, file);
    return access(path, R_OK) == 0;
}

static bool is_in_own_folders(const char *own, const char *file, char *path)
{
    for (size_t i = 0; i < LS_COUNT_OF(own_folders); i++)
        if (has_file(own, own_folders[i], file, path))
            return true;
    return false;
}

/* Sets `path` to the first existing FOLDER/liblockstep_NAME.so. */
static ls_status find_module(const char *name, char *path)
{
    char own[PATH_MAX];
    char file[NAME_MAX + 1];
    const char *asked;
    const bool owned = module_own_folder(own);

    LS_TRY(config_text(CONFIG_MODULE_DIR, &asked));
    (void)text_format(file, sizeof(file), "liblockstep_%s.so", name);
    if (asked[0] != '\0' && has_file(asked, "", file, path))
        return LS_OK;
    if (owned && is_in_own_folders(own, file, path))
        return LS_OK;
    return ls_fail(LS_ENOTFOUND, "no liblockstep_%s.so in %s%s%s (or its folders ../lib, %s, %s)",
                   name, asked, asked[0] != '\0' ? ", " : "", owned ? own : "?", MODULES_OF_LIBRARY,
                   MODULES_OF_TOOL);
}

ls_status module_find(const char *name)
{
    char path[MODULE_PATH_BYTES];

    return find_module(name, path);
}

/* What modules load or are linked with. Of the two CUDAs one is installed as a rule. */
static const struct {
    const char *module;
    const char *soname;
} preferred[] = {
    {"cuda", "libnvrtc.so.13"},    {"cuda", "libnvrtc.so.12"}, {"cuda", "libcublasLt.so.13"},
    {"cuda", "libcublasLt.so.12"}, {"cuda", "libcudnn.so.9"},  {"nccl", "libnccl.so.2"},
};

ls_status module_open(const char *name, void **out)
{
    char path[MODULE_PATH_BYTES];

    LS_TRY(find_module(name, path));
    for (size_t i = 0; i < LS_COUNT_OF(preferred); i++)
        if (text_equal(preferred[i].module, name))
            library_prefer(preferred[i].soname);
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

bool module_find_file(const char *name, char path[MODULE_PATH_BYTES])
{
    char own[PATH_MAX];
    char found[MODULE_PATH_BYTES];

    if (!module_own_folder(own) ||
        (!is_in_own_folders(own, name, found) && !has_file(own, "../", name, found)))
        return false;
    return realpath(found, path) != NULL; // without the parts ".."
}
