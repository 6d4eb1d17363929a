/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - starts and ends operations and breaks groups; the public calls (ops.c, group.c) enter
 * here. A work ends exactly once; all state is under the engine's lock, except aborts.
 */
#include "comm/engine.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compute/accel.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/check.h"
#include "comm/comm.h"
#include "comm/device/accel_use.h"
#include "comm/device/staged.h"
#include "comm/group/meet.h"
#include "comm/group/memory.h"
#include "comm/group/parts.h"
#include "comm/group/stack.h"

#include <poll.h>
#include <string.h>

#define CLOSE_MS       5000 /* for the delivery of pending sends */
#define HUB_MS         1000 /* how long rank 0's own hub waits for the other ranks to leave */
#define HOST_KEY_BYTES 128

/* Operations up to this size are recorded after their start, while the other ranks answer, and
 * their end time is one that spin_wait() has read. */
#define SMALL_BYTES 8192

/* --- the host table of backends --- */

/* The cause that other ranks receive for a failure of this rank's backend. */
static job_cause cause_of_failure(const engine *e, uint32_t group, ls_status status,
                                  const char *text)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = group, .rank = e->parts.rank};

    if (text == NULL || *text == '\0')
        text = ls_status_text(status);
    if (status == LS_EMISMATCH || status == LS_EPEER) {
        cause.kind = status == LS_EMISMATCH ? CAUSE_MISMATCH : CAUSE_FAULT;
        cause.rank = -1;
        text_format(cause.text, sizeof(cause.text), "%s", text);
    } else {
        text_format(cause.text, sizeof(cause.text), "rank %d: %s", e->parts.rank, text);
    }
    return cause;
}

/* A failed work breaks its group, because message numbers are not reliable after it. */
static void host_done(void *self, backend_work *b, ls_status status, const char *text)
{
    engine *e = self;
    ls_work *w = b->owner;
    ls_comm *comm = w->comm;
    job_cause cause;

    if (b != &w->b) {
        staged_host_done(w, status, text);
        return;
    }
    if (status == LS_OK || comm->status != LS_OK) {
        engine_end_work(e, w, status == LS_OK ? LS_OK : comm->status);
        return;
    }
    if (comm->calls != NULL) // the hub may find that another rank has called a different operation
        calls_send(comm->calls, e->parts.control, ls_now_ns());
    cause = cause_of_failure(e, comm->info.id, status, text);
    w->phase = WORK_FAILED;
    engine_suspect(e, comm, &cause, status);
}

static void host_broken(void *self, const job_cause *cause)
{
    engine *e = self;
    const ls_status status = cause_status(cause->kind);

    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        if (cause->group == GROUP_ALL || cause->group == comm->info.id)
            engine_suspect(e, comm, cause, status);
    }
}

static ls_status host_check(void *self)
{
    engine *e = self;

    engine_serve_aborts(e);
    watch_poll_hub(e, false);
    if (e->parts.control != NULL)
        (void)control_watch(e->parts.control);
    return watch_failure(e);
}

static int64_t host_now_ns(void *self)
{
    engine *e = self;

    e->seen_ns = ls_ticks_now_ns(&e->ticks);
    return e->seen_ns;
}

static backend_bytes *host_received(void *self, int rank)
{
    const engine *e = self;

    return recorder_received(e->parts.recorder, rank);
}

static const char *host_key(const engine *e, const char *key, char buf[HOST_KEY_BYTES])
{
    return text_format(buf, HOST_KEY_BYTES, "%sbackend/%s", e->parts.scope, key);
}

static ls_status host_publish(void *self, const char *key, const void *value, size_t bytes)
{
    const engine *e = self;
    char full[HOST_KEY_BYTES];

    if (e->parts.control == NULL)
        return ls_fail(LS_EPEER, "the connection to the job's store is closed");
    return ls_store_set(control_store(e->parts.control), host_key(e, key, full), value, bytes);
}

static ls_status host_lookup(void *self, const char *key, int64_t timeout_ms, void **value,
                             size_t *bytes)
{
    const engine *e = self;
    char full[HOST_KEY_BYTES];

    if (e->parts.control == NULL)
        return ls_fail(LS_EPEER, "the connection to the job's store is closed");
    return ls_store_get(control_store(e->parts.control), host_key(e, key, full), timeout_ms, value,
                        bytes);
}

