/* SPDX-License-Identifier: Apache-2.0 */
/* test_bucket_plan.c - tests the assignment of gradients to buckets. */
#include "ddp/bucket_plan.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void limits_close_buckets_as_in_torch(void **state)
{
    /* Sizes 10, 30, 40, 50 and limits 64 and 128: the first bucket closes as soon as it holds 64 or
     * more. */
    const plan_entry entries[] = {{10, LS_F32}, {30, LS_F32}, {40, LS_F32}, {50, LS_F32}};
    const int order[] = {3, 2, 1, 0};
    bucket_plan plan;

    (void)state;
    assert_int_equal(bucket_plan_make(entries, order, 4, 64, 128, &plan), LS_OK);
    assert_int_equal(plan.n_buckets, 3);
    assert_int_equal(plan.slots[3].bucket, 0);
    assert_int_equal(plan.slots[2].bucket, 1);
    assert_int_equal(plan.slots[1].bucket, 1);
    assert_int_equal(plan.slots[1].offset, 64);
    assert_int_equal(plan.slots[0].bucket, 2);
    assert_int_equal(plan.bucket_entries[1], 2);
    bucket_plan_free(&plan);
}

static void a_bucket_holds_one_type(void **state)
{
    const plan_entry entries[] = {{4, LS_F32}, {8, LS_F64}, {4, LS_F32}};
    const int order[] = {0, 1, 2};
    bucket_plan plan;

    (void)state;
    assert_int_equal(bucket_plan_make(entries, order, 3, 1 << 20, 1 << 20, &plan), LS_OK);
    assert_int_equal(plan.n_buckets, 3);
    assert_int_equal(plan.bucket_type[1], LS_F64);
    bucket_plan_free(&plan);
}

static void no_gradients_make_no_buckets(void **state)
{
    bucket_plan plan;

    (void)state;
    assert_int_equal(bucket_plan_make(NULL, NULL, 0, 1, 1, &plan), LS_OK);
    assert_int_equal(plan.n_buckets, 0);
    bucket_plan_free(&plan);
}

static void sums_that_overflow_are_refused(void **state)
{
    const plan_entry entries[] = {{SIZE_MAX - 70, LS_F32}, {100, LS_F32}};
    const int order[] = {0, 1};
    bucket_plan plan;

    (void)state;
    assert_int_equal(bucket_plan_make(entries, order, 2, SIZE_MAX, SIZE_MAX, &plan), LS_EINVAL);
}

/* Whatever the sizes: slots do not overlap, stay inside, and every bucket but the last has reached
 * its limit or ends where the type changes. */
static void random_plans_keep_the_invariants(void **state)
{
    enum { MOST = 40 };
    plan_entry entries[MOST];
    int order[MOST];
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, 17);
    for (int round = 0; round < 2000; round++) {
        const int n = 1 + (int)ls_rng_below(&rng, MOST);
        const size_t first = 1 + (size_t)ls_rng_below(&rng, 2000);
        const size_t cap = 1 + (size_t)ls_rng_below(&rng, 8000);
        bucket_plan plan;
        for (int i = 0; i < n; i++) {
            entries[i].dtype = ls_rng_below(&rng, 8) == 0 ? LS_F64 : LS_F32;
            entries[i].bytes = 8 * (size_t)ls_rng_below(&rng, 500);
            order[i] = i;
        }
        for (int i = n - 1; i > 0; i--) {
            const int j = (int)ls_rng_below(&rng, (uint64_t)i + 1);
            const int t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        assert_int_equal(bucket_plan_make(entries, order, n, first, cap, &plan), LS_OK);
        size_t end = 0;
        for (int i = 0; i < n; i++) {
            const plan_slot *slot = &plan.slots[order[i]];
            if (i == 0 || slot->bucket != plan.slots[order[i - 1]].bucket)
                end = 0;
            assert_int_equal(slot->offset, end);
            assert_int_equal(slot->offset % PLAN_ALIGNMENT, 0);
            assert_int_equal(plan.bucket_type[slot->bucket], entries[order[i]].dtype);
            end = slot->offset +
                  (entries[order[i]].bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
            assert_true(end <= plan.bucket_bytes[slot->bucket]);
        }
        for (int b = 0; b + 1 < plan.n_buckets; b++)
            assert_true(plan.bucket_bytes[b] >= (b == 0 ? first : cap) ||
                        plan.bucket_type[b] != plan.bucket_type[b + 1]);
        bucket_plan_free(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_close_buckets_as_in_torch),
        cmocka_unit_test(a_bucket_holds_one_type),
        cmocka_unit_test(no_gradients_make_no_buckets),
        cmocka_unit_test(sums_that_overflow_are_refused),
        cmocka_unit_test(random_plans_keep_the_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
