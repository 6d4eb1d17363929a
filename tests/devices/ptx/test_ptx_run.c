/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ptx_run.c - instructions of warps that move or multiply matrices, beside plain loops; faults
 * of copies to shared memory. Fragments are as the PTX ISA draws them.
 */
#include "devices/ptx/ptx.h"

#include "base/compute/half.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

typedef struct case_args {
    float a[16][16];
    float b[16][8];
    float c[16][8];
    float d[16][8];         /* the result */
    uint16_t rows[32][8];   /* four matrices of eight rows */
    uint32_t loaded[32][4]; /* of each lane */
    bool is_bf16;
    bool is_transposed;
    bool waits;
    bool meets;
    uint32_t filled; /* bytes of each copy */
    uint32_t seen[32];
} case_args;

static _Alignas(16) case_args shared_case; /* what kernels read and write, as global memory */

static bool run_kernel(void (*run)(ptx_thread *t), char *text)
{
    const ptx_kernel kernel = {"kernel", run, sizeof(void *), 1024};
    const ptx_range range = {&shared_case, sizeof(shared_case)};
    const ptx_launch launch = {.kernel = &kernel,
                               .args = &shared_case,
                               .n_blocks = 1,
                               .n_threads = 32,
                               .ranges = &range,
                               .n_ranges = 1,
                               .seed = 7};

    return ptx_run(&launch, text, 256);
}

static uint16_t narrow(float v, bool is_bf16)
{
    return is_bf16 ? ls_f32_to_bf16(v) : ls_f32_to_f16(v);
}

static uint32_t pair(float first, float second, bool is_bf16)
{
    return narrow(first, is_bf16) | (uint32_t)narrow(second, is_bf16) << 16;
}

/* --- products --- */

/* a0 to a7, b0 to b3 and c0 to c3 of the figures of the manual. */
static void multiply(ptx_thread *t)
{
    const int group = (int)t->thread >> 2;
    const int in_group = (int)t->thread % 4;
    case_args *x = &shared_case;
    uint32_t in[10];
    uint32_t out[4];

    for (int i = 0; i < 8; i += 2) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = in_group * 2 + (i >= 4 ? 8 : 0);

        in[i / 2] = pair(x->a[row][column], x->a[row][column + 1], x->is_bf16);
    }
    for (int i = 0; i < 4; i += 2) {
        const int row = in_group * 2 + (i >= 2 ? 8 : 0);

        in[4 + i / 2] = pair(x->b[row][group], x->b[row + 1][group], x->is_bf16);
    }
    for (int i = 0; i < 4; i++)
        memcpy(&in[6 + i], &x->c[i < 2 ? group : group + 8][in_group * 2 + i % 2], 4);
    if (x->is_bf16)
        mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(t, 1, in, out);
    else
        mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(t, 1, in, out);
    for (int i = 0; i < 4; i++)
        memcpy(&x->d[i < 2 ? group : group + 8][in_group * 2 + i % 2], &out[i], 4);
}

/* Numbers that both types have exactly, of different sizes. */
static void draw(ls_rng *rng, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = ldexpf((float)ls_rng_below(rng, 255) - 127, (int)ls_rng_below(rng, 8) - 6);
}

static void check_product(void)
{
    const case_args *x = &shared_case;

    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            double sum = (double)x->c[row][column];
            double size = fabs(sum);

            for (int k = 0; k < 16; k++) {
                sum += (double)x->a[row][k] * (double)x->b[k][column];
                size += fabs((double)x->a[row][k] * (double)x->b[k][column]);
            }
            if (!(fabs((double)x->d[row][column] - sum) <= size * 0x1p-23))
                fail_msg("row %d, column %d: %g, not %g", row, column, (double)x->d[row][column],
                         sum);
        }
    }
}

static void products_of_a_warp_are_those_of_matrices(void **state)
{
    char text[256] = "";
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, 4711);
    for (int i = 0; i < 100; i++) {
        memset(&shared_case, 0xFF, sizeof(shared_case));
        shared_case.is_bf16 = i % 2 == 0;
        draw(&rng, &shared_case.a[0][0], 16 * 16);
        draw(&rng, &shared_case.b[0][0], 16 * 8);
        draw(&rng, &shared_case.c[0][0], 16 * 8);
        if (!run_kernel(multiply, text))
            fail_msg("%s", text);
        check_product();
    }
}

/* --- matrices in shared memory --- */

static void load(ptx_thread *t)
{
    case_args *x = &shared_case;
    const uint64_t at = 16 * (uint64_t)t->thread;

    store_shared(t, 1, at, x->rows[t->thread], 16, PTX_WEAK);
    bar_sync(t, 2, 0);
    if (x->is_transposed)
        ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(t, 3, at, x->loaded[t->thread]);
    else
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(t, 4, at, x->loaded[t->thread]);
}

