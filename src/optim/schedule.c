/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - learning rates by position. libm's pow and cos may differ in the last bit from one
 * processor to the next, and ranks on different hosts must compute equal rates, so both are made
 * here of operations that IEEE 754 fixes to the bit.
 */
#include <lockstep/optim.h>

/* x^n by squaring: n's bits from the lowest. */
static double power(double x, int64_t n)
{
    double result = 1;

    for (; n > 0; n >>= 1) {
        if (n & 1)
            result *= x;
        x *= x;
    }
    return result;
}

/* cos(pi * t / total) for 0 <= t <= total, by Taylor's series on an eighth of the circle. */
static double cosine(int64_t t, int64_t total)
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

double ls_schedule_lr(const ls_schedule *s, int64_t t)
{
    const double gamma = s->gamma != 0 ? s->gamma : 0.1;
    const int64_t step = s->step < 1 ? 1 : s->step;
    const int64_t total = s->total < 1 ? 1 : s->total;

    if (t < 0)
        t = 0;
    switch (s->kind) {
    case LS_SCHEDULE_STEP:
        return s->base_lr * power(gamma, t / step);
    case LS_SCHEDULE_COSINE:
        if (t >= total)
            return s->min_lr;
        return s->min_lr + (s->base_lr - s->min_lr) * (1 + cosine(t, total)) / 2;
    case LS_SCHEDULE_CONSTANT:
        break;
    }
    return s->base_lr;
}
