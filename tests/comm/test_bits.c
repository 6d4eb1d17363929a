/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bits.c - reductions of difficult floats have the bits of the aligned tree with every
 * transport, piece size and placement of ranks.
 */
#include "base/unit.h"
#include "harness/ranks.h"
#include "harness/two_hosts.h"

#include "base/compute/half.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAX_RANKS 5
#define MOST      6007
#define SEED      UINT64_C(20240607)

static const ls_dtype types[] = {LS_F16, LS_BF16, LS_F32, LS_F64};
static const ls_reduce_op ops[] = {LS_SUM, LS_AVG, LS_PROD, LS_MIN, LS_MAX};
static const size_t counts[] = {1, 33, 1500, MOST};

/* Each configuration's results, hashed; the same for all with the same number of ranks. */
typedef struct bits_result {
    uint64_t hash[MAX_RANKS];
} bits_result;

/* --- awkward inputs --- */

/* Exponents with large differences, so that the order of additions shows in every other bit; now
 * and then a NaN or an infinity. */
static double awkward(ls_dtype type, int rank, size_t i)
{
    const uint64_t h = ls_hash3(SEED, (uint64_t)rank * 8 + type, i);
    const int spread = type == LS_F16 ? 8 : 40;
    const double mantissa = 1.0 + (double)(h >> 12) / 0x1p52;
    const double value = ldexp(mantissa, (int)(h % (uint64_t)spread) - spread / 2);

    if (i % 401 == 7 && rank == 1)
        return (double)NAN;
    if (i % 397 == 5)
        return rank % 2 == 0 ? (double)INFINITY : value;
    return (h >> 8 & 1) != 0 ? -value : value;
}

/* One element as it stands in memory, in 8 bytes. */
static uint64_t to_bits(ls_dtype type, double value)
{
    uint64_t bits = 0;
    float f = (float)value;

    if (type == LS_F16)
        return ls_f32_to_f16(f);
    if (type == LS_BF16)
        return ls_f32_to_bf16(f);
    if (type == LS_F32)
        memcpy(&bits, &f, sizeof(f));
    else
        memcpy(&bits, &value, sizeof(value));
    return bits;
}

static double from_bits(ls_dtype type, uint64_t bits)
{
    double d;
    float f;

    if (type == LS_F16)
        return (double)ls_f16_to_f32((uint16_t)bits);
    if (type == LS_BF16)
        return (double)ls_bf16_to_f32((uint16_t)bits);
    memcpy(&f, &bits, sizeof(f));
    memcpy(&d, &bits, sizeof(d));
    return type == LS_F32 ? (double)f : d;
}

static void put(ls_dtype type, void *array, size_t i, uint64_t bits)
{
    memcpy((char *)array + i * ls_dtype_size(type), &bits, ls_dtype_size(type));
}

static uint64_t get(ls_dtype type, const void *array, size_t i)
{
    uint64_t bits = 0;

    memcpy(&bits, (const char *)array + i * ls_dtype_size(type), ls_dtype_size(type));
    return bits;
}

/* --- the tree, as the documents define it --- */

static double combine(ls_dtype type, ls_reduce_op op, double a, double b)
{
    double r;

    if (op == LS_MIN || op == LS_MAX) {
        if (isnan(a) || isnan(b))
            return (double)NAN;
        return (op == LS_MIN) == (a < b) ? a : b;
    }
    r = op == LS_PROD ? a * b : a + b;
    // A double's sum or product of two floats, rounded to float, is what float arithmetic gives.
    return type == LS_F64 ? r : (double)(float)r;
}

/* Node of `width` (a power of two) ranks from `first` on; what lies beyond n is missing. */
static double tree(ls_dtype type, ls_reduce_op op, int first, int width, int n, size_t i)
{
    const int half = width / 2;

    if (width == 1)
        return from_bits(type, to_bits(type, awkward(type, first, i)));
    if (first + half >= n)
        return tree(type, op, first, half, n, i);
    return combine(type, op, tree(type, op, first, half, n, i),
                   tree(type, op, first + half, half, n, i));
}

static uint64_t expected(ls_dtype type, ls_reduce_op op, int n, size_t i)
{
    int width = 1;
    double root;

    while (width < n)
        width *= 2;
    root = tree(type, op, 0, width, n, i);
    if (op == LS_AVG)
        root = type == LS_F64 ? root / n : (double)((float)root / (float)n);
    return to_bits(type, root);
}

/* The reference for all elements, made once a rank: it does not depend on the count. */
typedef struct reference {
    uint64_t bits[LS_DTYPE_COUNT][LS_REDUCE_OP_COUNT][MOST];
} reference;

static reference *make_reference(int n)
{
    reference *ref = malloc(sizeof(*ref));

    for (size_t t = 0; ref != NULL && t < LS_COUNT_OF(types); t++) {
        for (size_t o = 0; o < LS_COUNT_OF(ops); o++) {
            for (size_t i = 0; i < MOST; i++)
                ref->bits[types[t]][ops[o]][i] = expected(types[t], ops[o], n, i);
        }
    }
    return ref;
}

static reference *ref; // of this rank's process

static ls_status check(const ls_test_rank *self, ls_dtype type, ls_reduce_op op, const void *got,
                       size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t want = ref->bits[type][op][first + i];
        const uint64_t have = get(type, got, i);

        // Which NaN it is, is compared between configurations, by hash.
        if (have != want && !(isnan(from_bits(type, have)) && isnan(from_bits(type, want))))
            return ls_fail(LS_EINTERNAL, "%s op %d of %d ranks, element %zu: 0x%llx, not 0x%llx",
                           ls_dtype_name(type), (int)op, self->size, first + i,
                           (unsigned long long)have, (unsigned long long)want);
    }
    return LS_OK;
}