static void set_host(engine *e)
{
    e->host = (comm_host){.abi = BACKEND_ABI,
                          .self = e,
                          .done = host_done,
                          .broken = host_broken,
                          .vfail = ls_vfail,
                          .log = ls_log,
                          .alloc = ls_calloc,
                          .free = ls_free,
                          .check = host_check,
                          .publish = host_publish,
                          .lookup = host_lookup,
                          .now_ns = host_now_ns,
                          .reduce = reduce_tree,
                          .received = host_received,
                          .last_error = ls_last_error,
                          .native = &native_backend_ops};
}

/* --- creation --- */

void engine_free_parts(engine_parts *p)
{
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    if (p->backend != NULL)
        p->ops->close(p->backend, CLOSE_MS);
    control_close(p->control);
    hub_thread_stop(p->hub, HUB_MS);
    recorder_close(p->recorder);
    file_close(&p->control_fd);
    ls_free(p->hosts);
    ls_free(p->pids);
    join_release(p->join);
    ls_error_restore(kept);
}

ls_status engine_create(const engine_parts *parts, engine **out)
{
    engine *e = ls_calloc(1, sizeof(*e));

    if (e != NULL)
        e->left_ns = ls_calloc((size_t)parts->size, sizeof(*e->left_ns));
    if (e == NULL || e->left_ns == NULL) {
        ls_free(e);
        return ls_fail(LS_ENOMEM, "no memory for the engine of rank %d", parts->rank);
    }
    e->parts = *parts;
    ls_mutex_init(&e->mu);
    ls_mutex_init(&e->abort_mu);
    list_init(&e->groups);
    list_init(&e->free_works);
    list_init(&e->barriers);
    list_init(&e->openings);
    list_init(&e->ended);
    set_host(e);
    ls_ticks_init(&e->ticks);
    drive_init(e);
    e->next_watch_ns = INT64_MAX;
    forked_add(e);
    *out = e;
    return LS_OK;
}

/* A spinning driver holds `mu` most of the time; the counter makes it yield the lock. */
void engine_enter(engine *e)
{
    if (ls_mutex_trylock(&e->mu))
        return;
    atomic_fetch_add_explicit(&e->n_entering, 1, memory_order_relaxed);
    ls_mutex_lock(&e->mu);
    atomic_fetch_sub_explicit(&e->n_entering, 1, memory_order_relaxed);
}

void engine_leave(engine *e)
{
    ls_mutex_unlock(&e->mu);
}

ls_comm *engine_group(engine *e, uint32_t id)
{
    list_for_each (it, &e->groups) {
        ls_comm *comm = list_entry(it, ls_comm, node);

        if (comm->info.id == id)
            return comm;
    }
    return NULL;
}

/* --- works --- */

static ls_work *take_work(engine *e)
{
    ls_work *w;

    if (list_empty(&e->free_works)) {
        w = ls_calloc(1, sizeof(*w));
        if (w != NULL) {
            list_init(&w->node);
            list_init(&w->handle);
        }
        return w;
    }
    w = list_entry(e->free_works.next, ls_work, node);
    list_remove(&w->node);
    return w;
}

void engine_free_work(engine *e, ls_work *w)
{
    list_remove(&w->handle);
    list_append(&e->free_works, &w->node);
}

/* The caller's count arrays are valid during the call only. */
static ls_status copy_counts(ls_work *w, int size)
{
    const size_t n = (size_t)size;
    coll *op = &w->b.op;

    if (op->src_counts == NULL && op->dst_counts == NULL)
        return LS_OK;
    if (w->counts_capacity < 2 * n) {
        LS_TRY(LS_RESIZE(&w->counts, 2 * n, "for the counts of %d ranks", size));
        w->counts_capacity = 2 * n;
    }
    if (op->src_counts != NULL)
        op->src_counts = memcpy(w->counts, op->src_counts, n * sizeof(*w->counts));
    if (op->dst_counts != NULL)
        op->dst_counts = memcpy(w->counts + n, op->dst_counts, n * sizeof(*w->counts));
    return LS_OK;
}

