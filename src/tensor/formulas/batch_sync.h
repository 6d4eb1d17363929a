/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_sync.h - the values that batch norm's kernels add up over the ranks that share a batch, the
 * same for all devices:
 *
 *     values[0]              values a channel
 *     values[1 + c]          forward: sum of x                backward: sum of dy
 *     values[1 + C + c]      forward: sum of x^2              backward: sum of dy (x - mean)
 *
 * Squares are summed in float64, where a mean of 10^4 deviations still leaves the variance exact to
 * float32.
 */
#ifndef LS_TENSOR_FORMULAS_BATCH_SYNC_H
#define LS_TENSOR_FORMULAS_BATCH_SYNC_H

#include "tensor/device.h"

/* How many values there are. */
static inline size_t batch_sync_count(size_t n_channels)
{
    return 1 + 2 * n_channels;
}

static inline bool batch_sync_needed(const op_call *call)
{
    return call->attrs.training && call->attrs.sync.sum != NULL;
}

/* Forward: this rank's `count` values of channel c, with their mean and the sum of squared
 * distances from it. */
static inline void batch_sync_put(double *values, size_t n_channels, size_t c, double count,
                                  double mean, double spread)
{
    values[0] = count;
    values[1 + c] = count * mean;
    values[1 + n_channels + c] = spread + count * mean * mean;
}

/* Forward: the mean and biased variance of channel c over all ranks; 0 and 0 of nothing. */
static inline void batch_sync_get(const double *values, size_t n_channels, size_t c, double *mean,
                                  double *variance)
{
    const double count = values[0] > 0 ? values[0] : 1;
    double square;

    *mean = values[1 + c] / count;
    square = values[1 + n_channels + c] / count - *mean * *mean;
    *variance = square < 0 ? 0 : square; /* NaN stays */
}

/* Adds up over the ranks. */
static inline ls_status batch_sync_sum(const op_call *call, double *values, size_t n_channels)
{
    return call->attrs.sync.sum(call->attrs.sync.arg, values, batch_sync_count(n_channels));
}

#endif
