/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_kernels.c - the reduction kernels: every instruction set gives the bits of the naive tree.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/backends/native/reduce/kernels.h"
#include "comm/native_oracle.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RANKS_MAX 17
#define COUNT_MAX 3100 /* over one block of the smallest depth */
#define SEED      UINT64_C(20260731)

static const char *const names[] = {"baseline", "avx2", "avx512"};

typedef struct arena {
    void *src[RANKS_MAX];
    void *partial[RANKS_MAX];
    void *dst;
    void *want;
} arena;

static int make_arena(void **state)
{
    arena *a = ls_calloc(1, sizeof(*a));

    if (a == NULL)
        return -1;
    for (int r = 0; r < RANKS_MAX; r++) {
        a->src[r] = ls_calloc(COUNT_MAX + 8, 8);
        a->partial[r] = ls_calloc(COUNT_MAX + 8, 8);
    }
    a->dst = ls_calloc(COUNT_MAX + 8, 8);
    a->want = ls_calloc(COUNT_MAX + 8, 8);
    *state = a;
    return 0;
}

static int free_arena(void **state)
{
    arena *a = *state;

    for (int r = 0; r < RANKS_MAX; r++) {
        ls_free(a->src[r]);
        ls_free(a->partial[r]);
    }
    ls_free(a->dst);
    ls_free(a->want);
    ls_free(a);
    return 0;
}

static void single_operands(const arena *a, int n, reduce_operand *operands)
{
    for (int r = 0; r < n; r++)
        operands[r] = (reduce_operand){.data = a->src[r], .first = r, .n_ranks = 1};
}

static void check_equal(const arena *a, size_t count, ls_dtype type, ls_reduce_op op, int n,
                        bool any_nan, const char *what)
{
    const size_t at = oracle_differs(a->dst, a->want, count, type, any_nan);

    if (at < count)
        fail_msg("%s: %s, %s, op %d, %d ranks, %zu elements: element %zu differs (seed %llu)",
                 reduce_simd(), what, ls_dtype_name(type), (int)op, n, count, at,
                 (unsigned long long)SEED);
}

static void check_case(arena *a, int n, size_t count, ls_dtype type, ls_reduce_op op, ls_rng *rng)
{
    reduce_operand operands[RANKS_MAX];
    const size_t bytes = count * ls_dtype_size(type);
    const int in_place = (int)ls_rng_below(rng, (uint64_t)n);

    for (int r = 0; r < n; r++)
        oracle_fill(a->src[r], count, type, rng);
    oracle_reduce(a->want, (const void *const *)a->src, 0, n, count, type, op, true);
    single_operands(a, n, operands);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        if (!reduce_use(names[i]))
            continue;
        memset(a->dst, 0x5A, bytes + 8);
        reduce_tree(a->dst, operands, n, count, type, op, true, n);
        check_equal(a, count, type, op, n, false, "out of place");
        for (int guard = 0; guard < 8; guard++)
            assert_int_equal(((const unsigned char *)a->dst)[bytes + guard], 0x5A);
    }
    // In place overwrites an operand, so it comes last and on one instruction set.
    reduce_tree(a->src[in_place], operands, n, count, type, op, true, n);
    memcpy(a->dst, a->src[in_place], bytes);
    check_equal(a, count, type, op, n, false, "in place");
    assert_true(reduce_use(NULL));
}

static void every_type_and_op_matches_the_naive_tree(void **state)
{
    static const size_t counts[] = {1, 2, 7, 16, 33, 257, 1031, COUNT_MAX};
    ls_rng rng;

    ls_rng_seed(&rng, SEED);
    for (int n = 1; n <= RANKS_MAX; n++) {
        for (int type = 0; type < LS_DTYPE_COUNT; type++) {
            for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
                const size_t count = counts[(size_t)(n + type + op) % LS_COUNT_OF(counts)];

                if (reduce_is_defined((ls_reduce_op)op, (ls_dtype)type))
                    check_case(*state, n, count, (ls_dtype)type, (ls_reduce_op)op, &rng);
            }
        }
    }
}

static void short_float_sums_match_at_every_count(void **state)
{
    ls_rng rng;

    ls_rng_seed(&rng, SEED + 1);
    for (int n = 2; n <= 5; n++) {
        for (size_t count = 1; count <= 70; count++) {
            check_case(*state, n, count, LS_F32, LS_SUM, &rng);
            check_case(*state, n, count, LS_F32, LS_AVG, &rng);
        }
    }
}

