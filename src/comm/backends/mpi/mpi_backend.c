/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_backend.c - opens and closes the MPI backend and its groups, and progresses operations; the
 * engine calls it through lockstep_backend.
 *
 * MPI cannot cancel an operation. Operations under way when their group breaks keep their requests
 * and buffers until the process exits, and MPI is not called again, because it would write to the
 * caller's memory. Then the other groups break as well. MPI is initialized once per process and
 * shared by all joins; it is finalized at exit if no group broke, because MPI_Finalize waits for
 * all ranks.
 */
#include "comm/backends/mpi/mpi_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef OPEN_MPI
#define LIBRARY "mpi:openmpi"
#define ENGINE  "Open MPI"
#define STARTER "Open MPI's mpirun or srun --mpi=pmix"
#else
#define LIBRARY "mpi:mpich"
#define ENGINE  "MPICH"
#define STARTER "lockstep run, MPICH's mpirun or srun --mpi=pmi2"
#endif

#define SLEEP_US           50 /* between tests of requests within the expected time */
#define LONG_SLEEP_US      1000
#define EXPECTED_NS        (10 * INT64_C(1000000)) /* of any operation */
#define EXPECTED_NS_A_BYTE 10
#define CLOSE_PASSES       64 /* MPI sends its pending data while it is called */
#define LAST_PASSES        8  /* to find complete operations when their group breaks */
#define LOST_TEXT                                                                                  \
    "a group broke with operations under way, which " ENGINE                                       \
    " cannot cancel: no group of this job can continue"

static struct {
    bool is_ours; /* MPI_Init was called here */
    bool is_hurt; /* a group broke: MPI_Finalize might wait for lost ranks */
    bool is_lost; /* operations were abandoned under way */
    int n_open;
} library;

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const char *error_text(int code, char text[MPI_MAX_ERROR_STRING])
{
    int n = 0;

    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, MPI_MAX_ERROR_STRING, "error %d", code);
    return text;
}

static ls_status fail_mpi(const comm_host *host, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];

    return comm_host_fail(host, LS_EPEER, "%s: %s: %s", ENGINE, what, error_text(code, text));
}

/* --- opening and closing --- */

static int mpi_probe(const backend_need *need)
{
    if (need->world_size == 1 || need->is_launched)
        return 5;
    (void)comm_host_fail(need->host, LS_EUNSUPPORTED, "%s must be started by %s", ENGINE, STARTER);
    return 0;
}

static void end_library(void)
{
    int is_over = 1;

    if (library.n_open > 0 || library.is_hurt || library.is_lost)
        return;
    if (MPI_Finalized(&is_over) == MPI_SUCCESS && !is_over)
        (void)MPI_Finalize();
}

static ls_status start_library(const comm_host *host)
{
    int is_over = 0;
    int has_begun = 0;
    int level = MPI_THREAD_SINGLE;
    int rc;

    (void)MPI_Finalized(&is_over);
    (void)MPI_Initialized(&has_begun);
    if (is_over || library.is_lost)
        return comm_host_fail(host, LS_EUNSUPPORTED, "%s cannot be used in this process again: %s",
                              ENGINE, is_over ? "it has been finalized" : LOST_TEXT);
    if (has_begun && !library.is_ours) {
        // The program may call MPI at the same time as this backend.
        (void)MPI_Query_thread(&level);
        if (level == MPI_THREAD_MULTIPLE)
            return LS_OK;
        return comm_host_fail(host, LS_EUNSUPPORTED,
                              "the program has started %s without MPI_THREAD_MULTIPLE", ENGINE);
    }
    if (has_begun)
        return LS_OK;
    rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (rc != MPI_SUCCESS)
        return fail_mpi(host, rc, "MPI_Init_thread");
    library.is_ours = true;
    if (atexit(end_library) != 0)
        return comm_host_fail(host, LS_ENOMEM, "no memory to finalize %s at exit", ENGINE);
    if (level < MPI_THREAD_SERIALIZED)
        return comm_host_fail(host, LS_EUNSUPPORTED,
                              "this %s cannot be called from several threads", ENGINE);
    return LS_OK;
}

