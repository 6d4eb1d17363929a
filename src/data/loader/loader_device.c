/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_device.c - the next batch on a stream device, whose slots are page-locked memory.
 * ls_loader_next() queues copies: that of the batch it returns, and where the next batch is ready,
 * that one's, which then runs beside the operators of the first. A slot is free when its copy is
 * done. loader.c calls it.
 */
#include "data/loader/loader.h"

#include <string.h>

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
        if (done)
            LS_TRY(loader_prepare(l, freed + l->n_slots));
        freed += done;
    }
    if (freed > l->freed)
        loader_set_freed(l, freed);
    return LS_OK;
}

/* Copies what ls_batch has of the slot, which is read into again while the batch is used. */
static void store_facts(ls_loader *l, const batch_slot *slot)
{
    sent_facts *f = &l->sent_facts[l->sent % 2];

    f->rows = slot->n_left;
    f->n_bad = slot->n_bad;
    memcpy(f->indices, slot->indices, slot->n_left * sizeof(*f->indices));
    for (int i = 0; i < l->layout.set->n_fields; i++) {
        const int column = l->layout.lengths_of[i];

        if (column >= 0)
            memcpy(f->lengths[i], slot->rows.values[column], slot->n_left * sizeof(int64_t));
    }
}

/* Queues the copy of batch `l->sent`, which the slot has. */
static ls_status send_batch(ls_loader *l, const batch_slot *slot)
{
    const batch_shape shape = {.rows = slot->n_left, .longest = slot->rows.longest};
    batch_kind kind = loader_is_tail(l, l->sent) ? BATCH_TAIL : BATCH_FULL;

    if (slot->n_left < slot->n_rows)
        kind = BATCH_REDUCED;
    if (slot->n_left > 0)
        LS_TRY(device_batches_send(l->on_device, l->sent % l->n_slots, kind, &shape));
    store_facts(l, slot);
    l->sent++;
    return LS_OK;
}

/* Batch `l->next`; out->rows is 0 when all its rows are broken. */
static ls_status receive_batch(ls_loader *l, ls_batch *out)
{
    const size_t batch = l->next;
    const sent_facts *f = &l->sent_facts[batch % 2];
    ls_tensor *tensors[BATCH_MAX_COLUMNS];

    *out = (ls_batch){0};
    if (l->sent == batch) {
        batch_slot *slot;

        LS_TRY(loader_wait(l, batch, &slot));
        LS_TRY(send_batch(l, slot));
    }
    l->next++;
    l->n_bad += f->n_bad;
    if (f->rows == 0)
        return LS_OK;
    LS_TRY(device_batches_receive(l->on_device, batch % l->n_slots, tensors));
    l->facts.indices = f->indices;
    for (int i = 0; i < l->layout.set->n_fields; i++)
        l->facts.lengths[i] = f->lengths[i];
    loader_return(l, tensors, f->rows, out);
    return LS_OK;
}

/* Sends batch `l->next` if it is ready, complete, and without failure. */
static ls_status send_ahead(ls_loader *l)
{
    const batch_slot *slot = l->next < l->n_batches ? loader_ready(l, l->next) : NULL;

    return slot == NULL ? LS_OK : send_batch(l, slot);
}

ls_status loader_next_on_device(ls_loader *l, ls_batch *out)
{
    LS_TRY(device_batches_release(l->on_device));
    do {
        LS_TRY(free_copied(l));
        if (l->next == l->n_batches) {
            loader_return_empty(l, out);
            return LS_OK;
        }
        LS_TRY(receive_batch(l, out));
    } while (out->rows == 0);
    return send_ahead(l);
}

ls_status loader_finish_copies(ls_loader *l)
{
    if (l->on_device == NULL)
        return LS_OK;
    LS_TRY(device_batches_release(l->on_device));
    for (size_t i = 0; i < l->n_slots; i++)
        LS_TRY(device_batches_wait(l->on_device, i));
    return LS_OK;
}
