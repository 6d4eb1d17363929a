/* SPDX-License-Identifier: Apache-2.0 */
/*
 * low_rank.h - PowerSGD's step of a power iteration (Vogels, Karimireddy, Jaggi 2019, arXiv
 * 1905.13727) on one matrix, in parts between which the ranks add p and q. Pure: float32 in a fixed
 * order, so that the bits depend on the arguments only.
 *
 * A matrix m has `rows` rows of `cols` numbers, row by row; p has `rank` columns of `rows` numbers,
 * q of `cols`, column by column. rank: 1 to LOW_RANK_MOST.
 */
#ifndef LS_DDP_LOW_RANK_H
#define LS_DDP_LOW_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOW_RANK_MOST = 64 };

/* Whether p and q have at most half of the numbers of m. */
bool low_rank_is_worth(size_t rows, size_t cols, int rank);

/* Fills the columns of q that are 0 with normal random numbers that depend on seed and column: all
 * before the first step, and later those for which m had no direction left. */
void low_rank_fill(float *q, size_t cols, int rank, uint64_t seed);

/* p = m q */
void low_rank_project(const float *m, size_t rows, size_t cols, const float *q, int rank, float *p);

/* The columns of p become orthogonal, with norm 1 (Gram-Schmidt, twice). A column that the ones
 * before it give but for LOW_RANK_NOISE of its norm becomes 0. A NaN stays. */
#define LOW_RANK_NOISE 1e-5
void low_rank_orthogonalize(float *p, size_t rows, int rank);

/* q = m^T p */
void low_rank_project_back(const float *m, size_t rows, size_t cols, const float *p, int rank,
                           float *q);

/* out = p q^T, and m -= share p q^T: what is left over for the next step. */
void low_rank_restore(const float *p, const float *q, size_t rows, size_t cols, int rank,
                      float share, float *m, float *out);

#endif
