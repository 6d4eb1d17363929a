/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmix_client.c - a client of PMIx servers through the system's libpmix, for join_pmi.c. The
 * library is loaded at the first use and never unloaded.
 */
#include "comm/join/pmix_client.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/report/wait_report.h"
#include "base/text.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The used part of PMIx's interface, declared here so that building needs no PMIx. It has been
 * stable since version 2, the number in libpmix.so.2. */
enum { SPACE_BYTES = 256, KEY_BYTES = 512 };
enum { IS_STRING = 3, IS_INT = 6 };                            /* pmix_data_type_t */
enum { FOR_ALL = 3 };                                          /* pmix_scope_t */
enum { DONE = 0, DONE_AT_ONCE = -157, WAITED_TOO_LONG = -24 }; /* pmix_status_t */

typedef struct pmix_proc {
    char space[SPACE_BYTES];
    uint32_t rank;
} pmix_proc;

typedef struct pmix_value {
    uint16_t type;
    union {
        const char *string;
        int number;
        void *largest[3];
    } data;
} pmix_value;

typedef struct pmix_info {
    char key[KEY_BYTES];
    uint32_t flags;
    pmix_value value;
} pmix_info;

typedef struct pmix_library {
    int (*init)(pmix_proc *self, pmix_info *info, size_t n);
    int (*finalize)(const pmix_info *info, size_t n);
    int (*put)(uint8_t scope, const char *key, pmix_value *value);
    int (*commit)(void);
    int (*fence)(const pmix_proc *procs, size_t n_procs, const pmix_info *info, size_t n,
                 void (*done)(int code, void *arg), void *arg);
    int (*get)(const pmix_proc *proc, const char *key, const pmix_info *info, size_t n,
               pmix_value **value);
    const char *(*error_text)(int code);
} pmix_library;

/* --- the library --- */

static ls_status find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);

    if (symbol == NULL)
        return ls_fail(LS_ENOTFOUND, "libpmix.so.2 has no %s", name);
    memcpy(function, &symbol, sizeof(symbol)); // C has no cast from one to the other
    return LS_OK;
}

/* RTLD_GLOBAL: its plugins need its symbols. It is never unloaded, because it has a thread. */
static ls_status load(pmix_library *out)
{
    void *handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);

    if (handle == NULL)
        return ls_fail(LS_ENOTFOUND, "there is no PMIx library on this host (libpmix.so.2)");
    LS_TRY(find(handle, "PMIx_Init", &out->init));
    LS_TRY(find(handle, "PMIx_Finalize", &out->finalize));
    LS_TRY(find(handle, "PMIx_Put", &out->put));
    LS_TRY(find(handle, "PMIx_Commit", &out->commit));
    LS_TRY(find(handle, "PMIx_Fence_nb", &out->fence));
    LS_TRY(find(handle, "PMIx_Get", &out->get));
    return find(handle, "PMIx_Error_string", &out->error_text);
}

static ls_status check(const pmix_client *c, int code, const char *call)
{
    if (code == DONE)
        return LS_OK;
    return ls_fail(code == WAITED_TOO_LONG ? LS_ETIMEOUT : LS_EPEER, "%s: %s (%d)", call,
                   c->calls->error_text(code), code);
}

/* The rest of the deadline in whole seconds; 0 means no limit. */
static pmix_info time_limit(const pmix_client *c)
{
    const int left_ms = ls_deadline_left(c->deadline_ms);
    pmix_info limit = {.key = "pmix.timeout", .value = {.type = IS_INT}};

    limit.value.data.number = left_ms < 0 ? 0 : left_ms / 1000 + 1;
    return limit;
}

/* After a process's last finalize PMIx cannot start again, and without one mpirun reports a crash.
 * So MPI, when the program has it, must be initialized before: its finalize is then the last. */
static ls_status check_mpi_started(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "MPI_Initialized");
    int (*is_initialized)(int *flag);
    int flag = 0;

    memcpy(&is_initialized, &symbol, sizeof(symbol));
    if (symbol == NULL || (is_initialized(&flag) == 0 && flag != 0))
        return LS_OK;
    return ls_fail(LS_EINVAL, "this program is linked to MPI: on several hosts it has to call "
                              "MPI_Init before it joins (or set MASTER_ADDR and MASTER_PORT)");
}

