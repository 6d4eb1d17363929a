/* SPDX-License-Identifier: Apache-2.0 */
/* local_mean.c - see local_mean.h. local_sgd.c calls it. */
#include "ddp/local_mean.h"

#include "base/alloc.h"
#include "comm/backends/reduce.h"
#include "comm/comm.h"
#include "ddp/half_bucket.h"
#include "ddp/int_blocks.h"
#include "ddp/shard_tree.h"

#include <string.h>

/* How numbers are sent. */
typedef struct wire_form {
    ls_dtype type; /* that reduce_tree() adds: LS_F32 also for integers, which are unpacked first */
    int bits;      /* of integers; 0: none */
    size_t unit;   /* numbers that are packed together */
} wire_form;

static const wire_form forms[] = {
    [LS_DDP_HOOK_NONE] = {LS_F32, 0, 1},         [LS_DDP_HOOK_FP16] = {LS_F16, 0, 1},
    [LS_DDP_HOOK_BF16] = {LS_BF16, 0, 1},        [LS_DDP_HOOK_INT8] = {LS_F32, 8, INT_BLOCK},
    [LS_DDP_HOOK_INT4] = {LS_F32, 4, INT_BLOCK},
};

static size_t form_bytes(const wire_form *f, size_t n)
{
    return f->bits > 0 ? int_blocks_bytes(n, f->bits) : n * ls_dtype_size(f->type);
}

static void form_pack(const wire_form *f, const float *src, size_t n, char *to)
{
    if (f->bits > 0)
        int_blocks_pack(src, n, f->bits, to);
    else if (f->type == LS_F32)
        memcpy(to, src, n * sizeof(*src));
    else
        half_pack(src, (uint16_t *)(void *)to, n, 1, f->type);
}

static void form_unpack(const wire_form *f, const char *from, size_t n, float *dst)
{
    if (f->bits > 0)
        int_blocks_unpack(from, n, f->bits, dst);
    else if (f->type == LS_F32)
        memcpy(dst, from, n * sizeof(*dst));
    else
        half_unpack((const uint16_t *)(const void *)from, dst, n, f->type);
}

struct local_exchange {
    ls_comm *comm;
    int size;
    int rank;
    int islands;
    shard_node range; /* of this rank */
    float *const *values;
    size_t n;
    bool adds; /* ranks send what they have added of their islands, not each of them */
    const wire_form *form;

    shard_counter *nodes; /* of each rank: its pieces */
    int *n_nodes;         /* of each rank: what it sends */
    int n_all;
    size_t *sent; /* bytes for each rank */
    size_t *received;
    reduce_operand *operands;
    float *unpacked; /* a block of integers of each island */
    char *out;       /* this rank's nodes, for each rank its elements of all of them */
    char *in;        /* this rank's elements of all nodes */
    char *means;
    ls_work *work; /* pending */
    bool is_one;   /* one all-reduce does it */
    bool is_second_started;
};

/* The elements of rank r begin here. */
static size_t part_at(const local_exchange *x, int r)
{
    const size_t size = (size_t)x->size;
    const size_t units = (x->n + x->form->unit - 1) / x->form->unit;
    const size_t at = units / size * (size_t)r + units % size * (size_t)r / size;

    return r < x->size ? at * x->form->unit : x->n;
}

static size_t part_of(const local_exchange *x, int r)
{
    return part_at(x, r + 1) - part_at(x, r);
}

static void free_exchange(local_exchange *x)
{
    ls_free(x->nodes);
    ls_free(x->n_nodes);
    ls_free(x->sent);
    ls_free(x->received);
    ls_free(x->operands);
    ls_free(x->unpacked);
    ls_free(x->out);
    ls_free(x->in);
    ls_free(x->means);
    ls_free(x);
}

