/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_backend.c - the NCCL backend as the engine sees it, through lockstep_backend: each group is
 * a native group, which runs messages and operations on host memory, with a communicator of NCCL
 * for collectives on device memory (nccl_group.c). Operations of the two kinds do not wait for each
 * other.
 */
#include "comm/backends/nccl/nccl_backend.h"

#include <unistd.h>

#define CLOSE_MS 3000 /* for communicators whose accelerator is closed */

static int nccl_probe(const backend_need *need)
{
    const nccl_api *api = NULL;

    return nccl_load(need->host, &api) == LS_OK ? 5 : 0;
}

static void close_listeners(const comm_boot *boot)
{
    if (boot->local_fd >= 0)
        (void)close(boot->local_fd);
    if (boot->listen_fd >= 0)
        (void)close(boot->listen_fd);
}

static ls_status nccl_open(const comm_boot *boot, const comm_host *host, backend_state **out)
{
    backend_state *s = host->alloc(1, sizeof(*s));
    ls_status st;

    if (s == NULL) {
        close_listeners(boot);
        return comm_host_fail(host, LS_ENOMEM, "no memory for the NCCL backend");
    }
    s->host = host;
    st = nccl_load(host, &s->api);
    if (st == LS_OK)
        st = host->native->open(boot, host, &s->native);
    else
        close_listeners(boot);
    if (st != LS_OK) {
        host->free(s);
        return st;
    }
    *out = s;
    return LS_OK;
}

static void nccl_close(backend_state *s, int64_t timeout_ms)
{
    const comm_host *host = s->host;

    nccl_endings_join(s, NULL, timeout_ms);
    host->native->close(s->native, timeout_ms);
    host->free(s);
}

static ls_status nccl_open_group(backend_state *s, const group_info *info, backend_group **out)
{
    backend_group *g = s->host->alloc(1, sizeof(*g));
    ls_status st;

    if (g == NULL)
        return comm_host_fail(s->host, LS_ENOMEM, "no memory for a group of %d ranks", info->size);
    st = s->host->native->open_group(s->native, info, &g->native);
    if (st != LS_OK) {
        s->host->free(g);
        return st;
    }
    g->state = s;
    g->info = info;
    g->next = s->groups;
    s->groups = g;
    *out = g;
    return LS_OK;
}

static void nccl_close_group(backend_group *g)
{
    backend_state *s = g->state;
    backend_group **at = &s->groups;

    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    nccl_group_close(g);
    s->host->native->close_group(g->native);
    s->host->free(g);
}

/* Messages have tags, and receivers may accept any sender: NCCL has neither, and no bitwise
 * reductions. */
static bool nccl_takes_device(const backend_group *g, const coll *op)
{
    LS_UNUSED(g);
    return !coll_is_message(op->kind) && op->redop < LS_BAND;
}

/* Communicators of closed groups may still be ending. */
static void nccl_forget_device(backend_state *s, accel *owner)
{
    for (backend_group *g = s->groups; g != NULL; g = g->next) {
        if (g->owner == owner)
            nccl_group_close(g);
    }
    nccl_endings_join(s, owner, CLOSE_MS);
}

static void nccl_start(backend_group *g, backend_work *work)
{
    if (work->op.accelerator != NULL)
        nccl_group_start(g, work);
    else
        g->state->host->native->start(g->native, work);
}

static bool nccl_progress(backend_state *s)
{
    bool moved = s->host->native->progress(s->native);

    for (backend_group *g = s->groups; g != NULL; g = g->next)
        moved |= nccl_group_progress(g);
    return moved;
}

static void nccl_spin_wait(backend_group *g, core_use use, const backend_counter *others)
{
    if (g->state->n_works == 0)
        g->state->host->native->spin_wait(g->native, use, others);
}

static bool nccl_is_arriving(const backend_group *g, int member)
{
    return g->state->host->native->is_arriving(g->native, member);
}

static bool nccl_is_gone(const backend_group *g, int member, bool for_messages)
{
    return g->state->host->native->is_gone(g->native, member, for_messages);
}

static void nccl_wait(backend_state *s, int timeout_ms)
{
    s->host->native->wait(s->native, timeout_ms);
}

static bool nccl_polls(const backend_state *s)
{
    return s->n_works > 0;
}

static void nccl_wake(backend_state *s)
{
    s->host->native->wake(s->native);
}

static void nccl_abort_group(backend_group *g, ls_status status, const char *text)
{
    nccl_group_abort(g, status, text);
    g->state->host->native->abort_group(g->native, status, text);
}

static ls_status nccl_alloc(backend_state *s, size_t bytes, void **out)
{
    return s->host->native->alloc(s->native, bytes, out);
}

static void *nccl_keep(backend_state *s, void *memory, void (**release)(void *kept))
{
    return s->host->native->keep(s->native, memory, release);
}

static void nccl_free(backend_state *s, void *memory)
{
    s->host->native->free(s->native, memory);
}

static const char *nccl_transport(backend_group *g)
{
    return g->state->host->native->transport(g->native);
}

static void nccl_forked(backend_state *s)
{
    s->host->native->forked(s->native);
}

__attribute__((visibility("default"))) const backend_ops lockstep_backend = {
    .abi = BACKEND_ABI,
    .name = "nccl",
    .compares_calls = false,
    .takes_device = nccl_takes_device,
    .forget_device = nccl_forget_device,
    .add_memory = nccl_memory_add,
    .remove_memory = nccl_memory_remove,
    .alloc_device = nccl_memory_alloc,
    .free_device = nccl_memory_free,
    .probe = nccl_probe,
    .open = nccl_open,
    .open_group = nccl_open_group,
    .close_group = nccl_close_group,
    .start = nccl_start,
    .progress = nccl_progress,
    .spin_wait = nccl_spin_wait,
    .polls = nccl_polls,
    .is_arriving = nccl_is_arriving,
    .is_gone = nccl_is_gone,
    .wait = nccl_wait,
    .wake = nccl_wake,
    .abort_group = nccl_abort_group,
    .alloc = nccl_alloc,
    .free = nccl_free,
    .keep = nccl_keep,
    .transport = nccl_transport,
    .close = nccl_close,
    .forked = nccl_forked,
};
