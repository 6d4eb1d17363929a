/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - devices in shared objects, opened when they are asked for, so that a program runs where their libraries are missing.
 */
#include "tensor/module.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/text.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const device_host host = {
    .abi = DEVICE_ABI,
    .vfail = ls_vfail,
    .alloc = ls_calloc,
    .alloc_aligned = ls_alloc_aligned,
    .free = ls_free,
    .tensor_shape = tensor_shape,
    .tensor_destroy = ls_tensor_destroy,
    .tensor_place = tensor_place,
    .tensor_share = tensor_share,
    .tensor_release = tensor_release,
    .tensor_plain = tensor_plain,
    .tensor_written = tensor_written,
    .log = ls_log,
};

static ls_status check_name(const char *name)
{
    const size_t length = strlen(name);

    if (length > 0 && length <= 32 &&
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length)
        return LS_OK;
    return ls_fail(LS_EINVAL, "device: '%.40s' is no name of a device; cpu works", name);
}

/* The folder of the object that this code was linked into; `buf` holds PATH_MAX bytes. */
static bool own_folder(char *buf)
{
    Dl_info info;
    char *slash;

    // A program's own path may be relative to where it was started; its true one is the kernel's.
    if (dladdr(&host, &info) == 0 || info.dli_fname == NULL)
        return false;
    if (realpath(info.dli_fname, buf) == NULL && realpath("/proc/self/exe", buf) == NULL)
        return false;
    slash = strrchr(buf, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

/* Loads PATH and asks it for its device. */
static ls_status load_file(const char *path, const device_ops **ops, void **out)
{
    // The threads of its libraries may outlive the device, so its code must stay.
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    device_entry_fn entry = NULL;
    void *symbol;

    if (module == NULL) {
        const char *why = dlerror(); // NOLINT(concurrency-mt-unsafe): glibc's is per thread

        return ls_fail(LS_EUNSUPPORTED, "device: cannot load %s", why == NULL ? path : why);
    }
    symbol = dlsym(module, DEVICE_ENTRY);
    memcpy(&entry, &symbol, sizeof(entry)); // C has no conversion between these two
    *ops = entry == NULL ? NULL : entry(&host);
    if (*ops == NULL || (*ops)->abi != DEVICE_ABI) {
        module_unload(module);
        return ls_fail(LS_EUNSUPPORTED, "device: %s is not of this version of Lockstep", path);
    }
    *out = module;
    return LS_OK;
}

/* Tries FOLDER/liblockstep_NAME.so; *found tells whether there is such a file. */
static ls_status try_folder(const char *folder, const char *name, const device_ops **ops,
                            void **out, bool *found)
{
    char path[PATH_MAX + 64];

    (void)text_format(path, sizeof(path), "%s/liblockstep_%s.so", folder, name);
    *found = access(path, R_OK) == 0;
    return *found ? load_file(path, ops, out) : LS_OK;
}

ls_status module_load(const char *name, const device_ops **ops, void **out)
{
    char own[PATH_MAX];
    char beside[PATH_MAX + 8];
    const char *folders[3];
    const char *asked;
    int n = 0;

    LS_TRY(check_name(name));
    LS_TRY(config_text(CONFIG_MODULE_DIR, &asked));
    if (asked != NULL && asked[0] != '\0')
        folders[n++] = asked;
    if (own_folder(own)) {
        (void)text_format(beside, sizeof(beside), "%s/../lib", own);
        folders[n++] = own;
        folders[n++] = beside;
    }
    for (int i = 0; i < n; i++) {
        bool found;
        const ls_status st = try_folder(folders[i], name, ops, out, &found);

        if (found)
            return st;
    }
    return ls_fail(LS_EUNSUPPORTED,
                   "device: no liblockstep_%s.so in %s%s%s; cpu_ref works everywhere", name,
                   n > 0 ? folders[0] : "any folder", n > 1 ? ", " : "", n > 1 ? folders[1] : "");
}

void module_unload(void *module)
{
    if (module != NULL)
        (void)dlclose(module);
}
