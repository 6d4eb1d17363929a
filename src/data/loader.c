/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - batches made ahead of their use by threads, in a ring of slots that are allocated once.
 *
 * Batch k of an epoch lives in slot k % n_slots. A thread takes the next batch as soon as its slot is
 * free, fills plain memory and marks the slot ready; everything that has to do with tensors is done by
 * the caller's thread, in ls_loader_next(). What a batch holds depends on its number alone, so the
 * threads may work in any order.
 */
#include <lockstep/data.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#define MAX_THREADS  256
#define MAX_PREFETCH 4096

/* The tensors of one batch, and where a thread writes into them. */
typedef struct batch_memory {
    ls_tensor *x;
    ls_tensor *y;
    void *pixels;
    void *labels;
} batch_memory;

typedef struct batch_slot {
    batch_memory memory;
    bool is_ready; /* under the lock */
    ls_status status;
    char error[LS_ERROR_BYTES];
} batch_slot;

struct ls_loader {
    ls_loader_options opt;
    size_t batch_rows;
    size_t tail_rows; /* of a short last batch; 0: there is none */
    size_t n_batches; /* of an epoch */
    size_t sample_count;
    batch_slot *slots;
    size_t n_slots;
    batch_memory tail;  /* an epoch's short last batch, in whatever slot its number falls */
    batch_memory empty; /* 0 rows */

    // The caller's thread only.
    bool is_started;
    size_t next;               /* batch that ls_loader_next() gives */
    const batch_slot *failure; /* the slot whose error ended the epoch */

    // Under the lock.
    ls_mutex lock;
    ls_cond work; /* there may be a batch to take */
    ls_cond done; /* a batch has become ready, or a thread idle */
    size_t taken; /* batches before this one are being made or have been */
    size_t freed; /* batches before this one have been used, their slots are free */
    size_t limit; /* batches from this one on must not be taken */
    size_t n_busy;
    bool stop;

    // Set by the caller's thread, asked by the others between samples: what they make is not
    // wanted any more. Relaxed, since nothing but time hangs on it.
    atomic_bool cancel;
    ls_thread *threads;
    int n_threads;
};

/* --- filling --- */

static bool is_tail(const ls_loader *l, size_t batch)
{
    return batch + 1 == l->n_batches && l->tail_rows > 0;
}

/* Where a batch is made. */
static batch_memory *memory_of(ls_loader *l, size_t batch)
{
    return is_tail(l, batch) ? &l->tail : &l->slots[batch % l->n_slots].memory;
}

static ls_status read_rows(ls_loader *l, size_t batch)
{
    const ls_dataset *d = l->opt.dataset;
    const batch_memory *m = memory_of(l, batch);
    const size_t n_rows = is_tail(l, batch) ? l->tail_rows : l->batch_rows;
    float *pixels = m->pixels;
    int64_t *labels = m->labels;

    for (size_t row = 0; row < n_rows; row++) {
        const size_t index = ls_sampler_index(l->opt.sampler, batch * l->batch_rows + row);

        if (atomic_load_explicit(&l->cancel, memory_order_relaxed))
            return LS_OK;
        LS_TRY(d->ops->read(d, index, pixels + row * l->sample_count, labels + row));
    }
    return LS_OK;
}

/* Makes a batch; a failure is kept in the slot, as error texts belong to threads. */
static void fill_slot(ls_loader *l, size_t batch)
{
    batch_slot *slot = &l->slots[batch % l->n_slots];

    slot->status = read_rows(l, batch);
    if (slot->status != LS_OK)
        (void)text_format(slot->error, sizeof(slot->error), "%s", ls_last_error());
}

static bool can_take(const ls_loader *l)
{
    return l->taken < l->limit && l->taken - l->freed < l->n_slots;
}

static void reader_thread(void *arg)
{
    ls_loader *l = arg;

    ls_mutex_lock(&l->lock);
    for (;;) {
        size_t batch;

        while (!l->stop && !can_take(l))
            (void)ls_cond_wait(&l->work, &l->lock, ls_deadline_ms(-1));
        if (l->stop)
            break;
        batch = l->taken++;
        l->n_busy++;
        ls_mutex_unlock(&l->lock);
        fill_slot(l, batch);
        ls_mutex_lock(&l->lock);
        l->n_busy--;
        l->slots[batch % l->n_slots].is_ready = true;
        ls_cond_broadcast(&l->done);
    }
    ls_mutex_unlock(&l->lock);
}

