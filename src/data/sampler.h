/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h - what the loader needs of a sampler beyond the public functions. */
#ifndef LS_DATA_SAMPLER_H
#define LS_DATA_SAMPLER_H

#include <lockstep/data.h>

size_t sampler_total(const ls_sampler *s); /* samples of the data set that it was made for */
uint64_t sampler_seed(const ls_sampler *s);

#endif
