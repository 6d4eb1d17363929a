/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - fills the sources of a row and compares the results bit for bit, for measure.c. */
#include "cli/bench/case.h"

#include "base/compute/half.h"

#include <string.h>

enum { FACTORS = 60 };

/* Small integers, whose sums are exact in every type; for products 1 and 2, whose products only
 * change the exponent, 2 of at most FACTORS ranks, for an int64; for operations without a reduction
 * more values, which detect wrong places. */
static int input(const bench_case *c, int rank, size_t i)
{
    const size_t mixed = i * 7 + (size_t)rank * 3;

    if (!bench_reduces(c->kind))
        return (int)((i * 31 + (size_t)rank * 17) % 97);
    if (c->redop == LS_PROD)
        return rank < FACTORS ? 1 + (int)(mixed % 2) : 1;
    return (int)(mixed % 5);
}

static double combine(double a, double b, ls_reduce_op op)
{
    switch (op) {
    case LS_PROD:
        return a * b;
    case LS_MIN:
        return a < b ? a : b;
    case LS_MAX:
        return a > b ? a : b;
    case LS_BAND:
        return (double)((int64_t)a & (int64_t)b);
    case LS_BOR:
        return (double)((int64_t)a | (int64_t)b);
    case LS_BXOR:
        return (double)((int64_t)a ^ (int64_t)b);
    case LS_SUM:
    case LS_AVG:
        break;
    }
    return a + b;
}

static double reduced(const bench_case *c, size_t i)
{
    double value = input(c, 0, i);

    for (int r = 1; r < c->n; r++)
        value = combine(value, input(c, r, i), c->redop);
    return value;
}

/* Writes `value` as one element. Integers wrap as in the reduction; an average is rounded once,
 * from float32 for 16-bit types. */
static void store(void *at, ls_dtype type, double value, int divisor)
{
    const float single = (float)value / (float)divisor;
    const int64_t whole = (int64_t)value;

    switch (type) {
    case LS_I8:
    case LS_U8:
        *(uint8_t *)at = (uint8_t)whole;
        return;
    case LS_I32:
        *(int32_t *)at = (int32_t)whole;
        return;
    case LS_I64:
        *(int64_t *)at = whole;
        return;
    case LS_F16:
        *(uint16_t *)at = ls_f32_to_f16(single);
        return;
    case LS_BF16:
        *(uint16_t *)at = ls_f32_to_bf16(single);
        return;
    case LS_F32:
        *(float *)at = single;
        return;
    case LS_F64:
        *(double *)at = value / divisor;
        return;
    }
}

void bench_fill(const bench_case *c, int rank, void *src)
{
    const size_t size = ls_dtype_size(c->type);
    const size_t count = bench_src_count(c, rank);

    for (size_t i = 0; i < count; i++)
        store((char *)src + i * size, c->type, input(c, rank, i), 1);
}

static int64_t count_wrong_in(const bench_case *c, const bench_part *part, const char *dst)
{
    const size_t size = ls_dtype_size(c->type);
    const bool reduces = part->source < 0;
    const int divisor = reduces && c->redop == LS_AVG ? c->n : 1;
    int64_t wrong = 0;
    uint64_t want = 0;

    for (size_t i = 0; i < part->count; i++) {
        const size_t at = part->from + i;

        store(&want, c->type, reduces ? reduced(c, at) : input(c, part->source, at), divisor);
        wrong += memcmp(dst + i * size, &want, size) != 0;
    }
    return wrong;
}

int64_t bench_count_wrong(const bench_case *c, int rank, const void *dst)
{
    const char *at = dst;
    int64_t wrong = 0;
    bench_part part;

    for (int p = 0; bench_part_at(c, rank, p, &part); p++) {
        wrong += count_wrong_in(c, &part, at);
        at += part.count * ls_dtype_size(c->type);
    }
    return wrong;
}
