/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_buffers.c - lets each shard of a step start with the same buffers, and keeps those that
 * shard 0 leaves. A rank with one shard needs nothing: the broadcast before the step gives it those
 * of rank 0. shards.c and replicas.c call it.
 */
#include "ddp/shards.h"

#include "base/alloc.h"
#include "ddp/reducer.h"
#include "nn/buffers.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

static ls_status make_copies(ls_device *device, const buffer_block *blocks, int n, ls_tensor ***out)
{
    ls_tensor **copies = ls_calloc((size_t)n + 1, sizeof(ls_tensor *));

    *out = copies;
    if (copies == NULL)
        return ls_fail(LS_ENOMEM, "no memory for copies of buffers");
    for (int i = 0; i < n; i++) {
        const int64_t bytes = (int64_t)blocks[i].used;

        LS_TRY(tensor_create_undefined(device, LS_U8, 1, &bytes, &copies[i]));
    }
    return LS_OK;
}

ls_status shard_buffers_open(ls_ddp *ddp, shard_buffers *b, bool has_first)
{
    const buffer_block *blocks = model_buffer_blocks(ddp->model, &b->n);

    LS_TRY(make_copies(ddp->device, blocks, b->n, &b->at_start));
    return has_first ? make_copies(ddp->device, blocks, b->n, &b->of_first) : LS_OK;
}

static void free_copies(ls_tensor **copies, int n)
{
    for (int i = 0; copies != NULL && i < n; i++)
        ls_tensor_destroy(copies[i]);
    ls_free(copies);
}

void shard_buffers_close(shard_buffers *b)
{
    free_copies(b->at_start, b->n);
    free_copies(b->of_first, b->n);
}

static ls_status copy_out(ls_ddp *ddp, ls_tensor **copies)
{
    int n;
    const buffer_block *blocks = model_buffer_blocks(ddp->model, &n);

    for (int i = 0; i < n; i++) {
        void *data;

        LS_TRY(tensor_plain(blocks[i].memory, &data));
        LS_TRY(device_copy(ddp->device, tensor_elements(copies[i]), data, blocks[i].used));
    }
    return LS_OK;
}

static ls_status copy_back(ls_ddp *ddp, ls_tensor **copies)
{
    int n;
    const buffer_block *blocks = model_buffer_blocks(ddp->model, &n);
    const ls_named *buffers;

    for (int i = 0; i < n; i++) {
        void *data;

        LS_TRY(tensor_plain(blocks[i].memory, &data));
        LS_TRY(device_copy(ddp->device, data, tensor_elements(copies[i]), blocks[i].used));
    }
    buffers = ls_model_buffers(ddp->model, &n);
    for (int i = 0; i < n; i++)
        tensor_written(buffers[i].tensor, "ls_ddp_backward()");
    return LS_OK;
}

ls_status shard_buffers_save(ls_ddp *ddp, shard_buffers *b)
{
    b->is_saved = true;
    return copy_out(ddp, b->at_start);
}

ls_status shard_buffers_restore(ls_ddp *ddp, shard_buffers *b)
{
    return copy_back(ddp, b->at_start);
}

ls_status shards_save_buffers(ls_ddp *ddp)
{
    shard_buffers *b = shards_buffers(ddp);

    return b == NULL ? LS_OK : shard_buffers_save(ddp, b);
}

ls_status shard_buffers_next(ls_ddp *ddp, shard_buffers *b, bool is_first, bool is_last)
{
    if (is_first)
        LS_TRY(copy_out(ddp, b->of_first));
    if (!is_last)
        return copy_back(ddp, b->at_start);
    b->is_saved = false;
    return b->of_first != NULL ? copy_back(ddp, b->of_first) : LS_OK;
}
