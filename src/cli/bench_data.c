/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include "base/half.h"

#include <string.h>

static const char *const type_names[LS_DTYPE_COUNT] = {"int8", "uint8",    "int32", "int64",
                                                       "half", "bfloat16", "float", "double"};
static const char *const redop_names[LS_REDUCE_OP_COUNT] = {"sum", "avg", "prod", "min", "max"};

static int find_name(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (text_equal(names[i], name))
            return i;
    return -1;
}

int bench_type(const char *name)
{
    return find_name(type_names, LS_DTYPE_COUNT, name);
}

const char *bench_type_name(ls_dtype type)
{
    return type_names[type];
}

int bench_redop(const char *name)
{
    return find_name(redop_names, LS_REDUCE_OP_COUNT, name);
}

const char *bench_redop_name(ls_reduce_op op)
{
    return redop_names[op];
}

bool bench_is_defined(ls_dtype type, ls_reduce_op op)
{
    return op != LS_AVG || type == LS_F16 || type == LS_BF16 || type == LS_F32 || type == LS_F64;
}

/* Small whole numbers: their sums are exact in every type. For products 1 and 2, whose products only move the exponent. */
static int input(size_t i, int rank, ls_reduce_op op)
{
    const size_t mixed = i * 7 + (size_t)rank * 3;

    return op == LS_PROD ? 1 + (int)(mixed % 2) : (int)(mixed % 5);
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
    case LS_SUM:
    case LS_AVG:
        break;
    }
    return a + b;
}

static double expected(size_t i, int n_ranks, ls_reduce_op op)
{
    double value = input(i, 0, op);

    for (int r = 1; r < n_ranks; r++)
        value = combine(value, input(i, r, op), op);
    return value;
}

/* Writes `value` as one element. Whole numbers wrap as the reduction's do; an average is rounded once, from float32 for the
 * short floating types. */
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

void bench_fill(void *buffer, size_t count, ls_dtype type, ls_reduce_op op, int rank)
{
    const size_t size = ls_dtype_size(type);

    for (size_t i = 0; i < count; i++)
        store((char *)buffer + i * size, type, input(i, rank, op), 1);
}

int64_t bench_count_wrong(const void *buffer, size_t count, ls_dtype type, ls_reduce_op op,
                          int n_ranks)
{
    const size_t size = ls_dtype_size(type);
    const int divisor = op == LS_AVG ? n_ranks : 1;
    int64_t wrong = 0;
    uint64_t want = 0;

    for (size_t i = 0; i < count; i++) {
        store(&want, type, expected(i, n_ranks, op), divisor);
        wrong += memcmp((const char *)buffer + i * size, &want, size) != 0;
    }
    return wrong;
}
