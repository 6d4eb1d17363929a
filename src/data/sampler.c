/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.c - one order of all samples, distributed round-robin: after the skipped positions rank r
 * takes positions r, r + world, r + 2*world, ... The order is a Fisher-Yates shuffle driven by
 * base/rng.h, hence the same on every rank; it is not torch.randperm's. loader.c uses it. With
 * sampler_divide() a batch of all ranks is dealt round-robin for two rounds, then in proportion.
 *
 * Buckets by length: the shuffled order is cut into pools, each pool is sorted by length and cut
 * into groups of bucket_rows, and the groups of all pools get a random order. A short last group
 * stays the last one, so that groups are the batches of all ranks. Pools keep the samples of a
 * group random.
 */
#include "data/sampler.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SHUFFLE_STREAM 0x73616D706C65U /* separate these uses of (seed, epoch) from others */
#define GROUP_STREAM   0x67726F7570U
#define POOL_GROUPS    50 /* groups of a pool */
#define DEALT_ROUNDS   2  /* of a divided batch: batch norms need two rows, also of a short one */

/* A sample in a pool. Equal lengths keep their order. */
typedef struct pool_entry {
    int64_t length;
    uint32_t position;
    uint32_t index;
} pool_entry;

struct ls_sampler {
    ls_sampler_options opt;
    size_t rank;
    size_t world;
    size_t n_own;    /* samples of this rank */
    uint32_t *order; /* the indices of an epoch; NULL: unshuffled and without buckets */
    bool has_epoch;  /* they are those of `epoch` */
    uint64_t epoch;
    // With sampler_divide() only.
    size_t *places; /* of this rank's samples in a batch of all ranks, ascending */
    size_t n_rows;  /* of them */
    size_t n_batch; /* samples of such a batch */
    // With buckets only.
    uint32_t *sorted;    /* the order before groups are shuffled */
    uint32_t *groups;    /* random order of the whole groups */
    pool_entry *entries; /* of one pool */
};

static ls_status check_options(const ls_sampler_options *opt)
{
    const int world = opt->world_size == 0 ? 1 : opt->world_size;

    if (world < 1 || opt->rank < 0 || opt->rank >= world)
        return ls_fail(LS_EINVAL, "sampler: rank %d is not below world size %d", opt->rank, world);
    if (opt->count > UINT32_MAX)
        return ls_fail(LS_EINVAL, "sampler: %zu samples are more than 2^32 - 1", opt->count);
    if (opt->skip > opt->count)
        return ls_fail(LS_EINVAL, "sampler: skip %zu exceeds the %zu samples", opt->skip,
                       opt->count);
    if ((opt->lengths != NULL) != (opt->bucket_rows > 0))
        return ls_fail(LS_EINVAL, "sampler: buckets need both lengths and bucket_rows");
    if (opt->mode != LS_SAMPLER_PAD && opt->mode != LS_SAMPLER_DROP_LAST &&
        opt->mode != LS_SAMPLER_UNEVEN)
        return ls_fail(LS_EINVAL, "sampler: invalid mode %d", (int)opt->mode);
    return LS_OK;
}

/* Of all ranks. */
static size_t count_all(const ls_sampler *s)
{
    const size_t n = s->opt.count - s->opt.skip;
    const size_t rest = n % s->world;

    switch (s->opt.mode) {
    case LS_SAMPLER_DROP_LAST:
        return n - rest;
    case LS_SAMPLER_UNEVEN:
        return n;
    case LS_SAMPLER_PAD:
        break;
    }
    return n + (rest > 0 ? s->world - rest : 0);
}

static size_t count_own(const ls_sampler *s)
{
    const size_t n = count_all(s);

    return n / s->world + (s->rank < n % s->world ? 1 : 0);
}

/* Samples that are sorted at once. */
static size_t pool_rows(const ls_sampler *s)
{
    const size_t groups = s->opt.no_shuffle ? SIZE_MAX : POOL_GROUPS;

    return s->opt.bucket_rows < s->opt.count / groups ? s->opt.bucket_rows * groups : s->opt.count;
}

