/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/pmix_client.h"

#include "base/clock.h"
#include "base/wait_report.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * What of PMIx's interface is used, in words of our own, so that nothing is needed to build: the
 * part of it that has been the same since version 2, which is what the number behind libpmix.so
 * stands for.
 */
enum { SPACE_BYTES = 256, KEY_BYTES = 512 };
enum { IS_STRING = 3, IS_INT = 6 };                            /* pmix_data_type_t */
enum { FOR_ALL = 3 };                                          /* pmix_scope_t */
enum { DONE = 0, DONE_AT_ONCE = -157, WAITED_TOO_LONG = -24 }; /* pmix_status_t */

typedef struct pmix_name {
    char space[SPACE_BYTES];
    uint32_t rank;
} pmix_name;

typedef struct pmix_content {
    uint16_t type;
    union {
        const char *string;
        int number;
        void *room[3];
    } data;
} pmix_content;

typedef struct pmix_wish {
    char key[KEY_BYTES];
    uint32_t flags;
    pmix_content value;
} pmix_wish;

typedef struct pmix_library {
    int (*init)(pmix_name *self, pmix_wish *wishes, size_t n);
    int (*finalize)(const pmix_wish *wishes, size_t n);
    int (*put)(uint8_t scope, const char *key, pmix_content *value);
    int (*commit)(void);
    int (*fence)(const pmix_name *who, size_t n_who, const pmix_wish *wishes, size_t n,
                 void (*done)(int code, void *arg), void *arg);
    int (*get)(const pmix_name *whose, const char *key, const pmix_wish *wishes, size_t n,
               pmix_content **value);
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

/* Its plugins look for the library's own names among everybody's. It is never unloaded: it has a
 * thread. */
static ls_status load(pmix_library *out)
{
    void *handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);

    if (handle == NULL)
        return ls_fail(LS_ENOTFOUND, "there is no PMIx library here (libpmix.so.2)");
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

/* How long it may take: whole seconds, 0 means for ever. */
static pmix_wish time_limit(const pmix_client *c)
{
    const int left_ms = ls_deadline_left(c->deadline_ms);
    pmix_wish wish = {.key = "pmix.timeout", .value = {.type = IS_INT}};

    wish.value.data.number = left_ms < 0 ? 0 : left_ms / 1000 + 1;
    return wish;
}

/* Behind the last goodbye of a process PMIx does not begin again, and without one mpirun takes its
 * end for a crash. So an MPI that is here must have begun, whose goodbye is still to come. */
static ls_status leave_room_for_mpi(void)
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
    // The state of PMIx is the process's, and so are these.
    static pmix_library library;
    static atomic_int n_opened;
    pmix_name self = {.space = ""};

    *out = (pmix_client){.calls = &library, .deadline_ms = deadline_ms};
    LS_TRY(leave_room_for_mpi());
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
    pmix_content content = {.type = IS_STRING, .data.string = value};

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

/* PMIx keeps the deadline; which ranks have not come it does not tell. */
static void await_fence(fence_wait *w)
{
    wait_report report = wait_report_begin(wait_report_setting_ms());

    ls_mutex_lock(&w->mu);
    while (!w->is_done) {
        (void)ls_cond_wait(&w->changed, &w->mu, report.next_ms);
        if (!w->is_done && wait_report_is_due(&report))
            ls_log(LS_LOG_WARN, "comm",
                   "joining has waited for %.1f s: not all ranks have come to the starter's PMIx "
                   "fence",
                   wait_report_seconds(&report));
    }
    ls_mutex_unlock(&w->mu);
}

ls_status pmix_client_fence(pmix_client *c)
{
    const pmix_wish limit = time_limit(c);
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
    const pmix_wish limit = time_limit(c);
    pmix_name whose = {.rank = (uint32_t)rank};
    pmix_content *got = NULL;
    bool fits;

    memcpy(whose.space, c->space, sizeof(whose.space));
    LS_TRY(check(c, c->calls->get(&whose, key, &limit, 1, &got), "PMIx_Get"));
    fits = got != NULL && got->type == IS_STRING && got->data.string != NULL &&
           strlen(got->data.string) < n;
    if (fits)
        text_format(value, n, "%s", got->data.string);
    if (got != NULL && got->type == IS_STRING)
        free((void *)(uintptr_t)got->data.string); // the C library's own, as PMIx says
    free(got);
    return fits ? LS_OK : ls_fail(LS_EPROTO, "PMIx_Get: \"%s\" is no short text", key);
}
