/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replicas.c - compares the ranks' models by name, broadcasts rank 0's values, and checks that
 * they stay equal. ddp.c calls it when it is created and with check_replicas.
 */
#include "ddp/reducer.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "comm/comm.h"
#include "nn/buffers.h"
#include "tensor/tensor.h"

#include <string.h>

#define DIFFERENCE_BYTES 256 /* of the text about a rank's first difference */

static void describe(text_buf *t, const char *what, const ls_named *entry)
{
    text_append(t, "%s %s (", what, entry->name);
    for (int d = 0; d < ls_tensor_n_dims(entry->tensor); d++)
        text_append(t, d == 0 ? "%lld" : ", %lld", (long long)ls_tensor_dim(entry->tensor, d));
    text_append(t, ") %s%s\n", ls_dtype_name(ls_tensor_dtype(entry->tensor)),
                autograd_is_frozen(entry->tensor) ? ", frozen" : "");
}

/* One line per parameter and buffer; the text must be the same on all ranks. */
static ls_status description(const ls_ddp *ddp, text_buf *out)
{
    int n;
    const ls_named *list = ls_model_parameters(ddp->model, &n);

    for (int i = 0; i < n; i++)
        describe(out, "parameter", &list[i]);
    list = ls_model_buffers(ddp->model, &n);
    for (int i = 0; i < n; i++)
        describe(out, "buffer", &list[i]);
    return text_status(out);
}

/* Describes the first differing lines of `own` and rank 0's text; "" when all are equal. */
static void first_difference(const char *own, const char *rank0, char out[DIFFERENCE_BYTES])
{
    out[0] = 0;
    while (*own != 0 || *rank0 != 0) {
        const size_t a = strcspn(own, "\n");
        const size_t b = strcspn(rank0, "\n");
        if (a != b || memcmp(own, rank0, a) != 0) {
            text_format(out, DIFFERENCE_BYTES, "has %.*s where rank 0 has %.*s", a > 0 ? (int)a : 7,
                        a > 0 ? own : "nothing", b > 0 ? (int)b : 7, b > 0 ? rank0 : "nothing");
            return;
        }
        own += a + (own[a] == '\n');
        rank0 += b + (rank0[b] == '\n');
    }
}

/* Broadcasts rank 0's description; the caller frees *out. */
static ls_status broadcast_description(ls_comm *comm, const text_buf *own, char **out)
{
    int64_t bytes = (int64_t)own->length;
    char *rank0;
    ls_status st;

    comm_label(comm, "ddp model");
    LS_TRY(ls_broadcast(comm, &bytes, &bytes, 1, LS_I64, 0, NULL));
    rank0 = ls_calloc((size_t)bytes + 1, 1);
    if (rank0 == NULL)
        return ls_fail(LS_ENOMEM, "no memory for rank 0's model description");
    if (ls_comm_rank(comm) == 0)
        memcpy(rank0, text_str(own), (size_t)bytes);
    comm_label(comm, "ddp model");
    st = ls_broadcast(comm, rank0, rank0, (size_t)bytes, LS_I8, 0, NULL);
    if (st != LS_OK) {
        ls_free(rank0);
        return st;
    }
    *out = rank0;
    return LS_OK;
}

/* Fails on all ranks when the text of one rank is not empty. */
static ls_status gather_differences(ls_comm *comm, const char own[DIFFERENCE_BYTES])
{
    const int size = ls_comm_size(comm);
    char *all = ls_calloc((size_t)size, DIFFERENCE_BYTES);
    ls_status st;

    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory to compare %d ranks' models", size);
    comm_label(comm, "ddp model");
    st = ls_all_gather(comm, own, all, DIFFERENCE_BYTES, LS_I8, NULL);
    for (int r = 0; st == LS_OK && r < size; r++) {
        const char *difference = all + (size_t)r * DIFFERENCE_BYTES;
        if (difference[0] != 0)
            st = ls_fail(LS_EMISMATCH, "the models differ: rank %d %.*s", r, DIFFERENCE_BYTES - 1,
                         difference);
    }
    ls_free(all);
    return st;
}

