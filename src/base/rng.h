/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h - seeded, platform-independent random numbers (xoshiro256**, seeded by splitmix64), and the
 * counter-based hash by which (seed, epoch, index) alone decides a sample. Not for keys: see
 * net/key.h.
 */
#ifndef LS_BASE_RNG_H
#define LS_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct ls_rng {
    uint64_t s[4];
} ls_rng;

void ls_rng_seed(ls_rng *rng, uint64_t seed);
uint64_t ls_rng_next(ls_rng *rng);
/* Uniform in [0, bound), without bias; bound > 0. */
uint64_t ls_rng_below(ls_rng *rng, uint64_t bound);
/* Uniform in [0, 1), 53 bits. */
double ls_rng_double(ls_rng *rng);
/* Standard normal (Box-Muller). */
double ls_rng_normal(ls_rng *rng);
/* n of them, the same as by n calls of ls_rng_normal(), in less time. */
void ls_rng_normals(ls_rng *rng, double *out, size_t n);
/* Mixes three values to 64 bits, the same on every machine. */
uint64_t ls_hash3(uint64_t a, uint64_t b, uint64_t c);

/* The increment of ls_hash3(), for loops over its second argument: ls_hash3(a, b, c) is
 * ls_mix(ls_mix(ls_mix(a + LS_GOLDEN) + b + LS_GOLDEN) + c + LS_GOLDEN). */
#define LS_GOLDEN 0x9E3779B97F4A7C15U

/* splitmix64's output function: a bijection in which every input bit moves every output bit. */
static inline uint64_t ls_mix(uint64_t v)
{
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9U;
    v = (v ^ v >> 27) * 0x94D049BB133111EBU;
    return v ^ v >> 31;
}

/* FNV-1a with a final mix, for tables and signatures; not secure against attackers. */
uint64_t ls_hash_bytes(const void *data, size_t bytes, uint64_t seed);

/* Likewise for many bytes: a pass of 8 bytes a cycle. Blocks of equal size that differ in one of
 * their groups of 8 bytes only have different hashes. */
uint64_t ls_hash_block(const void *data, size_t bytes, uint64_t seed);

/* Not 0, which stands for a hash that is not known. */
static inline int64_t ls_hash_known(uint64_t hash)
{
    return hash == 0 ? 1 : (int64_t)hash;
}

#endif
