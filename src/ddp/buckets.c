/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buckets.c - memory of the buckets, and the views of it that gradients are written to. ddp.c
 * builds the buckets at the start, and once more in the order of rank 0's first backward.
 */
#include "ddp/reducer.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "comm/comm.h"
#include "tensor/device.h"

#define PAGE_BYTES ((size_t)4096)

static void free_on_device(accel *a, void *memory)
{
    if (!comm_free_memory(memory))
        accel_free(a, memory);
}

ls_status ddp_alloc(ls_ddp *ddp, size_t bytes, void **out)
{
    ls_status st;

    if (ddp->device == NULL || ddp->device->accel == NULL)
        return ls_comm_alloc(ddp->comm, bytes, out);
    *out = comm_alloc_memory(ddp->comm, ddp->device->accel, bytes);
    if (*out == NULL)
        LS_TRY(device_alloc(ddp->device, bytes, out));
    st = comm_add_memory(ddp->comm, *out, bytes);
    if (st != LS_OK)
        free_on_device(ddp->device->accel, *out);
    return st;
}

void ddp_free(ls_ddp *ddp, void *memory)
{
    accel *a = ddp->device == NULL ? NULL : ddp->device->accel;

    if (a == NULL) {
        ls_comm_free(ddp->comm, memory);
        return;
    }
    comm_remove_memory(ddp->comm, memory);
    free_on_device(a, memory);
}

static void release(ls_ddp *ddp, bucket *b)
{
    ls_tensor_destroy(b->values);
    ls_tensor_destroy(b->halves);
    b->values = NULL;
    b->halves = NULL;
    ddp_free(ddp, b->packed);
    b->memory = NULL;
    b->packed = NULL;
}

void buckets_free(ls_ddp *ddp)
{
    for (int i = 0; i < ddp->n_params; i++) {
        ddp_param *p = &ddp->params[i];
        if (!ddp->pending)
            ls_zero_grad(p->leaf); // otherwise autograd would copy it to the device's memory
        autograd_set_grad_target(p->leaf, NULL);
        ls_tensor_destroy(p->target);
        p->target = NULL;
    }
    shards_drop_buckets(ddp);
    power_drop_buckets(ddp);
    for (int i = 0; i < ddp->n_buckets; i++)
        release(ddp, &ddp->buckets[i]);
    ddp_free(ddp, ddp->bucket_memory);
    ls_free(ddp->buckets);
    ddp->bucket_memory = NULL;
    ddp->buckets = NULL;
    ddp->n_buckets = 0;
    bucket_plan_free(&ddp->plan);
}

static ls_status plan_buckets(ls_ddp *ddp)
{
    plan_entry *entries;
    ls_status st;

    LS_TRY(LS_NEW(&entries, (size_t)ddp->n_params + 1, "to plan buckets for %d parameters",
                  ddp->n_params));
    for (int i = 0; i < ddp->n_params; i++) {
        const ls_tensor *leaf = ddp->params[i].leaf;
        entries[i].dtype = ls_tensor_dtype(leaf);
        entries[i].bytes = ls_tensor_count(leaf) * ls_dtype_size(entries[i].dtype);
    }
    st = bucket_plan_make(entries, ddp->order, ddp->n_params, ddp->options.first_bucket_bytes,
                          ddp->options.bucket_bytes, &ddp->plan);
    ls_free(entries);
    return st;
}

ls_dtype bucket_wire_type(const ls_ddp *ddp)
{
    switch (ddp->options.hook) {
    case LS_DDP_HOOK_FP16:
        return LS_F16;
    case LS_DDP_HOOK_BF16:
        return LS_BF16;
    default:
        return LS_F32;
    }
}

/* Memory for the bucket's elements in the type of the communication hook. */
static ls_status take_packed(ls_ddp *ddp, bucket *b)
{
    const int64_t count = (int64_t)(b->bytes / sizeof(float));
    void *memory;

    if (b->dtype != LS_F32 || bucket_wire_type(ddp) == LS_F32)
        return LS_OK;
    LS_TRY(ddp_alloc(ddp, b->bytes / 2, &memory));
    b->packed = memory;
    if (ls_device_queue(ddp->device) == NULL)
        return LS_OK;
    LS_TRY(ls_tensor_wrap(ddp->device, LS_F32, 1, &count, b->memory, &b->values));
    return ls_tensor_wrap(ddp->device, bucket_wire_type(ddp), 1, &count, b->packed, &b->halves);
}

/* Buckets begin at whole pages of one block. */
static size_t page_bytes(const ls_ddp *ddp, int i)
{
    return (ddp->plan.bucket_bytes[i] + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static ls_status take_block(ls_ddp *ddp)
{
    size_t bytes = 0;
    void *memory;

    for (int i = 0; i < ddp->plan.n_buckets; i++)
        bytes += page_bytes(ddp, i);
    if (bytes == 0)
        return LS_OK;
    LS_TRY(ddp_alloc(ddp, bytes, &memory));
    ddp->bucket_memory = memory;
    return LS_OK;
}

static ls_status take_memory(ls_ddp *ddp)
{
    char *at;

    LS_TRY(take_block(ddp));
    at = ddp->bucket_memory;
    LS_TRY(LS_NEW(&ddp->buckets, (size_t)ddp->plan.n_buckets + 1, "for %d buckets",
                  ddp->plan.n_buckets));
    for (int i = 0; i < ddp->plan.n_buckets; i++) {
        bucket *b = &ddp->buckets[i];

        b->memory = at;
        at += page_bytes(ddp, i);
        b->bytes = ddp->plan.bucket_bytes[i];
        b->dtype = ddp->plan.bucket_type[i];
        ddp->n_buckets = i + 1;
        LS_TRY(take_packed(ddp, b));
    }
    return LS_OK;
}

/* Each leaf's gradient becomes a view of its place in a bucket. */
static ls_status take_views(ls_ddp *ddp)
{
    for (int i = 0; i < ddp->n_params; i++) {
        ddp_param *p = &ddp->params[i];
        const plan_slot *slot = &ddp->plan.slots[i];
        void *memory = ddp->buckets[slot->bucket].memory + slot->offset;
        LS_TRY(ls_tensor_wrap(ls_tensor_device(p->leaf), ls_tensor_dtype(p->leaf),
                              ls_tensor_n_dims(p->leaf), ls_tensor_dims(p->leaf), memory,
                              &p->target));
        LS_TRY(autograd_set_grad_target(p->leaf, p->target));
    }
    return LS_OK;
}

ls_status buckets_build(ls_ddp *ddp)
{
    buckets_free(ddp);
    LS_TRY(plan_buckets(ddp));
    LS_TRY(take_memory(ddp));
    LS_TRY(shards_make_buckets(ddp));
    LS_TRY(power_make_buckets(ddp));
    return take_views(ddp);
}