/* Cuts ranks 0..n-1 into random aligned subtrees, some of them as partial results. */
static int random_operands(arena *a, int n, size_t count, ls_dtype type, ls_reduce_op op,
                           ls_rng *rng, reduce_operand *operands)
{
    int n_operands = 0;

    for (int first = 0; first < n;) {
        int span = 1;

        while (first % (span * 2) == 0 && span < n && ls_rng_below(rng, 2) == 0)
            span *= 2;
        if (first + span > n)
            span = n - first;
        operands[n_operands] =
            (reduce_operand){.data = a->src[first], .first = first, .n_ranks = 1};
        if (span > 1 || ls_rng_below(rng, 2) == 0) {
            oracle_reduce(a->partial[first], (const void *const *)a->src + first, first, span,
                          count, type, op, false);
            operands[n_operands] = (reduce_operand){
                .data = a->partial[first], .first = first, .n_ranks = span, .partial = true};
        }
        n_operands++;
        first += span;
    }
    return n_operands;
}

static void partial_results_of_subtrees_give_the_same_bits(void **state)
{
    arena *a = *state;
    reduce_operand operands[RANKS_MAX];
    ls_rng rng;

    ls_rng_seed(&rng, SEED + 2);
    for (int round = 0; round < 600; round++) {
        const int n = 1 + (int)ls_rng_below(&rng, RANKS_MAX);
        const ls_dtype type = (ls_dtype)ls_rng_below(&rng, LS_DTYPE_COUNT);
        const ls_reduce_op op = type < LS_F16 ? LS_PROD : (ls_reduce_op)ls_rng_below(&rng, 5);
        const size_t count = 1 + ls_rng_below(&rng, 300);
        int n_operands;

        for (int r = 0; r < n; r++)
            oracle_fill(a->src[r], count, type, &rng);
        n_operands = random_operands(a, n, count, type, op, &rng, operands);
        oracle_reduce(a->want, (const void *const *)a->src, 0, n, count, type, op, true);
        reduce_tree(a->dst, operands, n_operands, count, type, op, true, n);
        check_equal(a, count, type, op, n, false, "partial operands");
    }
}

static void partial_result_is_not_rounded(void **state)
{
    arena *a = *state;
    reduce_operand operands[RANKS_MAX];
    ls_rng rng;

    ls_rng_seed(&rng, SEED + 3);
    for (int type = 0; type < LS_DTYPE_COUNT; type++) {
        const ls_dtype partial = reduce_partial_type((ls_dtype)type);

        for (int r = 0; r < 6; r++)
            oracle_fill(a->src[r], 100, (ls_dtype)type, &rng);
        single_operands(a, 6, operands);
        oracle_reduce(a->want, (const void *const *)a->src, 0, 6, 100, (ls_dtype)type, LS_SUM,
                      false);
        reduce_tree(a->dst, operands, 6, 100, (ls_dtype)type, LS_SUM, false, 6);
        check_equal(a, 100, partial, LS_SUM, 6, true, "not final");
    }
}

static void the_callers_rounding_mode_changes_nothing(void **state)
{
#if defined(__x86_64__)
    arena *a = *state;
    reduce_operand operands[RANKS_MAX];
    const unsigned mode = _mm_getcsr();
    const float tiny = 0x1p-149F;
    float sum = 0;

    memcpy(a->src[0], &tiny, sizeof(tiny));
    memcpy(a->src[1], &tiny, sizeof(tiny));
    single_operands(a, 2, operands);
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON | _MM_ROUND_UP);
    reduce_tree(a->dst, operands, 2, 1, LS_F32, LS_SUM, true, 1);
    assert_int_equal(_mm_getcsr() &
                         (_MM_FLUSH_ZERO_MASK | _MM_DENORMALS_ZERO_MASK | _MM_ROUND_MASK),
                     _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON | _MM_ROUND_UP);
    _mm_setcsr(mode);
    memcpy(&sum, a->dst, sizeof(sum));
    assert_true(sum == 0x1p-148F);
#else
    (void)state;
    skip();
#endif
}

static void unknown_instruction_set_is_refused(void **state)
{
    (void)state;
    assert_false(reduce_use("sse9"));
    assert_true(reduce_use("baseline"));
    assert_string_equal(reduce_simd(), "baseline");
    assert_true(reduce_use(NULL));
    print_message("this machine uses %s\n", reduce_simd());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_op_matches_the_naive_tree),
        cmocka_unit_test(short_float_sums_match_at_every_count),
        cmocka_unit_test(partial_results_of_subtrees_give_the_same_bits),
        cmocka_unit_test(partial_result_is_not_rounded),
        cmocka_unit_test(the_callers_rounding_mode_changes_nothing),
        cmocka_unit_test(unknown_instruction_set_is_refused),
    };

    print_message("seed %llu\n", (unsigned long long)SEED);
    return cmocka_run_group_tests_name("native kernels", tests, make_arena, free_arena);
}
