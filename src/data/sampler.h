/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h - what loaders and runs need of a sampler beyond the public functions. */
#ifndef LS_DATA_SAMPLER_H
#define LS_DATA_SAMPLER_H

#include <lockstep/data.h>

size_t sampler_total(const ls_sampler *s); /* samples of the data set that it was made for */
uint64_t sampler_seed(const ls_sampler *s);

/* From now on the samples of another rank; not with LS_SAMPLER_UNEVEN. */
void sampler_set_rank(ls_sampler *s, int rank);

#endif