ls_status replicas_compare(ls_ddp *ddp)
{
    char difference[DIFFERENCE_BYTES] = "";
    text_buf own = {0};
    char *rank0 = NULL;
    ls_status st;

    st = description(ddp, &own);
    if (st == LS_OK)
        st = broadcast_description(ddp->comm, &own, &rank0);
    if (st == LS_OK) {
        first_difference(text_str(&own), rank0, difference);
        st = gather_differences(ddp->comm, difference);
    }
    ls_free(rank0);
    text_free(&own);
    return st;
}

ls_status replicas_broadcast(ls_ddp *ddp)
{
    int n;
    const ls_named *state = ls_model_state(ddp->model, &n);

    for (int i = 0; i < n; i++) {
        ls_tensor *t = state[i].tensor;
        void *data;
        LS_TRY(tensor_plain(t, &data));
        comm_label(ddp->comm, state[i].name);
        ls_status st =
            ls_broadcast(ddp->comm, data, data, ls_tensor_count(t), ls_tensor_dtype(t), 0, NULL);
        if (st != LS_OK)
            return ls_context(st, "broadcasting %s from rank 0", state[i].name);
        tensor_written(t, "the broadcast from rank 0");
    }
    return LS_OK;
}

static ls_status broadcast_block(ls_ddp *ddp, const buffer_block *block)
{
    const bool is_queued = ls_device_queue(ddp->device) != NULL;
    ls_work *work = NULL;
    void *data;

    LS_TRY(tensor_plain(block->memory, &data));
    comm_label(ddp->comm, "ddp buffers");
    LS_TRY(ls_broadcast(ddp->comm, data, data, block->used, LS_U8, shards_first_rank(ddp),
                        is_queued ? &work : NULL));
    return is_queued ? ddp_wait(ddp, work) : LS_OK;
}

ls_status replicas_broadcast_buffers(ls_ddp *ddp)
{
    const buffer_block *blocks;
    const ls_named *buffers;
    int n_blocks;
    int n;

    if (ddp->options.no_buffer_broadcast)
        return LS_OK;
    blocks = model_buffer_blocks(ddp->model, &n_blocks);
    for (int i = 0; i < n_blocks; i++)
        LS_TRY(broadcast_block(ddp, &blocks[i]));
    buffers = ls_model_buffers(ddp->model, &n);
    for (int i = 0; i < n && ls_comm_rank(ddp->comm) != shards_first_rank(ddp); i++)
        tensor_written(buffers[i].tensor, "ls_ddp_sync_buffers()");
    return LS_OK;
}

/* A ddp that can recover broadcasts them within the step that changes them: a rank that is lost
 * after the step takes nothing with it. */
ls_status ls_ddp_sync_buffers(ls_ddp *ddp)
{
    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(ddp_check_model(ddp));
    if (ddp->options.no_buffer_broadcast || shards_done(ddp) > 0)
        return LS_OK;
    LS_TRY(ddp->elastic != NULL ? elastic_begin_step(ddp) : replicas_broadcast_buffers(ddp));
    return shards_save_buffers(ddp);
}

/* The first parameter whose hash is not the same on all ranks. */
static ls_status compare_hashes(const ls_ddp *ddp, const ls_named *params, int n,
                                const int64_t *all)
{
    const int size = ls_comm_size(ddp->comm);

    for (int i = 0; i < n; i++)
        for (int r = 1; r < size; r++)
            if (all[(size_t)r * (size_t)n + (size_t)i] != all[i])
                return ls_fail(LS_EMISMATCH,
                               "parameter %s of rank %d differs from rank 0's after %lld steps",
                               params[i].name, r, (long long)ddp->stats.steps);
    return LS_OK;
}

ls_status replicas_check(ls_ddp *ddp)
{
    int n_params;
    const ls_named *params = ls_model_parameters(ddp->model, &n_params);
    const size_t n = (size_t)n_params;
    const size_t size = (size_t)ls_comm_size(ddp->comm);
    int64_t *hashes;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&hashes, n * (size + 1) + 1, "to compare %d parameters", n_params));
    for (size_t i = 0; i < n && st == LS_OK; i++)
        st = tensor_hash(params[i].tensor, (uint64_t *)&hashes[i]);
    comm_label(ddp->comm, "ddp check");
    if (st == LS_OK)
        st = ls_all_gather(ddp->comm, hashes, hashes + n, n, LS_I64, NULL);
    if (st == LS_OK)
        st = compare_hashes(ddp, params, n_params, hashes + n);
    ls_free(hashes);
    return st;
}
