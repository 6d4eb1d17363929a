/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory that is shared with this host's ranks, and device memory of the backend. One
 * list for the whole process: memory is freed by its address alone, from any thread, while its
 * engine runs or after it has ended.
 *
 * Lock order: list_lock, then engine.mu; the engine takes list_lock without its own.
 */
#include "comm/group/memory.h"

#include "base/alloc.h"
#include "base/log.h"
#include "comm/comm.h"

#include <string.h>

#define PAGE_BYTES 4096

typedef struct allocation {
    list_node node;
    void *memory;
    engine *owner; /* NULL: it has ended, or is not needed to free the memory */
    void *kept;    /* then: what `release` frees */
    void (*release)(void *kept);
} allocation;

static ls_mutex list_lock = {PTHREAD_MUTEX_INITIALIZER};
static list_node allocations = {&allocations, &allocations};

static bool has_own_memory(const engine *e)
{
    return e->parts.backend != NULL && e->parts.ops->alloc != NULL;
}

static ls_status allocate(engine *e, size_t bytes, void **out)
{
    ls_status st;

    if (!has_own_memory(e)) {
        *out = ls_alloc_aligned(PAGE_BYTES, bytes);
        if (*out == NULL)
            return ls_fail(LS_ENOMEM, "no memory for a buffer of %zu bytes", bytes);
        memset(*out, 0, bytes);
        return LS_OK;
    }
    engine_enter(e);
    st = e->parts.ops->alloc(e->parts.backend, bytes, out);
    engine_leave(e);
    return st;
}

static void add(allocation *a)
{
    ls_mutex_lock(&list_lock);
    list_append(&allocations, &a->node);
    ls_mutex_unlock(&list_lock);
}

ls_status ls_comm_alloc(ls_comm *comm, size_t bytes, void **out)
{
    allocation *a;
    engine *e;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    LS_TRY(LS_GIVEN(out));
    e = comm->engine;
    *out = NULL;
    LS_TRY(engine_check_process(e));
    LS_TRY(LS_NEW(&a, 1, "for a buffer of %zu bytes", bytes));
    st = allocate(e, bytes == 0 ? 1 : bytes, &a->memory);
    if (st != LS_OK) {
        ls_free(a);
        return st;
    }
    a->owner = e;
    add(a);
    *out = a->memory;
    return LS_OK;
}

void *comm_alloc_memory(ls_comm *comm, struct accel *owner, size_t bytes)
{
    engine *e = comm->engine;
    allocation *a;
    void *memory;

    // as comm_remove_memory(), which waits for the accelerator before the backend frees the memory
    if (e->is_forked || comm->backend == NULL || e->parts.ops->alloc_device == NULL)
        return NULL;
    a = ls_calloc(1, sizeof(*a));
    if (a == NULL)
        return NULL;
    engine_enter(e);
    memory = e->parts.ops->alloc_device(e->parts.backend, owner, bytes);
    engine_leave(e);
    if (memory == NULL) {
        ls_free(a);
        return NULL;
    }
    a->memory = a->kept = memory;
    a->release = e->parts.ops->free_device;
    add(a);
    return memory;
}

/* Under list_lock: the engine does not end meanwhile. Ended works keep their functions for the
 * thread that has ended them: none may be called under list_lock. */
static void free_owned(engine *e, void *memory)
{
    if (e->is_forked) // it belongs to the parent
        return;
    if (!has_own_memory(e)) {
        ls_free(memory);
        return;
    }
    engine_enter(e);
    e->parts.ops->free(e->parts.backend, memory);
    ls_mutex_unlock(&e->mu);
}

static allocation *take(const void *memory)
{
    list_for_each (it, &allocations) {
        allocation *a = list_entry(it, allocation, node);

        if (a->memory != memory)
            continue;
        list_remove(&a->node);
        return a;
    }
    return NULL;
}

bool comm_free_memory(void *memory)
{
    allocation *a;

    ls_mutex_lock(&list_lock);
    a = take(memory);
    if (a != NULL && a->owner != NULL)
        free_owned(a->owner, memory);
    ls_mutex_unlock(&list_lock);
    if (a != NULL && a->owner == NULL)
        a->release(a->kept);
    ls_free(a);
    return a != NULL;
}

void ls_memory_free(void *memory)
{
    if (memory != NULL && !comm_free_memory(memory))
        ls_log(LS_LOG_ERROR, "comm", "freed memory is not of ls_comm_alloc()");
}

void ls_comm_free(ls_comm *comm, void *memory)
{
    if (comm != NULL)
        ls_memory_free(memory);
}

void memory_keep_all(engine *e)
{
    ls_mutex_lock(&list_lock);
    list_for_each (it, &allocations) {
        allocation *a = list_entry(it, allocation, node);

        if (a->owner != e)
            continue;
        a->owner = NULL;
        a->kept = a->memory;
        a->release = ls_free;
        if (has_own_memory(e))
            a->kept = e->parts.ops->keep(e->parts.backend, a->memory, &a->release);
    }
    ls_mutex_unlock(&list_lock);
}
