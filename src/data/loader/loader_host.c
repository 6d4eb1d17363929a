/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_host.c - the next batch on a device that uses host memory: the tensors that the threads
 * have filled. loader.c calls it.
 */
#include "data/loader/loader.h"

#include <string.h>

/* The caller is done with the batch before `batch`: its slot is free for the threads. */
static ls_status free_previous(ls_loader *l, size_t batch)
{
    if (batch == l->freed)
        return LS_OK;
    batch_memory_written(loader_memory(l, batch - 1), &l->layout);
    batch_memory_written(&l->reduced, &l->layout);
    LS_TRY(loader_prepare(l, batch - 1 + l->n_slots));
    loader_set_freed(l, batch);
    return LS_OK;
}

/* Copies the remaining rows into tensors of that size. */
static ls_status reduce(ls_loader *l, const batch_slot *slot)
{
    const batch_shape shape = {.rows = slot->n_left, .longest = slot->rows.longest};
    void *values[BATCH_MAX_COLUMNS];
    bool changed;

    LS_TRY(batch_memory_fit(&l->reduced, l->opt.device, &l->layout, &shape, &changed));
    LS_TRY(batch_memory_open(&l->reduced, &l->layout, values));
    for (int i = 0; i < l->layout.n_columns; i++)
        memcpy(values[i], slot->rows.values[i], slot->n_left * slot->rows.row_bytes[i]);
    return LS_OK;
}

/* The batch `l->next` without its broken rows; out->rows is 0 when all are broken. */
static ls_status next_batch(ls_loader *l, ls_batch *out)
{
    const size_t batch = l->next;
    batch_memory *memory = loader_memory(l, batch);
    batch_slot *slot;

    *out = (ls_batch){0};
    LS_TRY(loader_wait(l, batch, &slot));
    l->next++;
    l->n_bad += slot->n_bad;
    if (slot->n_left == 0)
        return LS_OK;
    if (slot->n_left < slot->n_rows) {
        LS_TRY(reduce(l, slot));
        memory = &l->reduced;
    }
    batch_memory_written(memory, &l->layout);
    l->facts.indices = slot->indices;
    for (int i = 0; i < l->layout.set->n_fields; i++) {
        const int column = l->layout.lengths_of[i];

        l->facts.lengths[i] = column < 0 ? NULL : slot->rows.values[column];
    }
    loader_return(l, memory->tensors, slot->n_left, out);
    return LS_OK;
}

ls_status loader_next_on_host(ls_loader *l, ls_batch *out)
{
    do {
        LS_TRY(free_previous(l, l->next));
        if (l->next == l->n_batches) {
            loader_return_empty(l, out);
            return LS_OK;
        }
        LS_TRY(next_batch(l, out));
    } while (out->rows == 0);
    return LS_OK;
}
