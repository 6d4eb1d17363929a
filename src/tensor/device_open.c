/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_open.c - finds a device by its name, and opens and closes it. Built-in devices are in one
 * array, others are modules. Programs call it through <lockstep/tensor.h>; device_probe.c asks
 * before that whether a device can be used.
 */
#include "tensor/device.h"

#include <lockstep/log.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/options.h"
#include "base/text.h"
#include "host/cores.h"
#include "tensor/device_open.h"
#include "tensor/module.h"
#include "tensor/omp_spin.h"
#include "tensor/pool.h"
#include "tensor/test_flip.h"

#include <stdlib.h>
#include <string.h>

static const device_ops *const built_in[] = {&cpu_ref_device_ops};

static const device_ops *find_built_in(const char *name)
{
    for (size_t i = 0; i < LS_COUNT_OF(built_in); i++) {
        if (text_equal(built_in[i]->name, name))
            return built_in[i];
    }
    return NULL;
}

/* --- choosing --- */

#define COUNT_MOST (1 << 20) /* of ranks or cores of a machine */

/* NULL if the variable is not set, or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name); // NOLINT(concurrency-mt-unsafe): never set

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The value of the variable; if it is not set, *out stays. */
static ls_status number(const char *name, int64_t least, int64_t *out)
{
    const char *value = variable(name);

    return value == NULL ? LS_OK : text_parse_int(value, name, least, COUNT_MOST, out);
}

/* The number of ranks on this machine, if Slurm has started them without another launcher. */
static ls_status slurm_ranks(int64_t *out)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    const char *tasks = variable(name);
    int64_t node = -1;
    int n;

    LS_TRY(number("SLURM_NODEID", 0, &node));
    if (tasks == NULL || node < 0)
        return LS_OK;
    LS_TRY(cores_slurm_tasks(tasks, name, (int)node, &n));
    *out = n;
    return LS_OK;
}

/* From the launcher's variables: the number of ranks on this machine, and of this one among them; 1
 * and 0 without. A launcher may run as a rank of another one: that with more ranks counts. */
static ls_status read_local_ranks(int64_t *n, int *rank)
{
    static const struct {
        const char *n; /* "": slurm_ranks() */
        const char *rank;
    } families[] = {
        {"LOCKSTEP_LOCAL_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK"},
        {"LOCAL_WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
        {"PMI_LOCAL_SIZE", "PMI_LOCAL_RANK"},
        {"", "PMIX_LOCAL_RANK"},
        {"", "SLURM_LOCALID"},
    };
    int64_t found = -1;

    *n = 1;
    for (size_t i = 0; i < LS_COUNT_OF(families); i++) {
        int64_t size = 1;
        int64_t own = -1;

        LS_TRY(*families[i].n == '\0' ? slurm_ranks(&size) : number(families[i].n, 1, &size));
        LS_TRY(number(families[i].rank, 0, &own));
        if (own >= 0 && (found < 0 || size > *n))
            found = own;
        *n = size > *n ? size : *n;
    }
    *rank = found < 0 ? 0 : (int)found;
    return LS_OK;
}

/* The device's threads, GOMP_SPINCOUNT for those of all ranks together, and the rank's number on
 * this machine. The cores of a rank that its launcher has bound are not divided among ranks. */
static ls_status resolve_threads(int asked, device_choice *out)
{
    const int64_t own = ls_usable_cores(NULL);
    int64_t share = own;
    int64_t threads = asked;
    int64_t ranks;

    if (asked < 0)
        return ls_fail(LS_EINVAL, "device: %d threads; 0 takes the default", asked);
    if (threads == 0)
        LS_TRY(config_int(CONFIG_THREADS, &threads));
    LS_TRY(number("LOCKSTEP_LOCAL_CORES", 1, &share));
    LS_TRY(read_local_ranks(&ranks, &out->settings.local_rank));
    share = share / ranks < own ? share / ranks : own;
    if (threads == 0)
        threads = share;
    out->settings.threads = threads < 1 ? 1 : (int)threads;
    out->spin_count = omp_spin_count(out->settings.threads, share);
    return LS_OK;
}

ls_status device_fail_with_alternatives(ls_status st)
{
    char why[LS_ERROR_BYTES];

    text_format(why, sizeof(why), "%.700s", ls_last_error());
    return ls_fail(st, "%s; available here: cpu (the default)%s", why,
                   module_check("onednn") == LS_OK ? ", which computes with oneDNN" : "");
}

bool device_is_cpu(const device_choice *choice)
{
    return text_equal(choice->name, "cpu") || text_equal(choice->name, "onednn") ||
           find_built_in(choice->name) != NULL;
}

/* Splits "cuda:1"; the index is -1 without one. */
static ls_status split_name(const char *text, device_choice *out)
{
    const char *colon = strchr(text, ':');
    int64_t index = -1;

    if (colon != NULL)
        LS_TRY(ls_context(text_parse_int(colon + 1, "the number of the card", 0, 1 << 16, &index),
                          "device '%.40s'", text));
    (void)text_format(out->name, sizeof(out->name), "%.*s", (int)strcspn(text, ":"), text);
    if (index >= 0 && (device_is_cpu(out) || text_equal(out->name, "auto")))
        return ls_fail(LS_EINVAL, "device '%.40s': %s has no cards to choose from", text,
                       out->name);
    out->settings.index = (int)index;
    return LS_OK;
}

/* Whether there is a device or module of this name. */
static ls_status check_name(const char *name)
{
    ls_status st;

    if (text_equal(name, "cpu") || text_equal(name, "auto") || find_built_in(name) != NULL)
        return LS_OK;
    st = module_check(name);
    return st == LS_OK ? LS_OK : device_fail_with_alternatives(st);
}

static ls_status fail_without_graphs(const char *name)
{
    return ls_fail(LS_EUNSUPPORTED,
                   "device %s has no CUDA graphs: leave out --cuda-graph (ls_device_options."
                   "cuda_graph), or use --device cuda",
                   name);
}

static ls_status check_cpu_isa(const char *name)
{
    static const char *const names[] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        if (name == NULL || text_equal(name, names[i]))
            return LS_OK;
    }
    return ls_fail(LS_EINVAL,
                   "--cpu-isa: '%.40s' is not baseline, avx2, avx512, avx512_bf16 or amx", name);
}

