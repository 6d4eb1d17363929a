/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket_plan.c - assigns gradients to buckets in the order in which backward completes them. The
 * plan depends on its arguments only, so all ranks compute the same one. buckets.c calls it.
 */
#include "ddp/bucket_plan.h"

#include "base/alloc.h"

#include <string.h>

static ls_status align_up(size_t bytes, size_t *out)
{
    LS_TRY(ls_add_size(bytes, PLAN_ALIGNMENT - 1, out));
    *out -= *out % PLAN_ALIGNMENT;
    return LS_OK;
}

static ls_status place(bucket_plan *plan, const plan_entry *entry, int bucket, plan_slot *slot)
{
    size_t padded;

    LS_TRY(align_up(entry->bytes, &padded));
    slot->bucket = bucket;
    slot->offset = plan->bucket_bytes[bucket];
    plan->bucket_type[bucket] = entry->dtype;
    plan->bucket_entries[bucket]++;
    return ls_add_size(slot->offset, padded, &plan->bucket_bytes[bucket]);
}

static ls_status fill(bucket_plan *plan, const plan_entry *entries, const int *order,
                      size_t first_bytes, size_t bucket_bytes)
{
    int bucket = -1;

    for (int i = 0; i < plan->n_entries; i++) {
        const plan_entry *entry = &entries[order[i]];
        const size_t limit = bucket == 0 ? first_bytes : bucket_bytes;
        if (bucket < 0 || plan->bucket_bytes[bucket] >= limit ||
            plan->bucket_type[bucket] != entry->dtype)
            bucket++;
        LS_TRY(place(plan, entry, bucket, &plan->slots[order[i]]));
    }
    plan->n_buckets = bucket + 1;
    return LS_OK;
}

ls_status bucket_plan_make(const plan_entry *entries, const int *order, int n, size_t first_bytes,
                           size_t bucket_bytes, bucket_plan *out)
{
    const size_t max_buckets = n > 0 ? (size_t)n : 1;
    bucket_plan plan = {.n_entries = n};
    ls_status st;

    plan.slots = ls_calloc(max_buckets, sizeof(*plan.slots));
    plan.bucket_bytes = ls_calloc(max_buckets, sizeof(*plan.bucket_bytes));
    plan.bucket_type = ls_calloc(max_buckets, sizeof(*plan.bucket_type));
    plan.bucket_entries = ls_calloc(max_buckets, sizeof(*plan.bucket_entries));
    if (plan.slots == NULL || plan.bucket_bytes == NULL || plan.bucket_type == NULL ||
        plan.bucket_entries == NULL)
        st = ls_fail(LS_ENOMEM, "no memory for a bucket plan of %d gradients", n);
    else
        st = fill(&plan, entries, order, first_bytes, bucket_bytes);
    if (st != LS_OK) {
        bucket_plan_free(&plan);
        return st;
    }
    *out = plan;
    return LS_OK;
}

void bucket_plan_free(bucket_plan *plan)
{
    ls_free(plan->slots);
    ls_free(plan->bucket_bytes);
    ls_free(plan->bucket_type);
    ls_free(plan->bucket_entries);
    memset(plan, 0, sizeof(*plan));
}
