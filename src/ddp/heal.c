/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heal.c - ls_ddp_heal(): ranks whose parameters or state differ from those of the majority get
 * the majority's. Each rank hashes every tensor, all ranks compare the hashes and come to the same
 * result.
 */
#include <lockstep/elastic.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"
#include "ddp/reducer.h"
#include "tensor/tensor.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

enum { RANKS_SHOWN = 8 };

/* What is compared: the model's parameters, then the state. */
typedef struct heal_list {
    const ls_named *parameters;
    int n_parameters;
    const ls_named *state;
    int n;
} heal_list;

static const ls_named *item_of(const heal_list *list, int i)
{
    return i < list->n_parameters ? &list->parameters[i] : &list->state[i - list->n_parameters];
}

static ls_status hash_item(const ls_named *item, int64_t *hash)
{
    *hash = 0;
    if (item->tensor != NULL)
        return tensor_hash(item->tensor, (uint64_t *)hash);
    *hash = (int64_t)ls_hash_block(item->bytes, item->n_bytes, 0);
    return LS_OK;
}

/* n hashes of this rank, then those of all ranks. */
static ls_status gather_hashes(ls_ddp *ddp, const heal_list *list, int64_t *hashes)
{
    const size_t n = (size_t)list->n;

    for (int i = 0; i < list->n; i++)
        LS_TRY(hash_item(item_of(list, i), &hashes[i]));
    comm_label(ddp->comm, "ddp heal");
    return ls_all_gather(ddp->comm, hashes, hashes + n, n, LS_I64, NULL);
}

static bool are_equal(const int64_t *all, int a, int b, int n)
{
    return memcmp(all + (size_t)a * (size_t)n, all + (size_t)b * (size_t)n,
                  (size_t)n * sizeof(*all)) == 0;
}

/* The lowest rank of the majority, -1: there is none. *n_equal: its ranks. */
static int find_majority(const int64_t *all, int n, int size, int *n_equal)
{
    for (int r = 0; r < size; r++) {
        *n_equal = 0;
        for (int q = 0; q < size; q++)
            *n_equal += are_equal(all, r, q, n);
        if (2 * *n_equal > size)
            return r;
    }
    return -1;
}

/* The first item in which two ranks differ. */
static int find_difference(const int64_t *all, int a, int b, int n)
{
    int i = 0;

    while (i + 1 < n &&
           all[(size_t)a * (size_t)n + (size_t)i] == all[(size_t)b * (size_t)n + (size_t)i])
        i++;
    return i;
}

static ls_status no_majority(const heal_list *list, const int64_t *all, int size)
{
    const int n = list->n;
    int other = 1;
    int i;

    while (other + 1 < size && are_equal(all, 0, other, n))
        other++;
    i = find_difference(all, 0, other, n);
    return ls_fail(LS_EMISMATCH,
                   "%s differs and no majority of the %d ranks agrees: its hash is %016" PRIx64
                   " on rank 0 and %016" PRIx64 " on rank %d",
                   item_of(list, i)->name, size, (uint64_t)all[i],
                   (uint64_t)all[(size_t)other * (size_t)n + (size_t)i], other);
}

static void log_healed(const ls_ddp *ddp, const heal_list *list, const int64_t *all, int source)
{
    const int size = ls_comm_size(ddp->comm);
    int n_shown = 0;

    for (int r = 0; r < size && ls_comm_rank(ddp->comm) == 0; r++) {
        const int i = find_difference(all, source, r, list->n);

        if (are_equal(all, source, r, list->n) || n_shown++ >= RANKS_SHOWN)
            continue;
        ls_log(LS_LOG_WARN, "ddp",
               "rank %d differs from the majority of the ranks, first in %s (hash %016" PRIx64
               ", not %016" PRIx64 "): it gets the state of rank %d",
               r, item_of(list, i)->name, (uint64_t)all[(size_t)r * (size_t)list->n + (size_t)i],
               (uint64_t)all[(size_t)source * (size_t)list->n + (size_t)i], source);
    }
}

static ls_status heal(ls_ddp *ddp, const heal_list *list, int64_t *hashes, int *n_healed)
{
    const int size = ls_comm_size(ddp->comm);
    const int64_t *all = hashes + list->n;
    int n_equal;
    int source;

    LS_TRY(gather_hashes(ddp, list, hashes));
    source = find_majority(all, list->n, size, &n_equal);
    if (source < 0)
        return no_majority(list, all, size);
    if (n_equal == size)
        return LS_OK;
    log_healed(ddp, list, all, source);
    for (int i = 0; i < list->n; i++)
        LS_TRY(ddp_send_item(ddp->comm, item_of(list, i), source));
    *n_healed = size - n_equal;
    return LS_OK;
}

ls_status ls_ddp_heal(ls_ddp *ddp, const ls_named *state, int n, int *n_healed)
{
    heal_list list = {.state = state};
    int64_t *hashes;
    ls_status st;

    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(n_healed));
    *n_healed = 0;
    if (n < 0 || (n > 0 && state == NULL))
        return ls_fail(LS_EINVAL, "ls_ddp_heal needs n entries of state");
    list.parameters = ls_model_parameters(ddp->model, &list.n_parameters);
    list.n = list.n_parameters + n;
    hashes =
        ls_calloc(((size_t)ls_comm_size(ddp->comm) + 1) * ((size_t)list.n + 1), sizeof(*hashes));
    if (hashes == NULL)
        return ls_fail(LS_ENOMEM, "no memory to compare %d tensors", list.n);
    st = list.n > 0 ? heal(ddp, &list, hashes, n_healed) : LS_OK;
    ls_free(hashes);
    return st;
}
