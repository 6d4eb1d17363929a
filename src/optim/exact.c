/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c - powers and cosines with the same bits on every machine; schedules and Adam use them. */
#include "optim/exact.h"

/* By squaring: n's bits from the lowest. */
double exact_power(double x, int64_t n)
{
    double result = 1;

    for (; n > 0; n >>= 1) {
        if (n & 1)
            result *= x;
        x *= x;
    }
    return result;
}

/* By Taylor's series on an eighth of the circle. */
double exact_cosine(int64_t t, int64_t total)
{
    const double u = (double)t / (double)total;    // half turns
    const double first_half = u > 0.5 ? 1 - u : u; // cos(pi - x) = -cos x
    const int by_sine = first_half > 0.25;         // cos x = sin(pi/2 - x)
    const double x = 3.141592653589793 * (by_sine ? 0.5 - first_half : first_half);
    double sum = 1;

    // cos x = 1 - x2/(1*2) (1 - x2/(3*4) (...)), and sin x = x (1 - x2/(2*3) (...)).
    for (int n = 16 + by_sine; n >= 2; n -= 2)
        sum = 1 - x * x * sum / (n * (n - 1));
    if (by_sine)
        sum *= x;
    return u > 0.5 ? -sum : sum;
}
