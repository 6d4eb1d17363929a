/* SPDX-License-Identifier: Apache-2.0 */
/* low_rank.c - see low_rank.h. power_sgd.c calls it. Its loops are vectorized at -O3. */
#include "ddp/low_rank.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

/* Partial sums of a dot product: number j is in that of j mod LANES. */
enum { LANES = 16 };

bool low_rank_is_worth(size_t rows, size_t cols, int rank)
{
    return 2 * (rows + cols) * (size_t)rank <= rows * cols;
}

static bool is_zero(const float *column, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (column[i] != 0) // also a NaN
            return false;
    return true;
}

void low_rank_fill(float *q, size_t cols, int rank, uint64_t seed)
{
    for (int k = 0; k < rank; k++) {
        float *column = q + (size_t)k * cols;
        ls_rng rng;

        if (!is_zero(column, cols))
            continue;
        ls_rng_seed(&rng, ls_hash3(seed, (uint64_t)k, 1));
        for (size_t j = 0; j < cols; j++)
            column[j] = (float)ls_rng_normal(&rng);
    }
}

static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    float sums[LANES] = {0};
    float sum = 0;
    size_t j = 0;

    for (; j + LANES <= n; j += LANES)
        for (size_t l = 0; l < LANES; l++)
            sums[l] += a[j + l] * b[j + l];
    for (size_t l = 0; l < LANES; l++)
        sum += sums[l];
    for (; j < n; j++)
        sum += a[j] * b[j];
    return sum;
}

void low_rank_project(const float *m, size_t rows, size_t cols, const float *q, int rank, float *p)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < (size_t)rank; k++)
            p[k * rows + i] = dot(m + i * cols, q + k * cols, cols);
}

/* In float64, so that large matrices keep their directions. */
static double exact_dot(const float *a, const float *b, size_t n)
{
    double sums[LANES] = {0};
    double sum = 0;
    size_t j = 0;

    for (; j + LANES <= n; j += LANES)
        for (size_t l = 0; l < LANES; l++)
            sums[l] += (double)a[j + l] * (double)b[j + l];
    for (size_t l = 0; l < LANES; l++)
        sum += sums[l];
    for (; j < n; j++)
        sum += (double)a[j] * (double)b[j];
    return sum;
}

/* to += factor from */
static void add(const float *restrict from, size_t n, float factor, float *restrict to)
{
    for (size_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* Column k loses what the columns before it give. */
static void subtract_before(float *p, size_t rows, int k)
{
    float *column = p + (size_t)k * rows;

    for (int before = 0; before < k; before++) {
        const float *other = p + (size_t)before * rows;

        add(other, rows, -(float)exact_dot(other, column, rows), column);
    }
}

static void multiply(float *column, size_t n, double factor)
{
    for (size_t i = 0; i < n; i++)
        column[i] = factor == 0 ? 0 : (float)((double)column[i] * factor);
}

void low_rank_orthogonalize(float *p, size_t rows, int rank)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + (size_t)k * rows;
        const double norm = sqrt(exact_dot(column, column, rows));
        double rest;

        subtract_before(p, rows, k);
        rest = sqrt(exact_dot(column, column, rows));
        multiply(column, rows, rest <= LOW_RANK_NOISE * norm ? 0 : 1 / rest);
        subtract_before(p, rows, k);
        rest = sqrt(exact_dot(column, column, rows));
        multiply(column, rows, rest == 0 ? 0 : 1 / rest);
    }
}

void low_rank_project_back(const float *m, size_t rows, size_t cols, const float *p, int rank,
                           float *q)
{
    memset(q, 0, cols * (size_t)rank * sizeof(*q));
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < (size_t)rank; k++)
            add(m + i * cols, cols, p[k * rows + i], q + k * cols);
}

void low_rank_restore(const float *p, const float *q, size_t rows, size_t cols, int rank,
                      float share, float *m, float *out)
{
    for (size_t i = 0; i < rows; i++) {
        float *row = out + i * cols;

        memset(row, 0, cols * sizeof(*row));
        for (size_t k = 0; k < (size_t)rank; k++)
            add(q + k * cols, cols, p[k * rows + i], row);
        add(row, cols, -share, m + i * cols);
    }
}
