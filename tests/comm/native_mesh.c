/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages of the native backend over its links, ranks being threads of this process. */
#include "comm/native_mesh_ranks.h"
#include "comm/native_oracle.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/native/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>

static const int sizes[] = {2, 3, 4, 5, 8};

static void run_everywhere(mesh_fn fn, void *arg)
{
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const mesh_job job = {
            .size = sizes[i], .transport = "tcp", .segment_bytes = 4096, .fn = fn, .arg = arg};

        assert_int_equal(mesh_run(&job), 0);
    }
}

static int barriers(mesh_rank *r, void *arg)
{
    LS_UNUSED(arg);
    for (int i = 0; i < 20; i++)
        MESH_CHECK(mesh_do(&r->world, &(coll){.kind = COLL_BARRIER}) == LS_OK);
    return 0;
}

static void barriers_end_on_every_rank(void **state)
{
    LS_UNUSED(state);
    run_everywhere(barriers, NULL);
}

// What rank `rank` gives to operation `round`: the same on every rank that asks.
static void fill(void *data, size_t count, ls_dtype type, int rank, uint64_t round)
{
    ls_rng rng;

    ls_rng_seed(&rng, ls_hash3(round, (uint64_t)rank, 1));
    oracle_fill(data, count, type, &rng);
}

static int all_reduces(mesh_rank *r, void *arg)
{
    static const size_t counts[] = {1, 2, 17, 1000, 2048, 2049, 40000};
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_I64};

    LS_UNUSED(arg);
    for (size_t c = 0; c < LS_COUNT_OF(counts); c++) {
        for (size_t t = 0; t < LS_COUNT_OF(types); t++) {
            const size_t bytes = counts[c] * ls_dtype_size(types[t]);
            void *src[MESH_RANKS_MAX];
            void *expected = ls_calloc(1, bytes);
            void *dst = ls_calloc(1, bytes);
            const coll op = {.kind = COLL_ALL_REDUCE,
                             .dtype = types[t],
                             .redop = types[t] == LS_I64 ? LS_SUM : LS_AVG,
                             .count = counts[c],
                             .dst = dst};
            coll in_place = op;

            for (int i = 0; i < r->size; i++) {
                src[i] = ls_calloc(1, bytes);
                fill(src[i], counts[c], types[t], i, c);
            }
            oracle_reduce(expected, (const void *const *)src, 0, r->size, counts[c], types[t],
                          op.redop, true);
            in_place.src = memcpy(dst, src[r->rank], bytes);
            MESH_CHECK(mesh_do(&r->world, &in_place) == LS_OK);
            MESH_CHECK(oracle_differs(dst, expected, counts[c], types[t], true) == counts[c]);
            in_place.src = src[r->rank];
            memset(dst, 7, bytes);
            MESH_CHECK(mesh_do(&r->world, &in_place) == LS_OK);
            MESH_CHECK(oracle_differs(dst, expected, counts[c], types[t], true) == counts[c]);
            for (int i = 0; i < r->size; i++)
                ls_free(src[i]);
            ls_free(expected);
            ls_free(dst);
        }
    }
    return 0;
}

static void all_reduce_gives_the_bits_of_the_tree(void **state)
{
    LS_UNUSED(state);
    run_everywhere(all_reduces, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_end_on_every_rank),
        cmocka_unit_test(all_reduce_gives_the_bits_of_the_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
