/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance_values.c - the conformance suite of values: every type and reduction, halves, NaN and
 * infinity. conformance.c calls it.
 */
#include "comm/conformance.h"

#include "base/compute/half.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define POISON 0xA5
#define GUARD  0x5A

int conformance_input(int rank, size_t i, ls_reduce_op op)
{
    static const int factors[] = {1, 2, -1, 1, -2, 1};
    const size_t k = i * 7 + (size_t)rank * 3 + i / 5;

    // The products of more ranks would leave what the reference computes in.
    if (op == LS_PROD && rank >= 8)
        return 1;
    if (op == LS_PROD)
        return factors[k % LS_COUNT_OF(factors)];
    return (int)(k % 13) - 6;
}

void conformance_put(ls_dtype type, void *array, size_t i, double value)
{
    const int64_t whole = (int64_t)value;

    switch (type) {
    case LS_I8:
    case LS_U8:
        ((uint8_t *)array)[i] = (uint8_t)whole;
        break;
    case LS_I32:
        ((uint32_t *)array)[i] = (uint32_t)whole;
        break;
    case LS_I64:
        ((int64_t *)array)[i] = whole;
        break;
    case LS_F16:
        ((uint16_t *)array)[i] = ls_f32_to_f16((float)value);
        break;
    case LS_BF16:
        ((uint16_t *)array)[i] = ls_f32_to_bf16((float)value);
        break;
    case LS_F32:
        ((float *)array)[i] = (float)value;
        break;
    case LS_F64:
        ((double *)array)[i] = value;
        break;
    }
}

/* The input as the type sees it: bytes without sign wrap. */
static double typed_input(ls_dtype type, int rank, size_t i, ls_reduce_op op)
{
    const int v = conformance_input(rank, i, op);

    return type == LS_U8 ? (double)(uint8_t)v : (double)v;
}

static double bitwise(int64_t a, int64_t b, ls_reduce_op op)
{
    return (double)(op == LS_BAND ? a & b : op == LS_BOR ? a | b : a ^ b);
}

void conformance_put_reduced(ls_dtype type, void *array, size_t at, size_t i, int n,
                             ls_reduce_op op, double divisor)
{
    double sum = typed_input(type, 0, i, op);

    for (int r = 1; r < n; r++) {
        const double v = typed_input(type, r, i, op);

        if (op == LS_PROD)
            sum *= v;
        else if (op == LS_MIN)
            sum = v < sum ? v : sum;
        else if (op == LS_MAX)
            sum = v > sum ? v : sum;
        else if (op >= LS_BAND)
            sum = bitwise((int64_t)sum, (int64_t)v, op);
        else
            sum += v;
    }
    // The average of all types but float64 divides in float32.
    if (op == LS_AVG)
        sum = type == LS_F64 ? sum / divisor : (double)((float)sum / (float)divisor);
    conformance_put(type, array, at, sum);
}

ls_status guarded_make(guarded *g, ls_comm *comm, size_t bytes)
{
    const size_t total = bytes + 2 * CONFORMANCE_GUARD;
    void *block = NULL;

    if (comm != NULL)
        LS_TRY(ls_comm_alloc(comm, total, &block));
    else
        block = malloc(total);
    if (block == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a test");
    *g = (guarded){.comm = comm,
                   .block = block,
                   .data = (unsigned char *)block + CONFORMANCE_GUARD,
                   .bytes = bytes};
    memset(block, GUARD, total);
    return LS_OK;
}

void guarded_free(guarded *g)
{
    if (g->comm != NULL)
        ls_comm_free(g->comm, g->block);
    else
        free(g->block);
    *g = (guarded){0};
}

void guarded_poison(guarded *g)
{
    memset(g->data, POISON, g->bytes);
}

ls_status guarded_check(const guarded *g, const char *what)
{
    for (size_t i = 0; i < CONFORMANCE_GUARD; i++) {
        if (g->block[i] != GUARD)
            return ls_fail(LS_EINTERNAL, "%s: byte %zu in front was written", what,
                           CONFORMANCE_GUARD - i);
        if (g->data[g->bytes + i] != GUARD)
            return ls_fail(LS_EINTERNAL, "%s: byte %zu behind was written", what, i);
    }
    return LS_OK;
}
