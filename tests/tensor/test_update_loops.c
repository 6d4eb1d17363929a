/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_update_loops.c - the loops of optimizers, clipping and gradient scaling give the same bits
 * with every instruction set.
 */
#include "tensor/devices/update/update_loops.h"

#include "tensor/testing.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { N = 1003, N_ARRAYS = 5, SEED = 42 }; // N is no multiple of any vector

/* The arrays of a loop, as float32 or float64. */
typedef union arrays {
    float f32[N_ARRAYS][N];
    double f64[N_ARRAYS][N];
} arrays;

static const update_loops *loops_of(const update_isa *isa, bool is_f32)
{
    return is_f32 ? &isa->f32 : &isa->f64;
}

static void *array(arrays *a, int i, bool is_f32)
{
    return is_f32 ? (void *)a->f32[i] : (void *)a->f64[i];
}

/* Values in (-1, 1); in the arrays of squares at least 0. */
static void fill(arrays *a, bool is_f32)
{
    ls_rng rng;

    memset(a, 0, sizeof(*a));
    ls_rng_seed(&rng, SEED);
    for (int k = 0; k < N_ARRAYS; k++) {
        for (size_t i = 0; i < N; i++) {
            const double u = ls_rng_double(&rng);
            const double v = k < 3 ? 2 * u - 1 : u;

            if (is_f32)
                a->f32[k][i] = (float)v;
            else
                a->f64[k][i] = v;
        }
    }
}

typedef void (*update_fn)(const update_arrays *a, const op_update *u);

static void update(arrays *a, bool is_f32, bool has_largest, update_fn fn, const op_update *u)
{
    const update_arrays views = {.count = N,
                                 .value = array(a, 0, is_f32),
                                 .grad = array(a, 1, is_f32),
                                 .state = {array(a, 2, is_f32), array(a, 3, is_f32),
                                           has_largest ? array(a, 4, is_f32) : NULL}};

    fill(a, is_f32);
    fn(&views, u);
}

static void assert_same(const arrays *a, const arrays *b, int isa, int variant)
{
    if (memcmp(a, b, sizeof(*a)) != 0)
        fail_msg("%s and %s differ (variant %d, seed %d)", update_isa_at(0)->name,
                 update_isa_at(isa)->name, variant, SEED);
}

static void sgd_has_the_same_bits_with_every_instruction_set(void **state)
{
    static arrays best;
    static arrays other;

    LS_UNUSED(state);
    for (int variant = 0; variant < 32; variant++) {
        const bool is_f32 = (variant & 1) != 0;
        const op_update u = {.first = (variant & 2) != 0,
                             .nesterov = (variant & 4) != 0,
                             .momentum = (variant & 8) != 0 ? 0.9 : 0,
                             .weight_decay = (variant & 16) != 0 ? 0.05 : 0,
                             .dampening = 0.25,
                             .lr = 0.3};

        update(&best, is_f32, false, loops_of(update_isa_at(0), is_f32)->sgd, &u);
        for (int i = 1; update_isa_at(i) != NULL; i++) {
            update(&other, is_f32, false, loops_of(update_isa_at(i), is_f32)->sgd, &u);
            assert_same(&best, &other, i, variant);
        }
    }
    assert_null(update_isa_at(-1));
}

static void adam_has_the_same_bits_with_every_instruction_set(void **state)
{
    static arrays best;
    static arrays other;

    LS_UNUSED(state);
    for (int variant = 0; variant < 16; variant++) {
        const bool is_f32 = (variant & 1) != 0;
        const bool largest = (variant & 2) != 0;
        const op_update u = {.beta1 = 0.9,
                             .beta2 = 0.99,
                             .eps = 1e-8,
                             .step_size = 0.3,
                             .root_scale = 0.7,
                             .added_decay = (variant & 4) != 0 ? 0.05 : 0,
                             .decay_factor = (variant & 8) != 0 ? 0.97 : 1};

        update(&best, is_f32, largest, loops_of(update_isa_at(0), is_f32)->adam, &u);
        for (int i = 1; update_isa_at(i) != NULL; i++) {
            update(&other, is_f32, largest, loops_of(update_isa_at(i), is_f32)->adam, &u);
            assert_same(&best, &other, i, variant);
        }
    }
}

static void sums_of_squares_have_the_same_bits_with_every_instruction_set(void **state)
{
    static arrays a;

    LS_UNUSED(state);
    for (int is_f32 = 0; is_f32 < 2; is_f32++) {
        fill(&a, is_f32 != 0);
        for (size_t count = 0; count <= N; count += 59) {
            const void *values = array(&a, 0, is_f32 != 0);
            const double want =
                loops_of(update_isa_at(0), is_f32 != 0)->sum_of_squares(values, count);

            for (int i = 1; update_isa_at(i) != NULL; i++) {
                const double got =
                    loops_of(update_isa_at(i), is_f32 != 0)->sum_of_squares(values, count);

                assert_memory_equal(&got, &want, sizeof(double));
            }
        }
    }
}

static void set(arrays *a, bool is_f32, size_t i, double value)
{
    if (is_f32)
        a->f32[0][i] = (float)value;
    else
        a->f64[0][i] = value;
}

static double get(const arrays *a, bool is_f32, size_t i)
{
    return is_f32 ? (double)a->f32[0][i] : a->f64[0][i];
}

static void one_value_that_is_not_finite_is_found_at_any_position(void **state)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    static arrays a;

    LS_UNUSED(state);
    for (int k = 0; update_isa_at(k) != NULL; k++) {
        for (int is_f32 = 0; is_f32 < 2; is_f32++) {
            const update_loops *loops = loops_of(update_isa_at(k), is_f32 != 0);

            fill(&a, is_f32 != 0);
            set(&a, is_f32 != 0, 0, is_f32 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023);
            assert_true(loops->scale_finite(array(&a, 0, is_f32 != 0), N, 1));
            for (size_t i = 0; i < N; i += 7) {
                fill(&a, is_f32 != 0);
                set(&a, is_f32 != 0, i, bad[i % 3]);
                assert_false(loops->scale_finite(array(&a, 0, is_f32 != 0), N, 0.5));
                assert_true(loops->scale_finite(array(&a, 0, is_f32 != 0), i, 0.5));
            }
            fill(&a, is_f32 != 0);
            set(&a, is_f32 != 0, 1, 3);
            assert_true(loops->scale_finite(array(&a, 0, is_f32 != 0), 2, 0x1p-16));
            assert_true(get(&a, is_f32 != 0, 1) == 3 * 0x1p-16);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_has_the_same_bits_with_every_instruction_set),
        cmocka_unit_test(adam_has_the_same_bits_with_every_instruction_set),
        cmocka_unit_test(sums_of_squares_have_the_same_bits_with_every_instruction_set),
        cmocka_unit_test(one_value_that_is_not_finite_is_found_at_any_position),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
