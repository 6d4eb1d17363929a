/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - threads read batches ahead of their use, into a ring of slots that are allocated once.
 *
 * Batch k of an epoch uses slot k % n_slots. When the slot is free, threads fill the batch in
 * pieces of a few rows; the last piece makes the slot ready. Threads write plain memory; tensors
 * are touched by the caller's thread only, in ls_loader_next(). A row depends on its index alone,
 * so the order and the number of threads do not matter.
 *
 * On a stream device the slots are page-locked memory for bytes, which the device normalizes, and
 * ls_loader_next() queues copies: that of the batch it returns, and where the next batch is ready,
 * that one's, which then runs beside the operators of the first. A slot is free when its copy is
 * done.
 */
#include <lockstep/data.h>
#include <lockstep/log.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/text.h"
#include "base/thread.h"
#include "data/device_batches.h"
#include "data/sample.h"
#include "data/sampler.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#define MAX_THREADS  256
#define MAX_PREFETCH 4096

/* Least size of a piece in elements, so that the lock is not taken for every small row. */
#define PIECE_ELEMENTS   65536
#define MAX_LOGGED       20   /* warnings about broken images */
#define MAX_REPLACEMENTS 1000 /* broken images in a row that are replaced */

/* The tensors of one batch, and the memory of their elements. In a stream device's slot there is
 * only the memory. */
typedef struct batch_memory {
    ls_tensor *x;
    ls_tensor *y;
    void *pixels; /* floats; in a stream device's slot bytes */
    void *labels;
} batch_memory;

typedef struct batch_slot {
    batch_memory memory;
    uint8_t *is_left_out; /* of each row; written by the thread that reads it */

    // Under the lock until the slot is ready.
    bool is_ready;
    size_t rows_done;
    size_t n_bad;
    size_t failed_row; /* the first one: its failure is the batch's */
    ls_status status;
    char error[LS_ERROR_BYTES];
} batch_slot;

/* Rows first ... first + n - 1 of a batch, made by one thread. */
typedef struct piece {
    size_t batch;
    size_t first;
    size_t n;
    size_t n_bad;
    size_t failed_row;
    ls_status status;
} piece;

typedef struct loader_thread {
    ls_loader *loader;
    ls_thread thread;
    sample_reader reader;
} loader_thread;

struct ls_loader {
    ls_loader_options opt;
    size_t batch_rows;
    size_t tail_rows; /* of a short last batch; 0: there is none */
    size_t n_batches; /* of an epoch */
    size_t piece_rows;
    size_t sample_count;
    uint64_t epoch;
    batch_slot *slots;
    size_t n_slots;
    /* an epoch's short last batch, used instead of the slot's memory; not with a stream device */
    batch_memory tail;
    batch_memory empty; /* 0 rows */

    // The caller's thread only.
    batch_memory reduced; /* a batch without its broken rows */
    size_t reduced_rows;
    uint64_t n_bad; /* in all batches that were returned */
    bool is_started;
    size_t next;       /* batch that ls_loader_next() returns */
    ls_status failure; /* that ended the epoch */
    char failure_text[LS_ERROR_BYTES];
    device_batches *on_device; /* NULL: a host device */
    size_t sent;               /* the batch whose copy is queued next: `next` or the one after it */
    size_t sent_rows;          /* of the batch before it, which was sent last */
    size_t sent_bad;

    // Under the lock.
    ls_mutex lock;
    ls_cond work;      /* there may be a batch to take */
    ls_cond done;      /* a batch has become ready, or a thread idle */
    size_t taken;      /* the batch whose rows are taken next */
    size_t taken_rows; /* rows of it that threads have taken */
    size_t freed;      /* batches before this one have been used, their slots are free */
    size_t limit;      /* batches from this one on must not be taken */
    size_t n_busy;
    bool stop;

    // Set by the caller's thread when the batches are no longer needed; the other threads check it
    // between samples. Relaxed: it only saves time.
    atomic_bool cancel;
    atomic_int n_logged; /* warnings about broken images; relaxed, it orders nothing else */
    loader_thread *threads;
    int n_threads; /* 0: the caller's thread reads, with the reader of threads[0] */
};

/* --- filling --- */

static bool is_tail(const ls_loader *l, size_t batch)
{
    return batch + 1 == l->n_batches && l->tail_rows > 0;
}

/* The memory that a batch is read into. */
static batch_memory *memory_of(ls_loader *l, size_t batch)
{
    return is_tail(l, batch) && l->on_device == NULL ? &l->tail
                                                     : &l->slots[batch % l->n_slots].memory;
}

