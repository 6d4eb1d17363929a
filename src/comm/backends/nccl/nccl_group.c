/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_group.c - a group's communicator and its operations, for nccl_backend.c. The communicator is
 * created at the first operation, without blocking. Operations of all groups are queued in the
 * order of the calls, one after the other has left the host; a work has ended when its event has
 * happened.
 */
#include "comm/backends/nccl/nccl_backend.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define ASK_EVERY_NS (2 * INT64_C(1000000))
#define TEXT_BYTES   700
#define KEY_BYTES    40
#define ABORT_MS     1000

/* While an operation runs; NCCL learns of failures by its own timeouts, which are seconds. */
#define CHECK_EVERY_NS INT64_C(1000000)

/* The multiprocessors that an operation may take from backward. NCCL_MAX_CTAS, which NCCL reads
 * itself, has precedence. */
#define CTAS_MOST 16

int64_t nccl_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- works --- */

/* The events of a work that was used before may belong to another accelerator. */
static ls_status make_event(accel *a, bool is_timed, accel_event **event)
{
    if (*event != NULL && (*event)->accel == a)
        return LS_OK;
    if (*event != NULL)
        (*event)->accel->ops->event_destroy(*event);
    *event = NULL;
    return a->ops->event_create(a, is_timed, event);
}

static void free_work(const comm_host *host, nccl_work *w)
{
    accel_event *const events[] = {w->start, w->began, w->end};

    for (int i = 0; i < 3; i++) {
        if (events[i] != NULL)
            events[i]->accel->ops->event_destroy(events[i]);
    }
    host->free(w);
}

static nccl_work *take_work(backend_group *g)
{
    nccl_work *w = g->free_works;

    if (w != NULL)
        g->free_works = w->next;
    else
        w = g->state->host->alloc(1, sizeof(*w));
    return w;
}

/* Its calls are over, or NCCL will not go on with them. */
static void give_work(backend_group *g, nccl_work *w)
{
    if (w->copy != NULL)
        w->owner->ops->free(w->owner, w->copy);
    if (w->scaled >= 0 && g->comm != NULL)
        (void)g->state->api->destroy_op(w->scaled, g->comm);
    w->copy = NULL;
    w->work = NULL;
    w->next = g->free_works;
    g->free_works = w;
}

static void append(backend_group *g, nccl_work *w)
{
    nccl_work **at = &g->first;

    while (*at != NULL)
        at = &(*at)->next;
    w->next = NULL;
    *at = w;
    g->state->n_works++;
}

/* The first work has ended. */
static void finish_first(backend_group *g, ls_status status, const char *text)
{
    const comm_host *host = g->state->host;
    nccl_work *w = g->first;
    backend_work *work = w->work;

    g->first = w->next;
    g->state->n_works--;
    give_work(g, w);
    if (work != NULL)
        host->done(host->self, work, status, text);
}

/* --- failures --- */

/* The communicator cannot be used any more: the first work fails, which breaks the group, and the
 * abort then ends all works. Until then NCCL may use their memory. */
static void fail_group(backend_group *g, ls_status status, const char *text)
{
    const comm_host *host = g->state->host;
    backend_work *work = g->first->work;

    g->phase = NCCL_FAILED;
    g->first->work = NULL;
    host->done(host->self, work, status, text);
}

static void fail_nccl(backend_group *g, int result, const char *what)
{
    char text[TEXT_BYTES];

    nccl_explain(g->state->api, g->comm, result, what, text, sizeof(text));
    fail_group(g, result == NCCL_REMOTE_ERROR ? LS_EPEER : LS_ESYSTEM, text);
}

/* A function of the accelerator or of the store has failed; the engine's thread has its text. */
static void fail_here(backend_group *g, ls_status status, const char *what)
{
    char text[TEXT_BYTES];

    (void)snprintf(text, sizeof(text), "NCCL, %s: %s", what, g->state->host->last_error());
    fail_group(g, status, text);
}

/* --- the communicator --- */

static const char *id_key(const backend_group *g, char buf[KEY_BYTES])
{
    (void)snprintf(buf, KEY_BYTES, "nccl/%u/%u", g->info->id, g->n_comms);
    return buf;
}

