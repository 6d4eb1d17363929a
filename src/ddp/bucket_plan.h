/* SPDX-License-Identifier: Apache-2.0 */
/* bucket_plan.h - assigns each gradient to a bucket and an offset: pure arithmetic. */
#ifndef LS_DDP_BUCKET_PLAN_H
#define LS_DDP_BUCKET_PLAN_H

#include "base/status.h"

/* One gradient to be placed. */
typedef struct plan_entry {
    size_t bytes;
    ls_dtype dtype; /* a bucket holds one type */
} plan_entry;

typedef struct plan_slot {
    int bucket;
    size_t offset; /* bytes into the bucket, a multiple of PLAN_ALIGNMENT */
} plan_slot;

#define PLAN_ALIGNMENT 64

typedef struct bucket_plan {
    int n_entries;
    int n_buckets;
    plan_slot *slots;      /* n_entries */
    size_t *bucket_bytes;  /* n_buckets; with the gaps that alignment leaves */
    ls_dtype *bucket_type; /* n_buckets */
    int *bucket_entries;   /* n_buckets: the number of gradients of each */
} bucket_plan;

/*
 * Fills buckets in the order `order` (a permutation of 0..n-1): a bucket is closed when it has
 * reached its limit (first_bytes for the first, bucket_bytes for the others) or the type changes,
 * as torch's compute_bucket_assignment_by_size. Buckets are numbered as they are opened.
 */
LS_MUST_USE ls_status bucket_plan_make(const plan_entry *entries, const int *order, int n,
                                       size_t first_bytes, size_t bucket_bytes, bucket_plan *out);
void bucket_plan_free(bucket_plan *plan); /* zeroed plans are allowed */

#endif