/* In place where other ranks read and write every part: src is copied. */
static ls_status copy_source(ls_work *w, const ls_comm *comm)
{
    coll *op = &w->b.op;
    coll_side src;
    size_t bytes;

    if (!coll_is_pairwise(op->kind) || op->src != op->dst || comm->backend == NULL ||
        op->accelerator != NULL)
        return LS_OK;
    src = check_src_side(op, comm->info.rank, comm->info.size);
    bytes = check_side_bytes(op, &src);
    if (bytes == 0)
        return LS_OK;
    w->bounce = ls_alloc_aligned(64, bytes);
    if (w->bounce == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %s in place of %zu bytes", coll_name(op->kind),
                       bytes);
    op->src = memcpy(w->bounce, op->src, bytes);
    return LS_OK;
}

/* Messages have numbers of their own, so their order relative to collectives does not matter. */
static ls_status number_message(ls_comm *comm, coll *op)
{
    const message_count key = {.is_send = op->kind == COLL_SEND, .peer = op->root, .tag = op->tag};

    return message_counts_next(&comm->messages, &key, &op->stamp.sequence);
}

/* Of the operations that this thread starts. */
static _Thread_local char own_site[STAMP_SITE_BYTES];

void ls_comm_set_site(const char *text)
{
    text_printable(own_site, sizeof(own_site), text != NULL ? text : "");
}

/* n: of collectives, how many numbers the operation takes. */
static ls_status number_and_stamp(ls_comm *comm, coll *op, uint64_t n, const void *site)
{
    const bool is_message = coll_is_message(op->kind);
    op_stamp *s = &op->stamp;

    s->group = comm->info.id;
    if (is_message)
        LS_TRY(number_message(comm, op));
    else
        s->sequence = comm->sequence + 1;
    comm->sequence += is_message ? 0 : n;
    if (comm->label[0] != '\0')
        memcpy(s->site, comm->label, sizeof(s->site));
    else if (own_site[0] != '\0')
        memcpy(s->site, own_site, sizeof(s->site));
    else
        memcpy(s->site, site_text(&comm->engine->sites, site), sizeof(s->site));
    comm->label[0] = '\0';
    return LS_OK;
}

/* Field by field: copying or clearing the whole struct takes longer than the rest. */
static void fill_op(const ls_comm *comm, const coll_call *call, coll *op)
{
    op->kind = call->kind;
    op->dtype = call->dtype;
    op->redop = call->redop;
    op->divisor = call->divisor != 0 ? call->divisor : comm->info.size;
    op->root = call->root;
    op->tag = call->tag;
    op->src = call->src;
    op->dst = call->dst;
    op->count = call->count;
    op->src_counts = call->src_counts;
    op->dst_counts = call->dst_counts;
    op->queue = comm->queue;
    op->is_traced = comm->engine->parts.is_traced;
}

/* Everything that can fail before the operation gets its number. */
static ls_status prepare_work(ls_comm *comm, const coll_call *call, ls_work *w, uint64_t *n_numbers)
{
    coll *op = &w->b.op;

    *n_numbers = 1;
    if (call->src_parts != NULL || call->dst_parts != NULL)
        LS_TRY(ls_context(parts_join(w, call, comm->info.rank, comm->info.size), "%s",
                          coll_name(call->kind)));
    LS_TRY(check_coll(op, comm->info.rank, comm->info.size));
    if (op->accelerator != NULL && op->queue == NULL)
        op->queue = accel_queue(op->accelerator, ACCEL_COMPUTE);
    if (op->accelerator != NULL && op->queue->accel != op->accelerator)
        return ls_fail(LS_EINVAL, "%s: the memory is of %s, the queue of ls_comm_set_queue() of %s",
                       coll_name(op->kind), op->accelerator->name, op->queue->accel->name);
    if (op->accelerator != NULL)
        LS_TRY(accel_use_begin(comm->engine, op->accelerator));
    LS_TRY(copy_counts(w, comm->info.size));
    LS_TRY(copy_source(w, comm));
    return staged_concerns(comm, op) ? staged_attach(comm, w, n_numbers) : LS_OK;
}

/* A work that was not started. */
static void drop_work(engine *e, ls_work *w)
{
    if (w->staged != NULL)
        staged_detach(w);
    if (w->part_block != NULL)
        parts_end(w, LS_ECANCELED);
    ls_free(w->bounce);
    w->bounce = NULL;
    engine_free_work(e, w);
}

