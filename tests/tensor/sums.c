/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c - see sums.h. Tests of batch norm over ranks use it. */
#include "tensor/sums.h"

#include "base/compute/accel.h"

#include <string.h>

#define MAX_SUMS 64

/* Copies the values between host memory and where the kernel has them, and waits. */
static ls_status move_sums(double *dst, const double *src, size_t n, accel *a, bool to_host)
{
    if (a == NULL) {
        memcpy(dst, src, n * sizeof(*dst));
        return LS_OK;
    }
    LS_TRY(accel_copy(accel_queue(a, ACCEL_COMPUTE), dst, src, n * sizeof(*dst),
                      to_host ? ACCEL_TO_HOST : ACCEL_TO_DEVICE));
    return accel_synchronize(a, "test: sums over ranks");
}

ls_status sums_change(double *values, size_t n, double factor, double (*added)(size_t i, size_t n))
{
    accel *a = accel_of(values);
    double sums[MAX_SUMS];

    LS_ASSERT(n <= MAX_SUMS);
    LS_TRY(move_sums(sums, values, n, a, true));
    for (size_t i = 0; i < n; i++)
        sums[i] = factor * sums[i] + added(i, n);
    return move_sums(values, sums, n, a, false);
}
