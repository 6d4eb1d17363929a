/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compose.c - composes operations for modules of external libraries (mpi/, gloo/), into which it is
 * compiled. It uses no function of liblockstep except through comm_host.
 */
#include "comm/backends/external/compose.h"

#include <string.h>

size_t compose_size(ls_dtype type)
{
    static const size_t sizes[] = {[LS_I8] = 1,  [LS_U8] = 1,   [LS_I32] = 4, [LS_I64] = 8,
                                   [LS_F16] = 2, [LS_BF16] = 2, [LS_F32] = 4, [LS_F64] = 8};

    return sizes[type];
}

static bool is_half(ls_dtype type)
{
    return type == LS_F16 || type == LS_BF16;
}

ls_dtype compose_partial(ls_dtype type)
{
    return is_half(type) ? LS_F32 : type;
}

/* --- parts of buffers that are divided by rank --- */

/* Operations with one array of counts have it for their divided buffer. */
static const size_t *counts_of(const coll *op, bool of_src)
{
    if (of_src)
        return op->src_counts != NULL ? op->src_counts : op->dst_counts;
    return op->dst_counts != NULL ? op->dst_counts : op->src_counts;
}

static size_t part_count(const coll *op, bool of_src, int rank)
{
    const size_t *counts = counts_of(op, of_src);

    return counts == NULL ? op->count : counts[rank];
}

/* The bytes before a rank's part. */
static size_t part_offset(const coll *op, bool of_src, int rank)
{
    const size_t *counts = counts_of(op, of_src);
    size_t elements = counts == NULL ? op->count * (size_t)rank : 0;

    for (int r = 0; counts != NULL && r < rank; r++)
        elements += counts[r];
    return elements * compose_size(op->dtype);
}

static bool sends(const coll *op, int from, int to)
{
    return (!coll_shapes[op->kind].dst_at_root || to == op->root) &&
           (!coll_shapes[op->kind].src_at_root || from == op->root);
}

/* Whether the receivers add what is exchanged. */
static bool adds(const coll *op)
{
    return coll_reduces(op->kind) && coll_divides_src(op->kind);
}

/* Received contributions to a sum are in the buffer, after the array of operands. */
static char *contribution(const composed *c, int rank)
{
    const size_t bytes =
        part_count(c->op, true, c->info->rank) * compose_size(c->op->dtype) * (size_t)rank;

    return (char *)c->buffer + (size_t)c->info->size * sizeof(reduce_operand) + bytes;
}

/* This rank's part for x->to. */
static void fill_send(const composed *c, compose_exchange *x)
{
    const coll *op = c->op;
    const bool is_divided = coll_divides_src(op->kind);

    x->n_out = part_count(op, true, is_divided ? x->to : c->info->rank);
    if (x->n_out > 0)
        x->out = (const char *)op->src + (is_divided ? part_offset(op, true, x->to) : 0);
}

/* The part of x->from for this rank. */
static void fill_recv(const composed *c, compose_exchange *x)
{
    const coll *op = c->op;
    const bool is_divided = coll_divides_dst(op->kind);

    x->n_in = part_count(op, false, is_divided ? x->from : c->info->rank);
    if (adds(op))
        x->in = contribution(c, x->from);
    else if (x->n_in > 0)
        x->in = (char *)op->dst + (is_divided ? part_offset(op, false, x->from) : 0);
}

compose_exchange compose_exchange_at(const composed *c, int step)
{
    const int n = c->info->size;
    const int me = c->info->rank;
    compose_exchange x = {.to = (me + step) % n, .from = (me + n - step) % n};

    if (sends(c->op, me, x.to))
        fill_send(c, &x);
    if (sends(c->op, x.from, me))
        fill_recv(c, &x);
    return x;
}

void compose_copy_own(const composed *c)
{
    const compose_exchange own = compose_exchange_at(c, 0);

    if (!adds(c->op) && own.n_out > 0 && own.in != NULL && own.in != own.out)
        memcpy(own.in, own.out, own.n_out * compose_size(c->op->dtype));
}

/* --- before and after --- */

static bool alloc_buffer(composed *c, size_t bytes)
{
    c->buffer = c->host->alloc(bytes > 0 ? bytes : 1, 1);
    return c->buffer != NULL;
}

static bool has_result(const composed *c)
{
    return !coll_shapes[c->op->kind].dst_at_root || c->op->root == c->info->rank;
}

/* Widens into the buffer, which becomes both in and out. */
static bool widen(composed *c)
{
    const coll *op = c->op;
    const reduce_operand own = {op->src, 0, 1, false};

    if (!alloc_buffer(c, op->count * sizeof(float)))
        return false;
    c->host->reduce(c->buffer, &own, 1, op->count, op->dtype, op->redop, false, 1);
    c->in = c->buffer;
    c->out = c->buffer;
    return true;
}

static bool begin_reduction(composed *c, compose_mode mode)
{
    const coll *op = c->op;
    const size_t bytes = op->count * compose_size(op->dtype);
    const bool is_idle = !has_result(c) && mode == COMPOSE_IN_PLACE; // it only contributes

    c->in = op->src;
    c->out = op->dst;
    if (is_half(op->dtype)) {
        if (!widen(c))
            return false;
    } else if (!has_result(c) && !is_idle) {
        if (!alloc_buffer(c, bytes))
            return false;
        c->out = c->buffer;
    } else if (mode == COMPOSE_IN_PLACE && has_result(c)) {
        if (op->dst != op->src)
            memcpy(op->dst, op->src, bytes);
        c->in = op->dst;
    }
    if (is_idle)
        c->out = NULL;
    return true;
}

bool compose_begin(composed *c, const comm_host *host, const group_info *info, const coll *op,
                   compose_mode mode)
{
    const size_t n = (size_t)info->size;

    *c = (composed){.host = host, .info = info, .op = op};
    if (coll_reduces_whole(op->kind))
        return begin_reduction(c, mode);
    if (adds(op))
        return alloc_buffer(c, n * (sizeof(reduce_operand) +
                                    part_count(op, true, info->rank) * compose_size(op->dtype)));
    if (op->kind == COLL_BROADCAST) {
        c->out = op->dst;
        if (op->root == info->rank && op->src != op->dst)
            memcpy(op->dst, op->src, op->count * compose_size(op->dtype));
    }
    return true;
}

/* This rank's own contribution is read in src; dst may overlap it. */
static void add_contributions(const composed *c)
{
    const coll *op = c->op;
    const int n = c->info->size;
    const int me = c->info->rank;
    reduce_operand *operands = c->buffer;
    const size_t count = part_count(op, true, me);

    for (int r = 0; r < n; r++)
        operands[r] = (reduce_operand){contribution(c, r), r, 1, false};
    operands[me].data = (const char *)op->src + part_offset(op, true, me);
    c->host->reduce(op->dst, operands, n, count, op->dtype, op->redop, true, op->divisor);
}

void compose_finish(const composed *c)
{
    const coll *op = c->op;
    const reduce_operand all = {c->out, 0, c->info->size, true};

    if (adds(op)) {
        if (part_count(op, true, c->info->rank) > 0)
            add_contributions(c);
    } else if (coll_reduces(op->kind) && has_result(c) &&
               (is_half(op->dtype) || op->redop == LS_AVG)) {
        c->host->reduce(op->dst, &all, 1, op->count, op->dtype, op->redop, true, op->divisor);
    }
}

void compose_free(composed *c)
{
    if (c->buffer != NULL)
        c->host->free(c->buffer);
    c->buffer = NULL;
}
