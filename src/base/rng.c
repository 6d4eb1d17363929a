/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.c - D. Blackman, S. Vigna, "Scrambled linear pseudorandom number generators" (xoshiro256**);
 * G. Steele et al., "Fast splittable pseudorandom number generators" (splitmix64). Used by
 * initialisation, dropout, sampling and augmentation.
 *
 * libm's log and cos may differ in the last bit between processors, so the normal distribution uses
 * its own, composed of operations that IEEE 754 defines to the bit.
 */
#include "base/rng.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

static uint64_t rotate_left(uint64_t v, unsigned n)
{
    return v << n | v >> (64 - n);
}

void ls_rng_seed(ls_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += LS_GOLDEN;
        rng->s[i] = ls_mix(seed);
    }
}

uint64_t ls_rng_next(ls_rng *rng)
{
    uint64_t *s = rng->s;
    const uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t ls_rng_below(ls_rng *rng, uint64_t bound)
{
    uint64_t first;
    uint64_t r;

    LS_ASSERT(bound > 0);
    // Values below 2^64 mod bound would make the small results more likely.
    first = (0 - bound) % bound;
    do {
        r = ls_rng_next(rng);
    } while (r < first);
    return r % bound;
}

double ls_rng_double(ls_rng *rng)
{
    return (double)(ls_rng_next(rng) >> 11) * 0x1p-53;
}

/* ln(x) for normal x > 0: x = m * 2^e with m near 1, then ln(m) = 2 atanh((m-1)/(m+1)). */
static inline double log_fixed(double x)
{
    static const double odd[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    uint64_t bits;
    uint64_t exponent_bits;
    double exponent;
    double m;
    double z;
    double z2;
    double sum = 0;

    memcpy(&bits, &x, sizeof(bits));
    // 2^52 + the biased exponent; unlike a conversion this is one instruction for several numbers.
    exponent_bits = bits >> 52 | 0x4330000000000000U;
    memcpy(&exponent, &exponent_bits, sizeof(exponent));
    bits = (bits & 0xFFFFFFFFFFFFFU) | 0x3FF0000000000000U;
    memcpy(&m, &bits, sizeof(m));
    exponent -= 0x1p52 + (m > 1.4142135623730951 ? 1022 : 1023);
    m = m > 1.4142135623730951 ? m * 0.5 : m;
    z = (m - 1) / (m + 1);
    z2 = z * z;
    // |z| < 0.1716: the first omitted term is below 1e-17 of the sum.
    for (size_t i = 0; i < LS_COUNT_OF(odd); i++)
        sum = sum * z2 + odd[i];
    return exponent * 0.6931471805599453 + 2 * z * sum;
}

/* cos(2 pi t) for t in [0, 1), by Taylor's series on an eighth of the circle. */
static inline double cos_of_circle(double t)
{
    // 1 / (n (n - 1)) from the innermost n on: even n for the cosine, odd n for the sine
    static const double factors[2][8] = {
        {1.0 / 240, 1.0 / 182, 1.0 / 132, 1.0 / 90, 1.0 / 56, 1.0 / 30, 1.0 / 12, 1.0 / 2},
        {1.0 / 272, 1.0 / 210, 1.0 / 156, 1.0 / 110, 1.0 / 72, 1.0 / 42, 1.0 / 20, 1.0 / 6}};
    const double half = t > 0.5 ? 1 - t : t;                // cos is even
    const double quarter = half > 0.25 ? 0.5 - half : half; // and mirrored in sign
    const double x = 6.283185307179586 * (quarter > 0.125 ? 0.25 - quarter : quarter);
    const double x2 = x * x;
    double sum = 1;

    // cos x = 1 - x2/(1*2) (1 - x2/(3*4) (...)), and sin x = x (1 - x2/(2*3) (...)).
    for (size_t i = 0; i < LS_COUNT_OF(factors[0]); i++)
        sum = 1 - x2 * sum * (quarter > 0.125 ? factors[1][i] : factors[0][i]);
    sum *= quarter > 0.125 ? x : 1;
    return half > 0.25 ? -sum : sum;
}

/* The numbers of a block do not depend on each other, and nothing in them branches: the compiler
 * computes several at once. */
void ls_rng_normals(ls_rng *rng, double *out, size_t n)
{
    enum { BLOCK = 64 };
    double u[BLOCK]; // in (0, 1]
    double angle[BLOCK];

    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t n_now = n - at < BLOCK ? n - at : BLOCK;

        for (size_t i = 0; i < n_now; i++) {
            u[i] = 1 - ls_rng_double(rng);
            angle[i] = ls_rng_double(rng);
        }
        for (size_t i = 0; i < n_now; i++)
            out[at + i] = sqrt(-2 * log_fixed(u[i])) * cos_of_circle(angle[i]);
    }
}

double ls_rng_normal(ls_rng *rng)
{
    double z;

    ls_rng_normals(rng, &z, 1);
    return z;
}

uint64_t ls_hash3(uint64_t a, uint64_t b, uint64_t c)
{
    return ls_mix(ls_mix(ls_mix(a + LS_GOLDEN) + b + LS_GOLDEN) + c + LS_GOLDEN);
}

uint64_t ls_hash_bytes(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t hash = 0xCBF29CE484222325U ^ ls_mix(seed);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001B3U;
    return ls_mix(hash);
}

enum { LANES = 8 };

/* For a word a one-to-one function of the lane, and for a lane of the word. */
static inline uint64_t add_word(uint64_t lane, const unsigned char *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    lane = (lane ^ word) * 0x9E3779B185EBCA87U;
    return lane << 29 | lane >> 35;
}

uint64_t ls_hash_block(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = data;
    const unsigned char *const end = p + bytes - bytes % (LANES * sizeof(uint64_t));
    unsigned char tail[LANES * sizeof(uint64_t)] = {0};
    uint64_t lanes[LANES];
    uint64_t hash = ls_mix(seed ^ bytes);

    for (int i = 0; i < LANES; i++)
        lanes[i] = (uint64_t)i + 1;
    for (; p < end; p += sizeof(tail))
        for (int i = 0; i < LANES; i++)
            lanes[i] = add_word(lanes[i], p + (size_t)i * sizeof(uint64_t));
    if (bytes % sizeof(tail) > 0)
        memcpy(tail, p, bytes % sizeof(tail));
    for (int i = 0; i < LANES; i++)
        hash = ls_mix(hash ^ add_word(lanes[i], tail + (size_t)i * sizeof(uint64_t)));
    return hash;
}
