/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_device.c - the simulated stream device as a module: its kernels are those of cpu_ref, run
 * later. A kernel copies the call with tensors over the aliases of the device's memory and queues
 * it; the queue's thread runs it on a cpu_ref device of its own. device.c loads the module.
 */
#include "base/alloc.h"
#include "base/thread.h"
#include "tensor/batch_sync.h"
#include "tensor/sim/sim_host.h"
#include "tensor/sim/sim_accel.h"
#include "tensor/widen.h"

#include <stdarg.h>
#include <string.h>

typedef struct sim_run sim_run;

struct device_state {
    accel *accel;
    ls_device *reference; /* of the compute queue's thread */
    ls_mutex lock;
    sim_run *free_runs; /* under the lock: used again, so that a step allocates nothing */
    char fingerprint[48];
};

const device_host *sim_host;

void sim_note(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)sim_host->vfail(status, format, args);
    va_end(args);
}

/* --- one operator --- */

/* Batch norm over all ranks runs twice: up to its sums, and with the sums over all ranks. */
typedef enum run_part { PART_ALL, PART_LOCAL_SUMS, PART_SHARED_SUMS } run_part;

struct sim_run {
    sim_task task;
    sim_run *next; /* of run_many: runs directly after this one; of the free list */
    device_state *device;
    op_call call; /* of the tensors below */
    op_update update;
    ls_tensor in[OP_MAX_TENSORS];
    ls_tensor out[OP_MAX_TENSORS];
    storage storages[2 * OP_MAX_TENSORS];
    const storage *originals[2 * OP_MAX_TENSORS]; /* the storages that these stand for */
    int n_storages;
    void *results[OP_MAX_TENSORS]; /* where outputs go that the kernel places; or NULL */
    run_part part;
    double *sums; /* aliases: those of batch_sync.h, and dweight and dbias of PART_LOCAL_SUMS */
    bool has_sums;
};

static sim_run *run_take(device_state *self)
{
    sim_run *run;

    ls_mutex_lock(&self->lock);
    run = self->free_runs;
    if (run != NULL)
        self->free_runs = run->next;
    ls_mutex_unlock(&self->lock);
    if (run == NULL)
        return ls_calloc(1, sizeof(*run));
    memset(run, 0, sizeof(*run));
    return run;
}

/* Gives the run and those behind it back. */
static void run_give(sim_run *run)
{
    device_state *self = run->device;
    sim_run *last = run;

    while (last->next != NULL)
        last = last->next;
    ls_mutex_lock(&self->lock);
    last->next = self->free_runs;
    self->free_runs = run;
    ls_mutex_unlock(&self->lock);
}

/* PART_LOCAL_SUMS: the kernel ends here. PART_SHARED_SUMS: it goes on with all ranks' sums. */
static ls_status exchange_sums(void *arg, double *values, size_t n)
{
    sim_run *run = arg;

    if (run->part == PART_SHARED_SUMS) {
        memcpy(values, run->sums, n * sizeof(*values));
        return LS_OK;
    }
    memcpy(run->sums, values, n * sizeof(*values));
    run->has_sums = true;
    return ls_fail(LS_ECANCELED, "the other ranks' sums are missing");
}

/* Moves what the kernel has placed to the device's memory. */
static ls_status move_results(sim_run *run, ls_status st)
{
    for (int i = 0; i < run->call.n_out; i++) {
        ls_tensor *out = &run->out[i];
        void *data;

        if (run->results[i] == NULL)
            continue;
        if (st == LS_OK)
            st = tensor_plain(out, &data);
        if (st == LS_OK)
            memcpy(run->results[i], data, tensor_bytes(out));
        else
            memset(run->results[i], 0xFF, tensor_bytes(out));
        tensor_release(out);
    }
    return st;
}

static ls_status run_all(sim_task *task)
{
    ls_status st = LS_OK;

    for (sim_run *run = (sim_run *)task; run != NULL; run = run->next) {
        const ls_status own = move_results(run, device_run(run->device->reference, &run->call));

        if (st == LS_OK && !run->has_sums)
            st = own;
    }
    return st;
}

static void free_all(sim_task *task)
{
    run_give((sim_run *)task);
}

/* The storage over the alias of `original`; NULL when that is not this device's memory. */
static storage *stand_in(sim_run *run, const storage *original)
{
    storage *s = run->storages;

    for (int i = 0; i < run->n_storages; i++, s++) {
        if (run->originals[i] == original)
            return s;
    }
    *s = (storage){.n_refs = 1, // so that no tensor frees it
                   .device = run->device->reference,
                   .data = sim_accel_alias(run->device->accel, original->data, original->bytes),
                   .bytes = original->bytes,
                   .borrowed = true};
    run->originals[run->n_storages++] = original;
    return s->data == NULL ? NULL : s;
}