static size_t rows_of(const ls_loader *l, size_t batch)
{
    return is_tail(l, batch) ? l->tail_rows : l->batch_rows;
}

/* Logs the thread's last error as a warning about a broken image. */
static void log_bad_image(ls_loader *l)
{
    const int n = atomic_fetch_add_explicit(&l->n_logged, 1, memory_order_relaxed);

    if (n < MAX_LOGGED)
        ls_log(LS_LOG_WARN, "data", "%s: %s", ls_last_error(),
               l->opt.bad_images == LS_BAD_IMAGES_REPLACE ? "replaced by another image"
                                                          : "skipped");
    if (n == MAX_LOGGED)
        ls_log(LS_LOG_WARN, "data", "more broken images are counted but not logged");
}

static bool is_cancelled(const ls_loader *l)
{
    return atomic_load_explicit(&l->cancel, memory_order_relaxed);
}

/* Reads sample `index`, with the crop of `draw`, into a row. */
static ls_status read_sample(const ls_loader *l, sample_reader *r, size_t index, size_t draw,
                             const batch_memory *m, size_t row)
{
    const ls_dataset *d = l->opt.dataset;
    const size_t at = row * l->sample_count;
    int64_t *y = (int64_t *)m->labels + row;

    if (l->on_device != NULL)
        return sample_read_bytes(d, index, draw, l->epoch, r, (uint8_t *)m->pixels + at, y);
    return sample_read(d, index, draw, l->epoch, r, (float *)m->pixels + at, y);
}

/* Reads the samples behind `index` until one is readable. The crop is that of `index`, so that the
 * replacement differs from its own sample in the same epoch. */
static ls_status replace(ls_loader *l, sample_reader *r, size_t index, const batch_memory *m,
                         size_t row)
{
    const ls_dataset *d = l->opt.dataset;
    ls_status st = LS_EFORMAT;
    size_t k;

    for (k = 1; k < d->count && k <= MAX_REPLACEMENTS && st == LS_EFORMAT; k++) {
        if (is_cancelled(l))
            return LS_OK;
        st = read_sample(l, r, (index + k) % d->count, index, m, row);
    }
    return st == LS_EFORMAT ? ls_context(st, "%zu images in a row are broken, the last one", k)
                            : st;
}

static ls_status read_row(ls_loader *l, sample_reader *r, piece *p, size_t row)
{
    const batch_memory *m = memory_of(l, p->batch);
    const size_t index = ls_sampler_index(l->opt.sampler, p->batch * l->batch_rows + row);
    uint8_t *is_left_out = &l->slots[p->batch % l->n_slots].is_left_out[row];
    const ls_status st = read_sample(l, r, index, index, m, row);

    *is_left_out = 0;
    if (st != LS_EFORMAT || l->opt.bad_images == LS_BAD_IMAGES_FAIL)
        return st;
    log_bad_image(l);
    p->n_bad++;
    if (l->opt.bad_images == LS_BAD_IMAGES_REPLACE)
        return replace(l, r, index, m, row);
    *is_left_out = 1;
    return LS_OK;
}

static void read_piece(ls_loader *l, sample_reader *r, piece *p)
{
    for (size_t row = p->first; row < p->first + p->n && !is_cancelled(l); row++) {
        p->status = read_row(l, r, p, row);
        p->failed_row = row;
        if (p->status != LS_OK)
            return;
    }
}

static bool can_take(const ls_loader *l)
{
    return l->taken < l->limit && l->taken - l->freed < l->n_slots;
}

static piece take_piece(ls_loader *l)
{
    const size_t left = rows_of(l, l->taken) - l->taken_rows;
    const piece p = {.batch = l->taken,
                     .first = l->taken_rows,
                     .n = left < l->piece_rows ? left : l->piece_rows};
    batch_slot *slot = &l->slots[p.batch % l->n_slots];

    if (p.first == 0) {
        slot->rows_done = 0;
        slot->n_bad = 0;
        slot->status = LS_OK;
    }
    l->taken_rows += p.n;
    if (p.n == left) {
        l->taken++;
        l->taken_rows = 0;
    }
    return p;
}

