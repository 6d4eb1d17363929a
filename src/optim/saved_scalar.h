/* SPDX-License-Identifier: Apache-2.0 */
/* saved_scalar.h - scalars of the state lists of optimizers and scalers, as little-endian bytes. */
#ifndef LS_OPTIM_SAVED_SCALAR_H
#define LS_OPTIM_SAVED_SCALAR_H

#include <stdint.h>
#include <string.h>

#define SAVED_BYTES 8

static inline void save_u64(uint8_t out[SAVED_BYTES], uint64_t value)
{
    for (int i = 0; i < SAVED_BYTES; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t saved_u64(const uint8_t in[SAVED_BYTES])
{
    uint64_t value = 0;

    for (int i = 0; i < SAVED_BYTES; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

static inline void save_double(uint8_t out[SAVED_BYTES], double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    save_u64(out, bits);
}

static inline double saved_double(const uint8_t in[SAVED_BYTES])
{
    const uint64_t bits = saved_u64(in);
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

#endif
