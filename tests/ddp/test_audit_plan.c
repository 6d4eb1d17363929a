/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_audit_plan.c - the plan of audits on random partitions of up to 12 ranks, some of which have
 * no shards, and the verdict for each kind of evidence.
 */
#include "ddp/audit_plan.h"

#include "base/rng.h"
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 12, SHARDS = 60, SEED = 20261129, ROUNDS = 300 };

typedef struct ranges {
    int size;
    int starts[RANKS + 1];
} ranges;

static int shards_of(const ranges *d, int r)
{
    return d->starts[r + 1] - d->starts[r];
}

static int with_shards(const ranges *d)
{
    int m = 0;

    for (int r = 0; r < d->size; r++)
        m += shards_of(d, r) > 0;
    return m;
}

static int most_shards(const ranges *d)
{
    int most = 0;

    for (int r = 0; r < d->size; r++)
        most = shards_of(d, r) > most ? shards_of(d, r) : most;
    return most;
}

static ranges random_ranges(ls_rng *rng)
{
    ranges d = {.size = 1 + (int)ls_rng_below(rng, RANKS)};

    for (int r = 0; r < d.size; r++)
        d.starts[r + 1] = d.starts[r] + (int)ls_rng_below(rng, 3) * (int)ls_rng_below(rng, 3);
    return d;
}

/* Whether it is a shard of another rank, for a rank with shards. */
static bool is_foreign(const ranges *d, int r, int shard)
{
    return shards_of(d, r) > 0 && (shard < d->starts[r] || shard >= d->starts[r + 1]);
}

static void each_rank_audits_one_and_is_audited_by_one(void **state)
{
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, SEED);
    for (int round = 0; round < ROUNDS; round++) {
        const ranges d = random_ranges(&rng);
        const int64_t t = (int64_t)ls_rng_below(&rng, 1U << 20);
        int n_audits[RANKS] = {0};

        for (int r = 0; r < d.size; r++) {
            const audit_task task = audit_task_of(d.starts, d.size, r, t);

            assert_int_equal(task.owner >= 0, with_shards(&d) > 1 && shards_of(&d, r) > 0);
            if (task.owner < 0)
                continue;
            assert_int_not_equal(task.owner, r);
            assert_in_range(task.shard, d.starts[task.owner], d.starts[task.owner + 1] - 1);
            assert_int_equal(task.shard, audit_own_shard(d.starts, d.size, task.owner, t));
            n_audits[task.owner]++;
        }
        for (int r = 0; r < d.size; r++)
            assert_int_equal(n_audits[r], with_shards(&d) > 1 && shards_of(&d, r) > 0);
    }
}

static void every_other_rank_audits_each_shard_in_the_stated_time(void **state)
{
    ls_rng rng;

    (void)state;
    ls_rng_seed(&rng, SEED + 1);
    for (int round = 0; round < ROUNDS; round++) {
        const ranges d = random_ranges(&rng);
        const int m = with_shards(&d);
        const int64_t first = (int64_t)ls_rng_below(&rng, 1U << 20);
        static bool seen[RANKS][SHARDS];

        memset(seen, 0, sizeof(seen));
        for (int64_t t = first; m > 1 && t < first + (int64_t)(m - 1) * most_shards(&d); t++)
            for (int r = 0; r < d.size; r++) {
                const audit_task task = audit_task_of(d.starts, d.size, r, t);

                if (task.owner >= 0)
                    seen[r][task.shard] = true;
            }
        for (int r = 0; m > 1 && r < d.size; r++)
            for (int s = 0; s < d.starts[d.size]; s++)
                if (seen[r][s] != is_foreign(&d, r, s))
                    fail_msg("seed %d, round %d: rank %d, shard %d", SEED, round, r, s);
    }
}

static void the_third_rank_is_neither_of_the_two(void **state)
{
    (void)state;
    assert_int_equal(audit_third(0, 1, 2), -1);
    assert_int_equal(audit_third(1, 0, 2), -1);
    for (int size = 3; size < 6; size++)
        for (int a = 0; a < size; a++)
            for (int b = 0; b < size; b++) {
                const int third = audit_third(a, b, size);

                assert_in_range(third, 0, size - 1);
                assert_true(third != a && third != b);
            }
}

static void the_verdict_follows_the_evidence(void **state)
{
    const struct {
        audit_evidence e;
        audit_verdict verdict;
    } cases[] = {
        {{.owner = 7, .auditor = 8, .third = 7}, AUDIT_AUDITOR_WRONG},
        {{.owner = 7, .auditor = 8, .third = 8}, AUDIT_OWNER_WRONG},
        {{.owner = 7, .auditor = 8, .third = 9}, AUDIT_UNDECIDED},
        {{.owner = 7, .auditor = 8, .owner_again = 7, .auditor_again = 9}, AUDIT_AUDITOR_WRONG},
        {{.owner = 7, .auditor = 8, .owner_again = 9, .auditor_again = 8}, AUDIT_OWNER_WRONG},
        {{.owner = 7, .auditor = 8, .owner_again = 7, .auditor_again = 8}, AUDIT_UNDECIDED},
        {{.owner = 7, .auditor = 8, .owner_again = 1, .auditor_again = 2}, AUDIT_UNDECIDED},
        // A rank that agrees with the other one at last has not repeated its result.
        {{.owner = 7, .auditor = 8, .owner_again = 7, .auditor_again = 7}, AUDIT_AUDITOR_WRONG},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_int_equal(audit_decide(&cases[i].e), cases[i].verdict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_audits_one_and_is_audited_by_one),
        cmocka_unit_test(every_other_rank_audits_each_shard_in_the_stated_time),
        cmocka_unit_test(the_third_rank_is_neither_of_the_two),
        cmocka_unit_test(the_verdict_follows_the_evidence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