/* The ranks of the job and of MPI must be the same; the split gives them the job's numbers. */
static ls_status make_world(backend_state *s, const comm_boot *boot)
{
    int size = 0;
    int has_limit = 0;
    int *limit = NULL;
    int rc;

    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != boot->size)
        return comm_host_fail(
            s->host, LS_EUNSUPPORTED,
            "%s was started with %d rank%s, but the job has %d: it must be started by %s", ENGINE,
            size, size == 1 ? "" : "s", boot->size, STARTER);
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    rc = MPI_Comm_split(MPI_COMM_WORLD, 0, boot->rank, &s->world);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_get_attr(s->world, MPI_TAG_UB, (void *)&limit, &has_limit);
    if (rc == MPI_SUCCESS)
        rc = mpi_call_make_ops(s);
    if (rc != MPI_SUCCESS)
        return fail_mpi(s->host, rc, "creating the group of all ranks");
    s->tag_limit = has_limit ? *limit : 32767;
    return LS_OK;
}

static void free_state(backend_state *s)
{
    while (!list_empty(&s->free_jobs)) {
        mpi_job *j = list_entry(s->free_jobs.next, mpi_job, node);

        list_remove(&j->node);
        s->host->free(j->requests);
        s->host->free(j);
    }
    external_close(&s->waker);
    s->host->free(s);
}

static ls_status mpi_open(const comm_boot *boot, const comm_host *host, backend_state **out)
{
    external_waker waker;
    ls_status st = external_open(boot, host, ENGINE, &waker);
    backend_state *s;

    if (st != LS_OK)
        return st;
    s = host->alloc(1, sizeof(*s));
    if (s == NULL) {
        external_close(&waker);
        return comm_host_fail(host, LS_ENOMEM, "no memory for %s", ENGINE);
    }
    s->host = host;
    s->waker = waker;
    s->piece = boot->piece_elements;
    list_init(&s->groups);
    list_init(&s->free_jobs);
    st = start_library(host);
    if (st == LS_OK)
        st = make_world(s, boot);
    if (st != LS_OK) {
        free_state(s);
        return st;
    }
    library.n_open++;
    *out = s;
    return LS_OK;
}

static void mpi_close(backend_state *s, int64_t timeout_ms)
{
    LS_UNUSED(timeout_ms); // nothing here waits
    for (int i = 0; i < CLOSE_PASSES && !library.is_lost; i++) {
        int flag;

        (void)MPI_Iprobe(MPI_ANY_SOURCE, s->tag_limit, s->world, &flag, MPI_STATUS_IGNORE);
    }
    if (!library.is_lost) {
        mpi_call_free_ops(s);
        (void)MPI_Comm_free(&s->world);
    }
    library.n_open--;
    free_state(s);
}

/* --- groups --- */

static int make_comm(const backend_state *s, const group_info *info, MPI_Comm *out)
{
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    int rc = MPI_Comm_group(s->world, &all);

    if (rc == MPI_SUCCESS)
        rc = MPI_Group_incl(all, info->size, info->members, &members);
    // Groups that are created at the same time have different members or different tags.
    if (rc == MPI_SUCCESS)
        rc =
            MPI_Comm_create_group(s->world, members, (int)(info->id % (unsigned)s->tag_limit), out);
    if (members != MPI_GROUP_NULL)
        (void)MPI_Group_free(&members);
    if (all != MPI_GROUP_NULL)
        (void)MPI_Group_free(&all);
    return rc;
}

static ls_status mpi_open_group(backend_state *s, const group_info *info, backend_group **out)
{
    backend_group *g = library.is_lost ? NULL : s->host->alloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return comm_host_fail(s->host, library.is_lost ? LS_EUNSUPPORTED : LS_ENOMEM,
                              "%s: cannot create a group of %d ranks", ENGINE, info->size);
    g->state = s;
    g->info = info;
    list_init(&g->jobs);
    rc = make_comm(s, info, &g->comm);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    if (rc != MPI_SUCCESS) {
        s->host->free(g);
        return fail_mpi(s->host, rc, "creating a group");
    }
    list_append(&s->groups, &g->node);
    *out = g;
    return LS_OK;
}