static ls_status copy_tensor(sim_run *run, const ls_tensor *t, ls_tensor *copy)
{
    *copy = (ls_tensor){.offset = t->offset,
                        .device = run->device->reference,
                        .dtype = t->dtype,
                        .n_dims = t->n_dims,
                        .count = t->count};
    memcpy(copy->dims, t->dims, sizeof(copy->dims));
    if (t->storage == NULL)
        return LS_OK;
    copy->storage = stand_in(run, t->storage);
    if (copy->storage == NULL)
        return sim_fail(LS_EINVAL, "sim: %s of %s is not in the memory of %s", "a tensor",
                        device_op_name(run->call.op), run->device->accel->name);
    copy->storage->n_refs++;
    return LS_OK;
}

/* The copies of all tensors. Outputs in `unplaced` (bits) are placed already, but the kernel will
 * place its own. */
static ls_status copy_tensors(sim_run *run, const op_call *call, unsigned unplaced)
{
    for (int i = 0; i < call->n_in; i++) {
        if (call->in[i] == NULL)
            continue;
        LS_TRY(copy_tensor(run, call->in[i], &run->in[i]));
        run->call.in[i] = &run->in[i];
    }
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] == NULL)
            continue;
        LS_TRY(copy_tensor(run, call->out[i], &run->out[i]));
        run->call.out[i] = &run->out[i];
        if ((unplaced >> i & 1) != 0) {
            run->results[i] = tensor_elements(&run->out[i]);
            run->out[i].storage = NULL;
        }
    }
    return LS_OK;
}

static ls_status make_run(device_state *self, const op_call *call, unsigned unplaced, sim_run **out)
{
    sim_run *run = run_take(self);
    ls_status st;

    if (run == NULL)
        return sim_fail(LS_ENOMEM, "%s: no memory to queue %s", self->accel->name,
                        device_op_name(call->op));
    run->task = (sim_task){.run = run_all, .free = free_all};
    run->device = self;
    run->call = *call;
    if (call->update != NULL) {
        run->update = *call->update;
        run->call.update = &run->update;
    }
    st = copy_tensors(run, call, unplaced);
    if (st != LS_OK) {
        run_give(run);
        return st;
    }
    control_count(COUNT_OPERATORS);
    *out = run;
    return LS_OK;
}

/* Places the outputs that need it, plain; *unplaced: which. */
static ls_status place_outputs(const op_call *call, unsigned *unplaced)
{
    *unplaced = 0;
    for (int i = 0; i < call->n_out; i++) {
        if (call->out[i] == NULL || call->out[i]->storage != NULL)
            continue;
        LS_TRY(sim_host->tensor_place(call->out[i], NULL, 0));
        *unplaced |= 1U << i;
    }
    return LS_OK;
}

static ls_status queue_run(sim_run *run)
{
    return sim_queue_task(accel_queue(run->device->accel, ACCEL_COMPUTE), &run->task);
}

static ls_status run_kernel(device_state *self, const op_call *call)
{
    unsigned unplaced;
    sim_run *run;

    LS_TRY(place_outputs(call, &unplaced));
    LS_TRY(make_run(self, call, unplaced, &run));
    return queue_run(run);
}

/* --- batch norm over all ranks --- */

/* Lets output i be written to `data`. */
static void redirect(sim_run *run, int i, double *data)
{
    storage *s = &run->storages[run->n_storages++];

    *s = *run->out[i].storage;
    s->data = data;
    run->out[i].storage = s;
    run->out[i].offset = 0;
}

/* Queues one of the two parts. */
static ls_status queue_part(device_state *self, const op_call *call, unsigned unplaced,
                            run_part part, double *sums)
{
    const size_t n_channels = (size_t)call->in[0]->dims[1];
    sim_run *run;

    LS_TRY(make_run(self, call, unplaced, &run));
    run->part = part;
    run->sums = sums;
    run->call.attrs.sync = (op_sync){.sum = exchange_sums, .arg = run};
    // The local part of backward writes dweight and dbias elsewhere: it runs once more.
    if (call->op == OP_BATCH_NORM_BACKWARD && part == PART_LOCAL_SUMS) {
        redirect(run, 1, sums + batch_sync_count(n_channels));
        redirect(run, 2, sums + batch_sync_count(n_channels) + n_channels);
    }
    return queue_run(run);
}

