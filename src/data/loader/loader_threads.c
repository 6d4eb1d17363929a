/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_threads.c - the threads of a loader, which read batches ahead of their use. A batch is
 * read in pieces of a few rows by any threads; the thread that reads its last piece completes it.
 */
#include <lockstep/log.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "data/loader/loader.h"

#define MAX_REPLACEMENTS 1000 /* broken samples in a row that are replaced */

/* Rows first ... first + n - 1 of a batch, made by one thread. */
typedef struct piece {
    size_t batch;
    size_t first;
    size_t n;
    size_t n_bad;
    size_t failed_row;
    ls_status status;
} piece;

/* --- rows --- */

static const char *sample_word(const ls_loader *l)
{
    return l->layout.set->images != NULL ? "image" : "sample";
}

/* Logs the thread's last error as a warning about a broken sample, once. */
static void log_bad_sample(const ls_loader *l, size_t index)
{
    const broken_naming naming = dataset_name_broken(l->layout.set, index);
    const char *word = sample_word(l);

    if (naming == BROKEN_NAME && l->opt.bad_images == LS_BAD_IMAGES_REPLACE)
        ls_log(LS_LOG_WARN, "data", "%s: replaced by another %s", ls_last_error(), word);
    else if (naming == BROKEN_NAME)
        ls_log(LS_LOG_WARN, "data", "%s: skipped", ls_last_error());
    else if (naming == BROKEN_COUNT)
        ls_log(LS_LOG_WARN, "data", "more broken %ss are counted but not logged", word);
}

static bool is_cancelled(const ls_loader *l)
{
    return atomic_load_explicit(&l->cancel, memory_order_relaxed);
}

/* Reads sample `index`, with the random choices of `draw`, into a row. */
static ls_status read_sample(const ls_loader *l, row_reader *r, size_t index, size_t draw,
                             batch_slot *slot, size_t row)
{
    sample_call call = {.index = index, .draw = draw, .epoch = l->epoch, .seed = l->epoch_seed};

    slot->indices[row] = index;
    return row_read(&l->layout, &slot->rows, row, &call, r);
}

/* Whether the sample is not longer than the batch. */
static bool fits(const ls_loader *l, const batch_slot *slot, size_t index)
{
    const ls_dataset *d = l->layout.set;
    bool is_short = true;

    for (int k = 0; k < d->n_lengths; k++)
        is_short = is_short && d->lengths[(size_t)k * d->count + index] <= slot->rows.longest[k];
    return is_short;
}

/* Reads the samples behind `index` until one is readable. The random choices are those of `index`,
 * so that the replacement differs from its own sample in the same epoch. */
static ls_status replace(ls_loader *l, row_reader *r, size_t index, batch_slot *slot, size_t row)
{
    const size_t count = l->layout.set->count;
    ls_status st = LS_EFORMAT;
    size_t n_broken = 1;

    for (size_t k = 1; k < count && n_broken <= MAX_REPLACEMENTS && st == LS_EFORMAT; k++) {
        if (is_cancelled(l))
            return LS_OK;
        if (!fits(l, slot, (index + k) % count))
            continue;
        st = read_sample(l, r, (index + k) % count, index, slot, row);
        n_broken += st == LS_EFORMAT;
    }
    return st == LS_EFORMAT ? ls_context(st, "%zu %ss in a row are broken, the last one", n_broken,
                                         sample_word(l))
                            : st;
}

static ls_status read_row(ls_loader *l, row_reader *r, piece *p, size_t row)
{
    batch_slot *slot = loader_slot(l, p->batch);
    const size_t index = ls_sampler_index(l->opt.sampler, p->batch * l->batch_rows + row);
    const ls_status st = read_sample(l, r, index, index, slot, row);

    slot->is_left_out[row] = 0;
    if (st != LS_EFORMAT || l->opt.bad_images == LS_BAD_IMAGES_FAIL)
        return st;
    log_bad_sample(l, index);
    p->n_bad++;
    if (l->opt.bad_images == LS_BAD_IMAGES_REPLACE)
        return replace(l, r, index, slot, row);
    slot->is_left_out[row] = 1;
    return LS_OK;
}

static void read_piece(ls_loader *l, row_reader *r, piece *p)
{
    for (size_t row = p->first; row < p->first + p->n && !is_cancelled(l); row++) {
        p->status = read_row(l, r, p, row);
        p->failed_row = row;
        if (p->status != LS_OK)
            return;
    }
}

/* --- pieces; the caller has the lock --- */

static bool can_take(const ls_loader *l)
{
    return l->taken < l->limit && l->taken - l->freed < l->n_slots;
}