static void mpi_close_group(backend_group *g)
{
    list_remove(&g->node);
    if (!library.is_lost)
        (void)MPI_Comm_free(&g->comm);
    g->state->host->free(g);
}

static const char *mpi_transport(backend_group *g)
{
    LS_UNUSED(g);
    return "mpi";
}

/* --- works --- */

static mpi_job *take_job(backend_group *g, backend_work *work)
{
    backend_state *s = g->state;
    mpi_job *j;

    if (list_empty(&s->free_jobs)) {
        j = s->host->alloc(1, sizeof(*j));
        if (j == NULL)
            return NULL;
    } else {
        j = list_entry(s->free_jobs.next, mpi_job, node);
        list_remove(&j->node);
    }
    j->group = g;
    j->work = work;
    j->n_requests = 0;
    j->n_done = 0;
    list_append(&g->jobs, &j->node);
    return j;
}

/* MPI has finished the job. */
static void recycle(mpi_job *j)
{
    compose_free(&j->c);
    list_remove(&j->node);
    list_append(&j->group->state->free_jobs, &j->node);
}

/* MPI still uses the job, its requests and its buffers. */
static void abandon(mpi_job *j)
{
    library.is_lost = true;
    list_remove(&j->node);
}

/* Whether all requests are complete; *rc is the error of a failed one. */
static bool is_over(mpi_job *j, MPI_Status *status, int *rc)
{
    int flag = 1;

    *rc = MPI_SUCCESS;
    while (j->n_done < j->n_requests && flag && *rc == MPI_SUCCESS) {
        *rc = MPI_Test(&j->requests[j->n_done], &flag, status);
        if (flag || *rc != MPI_SUCCESS)
            j->n_done++;
    }
    return *rc != MPI_SUCCESS || j->n_done == j->n_requests;
}

static ls_status status_of(int class)
{
    if (class == MPI_ERR_TRUNCATE)
        return LS_EMISMATCH;
    return class == MPI_ERR_NO_MEM ? LS_ENOMEM : LS_EPEER;
}

static void end_failed(mpi_job *j, int rc)
{
    backend_state *s = j->group->state;
    backend_work *work = j->work;
    char text[MPI_MAX_ERROR_STRING + 32];
    char why[MPI_MAX_ERROR_STRING];
    int class = rc;

    (void)MPI_Error_class(rc, &class);
    snprintf(text, sizeof(text), "%s: %s", ENGINE, error_text(rc, why));
    if (j->n_done < j->n_requests)
        abandon(j);
    else
        recycle(j);
    s->host->done(s->host->self, work, status_of(class), text);
}

/* MPI detects messages that are longer than the receive; shorter ones are detected here. */
static void end_receive(mpi_job *j, const MPI_Status *status)
{
    const comm_host *host = j->group->state->host;
    const group_info *info = j->group->info;
    backend_work *work = j->work;
    MPI_Count count = 0;
    char text[160];

    (void)MPI_Get_elements_x(status, mpi_call_type(work->op.dtype), &count);
    work->source = status->MPI_SOURCE;
    recycle(j);
    if ((size_t)count == work->op.count) {
        host->done(host->self, work, LS_OK, NULL);
        return;
    }
    snprintf(text, sizeof(text), "rank %d expects %zu elements from rank %d, but received %lld",
             info->members[info->rank], work->op.count, info->members[work->source],
             (long long)count);
    host->done(host->self, work, LS_EMISMATCH, text);
}

/* False when the job is still under way. */
static bool try_end(mpi_job *j)
{
    const backend_state *s = j->group->state;
    backend_work *work = j->work;
    MPI_Status status;
    int rc;

    if (!is_over(j, &status, &rc))
        return false;
    if (rc != MPI_SUCCESS) {
        end_failed(j, rc);
    } else if (work->op.kind == COLL_RECV) {
        end_receive(j, &status);
    } else {
        compose_finish(&j->c);
        recycle(j);
        s->host->done(s->host->self, work, LS_OK, NULL);
    }
    return true;
}

static void expect(backend_state *s, size_t bytes)
{
    const int64_t end_ns = now_ns() + EXPECTED_NS + (int64_t)bytes * EXPECTED_NS_A_BYTE;

    if (end_ns > atomic_load_explicit(&s->expected_ns, memory_order_relaxed))
        atomic_store_explicit(&s->expected_ns, end_ns, memory_order_relaxed);
}

