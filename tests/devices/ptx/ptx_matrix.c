/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_matrix.c - the instructions of a warp on matrices, for kernels that ptx_run.c runs. NVIDIA,
 * "PTX ISA", "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix". Products
 * are exact and added in float64, so a sum differs from a card's in its last bits.
 */
#include "devices/ptx/ptx_internal.h"

#include "base/compute/half.h"

#include <string.h>

/* --- ldmatrix: in: the row of 16 bytes that the lane has addressed --- */

static uint32_t element(const fiber *lanes, int matrix, int row, int column)
{
    return lanes[8 * matrix + row].exchange.in[column / 2] >> column % 2 * 16 & 0xFFFF;
}

static void load_rows(fiber *lanes)
{
    for (int lane = 0; lane < PTX_LANES; lane++) {
        for (int m = 0; m < 4; m++)
            lanes[lane].exchange.out[m] = lanes[8 * m + lane / 4].exchange.in[lane % 4];
    }
}

static void load_columns(fiber *lanes)
{
    for (int lane = 0; lane < PTX_LANES; lane++) {
        const int row = lane % 4 * 2;

        for (int m = 0; m < 4; m++)
            lanes[lane].exchange.out[m] =
                element(lanes, m, row, lane / 4) | element(lanes, m, row + 1, lane / 4) << 16;
    }
}

static void load_matrices(ptx_thread *t, int line, uint64_t row, uint32_t *out,
                          void (*arrange)(fiber *lanes))
{
    _Alignas(16) uint32_t in[4];

    load_shared(t, line, row, in, sizeof(in), PTX_WEAK);
    ptx_exchange((fiber *)t, line, (exchange){arrange, in, out});
}

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(ptx_thread *t, int line, uint64_t row, uint32_t *out)
{
    load_matrices(t, line, row, out, load_rows);
}

void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(ptx_thread *t, int line, uint64_t row,
                                                    uint32_t *out)
{
    load_matrices(t, line, row, out, load_columns);
}

/* --- mma: in: 4 registers of A, 2 of B, 4 of C --- */

typedef float (*value_fn)(uint16_t bits);

/* Where register r of a lane begins in its 16 x 16 matrix A; B is the transposed first half. */
static int row_of(int lane, int r)
{
    return lane / 4 + r % 2 * 8;
}

static int column_of(int lane, int r)
{
    return lane % 4 * 2 + r / 2 * 8;
}

static void multiply(fiber *lanes, value_fn value)
{
    double a[16][16];
    double b[8][16]; // transposed

    for (int lane = 0; lane < PTX_LANES; lane++) {
        const uint32_t *in = lanes[lane].exchange.in;

        for (int half = 0; half < 2; half++) {
            for (int r = 0; r < 4; r++)
                a[row_of(lane, r)][column_of(lane, r) + half] =
                    (double)value((uint16_t)(in[r] >> 16 * half));
            for (int r = 0; r < 2; r++)
                b[lane / 4][lane % 4 * 2 + 8 * r + half] =
                    (double)value((uint16_t)(in[4 + r] >> 16 * half));
        }
    }
    for (int lane = 0; lane < PTX_LANES; lane++) {
        for (int r = 0; r < 4; r++) {
            const double *row = a[row_of(lane, r / 2)];
            const double *column = b[lane % 4 * 2 + r % 2];
            float sum;
            double exact;

            memcpy(&sum, &lanes[lane].exchange.in[6 + r], sizeof(sum));
            exact = (double)sum;
            for (int k = 0; k < 16; k++)
                exact += row[k] * column[k];
            sum = (float)exact;
            memcpy(&lanes[lane].exchange.out[r], &sum, sizeof(sum));
        }
    }
}

static void multiply_bf16(fiber *lanes)
{
    multiply(lanes, ls_bf16_to_f32);
}

static void multiply_f16(fiber *lanes)
{
    multiply(lanes, ls_f16_to_f32);
}

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(ptx_thread *t, int line,
                                                         const uint32_t *in, uint32_t *out)
{
    ptx_exchange((fiber *)t, line, (exchange){multiply_bf16, in, out});
}

void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(ptx_thread *t, int line, const uint32_t *in,
                                                       uint32_t *out)
{
    ptx_exchange((fiber *)t, line, (exchange){multiply_f16, in, out});
}