ls_status device_choose(const ls_device_options *o, device_choice *out)
{
    const char *name = o->name;
    int64_t deterministic;
    int64_t autotune;
    int64_t graphs;

    LS_TRY(check_cpu_isa(o->cpu_isa));
    *out = (device_choice){.settings.share_gpu = o->share_gpu != 0,
                           .settings.thread_invariant = o->thread_invariant != 0,
                           .settings.cpu_isa = o->cpu_isa,
                           .needs_graphs = o->cuda_graph != 0};
    if (name == NULL || name[0] == '\0')
        LS_TRY(config_text(CONFIG_DEVICE, &name));
    LS_TRY(split_name(name, out));
    LS_TRY(check_name(out->name));
    if (out->needs_graphs && device_is_cpu(out))
        return fail_without_graphs(out->name);
    LS_TRY(resolve_threads(o->threads, out));
    LS_TRY(config_text(CONFIG_CONVOLUTIONS, &out->settings.convolutions));
    LS_TRY(config_text(CONFIG_TF32, &out->settings.tf32));
    LS_TRY(config_int(CONFIG_DETERMINISTIC, &deterministic));
    LS_TRY(config_int(CONFIG_AUTOTUNE, &autotune));
    LS_TRY(config_int(CONFIG_CUDA_GRAPH, &graphs));
    out->settings.deterministic = deterministic != 0 || o->thread_invariant;
    out->settings.autotune = autotune != 0;
    out->settings.graphs = graphs != 0 || out->needs_graphs;
    return LS_OK;
}

ls_status device_load(const device_choice *choice, const device_ops **ops, void **module)
{
    char **environment;
    ls_status st;

    *module = NULL;
    *ops = find_built_in(choice->name);
    if (*ops != NULL)
        return LS_OK;
    environment = omp_spin_enter(choice->spin_count);
    st = module_load(choice->name, ops, module);
    omp_spin_leave(environment);
    if (st == LS_OK && choice->needs_graphs && !(*ops)->has_graphs) {
        module_unload(*module);
        st = fail_without_graphs(choice->name);
    }
    return st;
}

