/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.c - the table of backends: chooses one by name or by fit, and loads modules; init.c calls
 * it. A module with another ABI version is refused.
 */
#include "comm/backends/backend.h"

#include "base/config.h"
#include "base/module.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_SYMBOL "lockstep_backend" /* const backend_ops of a module */
#define NAME_BYTES   33

/* A module of a family, and the variables of its launcher, which an MPI library needs. */
typedef struct backend_variant {
    const char *name;
    const char *launcher[3];
} backend_variant;

/* One row for each backend: built-in ones, then modules, which are loaded when requested. */
typedef struct backend_entry {
    const char *name;
    const backend_ops *ops;          /* NULL: liblockstep_NAME.so */
    const backend_variant *variants; /* NULL, or its modules: liblockstep_NAME-VARIANT.so */
} backend_entry;

/* OMPI_COMM_WORLD_* do not count: other launchers set them too. */
static const backend_variant mpi_variants[] = {
    {"openmpi", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"mpich", {"PMI_FD", "PMI_PORT", "PMI_RANK"}},
    {NULL, {NULL}},
};

static const backend_entry entries[] = {
    {"native", &native_backend_ops, NULL},
    {"mpi", NULL, mpi_variants},
    {"nccl", NULL, NULL},
    {"gloo", NULL, NULL},
};

/* Before it is opened a module may only set error texts. */
static const comm_host early_host = {.abi = BACKEND_ABI, .vfail = ls_vfail};

static ls_status no_such_name(const char *name)
{
    return ls_fail(LS_EINVAL, "backend \"%.40s\": must be auto, native, mpi, nccl or gloo", name);
}

/* "mpi:openmpi" is variant openmpi of the family mpi; *variant is NULL where none is named. */
static ls_status find_entry(const char *name, const backend_entry **out,
                            const backend_variant **variant)
{
    const size_t n = strcspn(name, ":");

    for (size_t i = 0; i < LS_COUNT_OF(entries); i++) {
        const backend_entry *e = &entries[i];

        if (strlen(e->name) != n || strncmp(e->name, name, n) != 0)
            continue;
        *out = e;
        *variant = NULL;
        if (name[n] == '\0')
            return LS_OK;
        for (int v = 0; e->variants != NULL && e->variants[v].name != NULL; v++) {
            if (text_equal(e->variants[v].name, name + n + 1))
                *variant = &e->variants[v];
        }
        return *variant != NULL ? LS_OK : no_such_name(name);
    }
    return no_such_name(name);
}

