/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/backend.h"

#include "base/config.h"
#include "base/text.h"

#include <dlfcn.h>
#include <string.h>

#define ENTRY_SYMBOL "lockstep_backend" /* const backend_ops of a module */
#define PATH_BYTES   512

/* Built-in ones first; the others are modules, loaded when they are asked for by name. */
static const backend_entry entries[] = {
    {"native", &native_backend_ops},
    {"mpi", NULL},
    {"nccl", NULL},
    {"gloo", NULL},
};

/* "mpi:openmpi" asks for module mpi-openmpi of the family mpi. */
static const backend_entry *find_entry(const char *name)
{
    const size_t n = strcspn(name, ":");

    for (size_t i = 0; i < LS_COUNT_OF(entries); i++) {
        if (strlen(entries[i].name) == n && strncmp(entries[i].name, name, n) == 0)
            return &entries[i];
    }
    return NULL;
}

static ls_status module_path(const char *name, char path[PATH_BYTES])
{
    const char *folder;
    char file[64];

    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789:") != strlen(name) || strlen(name) > 32)
        return ls_fail(LS_EINVAL, "backend \"%.40s\": no such name", name);
    LS_TRY(config_text(CONFIG_MODULE_DIR, &folder));
    text_format(file, sizeof(file), "liblockstep_%s.so", name);
    for (char *p = file; *p != '\0'; p++)
        *p = (char)(*p == ':' ? '-' : *p);
    text_format(path, PATH_BYTES, "%s%s%s", folder, *folder != '\0' ? "/" : "", file);
    return LS_OK;
}

/* Modules stay loaded: their code may be on some thread's way out. */
static ls_status load_module(const char *name, const backend_ops **out)
{
    char path[PATH_BYTES];
    const backend_ops *ops;
    void *module;

    LS_TRY(module_path(name, path));
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "backend %s is not part of this installation (%s); backend native works "
                       "here, over shared memory and TCP",
                       name, dlerror()); // NOLINT(concurrency-mt-unsafe): per thread in glibc
    ops = dlsym(module, ENTRY_SYMBOL);
    if (ops == NULL || ops->abi != BACKEND_ABI)
        return ls_fail(LS_EUNSUPPORTED, "%s is no backend of this version (%s)", path,
                       ops == NULL ? "it has no entry" : "its interface is another");
    *out = ops;
    return LS_OK;
}

static ls_status check_fit(const backend_ops *ops, const backend_need *need,
                           const backend_ops **out)
{
    if (ops->probe(need) <= 0)
        return ls_context(LS_EUNSUPPORTED, "backend %s", ops->name);
    *out = ops;
    return LS_OK;
}

static ls_status find_best(const backend_need *need, const backend_ops **out)
{
    int best = 0;

    for (size_t i = 0; i < LS_COUNT_OF(entries); i++) {
        const int score = entries[i].ops == NULL ? 0 : entries[i].ops->probe(need);

        if (score > best) {
            best = score;
            *out = entries[i].ops;
        }
    }
    return best > 0 ? LS_OK : ls_context(LS_EUNSUPPORTED, "no backend fits");
}

ls_status backend_find(const backend_need *need, const backend_ops **out)
{
    const backend_entry *entry;
    const backend_ops *ops = NULL;

    if (text_equal(need->name, "auto"))
        return find_best(need, out);
    entry = find_entry(need->name);
    if (entry == NULL)
        return ls_fail(LS_EINVAL, "backend \"%.40s\": must be auto, native, mpi, nccl or gloo",
                       need->name);
    if (entry->ops != NULL)
        return check_fit(entry->ops, need, out);
    LS_TRY(load_module(need->name, &ops));
    LS_ASSERT(ops != NULL);
    return check_fit(ops, need, out);
}
