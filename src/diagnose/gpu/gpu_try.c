/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_try.c - tests GPUs with functions of CUDA's driver library, found by name: memory is written
 * and read, and a kernel, which the driver compiles, changes every word of it. Each child process
 * sees one GPU, selected by UUID, because ordinals shift when a GPU is lost. Called by
 * check_sources.c.
 */
#include "diagnose/gpu/gpu_try.h"

#include "base/text.h"
#include "diagnose/child.h"

#include <stdlib.h>
#include <string.h>

#define PATTERN 0xa5c3960fu
#define N_WORDS (GPU_TRY_BYTES / sizeof(unsigned))
#define THREADS 256U /* of a block */

typedef struct cuda_context cuda_context; /* opaque, as the following ones */
typedef struct cuda_module cuda_module;
typedef struct cuda_function cuda_function;
typedef struct cuda_stream cuda_stream;

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
    int (*compile)(cuda_module **out, const void *ptx);
    int (*find)(cuda_function **out, cuda_module *module, const char *name);
    int (*launch)(cuda_function *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                  unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                  cuda_stream *stream, void **arguments, void **extra);
    int (*synchronize)(void);
} cuda;

/* Adds 1 to each of n words; for compute capability 7.5, the oldest of CUDA 13, and later. */
static const char kernel_ptx[] = ".version 6.3\n"
                                 ".target sm_75\n"
                                 ".address_size 64\n"
                                 ".visible .entry add_one(.param .u64 words, .param .u32 n)\n"
                                 "{\n"
                                 ".reg .pred %outside;\n"
                                 ".reg .b32 %i, %n, %size, %word;\n"
                                 ".reg .b64 %at, %offset;\n"
                                 "ld.param.u64 %at, [words];\n"
                                 "ld.param.u32 %n, [n];\n"
                                 "mov.u32 %i, %ctaid.x;\n"
                                 "mov.u32 %size, %ntid.x;\n"
                                 "mov.u32 %word, %tid.x;\n"
                                 "mad.lo.u32 %i, %i, %size, %word;\n"
                                 "setp.ge.u32 %outside, %i, %n;\n"
                                 "@%outside ret;\n"
                                 "mul.wide.u32 %offset, %i, 4;\n"
                                 "add.u64 %at, %at, %offset;\n"
                                 "ld.global.u32 %word, [%at];\n"
                                 "add.u32 %word, %word, 1;\n"
                                 "st.global.u32 [%at], %word;\n"
                                 "ret;\n"
                                 "}\n";

typedef struct task {
    const char *driver; /* file */
    const char *uuid;
} task;

static ls_status load(const char *path, cuda *api)
{
    const gpu_symbol symbols[] = {
        {"cuGetErrorString", &api->error_text, true},  {"cuInit", &api->init, false},
        {"cuDeviceGet", &api->device, false},          {"cuCtxCreate_v2", &api->open, false},
        {"cuCtxDestroy_v2", &api->close, false},       {"cuMemAlloc_v2", &api->allocate, false},
        {"cuMemFree_v2", &api->free, false},           {"cuMemsetD32_v2", &api->fill, false},
        {"cuMemcpyDtoH_v2", &api->read, false},        {"cuModuleLoadData", &api->compile, false},
        {"cuModuleGetFunction", &api->find, false},    {"cuLaunchKernel", &api->launch, false},
        {"cuCtxSynchronize", &api->synchronize, false}};

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

/* Whether the first and the last word have this value. */
static ls_status expect_words(const cuda *api, uint64_t address, unsigned value, const char *after)
{
    unsigned words[2] = {0, 0};

    LS_TRY(judge(api, "reading its memory", api->read(&words[0], address, sizeof(words[0]))));
    LS_TRY(
        judge(api, "reading its memory",
              api->read(&words[1], address + GPU_TRY_BYTES - sizeof(words[1]), sizeof(words[1]))));
    if (words[0] != value || words[1] != value)
        return ls_fail(LS_ESYSTEM, "after %s its memory has other values than it should", after);
    return LS_OK;
}

static ls_status run_kernel(const cuda *api, uint64_t address)
{
    cuda_module *module = NULL;
    cuda_function *function = NULL;
    unsigned n = (unsigned)N_WORDS;
    void *arguments[] = {&address, &n};

    LS_TRY(judge(api, "compiling a kernel", api->compile(&module, kernel_ptx)));
    LS_TRY(judge(api, "finding the kernel", api->find(&function, module, "add_one")));
    LS_TRY(judge(api, "starting a kernel",
                 api->launch(function, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL,
                             arguments, NULL)));
    return judge(api, "running a kernel", api->synchronize());
}

static ls_status use_memory(const cuda *api)
{
    uint64_t address = 0;

    LS_TRY(judge(api, "allocating 16 MiB of its memory", api->allocate(&address, GPU_TRY_BYTES)));
    LS_TRY(judge(api, "writing to its memory", api->fill(address, PATTERN, N_WORDS)));
    LS_TRY(expect_words(api, address, PATTERN, "a write"));
    LS_TRY(run_kernel(api, address));
    LS_TRY(expect_words(api, address, PATTERN + 1, "a kernel"));
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
