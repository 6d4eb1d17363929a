/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_memory.c - device memory that the operations of a group use often: allocated with
 * ncclMemAlloc() and registered with ncclCommRegister() of NCCL 2.19, so that operations on it may
 * do without NCCL's own buffers. Memory of cudaMalloc() can be registered, too, but NCCL makes less
 * of it: not for NVLink SHARP, and from 2.24 on not between the cards of a host. A registration
 * ends before the memory and before the communicator. nccl_group.c and nccl_backend.c call it,
 * under the engine's lock; the group makes sure that all ranks register or none.
 */
#include "comm/backends/nccl/nccl_backend.h"

void *nccl_memory_alloc(backend_state *s, accel *owner, size_t bytes)
{
    void *memory = NULL;
    int rc;

    if (s->api->alloc_memory == NULL || s->api->free_memory == NULL)
        return NULL;
    nccl_bind(owner);
    rc = s->api->alloc_memory(&memory, bytes);
    s->host->log(LS_LOG_DEBUG, "nccl", "ncclMemAlloc of %zu bytes: %s", bytes,
                 s->api->error_string(rc));
    return rc == NCCL_SUCCESS ? memory : NULL;
}

void nccl_memory_free(void *start)
{
    (void)nccl_loaded()->free_memory(start);
}

bool nccl_memory_add(backend_group *g, accel *owner, void *start, size_t bytes)
{
    const backend_state *s = g->state;
    nccl_memory *m;
    int rc;

    if (s->api->register_memory == NULL || g->phase != NCCL_READY || g->owner != owner)
        return false;
    m = s->host->alloc(1, sizeof(*m));
    if (m == NULL)
        return false;
    *m = (nccl_memory){.next = g->memory, .start = start};
    nccl_bind(owner);
    rc = s->api->register_memory(g->comm, start, bytes, &m->handle);
    s->host->log(LS_LOG_DEBUG, "nccl", "ncclCommRegister of %zu bytes: %s", bytes,
                 s->api->error_string(rc));
    if (rc != NCCL_SUCCESS) {
        s->host->free(m);
        return false;
    }
    g->memory = m;
    return true;
}

/* Takes the first of the list. */
static void end_first(backend_group *g, nccl_memory **at, bool is_aborted)
{
    const backend_state *s = g->state;
    nccl_memory *m = *at;
    int rc = NCCL_SUCCESS;

    *at = m->next;
    nccl_bind(g->owner);
    if (!is_aborted)
        rc = s->api->deregister_memory(g->comm, m->handle);
    if (rc != NCCL_SUCCESS)
        s->host->log(LS_LOG_DEBUG, "nccl", "ncclCommDeregister: %s", s->api->error_string(rc));
    s->host->free(m);
}

void nccl_memory_remove(backend_group *g, const void *start)
{
    nccl_memory **at = &g->memory;

    while (*at != NULL && (*at)->start != start)
        at = &(*at)->next;
    if (*at != NULL)
        end_first(g, at, false);
}

void nccl_memory_end(backend_group *g, bool is_aborted)
{
    while (g->memory != NULL)
        end_first(g, &g->memory, is_aborted);
}
