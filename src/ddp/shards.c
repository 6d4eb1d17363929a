/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.c - adds the gradients of shards in the order of shard_tree.h, within this rank and over
 * all ranks; with a communication hook as shard_means.h says. The order of additions depends on the
 * number of shards only. ddp.c calls it.
 */
#include "ddp/shards.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "comm/backends/reduce.h"
#include "comm/comm.h"
#include "ddp/half_bucket.h"
#include "ddp/reducer.h"
#include "ddp/shard_means.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

#include <string.h>

/* Elements of a part of a bucket are a multiple of this: whole cache lines of float32. */
#define PART_ELEMENTS 16

/* What a bucket needs besides its own memory, where the newest piece is. */
typedef struct bucket_shards {
    ls_tensor *values; /* a view of the bucket's memory */
    ls_tensor *pieces[SHARD_PIECES_MOST];
    char *received;   /* this rank's elements of all pieces; ls_comm_alloc(); NULL: no exchange */
    uint16_t *halves; /* with a hook: this rank's pieces, one after the other; likewise */
    ls_work *works[SHARD_PIECES_MOST]; /* of the exchange */
} bucket_shards;

struct shard_state {
    int n;            /* of a step, on all ranks */
    shard_node range; /* of this rank */
    int *starts;      /* the partition */
    bool has_exchange;
    shard_counter counter; /* of this rank in this step */
    int n_added;           /* pieces that the current shard is added to */
    int done;

    // For the exchange: of all ranks, in their order.
    shard_counter *of_rank;
    int n_rounds; /* the most pieces of a rank */
    int n_pieces; /* of all ranks */
    reduce_operand *operands;
    double *piece_weights; /* with a hook: rows */
    void *mean_memory;     /* likewise */
    size_t *send_counts;   /* of each rank */
    size_t *receive_counts;

    // With a hook: rows of this rank's pieces, of those that the current shard is added to, and of
    // the shard.
    double weights[SHARD_PIECES_MOST];
    double added_weights[SHARD_PIECES_MOST];
    double shard_weight;

    bool *used;                             /* of each parameter */
    ls_tensor **targets[SHARD_PIECES_MOST]; /* in each saved piece: of each parameter; n_targets */
    int n_targets;
    int piece; /* that the current shard begins; -1: it computes in the buckets */
    bucket_shards *buckets;
    int n_buckets;
    shard_buffers buffers;
    bool has_buffers; /* `buffers` is open */
};

/* --- life --- */

bool shards_are_means(const ls_ddp *ddp)
{
    return ddp->options.shards > 0 && ddp->options.hook != LS_DDP_HOOK_NONE;
}

static ls_status check_options(const ls_ddp *ddp)
{
    const ls_ddp_options *o = &ddp->options;
    const int size = ls_comm_size(ddp->comm);

    if (o->shards > SHARDS_MOST)
        return ls_fail(LS_EINVAL, "%d shards: there can be at most %d", o->shards, SHARDS_MOST);
    if (o->shards < size && (ddp->balance == NULL || o->sync_batch_norm))
        return ls_fail(
            LS_EINVAL, "%d shards on %d ranks: there must be at least as many shards as ranks%s",
            o->shards, size,
            ddp->balance == NULL ? ", except with --balance" : " with sync_batch_norm (--sync-bn)");
    if (shards_are_means(ddp) && ls_device_queue(ddp->device) != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "shards with a communication hook (--compress) on device %s, which adds up "
                       "shards without rounding; leave one of them out",
                       ls_device_name(ddp->device));
    if (o->sync_batch_norm && o->batch_norm_group != NULL)
        return ls_fail(LS_EUNSUPPORTED, "shards with a batch_norm_group: all shards of a step meet "
                                        "in each batch norm; leave it out");
    if (o->no_buffer_broadcast)
        return ls_fail(LS_EUNSUPPORTED, "shards with no_buffer_broadcast: all shards of a step "
                                        "start with the same buffers");
    return LS_OK;
}