/* --- calls --- */

ls_status pmix_client_open(int64_t deadline_ms, pmix_client *out)
{
    // PMIx's state is global to the process, and so is this.
    static pmix_library library;
    static atomic_int n_opened;
    pmix_proc self = {.space = ""};

    *out = (pmix_client){.calls = &library, .deadline_ms = deadline_ms};
    LS_TRY(check_mpi_started());
    if (library.error_text == NULL)
        LS_TRY(load(&library));
    LS_TRY(check(out, library.init(&self, NULL, 0), "PMIx_Init"));
    text_format(out->space, sizeof(out->space), "%.*s", SPACE_BYTES - 1, self.space);
    out->n_opened = atomic_fetch_add_explicit(&n_opened, 1, memory_order_relaxed) + 1;
    return LS_OK;
}

void pmix_client_close(pmix_client *c)
{
    (void)c->calls->finalize(NULL, 0);
}

ls_status pmix_client_put(pmix_client *c, const char *key, const char *value)
{
    pmix_value content = {.type = IS_STRING, .data.string = value};

    LS_TRY(check(c, c->calls->put(FOR_ALL, key, &content), "PMIx_Put"));
    return check(c, c->calls->commit(), "PMIx_Commit");
}

/* Written by PMIx's own thread. */
typedef struct fence_wait {
    ls_mutex mu;
    ls_cond changed;
    bool is_done;
    int code;
} fence_wait;

static void fence_done(int code, void *arg)
{
    fence_wait *w = arg;

    ls_mutex_lock(&w->mu);
    w->is_done = true;
    w->code = code;
    ls_cond_broadcast(&w->changed);
    ls_mutex_unlock(&w->mu);
}

/* PMIx checks the deadline. It does not report which ranks are missing. */
static void await_fence(fence_wait *w)
{
    wait_report report = wait_report_begin(wait_report_setting_ms());

    ls_mutex_lock(&w->mu);
    while (!w->is_done) {
        (void)ls_cond_wait(&w->changed, &w->mu, report.next_ms);
        if (!w->is_done && wait_report_is_due(&report))
            ls_log(LS_LOG_WARN, "comm",
                   "joining has waited for %.1f s: not all ranks have reached the launcher's PMIx "
                   "fence",
                   wait_report_seconds(&report));
    }
    ls_mutex_unlock(&w->mu);
}

ls_status pmix_client_fence(pmix_client *c)
{
    const pmix_info limit = time_limit(c);
    fence_wait w = {.code = DONE};

    ls_mutex_init(&w.mu);
    ls_cond_init(&w.changed);
    w.code = c->calls->fence(NULL, 0, &limit, 1, fence_done, &w);
    if (w.code == DONE)
        await_fence(&w);
    else if (w.code == DONE_AT_ONCE)
        w.code = DONE;
    ls_cond_destroy(&w.changed);
    ls_mutex_destroy(&w.mu);
    return check(c, w.code, "PMIx_Fence_nb");
}

ls_status pmix_client_get(pmix_client *c, int rank, const char *key, char *value, size_t n)
{
    const pmix_info limit = time_limit(c);
    pmix_proc proc = {.rank = (uint32_t)rank};
    pmix_value *got = NULL;
    bool fits;

    memcpy(proc.space, c->space, sizeof(proc.space));
    LS_TRY(check(c, c->calls->get(&proc, key, &limit, 1, &got), "PMIx_Get"));
    fits = got != NULL && got->type == IS_STRING && got->data.string != NULL &&
           strlen(got->data.string) < n;
    if (fits)
        text_format(value, n, "%s", got->data.string);
    if (got != NULL && got->type == IS_STRING)
        free((void *)(uintptr_t)got->data.string); // of malloc(), as PMIx documents
    free(got);
    return fits ? LS_OK : ls_fail(LS_EPROTO, "PMIx_Get: \"%s\" is not a short text", key);
}