static ls_status run_parts(device_state *self, const op_call *call, double *device_sums,
                           size_t bytes)
{
    const size_t n_channels = (size_t)call->in[0]->dims[1];
    double *sums = sim_accel_alias(self->accel, device_sums, bytes);
    unsigned unplaced;

    LS_TRY(place_outputs(call, &unplaced));
    LS_TRY(queue_part(self, call, unplaced, PART_LOCAL_SUMS, sums));
    LS_TRY(batch_sync_sum(call, device_sums, n_channels));
    return queue_part(self, call, unplaced, PART_SHARED_SUMS, sums);
}

static ls_status run_batch_norm(device_state *self, const op_call *call)
{
    const int64_t n_channels = call->in[0]->dims[1];
    const int64_t n = (int64_t)batch_sync_count((size_t)n_channels) + 2 * n_channels;
    ls_tensor *memory;
    ls_status st;

    if (!batch_sync_needed(call))
        return run_kernel(self, call);
    LS_TRY(sim_host->tensor_shape(call->in[0]->device, LS_F64, 1, &n, &memory));
    st = sim_host->tensor_place(memory, NULL, 0);
    if (st == LS_OK)
        st = run_parts(self, call, tensor_elements(memory), tensor_bytes(memory));
    sim_host->tensor_destroy(memory); // whatever uses its memory next is queued behind this
    return st;
}

/* --- life --- */

static void sim_close(device_state *self)
{
    if (self->accel != NULL) {
        sim_host->accel_unregister(self->accel);
        sim_accel_destroy(self->accel);
    }
    (void)ls_device_close(self->reference);
    while (self->free_runs != NULL) {
        sim_run *run = self->free_runs;

        self->free_runs = run->next;
        ls_free(run);
    }
    ls_mutex_destroy(&self->lock);
    sim_host->free(self);
}

static ls_status open_reference(ls_device **out)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref"};
    const ls_status st = ls_device_open(&opt, out);

    return st == LS_OK ? LS_OK : sim_fail(st, "sim: %s", ls_last_error());
}

static ls_status sim_open(const device_settings *settings, device_state **out)
{
    device_state *self = sim_host->alloc(1, sizeof(*self));
    ls_status st;

    if (self == NULL)
        return sim_fail(LS_ENOMEM, "sim: no memory for a device");
    ls_mutex_init(&self->lock);
    st = open_reference(&self->reference);
    if (st == LS_OK)
        st = sim_accel_create(settings->index < 0 ? 0 : settings->index, &self->accel);
    if (st != LS_OK) {
        sim_close(self);
        return st;
    }
    sim_host->accel_register(self->accel);
    *out = self;
    return LS_OK;
}

static const char *sim_fingerprint(device_state *self)
{
    return ls_device_fingerprint(self->reference); // the same bits
}

static accel *sim_accelerator(device_state *self)
{
    return self->accel;
}

static void *sim_block(device_state *self, size_t bytes)
{
    return accel_alloc(self->accel, bytes);
}

static void sim_free_block(device_state *self, void *block, size_t bytes)
{
    LS_UNUSED(bytes);
    accel_free(self->accel, block);
}

/* --- the table --- */

static kernel_fn sim_find_kernel(device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    if (cpu_ref_device_ops.find_kernel(NULL, call) == NULL && !widen_needed(call))
        return NULL;
    return call->op == OP_BATCH_NORM || call->op == OP_BATCH_NORM_BACKWARD ? run_batch_norm
                                                                           : run_kernel;
}

static ls_status sim_run_many(device_state *self, const op_call *calls, int n)
{
    sim_run *first = NULL;
    sim_run **last = &first;
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++) {
        unsigned unplaced;

        st = place_outputs(&calls[i], &unplaced);
        if (st == LS_OK)
            st = make_run(self, &calls[i], unplaced, last);
        if (st == LS_OK)
            last = &(*last)->next;
    }
    if (first == NULL)
        return st;
    if (st == LS_OK)
        return queue_run(first);
    run_give(first);
    return st;
}

static const device_ops ops = {
    .abi = DEVICE_ABI,
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .fingerprint = sim_fingerprint,
    .alloc = sim_block,
    .free = sim_free_block,
    .find_kernel = sim_find_kernel,
    .accelerator = sim_accelerator,
    .run_many = sim_run_many,
};

LS_API const device_ops *lockstep_device(const device_host *host);

const device_ops *lockstep_device(const device_host *host)
{
    if (host->abi != DEVICE_ABI)
        return NULL;
    sim_host = host;
    return &ops;
}
