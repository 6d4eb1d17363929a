/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_transpose.c - transposes matrices, 8 by 8 elements in registers at a time.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

SIMD_INLINE void transpose_8(const float *x, size_t row, float *to, ptrdiff_t to_row)
{
    vec_8 a[8];
    vec_8 b[8];

    SIMD_UNROLL
    for (size_t i = 0; i < 8; i++)
        load_8(&a[i], x + i * row);
    SIMD_UNROLL
    for (size_t i = 0; i < 8; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    SIMD_UNROLL
    for (size_t i = 0; i < 8; i += 4) {
        a[i] = __builtin_shufflevector(b[i], b[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        a[i + 1] = __builtin_shufflevector(b[i], b[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        a[i + 2] = __builtin_shufflevector(b[i + 1], b[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        a[i + 3] = __builtin_shufflevector(b[i + 1], b[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    SIMD_UNROLL
    for (size_t i = 0; i < 4; i++) {
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    SIMD_UNROLL
    for (ptrdiff_t i = 0; i < 8; i++)
        store_8(to + i * to_row, &b[i]);
}

void SIMD_NAME(transpose)(const float *x, size_t row, size_t n_rows, size_t n_columns, float *to,
                          ptrdiff_t to_row)
{
    size_t c = 0;

    for (; c + 8 <= n_columns; c += 8, to += 8 * to_row) {
        size_t r = 0;

        for (; r + 8 <= n_rows; r += 8)
            transpose_8(x + r * row + c, row, to + r, to_row);
        for (; r < n_rows; r++) {
            SIMD_UNROLL
            for (ptrdiff_t i = 0; i < 8; i++)
                to[i * to_row + (ptrdiff_t)r] = x[r * row + c + (size_t)i];
        }
    }
    for (; c < n_columns; c++, to += to_row) {
        for (size_t r = 0; r < n_rows; r++)
            to[r] = x[r * row + c];
    }
}
