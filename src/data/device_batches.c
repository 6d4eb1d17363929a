/* SPDX-License-Identifier: Apache-2.0 */
/* device_batches.c - see device_batches.h. After the first batches nothing is allocated. */
#include "data/device_batches.h"

#include "base/alloc.h"
#include "data/sample.h"
#include "tensor/device.h"

#include <string.h>

#define N_FULL 2

/* Tensors that batches are copied to: pixels and y. x has memory while the batch is in use. */
typedef struct device_batch {
    ls_tensor *pixels;
    ls_tensor *x;
    ls_tensor *y;
    void *bytes; /* addresses of the elements of pixels and y, for copies */
    void *labels;
    accel_event *used; /* in ACCEL_COMPUTE: the operators that read the tensors */
} device_batch;

typedef struct host_slot {
    uint8_t *pixels;
    int64_t *labels;
    accel_event *copied; /* in ACCEL_COPY */
    device_batch *target;
} host_slot;

struct device_batches {
    ls_device *device;
    accel *accel;
    int64_t chw[3]; /* of a sample */
    size_t sample_count;
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
    LS_TRY(tensor_plain(batch->pixels, &batch->bytes));
    LS_TRY(tensor_plain(batch->y, &batch->labels));
    return accel_event_record(batch->used, accel_queue(b->accel, ACCEL_COMPUTE));
}

static ls_status make_batch(const device_batches *b, size_t rows, device_batch *batch)
{
    const int64_t dims[4] = {(int64_t)rows, b->chw[0], b->chw[1], b->chw[2]};

    LS_TRY(ls_tensor_create(b->device, LS_U8, 4, dims, &batch->pixels));
    LS_TRY(tensor_shape(b->device, LS_F32, 4, dims, &batch->x));
    LS_TRY(ls_tensor_create(b->device, LS_I64, 1, dims, &batch->y));
    if (batch->used == NULL)
        LS_TRY(accel_event_create(b->accel, false, &batch->used));
    return end_use(b, batch);
}

static void free_tensors(device_batch *batch)
{
    ls_tensor_destroy(batch->pixels);
    ls_tensor_destroy(batch->x);
    ls_tensor_destroy(batch->y);
    batch->pixels = NULL;
    batch->x = NULL;
    batch->y = NULL;
}

static void free_batch(device_batch *batch)
{
    free_tensors(batch);
    accel_event_destroy(batch->used);
}

static ls_status make_slots(device_batches *b, size_t rows)
{
    const size_t pixels_bytes = rows * b->sample_count;

    for (size_t i = 0; i < b->n_slots; i++) {
        host_slot *slot = &b->slots[i];

        slot->pixels = accel_alloc_host(b->accel, pixels_bytes);
        slot->labels = accel_alloc_host(b->accel, rows * sizeof(*slot->labels));
        if (slot->pixels == NULL || slot->labels == NULL)
            return ls_fail(LS_ENOMEM,
                           "no page-locked memory for %zu batches of %zu rows, %zu bytes each",
                           b->n_slots, rows, pixels_bytes);
        LS_TRY(accel_event_create(b->accel, false, &slot->copied));
    }
    return LS_OK;
}

/* More than three channels share their values: see sample_values(). */
static ls_status make_values(device_batches *b, const ls_dataset *set)
{
    const int64_t dims[2] = {b->chw[0] <= 3 ? b->chw[0] : 1, 256};
    float values[3][256];

    for (int c = 0; c < dims[0]; c++)
        memcpy(values[c], sample_values(set, c), sizeof(values[c]));
    LS_TRY(ls_tensor_create(b->device, LS_F32, 2, dims, &b->values));
    return ls_tensor_write(b->values, values, (size_t)dims[0] * 256);
}

static ls_status make_all(device_batches *b, const ls_dataset *set, const batch_sizes *sizes)
{
    LS_TRY(make_values(b, set));
    LS_TRY(make_slots(b, sizes->batch_rows));
    for (int i = 0; i < N_FULL; i++)
        LS_TRY(make_batch(b, sizes->batch_rows, &b->full[i]));
    return sizes->tail_rows > 0 ? make_batch(b, sizes->tail_rows, &b->tail) : LS_OK;
}

