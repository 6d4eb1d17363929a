/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h - what loaders and runs need of a sampler beyond the public functions. */
#ifndef LS_DATA_SAMPLER_H
#define LS_DATA_SAMPLER_H

#include <lockstep/data.h>

#include <stdbool.h>

size_t sampler_total(const ls_sampler *s); /* samples of the data set that it was made for */
uint64_t sampler_seed(const ls_sampler *s);

/* From now on the samples of another rank; not with LS_SAMPLER_UNEVEN. */
void sampler_set_rank(ls_sampler *s, int rank);

/* From now on rank r has rows[r] samples, at least 1, of each batch of all ranks together. The
 * batches stay those of equal numbers, which give each rank what it has without this call. Of an
 * incomplete last batch each rank gets up to two samples first, then a share in proportion;
 * drop_last: nothing. May be called again. LS_ENOMEM. */
LS_MUST_USE ls_status sampler_divide(ls_sampler *s, const int *rows, bool drop_last);

#endif
