/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_try.c - tests GPUs with nine functions of CUDA's driver library, found by name. Each child
 * process sees one GPU, selected by UUID, because ordinals shift when a GPU is lost. Called by
 * check_sources.c.
 */
#include "diagnose/gpu_try.h"

#include "base/text.h"
#include "diagnose/child.h"

#include <stdlib.h>
#include <string.h>

#define PATTERN 0xa5c3960fu

typedef struct cuda_context cuda_context; /* opaque */

typedef struct cuda {
    int (*init)(unsigned flags);
    int (*error_text)(int code, const char **out); /* may be NULL */
    int (*device)(int *out, int ordinal);
    int (*open)(cuda_context **out, unsigned flags, int device);
    int (*close)(cuda_context *context);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*free)(uint64_t address);
    int (*fill)(uint64_t address, unsigned value, size_t n);
    int (*read)(void *to, uint64_t from, size_t bytes);
} cuda;

typedef struct task {
    const char *driver; /* file */
    const char *uuid;
} task;

static ls_status load(const char *path, cuda *api)
{
    const gpu_symbol symbols[] = {
        {"cuGetErrorString", &api->error_text, true}, {"cuInit", &api->init, false},
        {"cuDeviceGet", &api->device, false},         {"cuCtxCreate_v2", &api->open, false},
        {"cuCtxDestroy_v2", &api->close, false},      {"cuMemAlloc_v2", &api->allocate, false},
        {"cuMemFree_v2", &api->free, false},          {"cuMemsetD32_v2", &api->fill, false},
        {"cuMemcpyDtoH_v2", &api->read, false}};

    return gpu_load(path, symbols, LS_COUNT_OF(symbols));
}

static ls_status judge(const cuda *api, const char *step, int code)
{
    const char *text = NULL;

    if (code == 0)
        return LS_OK;
    if (api->error_text == NULL || api->error_text(code, &text) != 0 || text == NULL)
        text = "no reason given";
    return ls_fail(LS_ESYSTEM, "%s fails: %s (CUDA error %d)", step, text, code);
}

/* Checks the first and the last word of the allocation. */
static ls_status use_memory(const cuda *api)
{
    unsigned words[2] = {0, 0};
    uint64_t address = 0;

    LS_TRY(judge(api, "allocating 16 MiB of its memory", api->allocate(&address, GPU_TRY_BYTES)));
    LS_TRY(judge(api, "writing to its memory",
                 api->fill(address, PATTERN, GPU_TRY_BYTES / sizeof(unsigned))));
    LS_TRY(judge(api, "reading its memory", api->read(&words[0], address, sizeof(words[0]))));
    LS_TRY(
        judge(api, "reading its memory",
              api->read(&words[1], address + GPU_TRY_BYTES - sizeof(words[1]), sizeof(words[1]))));
    if (words[0] != PATTERN || words[1] != PATTERN)
        return ls_fail(LS_ESYSTEM, "its memory returns other values than were written");
    return judge(api, "freeing its memory", api->free(address));
}

static ls_status use_gpu(void *arg, void *answer)
{
    const task *t = arg;
    cuda_context *context = NULL;
    int device = -1;
    cuda api;

    LS_UNUSED(answer);
    if (setenv("CUDA_VISIBLE_DEVICES", t->uuid, 1) != 0) // NOLINT(concurrency-mt-unsafe)
        return ls_fail_errno("CUDA_VISIBLE_DEVICES");
    LS_TRY(load(t->driver, &api));
    LS_TRY(judge(&api, "starting CUDA", api.init(0)));
    LS_TRY(judge(&api, "selecting it", api.device(&device, 0)));
    LS_TRY(judge(&api, "opening it", api.open(&context, 0, device)));
    LS_TRY(use_memory(&api));
    return judge(&api, "closing it", api.close(context));
}

ls_status gpu_try(const char *library, int64_t limit_ms, const gpu_list *gpus, gpu_trials *out)
{
    static const char what[] = "using it";
    child_question asked[GPU_MOST];
    task tasks[GPU_MOST];
    int n_missing = 0;
    int n_tried = 0;

    memset(out, 0, sizeof(*out));
    out->n = gpus->n;
    for (int i = 0; i < gpus->n; i++) {
        tasks[i] = (task){.driver = library, .uuid = gpus->gpus[i].uuid};
        out->gpus[i].status = !gpus->gpus[i].is_usable || tasks[i].uuid[0] == 0
                                  ? ls_fail(LS_ENOTFOUND, "not tested")
                                  : child_begin(what, limit_ms, use_gpu, &tasks[i], 1, &asked[i]);
        text_format(out->gpus[i].why, sizeof(out->gpus[i].why), "%s", ls_last_error());
    }
    for (int i = 0; i < gpus->n; i++) {
        gpu_trial *t = &out->gpus[i];
        char nothing;

        if (t->status != LS_OK)
            continue;
        t->status = child_end(what, &asked[i], &nothing, 1);
        if (t->status != LS_OK)
            text_printable(t->why, sizeof(t->why), ls_last_error());
        n_tried++;
        n_missing += t->status == LS_ENOTFOUND;
    }
    if (n_tried > 0 && n_missing == n_tried)
        return ls_fail(LS_ENOTFOUND, "%s cannot be loaded", library);
    return LS_OK;
}