/* The slot stores the failure of the first failed row, because error texts are per thread. */
static void finish_piece(ls_loader *l, const piece *p)
{
    batch_slot *slot = &l->slots[p->batch % l->n_slots];

    slot->rows_done += p->n;
    slot->n_bad += p->n_bad;
    if (p->status != LS_OK && (slot->status == LS_OK || p->failed_row < slot->failed_row)) {
        slot->status = p->status;
        slot->failed_row = p->failed_row;
        (void)text_format(slot->error, sizeof(slot->error), "%s", ls_last_error());
    }
    slot->is_ready = slot->rows_done == rows_of(l, p->batch);
}

static void reader_thread(void *arg)
{
    loader_thread *self = arg;
    ls_loader *l = self->loader;

    ls_mutex_lock(&l->lock);
    for (;;) {
        piece p;

        while (!l->stop && !can_take(l))
            (void)ls_cond_wait(&l->work, &l->lock, ls_deadline_ms(-1));
        if (l->stop)
            break;
        p = take_piece(l);
        l->n_busy++;
        ls_mutex_unlock(&l->lock);
        read_piece(l, &self->reader, &p);
        ls_mutex_lock(&l->lock);
        l->n_busy--;
        finish_piece(l, &p);
        ls_cond_broadcast(&l->done);
    }
    ls_mutex_unlock(&l->lock);
}

/* --- making a loader --- */

static ls_status check_options(const ls_loader_options *opt)
{
    if (opt->device == NULL || opt->dataset == NULL || opt->sampler == NULL)
        return ls_fail(LS_EINVAL, "loader: device, dataset and sampler must not be NULL");
    if (opt->batch_size < 1)
        return ls_fail(LS_EINVAL, "loader: batch_size %d is below 1", opt->batch_size);
    if (opt->threads > MAX_THREADS)
        return ls_fail(LS_EINVAL, "loader: %d threads, at most %d", opt->threads, MAX_THREADS);
    if (opt->prefetch < 0 || opt->prefetch > MAX_PREFETCH)
        return ls_fail(LS_EINVAL, "loader: prefetch %d is outside 0 to %d", opt->prefetch,
                       MAX_PREFETCH);
    if (opt->bad_images < LS_BAD_IMAGES_FAIL || opt->bad_images > LS_BAD_IMAGES_LEAVE_OUT)
        return ls_fail(LS_EINVAL, "loader: invalid bad_images %d", (int)opt->bad_images);
    if (ls_dataset_sample_dims(opt->dataset)[1] < 1)
        return ls_fail(LS_EINVAL, "loader: the images differ in size; set a common size with "
                                  "ls_dataset_augment()");
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
    *m = (batch_memory){0};
}

/* Looks up the memory of the elements, which the batch's last user may have moved. */
static ls_status open_memory(batch_memory *m)
{
    if (m->x == NULL)
        return LS_OK;
    LS_TRY(tensor_plain(m->x, &m->pixels));
    return tensor_plain(m->y, &m->labels);
}

/* Marks the tensors as written: copies of their old content, such as packed ones, are invalid. */
static void end_memory(batch_memory *m)
{
    tensor_written(m->x);
    tensor_written(m->y);
}

static void plan_epoch(ls_loader *l)
{
    const int64_t *chw = ls_dataset_sample_dims(l->opt.dataset);
    const size_t n = ls_sampler_count(l->opt.sampler);

    l->batch_rows = (size_t)l->opt.batch_size;
    l->tail_rows = l->opt.drop_last ? 0 : n % l->batch_rows;
    l->n_batches = n / l->batch_rows + (l->tail_rows > 0 ? 1 : 0);
    l->sample_count = (size_t)(chw[0] * chw[1] * chw[2]);
    l->piece_rows = (PIECE_ELEMENTS + l->sample_count - 1) / l->sample_count;
    // One slot is the caller's. A short epoch needs no more slots than it has batches.
    l->n_slots = (l->opt.prefetch == 0 ? 2 : (size_t)l->opt.prefetch) + 1;
    if (l->n_slots > l->n_batches)
        l->n_slots = l->n_batches > 0 ? l->n_batches : 1;
}

static ls_status make_host_batches(ls_loader *l)
{
    const size_t n_full = l->n_batches - (l->tail_rows > 0 ? 1 : 0);

    for (size_t i = 0; i < l->n_slots && i < n_full; i++)
        LS_TRY(make_memory(l, l->batch_rows, &l->slots[i].memory));
    return l->tail_rows > 0 ? make_memory(l, l->tail_rows, &l->tail) : LS_OK;
}