ls_status device_batches_create(ls_device *device, const ls_dataset *set, const batch_sizes *sizes,
                                device_batches **out)
{
    const int64_t *chw = ls_dataset_sample_dims(set);
    device_batches *b = ls_calloc(1, sizeof(*b));
    ls_status st;

    if (b == NULL)
        return ls_fail(LS_ENOMEM, "no memory for batches of a device");
    b->device = device;
    b->accel = device->accel;
    b->sample_count = 1;
    for (int i = 0; i < 3; i++) {
        b->chw[i] = chw[i];
        b->sample_count *= (size_t)chw[i];
    }
    b->slots = ls_calloc(sizes->n_slots, sizeof(*b->slots));
    if (b->slots == NULL) {
        ls_free(b);
        return ls_fail(LS_ENOMEM, "no memory for %zu batches", sizes->n_slots);
    }
    b->n_slots = sizes->n_slots;
    st = make_all(b, set, sizes);
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
        accel_free_host(b->accel, slot->pixels);
        accel_free_host(b->accel, slot->labels);
    }
    for (int i = 0; i < N_FULL; i++)
        free_batch(&b->full[i]);
    free_batch(&b->tail);
    free_batch(&b->reduced);
    ls_tensor_destroy(b->values);
    ls_free(b->slots);
    ls_free(b);
}

uint8_t *device_batches_pixels(const device_batches *b, size_t slot)
{
    return b->slots[slot].pixels;
}

int64_t *device_batches_labels(const device_batches *b, size_t slot)
{
    return b->slots[slot].labels;
}

static ls_status find_target(device_batches *b, batch_kind kind, size_t rows, device_batch **out)
{
    device_batch *reduced = &b->reduced;
    ls_status st;

    if (kind == BATCH_FULL) {
        *out = &b->full[b->n_full++ % N_FULL];
        return LS_OK;
    }
    *out = kind == BATCH_TAIL ? &b->tail : reduced;
    if (kind == BATCH_TAIL || (reduced->x != NULL && ls_tensor_dim(reduced->x, 0) == (int64_t)rows))
        return LS_OK;
    free_tensors(reduced);
    st = make_batch(b, rows, reduced);
    if (st != LS_OK)
        free_tensors(reduced);
    return st;
}

ls_status device_batches_send(device_batches *b, size_t slot, batch_kind kind, size_t rows)
{
    ls_queue *queue = accel_queue(b->accel, ACCEL_COPY);
    host_slot *from = &b->slots[slot];
    device_batch *to;

    LS_TRY(find_target(b, kind, rows, &to));
    LS_ASSERT(to != b->received);
    from->target = to;
    LS_TRY(accel_queue_wait(queue, to->used, "loader: use of the earlier batch"));
    LS_TRY(accel_copy(queue, to->bytes, from->pixels, rows * b->sample_count, ACCEL_TO_DEVICE));
    LS_TRY(
        accel_copy(queue, to->labels, from->labels, rows * sizeof(*from->labels), ACCEL_TO_DEVICE));
    return accel_event_record(from->copied, queue);
}

/* Gives x its elements. */
static ls_status normalize(const device_batches *b, device_batch *batch)
{
    const op_call call = {.op = OP_NORMALIZE,
                          .n_in = 2,
                          .n_out = 1,
                          .in = {b->values, batch->pixels},
                          .out = {batch->x}};
    const ls_status st = device_run(b->device, &call);

    if (st != LS_OK)
        tensor_release(batch->x);
    return st;
}

ls_status device_batches_receive(device_batches *b, size_t slot, ls_batch *out)
{
    device_batch *batch = b->slots[slot].target;

    LS_TRY(accel_queue_wait(accel_queue(b->accel, ACCEL_COMPUTE), b->slots[slot].copied,
                            "loader: copy of the batch"));
    tensor_written(batch->pixels);
    tensor_written(batch->y);
    LS_TRY(normalize(b, batch));
    b->received = batch;
    *out = (ls_batch){.x = batch->x, .y = batch->y, .rows = ls_tensor_dim(batch->x, 0)};
    return LS_OK;
}

ls_status device_batches_release(device_batches *b)
{
    device_batch *batch = b->received;

    b->received = NULL;
    if (batch == NULL)
        return LS_OK;
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