static void matrices_are_loaded_as_fragments(void **state)
{
    char text[256] = "";

    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(&shared_case, 0, sizeof(shared_case));
        shared_case.is_transposed = i == 1;
        for (uint16_t e = 0; e < 32 * 8; e++)
            shared_case.rows[e / 8][e % 8] = e;
        if (!run_kernel(load, text))
            fail_msg("%s", text);
        for (uint32_t lane = 0; lane < 32; lane++) {
            for (uint32_t m = 0; m < 4; m++) {
                const uint32_t first = i == 0 ? 64 * m + 8 * (lane / 4) + 2 * (lane % 4)
                                              : 64 * m + 8 * (2 * (lane % 4)) + lane / 4;
                const uint32_t second = first + (i == 0 ? 1 : 8);

                assert_int_equal(shared_case.loaded[lane][m], first | second << 16);
            }
        }
    }
}

static void exchange_lanes(ptx_thread *t)
{
    shared_case.seen[t->thread] = shfl_sync_bfly_b32(t, 1, 100 + t->thread, 2, 31, ~0U, NULL);
}

static void lanes_exchange_values(void **state)
{
    char text[256] = "";

    (void)state;
    if (!run_kernel(exchange_lanes, text))
        fail_msg("%s", text);
    for (uint32_t lane = 0; lane < 32; lane++)
        assert_int_equal(shared_case.seen[lane], 100 + (lane ^ 2));
}

static void diverge(ptx_thread *t)
{
    uint32_t out[4];

    if (t->thread != 5)
        mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(t, 9, (const uint32_t[10]){0}, out);
}

static void a_lane_that_does_not_arrive_is_a_fault(void **state)
{
    char text[256] = "";

    (void)state;
    assert_false(run_kernel(diverge, text));
    assert_non_null(strstr(text, "at line 9 is not reached by all"));
}

/* --- copies to shared memory --- */

/* Each lane copies a row, and reads that of the next one. */
static void copy_rows(ptx_thread *t)
{
    const case_args *x = &shared_case;
    const uint32_t next = (t->thread + 1) % 32;

    cp_async_cg_shared_global(t, 1, 16 * (uint64_t)t->thread,
                              (uint64_t)(uintptr_t)x->rows[t->thread], 16, x->filled);
    if (x->waits)
        cp_async_wait_all(t, 2);
    if (x->meets)
        bar_sync(t, 3, 0);
    load_shared(t, 4, 16 * (uint64_t)next + 8, &shared_case.seen[t->thread], 4, PTX_WEAK);
}

static bool copies_work(bool waits, bool meets, uint32_t filled, char *text)
{
    memset(&shared_case, 0, sizeof(shared_case));
    for (uint16_t e = 0; e < 32 * 8; e++)
        shared_case.rows[e / 8][e % 8] = e;
    shared_case.waits = waits;
    shared_case.meets = meets;
    shared_case.filled = filled;
    return run_kernel(copy_rows, text);
}

static void copies_arrive_behind_a_wait_and_a_barrier(void **state)
{
    char text[256] = "";

    (void)state;
    if (!copies_work(true, true, 16, text))
        fail_msg("%s", text);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t first = 8 * ((lane + 1) % 32) + 4;

        assert_int_equal(shared_case.seen[lane], first | (first + 1) << 16);
    }
    if (!copies_work(true, true, 0, text))
        fail_msg("%s", text);
    for (uint32_t lane = 0; lane < 32; lane++)
        assert_int_equal(shared_case.seen[lane], 0);
}

static void a_read_before_the_wait_is_a_fault(void **state)
{
    char text[256] = "";

    (void)state;
    assert_false(copies_work(false, true, 16, text));
    assert_non_null(strstr(text, "a copy to which is not waited for"));
}

static void a_read_before_the_barrier_is_a_fault(void **state)
{
    char text[256] = "";

    (void)state;
    assert_false(copies_work(true, false, 16, text));
    // By the order of the threads: it is read before it is written, meanwhile, or unordered.
    assert_true(strstr(text, "a race") != NULL || strstr(text, "not written") != NULL ||
                strstr(text, "not waited for") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_a_warp_are_those_of_matrices),
        cmocka_unit_test(matrices_are_loaded_as_fragments),
        cmocka_unit_test(lanes_exchange_values),
        cmocka_unit_test(a_lane_that_does_not_arrive_is_a_fault),
        cmocka_unit_test(copies_arrive_behind_a_wait_and_a_barrier),
        cmocka_unit_test(a_read_before_the_wait_is_a_fault),
        cmocka_unit_test(a_read_before_the_barrier_is_a_fault),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
