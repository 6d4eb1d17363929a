/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_try.c - one all-reduce of NCCL over all GPUs of this host, with functions of CUDA's driver
 * library and of NCCL that are found by name. NCCL writes its warnings to a memory file, whose last
 * one explains a failure. Called by check_sources.c.
 */
#include "diagnose/gpu/nccl_try.h"

#include "base/library.h"
#include "base/nccl_advice.h"
#include "base/text.h"
#include "diagnose/child.h"
#include "diagnose/gpu/gpu_probe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NCCL_INT32 2
#define NCCL_SUM   0

typedef struct cuda_context cuda_context; /* opaque, as the following ones */
typedef struct cuda_stream cuda_stream;
typedef struct nccl_comm nccl_comm;

typedef struct api {
    int (*init)(unsigned flags);
    int (*count)(int *out);
    int (*device)(int *out, int ordinal);
    int (*retain)(cuda_context **out, int device);
    int (*set_current)(cuda_context *context);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*fill)(uint64_t address, unsigned value, size_t n);
    int (*read)(void *to, uint64_t from, size_t bytes);
    int (*stream)(cuda_stream **out, unsigned flags);
    int (*wait)(cuda_stream *stream);
    int (*init_all)(nccl_comm **comms, int n, const int *devices);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, nccl_comm *comm,
                      cuda_stream *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*error_text)(int code);
} api;

typedef struct card {
    cuda_context *context;
    cuda_stream *stream;
    uint64_t address;
} card;

typedef struct libraries {
    const char *cuda;
    const char *nccl;
} libraries;

const char *nccl_fix(const char *message)
{
    return nccl_advice(message,
                       "NCCL_DEBUG=INFO lockstep check --gpu-check   # or: --backend native");
}

static ls_status load(const libraries *from, api *a)
{
    const gpu_symbol cuda[] = {{"cuInit", &a->init, false},
                               {"cuDeviceGetCount", &a->count, false},
                               {"cuDeviceGet", &a->device, false},
                               {"cuDevicePrimaryCtxRetain", &a->retain, false},
                               {"cuCtxSetCurrent", &a->set_current, false},
                               {"cuMemAlloc_v2", &a->allocate, false},
                               {"cuMemsetD32_v2", &a->fill, false},
                               {"cuMemcpyDtoH_v2", &a->read, false},
                               {"cuStreamCreate", &a->stream, false},
                               {"cuStreamSynchronize", &a->wait, false}};
    const gpu_symbol nccl[] = {{"ncclCommInitAll", &a->init_all, false},
                               {"ncclAllReduce", &a->all_reduce, false},
                               {"ncclGroupStart", &a->group_start, false},
                               {"ncclGroupEnd", &a->group_end, false},
                               {"ncclGetErrorString", &a->error_text, false}};

    LS_TRY(gpu_load(from->cuda, cuda, LS_COUNT_OF(cuda)));
    library_prefer(from->nccl);
    return gpu_load(from->nccl, nccl, LS_COUNT_OF(nccl));
}

static ls_status judge_cuda(const char *step, int code)
{
    return code == 0 ? LS_OK : ls_fail(LS_ESYSTEM, "%s fails: CUDA error %d", step, code);
}

static ls_status judge_nccl(const api *a, const char *step, int code)
{
    return code == 0 ? LS_OK : ls_fail(LS_ESYSTEM, "%s fails: %s", step, a->error_text(code));
}

/* Opens card `i`; each of its words is i + 1. */
static ls_status open_card(const api *a, int i, card *out)
{
    int device;

    LS_TRY(judge_cuda("selecting a GPU", a->device(&device, i)));
    LS_TRY(judge_cuda("opening a GPU", a->retain(&out->context, device)));
    LS_TRY(judge_cuda("using a GPU", a->set_current(out->context)));
    LS_TRY(judge_cuda("creating a stream", a->stream(&out->stream, 1)));
    LS_TRY(judge_cuda("allocating 4 MiB",
                      a->allocate(&out->address, NCCL_TRY_WORDS * sizeof(unsigned))));
    return judge_cuda("writing to its memory",
                      a->fill(out->address, (unsigned)i + 1, NCCL_TRY_WORDS));
}