static ls_status begin_work(ls_comm *comm, const coll_call *call, const void *site, ls_work **out)
{
    engine *e = comm->engine;
    ls_work *w = take_work(e);
    uint64_t n_numbers;
    coll *op;
    ls_status st;

    if (w == NULL)
        return ls_fail(LS_ENOMEM, "no memory for an operation");
    op = &w->b.op;
    fill_op(comm, call, op);
    w->b.group = comm->backend;
    w->b.state = NULL;
    w->b.source = -1;
    w->b.awaited = -1;
    w->b.event = NULL;
    w->b.began = NULL;
    w->b.owner = w;
    w->engine = e;
    w->comm = comm;
    w->phase = WORK_RUNNING;
    w->status = LS_OK;
    w->is_held = false;
    w->is_detached = false;
    w->waits_for_event = false;
    w->end_fn = NULL;
    w->is_reported = false;
    w->left_since_ns = 0;
    w->timeout_ms = comm->timeout_ms;
    st = prepare_work(comm, call, w, &n_numbers);
    if (st == LS_OK)
        st = number_and_stamp(comm, op, n_numbers, site);
    if (st != LS_OK) {
        drop_work(e, w);
        return st;
    }
    w->record = 0;
    if (!coll_is_message(op->kind)) {
        if (comm->calls != NULL)
            calls_note(comm->calls, &op->stamp);
        // Without data the ranks still compare their stamps, which name the operation called.
        if (op->src_counts == NULL && op->dst_counts == NULL && op->count == 0)
            op->kind = COLL_BARRIER;
    }
    list_append(&comm->works, &w->node);
    *out = w;
    return LS_OK;
}

/* A copy, or a division of one contribution. */
void engine_compute_alone(const coll *op)
{
    const coll_side dst = check_dst_side(op, 0, 1);
    const size_t bytes = check_side_bytes(op, &dst);
    const reduce_operand own = {.data = op->src, .n_ranks = 1};

    if (op->kind == COLL_ALL_REDUCE && op->redop == LS_AVG && op->divisor != 1)
        reduce_tree(op->dst, &own, 1, op->count, op->dtype, op->redop, true, op->divisor);
    else if (bytes > 0 && op->src != op->dst)
        memmove(op->dst, op->src, bytes);
}

static void record_start(engine *e, ls_work *w, int64_t now_ns)
{
    w->start_ns = now_ns;
    w->record = recorder_begin(e->parts.recorder, &w->b.op.stamp, w->b.op.payload, now_ns);
}

static void start_work(engine *e, ls_comm *comm, ls_work *w)
{
    if (comm->backend == NULL && w->staged == NULL) {
        engine_compute_alone(&w->b.op);
        engine_end_work(e, w, LS_OK);
        return;
    }
    if (w->b.op.bytes > SMALL_BYTES)
        record_start(e, w, ls_ticks_now_ns(&e->ticks));
    if (w->b.op.accelerator != NULL)
        e->moved_ns = ls_now_ns();
    if (w->staged != NULL)
        staged_start(w);
    else
        e->parts.ops->start(comm->backend, &w->b);
    if (w->phase == WORK_ENDED)
        return;
    if (w->record == 0)
        record_start(e, w, ls_ticks_now_ns(&e->ticks));
    watch_start(e, w);
}

ls_status engine_check_process(const engine *e)
{
    if (e->is_forked)
        return ls_fail(LS_EINVAL, "this process was forked from rank %d", e->parts.rank);
    return LS_OK;
}

static ls_status check_usable(const ls_comm *comm)
{
    if (comm->engine->is_forked)
        return ls_fail(LS_EINVAL, "this process was forked from rank %d, whose group it cannot use",
                       comm->engine->parts.rank);
    if (comm->status != LS_OK)
        return ls_fail(comm->status, "%s", comm->text);
    return LS_OK;
}

/* Also reads notifications: operations that end at once never wait for them. */
static void send_calls(engine *e, ls_comm *comm)
{
    const int64_t now_ns = ls_now_ns();

    if (now_ns < calls_next_ns(comm->calls))
        return;
    calls_send(comm->calls, e->parts.control, now_ns);
    watch_poll_hub(e, true);
}

