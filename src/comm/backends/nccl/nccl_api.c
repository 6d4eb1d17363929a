/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_api.c - finds NCCL's functions, and explains its errors. nccl_backend.c calls it, under the
 * lock of an engine or before any engine exists.
 */
#include "comm/backends/nccl/nccl_api.h"

#include "base/nccl_advice.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY_VARIABLE "LOCKSTEP_NCCL_LIBRARY"

/* Loading happens once; its outcome is read-only afterwards. */
static nccl_api the_api;
static char why_not[700];
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define NEEDED(member_, name_, result_, arguments_)   {name_, offsetof(nccl_api, member_), false},
#define OPTIONAL(member_, name_, result_, arguments_) {name_, offsetof(nccl_api, member_), true},

static const struct {
    const char *name;
    size_t at;
    bool is_optional;
} symbols[] = {NCCL_FUNCTIONS(NEEDED) NCCL_LATER_FUNCTIONS(OPTIONAL)};

/* The devices of the drivers, by which a machine with GPUs is recognised. */
static const char *const driver_files[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/kfd"};

static bool has_gpu(void)
{
    for (size_t i = 0; i < sizeof(driver_files) / sizeof(driver_files[0]); i++) {
        if (access(driver_files[i], F_OK) == 0)
            return true;
    }
    return false;
}

static bool find_symbols(void *library)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *f = dlsym(library, symbols[i].name);

        if (f == NULL && !symbols[i].is_optional) {
            (void)snprintf(why_not, sizeof(why_not),
                           "%s has no function %s: NCCL 2.14 or later is "
                           "needed",
                           the_api.file, symbols[i].name);
            return false;
        }
        memcpy((char *)&the_api + symbols[i].at, &f, sizeof(f));
    }
    return true;
}

/* Tries the libraries in turn; why_not gets the loader's reasons. */
static void *open_library(void)
{
    const char *named = getenv(LIBRARY_VARIABLE); // NOLINT(concurrency-mt-unsafe): never set
    const char *const names[] = {"libnccl.so.2", "librccl.so.1"};
    size_t used = 0;

    if (named != NULL && *named != '\0') {
        void *library = dlopen(named, RTLD_NOW | RTLD_LOCAL);

        the_api.file = named;
        if (library == NULL)
            (void)snprintf(why_not, sizeof(why_not), LIBRARY_VARIABLE " cannot be loaded: %s",
                           dlerror()); // NOLINT(concurrency-mt-unsafe): glibc's is per thread
        return library;
    }
    if (!has_gpu()) {
        (void)snprintf(why_not, sizeof(why_not),
                       "this machine has no GPU driver: none of %s, %s, %s exists", driver_files[0],
                       driver_files[1], driver_files[2]);
        return NULL;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

        the_api.file = names[i];
        if (library != NULL)
            return library;
        used +=
            (size_t)snprintf(why_not + used, sizeof(why_not) - used, "%s%.250s", i == 0 ? "" : "; ",
                             dlerror()); // NOLINT(concurrency-mt-unsafe): as above
    }
    (void)snprintf(why_not + used, sizeof(why_not) - used,
                   ": install NCCL (pip install nvidia-nccl-cu13), or set LD_LIBRARY_PATH "
                   "or " LIBRARY_VARIABLE);
    return NULL;
}

static void load_once(void)
{
    void *library = open_library();

    if (library == NULL || !find_symbols(library))
        return;
    if (the_api.get_version(&the_api.version) != NCCL_SUCCESS || the_api.version < NCCL_OLDEST) {
        (void)snprintf(why_not, sizeof(why_not), "%s is version %d: NCCL 2.14 or later is needed",
                       the_api.file, the_api.version);
        return;
    }
    why_not[0] = '\0';
}

ls_status nccl_load(const comm_host *host, const nccl_api **out)
{
    (void)pthread_once(&once, load_once);
    if (why_not[0] != '\0')
        return comm_host_fail(host, LS_EUNSUPPORTED, "%s", why_not);
    *out = &the_api;
    return LS_OK;
}

const nccl_api *nccl_loaded(void)
{
    return &the_api;
}

/* --- errors --- */

void nccl_explain(const nccl_api *api, nccl_comm *comm, int result, const char *what, char *buf,
                  size_t n)
{
    const char *last = api->last_error(comm);
    const bool has_last = last != NULL && *last != '\0';

    last = has_last ? last : "";
    (void)snprintf(buf, n, "NCCL %d.%d.%d, %s: %s%s%.300s; %s", api->version / 10000,
                   api->version / 100 % 100, api->version % 100, what, api->error_string(result),
                   has_last ? ": " : "", last, nccl_advice(last, "NCCL_DEBUG=WARN shows more"));
}
