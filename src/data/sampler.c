/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.c - one order of all samples, distributed round-robin: after the skipped positions rank r
 * takes positions r, r + world, r + 2*world, ... The order is a Fisher-Yates shuffle driven by
 * base/rng.h, hence the same on every rank; it is not torch.randperm's. loader.c uses it.
 */
#include "data/sampler.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/status.h"

#define SHUFFLE_STREAM 0x73616D706C65U /* separates this use of (seed, epoch) from others */

struct ls_sampler {
    ls_sampler_options opt;
    size_t rank;
    size_t world;
    size_t n_own;    /* samples of this rank */
    uint32_t *order; /* the shuffled indices; NULL without shuffling */
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
    if (opt->mode != LS_SAMPLER_PAD && opt->mode != LS_SAMPLER_DROP_LAST &&
        opt->mode != LS_SAMPLER_UNEVEN)
        return ls_fail(LS_EINVAL, "sampler: invalid mode %d", (int)opt->mode);
    return LS_OK;
}

static size_t count_own(const ls_sampler *s)
{
    const size_t each = (s->opt.count - s->opt.skip) / s->world;
    const size_t rest = (s->opt.count - s->opt.skip) % s->world;

    switch (s->opt.mode) {
    case LS_SAMPLER_DROP_LAST:
        return each;
    case LS_SAMPLER_UNEVEN:
        return each + (s->rank < rest ? 1 : 0);
    case LS_SAMPLER_PAD:
        break;
    }
    return each + (rest > 0 ? 1 : 0);
}

ls_status ls_sampler_create(const ls_sampler_options *opt, ls_sampler **out)
{
    ls_sampler_options o;
    ls_sampler *s;

    LS_TRY(LS_GIVEN(out));
    if (opt == NULL)
        return ls_fail(LS_EINVAL, "sampler: options are NULL");
    LS_TRY(ls_context(OPTIONS_COPY(ls_sampler_options, opt, &o), "sampler"));
    LS_TRY(check_options(&o));
    s = ls_calloc(1, sizeof(*s));
    if (s == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a sampler");
    s->opt = o;
    s->rank = (size_t)o.rank;
    s->world = o.world_size == 0 ? 1 : (size_t)o.world_size;
    s->n_own = count_own(s);
    if (!o.no_shuffle) {
        s->order = ls_calloc(o.count, sizeof(*s->order));
        if (s->order == NULL) {
            ls_free(s);
            return ls_fail(LS_ENOMEM, "no memory for the order of %zu samples", o.count);
        }
    }
    *out = s;
    return ls_sampler_set_epoch(s, 0);
}

void ls_sampler_destroy(ls_sampler *s)
{
    if (s == NULL)
        return;
    ls_free(s->order);
    ls_free(s);
}

ls_status ls_sampler_set_epoch(ls_sampler *s, uint64_t epoch)
{
    size_t n;
    ls_rng rng;

    LS_TRY(LS_GIVEN(s));
    if (s->order == NULL)
        return LS_OK;
    n = s->opt.count;
    for (size_t i = 0; i < n; i++)
        s->order[i] = (uint32_t)i;
    ls_rng_seed(&rng, ls_hash3(s->opt.seed, epoch, SHUFFLE_STREAM));
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t)ls_rng_below(&rng, i);
        const uint32_t moved = s->order[j];

        s->order[j] = s->order[i - 1];
        s->order[i - 1] = moved;
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
    // Padding repeats the order from its beginning.
    position = (s->opt.skip + i * s->world + s->rank) % s->opt.count;
    return s->order != NULL ? s->order[position] : position;
}

size_t sampler_total(const ls_sampler *s)
{
    return s->opt.count;
}