static ls_status plan(local_exchange *x, const int *starts)
{
    const size_t size = (size_t)x->size;
    size_t n_out = 0;
    size_t n_in = 0;
    size_t own;

    LS_TRY(LS_NEW(&x->nodes, size, "for the islands of %d ranks", x->size));
    LS_TRY(LS_NEW(&x->n_nodes, size, "for the islands of %d ranks", x->size));
    LS_TRY(LS_NEW(&x->sent, size, "for the islands of %d ranks", x->size));
    LS_TRY(LS_NEW(&x->received, size, "for the islands of %d ranks", x->size));
    for (int r = 0; r < x->size; r++) {
        const shard_node range = shard_range_of(starts, r);

        shard_pieces(x->islands, range, &x->nodes[r]);
        x->n_nodes[r] = x->adds ? x->nodes[r].n : range.n;
        x->n_all += x->n_nodes[r];
    }
    own = (size_t)x->n_nodes[x->rank];
    for (int r = 0; r < x->size; r++) {
        x->sent[r] = own * form_bytes(x->form, part_of(x, r));
        x->received[r] = (size_t)x->n_nodes[r] * form_bytes(x->form, part_of(x, x->rank));
        n_out += x->sent[r];
        n_in += x->received[r];
    }
    LS_TRY(LS_NEW(&x->operands, (size_t)x->islands, "for %d islands", x->islands));
    x->out = ls_calloc(n_out + 1, 1);
    x->in = ls_calloc(n_in + 1, 1);
    x->means = ls_calloc(form_bytes(x->form, x->n) + 1, 1);
    x->unpacked = ls_calloc((size_t)x->n_all + 1, INT_BLOCK * sizeof(*x->unpacked));
    if (x->out == NULL || x->in == NULL || x->means == NULL || x->unpacked == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the differences of %d islands", x->islands);
    return LS_OK;
}

/* dst = node `node` of this rank; it may be the numbers of its first island. */
static void add_node(float *dst, shard_node node, shard_node range, float *const *values, size_t n,
                     reduce_operand *operands)
{
    for (int i = 0; i < node.n; i++)
        operands[i] =
            (reduce_operand){values[node.first - range.first + i], node.first + i, 1, true};
    reduce_tree(dst, operands, node.n, n, LS_F32, LS_SUM, false, 1);
}

static char *own_means(const local_exchange *x)
{
    return x->means + form_bytes(x->form, part_at(x, x->rank));
}

static void pack(local_exchange *x)
{
    float *const *values = x->values;
    const shard_counter *own = &x->nodes[x->rank];
    char *to = x->out;

    for (int k = 0; k < own->n && x->adds; k++)
        add_node(values[own->pieces[k].first - x->range.first], own->pieces[k], x->range, values,
                 x->n, x->operands);
    for (int r = 0; r < x->size; r++)
        for (int k = 0; k < x->n_nodes[x->rank]; k++) {
            const int i = x->adds ? own->pieces[k].first - x->range.first : k;

            form_pack(x->form, values[i] + part_at(x, r), part_of(x, r), to);
            to += form_bytes(x->form, part_of(x, r));
        }
}

/* This rank's elements of the mean, from those of all nodes. */
static void add_all(local_exchange *x)
{
    const size_t part = part_of(x, x->rank);
    const size_t bytes = form_bytes(x->form, part);
    int n = 0;

    for (int r = 0; r < x->size; r++)
        for (int k = 0; k < x->n_nodes[r]; k++, n++) {
            const char *data = x->in + (size_t)n * bytes;

            x->operands[n] = x->adds ? (reduce_operand){data, x->nodes[r].pieces[k].first,
                                                        x->nodes[r].pieces[k].n, true}
                                     : (reduce_operand){data, n, 1, false};
        }
    reduce_tree(own_means(x), x->operands, x->n_all, part, x->form->type, LS_AVG, true, x->islands);
}

/* The same for integers, a block at a time. */
static void add_blocks(local_exchange *x)
{
    char *mean = own_means(x);
    const size_t part = part_of(x, x->rank);
    const size_t bytes = form_bytes(x->form, part);
    const char *in = x->in;
    float sum[INT_BLOCK];

    for (size_t at = 0; at < part; at += INT_BLOCK) {
        const size_t n = part - at < INT_BLOCK ? part - at : INT_BLOCK;

        for (int i = 0; i < x->n_all; i++) {
            float *to = x->unpacked + (size_t)i * INT_BLOCK;

            form_unpack(x->form, in + (size_t)i * bytes, n, to);
            x->operands[i] = (reduce_operand){to, i, 1, true};
        }
        reduce_tree(sum, x->operands, x->n_all, n, LS_F32, LS_AVG, true, x->islands);
        form_pack(x->form, sum, n, mean);
        mean += form_bytes(x->form, n);
        in += form_bytes(x->form, n);
    }
}

static ls_status start_two(local_exchange *x, const int *starts)
{
    LS_TRY(plan(x, starts));
    pack(x);
    comm_label(x->comm, "parameter differences");
    return ls_all_to_all_v(x->comm, x->out, x->sent, x->in, x->received, LS_U8, &x->work);
}

static ls_status start_one(local_exchange *x)
{
    LS_TRY(LS_NEW(&x->operands, (size_t)x->range.n, "for %d islands", x->range.n));
    add_node(x->values[0], x->range, x->range, x->values, x->n, x->operands);
    x->is_one = true;
    comm_label(x->comm, "parameter differences");
    return comm_average(x->comm, x->values[0], x->n, LS_F32, x->islands, &x->work);
}

ls_status local_mean_start(ls_comm *comm, int islands, const int *starts, float *const *values,
                           size_t n, ls_ddp_hook hook, local_exchange **out)
{
    local_exchange *x;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&x, 1, "for a mean of differences"));
    x->comm = comm;
    x->size = ls_comm_size(comm);
    x->rank = ls_comm_rank(comm);
    x->islands = islands;
    x->range = shard_range_of(starts, x->rank);
    x->values = values;
    x->n = n;
    x->adds = hook == LS_DDP_HOOK_NONE;
    x->form = &forms[hook];
    x->is_one = n == 0;
    if (n > 0)
        st = x->adds && strcmp(ls_comm_backend(comm), "native") == 0 &&
                     shard_partition_is_aligned(islands, starts, x->size)
                 ? start_one(x)
                 : start_two(x, starts);
    if (st != LS_OK)
        free_exchange(x);
    else
        *out = x;
    return st;
}

static ls_status wait(local_exchange *x)
{
    ls_work *work = x->work;

    x->work = NULL;
    return work != NULL ? ls_work_wait(work) : LS_OK;
}

ls_status local_mean_go_on(local_exchange *x)
{
    if (x->is_one || x->is_second_started)
        return LS_OK;
    LS_TRY(wait(x));
    x->is_second_started = true;
    if (x->form->bits > 0)
        add_blocks(x);
    else
        add_all(x);
    for (int r = 0; r < x->size; r++)
        x->sent[r] = form_bytes(x->form, part_of(x, r));
    comm_label(x->comm, "means of differences");
    return ls_all_gather_v(x->comm, own_means(x), x->means, x->sent, LS_U8, &x->work);
}

ls_status local_mean_end(local_exchange *x)
{
    ls_status st = local_mean_go_on(x);

    if (st == LS_OK)
        st = wait(x);
    if (st == LS_OK && !x->is_one)
        form_unpack(x->form, x->means, x->n, x->values[0]);
    free_exchange(x);
    return st;
}

void local_mean_drop(local_exchange *x)
{
    if (x == NULL)
        return;
    (void)wait(x);
    free_exchange(x);
}
