/* SPDX-License-Identifier: Apache-2.0 */
/* device_batches.c - see device_batches.h. After the first batches nothing is allocated. */
#include "data/loader/device_batches.h"

#include "base/alloc.h"
#include "data/loader/batch_memory.h"
#include "data/sample.h"
#include "tensor/device.h"

#include <string.h>

#define N_FULL 2

/* Tensors that batches are copied to. x has memory while the batch is in use. */
typedef struct device_batch {
    batch_memory sent;
    void *addresses[BATCH_MAX_COLUMNS]; /* of the elements, for copies */
    ls_tensor *x;      /* normalized floats of the bytes in column 0; NULL: there are none */
    accel_event *used; /* in ACCEL_COMPUTE: the operators that read the tensors */
    bool is_complete;  /* all of them are set */
} device_batch;

typedef struct host_slot {
    void *values[BATCH_MAX_COLUMNS];
    size_t bytes[BATCH_MAX_COLUMNS];
    accel_event *copied; /* in ACCEL_COPY */
    device_batch *target;
} host_slot;

struct device_batches {
    ls_device *device;
    accel *accel;
    const batch_layout *layout;
    ls_tensor *values; /* of OP_NORMALIZE */
    host_slot *slots;
    size_t n_slots;
    device_batch full[N_FULL];
    device_batch tail;
    device_batch reduced;
    size_t n_full;          /* full batches that were sent */
    device_batch *received; /* in use; NULL: none */
};

/* The operators that are queued so far are the last that use the tensors as they are. Their memory
 * may have moved: a device may change the layout of what it reads. */
static ls_status end_use(const device_batches *b, device_batch *batch)
{
    LS_TRY(batch_memory_open(&batch->sent, b->layout, batch->addresses));
    return accel_event_record(batch->used, accel_queue(b->accel, ACCEL_COMPUTE));
}

/* The shape of the normalized x; it gets memory when the batch is received. */
static ls_status fit_x(const device_batches *b, device_batch *batch, const batch_shape *shape)
{
    int64_t dims[LS_MAX_DIMS];

    if (!b->layout->has_pixels)
        return LS_OK;
    batch_column_dims(&b->layout->columns[0], shape, dims);
    ls_tensor_destroy(batch->x);
    batch->x = NULL;
    return tensor_shape(b->device, LS_F32, 4, dims, &batch->x);
}

/* Gives the tensors these sizes. New memory may still be used by operators that are queued. */
static ls_status fit(const device_batches *b, device_batch *batch, const batch_shape *shape)
{
    bool changed;

    LS_TRY(batch_memory_fit(&batch->sent, b->device, b->layout, shape, &changed));
    if (!changed && batch->is_complete)
        return LS_OK;
    batch->is_complete = false;
    LS_TRY(fit_x(b, batch, shape));
    if (batch->used == NULL)
        LS_TRY(accel_event_create(b->accel, false, &batch->used));
    LS_TRY(end_use(b, batch));
    batch->is_complete = true;
    return LS_OK;
}

static void free_batch(device_batch *batch)
{
    batch_memory_free(&batch->sent);
    ls_tensor_destroy(batch->x);
    accel_event_destroy(batch->used);
}

/* More than three channels share their values: see sample_values(). */
static ls_status make_values(device_batches *b)
{
    const int64_t channels = b->layout->columns[0].dims[0];
    const int64_t dims[2] = {channels <= 3 ? channels : 1, 256};
    float values[3][256];

    for (int c = 0; c < dims[0]; c++)
        memcpy(values[c], sample_values(b->layout->set, c), sizeof(values[c]));
    LS_TRY(ls_tensor_create(b->device, LS_F32, 2, dims, &b->values));
    return ls_tensor_write(b->values, values, (size_t)dims[0] * 256);
}

/* Where samples have one size, so that a lack of memory shows before the first epoch. */
static ls_status make_memory(device_batches *b, const batch_sizes *sizes)
{
    const batch_shape full = {.rows = sizes->batch_rows};
    const batch_shape tail = {.rows = sizes->tail_rows};
    void *values[BATCH_MAX_COLUMNS];

    for (size_t i = 0; i < b->n_slots; i++)
        LS_TRY(device_batches_prepare(b, i, &full, values));
    for (int i = 0; i < N_FULL; i++)
        LS_TRY(fit(b, &b->full[i], &full));
    return sizes->tail_rows > 0 ? fit(b, &b->tail, &tail) : LS_OK;
}

static ls_status make_all(device_batches *b, const batch_sizes *sizes)
{
    if (b->layout->has_pixels)
        LS_TRY(make_values(b));
    for (size_t i = 0; i < b->n_slots; i++)
        LS_TRY(accel_event_create(b->accel, false, &b->slots[i].copied));
    return batch_layout_varies(b->layout) ? LS_OK : make_memory(b, sizes);
}

ls_status device_batches_create(ls_device *device, const batch_layout *of, const batch_sizes *sizes,
                                device_batches **out)
{
    device_batches *b;
    ls_status st;

    LS_TRY(LS_NEW(&b, 1, "for batches of a device"));
    b->device = device;
    b->accel = device->accel;
    b->layout = of;
    b->slots = ls_calloc(sizes->n_slots, sizeof(*b->slots));
    if (b->slots == NULL) {
        ls_free(b);
        return ls_fail(LS_ENOMEM, "no memory for %zu batches", sizes->n_slots);
    }
    b->n_slots = sizes->n_slots;
    st = make_all(b, sizes);
    if (st != LS_OK) {
        device_batches_destroy(b);
        return st;
    }
    *out = b;
    return LS_OK;
}