/* Under the lock; returns a handle of the work or waits for its end. */
static ls_status run_locked(ls_comm *comm, const coll_call *call, const void *site, bool is_waited,
                            ls_work **out)
{
    engine *e = comm->engine;
    ls_work *w = NULL;
    ls_status st;

    if (comm->calls != NULL)
        send_calls(e, comm);
    st = check_usable(comm);
    if (st == LS_OK)
        st = begin_work(comm, call, site, &w);
    if (w == NULL)
        return st;
    start_work(e, comm, w);
    if (out != NULL) {
        list_append(&comm->handles, &w->handle);
        *out = w;
        if (w->phase == WORK_ENDED || is_waited)
            return LS_OK;
        w->is_held = true;
        e->n_held++;
        drive_pass(e); // the other ranks may have started it already
        drive_hand_over(e);
        return LS_OK;
    }
    ending_enter(comm);
    if (w->phase != WORK_ENDED)
        drive_spin_wait(e, w, w->start_ns);
    if (w->phase != WORK_ENDED)
        (void)drive_until(e, w, -1);
    ending_leave(e, comm);
    st = w->status;
    engine_free_work(e, w);
    return st == LS_OK ? LS_OK : ls_fail(st, "%s", comm->text);
}

ls_status engine_run(ls_comm *comm, const coll_call *call, const void *site, bool is_waited,
                     ls_work **out)
{
    engine *e = comm->engine;
    ls_status st;

    engine_enter(e);
    st = run_locked(comm, call, site, is_waited, out);
    engine_leave(e);
    return st;
}

/* The other end of a message, or the rank that a collective waited for last, as a world rank. */
static int peer_of(const ls_work *w)
{
    const coll *op = &w->b.op;
    const bool is_message = coll_is_message(op->kind);
    const int peer = op->root == LS_ANY_SOURCE ? w->b.source : op->root;

    if (!is_message)
        return w->b.awaited;
    return peer < 0 ? -1 : w->comm->members[peer];
}

void comm_phase(ls_comm *comm, const char *name, int64_t start_ns, int64_t end_ns)
{
    engine_enter(comm->engine);
    recorder_phase(comm->engine->parts.recorder, name, start_ns, end_ns);
    engine_leave(comm->engine);
}

void comm_activity(ls_comm *comm, const char *text)
{
    engine_enter(comm->engine);
    recorder_set_activity(comm->engine->parts.recorder, text != NULL ? text : "");
    engine_leave(comm->engine);
}

bool comm_is_leaving(const ls_comm *comm)
{
    return recorder_is_leaving(comm->engine->parts.recorder);
}

ls_status comm_operations(const ls_comm *comm, recorder_entry *out, int max, int *n)
{
    return recorder_read(recorder_fd(comm->engine->parts.recorder), out, max, n);
}

void comm_progress(ls_comm *comm, const recorder_progress *progress)
{
    engine_enter(comm->engine);
    recorder_set_progress(comm->engine->parts.recorder, progress);
    engine_leave(comm->engine);
}

/* With --trace. Both events have happened, so nothing is waited for. */
static void record_device_time(engine *e, const ls_work *w)
{
    int64_t start_ns;
    int64_t end_ns;

    if (w->b.began == NULL || w->b.event == NULL)
        return;
    if (accel_event_ns(w->b.began, &start_ns) == LS_OK &&
        accel_event_ns(w->b.event, &end_ns) == LS_OK)
        recorder_device_time(e->parts.recorder, w->record, start_ns, end_ns);
    else
        ls_log(LS_LOG_DEBUG, "comm", "no device times of an operation: %s", ls_last_error());
}

void engine_end_work(engine *e, ls_work *w, ls_status status)
{
    LS_ASSERT(w->phase != WORK_ENDED);
    if (w->is_reported && status == LS_OK)
        watch_arrived(e, w);
    w->end_ns =
        e->seen_ns != 0 && w->b.op.bytes <= SMALL_BYTES ? e->seen_ns : ls_ticks_now_ns(&e->ticks);
    if (w->record == 0)
        record_start(e, w, w->end_ns);
    if (status == LS_OK)
        record_device_time(e, w);
    recorder_end(e->parts.recorder, w->record, status, peer_of(w), w->end_ns);
    w->phase = WORK_ENDED;
    w->status = status;
    list_remove(&w->node);
    if (w->staged != NULL)
        staged_detach(w);
    if (w->part_block != NULL)
        parts_end(w, status);
    ls_free(w->bounce);
    w->bounce = NULL;
    if (w->is_held || w->is_detached)
        e->n_held--;
    if (w->end_fn != NULL) {
        callback_owe(e, w);
        drive_call_soon(e);
    } else if (w->is_detached) {
        engine_free_work(e, w);
    }
    if (e->n_waiting > 0)
        ls_cond_broadcast(&e->changed);
}

