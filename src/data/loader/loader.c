/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - the public functions of a loader: options, life, epochs, and the fields of a
 * batch. loader.h explains how batches are read.
 */
#include "data/loader/loader.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/fields.h"
#include "data/sampler.h"

#include <inttypes.h>

#define MAX_THREADS  256
#define MAX_PREFETCH 4096

/* Least size of a piece in elements, so that the lock is not taken for every small row. */
#define PIECE_ELEMENTS 65536
/* A batch of at most so many elements is copied from memory in less time than a thread wakes. */
#define INLINE_ELEMENTS 16384

#define READ_STREAM 0x72656164U /* separates this use of (seed, epoch) from others */

/* --- making a loader --- */

static ls_status check_options(const ls_loader_options *opt)
{
    const ls_dataset *d = opt->dataset;

    if (opt->device == NULL || d == NULL || opt->sampler == NULL)
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
    if (d->images != NULL && d->sample_dims[1] < 1)
        return ls_fail(LS_EINVAL, "loader: the images differ in size; set a common size with "
                                  "ls_dataset_augment()");
    if (sampler_total(opt->sampler) != ls_dataset_count(d))
        return ls_fail(LS_EINVAL, "loader: the sampler is for %zu samples, the data set has %zu",
                       sampler_total(opt->sampler), ls_dataset_count(d));
    return LS_OK;
}

/* Elements of the longest sample, at least 1. */
static size_t count_elements(const batch_layout *l)
{
    size_t n = 0;

    for (int i = 0; i < l->set->n_fields; i++)
        n += batch_row_bytes(&l->columns[i], l->longest) / l->columns[i].element_bytes;
    return n > 0 ? n : 1;
}

static int count_threads(const ls_loader *l, size_t sample_elements)
{
    if (l->opt.threads != 0)
        return l->opt.threads;
    return l->layout.set->is_in_memory && l->batch_rows <= INLINE_ELEMENTS / sample_elements ? -1
                                                                                             : 1;
}

static void plan_epoch(ls_loader *l)
{
    const size_t n = ls_sampler_count(l->opt.sampler);
    const size_t elements = count_elements(&l->layout);

    l->tail_rows = l->opt.drop_last ? 0 : n % l->batch_rows;
    l->n_batches = n / l->batch_rows + (l->tail_rows > 0 ? 1 : 0);
    l->piece_rows = (PIECE_ELEMENTS + elements - 1) / elements;
    l->opt.threads = count_threads(l, elements);
    // One slot is the caller's. A short epoch needs no more slots than it has batches.
    l->n_slots = (l->opt.prefetch == 0 ? 2 : (size_t)l->opt.prefetch) + 1;
    if (l->opt.threads < 0 && ls_device_queue(l->opt.device) == NULL)
        l->n_slots = 1; // nothing reads ahead
    if (l->n_slots > l->n_batches)
        l->n_slots = l->n_batches > 0 ? l->n_batches : 1;
}

static ls_status make_loader(ls_loader *l)
{
    const bool is_stream = ls_device_queue(l->opt.device) != NULL;

    l->batch_rows = (size_t)l->opt.batch_size;
    LS_TRY(batch_layout_make(l->opt.dataset, is_stream, l->batch_rows, &l->layout));
    plan_epoch(l);
    LS_TRY(loader_make_slots(l));
    return loader_start_threads(l);
}

ls_status ls_loader_create(const ls_loader_options *opt, ls_loader **out)
{
    ls_loader_options o;
    ls_loader *l;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_loader_options, opt, &o), "loader"));
    LS_TRY(check_options(&o));
    LS_TRY(LS_NEW(&l, 1, "for a loader"));
    l->opt = o;
    dataset_count_loader(o.dataset, 1);
    ls_mutex_init(&l->lock);
    ls_cond_init(&l->work);
    ls_cond_init(&l->done);
    st = make_loader(l);
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
    loader_stop_threads(l);
    loader_free_slots(l);
    ls_cond_destroy(&l->done);
    ls_cond_destroy(&l->work);
    ls_mutex_destroy(&l->lock);
    dataset_count_loader(l->opt.dataset, -1);
    ls_free(l);
}

/* --- an epoch --- */

ls_status ls_loader_start(ls_loader *l, uint64_t epoch, size_t first_batch)
{
    LS_TRY(LS_GIVEN(l));
    if (first_batch > l->n_batches)
        return ls_fail(LS_EINVAL, "loader: epoch %" PRIu64 " cannot begin at batch %zu of %zu",
                       epoch, first_batch, l->n_batches);
    l->is_started = false;
    l->failure = LS_OK;
    loader_cancel(l);
    LS_TRY(loader_finish_copies(l));
    LS_TRY(ls_sampler_set_epoch(l->opt.sampler, epoch));
    for (size_t i = 0; i < l->n_slots; i++)
        LS_TRY(loader_prepare(l, first_batch + i));
    l->epoch = epoch;
    l->epoch_seed = ls_hash3(sampler_seed(l->opt.sampler), epoch, READ_STREAM);
    loader_begin(l, first_batch);
    l->next = first_batch;
    l->sent = first_batch;
    l->is_started = true;
    return LS_OK;
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
    st = l->on_device == NULL ? loader_next_on_host(l, out) : loader_next_on_device(l, out);
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

/* --- batches --- */

void loader_return(ls_loader *l, ls_tensor *const *tensors, size_t rows, ls_batch *out)
{
    const int n = l->layout.set->n_fields;
    batch_facts *f = &l->facts;

    for (int i = 0; i < n; i++) {
        const int column = l->layout.lengths_of[i];

        f->fields[i] = tensors[i];
        f->length_tensors[i] = column < 0 ? NULL : tensors[column];
    }
    *out = (ls_batch){.x = f->fields[0],
                      .y = n > 1 ? f->fields[1] : NULL,
                      .rows = (int64_t)rows,
                      .n_fields = n,
                      .fields = f->fields,
                      .lengths = f->length_tensors,
                      .host_lengths = f->lengths,
                      .indices = f->indices,
                      .about = l->layout.set->fields};
}

void loader_return_empty(ls_loader *l, ls_batch *out)
{
    batch_memory_written(&l->empty, &l->layout);
    l->facts.indices = l->slots[0].indices;
    for (int i = 0; i < l->layout.set->n_fields; i++)
        l->facts.lengths[i] = l->layout.lengths_of[i] < 0 ? NULL : l->slots[0].rows.longest;
    loader_return(l, l->empty.tensors, 0, out);
}

static int find_field(const ls_batch *b, const char *name)
{
    if (b == NULL || name == NULL || b->fields == NULL) {
        ls_fail(LS_EINVAL, "a field needs a batch of ls_loader_next() or ls_run_next() and a name");
        return -1;
    }
    return fields_find(b->about, b->n_fields, name);
}

ls_tensor *ls_batch_field(const ls_batch *batch, const char *name)
{
    const int i = find_field(batch, name);

    return i < 0 ? NULL : batch->fields[i];
}

static int find_lengths(const ls_batch *b, const char *name)
{
    const int i = find_field(b, name);

    if (i < 0 || b->lengths[i] != NULL)
        return i;
    ls_fail(LS_EINVAL, "field \"%s\" has a fixed size", name);
    return -1;
}

ls_tensor *ls_batch_lengths(const ls_batch *batch, const char *name)
{
    const int i = find_lengths(batch, name);

    return i < 0 ? NULL : batch->lengths[i];
}

const int64_t *ls_batch_host_lengths(const ls_batch *batch, const char *name)
{
    const int i = find_lengths(batch, name);

    return i < 0 ? NULL : batch->host_lengths[i];
}
