/* SPDX-License-Identifier: Apache-2.0 */
/* local_ranks.c - see local_ranks.h. local_sgd.c calls it. */
#include "ddp/local_ranks.h"

#include <lockstep/local_sgd.h>

#include "base/alloc.h"
#include "comm/comm.h"
#include "ddp/shard_tree.h"

/* of[r]: the island of rank r. */
static void divide_equally(int islands, int ranks, int *of)
{
    for (int k = 0; k < islands; k++) {
        const shard_node range = shard_range(ranks, k, islands);

        for (int r = range.first; r < range.first + range.n; r++)
            of[r] = k;
    }
}

static ls_status make_groups(ls_comm *comm, const int *of, int islands, local_ranks *out)
{
    const int rank = ls_comm_rank(comm);

    LS_TRY(LS_NEW(&out->first_of, (size_t)islands, "for %d islands", islands));
    LS_TRY(LS_NEW(&out->counts, (size_t)islands, "for %d islands", islands));
    for (int r = ls_comm_size(comm) - 1; r >= 0; r--) {
        out->first_of[of[r]] = r;
        out->counts[of[r]]++;
    }
    out->number = of[rank];
    LS_TRY(ls_comm_split(comm, out->number, rank, &out->island));
    return ls_comm_split(comm, out->first_of[out->number] == rank ? 0 : -1, rank, &out->firsts);
}

ls_status local_ranks_open(ls_comm *comm, int *islands, local_ranks *out)
{
    const int size = ls_comm_size(comm);
    ls_status st = LS_OK;
    int *of;

    if (*islands >= size)
        return LS_OK;
    LS_TRY(LS_NEW(&of, (size_t)size, "for the islands of %d ranks", size));
    if (*islands == LS_ISLANDS_OF_HOSTS)
        *islands = comm_hosts(comm, of);
    else
        divide_equally(*islands, size, of);
    if (*islands < size)
        st = make_groups(comm, of, *islands, out);
    ls_free(of);
    return st;
}

void local_ranks_close(local_ranks *r)
{
    ls_comm_destroy(r->firsts);
    ls_comm_destroy(r->island);
    ls_free(r->first_of);
    ls_free(r->counts);
    *r = (local_ranks){.island = NULL};
}

void local_ranks_abort(const local_ranks *r, const char *why)
{
    ls_comm_abort(r->island, why);
    ls_comm_abort(r->firsts, why);
}

ls_status local_ranks_share(const local_ranks *r, void *data, size_t count, ls_dtype type,
                            const char *label)
{
    comm_label(r->island, label);
    return ls_broadcast(r->island, data, data, count, type, 0, NULL);
}
