/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_fake_stream.c - see nccl_fake_stream.h. Streams of cudahost run calls. The module of the
 * device, which is loaded already, is CUDAHOST_FILE. */
#include "comm/nccl_fake_stream.h"

#include "base/status.h"
#include "devices/gpu_host.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
    void *dst;
    const void *src;
    size_t bytes;
} copy;

/* Of all streams of the process. */
static const gpu_host *host(void)
{
    const gpu_host *state;
    void *module = dlopen(CUDAHOST_FILE, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module == NULL ? NULL : dlsym(module, GPU_HOST_STATE);
    gpu_host_state_fn get;

    if (symbol == NULL)
        abort();
    memcpy(&get, &symbol, sizeof(get)); // C has no conversion between these two
    state = get();
    (void)dlclose(module);
    return state;
}

void fake_select_card(const void *p)
{
    if (host()->device_set(host()->pointer_device(p)) != 0)
        abort();
}

void *fake_alloc_host(void *stream, size_t bytes)
{
    LS_UNUSED(stream);
    return malloc(bytes);
}

void fake_free_host(void *stream, void *block)
{
    LS_UNUSED(stream);
    free(block);
}

bool fake_call(void *stream, void (*fn)(void *arg), void *arg)
{
    return host()->launch_host(stream, fn, arg) == 0;
}

static void run_copy(void *arg)
{
    const copy *c = arg;

    memcpy(c->dst, c->src, c->bytes);
    free(arg);
}

static bool queue_copy(void *stream, void *dst, const void *src, size_t bytes)
{
    copy *c = malloc(sizeof(*c));

    if (c == NULL || dst == NULL || src == NULL) {
        free(c);
        return false;
    }
    *c = (copy){dst, src, bytes};
    if (fake_call(stream, run_copy, c))
        return true;
    free(c);
    return false;
}

bool fake_copy_to_host(void *stream, void *dst, const void *src, size_t bytes)
{
    return queue_copy(stream, dst, host()->address(src, bytes), bytes);
}

bool fake_copy_to_device(void *stream, void *dst, const void *src, size_t bytes)
{
    return queue_copy(stream, host()->address(dst, bytes), src, bytes);
}

static void set(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

void *fake_mark(void *stream)
{
    atomic_bool *mark = calloc(1, sizeof(*mark));

    if (mark != NULL && fake_call(stream, set, mark))
        return mark;
    free(mark);
    return NULL;
}

bool fake_is_past(void *stream, void *mark)
{
    LS_UNUSED(stream);
    return atomic_load((atomic_bool *)mark) || host()->is_lost;
}

void fake_free_mark(void *stream, void *mark)
{
    LS_UNUSED(stream);
    free(mark);
}

void *fake_alloc_device(size_t bytes)
{
    void *memory = NULL;

    return host()->allocate(&memory, bytes) == 0 ? memory : NULL;
}

bool fake_free_device(void *start)
{
    return host()->release(start) == 0;
}

bool fake_has_memory(void *stream, void *start, size_t bytes)
{
    LS_UNUSED(stream);
    return host()->address(start, bytes) != NULL;
}