/* --- making a loader --- */

static ls_status check_options(const ls_loader_options *opt)
{
    if (opt == NULL || opt->device == NULL || opt->dataset == NULL || opt->sampler == NULL)
        return ls_fail(LS_EINVAL, "loader: a device, a data set and a sampler are needed");
    if (opt->size != sizeof(*opt))
        return ls_fail(LS_EINVAL, "loader: options of %zu bytes, this library's have %zu",
                       opt->size, sizeof(*opt));
    if (opt->batch_size < 1)
        return ls_fail(LS_EINVAL, "loader: a batch of %d rows", opt->batch_size);
    if (opt->threads > MAX_THREADS)
        return ls_fail(LS_EINVAL, "loader: %d threads, at most %d", opt->threads, MAX_THREADS);
    if (opt->prefetch < 0 || opt->prefetch > MAX_PREFETCH)
        return ls_fail(LS_EINVAL, "loader: %d batches in advance, 0 to %d are possible",
                       opt->prefetch, MAX_PREFETCH);
    if (sampler_total(opt->sampler) != ls_dataset_count(opt->dataset))
        return ls_fail(LS_EINVAL, "loader: the sampler is for %zu samples, the data set has %zu",
                       sampler_total(opt->sampler), ls_dataset_count(opt->dataset));
    return LS_OK;
}

static ls_status make_memory(const ls_loader *l, size_t rows, batch_memory *m)
{
    const int64_t *chw = ls_dataset_sample_dims(l->opt.dataset);
    const int64_t dims[4] = {(int64_t)rows, chw[0], chw[1], chw[2]};

    LS_TRY(ls_tensor_create(l->opt.device, LS_F32, 4, dims, &m->x));
    return ls_tensor_create(l->opt.device, LS_I64, 1, dims, &m->y);
}

static void free_memory(batch_memory *m)
{
    ls_tensor_destroy(m->x);
    ls_tensor_destroy(m->y);
}

/* Finds out where a thread may write next; the batch's last user may have moved the elements. */
static ls_status open_memory(batch_memory *m)
{
    if (m->x == NULL)
        return LS_OK;
    LS_TRY(tensor_plain(m->x, &m->pixels));
    return tensor_plain(m->y, &m->labels);
}

static void plan_epoch(ls_loader *l)
{
    const int64_t *chw = ls_dataset_sample_dims(l->opt.dataset);
    const size_t n = ls_sampler_count(l->opt.sampler);

    l->batch_rows = (size_t)l->opt.batch_size;
    l->tail_rows = l->opt.drop_last ? 0 : n % l->batch_rows;
    l->n_batches = n / l->batch_rows + (l->tail_rows > 0 ? 1 : 0);
    l->sample_count = (size_t)(chw[0] * chw[1] * chw[2]);
    // One slot is in the caller's hands; an epoch that is shorter needs no more than it has.
    l->n_slots = (l->opt.prefetch == 0 ? 2 : (size_t)l->opt.prefetch) + 1;
    if (l->n_slots > l->n_batches)
        l->n_slots = l->n_batches > 0 ? l->n_batches : 1;
}