/* False: it failed, or is not there yet. */
static bool get_id(backend_group *g, nccl_id *id)
{
    const comm_host *host = g->state->host;
    char key[KEY_BYTES];
    void *value = NULL;
    size_t bytes = 0;
    ls_status st;
    int rc;

    if (g->info->rank == 0) {
        rc = g->state->api->get_unique_id(id);
        if (rc != NCCL_SUCCESS) {
            fail_nccl(g, rc, "ncclGetUniqueId");
            return false;
        }
        st = host->publish(host->self, id_key(g, key), id, sizeof(*id));
        if (st != LS_OK)
            fail_here(g, st, "publishing the id of a communicator");
        return st == LS_OK;
    }
    if (nccl_now_ns() < g->next_ask_ns)
        return false;
    st = host->lookup(host->self, id_key(g, key), 0, &value, &bytes);
    g->next_ask_ns = nccl_now_ns() + ASK_EVERY_NS;
    if (st == LS_ETIMEOUT || st == LS_ENOTFOUND)
        return false;
    if (st == LS_OK && bytes != sizeof(*id))
        st = comm_host_fail(host, LS_EPROTO, "an id of %zu bytes", bytes);
    if (st == LS_OK)
        memcpy(id, value, sizeof(*id));
    host->free(value);
    if (st != LS_OK)
        fail_here(g, st, "the id of a communicator");
    return st == LS_OK;
}

static bool connect_group(backend_group *g)
{
    const bool has_ctas = g->state->api->version >= NCCL_CTAS;
    nccl_config config = {.size = sizeof(config),
                          .magic = NCCL_MAGIC,
                          .version = has_ctas ? NCCL_CTAS : NCCL_OLDEST,
                          .blocking = 0,
                          .cga_cluster_size = NCCL_UNDEF,
                          .min_ctas = NCCL_UNDEF,
                          .max_ctas = CTAS_MOST};
    nccl_id id;
    int rc;

    if (!get_id(g, &id))
        return g->phase == NCCL_FAILED;
    nccl_bind(g->owner);
    rc = g->state->api->init_rank(&g->comm, g->info->size, id, g->info->rank, &config);
    g->phase = NCCL_CONNECTING;
    if (rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS)
        fail_nccl(g, rc, "ncclCommInitRankConfig");
    return true;
}

/* What NCCL says about the communicator; a failure ends the first work. */
static int poll_nccl(backend_group *g, const char *what)
{
    int state = NCCL_SUCCESS;
    const int rc = g->state->api->get_async_error(g->comm, &state);

    if (rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS)
        state = rc;
    if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS)
        fail_nccl(g, state, what);
    return state;
}

static bool progress_phase(backend_group *g)
{
    switch (g->phase) {
    case NCCL_ABSENT:
        g->owner = g->first->owner;
        g->phase = NCCL_ASKING;
        return connect_group(g);
    case NCCL_ASKING:
        return connect_group(g);
    case NCCL_CONNECTING:
        if (poll_nccl(g, "connecting the ranks") != NCCL_SUCCESS)
            return g->phase == NCCL_FAILED;
        g->phase = NCCL_READY;
        return true;
    case NCCL_READY:
    case NCCL_FAILED:
        break;
    }
    return false;
}

/* --- operations --- */

/* NCCL has queued the whole operation: its event follows it. */
static bool mark_end(backend_group *g, nccl_work *w)
{
    const ls_status st =
        w->owner->ops->event_record(w->end, accel_queue(w->owner, ACCEL_COMMUNICATION));

    if (st != LS_OK) {
        fail_here(g, st, "the end of an operation");
        return true;
    }
    w->state = NCCL_RUNNING;
    w->work->began = w->began;
    w->work->event = w->end;
    return true;
}

static bool issue(backend_group *g, nccl_work *w)
{
    ls_queue *queue = accel_queue(w->owner, ACCEL_COMMUNICATION);
    ls_status st = w->owner->ops->queue_wait(queue, w->start, "nccl: the work before a collective");
    int rc = NCCL_SUCCESS;

    if (st == LS_OK && w->began != NULL)
        st = w->owner->ops->event_record(w->began, queue);
    if (st == LS_OK)
        rc = nccl_call(w, &st);
    if (st != LS_OK)
        fail_here(g, st, "starting an operation");
    else if (rc == NCCL_IN_PROGRESS)
        w->state = NCCL_ISSUED;
    else if (rc == NCCL_SUCCESS)
        return mark_end(g, w);
    else
        fail_nccl(g, rc, "starting an operation");
    return true;
}

/* The first work of the group that has not left the host; NULL: there is none. */
static nccl_work *first_on_host(const backend_group *g)
{
    nccl_work *w = g->first;

    while (w != NULL && w->state == NCCL_RUNNING)
        w = w->next;
    return w;
}

/* Whether all earlier works, of any group, are in the accelerator's queue. Its order is then that
 * of the calls on every rank: kernels of two groups that wait for each other never end. */
static bool is_next(const nccl_work *w)
{
    for (const backend_group *g = w->group->state->groups; g != NULL; g = g->next) {
        const nccl_work *first = g->phase == NCCL_FAILED ? NULL : first_on_host(g);

        if (first != NULL && first->owner == w->owner && first->number < w->number)
            return false;
    }
    return true;
}