static ls_status plan_exchange(ls_ddp *ddp, shard_state *s)
{
    const int size = ls_comm_size(ddp->comm);

    if (ddp->device != NULL && ddp->device->accel != NULL)
        return ls_fail(
            LS_EUNSUPPORTED,
            "%d shards on %d ranks with backend %s: device %s needs backend native and a "
            "division in which each rank has one node of the tree, as powers of two "
            "have",
            s->n, size, ls_comm_backend(ddp->comm), ls_device_name(ddp->device));
    s->of_rank = ls_calloc((size_t)size, sizeof(*s->of_rank));
    s->send_counts = ls_calloc((size_t)size, sizeof(*s->send_counts));
    s->receive_counts = ls_calloc((size_t)size, sizeof(*s->receive_counts));
    if (s->of_rank == NULL || s->send_counts == NULL || s->receive_counts == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the shards of %d ranks", size);
    for (int r = 0; r < size; r++) {
        shard_pieces(s->n, shard_range_of(s->starts, r), &s->of_rank[r]);
        s->n_pieces += s->of_rank[r].n;
        if (s->of_rank[r].n > s->n_rounds)
            s->n_rounds = s->of_rank[r].n;
    }
    s->operands = ls_calloc((size_t)s->n_pieces, sizeof(*s->operands));
    s->piece_weights = ls_calloc((size_t)s->n_pieces, sizeof(*s->piece_weights));
    s->mean_memory = ls_calloc(1, MEAN_TREE_BYTES);
    if (s->operands == NULL || s->piece_weights == NULL || s->mean_memory == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d pieces", s->n_pieces);
    return LS_OK;
}

static void divide(const ls_ddp *ddp, int *starts, int size)
{
    if (audit_divide(ddp, starts))
        return;
    if (ddp->balance != NULL)
        memcpy(starts, ddp->balance->all.starts, ((size_t)size + 1) * sizeof(*starts));
    else
        shard_divide_equally(ddp->options.shards, size, starts);
}

ls_status shards_open(ls_ddp *ddp)
{
    const int size = ls_comm_size(ddp->comm);
    const int rank = ls_comm_rank(ddp->comm);
    const bool is_native = strcmp(ls_comm_backend(ddp->comm), "native") == 0;
    shard_state *s;
    int n_params;

    if (ddp->options.shards == 0)
        return LS_OK;
    LS_TRY(check_options(ddp));
    (void)ls_model_parameters(ddp->model, &n_params);
    LS_TRY(LS_NEW(&s, 1, "for shards"));
    ddp->shards = s;
    s->n = ddp->options.shards;
    LS_TRY(LS_NEW(&s->starts, (size_t)size + 1, "for the partition of %d ranks", size));
    divide(ddp, s->starts, size);
    s->range = shard_range_of(s->starts, rank);
    s->piece = -1;
    LS_TRY(LS_NEW(&s->used, (size_t)n_params + 1, "for %d parameters", n_params));
    s->has_exchange =
        size > 1 &&
        !(is_native && shard_partition_is_aligned(s->n, s->starts, size) && !shards_are_means(ddp));
    if (s->has_exchange)
        LS_TRY(plan_exchange(ddp, s));
    if (s->range.n > 1) {
        s->has_buffers = true;
        LS_TRY(shard_buffers_open(ddp, &s->buffers, s->range.first == 0));
    }
    return LS_OK;
}

void shards_close(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;

    if (s == NULL)
        return;
    shard_buffers_close(&s->buffers);
    ls_free(s->starts);
    ls_free(s->of_rank);
    ls_free(s->send_counts);
    ls_free(s->receive_counts);
    ls_free(s->operands);
    ls_free(s->piece_weights);
    ls_free(s->mean_memory);
    ls_free(s->used);
    ls_free(s);
    ddp->shards = NULL;
}

/* --- memory of the buckets --- */

static size_t count_of(const bucket *b)
{
    return b->bytes / ls_dtype_size(b->dtype);
}

/* The elements of rank `r` in a bucket of `count` begin here. */
static size_t part_at(size_t count, int r, int size)
{
    const size_t blocks = (count + PART_ELEMENTS - 1) / PART_ELEMENTS;
    const size_t at = blocks * (size_t)r / (size_t)size * PART_ELEMENTS;

    return at < count ? at : count;
}

static size_t part_of(size_t count, int r, int size)
{
    return part_at(count, r + 1, size) - part_at(count, r, size);
}

/* The most pieces that are stored while a shard is computed. */
static int count_saved(const shard_state *s)
{
    shard_counter c = {.n = 0};
    int most = 0;

    for (int i = 0; i < s->range.n - 1; i++) {
        (void)shard_counter_add(&c, s->n, (shard_node){s->range.first + i, 1});
        most = c.n > most ? c.n : most;
    }
    return most;
}

/* The type in which the bucket's elements are exchanged. */
static ls_dtype wire_type(const ls_ddp *ddp, const bucket *b)
{
    return b->dtype == LS_F32 ? bucket_wire_type(ddp) : b->dtype;
}

static ls_status make_bucket(ls_ddp *ddp, const bucket *b, bucket_shards *to)
{
    const shard_state *s = ddp->shards;
    const int64_t count = (int64_t)count_of(b);
    const int n_saved = count_saved(s);
    const size_t part = part_of((size_t)count, ls_comm_rank(ddp->comm), ls_comm_size(ddp->comm));
    size_t sent; // elements
    void *memory;

    LS_TRY(ls_tensor_wrap(ddp->device, b->dtype, 1, &count, b->memory, &to->values));
    for (int i = 0; i < n_saved; i++)
        LS_TRY(tensor_create_undefined(ddp->device, b->dtype, 1, &count, &to->pieces[i]));
    if (!s->has_exchange)
        return LS_OK;
    LS_TRY(ls_comm_alloc(
        ddp->comm, (size_t)s->n_pieces * part * ls_dtype_size(wire_type(ddp, b)) + 1, &memory));
    to->received = memory;
    if (b->packed == NULL)
        return LS_OK;
    sent = (size_t)s->of_rank[ls_comm_rank(ddp->comm)].n * (size_t)count;
    LS_TRY(ls_comm_alloc(ddp->comm, sent * sizeof(*to->halves) + 1, &memory)); // a rank may send 0
    to->halves = memory;
    return LS_OK;
}

/* On stream devices shards are added by the device, which has no sum of two tensors elsewhere. */
static ls_status make_targets(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;
    const int n_saved = ls_device_queue(ddp->device) == NULL ? count_saved(s) : 0;

    s->n_targets = ddp->n_params;
    for (int k = 0; k < n_saved; k++) {
        s->targets[k] = ls_calloc((size_t)s->n_targets + 1, sizeof(ls_tensor *));
        if (s->targets[k] == NULL)
            return ls_fail(LS_ENOMEM, "no memory for the gradients of shards");
        for (int i = 0; i < s->n_targets; i++) {
            const ls_tensor *leaf = ddp->params[i].leaf;
            const plan_slot *slot = &ddp->plan.slots[i];

            LS_TRY(tensor_create_part(s->buckets[slot->bucket].pieces[k], slot->offset,
                                      ls_tensor_dtype(leaf), ls_tensor_n_dims(leaf),
                                      ls_tensor_dims(leaf), &s->targets[k][i]));
        }
    }
    return LS_OK;
}

ls_status shards_make_buckets(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;

    if (s == NULL)
        return LS_OK;
    LS_TRY(LS_NEW(&s->buckets, (size_t)ddp->n_buckets + 1, "for the shards of %d buckets",
                  ddp->n_buckets));
    s->n_buckets = ddp->n_buckets;
    for (int i = 0; i < ddp->n_buckets; i++)
        LS_TRY(make_bucket(ddp, &ddp->buckets[i], &s->buckets[i]));
    return make_targets(ddp);
}

static void drop_targets(shard_state *s)
{
    for (int k = 0; k < SHARD_PIECES_MOST; k++) {
        for (int i = 0; s->targets[k] != NULL && i < s->n_targets; i++)
            ls_tensor_destroy(s->targets[k][i]);
        ls_free(s->targets[k]);
        s->targets[k] = NULL;
    }
    s->piece = -1;
}

void shards_drop_buckets(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;

    if (s == NULL)
        return;
    drop_targets(s);
    for (int i = 0; i < s->n_buckets; i++) {
        bucket_shards *b = &s->buckets[i];

        ls_tensor_destroy(b->values);
        for (int k = 0; k < SHARD_PIECES_MOST; k++)
            ls_tensor_destroy(b->pieces[k]);
        ls_comm_free(ddp->comm, b->received);
        ls_comm_free(ddp->comm, b->halves);
    }
    ls_free(s->buckets);
    s->buckets = NULL;
    s->n_buckets = 0;
}

/* --- the shards of a step --- */

const int *shards_starts(const ls_ddp *ddp)
{
    return ddp->shards->starts;
}

shard_node ddp_shard_range(const ls_ddp *ddp)
{
    return ddp->shards->range;
}

int shards_first_rank(const ls_ddp *ddp)
{
    int r = 0;

    while (ddp->shards != NULL && ddp->shards->starts[r + 1] == 0)
        r++;
    return r;
}

int shards_done(const ls_ddp *ddp)
{
    return ddp->shards == NULL ? 0 : ddp->shards->done;
}

bool shards_exchange(const ls_ddp *ddp)
{
    return ddp->shards != NULL && ddp->shards->has_exchange;
}

ls_status shards_check_turn(const ls_ddp *ddp, bool is_last)
{
    const shard_state *s = ddp->shards;

    if (s == NULL)
        return LS_OK;
    if (is_last && s->done < s->range.n - 1)
        return ls_fail(LS_EINVAL,
                       "ls_ddp_backward: rank %d has computed %d of its shards %d to %d before the "
                       "last one; call ls_ddp_accumulate() for each of them",
                       ls_comm_rank(ddp->comm), s->done, s->range.first,
                       s->range.first + s->range.n - 1);
    if (!is_last && s->done == s->range.n - 1)
        return ls_fail(LS_EINVAL,
                       "ls_ddp_accumulate: shard %d is the last one of rank %d in this step; call "
                       "ls_ddp_backward() for it",
                       s->range.first + s->done, ls_comm_rank(ddp->comm));
    if (s->has_buffers && s->buffers.n > 0 && !s->buffers.is_saved)
        return ls_fail(LS_EINVAL, "shards need ls_ddp_sync_buffers() before the first one of a "
                                  "step: the model has buffers");
    return LS_OK;
}

ls_tensor *shards_target(const ls_ddp *ddp, int i)
{
    const shard_state *s = ddp->shards;

    return s == NULL || s->piece < 0 ? ddp->params[i].target : s->targets[s->piece][i];
}

/* The rows of the pieces with the current shard, of `weight` rows. */
static void weigh_pieces(shard_state *s, double weight)
{
    const int at = s->counter.n - 1;
    double total = weight;

    s->shard_weight = weight;
    for (int k = 0; k < s->n_added; k++) {
        s->added_weights[k] = s->weights[at + k];
        total += s->weights[at + k];
    }
    s->weights[at] = total;
}

ls_status shards_begin_shard(ls_ddp *ddp, double weight)
{
    shard_state *s = ddp->shards;
    int before;

    if (s == NULL)
        return LS_OK;
    before = s->piece;
    if (s->done == 0)
        s->counter.n = 0;
    s->n_added = shard_counter_add(&s->counter, s->n, (shard_node){s->range.first + s->done, 1});
    weigh_pieces(s, weight);
    s->piece = -1;
    if (s->n_added == 0 && s->done < s->range.n - 1 && s->targets[s->counter.n - 1] != NULL)
        s->piece = s->counter.n - 1;
    for (int i = 0; s->piece != before && i < ddp->n_params; i++)
        LS_TRY(autograd_set_grad_target(ddp->params[i].leaf, shards_target(ddp, i)));
    return LS_OK;
}

/* On a stream device: the shard's gradients += each piece, then a copy. The sum of two numbers does
 * not depend on their order. */
static ls_status add_on_device(ls_ddp *ddp, bucket_shards *b, ls_tensor *saved)
{
    const shard_state *s = ddp->shards;

    for (int i = s->n_added - 1; i >= 0; i--) {
        const op_call call = {.op = OP_ADD_INTO,
                              .n_in = 1,
                              .n_out = 1,
                              .in = {b->pieces[s->counter.n - 1 + i]},
                              .out = {b->values}};

        LS_TRY(device_run(ddp->device, &call));
    }
    if (saved == NULL)
        return LS_OK;
    return device_copy(ddp->device, tensor_elements(saved), tensor_elements(b->values),
                       tensor_bytes(saved));
}

/* With a hook: the shard's gradients, where they are, become the mean over the new piece. */
static void add_means(const ls_ddp *ddp, const bucket *b, bucket_shards *to, ls_tensor *saved)
{
    const shard_state *s = ddp->shards;
    const ls_dtype wire = wire_type(ddp, b);
    const size_t count = count_of(b);
    const bool is_own = s->piece >= 0;
    void *values = is_own ? tensor_host_elements(to->pieces[s->piece]) : (void *)b->memory;
    double weight = s->shard_weight;

    mean_round(values, count, b->dtype, wire);
    for (int k = s->n_added - 1; k >= 0; k--) {
        mean_add(tensor_host_elements(to->pieces[s->counter.n - 1 + k]), s->added_weights[k],
                 values, weight, count, b->dtype, wire);
        weight += s->added_weights[k];
    }
    if (saved != NULL && !is_own)
        memcpy(tensor_host_elements(saved), values, b->bytes);
}

/* A rank without shards takes part in an all-reduce with -0.0 (shard_partition_is_aligned()). */
ls_status shards_fill_idle(ls_ddp *ddp, int i)
{
    const shard_state *s = ddp->shards;

    return s->has_exchange ? LS_OK : ls_tensor_fill(s->buckets[i].values, -0.0);
}

/* The pieces that are added to the shard's gradients stand behind the new one in the counter before
 * the shard, so the new one takes the memory of the first of them. */
ls_status shards_add_bucket(ls_ddp *ddp, int i)
{
    const shard_state *s = ddp->shards;
    const bucket *b = &ddp->buckets[i];
    bucket_shards *to = &s->buckets[i];
    const bool is_last = s->done == s->range.n - 1;
    const int at = s->counter.n - 1;
    const shard_node node = s->counter.pieces[at];
    ls_tensor *saved = is_last ? NULL : to->pieces[at];
    reduce_operand operands[SHARD_PIECES_MOST + 1];
    int first = node.first;
    int size = 0;

    if (ls_device_queue(ddp->device) != NULL)
        return add_on_device(ddp, to, saved);
    if (shards_are_means(ddp)) {
        add_means(ddp, b, to, saved);
        return LS_OK;
    }
    for (int k = 0; k < s->n_added; k++) {
        // What is left of the node without the last shard, in powers of two from the largest on.
        for (size = 1; size * 2 <= node.first + node.n - 1 - first; size *= 2)
            ;
        operands[k] = (reduce_operand){tensor_host_elements(to->pieces[at + k]), first, size, true};
        first += size;
    }
    operands[s->n_added] = (reduce_operand){b->memory, first, 1, true};
    if (s->n_added == 0)
        return LS_OK; // the gradients are in their place
    reduce_tree(is_last ? (void *)b->memory : tensor_host_elements(saved), operands, s->n_added + 1,
                count_of(b), b->dtype, LS_SUM, false, 1);
    return LS_OK;
}

ls_status shards_end_shard(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;
    bool is_first;
    bool is_last;

    if (s == NULL)
        return LS_OK;
    is_first = s->range.first + s->done == 0;
    is_last = s->done == s->range.n - 1;
    s->done = is_last ? 0 : s->done + 1;
    if (is_last)
        memset(s->used, 0, (size_t)ddp->n_model_params * sizeof(*s->used));
    return s->has_buffers ? shard_buffers_next(ddp, &s->buffers, is_first, is_last) : LS_OK;
}

void shards_note_used(ls_ddp *ddp, int i, bool is_used)
{
    ddp->shards->used[i] = ddp->shards->used[i] || is_used;
}

bool shards_have_used(const ls_ddp *ddp, int i)
{
    return ddp->shards != NULL && ddp->shards->used[i];
}

shard_buffers *shards_buffers(ls_ddp *ddp)
{
    return ddp->shards != NULL && ddp->shards->has_buffers ? &ddp->shards->buffers : NULL;
}

ls_status ls_shard_range(int shards, int rank, int size, int *first, int *n)
{
    shard_node range;

    LS_TRY(LS_GIVEN(first));
    LS_TRY(LS_GIVEN(n));
    if (rank < 0 || rank >= size || size > shards || shards > SHARDS_MOST)
        return ls_fail(LS_EINVAL, "shards: rank %d of %d, %d shards, at most %d", rank, size,
                       shards, SHARDS_MOST);
    range = shard_range(shards, rank, size);
    *first = range.first;
    *n = range.n;
    return LS_OK;
}

/* --- the exchange of pieces --- */

/* Piece k of this rank in a bucket, as it is sent. */
static const void *piece_to_send(const ls_ddp *ddp, int i, int k)
{
    const shard_state *s = ddp->shards;
    const bucket *b = &ddp->buckets[i];
    const bucket_shards *own = &s->buckets[i];
    const bool is_saved = k < s->counter.n - 1;
    const void *values = is_saved ? tensor_host_elements(own->pieces[k]) : (void *)b->memory;
    uint16_t *halves;

    if (own->halves == NULL)
        return values;
    halves = own->halves + (size_t)k * count_of(b);
    half_pack(values, halves, count_of(b), 1, wire_type(ddp, b));
    return halves;
}

ls_status shards_start_bucket(ls_ddp *ddp, int i)
{
    shard_state *s = ddp->shards;
    const bucket *b = &ddp->buckets[i];
    bucket_shards *own = &s->buckets[i];
    const int size = ls_comm_size(ddp->comm);
    const int rank = ls_comm_rank(ddp->comm);
    const ls_dtype wire = wire_type(ddp, b);
    const size_t count = count_of(b);
    const size_t part = part_of(count, rank, size);
    char *to = own->received;
    char label[40];

    for (int k = 0; k < s->n_rounds; k++) {
        const bool has_piece = k < s->counter.n;
        const void *piece = has_piece ? piece_to_send(ddp, i, k) : b->memory;

        for (int r = 0; r < size; r++) {
            s->send_counts[r] = has_piece ? part_of(count, r, size) : 0;
            s->receive_counts[r] = k < s->of_rank[r].n ? part : 0;
        }
        text_format(label, sizeof(label), "bucket %d/%d piece %d/%d", i + 1, ddp->n_buckets, k + 1,
                    s->n_rounds);
        comm_label(ddp->comm, label);
        LS_TRY(ls_all_to_all_v(ddp->comm, piece, s->send_counts, to, s->receive_counts, wire,
                               &own->works[k]));
        for (int r = 0; r < size; r++)
            to += s->receive_counts[r] * ls_dtype_size(wire);
    }
    return LS_OK;
}

/* Where each received piece is: round by round, in each the ranks in order. */
static void list_operands(const shard_state *s, const char *received, size_t part_bytes, int size)
{
    int n_before = 0; // pieces of lower ranks

    for (int r = 0; r < size; r++)
        for (int k = 0; k < s->of_rank[r].n; k++) {
            const shard_node node = s->of_rank[r].pieces[k];
            size_t at = 0;

            for (int q = 0; q < size; q++) {
                at += (size_t)(s->of_rank[q].n < k ? s->of_rank[q].n : k);
                at += q < r && k < s->of_rank[q].n;
            }
            s->operands[n_before++] =
                (reduce_operand){received + at * part_bytes, node.first, node.n, true};
        }
}

/* Adds this rank's elements of a bucket and starts sending the sums to all ranks. */
static ls_status start_gather(ls_ddp *ddp, int i, double divisor)
{
    const shard_state *s = ddp->shards;
    bucket *b = &ddp->buckets[i];
    const int size = ls_comm_size(ddp->comm);
    const int rank = ls_comm_rank(ddp->comm);
    const ls_dtype wire = wire_type(ddp, b);
    const size_t count = count_of(b);
    const size_t part = part_of(count, rank, size);
    char *const all = b->packed != NULL ? (char *)b->packed : b->memory;
    char *const sums = all + part_at(count, rank, size) * ls_dtype_size(wire);
    char label[32];

    list_operands(s, s->buckets[i].received, part * ls_dtype_size(wire), size);
    if (shards_are_means(ddp))
        mean_tree(sums, s->operands, s->piece_weights, s->n_pieces, s->n, part, b->dtype, wire,
                  s->mean_memory);
    else
        reduce_tree(sums, s->operands, s->n_pieces, part, b->dtype, LS_AVG, true, divisor);
    for (int r = 0; r < size; r++)
        s->send_counts[r] = part_of(count, r, size);
    text_format(label, sizeof(label), "bucket %d/%d sums", i + 1, ddp->n_buckets);
    comm_label(ddp->comm, label);
    return ls_all_gather_v(ddp->comm, sums, all, s->send_counts, wire, &b->work);
}

/* The rows of all pieces. */
static ls_status share_weights(ls_ddp *ddp)
{
    shard_state *s = ddp->shards;
    int at = 0; // of this rank's pieces

    for (int r = 0; r < ls_comm_rank(ddp->comm); r++)
        at += s->of_rank[r].n;
    memset(s->piece_weights, 0, (size_t)s->n_pieces * sizeof(*s->piece_weights));
    memcpy(s->piece_weights + at, s->weights, (size_t)s->counter.n * sizeof(*s->weights));
    comm_label(ddp->comm, "rows of shards");
    return ls_all_reduce(ddp->comm, s->piece_weights, s->piece_weights, (size_t)s->n_pieces, LS_F64,
                         LS_SUM, NULL);
}

ls_status shards_collect(ls_ddp *ddp, ls_status st, double divisor)
{
    shard_state *s = ddp->shards;

    for (int i = 0; i < s->n_buckets; i++)
        for (int k = 0; k < s->n_rounds; k++) {
            ls_work *work = s->buckets[i].works[k];

            s->buckets[i].works[k] = NULL;
            if (work != NULL) {
                const ls_status ended = ls_work_wait(work);

                st = st == LS_OK ? ended : st;
            }
        }
    if (st == LS_OK && shards_are_means(ddp))
        st = share_weights(ddp);
    for (int i = 0; i < s->n_buckets && st == LS_OK; i++)
        st = start_gather(ddp, i, divisor);
    return st;
}