/* --- opening --- */

/* Opens the device of `ops`; takes `module`. */
static ls_status open_ops(const device_ops *ops, void *module, const device_settings *settings,
                          ls_device **out)
{
    ls_device *device = ls_calloc(1, sizeof(*device));
    device_settings own = *settings;
    ls_status st;

    if (device == NULL) {
        module_unload(module);
        return ls_fail(LS_ENOMEM, "no memory for a device");
    }
    device->ops = ops;
    device->module = module;
    device->threads = own.threads;
    own.device = device;
    st = pool_create(&device->pool);
    if (st == LS_OK)
        st = ops->open(&own, &device->state);
    if (st != LS_OK) {
        ls_free(device->pool);
        ls_free(device);
        module_unload(module);
        return st;
    }
    if (ops->accelerator != NULL)
        device->accel = ops->accelerator(device->state);
    st = test_flip_open(device, &device->flip);
    if (st != LS_OK) {
        ls_status ignored = ls_device_close(device);

        LS_UNUSED(ignored);
        return st;
    }
    *out = device;
    return LS_OK;
}

static ls_status open_choice(const device_choice *choice, ls_device **out)
{
    const device_ops *ops;
    void *module;

    LS_TRY(device_load(choice, &ops, &module));
    return open_ops(ops, module, &choice->settings, out);
}

static ls_status open_named(const device_choice *choice, const char *name, ls_device **out)
{
    device_choice named = *choice;

    (void)text_format(named.name, sizeof(named.name), "%s", name);
    return open_choice(&named, out);
}

/* The best processor device of this installation; the slow one only with a warning. */
static ls_status open_cpu(const device_choice *choice, ls_device **out)
{
    const ls_status st = open_named(choice, "onednn", out);

    // Other failures are no reason for a slow device, and cpu_ref ignores cpu_isa.
    if (st != LS_EUNSUPPORTED || choice->settings.cpu_isa != NULL)
        return st;
    ls_log(LS_LOG_WARN, "tensor", "training will be slow with plain C kernels: %s",
           ls_last_error());
    return open_named(choice, "cpu_ref", out);
}

/* A GPU that can be used, else the processor. */
static ls_status open_auto(const device_choice *choice, ls_device **out)
{
    const ls_status st = open_named(choice, "cuda", out);

    if (st != LS_EUNSUPPORTED) // more ranks than cards are a mistake
        return st;
    if (choice->needs_graphs)
        return fail_without_graphs("auto (here: cpu)");
    ls_log(LS_LOG_INFO, "tensor", "device auto: the CPU is used: %s", ls_last_error());
    return open_cpu(choice, out);
}

ls_status ls_device_open(const ls_device_options *opt, ls_device **out)
{
    ls_device_options o;
    device_choice choice;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_device_options, opt, &o), "device"));
    LS_TRY(device_choose(&o, &choice));
    if (text_equal(choice.name, "cpu"))
        return open_cpu(&choice, out);
    if (text_equal(choice.name, "auto"))
        return open_auto(&choice, out);
    return open_choice(&choice, out);
}

ls_status ls_device_close(ls_device *device)
{
    size_t n_tensors;

    if (device == NULL)
        return LS_OK;
    n_tensors = pool_live_tensors(device);
    if (n_tensors > 0 || device->n_users > 0)
        return ls_fail(LS_EINVAL,
                       "device %s is in use by %zu tensors and %zu tapes and models; destroy them "
                       "before the device is closed",
                       device->ops->name, n_tensors, device->n_users);
    if (device->accel != NULL) // groups may still have operations on its memory
        accel_close_users(device->accel);
    pool_destroy(device);
    device->ops->close(device->state);
    module_unload(device->module);
    ls_free(device->calls);
    ls_free(device->flip);
    ls_free(device);
    return LS_OK;
}

const char *ls_device_name(const ls_device *device)
{
    return device == NULL ? NULL : device->ops->name;
}

const char *ls_device_fingerprint(const ls_device *device)
{
    return device == NULL ? NULL : device->ops->fingerprint(device->state);
}

const char *device_slow_type(const ls_device *device, ls_dtype type)
{
    return device->ops->slow_type == NULL ? NULL : device->ops->slow_type(device->state, type);
}
