/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library.c - searches folders of Python's packages for a library of NVIDIA. No interpreter is
 * started. Called before modules and NCCL are loaded.
 */
#include "base/library.h"

#include "base/config.h"
#include "base/log.h"
#include "base/module.h"
#include "base/text.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// lib64: Fedora; local, dist-packages: Debian.
#define PACKAGES "{lib,lib64,local/lib}/python3*/{site,dist}-packages/"
#define NVIDIA   "nvidia/*/lib/"

/* Folders that a variable lists, separated by colons, and the pattern below each. */
static const struct place {
    const char *variable;
    const char *below;
} places[] = {
    {"PYTHONPATH", NVIDIA},
    {"VIRTUAL_ENV", PACKAGES NVIDIA},
    {"PATH", "../" PACKAGES NVIDIA},
    {"HOME", ".local/" PACKAGES NVIDIA},
};

static bool load_from(const char *folder, int length, const char *below, const char *soname)
{
    char pattern[2 * PATH_MAX];
    glob_t found;
    bool loaded = false;

    // Relative folders would depend on where the program is started.
    if (folder[0] != '/' || length >= PATH_MAX)
        return false;
    (void)text_format(pattern, sizeof(pattern), "%.*s/%s%s", length, folder, below, soname);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe without GLOB_TILDE
    if (glob(pattern, GLOB_BRACE, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc && !loaded; i++) {
        loaded = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL) != NULL;
        ls_log(LS_LOG_DEBUG, "base", "%s: %s", found.gl_pathv[i],
               loaded ? "loaded" : dlerror()); // NOLINT(concurrency-mt-unsafe): glibc's is safe
    }
    globfree(&found);
    return loaded;
}

static bool load_from_list(const char *folders, const char *below, const char *soname)
{
    while (folders != NULL && *folders != '\0') {
        const size_t length = strcspn(folders, ":");

        if (load_from(folders, (int)length, below, soname))
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

void library_prefer(const char *soname)
{
    char own[PATH_MAX];
    const char *named;

    if (dlopen(soname, RTLD_NOW | RTLD_NOLOAD) != NULL)
        return;
    if (config_text(CONFIG_CUDA_LIBRARIES, &named) == LS_OK && load_from_list(named, "", soname))
        return;
    if (module_own_folder(own) && load_from_list(own, "../../" NVIDIA, soname))
        return;
    for (size_t i = 0; i < LS_COUNT_OF(places); i++) {
        const char *folders =
            getenv(places[i].variable); // NOLINT(concurrency-mt-unsafe): no thread sets it

        if (load_from_list(folders, places[i].below, soname))
            return;
    }
}