static ls_status make_device_batches(ls_loader *l)
{
    const batch_sizes sizes = {
        .batch_rows = l->batch_rows, .tail_rows = l->tail_rows, .n_slots = l->n_slots};

    LS_TRY(device_batches_create(l->opt.device, l->opt.dataset, &sizes, &l->on_device));
    for (size_t i = 0; i < l->n_slots; i++) {
        l->slots[i].memory.pixels = device_batches_pixels(l->on_device, i);
        l->slots[i].memory.labels = device_batches_labels(l->on_device, i);
    }
    return LS_OK;
}

static ls_status make_slots(ls_loader *l)
{
    l->slots = ls_calloc(l->n_slots, sizeof(*l->slots));
    if (l->slots == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %zu batches", l->n_slots);
    for (size_t i = 0; i < l->n_slots; i++) {
        l->slots[i].is_left_out = ls_calloc(l->batch_rows, 1);
        if (l->slots[i].is_left_out == NULL)
            return ls_fail(LS_ENOMEM, "no memory for a batch of %zu rows", l->batch_rows);
    }
    if (ls_device_queue(l->opt.device) == NULL)
        LS_TRY(make_host_batches(l));
    else
        LS_TRY(make_device_batches(l));
    return make_memory(l, 0, &l->empty);
}

static ls_status start_threads(ls_loader *l)
{
    const int n = l->opt.threads == 0 ? 1 : l->opt.threads;

    l->threads = ls_calloc(n > 0 ? (size_t)n : 1, sizeof(*l->threads));
    if (l->threads == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d threads", n);
    while (l->n_threads < n) {
        loader_thread *t = &l->threads[l->n_threads];

        t->loader = l;
        LS_TRY(ls_thread_start(&t->thread, "ls-loader", reader_thread, t));
        l->n_threads++;
    }
    return LS_OK;
}

ls_status ls_loader_create(const ls_loader_options *opt, ls_loader **out)
{
    ls_loader_options o;
    ls_loader *l;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_loader_options, opt, &o), "loader"));
    LS_TRY(check_options(&o));
    l = ls_calloc(1, sizeof(*l));
    if (l == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a loader");
    l->opt = o;
    dataset_count_loader(o.dataset, 1);
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
        ls_thread_join(&l->threads[i].thread);
    for (int i = 0; l->threads != NULL && (i == 0 || i < l->n_threads); i++)
        sample_reader_free(&l->threads[i].reader);
    for (size_t i = 0; l->slots != NULL && i < l->n_slots; i++) {
        free_memory(&l->slots[i].memory);
        ls_free(l->slots[i].is_left_out);
    }
    device_batches_destroy(l->on_device);
    free_memory(&l->reduced);
    free_memory(&l->tail);
    free_memory(&l->empty);
    ls_cond_destroy(&l->done);
    ls_cond_destroy(&l->work);
    ls_mutex_destroy(&l->lock);
    ls_free(l->threads);
    ls_free(l->slots);
    dataset_count_loader(l->opt.dataset, -1);
    ls_free(l);
}

/* --- an epoch --- */

/* Ends the epoch: afterwards no thread accesses a slot or the sampler. */
static void stop_reading(ls_loader *l)
{
    l->is_started = false;
    l->failure = LS_OK;
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
    ls_mutex_lock(&l->lock);
    l->limit = 0;
    while (l->n_busy > 0)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&l->lock);
    atomic_store_explicit(&l->cancel, false, memory_order_relaxed);
}

/* The threads may write all slots. */
static ls_status finish_copies(ls_loader *l)
{
    if (l->on_device == NULL)
        return LS_OK;
    LS_TRY(device_batches_release(l->on_device));
    for (size_t i = 0; i < l->n_slots; i++)
        LS_TRY(device_batches_wait(l->on_device, i));
    return LS_OK;
}

ls_status ls_loader_start(ls_loader *l, uint64_t epoch, size_t first_batch)
{
    LS_TRY(LS_GIVEN(l));
    if (first_batch > l->n_batches)
        return ls_fail(LS_EINVAL, "loader: epoch %" PRIu64 " cannot begin at batch %zu of %zu",
                       epoch, first_batch, l->n_batches);
    stop_reading(l);
    LS_TRY(finish_copies(l));
    LS_TRY(ls_sampler_set_epoch(l->opt.sampler, epoch));
    for (size_t i = 0; i < l->n_slots; i++) {
        end_memory(&l->slots[i].memory);
        LS_TRY(open_memory(&l->slots[i].memory));
        l->slots[i].is_ready = false;
    }
    end_memory(&l->tail);
    LS_TRY(open_memory(&l->tail));
    ls_mutex_lock(&l->lock);
    l->epoch = epoch;
    l->taken = first_batch;
    l->taken_rows = 0;
    l->freed = first_batch;
    l->limit = l->n_batches;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
    l->next = first_batch;
    l->sent = first_batch;
    l->is_started = true;
    return LS_OK;
}