/* --- breaking --- */

void engine_break(engine *e, ls_comm *comm, const job_cause *cause, ls_status status, bool report)
{
    if (comm->status != LS_OK)
        return;
    comm->status = status;
    comm->has_suspect = false;
    text_format(comm->text, sizeof(comm->text), "%s", cause->text);
    recorder_set_cause(e->parts.recorder, cause, e->parts.size, ls_now_ns());
    ls_log(LS_LOG_DEBUG, "comm", "group %u breaks: %s", comm->info.id, comm->text);
    if (report)
        watch_report_cause(e, cause);
    if (comm->backend != NULL)
        e->parts.ops->abort_group(comm->backend, status, comm->text);
    staged_abort(comm);
    // The backend does not end works that it has failed before.
    while (!list_empty(&comm->works))
        engine_end_work(e, list_entry(comm->works.next, ls_work, node), status);
    meet_end_group(e, comm);
    drive_wake(e);
}

void engine_suspect(engine *e, ls_comm *comm, const job_cause *cause, ls_status status)
{
    const bool is_sure = cause->kind == CAUSE_MISMATCH || e->parts.control == NULL;
    const int64_t until_ns = is_sure ? 0 : ls_now_ns() + CAUSE_GRACE_NS;

    if (comm->status != LS_OK || (comm->has_suspect && !is_sure))
        return;
    comm->has_suspect = true;
    comm->suspect = *cause;
    comm->suspect_status = status;
    comm->suspect_until_ns = until_ns;
    watch_at(e, until_ns);
}

/* --- aborts --- */

#define ABORT_STEP_MS 1

/* Is on the stack of its caller until it has been served. */
typedef struct engine_abort {
    struct engine_abort *next;
    ls_comm *comm;
    const job_cause *cause;
    atomic_bool is_served;
} engine_abort;

static engine_abort *take_aborts(engine *e)
{
    engine_abort *all;

    if (!atomic_load_explicit(&e->has_aborts, memory_order_acquire))
        return NULL;
    ls_mutex_lock(&e->abort_mu);
    all = e->aborts;
    e->aborts = NULL;
    atomic_store_explicit(&e->has_aborts, false, memory_order_relaxed);
    ls_mutex_unlock(&e->abort_mu);
    return all;
}

void engine_serve_aborts(engine *e)
{
    for (engine_abort *a = take_aborts(e), *next; a != NULL; a = next) {
        next = a->next; // invalid once it is served
        engine_break(e, a->comm, a->cause, LS_ECANCELED, true);
        atomic_store_explicit(&a->is_served, true, memory_order_release);
    }
}

void engine_abort_group(engine *e, ls_comm *comm, const job_cause *cause)
{
    engine_abort mine = {.comm = comm, .cause = cause};

    atomic_init(&mine.is_served, false);
    atomic_fetch_add_explicit(&comm->n_aborting, 1, memory_order_relaxed);
    ls_mutex_lock(&e->abort_mu);
    mine.next = e->aborts;
    e->aborts = &mine;
    atomic_store_explicit(&e->has_aborts, true, memory_order_release);
    ls_mutex_unlock(&e->abort_mu);
    if (e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
    atomic_fetch_add_explicit(&e->n_entering, 1,
                              memory_order_relaxed); // makes a spinning driver yield
    while (!atomic_load_explicit(&mine.is_served, memory_order_acquire)) {
        struct pollfd nothing = {.fd = -1};

        if (ls_mutex_trylock(&e->mu)) {
            engine_serve_aborts(e);
            ls_mutex_unlock(&e->mu);
        } else {
            (void)poll(&nothing, 1, ABORT_STEP_MS);
        }
    }
    atomic_fetch_sub_explicit(&e->n_entering, 1, memory_order_relaxed);
    // Threads that sleep in the backend see the broken group.
    if (e->parts.backend != NULL)
        e->parts.ops->wake(e->parts.backend);
    // Last: ending_await(), which reads it, frees the group.
    atomic_fetch_sub_explicit(&comm->n_aborting, 1, memory_order_release);
}
