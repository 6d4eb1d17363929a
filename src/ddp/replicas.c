/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replicas.c - every rank's copy of a model: compared by name, made equal, and checked for having stayed equal.
 */
#include "ddp/reducer.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"

#include <string.h>

#define DIFFERENCE_BYTES 256 /* what a rank tells the others about its first difference */

static void describe(text_buf *t, const char *what, const ls_named *entry)
{
    text_append(t, "%s %s (", what, entry->name);
    for (int d = 0; d < ls_tensor_n_dims(entry->tensor); d++)
        text_append(t, d == 0 ? "%lld" : ", %lld", (long long)ls_tensor_dim(entry->tensor, d));
    text_append(t, ") %s\n", ls_dtype_name(ls_tensor_dtype(entry->tensor)));
}

/* One line a parameter and buffer: what must be the same on all ranks. */
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

/* The first lines of `mine` and `theirs` that differ, in words; "" when all are equal. */
static void first_difference(const char *mine, const char *theirs, char out[DIFFERENCE_BYTES])
{
    out[0] = 0;
    while (*mine != 0 || *theirs != 0) {
        const size_t a = strcspn(mine, "\n");
        const size_t b = strcspn(theirs, "\n");
        if (a != b || memcmp(mine, theirs, a) != 0) {
            text_format(out, DIFFERENCE_BYTES, "has %.*s where rank 0 has %.*s", a > 0 ? (int)a : 7,
                        a > 0 ? mine : "nothing", b > 0 ? (int)b : 7, b > 0 ? theirs : "nothing");
            return;
        }
        mine += a + (mine[a] == '\n');
        theirs += b + (theirs[b] == '\n');
    }
}

/* Rank 0's description on every rank; *out is freed by the caller. */
static ls_status share_description(ls_comm *comm, const text_buf *mine, char **out)
{
    int64_t bytes = (int64_t)mine->length;
    char *theirs;
    ls_status st;

    comm_label(comm, "ddp model");
    LS_TRY(ls_broadcast(comm, &bytes, &bytes, 1, LS_I64, 0, NULL));
    theirs = ls_calloc((size_t)bytes + 1, 1);
    if (theirs == NULL)
        return ls_fail(LS_ENOMEM, "no memory for rank 0's model description");
    if (ls_comm_rank(comm) == 0)
        memcpy(theirs, text_str(mine), (size_t)bytes);
    comm_label(comm, "ddp model");
    st = ls_broadcast(comm, theirs, theirs, (size_t)bytes, LS_I8, 0, NULL);
    if (st != LS_OK) {
        ls_free(theirs);
        return st;
    }
    *out = theirs;
    return LS_OK;
}

/* Fails on every rank alike when any rank's difference is not empty. */
static ls_status agree(ls_comm *comm, const char mine[DIFFERENCE_BYTES])
{
    const int size = ls_comm_size(comm);
    char *all = ls_calloc((size_t)size, DIFFERENCE_BYTES);
    ls_status st;

    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory to compare %d ranks' models", size);
    comm_label(comm, "ddp model");
    st = ls_all_gather(comm, mine, all, DIFFERENCE_BYTES, LS_I8, NULL);
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
    text_buf mine = {0};
    char *theirs = NULL;
    ls_status st;

    st = description(ddp, &mine);
    if (st == LS_OK)
        st = share_description(ddp->comm, &mine, &theirs);
    if (st == LS_OK) {
        first_difference(text_str(&mine), theirs, difference);
        st = agree(ddp->comm, difference);
    }
    ls_free(theirs);
    text_free(&mine);
    return st;
}

ls_status replicas_broadcast(ls_ddp *ddp)
{
    int n;
    const ls_named *state = ls_model_state(ddp->model, &n);

    for (int i = 0; i < n; i++) {
        ls_tensor *t = state[i].tensor;
        void *data = ls_tensor_data(t);
        if (data == NULL && ls_tensor_count(t) > 0)
            return LS_ENOMEM;
        comm_label(ddp->comm, state[i].name);
        ls_status st =
            ls_broadcast(ddp->comm, data, data, ls_tensor_count(t), ls_tensor_dtype(t), 0, NULL);
        if (st != LS_OK)
            return ls_context(st, "broadcasting %s from rank 0", state[i].name);
    }
    return LS_OK;
}

/* Buffers into the block, or out of it. */
static ls_status copy_buffers(ls_ddp *ddp, bool pack)
{
    size_t at = 0;
    int n;
    const ls_named *buffers = ls_model_buffers(ddp->model, &n);

    for (int i = 0; i < n; i++) {
        ls_tensor *t = buffers[i].tensor;
        const size_t bytes = ls_tensor_count(t) * ls_dtype_size(ls_tensor_dtype(t));
        if (pack)
            LS_TRY(ls_tensor_read(t, ddp->buffer_block + at, ls_tensor_count(t)));
        else
            LS_TRY(ls_tensor_write(t, ddp->buffer_block + at, ls_tensor_count(t)));
        at += bytes;
    }
    return LS_OK;
}

ls_status ls_ddp_sync_buffers(ls_ddp *ddp)
{
    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(ddp_check_model(ddp));
    if (ddp->buffer_bytes == 0 || ddp->options.no_buffer_broadcast)
        return LS_OK;
    LS_TRY(copy_buffers(ddp, true));
    comm_label(ddp->comm, "ddp buffers");
    LS_TRY(ls_broadcast(ddp->comm, ddp->buffer_block, ddp->buffer_block, ddp->buffer_bytes, LS_U8,
                        0, NULL));
    return ls_comm_rank(ddp->comm) == 0 ? LS_OK : copy_buffers(ddp, false);
}

/* The first parameter whose hash is not the same on all ranks. */
static ls_status compare_hashes(const ls_ddp *ddp, const int64_t *all)
{
    const int size = ls_comm_size(ddp->comm);
    const int n = ddp->n_params;

    for (int i = 0; i < n; i++)
        for (int r = 1; r < size; r++)
            if (all[(size_t)r * (size_t)n + (size_t)i] != all[i])
                return ls_fail(
                    LS_EMISMATCH,
                    "parameter %s of rank %d is no longer equal to rank 0's, after %lld steps",
                    ddp->params[i].name, r, (long long)ddp->stats.steps);
    return LS_OK;
}

ls_status replicas_check(ls_ddp *ddp)
{
    const size_t n = (size_t)ddp->n_params;
    const size_t size = (size_t)ls_comm_size(ddp->comm);
    int64_t *hashes = ls_calloc(n * (size + 1) + 1, sizeof(*hashes));
    ls_status st = LS_OK;

    if (hashes == NULL)
        return ls_fail(LS_ENOMEM, "no memory to compare %d parameters", ddp->n_params);
    for (size_t i = 0; i < n; i++) {
        const ls_tensor *t = ddp->params[i].leaf;
        const void *data = ls_tensor_data_const(t);
        const size_t bytes = ls_tensor_count(t) * ls_dtype_size(ls_tensor_dtype(t));
        if (data != NULL)
            hashes[i] = (int64_t)ls_hash_bytes(data, bytes, 0);
    }
    comm_label(ddp->comm, "ddp check");
    st = ls_all_gather(ddp->comm, hashes, hashes + n, n, LS_I64, NULL);
    if (st == LS_OK)
        st = compare_hashes(ddp, hashes + n);
    ls_free(hashes);
    return st;
}
