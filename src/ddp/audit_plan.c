/* SPDX-License-Identifier: Apache-2.0 */
/* audit_plan.c - see audit_plan.h. audit.c calls it. */
#include "ddp/audit_plan.h"

#include <stdbool.h>

static int shards_of(const int *starts, int rank)
{
    return starts[rank + 1] - starts[rank];
}

static int count_with_shards(const int *starts, int size)
{
    int m = 0;

    for (int r = 0; r < size; r++)
        m += shards_of(starts, r) > 0;
    return m;
}

/* The rank that follows `rank` by d of those with shards. */
static int following(const int *starts, int size, int rank, int64_t d)
{
    while (d > 0) {
        rank = (rank + 1) % size;
        d -= shards_of(starts, rank) > 0;
    }
    return rank;
}

int audit_own_shard(const int *starts, int size, int rank, int64_t t)
{
    const int m = count_with_shards(starts, size);
    const int n = shards_of(starts, rank);

    return m < 2 || n == 0 ? -1 : starts[rank] + (int)(t / (m - 1) % n);
}

audit_task audit_task_of(const int *starts, int size, int rank, int64_t t)
{
    const int m = count_with_shards(starts, size);
    int owner;

    if (m < 2 || shards_of(starts, rank) == 0)
        return (audit_task){-1, -1};
    owner = following(starts, size, rank, 1 + t % (m - 1));
    return (audit_task){owner, audit_own_shard(starts, size, owner, t)};
}

int audit_third(int owner, int auditor, int size)
{
    int r = 0;

    while (r == owner || r == auditor)
        r++;
    return r < size ? r : -1;
}

audit_verdict audit_decide(const audit_evidence *e)
{
    const bool owner_is_confirmed =
        e->third != 0 ? e->third == e->owner : e->owner_again == e->owner;
    const bool auditor_is_confirmed =
        e->third != 0 ? e->third == e->auditor : e->auditor_again == e->auditor;

    if (owner_is_confirmed == auditor_is_confirmed)
        return AUDIT_UNDECIDED;
    return owner_is_confirmed ? AUDIT_AUDITOR_WRONG : AUDIT_OWNER_WRONG;
}
