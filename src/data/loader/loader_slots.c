/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_slots.c - the slots of a loader: their memory in the size of each batch, and what turns
 * rows that have been read into a batch. Nothing is allocated for a batch of the usual size.
 */
#include "data/loader/loader.h"

#include "base/alloc.h"
#include "data/sampler.h"

#include <string.h>

bool loader_is_tail(const ls_loader *l, size_t batch)
{
    return batch + 1 == l->n_batches && l->tail_rows > 0;
}

size_t loader_rows_of(const ls_loader *l, size_t batch)
{
    return loader_is_tail(l, batch) ? l->tail_rows : l->batch_rows;
}

batch_slot *loader_slot(const ls_loader *l, size_t batch)
{
    return &l->slots[batch % l->n_slots];
}

batch_memory *loader_memory(ls_loader *l, size_t batch)
{
    return loader_is_tail(l, batch) ? &l->tail : &loader_slot(l, batch)->memory;
}

/* --- memory --- */

static ls_status make_slot(const ls_loader *l, batch_slot *slot)
{
    const size_t n_columns = (size_t)l->layout.n_columns;
    const size_t n_lengths = (size_t)l->layout.set->n_lengths;

    slot->rows.values = ls_calloc(n_columns, sizeof(*slot->rows.values));
    slot->rows.row_bytes = ls_calloc(n_columns, sizeof(*slot->rows.row_bytes));
    slot->rows.longest = ls_calloc(n_lengths, sizeof(*slot->rows.longest));
    slot->indices = ls_calloc(l->batch_rows, sizeof(*slot->indices));
    slot->is_left_out = ls_calloc(l->batch_rows, 1);
    if (slot->rows.values == NULL || slot->rows.row_bytes == NULL || slot->rows.longest == NULL ||
        slot->indices == NULL || slot->is_left_out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a batch of %zu rows", l->batch_rows);
    return LS_OK;
}

static ls_status make_sent_facts(const ls_loader *l, sent_facts *f)
{
    bool has_memory;

    f->indices = ls_calloc(l->batch_rows, sizeof(*f->indices));
    has_memory = f->indices != NULL;
    for (int i = 0; i < l->layout.set->n_fields; i++) {
        if (l->layout.lengths_of[i] < 0)
            continue;
        f->lengths[i] = ls_calloc(l->batch_rows, sizeof(*f->lengths[i]));
        has_memory = has_memory && f->lengths[i] != NULL;
    }
    return has_memory ? LS_OK
                      : ls_fail(LS_ENOMEM, "no memory for a batch of %zu rows", l->batch_rows);
}

static ls_status make_device_memory(ls_loader *l)
{
    const batch_sizes sizes = {
        .batch_rows = l->batch_rows, .tail_rows = l->tail_rows, .n_slots = l->n_slots};

    for (int i = 0; i < 2; i++)
        LS_TRY(make_sent_facts(l, &l->sent_facts[i]));
    return device_batches_create(l->opt.device, &l->layout, &sizes, &l->on_device);
}

/* Where samples have one size, so that a lack of memory shows before the first epoch. */
static ls_status make_host_memory(ls_loader *l)
{
    const size_t n_full = l->n_batches - (l->tail_rows > 0 ? 1 : 0);
    batch_shape shape = {.rows = l->batch_rows};
    bool changed;

    if (batch_layout_varies(&l->layout))
        return LS_OK;
    for (size_t i = 0; i < l->n_slots && i < n_full; i++)
        LS_TRY(batch_memory_fit(&l->slots[i].memory, l->opt.device, &l->layout, &shape, &changed));
    shape.rows = l->tail_rows;
    return shape.rows > 0 ? batch_memory_fit(&l->tail, l->opt.device, &l->layout, &shape, &changed)
                          : LS_OK;
}

/* All lengths are 0: those that ls_calloc() gives. */
static ls_status make_empty(ls_loader *l)
{
    const batch_shape shape = {.rows = 0, .longest = l->slots[0].rows.longest};
    bool changed;

    return batch_memory_fit(&l->empty, l->opt.device, &l->layout, &shape, &changed);
}

ls_status loader_make_slots(ls_loader *l)
{
    LS_TRY(LS_NEW(&l->slots, l->n_slots, "for %zu batches", l->n_slots));
    for (size_t i = 0; i < l->n_slots; i++)
        LS_TRY(make_slot(l, &l->slots[i]));
    if (ls_device_queue(l->opt.device) == NULL)
        LS_TRY(make_host_memory(l));
    else
        LS_TRY(make_device_memory(l));
    return make_empty(l);
}

static void free_slot(batch_slot *slot)
{
    batch_memory_free(&slot->memory);
    ls_free(slot->rows.values);
    ls_free(slot->rows.row_bytes);
    ls_free(slot->rows.longest);
    ls_free(slot->indices);
    ls_free(slot->is_left_out);
}

void loader_free_slots(ls_loader *l)
{
    for (size_t i = 0; l->slots != NULL && i < l->n_slots; i++)
        free_slot(&l->slots[i]);
    ls_free(l->slots);
    for (int k = 0; k < 2; k++) {
        ls_free(l->sent_facts[k].indices);
        for (int i = 0; i < LS_MAX_FIELDS; i++)
            ls_free(l->sent_facts[k].lengths[i]);
    }
    device_batches_destroy(l->on_device);
    batch_memory_free(&l->reduced);
    batch_memory_free(&l->tail);
    batch_memory_free(&l->empty);
}

/* --- before a batch is read --- */

/* The largest of each length among the samples of the batch. */
static void find_longest(const ls_loader *l, batch_slot *slot, size_t batch)
{
    const ls_dataset *d = l->layout.set;

    for (int k = 0; k < d->n_lengths; k++)
        slot->rows.longest[k] = 0;
    for (size_t i = 0; i < slot->n_rows && d->n_lengths > 0; i++) {
        const size_t index = ls_sampler_index(l->opt.sampler, batch * l->batch_rows + i);

        for (int k = 0; k < d->n_lengths; k++) {
            const int64_t length = d->lengths[(size_t)k * d->count + index];

            if (length > slot->rows.longest[k])
                slot->rows.longest[k] = length;
        }
    }
}

ls_status loader_prepare(ls_loader *l, size_t batch)
{
    batch_slot *slot = loader_slot(l, batch);
    batch_memory *memory = loader_memory(l, batch);
    batch_shape shape;
    bool changed;

    if (batch >= l->n_batches)
        return LS_OK;
    slot->n_rows = loader_rows_of(l, batch);
    find_longest(l, slot, batch);
    for (int i = 0; i < l->layout.n_columns; i++)
        slot->rows.row_bytes[i] = batch_row_bytes(&l->layout.columns[i], slot->rows.longest);
    shape = (batch_shape){.rows = slot->n_rows, .longest = slot->rows.longest};
    if (l->on_device != NULL)
        return device_batches_prepare(l->on_device, batch % l->n_slots, &shape, slot->rows.values);
    LS_TRY(batch_memory_fit(memory, l->opt.device, &l->layout, &shape, &changed));
    return batch_memory_open(memory, &l->layout, slot->rows.values);
}

/* --- after its rows are read --- */

/* The copied ranges do not overlap: each is one row. */
static void move_row(const ls_loader *l, batch_slot *slot, size_t from, size_t to)
{
    for (int i = 0; i < l->layout.set->n_fields; i++) {
        char *values = slot->rows.values[i];
        const size_t bytes = slot->rows.row_bytes[i];

        memcpy(values + to * bytes, values + from * bytes, bytes);
    }
    slot->indices[to] = slot->indices[from];
}

static void drop_rows(const ls_loader *l, batch_slot *slot)
{
    slot->n_left = 0;
    for (size_t row = 0; row < slot->n_rows; row++) {
        if (slot->is_left_out[row])
            continue;
        if (slot->n_left < row)
            move_row(l, slot, row, slot->n_left);
        slot->n_left++;
    }
}

static void set_lengths(const ls_loader *l, const batch_slot *slot, int field)
{
    const ls_dataset *d = l->layout.set;
    const int column = l->layout.lengths_of[field];
    const int64_t *lengths;
    int64_t *values;

    if (column < 0)
        return;
    lengths = d->lengths + (size_t)l->layout.columns[column].first_length * d->count;
    values = slot->rows.values[column];
    for (size_t row = 0; row < slot->n_left; row++)
        values[row] = lengths[slot->indices[row]];
}

static ls_status collate(const ls_loader *l, const batch_slot *slot)
{
    const ls_dataset *d = l->layout.set;
    const int64_t *lengths[LS_MAX_FIELDS];
    ls_field fields[LS_MAX_FIELDS];
    const ls_host_batch batch = {
        .rows = (int64_t)slot->n_left,
        .indices = slot->indices,
        .epoch = l->epoch,
        .seed = dataset_draw_seed(l->epoch_seed, slot->indices[0], true),
        .n_fields = d->n_fields,
        .fields = fields,
        .values = slot->rows.values,
        .lengths = lengths,
    };

    for (int i = 0; i < d->n_fields; i++) {
        const int column = l->layout.lengths_of[i];

        fields[i] = d->fields[i];
        batch_sample_dims(&l->layout.columns[i], slot->rows.longest, fields[i].dims);
        lengths[i] = column < 0 ? NULL : slot->rows.values[column];
    }
    return d->ops->collate(d, &batch);
}

ls_status loader_complete(const ls_loader *l, batch_slot *slot)
{
    drop_rows(l, slot);
    for (int i = 0; i < l->layout.set->n_fields; i++)
        set_lengths(l, slot, i);
    if (l->layout.set->ops->collate == NULL || slot->n_left == 0)
        return LS_OK;
    return collate(l, slot);
}