/* The threads may write the slots of the batches before `batch`. */
static void set_freed(ls_loader *l, size_t batch)
{
    ls_mutex_lock(&l->lock);
    l->freed = batch;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
}

/* The caller is done with the batch before `batch`: its slot is free for the threads. */
static ls_status free_previous(ls_loader *l, size_t batch)
{
    if (batch == l->freed)
        return LS_OK;
    end_memory(memory_of(l, batch - 1));
    LS_TRY(open_memory(memory_of(l, batch - 1)));
    set_freed(l, batch);
    return LS_OK;
}

/* Waits for a batch, or reads it where there are no threads. */
static const batch_slot *wait_for_slot(ls_loader *l, size_t batch)
{
    batch_slot *slot = &l->slots[batch % l->n_slots];

    ls_mutex_lock(&l->lock);
    while (!slot->is_ready && l->n_threads > 0)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    while (!slot->is_ready) {
        piece p = take_piece(l);

        ls_mutex_unlock(&l->lock);
        read_piece(l, &l->threads[0].reader, &p);
        ls_mutex_lock(&l->lock);
        finish_piece(l, &p);
    }
    slot->is_ready = false;
    ls_mutex_unlock(&l->lock);
    return slot;
}

static void return_batch(batch_memory *m, ls_batch *out)
{
    tensor_written(m->x);
    tensor_written(m->y);
    *out = (ls_batch){.x = m->x, .y = m->y, .rows = ls_tensor_dim(m->x, 0)};
}

static size_t count_left_out(const batch_slot *slot, size_t rows)
{
    size_t n = 0;

    for (size_t i = 0; i < rows; i++)
        n += slot->is_left_out[i];
    return n;
}

/* Copies the remaining rows into a batch of their own. */
static ls_status drop_rows(ls_loader *l, const batch_slot *slot, size_t batch, size_t n_left)
{
    const batch_memory *from = memory_of(l, batch);
    const size_t n_rows = rows_of(l, batch);
    const size_t sample_bytes = l->sample_count * sizeof(float);
    size_t at = 0;

    if (l->reduced_rows != n_left || l->reduced.x == NULL) {
        free_memory(&l->reduced);
        l->reduced_rows = n_left;
        LS_TRY(make_memory(l, n_left, &l->reduced));
    }
    LS_TRY(open_memory(&l->reduced));
    for (size_t row = 0; row < n_rows; row++) {
        if (slot->is_left_out[row])
            continue;
        memcpy((char *)l->reduced.pixels + at * sample_bytes,
               (const char *)from->pixels + row * sample_bytes, sample_bytes);
        ((int64_t *)l->reduced.labels)[at++] = ((const int64_t *)from->labels)[row];
    }
    return LS_OK;
}

static ls_status check_slot(const batch_slot *slot)
{
    return slot->status == LS_OK ? LS_OK : ls_fail(slot->status, "%s", slot->error);
}

/* The batch `l->next` without its broken rows; out->rows is 0 when all are broken. */
static ls_status next_batch(ls_loader *l, ls_batch *out)
{
    const size_t batch = l->next;
    const batch_slot *slot = wait_for_slot(l, batch);
    size_t n_out;

    *out = (ls_batch){0};
    LS_TRY(check_slot(slot));
    n_out = count_left_out(slot, rows_of(l, batch));
    l->next++;
    l->n_bad += slot->n_bad;
    if (n_out == rows_of(l, batch))
        return LS_OK;
    if (n_out > 0)
        LS_TRY(drop_rows(l, slot, batch, rows_of(l, batch) - n_out));
    return_batch(n_out > 0 ? &l->reduced : memory_of(l, batch), out);
    return LS_OK;
}

static ls_status next_on_host(ls_loader *l, ls_batch *out)
{
    do {
        LS_TRY(free_previous(l, l->next));
        if (l->next == l->n_batches) {
            return_batch(&l->empty, out);
            return LS_OK;
        }
        LS_TRY(next_batch(l, out));
    } while (out->rows == 0);
    return LS_OK;
}

/* --- with a stream device --- */