static ls_status reduce(const api *a, card *cards, int n)
{
    nccl_comm *comms[GPU_MOST];
    int ordinals[GPU_MOST];

    for (int i = 0; i < n; i++)
        ordinals[i] = i;
    LS_TRY(judge_nccl(a, "creating a communicator", a->init_all(comms, n, ordinals)));
    LS_TRY(judge_nccl(a, "the all-reduce", a->group_start()));
    for (int i = 0; i < n; i++) {
        void *words = (void *)(uintptr_t)cards[i].address;

        LS_TRY(judge_nccl(a, "the all-reduce",
                          a->all_reduce(words, words, NCCL_TRY_WORDS, NCCL_INT32, NCCL_SUM,
                                        comms[i], cards[i].stream)));
    }
    return judge_nccl(a, "the all-reduce", a->group_end());
}

/* Waits for the card and compares its last word with the sum. */
static ls_status check_card(const api *a, const card *c, int i, unsigned sum)
{
    unsigned word = 0;

    LS_TRY(judge_cuda("using a GPU", a->set_current(c->context)));
    LS_TRY(judge_cuda("the all-reduce", a->wait(c->stream)));
    LS_TRY(
        judge_cuda("reading the result",
                   a->read(&word, c->address + (NCCL_TRY_WORDS - 1) * sizeof(word), sizeof(word))));
    if (word == sum)
        return LS_OK;
    return ls_fail(LS_ESYSTEM, "the all-reduce gives %u on GPU %d instead of %u", word, i, sum);
}

static ls_status run_all(const api *a)
{
    card cards[GPU_MOST];
    int n = 0;

    LS_TRY(judge_cuda("starting CUDA", a->init(0)));
    LS_TRY(judge_cuda("counting the GPUs", a->count(&n)));
    n = n > GPU_MOST ? GPU_MOST : n;
    if (n < 2)
        return ls_fail(LS_EUNSUPPORTED, "CUDA shows %d GPU%s", n, text_plural(n));
    for (int i = 0; i < n; i++)
        LS_TRY(open_card(a, i, &cards[i]));
    LS_TRY(reduce(a, cards, n));
    for (int i = 0; i < n; i++)
        LS_TRY(check_card(a, &cards[i], i, (unsigned)(n * (n + 1) / 2)));
    return LS_OK;
}

/* Adds the last warning in NCCL's log to the error text. */
static ls_status add_warning(int log, ls_status st)
{
    char text[8192];
    const ssize_t n = pread(log, text, sizeof(text) - 1, 0);
    const char *last = NULL;

    text[n > 0 ? n : 0] = '\0';
    for (const char *at = strstr(text, "WARN "); at != NULL; at = strstr(at + 1, "WARN "))
        last = at + strlen("WARN ");
    if (last == NULL)
        return st;
    return ls_fail(st, "%.120s; NCCL: %.*s", ls_last_error(), (int)strcspn(last, "\n"), last);
}

static ls_status try_in_child(void *arg, void *answer)
{
    const int log = memfd_create("nccl", 0);
    char path[64];
    ls_status st;
    api a;

    LS_UNUSED(answer);
    LS_TRY(load(arg, &a));
    text_format(path, sizeof(path), "/proc/self/fd/%d", log);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): a child process with one thread
    if (log < 0 || setenv("NCCL_DEBUG", "WARN", 0) != 0 || setenv("NCCL_DEBUG_FILE", path, 1) != 0)
        return ls_fail_errno("NCCL_DEBUG_FILE");
    st = run_all(&a);
    return st == LS_ESYSTEM ? add_warning(log, st) : st;
}

ls_status nccl_try(const char *cuda, const char *nccl, int64_t limit_ms, nccl_trial *out)
{
    libraries names = {.cuda = cuda, .nccl = nccl};
    char nothing;
    const ls_status st = child_ask("an all-reduce of NCCL over the GPUs", limit_ms, try_in_child,
                                   &names, &nothing, 1);

    *out = (nccl_trial){.fix = nccl_fix("")};
    if (st == LS_OK)
        return st;
    text_printable(out->why, sizeof(out->why), ls_last_error());
    out->fix = nccl_fix(out->why);
    return st;
}