static ls_status make_slots(ls_loader *l)
{
    const size_t n_full = l->n_batches - (l->tail_rows > 0 ? 1 : 0);

    l->slots = ls_calloc(l->n_slots, sizeof(*l->slots));
    if (l->slots == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu batches", l->n_slots);
    for (size_t i = 0; i < l->n_slots && i < n_full; i++)
        LS_TRY(make_memory(l, l->batch_rows, &l->slots[i].memory));
    if (l->tail_rows > 0)
        LS_TRY(make_memory(l, l->tail_rows, &l->tail));
    return make_memory(l, 0, &l->empty);
}

static ls_status start_threads(ls_loader *l)
{
    const int n = l->opt.threads == 0 ? 1 : l->opt.threads;

    if (n < 0)
        return LS_OK;
    l->threads = ls_calloc((size_t)n, sizeof(*l->threads));
    if (l->threads == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d threads", n);
    while (l->n_threads < n) {
        LS_TRY(ls_thread_start(&l->threads[l->n_threads], "ls-loader", reader_thread, l));
        l->n_threads++;
    }
    return LS_OK;
}

ls_status ls_loader_create(const ls_loader_options *opt, ls_loader **out)
{
    ls_loader *l;
    ls_status st;

    LS_TRY(check_options(opt));
    l = ls_calloc(1, sizeof(*l));
    if (l == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a loader");
    l->opt = *opt;
    ls_mutex_init(&l->lock);
    ls_cond_init(&l->work);
    ls_cond_init(&l->done);
    plan_epoch(l);
    st = make_slots(l);
    if (st == LS_OK)
        st = start_threads(l);
    if (st != LS_OK) {
        ls_loader_destroy(l);
        return ls_context(st, "loader");
    }
    *out = l;
    return LS_OK;
}

void ls_loader_destroy(ls_loader *l)
{
    if (l == NULL)
        return;
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
    ls_mutex_lock(&l->lock);
    l->stop = true;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_threads; i++)
        ls_thread_join(&l->threads[i]);
    for (size_t i = 0; l->slots != NULL && i < l->n_slots; i++)
        free_memory(&l->slots[i].memory);
    free_memory(&l->tail);
    free_memory(&l->empty);
    ls_cond_destroy(&l->done);
    ls_cond_destroy(&l->work);
    ls_mutex_destroy(&l->lock);
    ls_free(l->threads);
    ls_free(l->slots);
    ls_free(l);
}

/* --- an epoch --- */

/* Ends the epoch that is being read: afterwards no thread touches a slot or the sampler. */
static void stop_reading(ls_loader *l)
{
    l->is_started = false;
    l->failure = NULL;
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
    ls_mutex_lock(&l->lock);
    l->limit = 0;
    while (l->n_busy > 0)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&l->lock);
    atomic_store_explicit(&l->cancel, false, memory_order_relaxed);
}

ls_status ls_loader_start(ls_loader *l, uint64_t epoch, size_t first_batch)
{
    if (first_batch > l->n_batches)
        return ls_fail(LS_EINVAL, "loader: epoch %" PRIu64 " cannot begin at batch %zu of %zu",
                       epoch, first_batch, l->n_batches);
    stop_reading(l);
    LS_TRY(ls_sampler_set_epoch(l->opt.sampler, epoch));
    for (size_t i = 0; i < l->n_slots; i++) {
        LS_TRY(open_memory(&l->slots[i].memory));
        l->slots[i].is_ready = false;
    }
    LS_TRY(open_memory(&l->tail));
    ls_mutex_lock(&l->lock);
    l->taken = first_batch;
    l->freed = first_batch;
    l->limit = l->n_batches;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
    l->next = first_batch;
    l->is_started = true;
    return LS_OK;
}

/* The batch before `batch` is not in use any more: gives its slot back to the threads. */
static ls_status free_previous(ls_loader *l, size_t batch)
{
    if (batch == l->freed)
        return LS_OK;
    LS_TRY(open_memory(memory_of(l, batch - 1)));
    ls_mutex_lock(&l->lock);
    l->freed = batch;
    ls_cond_signal(&l->work);
    ls_mutex_unlock(&l->lock);
    return LS_OK;
}

/* Waits for a batch, or makes it where there are no threads. */
static const batch_slot *await_slot(ls_loader *l, size_t batch)
{
    batch_slot *slot = &l->slots[batch % l->n_slots];

    if (l->n_threads == 0) {
        fill_slot(l, batch);
        return slot;
    }
    ls_mutex_lock(&l->lock);
    while (!slot->is_ready)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    slot->is_ready = false;
    ls_mutex_unlock(&l->lock);
    return slot;
}

static void hand_out(batch_memory *m, ls_batch *out)
{
    tensor_written(m->x);
    tensor_written(m->y);
    *out = (ls_batch){.x = m->x, .y = m->y, .rows = ls_tensor_dim(m->x, 0)};
}

ls_status ls_loader_next(ls_loader *l, ls_batch *out)
{
    const batch_slot *slot;

    if (!l->is_started)
        return ls_fail(LS_EINVAL, "loader: ls_loader_start() begins an epoch");
    if (l->failure != NULL)
        return ls_fail(l->failure->status, "%s", l->failure->error);
    LS_TRY(free_previous(l, l->next));
    if (l->next == l->n_batches) {
        hand_out(&l->empty, out);
        return LS_OK;
    }
    slot = await_slot(l, l->next);
    if (slot->status != LS_OK) {
        l->failure = slot;
        return ls_fail(slot->status, "%s", slot->error);
    }
    hand_out(memory_of(l, l->next), out);
    l->next++;
    return LS_OK;
}

size_t ls_loader_batches(const ls_loader *l)
{
    return l->n_batches;
}