/* Frees the slots whose copies are done. Blocks only for the slot that batch `l->next` needs. */
static ls_status free_copied(ls_loader *l)
{
    size_t freed = l->freed;
    bool done = true;

    while (freed < l->sent && done) {
        const size_t slot = freed % l->n_slots;

        if (freed + l->n_slots <= l->next)
            LS_TRY(device_batches_wait(l->on_device, slot));
        else
            LS_TRY(device_batches_test(l->on_device, slot, &done));
        freed += done;
    }
    if (freed > l->freed)
        set_freed(l, freed);
    return LS_OK;
}

/* Moves the remaining rows to the front of the slot. */
static void drop_rows_in_place(const ls_loader *l, const batch_slot *slot, size_t n_rows)
{
    uint8_t *pixels = slot->memory.pixels;
    int64_t *labels = slot->memory.labels;
    size_t at = 0;

    for (size_t row = 0; row < n_rows; row++) {
        if (slot->is_left_out[row])
            continue;
        if (at < row)
            memcpy(pixels + at * l->sample_count, pixels + row * l->sample_count, l->sample_count);
        labels[at++] = labels[row];
    }
}

/* Queues the copy of batch `l->sent`, which the slot has, without its broken rows. */
static ls_status send_batch(ls_loader *l, const batch_slot *slot)
{
    const size_t batch = l->sent;
    const size_t n_rows = rows_of(l, batch);
    const size_t n_left = n_rows - count_left_out(slot, n_rows);
    batch_kind kind = is_tail(l, batch) ? BATCH_TAIL : BATCH_FULL;

    if (n_left < n_rows) {
        kind = BATCH_REDUCED;
        drop_rows_in_place(l, slot, n_rows);
    }
    if (n_left > 0)
        LS_TRY(device_batches_send(l->on_device, batch % l->n_slots, kind, n_left));
    l->sent_rows = n_left;
    l->sent_bad = slot->n_bad;
    l->sent++;
    return LS_OK;
}

/* Batch `l->next`; out->rows is 0 when all its rows are broken. */
static ls_status receive_batch(ls_loader *l, ls_batch *out)
{
    const size_t batch = l->next;

    *out = (ls_batch){0};
    if (l->sent == batch) {
        const batch_slot *slot = wait_for_slot(l, batch);

        LS_TRY(check_slot(slot));
        LS_TRY(send_batch(l, slot));
    }
    l->next++;
    l->n_bad += l->sent_bad;
    if (l->sent_rows == 0)
        return LS_OK;
    return device_batches_receive(l->on_device, batch % l->n_slots, out);
}

/* Sends batch `l->next` if it is ready, complete, and without failure. */
static ls_status send_ahead(ls_loader *l)
{
    batch_slot *slot = &l->slots[l->next % l->n_slots];
    bool is_ready;

    if (l->next == l->n_batches)
        return LS_OK;
    ls_mutex_lock(&l->lock);
    is_ready =
        slot->is_ready && slot->status == LS_OK && count_left_out(slot, rows_of(l, l->next)) == 0;
    slot->is_ready = slot->is_ready && !is_ready;
    ls_mutex_unlock(&l->lock);
    return is_ready ? send_batch(l, slot) : LS_OK;
}

static ls_status next_on_device(ls_loader *l, ls_batch *out)
{
    LS_TRY(device_batches_release(l->on_device));
    do {
        LS_TRY(free_copied(l));
        if (l->next == l->n_batches) {
            return_batch(&l->empty, out);
            return LS_OK;
        }
        LS_TRY(receive_batch(l, out));
    } while (out->rows == 0);
    return send_ahead(l);
}

ls_status ls_loader_next(ls_loader *l, ls_batch *out)
{
    ls_status st;

    LS_TRY(LS_GIVEN(l));
    LS_TRY(LS_GIVEN(out));
    if (!l->is_started)
        return ls_fail(LS_EINVAL, "loader: call ls_loader_start() before ls_loader_next()");
    if (l->failure != LS_OK)
        return ls_fail(l->failure, "%s", l->failure_text);
    st = l->on_device == NULL ? next_on_host(l, out) : next_on_device(l, out);
    if (st != LS_OK) {
        l->failure = st;
        (void)text_format(l->failure_text, sizeof(l->failure_text), "%s", ls_last_error());
    }
    return st;
}

uint64_t ls_loader_bad_images(const ls_loader *l)
{
    return l == NULL ? 0 : l->n_bad;
}

size_t ls_loader_batches(const ls_loader *l)
{
    return l == NULL ? 0 : l->n_batches;
}