/* Moves one work from state to state; NCCL accepts no call while one is in progress. */
static bool progress_issues(backend_group *g)
{
    nccl_work *w = first_on_host(g);

    if (w == NULL || (w->state == NCCL_QUEUED && !is_next(w)))
        return false;
    if (w->state == NCCL_QUEUED)
        return issue(g, w);
    if (poll_nccl(g, "an operation") != NCCL_SUCCESS)
        return g->phase == NCCL_FAILED;
    return mark_end(g, w);
}

/* Whether NCCL is to be asked again about the communicator of operations that run. */
static bool is_check_due(backend_group *g)
{
    const int64_t now_ns = nccl_now_ns();
    const bool is_due = now_ns >= g->next_ask_ns;

    if (is_due)
        g->next_ask_ns = now_ns + CHECK_EVERY_NS;
    return is_due;
}

static bool progress_end(backend_group *g)
{
    nccl_work *w = g->first;
    bool done = false;
    ls_status st;

    if (w->state != NCCL_RUNNING)
        return false;
    st = w->owner->ops->event_test(w->end, &done);
    if (st != LS_OK) {
        fail_here(g, st, "an operation");
        return true;
    }
    if (!done) {
        if (is_check_due(g))
            (void)poll_nccl(g, "an operation");
        return g->phase == NCCL_FAILED;
    }
    finish_first(g, LS_OK, NULL);
    return true;
}

bool nccl_group_progress(backend_group *g)
{
    bool moved = false;
    bool again = true;

    while (again && g->first != NULL && g->phase != NCCL_FAILED) {
        again = g->phase == NCCL_READY ? progress_issues(g) : progress_phase(g);
        if (g->first != NULL && g->phase == NCCL_READY)
            again |= progress_end(g);
        moved |= again;
    }
    return moved;
}

static ls_status prepare(backend_group *g, nccl_work *w, const coll *op)
{
    accel *a = op->accelerator;

    if (g->owner != NULL && g->owner != a)
        return comm_host_fail(g->state->host, LS_EINVAL,
                              "the group's communicator is of %s, the memory of %s: use another "
                              "group, of ls_comm_split(), for it",
                              g->owner->name, a->name);
    if (make_event(a, false, &w->start) != LS_OK ||
        (op->is_traced && make_event(a, true, &w->began) != LS_OK) ||
        make_event(a, op->is_traced, &w->end) != LS_OK)
        return LS_ENOMEM;
    return a->ops->event_record(w->start, op->queue);
}

void nccl_group_start(backend_group *g, backend_work *work)
{
    const comm_host *host = g->state->host;
    nccl_work *w = take_work(g);
    ls_status st;

    if (w == NULL) {
        host->done(host->self, work, LS_ENOMEM, "no memory for an operation");
        return;
    }
    w->group = g;
    w->work = work;
    w->owner = work->op.accelerator;
    w->state = NCCL_QUEUED;
    w->number = ++g->state->n_started;
    w->scaled = -1;
    st = prepare(g, w, &work->op);
    if (st != LS_OK) {
        give_work(g, w);
        host->done(host->self, work, st, host->last_error());
        return;
    }
    append(g, w);
    (void)nccl_group_progress(g);
}

/* --- the end --- */

void nccl_group_abort(backend_group *g, ls_status status, const char *text)
{
    backend_state *s = g->state;
    const bool is_used = g->comm != NULL && g->first != NULL;

    if (is_used)
        nccl_memory_end(g, true);
    if (is_used && !nccl_end(s, g->owner, g->comm, true, ABORT_MS))
        s->host->log(LS_LOG_WARN, "nccl",
                     "a communicator has not ended %d ms after its abort: NCCL may still write to "
                     "the memory of its last operation",
                     ABORT_MS);
    if (is_used)
        g->comm = NULL;
    // without works the communicator is not aborted: it may still send to ranks in its last one
    if (is_used || g->phase != NCCL_READY)
        g->phase = NCCL_FAILED;
    while (g->first != NULL)
        finish_first(g, status, text);
}

void nccl_group_close(backend_group *g)
{
    const comm_host *host = g->state->host;

    if (g->comm != NULL) {
        nccl_memory_end(g, g->phase == NCCL_FAILED);
        (void)nccl_end(g->state, g->owner, g->comm, g->phase == NCCL_FAILED, 0);
    }
    while (g->free_works != NULL) {
        nccl_work *w = g->free_works;

        g->free_works = w->next;
        free_work(host, w);
    }
    g->comm = NULL;
    g->owner = NULL;
    g->n_comms++;
    if (g->phase != NCCL_FAILED)
        g->phase = NCCL_ABSENT;
}