static ls_status make_order(ls_sampler *s)
{
    const bool has_buckets = s->opt.lengths != NULL;
    const size_t n = s->opt.count;
    bool has_memory;

    if (s->opt.no_shuffle && !has_buckets)
        return LS_OK;
    s->order = ls_calloc(n, sizeof(*s->order));
    has_memory = s->order != NULL;
    if (has_buckets) {
        s->sorted = ls_calloc(n, sizeof(*s->sorted));
        s->groups = ls_calloc(n / s->opt.bucket_rows, sizeof(*s->groups));
        s->entries = ls_calloc(pool_rows(s), sizeof(*s->entries));
        has_memory = has_memory && s->sorted != NULL && s->groups != NULL && s->entries != NULL;
    }
    return has_memory ? LS_OK : ls_fail(LS_ENOMEM, "no memory for the order of %zu samples", n);
}

ls_status ls_sampler_create(const ls_sampler_options *opt, ls_sampler **out)
{
    ls_sampler_options o;
    ls_sampler *s;
    ls_status st;

    LS_TRY(LS_GIVEN(out));
    if (opt == NULL)
        return ls_fail(LS_EINVAL, "sampler: options are NULL");
    LS_TRY(ls_context(OPTIONS_COPY(ls_sampler_options, opt, &o), "sampler"));
    LS_TRY(check_options(&o));
    LS_TRY(LS_NEW(&s, 1, "for a sampler"));
    s->opt = o;
    s->rank = (size_t)o.rank;
    s->world = o.world_size == 0 ? 1 : (size_t)o.world_size;
    s->n_own = count_own(s);
    st = make_order(s);
    if (st != LS_OK) {
        ls_sampler_destroy(s);
        return st;
    }
    *out = s;
    return ls_sampler_set_epoch(s, 0);
}

void ls_sampler_destroy(ls_sampler *s)
{
    if (s == NULL)
        return;
    ls_free(s->order);
    ls_free(s->sorted);
    ls_free(s->groups);
    ls_free(s->entries);
    ls_free(s->places);
    ls_free(s);
}

/* --- the order of an epoch --- */

static void shuffle(uint32_t *list, size_t n, uint64_t seed)
{
    ls_rng rng;

    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)i;
    ls_rng_seed(&rng, seed);
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t)ls_rng_below(&rng, i);
        const uint32_t moved = list[j];

        list[j] = list[i - 1];
        list[i - 1] = moved;
    }
}

static int compare_entries(const void *a, const void *b)
{
    const pool_entry *x = a;
    const pool_entry *y = b;

    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

/* Sorts n samples of s->order from `first` on by length, into s->sorted. */
static void sort_pool(ls_sampler *s, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t index = s->order[first + i];

        s->entries[i] =
            (pool_entry){.length = s->opt.lengths[index], .position = (uint32_t)i, .index = index};
    }
    qsort(s->entries, n, sizeof(*s->entries), compare_entries);
    for (size_t i = 0; i < n; i++)
        s->sorted[first + i] = s->entries[i].index;
}

/* Sorts the samples in pools; those behind the last whole group stay behind it. */
static void sort_pools(ls_sampler *s)
{
    const size_t pool = pool_rows(s);
    size_t in_groups = s->opt.count / s->opt.bucket_rows * s->opt.bucket_rows;

    if (s->opt.no_shuffle)
        in_groups = s->opt.count;
    for (size_t i = 0; i < in_groups; i += pool)
        sort_pool(s, i, pool < in_groups - i ? pool : in_groups - i);
    sort_pool(s, in_groups, s->opt.count - in_groups);
}

/* Copies the sorted samples to s->order, the whole groups in random order. */
static void place_groups(ls_sampler *s, uint64_t epoch)
{
    const size_t rows = s->opt.bucket_rows;
    const size_t n_groups = s->opt.count / rows;
    const size_t in_groups = n_groups * rows;

    memcpy(s->order, s->sorted, s->opt.count * sizeof(*s->order));
    if (s->opt.no_shuffle)
        return;
    shuffle(s->groups, n_groups, ls_hash3(s->opt.seed, epoch, GROUP_STREAM));
    for (size_t i = 0; i < in_groups; i++)
        s->order[i] = s->sorted[s->groups[i / rows] * rows + i % rows];
}