void device_batches_destroy(device_batches *b)
{
    ls_status ignored;

    if (b == NULL)
        return;
    for (size_t i = 0; i < b->n_slots; i++) {
        host_slot *slot = &b->slots[i];

        if (slot->copied != NULL) {
            ignored = device_batches_wait(b, i); // a lost accelerator copies nothing
            LS_UNUSED(ignored);
        }
        accel_event_destroy(slot->copied);
        for (int c = 0; c < b->layout->n_columns; c++)
            accel_free_host(b->accel, slot->values[c]);
    }
    for (int i = 0; i < N_FULL; i++)
        free_batch(&b->full[i]);
    free_batch(&b->tail);
    free_batch(&b->reduced);
    ls_tensor_destroy(b->values);
    ls_free(b->slots);
    ls_free(b);
}

/* Grows the memory by a quarter more than it needs where samples differ in size, so that most
 * batches fit. */
static ls_status reserve(const device_batches *b, host_slot *slot, int column, size_t bytes)
{
    const size_t more = batch_layout_varies(b->layout) ? bytes / 4 : 0;

    if (slot->values[column] != NULL && bytes <= slot->bytes[column])
        return LS_OK;
    accel_free_host(b->accel, slot->values[column]);
    slot->bytes[column] = bytes + more + 1;
    slot->values[column] = accel_alloc_host(b->accel, slot->bytes[column]);
    if (slot->values[column] != NULL)
        return LS_OK;
    return ls_fail(LS_ENOMEM,
                   "no page-locked memory of %zu bytes for batches of a device; use smaller "
                   "batches, or fewer ranks on this machine",
                   slot->bytes[column]);
}

ls_status device_batches_prepare(device_batches *b, size_t slot, const batch_shape *shape,
                                 void **values)
{
    for (int i = 0; i < b->layout->n_columns; i++) {
        const size_t row_bytes = batch_row_bytes(&b->layout->columns[i], shape->longest);

        LS_TRY(reserve(b, &b->slots[slot], i, shape->rows * row_bytes));
        values[i] = b->slots[slot].values[i];
    }
    return LS_OK;
}

static device_batch *find_target(device_batches *b, batch_kind kind)
{
    switch (kind) {
    case BATCH_FULL:
        return &b->full[b->n_full++ % N_FULL];
    case BATCH_TAIL:
        return &b->tail;
    case BATCH_REDUCED:
        break;
    }
    return &b->reduced;
}

ls_status device_batches_send(device_batches *b, size_t slot, batch_kind kind,
                              const batch_shape *shape)
{
    ls_queue *queue = accel_queue(b->accel, ACCEL_COPY);
    host_slot *from = &b->slots[slot];
    device_batch *to = find_target(b, kind);

    LS_ASSERT(to != b->received);
    from->target = to;
    LS_TRY(fit(b, to, shape));
    LS_TRY(accel_queue_wait(queue, to->used, "loader: use of the earlier batch"));
    for (int i = 0; i < b->layout->n_columns; i++)
        LS_TRY(accel_copy(queue, to->addresses[i], from->values[i],
                          shape->rows * batch_row_bytes(&b->layout->columns[i], shape->longest),
                          ACCEL_TO_DEVICE));
    return accel_event_record(from->copied, queue);
}

/* Gives x its elements. */
static ls_status normalize(const device_batches *b, device_batch *batch)
{
    const op_call call = {.op = OP_NORMALIZE,
                          .n_in = 2,
                          .n_out = 1,
                          .in = {b->values, batch->sent.tensors[0]},
                          .out = {batch->x}};
    const ls_status st = device_run(b->device, &call);

    if (st != LS_OK)
        tensor_release(batch->x);
    return st;
}

ls_status device_batches_receive(device_batches *b, size_t slot, ls_tensor **tensors)
{
    device_batch *batch = b->slots[slot].target;

    LS_TRY(accel_queue_wait(accel_queue(b->accel, ACCEL_COMPUTE), b->slots[slot].copied,
                            "loader: copy of the batch"));
    for (int i = 0; i < b->layout->n_columns; i++) {
        tensors[i] = batch->sent.tensors[i];
        tensor_written(tensors[i], "the next batch");
    }
    b->received = batch;
    if (!b->layout->has_pixels)
        return LS_OK;
    LS_TRY(normalize(b, batch));
    tensors[0] = batch->x;
    return LS_OK;
}

ls_status device_batches_release(device_batches *b)
{
    device_batch *batch = b->received;

    b->received = NULL;
    if (batch == NULL)
        return LS_OK;
    if (batch->x != NULL)
        tensor_release(batch->x);
    return end_use(b, batch);
}

ls_status device_batches_test(const device_batches *b, size_t slot, bool *done)
{
    return accel_event_test(b->slots[slot].copied, done);
}

ls_status device_batches_wait(const device_batches *b, size_t slot)
{
    return accel_event_wait(b->slots[slot].copied, "loader: memory of the slot");
}