static void mpi_start(backend_group *g, backend_work *work)
{
    const comm_host *host = g->state->host;
    const bool is_message = coll_is_message(work->op.kind);
    mpi_job *j;
    int rc;

    if (library.is_lost || (is_message && work->op.tag >= g->state->tag_limit)) {
        host->done(host->self, work, library.is_lost ? LS_EPEER : LS_EUNSUPPORTED,
                   library.is_lost ? LOST_TEXT : "the tag is larger than " ENGINE " allows");
        return;
    }
    j = take_job(g, work);
    if (j == NULL) {
        host->done(host->self, work, LS_ENOMEM, "no memory for an operation");
        return;
    }
    expect(g->state, work->op.bytes * (size_t)g->info->size);
    rc = mpi_call_start(j);
    if (rc != MPI_SUCCESS)
        end_failed(j, rc);
    else
        (void)try_end(j);
}

static bool progress_group(backend_group *g)
{
    bool moved = false;

    list_for_each_safe (it, &g->jobs) {
        mpi_job *j = list_entry(it, mpi_job, node);

        moved |= try_end(j);
    }
    return moved;
}

static bool mpi_progress(backend_state *s)
{
    const job_cause loss = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = -1, .text = LOST_TEXT};
    bool moved = false;

    if (library.is_lost) {
        s->host->broken(s->host->self, &loss); // no rank can continue without this one
        return false;
    }
    list_for_each (it, &s->groups)
        moved |= progress_group(list_entry(it, backend_group, node));
    return moved;
}

/* MPI progresses only inside its calls and has no descriptor to poll, so this sleeps shortly. A
 * notification or wake() ends the sleep of the first thread; another thread sleeps to its end. An
 * operation that takes longer than expected waits for a late rank, and is tested less often. */
static void mpi_wait(backend_state *s, int timeout_ms)
{
    const bool is_expected = now_ns() < atomic_load_explicit(&s->expected_ns, memory_order_relaxed);
    const int64_t sleep_us = is_expected ? SLEEP_US : LONG_SLEEP_US;
    const int64_t most_us = (int64_t)timeout_ms * 1000;

    if (external_wait(&s->waker, sleep_us < most_us ? sleep_us : most_us))
        (void)external_drain(&s->waker);
}

static void mpi_wake(backend_state *s)
{
    external_wake(&s->waker);
}

/* Cancels receives and finds operations that are already complete; the rest is abandoned. */
static void mpi_abort_group(backend_group *g, ls_status status, const char *text)
{
    const comm_host *host = g->state->host;

    library.is_hurt |= status != LS_ECANCELED;
    while (!list_empty(&g->jobs)) {
        mpi_job *j = list_entry(g->jobs.next, mpi_job, node);
        backend_work *work = j->work;
        MPI_Status ignored;
        bool has_ended = false;
        int rc;

        if (work->op.kind == COLL_RECV && !library.is_lost)
            (void)MPI_Cancel(&j->requests[0]);
        for (int i = 0; i < LAST_PASSES && !has_ended && !library.is_lost; i++)
            has_ended = is_over(j, &ignored, &rc) && j->n_done == j->n_requests;
        if (has_ended)
            recycle(j);
        else
            abandon(j);
        host->done(host->self, work, status, text);
    }
}

/* MPI's own descriptors are unknown here. */
static void mpi_forked(backend_state *s)
{
    external_close(&s->waker);
}

__attribute__((visibility("default"))) extern const backend_ops lockstep_backend;
const backend_ops lockstep_backend = {
    .abi = BACKEND_ABI,
    .name = LIBRARY,
    .probe = mpi_probe,
    .open = mpi_open,
    .open_group = mpi_open_group,
    .close_group = mpi_close_group,
    .start = mpi_start,
    .progress = mpi_progress,
    .wait = mpi_wait,
    .wake = mpi_wake,
    .abort_group = mpi_abort_group,
    .transport = mpi_transport,
    .close = mpi_close,
    .forked = mpi_forked,
};
