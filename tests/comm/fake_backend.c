/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_backend.c - a backend without peers for test_engine.c: operations end, fail or block as the
 * test orders.
 */
#include "comm/fake_backend.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>
#include <unistd.h>

struct backend_group {
    backend_state *state;
};

static void remove_work(backend_state *s, int i)
{
    memmove(&s->works[i], &s->works[i + 1], (size_t)(s->n_works - i - 1) * sizeof(s->works[0]));
    s->n_works--;
}

static void end_work(backend_state *s, int i, ls_status status, const char *text)
{
    backend_work *w = s->works[i];

    remove_work(s, i);
    s->host->done(s->host->self, w, status, text);
}

static int probe(const backend_need *need)
{
    LS_UNUSED(need);
    return 1;
}

static ls_status open_group(backend_state *self, const group_info *info, backend_group **out)
{
    LS_UNUSED(info);
    atomic_store(&self->is_opening, self->opens_never);
    while (self->opens_never) {
        LS_TRY(self->host->check(self->host->self));
        (void)usleep(500);
    }
    *out = ls_calloc(1, sizeof(**out));
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a fake group");
    (*out)->state = self;
    self->n_groups++;
    return LS_OK;
}

static void close_group(backend_group *group)
{
    group->state->n_groups--;
    ls_free(group);
}

static void start(backend_group *group, backend_work *work)
{
    backend_state *s = group->state;

    s->last = work->op;
    s->works[s->n_works++] = work;
    s->started_ns = ls_now_ns();
    if (s->end_in_start > 0) {
        s->end_in_start--;
        end_work(s, s->n_works - 1, LS_OK, NULL);
    }
}

/* The wake-ups before this thread's last progress(): a later one ends its sleep. */
static _Thread_local unsigned n_seen;

static bool progress(backend_state *self)
{
    bool ends = false;

    ls_mutex_lock(&self->mu);
    n_seen = self->n_wakes;
    ls_mutex_unlock(&self->mu);
    atomic_fetch_add(&self->n_progress, 1);
    if (self->jump_at > 0 && self->passes + 1 == self->jump_at)
        *self->clock_ns += self->jump_ns;
    if (self->n_moves > 0) {
        if (--self->n_moves == 0)
            end_work(self, self->n_works - 1, LS_OK, NULL);
        return true;
    }
    if (self->n_works > 0 && self->end_after > 0)
        ends = ++self->passes % self->end_after == 0;
    else if (self->n_works > 0 && self->end_late_ns > 0)
        ends = ls_now_ns() - self->started_ns >= self->end_late_ns;
    if (ends)
        end_work(self, 0, LS_OK, NULL);
    return ends;
}

static void wait_for_wake(backend_state *self, int timeout_ms)
{
    const int most_ms =
        self->sleep_ms > 0 && self->sleep_ms < timeout_ms ? self->sleep_ms : timeout_ms;

    atomic_fetch_add(&self->n_wait, 1);
    if (self->clock_ns != NULL) {
        *self->clock_ns += most_ms * INT64_C(1000000);
        return;
    }
    ls_mutex_lock(&self->mu);
    while (self->n_wakes == n_seen) {
        (void)ls_cond_wait(&self->wakened, &self->mu, ls_deadline_ms(most_ms));
        if (!self->sleeps_on)
            break;
    }
    ls_mutex_unlock(&self->mu);
}

static void wake(backend_state *self)
{
    ls_mutex_lock(&self->mu);
    self->n_wakes++;
    ls_cond_broadcast(&self->wakened);
    ls_mutex_unlock(&self->mu);
}

static void abort_group(backend_group *group, ls_status status, const char *text)
{
    backend_state *s = group->state;

    for (int i = s->n_works - 1; i >= 0; i--) {
        if (s->works[i]->group == group)
            end_work(s, i, status, text);
    }
}

static const char *transport(backend_group *group)
{
    LS_UNUSED(group);
    return "fake";
}

static void close_all(backend_state *self, int64_t timeout_ms)
{
    LS_UNUSED(timeout_ms);
    ls_mutex_destroy(&self->mu);
    ls_cond_destroy(&self->wakened);
}

static const backend_ops fake_ops = {.abi = BACKEND_ABI,
                                     .name = "fake",
                                     .probe = probe,
                                     .open_group = open_group,
                                     .close_group = close_group,
                                     .start = start,
                                     .progress = progress,
                                     .wait = wait_for_wake,
                                     .wake = wake,
                                     .abort_group = abort_group,
                                     .transport = transport,
                                     .close = close_all};

ls_status fake_world(int size, int64_t operation_ms, backend_state *state, ls_comm **out)
{
    engine_parts parts = {.ops = &fake_ops,
                          .control_fd = -1,
                          .size = size,
                          .operation_ms = operation_ms,
                          .has_own_core = true,
                          .late_ms = 10000};
    int *members = ls_calloc((size_t)size, sizeof(*members));
    engine *e;

    *state = (backend_state){.n_works = 0};
    ls_mutex_init(&state->mu);
    ls_cond_init(&state->wakened);
    parts.hosts = ls_calloc((size_t)size, sizeof(*parts.hosts));
    parts.pids = ls_calloc((size_t)size, sizeof(*parts.pids));
    for (int r = 0; r < size; r++) {
        members[r] = r;
        parts.pids[r] = getpid();
    }
    LS_TRY(recorder_open(-1, 0, &parts.recorder));
    LS_TRY(engine_create(&parts, &e));
    e->parts.backend = state;
    state->host = &e->host;
    return group_create(e, NULL, 0, 0, size, members, out);
}

void fake_end(ls_comm *comm, backend_state *state, int i, ls_status status, const char *text)
{
    engine_enter(comm->engine);
    end_work(state, i, status, text);
    engine_leave(comm->engine);
    wake(state);
}