ls_status ls_sampler_set_epoch(ls_sampler *s, uint64_t epoch)
{
    LS_TRY(LS_GIVEN(s));
    if (s->order == NULL || (s->has_epoch && s->epoch == epoch))
        return LS_OK;
    s->has_epoch = true;
    s->epoch = epoch;
    if (s->opt.no_shuffle) {
        for (size_t i = 0; i < s->opt.count; i++)
            s->order[i] = (uint32_t)i;
    } else {
        shuffle(s->order, s->opt.count, ls_hash3(s->opt.seed, epoch, SHUFFLE_STREAM));
    }
    if (s->opt.lengths != NULL) {
        sort_pools(s);
        place_groups(s, epoch);
    }
    return LS_OK;
}

size_t ls_sampler_count(const ls_sampler *s)
{
    return s == NULL ? 0 : s->n_own;
}

size_t ls_sampler_index(const ls_sampler *s, size_t i)
{
    size_t position;

    if (s == NULL)
        return 0;
    LS_ASSERT(i < s->n_own);
    position = s->places == NULL ? i * s->world + s->rank
                                 : i / s->n_rows * s->n_batch + s->places[i % s->n_rows];
    // Padding repeats the order from its beginning.
    position = (s->opt.skip + position) % s->opt.count;
    return s->order != NULL ? s->order[position] : position;
}

size_t sampler_total(const ls_sampler *s)
{
    return s->opt.count;
}

uint64_t sampler_seed(const ls_sampler *s)
{
    return s->opt.seed;
}

void sampler_set_rank(ls_sampler *s, int rank)
{
    LS_ASSERT(rank >= 0 && (size_t)rank < s->world && s->opt.mode != LS_SAMPLER_UNEVEN &&
              s->places == NULL);
    s->rank = (size_t)rank;
}

/* --- batches that are divided unequally --- */

/* How many samples of a rank with n_other come before sample `at` of one with n. Sample k of n is
 * at (2k + 1) / 2n of the batch; of two at the same place that of the lower rank comes first. */
static int64_t count_before(int64_t at, int64_t n, int64_t n_other, bool is_lower)
{
    const int64_t behind = (2 * at + 1) * n_other - n + (is_lower ? 1 : 0);

    return behind > 0 ? (behind + 2 * n - 1) / (2 * n) : 0;
}

static void place_rows(ls_sampler *s, const int *rows, int64_t n_dealt)
{
    const int64_t n = rows[s->rank] - n_dealt;

    for (int64_t k = 0; k < n_dealt; k++)
        s->places[k] = (size_t)k * s->world + s->rank;
    for (int64_t k = 0; k < n; k++) {
        int64_t place = n_dealt * (int64_t)s->world;

        for (size_t r = 0; r < s->world; r++)
            place += r == s->rank ? k : count_before(k, n, rows[r] - n_dealt, r < s->rank);
        s->places[n_dealt + k] = (size_t)place;
    }
}

ls_status sampler_divide(ls_sampler *s, const int *rows, bool drop_last)
{
    const size_t n = (size_t)rows[s->rank];
    int64_t n_dealt = DEALT_ROUNDS;
    size_t n_batch = 0;
    size_t left;

    for (size_t r = 0; r < s->world; r++) {
        LS_ASSERT(rows[r] > 0);
        n_batch += (size_t)rows[r];
        n_dealt = rows[r] < n_dealt ? rows[r] : n_dealt;
    }
    LS_TRY(LS_RESIZE(&s->places, n, "for %zu rows of a batch", n));
    s->n_rows = n;
    s->n_batch = n_batch;
    place_rows(s, rows, n_dealt);
    left = drop_last ? 0 : count_all(s) % n_batch;
    s->n_own = count_all(s) / n_batch * n;
    for (size_t k = 0; k < n && s->places[k] < left; k++)
        s->n_own++;
    return LS_OK;
}