static ls_status load(const backend_entry *e, const backend_variant *v, const backend_ops **out)
{
    const char *variant = v == NULL ? NULL : v->name;
    char module[NAME_BYTES];
    void *object = NULL;
    const backend_ops *ops;
    ls_status st;

    text_format(module, sizeof(module), "%s%s%s", e->name, variant == NULL ? "" : "-",
                variant == NULL ? "" : variant);
    st = module_open(module, &object);
    if (st == LS_ENOTFOUND || st == LS_EUNSUPPORTED)
        return ls_fail(LS_EUNSUPPORTED, "backend %s%s%s is not part of this installation (%.400s)",
                       e->name, variant == NULL ? "" : ":", variant == NULL ? "" : variant,
                       ls_last_error());
    if (st != LS_OK)
        return st;
    ops = dlsym(object, ENTRY_SYMBOL);
    if (ops == NULL || ops->abi != BACKEND_ABI)
        return ls_fail(LS_EUNSUPPORTED, "liblockstep_%s.so is not a backend of this version (%s)",
                       module,
                       ops == NULL ? "it has no entry symbol" : "it has another ABI version");
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

static bool is_launched_for(const backend_variant *v)
{
    for (size_t i = 0; i < LS_COUNT_OF(v->launcher) && v->launcher[i] != NULL; i++) {
        const char *value =
            getenv(v->launcher[i]); // NOLINT(concurrency-mt-unsafe): no thread sets it

        if (value != NULL && *value != '\0')
            return true;
    }
    return false;
}

/* The variant whose launcher has started this process, or NULL. */
static const backend_variant *launched_variant(const backend_entry *e)
{
    for (const backend_variant *v = e->variants; v->name != NULL; v++) {
        if (is_launched_for(v))
            return v;
    }
    return NULL;
}

static ls_status load_fitting(const backend_entry *e, const backend_variant *v,
                              const backend_need *asked, const backend_ops **out)
{
    backend_need need = *asked;
    const backend_ops *ops = NULL;

    LS_TRY(load(e, v, &ops));
    LS_ASSERT(ops != NULL);
    need.is_launched = v != NULL && is_launched_for(v);
    return check_fit(ops, &need, out);
}

/* The variant that started this process; if none did, the reasons of all. */
static ls_status find_variant(const backend_entry *e, const backend_need *need,
                              const backend_ops **out)
{
    text_buf reasons = {0};
    ls_status st = LS_EUNSUPPORTED;

    if (launched_variant(e) != NULL)
        return load_fitting(e, launched_variant(e), need, out);
    for (const backend_variant *v = e->variants; v->name != NULL && st != LS_OK; v++) {
        st = load_fitting(e, v, need, out);
        if (st != LS_OK)
            text_append(&reasons, "%s%s", v == e->variants ? "" : "; ", ls_last_error());
    }
    if (st != LS_OK)
        st = ls_fail(LS_EUNSUPPORTED, "%s", text_str(&reasons));
    text_free(&reasons);
    return st;
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

static void append_variants(text_buf *out, const backend_entry *e)
{
    const backend_variant *launched = launched_variant(e);
    char module[NAME_BYTES];

    for (const backend_variant *v = e->variants; v->name != NULL; v++) {
        text_format(module, sizeof(module), "%s-%s", e->name, v->name);
        if ((launched == NULL || launched == v) && module_find(module) == LS_OK)
            text_append(out, ", %s:%s%s", e->name, v->name,
                        launched == NULL ? " (under its mpirun)" : "");
    }
}

/* Adds the backends of this installation, but the one that was requested, to the reason. */
static ls_status fail_with_alternatives(const backend_entry *requested)
{
    text_buf text = {0};
    ls_status st;

    text_append(&text, "%.700s; available here: native (the default, over shared memory and TCP)",
                ls_last_error());
    for (size_t i = 0; i < LS_COUNT_OF(entries); i++) {
        if (entries[i].variants != NULL)
            append_variants(&text, &entries[i]);
        else if (entries[i].ops == NULL && &entries[i] != requested &&
                 module_find(entries[i].name) == LS_OK)
            text_append(&text, ", %s", entries[i].name);
    }
    st = ls_fail(LS_EUNSUPPORTED, "%s", text_str(&text));
    text_free(&text);
    return st;
}

ls_status backend_find(const backend_need *asked, const backend_ops **out)
{
    backend_need need = *asked;
    const backend_entry *e = NULL;
    const backend_variant *variant = NULL;
    ls_status st;

    need.host = &early_host;
    if (text_equal(need.name, "auto"))
        return find_best(&need, out);
    LS_TRY(find_entry(need.name, &e, &variant));
    if (e->ops != NULL)
        return check_fit(e->ops, &need, out);
    if (e->variants != NULL && variant == NULL)
        st = find_variant(e, &need, out);
    else
        st = load_fitting(e, variant, &need, out);
    return st == LS_OK ? LS_OK : fail_with_alternatives(e);
}

ls_status ls_backend_check(const char *name, int ranks)
{
    const backend_ops *ops;

    if (name == NULL)
        LS_TRY(config_text(CONFIG_BACKEND, &name));
    return backend_find(&(backend_need){.name = name, .transport = "auto", .world_size = ranks},
                        &ops);
}