/* --- the ranks --- */

static ls_status reduce_all_ways(const ls_test_rank *self, ls_comm *comm, ls_dtype type,
                                 ls_reduce_op op, size_t count, char *src, char *dst,
                                 uint64_t *hash)
{
    const size_t bytes = count * ls_dtype_size(type);
    const size_t n = (size_t)self->size, part = count / n;
    const size_t first = part * (size_t)self->rank;

    for (size_t i = 0; i < count; i++)
        put(type, src, i, to_bits(type, awkward(type, self->rank, i)));
    LS_TRY(ls_all_reduce(comm, src, dst, count, type, op, NULL));
    LS_TRY(check(self, type, op, dst, 0, count));
    *hash = ls_hash_bytes(dst, bytes, *hash);
    LS_TRY(ls_reduce(comm, src, dst, count, type, op, (int)(count % n), NULL));
    if (self->rank == (int)(count % n))
        LS_TRY(check(self, type, op, dst, 0, count));
    LS_TRY(ls_reduce_scatter(comm, src, dst, part, type, op, NULL));
    LS_TRY(check(self, type, op, dst, first, part));
    LS_TRY(ls_all_reduce(comm, src, src, count, type, op, NULL));
    return check(self, type, op, src, 0, count);
}

static ls_status bits_body(const ls_test_rank *self, void *arg)
{
    const size_t bytes = counts[LS_COUNT_OF(counts) - 1] * sizeof(double);
    bits_result *result = arg;
    uint64_t hash = 0;
    ls_comm *comm;

    ref = make_reference(self->size);
    LS_CHECK(ref != NULL);
    LS_TRY(ls_test_init(self, &comm));
    for (int alloced = 0; alloced < 2; alloced++) {
        void *src = malloc(bytes), *dst = malloc(bytes);

        if (alloced) {
            free(src);
            free(dst);
            LS_TRY(ls_comm_alloc(comm, bytes, &src));
            LS_TRY(ls_comm_alloc(comm, bytes, &dst));
        }
        for (size_t t = 0; t < LS_COUNT_OF(types); t++) {
            for (size_t o = 0; o < LS_COUNT_OF(ops); o++) {
                for (size_t c = 0; c < LS_COUNT_OF(counts); c++)
                    LS_TRY(
                        reduce_all_ways(self, comm, types[t], ops[o], counts[c], src, dst, &hash));
            }
        }
        if (alloced) {
            ls_comm_free(comm, src);
            ls_comm_free(comm, dst);
        } else {
            free(src);
            free(dst);
        }
    }
    result->hash[self->rank] = hash;
    ls_comm_destroy(comm);
    free(ref);
    return LS_OK;
}

/* Runs one configuration; all ranks' hashes must be `*hash`, which the first sets. */
static void run(const ls_test_job *job, bits_result *result, uint64_t *hash)
{
    assert_true(ls_test_ranks(job, NULL));
    for (int r = 0; r < job->n; r++) {
        if (*hash == 0)
            *hash = result->hash[r];
        assert_int_equal(result->hash[r], *hash);
    }
}

static void transport_and_segment_never_change_a_bit(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};
    static const char *const segments[] = {"LOCKSTEP_SEGMENT=4K", "LOCKSTEP_SEGMENT=256K",
                                           "LOCKSTEP_SEGMENT=20000"};
    const size_t n_segments = ls_test_number("LS_TEST_FULL", 0) != 0 ? 3 : 2;
    bits_result *result = ls_test_shared(sizeof(*result));

    LS_UNUSED(state);
    assert_non_null(result);
    print_message("seed %llu\n", (unsigned long long)SEED);
    for (int n = 1; n <= MAX_RANKS; n++) {
        uint64_t hash = 0;

        for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
            for (size_t s = 0; s < n_segments; s++)
                run(&(ls_test_job){.n = n,
                                   .body = bits_body,
                                   .arg = result,
                                   .transport = transports[t],
                                   .env = {segments[s]}},
                    result, &hash);
        }
    }
    (void)munmap(result, sizeof(*result));
}

/* --- two hosts --- */

/* Rank 2 runs on the second host. */
static ls_status remote_body(const ls_test_rank *self, void *arg)
{
    LS_CHECK(self->rank != 2 || two_hosts_move());
    return bits_body(self, arg);
}

static void placement_on_hosts_never_changes_a_bit(void **state)
{
    bits_result *result = ls_test_shared(sizeof(*result));
    ls_test_job job;
    uint64_t hash = 0;

    LS_UNUSED(state);
    assert_non_null(result);
    if (!two_hosts_make()) {
        print_message("network namespaces are not to be had here\n");
        skip();
    }
    run(&(ls_test_job){.n = 3, .body = bits_body, .arg = result, .transport = "shm"}, result,
        &hash);
    job = two_hosts_job(3, remote_body, result);
    run(&job, result, &hash);
    job.env[3] = "LOCKSTEP_SECURITY=encrypt";
    run(&job, result, &hash);
    two_hosts_end();
    (void)munmap(result, sizeof(*result));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transport_and_segment_never_change_a_bit),
        cmocka_unit_test(placement_on_hosts_never_changes_a_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