static piece take_piece(ls_loader *l)
{
    batch_slot *slot = loader_slot(l, l->taken);
    const size_t left = slot->n_rows - l->taken_rows;
    const piece p = {.batch = l->taken,
                     .first = l->taken_rows,
                     .n = left < l->piece_rows ? left : l->piece_rows};

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

/* The slot stores the failure, because error texts are per thread. */
static void store_failure(batch_slot *slot, ls_status st, size_t row)
{
    slot->status = st;
    slot->failed_row = row;
    (void)text_format(slot->error, sizeof(slot->error), "%s", ls_last_error());
}

/* Counts the rows of a piece; the last piece completes the batch, without the lock. */
static void finish_piece(ls_loader *l, const piece *p)
{
    batch_slot *slot = loader_slot(l, p->batch);
    ls_status st = LS_OK;

    slot->rows_done += p->n;
    slot->n_bad += p->n_bad;
    if (p->status != LS_OK && (slot->status == LS_OK || p->failed_row < slot->failed_row))
        store_failure(slot, p->status, p->failed_row);
    if (slot->rows_done < slot->n_rows)
        return;
    if (slot->status == LS_OK && !is_cancelled(l)) {
        ls_mutex_unlock(&l->lock);
        st = loader_complete(l, slot);
        ls_mutex_lock(&l->lock);
    }
    if (st != LS_OK)
        store_failure(slot, st, 0);
    slot->is_ready = true;
}

/* Reads one piece, without the lock meanwhile. */
static void work_once(ls_loader *l, row_reader *r)
{
    piece p = take_piece(l);

    l->n_busy++;
    ls_mutex_unlock(&l->lock);
    read_piece(l, r, &p);
    ls_mutex_lock(&l->lock);
    finish_piece(l, &p);
    l->n_busy--;
}

static void reader_thread(void *arg)
{
    loader_thread *self = arg;
    ls_loader *l = self->loader;

    ls_mutex_lock(&l->lock);
    for (;;) {
        while (!l->stop && !can_take(l))
            (void)ls_cond_wait(&l->work, &l->lock, ls_deadline_ms(-1));
        if (l->stop)
            break;
        work_once(l, &self->reader);
        ls_cond_broadcast(&l->done);
    }
    ls_mutex_unlock(&l->lock);
}

/* --- for the caller's thread --- */

ls_status loader_start_threads(ls_loader *l)
{
    const int n = l->opt.threads;

    LS_TRY(LS_NEW(&l->threads, n > 0 ? (size_t)n : 1, "for %d threads", n));
    while (l->n_threads < n) {
        loader_thread *t = &l->threads[l->n_threads];

        t->loader = l;
        LS_TRY(ls_thread_start(&t->thread, "ls-loader", reader_thread, t));
        l->n_threads++;
    }
    return LS_OK;
}

void loader_stop_threads(ls_loader *l)
{
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
    ls_mutex_lock(&l->lock);
    l->stop = true;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_threads; i++)
        ls_thread_join(&l->threads[i].thread);
    for (int i = 0; l->threads != NULL && (i == 0 || i < l->n_threads); i++)
        row_reader_free(&l->threads[i].reader);
    ls_free(l->threads);
}

void loader_begin(ls_loader *l, size_t first)
{
    ls_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->n_slots; i++)
        l->slots[i].is_ready = false;
    l->taken = first;
    l->taken_rows = 0;
    l->freed = first;
    l->limit = l->n_batches;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
}

void loader_cancel(ls_loader *l)
{
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
    ls_mutex_lock(&l->lock);
    l->limit = 0;
    while (l->n_busy > 0)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&l->lock);
    atomic_store_explicit(&l->cancel, false, memory_order_relaxed);
}

void loader_set_freed(ls_loader *l, size_t batch)
{
    ls_mutex_lock(&l->lock);
    l->freed = batch;
    ls_cond_broadcast(&l->work);
    ls_mutex_unlock(&l->lock);
}

ls_status loader_wait(ls_loader *l, size_t batch, batch_slot **out)
{
    batch_slot *slot = loader_slot(l, batch);

    ls_mutex_lock(&l->lock);
    while (!slot->is_ready && l->n_threads > 0)
        (void)ls_cond_wait(&l->done, &l->lock, ls_deadline_ms(-1));
    while (!slot->is_ready)
        work_once(l, &l->threads[0].reader);
    slot->is_ready = false;
    ls_mutex_unlock(&l->lock);
    *out = slot;
    return slot->status == LS_OK ? LS_OK : ls_fail(slot->status, "%s", slot->error);
}

batch_slot *loader_ready(ls_loader *l, size_t batch)
{
    batch_slot *slot = loader_slot(l, batch);
    bool is_ready;

    ls_mutex_lock(&l->lock);
    is_ready = slot->is_ready && slot->status == LS_OK && slot->n_left == slot->n_rows;
    slot->is_ready = slot->is_ready && !is_ready;
    ls_mutex_unlock(&l->lock);
    return is_ready ? slot : NULL;
}
