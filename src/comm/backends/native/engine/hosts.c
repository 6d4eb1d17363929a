/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts.c - finds out which ranks share a host: each rank knows its own neighbours, and an
 * all_gather of all ranks exchanges that. native.c calls it once all links exist; groups opened
 * later use it for their layout.
 */
#include "comm/backends/native/engine/join.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <poll.h>

#define EXCHANGE_STEP_MS 20
#define GROUP_OF_JOIN    (GROUP_ALL - 1)

static void exchange_done(void *self, backend_work *work, ls_status status, const char *text)
{
    ls_status *result = self;

    LS_UNUSED(work);
    if (*result != LS_ETIMEOUT)
        return; // the group was broken before
    *result = status == LS_OK ? LS_OK : ls_fail(status, "%s", text);
}

static void exchange_broken(void *self, const job_cause *cause)
{
    ls_status *result = self;

    *result = ls_fail(cause_status(cause->kind), "%s", cause->text);
}

/* Calls check() in each step, because check() also reports a wait that takes long. */
static bool is_over(const comm_host *engine, struct pollfd *hub)
{
    return engine->check == NULL ? poll(hub, 1, 0) > 0 : engine->check(engine->self) != LS_OK;
}

/* s->host is the exchange's own meanwhile; `engine` knows whether the job goes on. */
static void run_exchange(native_state *s, const comm_host *engine, const comm_boot *boot,
                         backend_work *work, ls_status *result)
{
    struct pollfd hub = {.fd = boot->control_fd, .events = POLLIN};
    int64_t deadline_ms = boot->deadline_ms;
    native_group *g = work->group;

    *result = LS_ETIMEOUT;
    native_backend_ops.start(g, work);
    while (*result == LS_ETIMEOUT && ls_deadline_left(deadline_ms) != 0) {
        if (native_backend_ops.progress(s))
            continue;
        native_backend_ops.wait(s, EXCHANGE_STEP_MS);
        // The end of the job ends the wait.
        if (hub.fd >= 0 && is_over(engine, &hub)) {
            hub.fd = -1;
            deadline_ms = ls_now_ms();
        }
    }
    if (*result == LS_ETIMEOUT)
        native_backend_ops.abort_group(g, LS_ETIMEOUT,
                                       "other ranks did not report which hosts they are on");
    native_backend_ops.abort_group(g, LS_ECANCELED, "broken");
}

// Needed only where hosts have several ranks, but a rank does not know that of other hosts: so it
// is done whenever some rank is not on this host.
ls_status native_exchange_hosts(native_state *s, const comm_boot *boot)
{
    const comm_host *host = s->host;
    ls_status result = LS_OK;
    const comm_host own = {
        .abi = BACKEND_ABI, .self = &result, .done = exchange_done, .broken = exchange_broken};
    group_info info = {.id = GROUP_OF_JOIN, .rank = s->rank, .size = s->size};
    backend_work work = {.source = -1};
    int *members;
    int *names;

    if (s->local == NULL || local_count(s->local) == s->size)
        return LS_OK;
    members = ls_calloc((size_t)s->size, sizeof(*members));
    names = ls_calloc((size_t)s->size, sizeof(*names));
    if (members == NULL || names == NULL) {
        ls_free(members);
        ls_free(names);
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", s->size);
    }
    for (int i = 0; i < s->size; i++)
        members[i] = i;
    info.members = members;
    work.op = (coll){.kind = COLL_ALL_GATHER,
                     .dtype = LS_I32,
                     .src = names + s->rank,
                     .dst = names,
                     .count = 1,
                     .stamp = {.group = info.id,
                               .sequence = 1,
                               .kind = COLL_ALL_GATHER,
                               .dtype = LS_I32,
                               .redop = 255,
                               .root = -1,
                               .count = 1,
                               .site = "joining"}};
    names[s->rank] = local_ranks(s->local)[0];
    s->host = &own;
    result = native_backend_ops.open_group(s, &info, &work.group);
    if (result == LS_OK) {
        run_exchange(s, host, boot, &work, &result);
        native_backend_ops.close_group(work.group);
    }
    s->host = host;
    s->host_names = names; // groups opened from here on have a layout
    ls_free(members);
    return result;
}
