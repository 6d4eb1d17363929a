/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards.c - trains with shards on several numbers of ranks and compares the bits of
 * parameters, gradients and buffers with those of one rank, and one step with the definition of the
 * tree.
 */
#include "ddp/shard_net.h"

#include "base/compute/half.h"
#include "base/rng.h"
#include "ddp/reducer.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"
#include "tensor/tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct job {
    int shards;
    ls_ddp_options options;             /* `shards` is set */
    uint64_t *hashes;                   /* shared: of each step */
    const char *backend;                /* "LOCKSTEP_BACKEND=..."; NULL: native */
    bool are_known;                     /* hashes are of an earlier run */
    bool is_plain;                      /* no shards: as many ranks instead */
    bool is_one_call;                   /* ls_ddp_step_shards() */
    const int (*starts)[RANKS_TOP + 1]; /* the partition of each step; NULL: equal ones */
} job;

static ls_status hash_tensor(const ls_tensor *t, uint64_t *hash)
{
    unsigned char bytes[HIDDEN * HIDDEN * 8];

    LS_TRY(ls_tensor_read(t, bytes, ls_tensor_count(t)));
    *hash = ls_hash_bytes(bytes, ls_tensor_count(t) * ls_dtype_size(ls_tensor_dtype(t)), *hash);
    return LS_OK;
}

/* Of parameters, gradients and buffers. */
static ls_status hash_state(small_net *n, uint64_t *hash)
{
    int count;
    const ls_named *list = ls_model_parameters(n->model, &count);

    *hash = 0;
    for (int i = 0; i < count; i++) {
        LS_TRY(hash_tensor(list[i].tensor, hash));
        if (ls_grad(list[i].tensor) != NULL)
            LS_TRY(hash_tensor(ls_grad(list[i].tensor), hash));
        else
            *hash += 1;
    }
    list = ls_model_buffers(n->model, &count);
    for (int i = 0; i < count; i++)
        LS_TRY(hash_tensor(list[i].tensor, hash));
    return LS_OK;
}

/* The shards of this rank in a step. */
static ls_status find_range(small_net *n, ls_comm *comm, const job *j, int step, shard_node *out)
{
    const int size = ls_comm_size(comm);
    shard_balance *b = n->ddp->balance;

    if (j->starts == NULL)
        return ls_shard_range(j->shards, ls_comm_rank(comm), size, &out->first, &out->n);
    memcpy(b->all.starts, j->starts[step], ((size_t)size + 1) * sizeof(int));
    b->has_change = true;
    LS_TRY(ddp_change_partition(n->ddp));
    LS_CHECK(!ddp_has_new_partition(n->ddp));
    *out = ddp_shard_range(n->ddp);
    return LS_OK;
}

static ls_status train(small_net *n, ls_comm *comm, const job *j)
{
    double total;

    for (int step = 0; step < STEPS; step++) {
        ls_ddp_step result = {.weight = 0};
        shard_node range;
        uint64_t hash;

        LS_TRY(find_range(n, comm, j, step, &range));
        total = 0;
        for (int s = 0; s < j->shards; s++)
            total += shard_rows_of(step, s);
        LS_TRY(ls_ddp_sync_buffers(n->ddp));
        if (j->is_one_call)
            LS_TRY(shard_step_run(n, step, shard_compute, &result));
        else if (range.n == 0)
            LS_TRY(ddp_step_idle(n->ddp, &result));
        for (int s = range.first; s < range.first + range.n && !j->is_one_call; s++)
            LS_TRY(shard_through(n, step, s, s == range.first + range.n - 1, &result));
        LS_CHECK(result.weight == total && result.more_data);
        LS_TRY(ls_optimizer_step(n->sgd));
        LS_TRY(ls_ddp_sync_buffers(n->ddp));
        LS_TRY(hash_state(n, &hash));
        if (ls_comm_rank(comm) == 0 && !j->are_known)
            j->hashes[step] = hash;
        LS_TRY(ls_barrier(comm, NULL));
        if (hash != j->hashes[step])
            return ls_fail(LS_EMISMATCH,
                           "%d shards on %d ranks: other bits after step %d on rank %d", j->shards,
                           ls_comm_size(comm), step, ls_comm_rank(comm));
    }
    return LS_OK;
}

static ls_status body_train(const ls_test_rank *self, void *arg)
{
    const job *j = arg;
    ls_comm *comm;
    small_net n;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    st = small_net_join(&n, j->starts == NULL ? comm : NULL, &j->options, 0.1);
    if (st == LS_OK && j->starts != NULL)
        st = ddp_create_balanced(comm, n.model, &j->options, 0, &n.ddp);
    if (st == LS_OK)
        st = train(&n, comm, j);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return st;
}

/* The first run of a job sets its hashes. */
static void train_on(int ranks, job *j)
{
    const ls_test_job r = {.n = ranks, .body = body_train, .arg = j, .env = {j->backend}};

    j->options.size = sizeof(j->options);
    j->options.shards = j->is_plain ? 0 : j->shards;
    assert_true(j->backend == NULL ? ls_test_run(&r) : ls_test_ranks(&r, NULL));
    j->are_known = true;
}

static void any_number_of_ranks_gives_the_same_bits(void **state)
{
    static const struct {
        int shards;
        int ranks[5];
        bool is_aligned[5]; /* else not on a stream device */
    } cases[] = {{2, {2}, {true}},
                 {5, {2, 3, 4, 5}, {false, true, false, true}},
                 {8, {2, 3, 5, 8}, {true, false, false, true}},
                 {SHARDS_TOP, {3, 7}, {false, true}}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));

    (void)state;
    for (size_t c = 0; c < LS_COUNT_OF(cases); c++) {
        job j = {.shards = cases[c].shards, .hashes = hashes};

        train_on(1, &j);
        for (int i = 0; i < 5 && cases[c].ranks[i] > 0; i++)
            if (cases[c].is_aligned[i] || !is_stream_device())
                train_on(cases[c].ranks[i], &j);
    }
}

static void small_buckets_and_means_over_shards_keep_the_bits(void **state)
{
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));
    job j = {.shards = 4,
             .hashes = hashes,
             .options = {.first_bucket_bytes = 1, .bucket_bytes = 64, .plain_mean = 1}};

    (void)state;
    train_on(1, &j);
    train_on(2, &j);
    if (!is_stream_device())
        train_on(3, &j);
}

static void hooks_round_at_the_same_places_on_any_number_of_ranks(void **state)
{
    static const struct {
        int shards;
        int ranks[3];
        ls_ddp_options options;
    } cases[] = {{5, {2, 3, 5}, {.hook = LS_DDP_HOOK_FP16}},
                 {8, {2, 4}, {.hook = LS_DDP_HOOK_BF16, .first_bucket_bytes = 1}},
                 {SHARDS_TOP, {3, 7}, {.hook = LS_DDP_HOOK_FP16, .bucket_bytes = 64}},
                 {4, {2, 3}, {.hook = LS_DDP_HOOK_BF16, .plain_mean = 1}}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));

    (void)state;
    if (is_stream_device())
        skip();
    for (size_t c = 0; c < LS_COUNT_OF(cases); c++) {
        job j = {.shards = cases[c].shards, .hashes = hashes, .options = cases[c].options};

        train_on(1, &j);
        for (int i = 0; i < 3 && cases[c].ranks[i] > 0; i++)
            train_on(cases[c].ranks[i], &j);
    }
}

/* --- partitions by speed --- */

/* With one rank first. */
static void divide_as(int ranks, job *j, const int (*starts)[RANKS_TOP + 1])
{
    if (!j->are_known)
        train_on(1, j);
    j->starts = starts;
    train_on(ranks, j);
    j->starts = NULL;
}

/* A partition for each step: one piece a rank, several, all shards on one rank, and others. */
static void partitions_of_any_shape_have_the_bits_of_one_rank(void **state)
{
    static const int of_two[][STEPS][RANKS_TOP + 1] = {
        {{0, 8, 12}, {0, 9, 12}, {0, 12, 12}, {0, 0, 12}},
        {{0, 1, 12}, {0, 11, 12}, {0, 5, 12}, {0, 7, 12}}};
    static const int of_four[][STEPS][RANKS_TOP + 1] = {
        {{0, 4, 8, 10, 12}, {0, 0, 8, 8, 12}, {0, 3, 4, 9, 12}, {0, 12, 12, 12, 12}},
        {{0, 0, 0, 0, 12}, {0, 1, 2, 3, 12}, {0, 6, 6, 7, 12}, {0, 0, 5, 11, 12}}};
    static const ls_ddp_options options[] = {{.hook = LS_DDP_HOOK_NONE},
                                             {.hook = LS_DDP_HOOK_BF16},
                                             {.first_bucket_bytes = 1, .bucket_bytes = 64},
                                             {.plain_mean = 1}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));

    (void)state;
    if (is_stream_device())
        skip();
    for (size_t i = 0; i < LS_COUNT_OF(options); i++) {
        job j = {.shards = 12, .hashes = hashes, .options = options[i]};

        for (int k = 0; k < 2; k++) {
            divide_as(2, &j, of_two[k]);
            divide_as(4, &j, of_four[k]);
            j.is_one_call = !j.is_one_call;
        }
    }
}

static void fewer_shards_than_ranks_have_the_bits_of_one_rank(void **state)
{
    static const int starts[STEPS][RANKS_TOP + 1] = {
        {0, 1, 1, 2, 2, 2}, {0, 0, 0, 0, 1, 2}, {0, 0, 2, 2, 2, 2}, {0, 1, 2, 2, 2, 2}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));
    job j = {.shards = 2, .hashes = hashes};

    (void)state;
    if (is_stream_device())
        skip();
    divide_as(5, &j, starts);
}

static void synchronized_batch_norms_have_the_same_bits_in_any_partition(void **state)
{
    static const int starts[STEPS][RANKS_TOP + 1] = {
        {0, 8, 9, 12}, {0, 1, 2, 12}, {0, 10, 11, 12}, {0, 4, 8, 12}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));
    job j = {
        .shards = 12, .hashes = hashes, .options = {.sync_batch_norm = 1}, .is_one_call = true};

    (void)state;
    if (is_stream_device())
        skip();
    divide_as(3, &j, starts);
}

/* The gradient is -0.0, which +0.0 of the rank without a shard would change. */
static ls_status body_zero(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .shards = 1};
    ls_ddp_step result;
    ls_tensor *bias;
    ls_comm *comm;
    float gradient[2];
    small_net n;
    int count;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(small_net_open(&n, test_device_name(), 1));
    n.layers[FIRST] = ls_nn_linear(n.model, "first", 2, 2, 0);
    LS_TRY(ddp_create_balanced(comm, n.model, &options, 0, &n.ddp));
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    bias = ls_model_parameters(n.model, &count)[1].tensor;
    if (self->rank == 0)
        LS_TRY(ls_ddp_backward(n.ddp, n.tape,
                               ls_mean(n.tape, ls_scale(n.tape, bias, -0.0, 0), NULL, 0, 0), 3,
                               &result));
    else
        LS_TRY(ddp_step_idle(n.ddp, &result));
    LS_CHECK(result.weight == 3);
    LS_TRY(ls_tensor_read(ls_grad(bias), gradient, 2));
    LS_CHECK(gradient[0] == 0 && signbit(gradient[0]) && signbit(gradient[1]));
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_without_shards_do_not_change_the_sign_of_zero(void **state)
{
    (void)state;
    if (is_stream_device())
        skip();
    for (int n = 1; n <= 3; n++)
        assert_true(ls_test_run(&(ls_test_job){.n = n, .body = body_zero}));
}

static void other_backends_exchange_the_pieces_of_any_partition(void **state)
{
    static const int starts[STEPS][RANKS_TOP + 1] = {
        {0, 8, 8, 12}, {0, 1, 2, 12}, {0, 0, 11, 12}, {0, 4, 8, 12}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));
    job j = {.shards = 12, .hashes = hashes};

    (void)state;
    if (is_stream_device() || !HAS_GLOO)
        skip();
    train_on(1, &j);
    j.backend = "LOCKSTEP_BACKEND=gloo";
    divide_as(3, &j, starts);
}

/* Other backends add in other orders. */
static void backends_give_the_same_bits(void **state)
{
    static const ls_ddp_options options[] = {
        {.hook = LS_DDP_HOOK_NONE}, {.hook = LS_DDP_HOOK_BF16}, {.sync_batch_norm = 1}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));

    (void)state;
    if (is_stream_device() || !HAS_GLOO)
        skip();
    for (size_t i = 0; i < LS_COUNT_OF(options); i++) {
        job j = {.shards = 5, .hashes = hashes, .options = options[i]};

        train_on(5, &j);
        j.backend = "LOCKSTEP_BACKEND=gloo";
        train_on(5, &j);
        j.is_one_call = true;
        train_on(2, &j);
    }
}

static void a_step_in_one_call_has_the_bits_of_several(void **state)
{
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));
    job j = {.shards = 4, .hashes = hashes};

    (void)state;
    train_on(1, &j);
    j.is_one_call = true;
    train_on(1, &j);
    train_on(2, &j);
}

/* As ranks compute that have a shard each, and as without shards. */
static void synchronized_batch_norms_have_the_same_bits_on_any_number_of_ranks(void **state)
{
    static const struct {
        int shards;
        int ranks[5];
        bool is_aligned[5]; /* else not on a stream device */
        ls_ddp_options options;
    } cases[] = {{5, {1, 2, 3, 4, 5}, {true, false, true, false, true}, {.hook = LS_DDP_HOOK_NONE}},
                 {8, {1, 2, 3}, {true, true, false}, {.first_bucket_bytes = 1, .bucket_bytes = 64}},
                 {4, {1, 2, 3}, {true, true, false}, {.plain_mean = 1}},
                 {7, {2, 3}, {false, false}, {.hook = LS_DDP_HOOK_BF16}}};
    uint64_t *hashes = ls_test_shared(STEPS * sizeof(*hashes));

    (void)state;
    for (size_t c = 0; c < LS_COUNT_OF(cases); c++) {
        job j = {.shards = cases[c].shards, .hashes = hashes, .options = cases[c].options};

        if (is_stream_device() && j.options.hook != LS_DDP_HOOK_NONE)
            continue;
        j.options.sync_batch_norm = 1;
        train_on(j.shards, &j);
        j.is_plain = true;
        if (j.options.hook == LS_DDP_HOOK_NONE)
            train_on(j.shards, &j);
        j.is_plain = false;
        j.is_one_call = true;
        for (int i = 0; i < 5 && cases[c].ranks[i] > 0; i++)
            if (cases[c].is_aligned[i] || !is_stream_device())
                train_on(cases[c].ranks[i], &j);
    }
}

/* --- the definition --- */

typedef struct gradients {
    float values[SHARDS_TOP][HIDDEN * IN];
    size_t count;
} gradients;

/* Of the first layer's weight, times the rows of the shard or not, each shard alone. */
static ls_status shard_gradients(small_net *n, int shards, bool are_sums, gradients *g)
{
    int count;
    const ls_named *list = ls_model_parameters(n->model, &count);

    for (int s = 0; s < shards; s++) {
        ls_tensor *x = NULL;
        ls_tensor *y = NULL;
        ls_tensor *loss = NULL;

        LS_TRY(shard_loss_of(n, 0, s, &x, &y, &loss));
        ls_model_zero_grad(n->model);
        LS_TRY(ls_backward(n->tape, loss, are_sums ? shard_rows_of(0, s) : 1));
        g->count = ls_tensor_count(list[0].tensor);
        LS_TRY(ls_tensor_read(ls_grad(list[0].tensor), g->values[s], g->count));
        ls_tape_reset(n->tape);
        ls_tensor_destroy(x);
        ls_tensor_destroy(y);
    }
    return LS_OK;
}

/* Element i of the node of `size` shards that begins at `first`. */
// NOLINTNEXTLINE(misc-no-recursion): the tree's depth is 4
static float node_value(const gradients *g, int shards, int first, int size, size_t i)
{
    float left;

    if (size == 1)
        return g->values[first][i];
    left = node_value(g, shards, first, size / 2, i);
    if (first + size / 2 >= shards)
        return left;
    return left + node_value(g, shards, first + size / 2, size / 2, i);
}

static float round_to(float x, ls_ddp_hook hook)
{
    return hook == LS_DDP_HOOK_FP16 ? ls_f16_to_f32(ls_f32_to_f16(x))
                                    : ls_bf16_to_f32(ls_f32_to_bf16(x));
}

/* The same with a hook: the rounded mean over *rows rows. */
// NOLINTNEXTLINE(misc-no-recursion): the tree's depth is 4
static float node_mean(const gradients *g, int shards, int first, int size, size_t i,
                       ls_ddp_hook hook, double *rows)
{
    double right_rows;
    double left_rows;
    float right;
    float left;

    if (size == 1) {
        *rows = shard_rows_of(0, first);
        return round_to(g->values[first][i], hook);
    }
    left = node_mean(g, shards, first, size / 2, i, hook, rows);
    if (first + size / 2 >= shards)
        return left;
    left_rows = *rows;
    right = node_mean(g, shards, first + size / 2, size / 2, i, hook, &right_rows);
    *rows = left_rows + right_rows;
    return round_to(left * (float)(left_rows / *rows) + right * (float)(right_rows / *rows), hook);
}

static ls_status compare_with_definition(small_net *n, int shards, ls_ddp_hook hook,
                                         const gradients *g)
{
    int count;
    const ls_named *list = ls_model_parameters(n->model, &count);
    float values[HIDDEN * IN];
    ls_ddp_step result;
    int rows = 0;

    LS_TRY(ls_ddp_sync_buffers(n->ddp));
    for (int s = 0; s < shards; s++) {
        LS_TRY(shard_through(n, 0, s, s == shards - 1, &result));
        rows += shard_rows_of(0, s);
    }
    LS_TRY(ls_tensor_read(ls_grad(list[0].tensor), values, g->count));
    for (size_t i = 0; i < g->count; i++) {
        double all;

        if (hook == LS_DDP_HOOK_NONE)
            LS_CHECK(values[i] == node_value(g, shards, 0, 16, i) / (float)rows);
        else
            LS_CHECK(values[i] == node_mean(g, shards, 0, 16, i, hook, &all));
    }
    return LS_OK;
}

static ls_status body_definition(const ls_test_rank *self, void *arg)
{
    const ls_ddp_hook hook = *(const ls_ddp_hook *)arg;
    const ls_ddp_options options = {.size = sizeof(options), .shards = SHARDS_TOP, .hook = hook};
    static gradients g;
    ls_comm *comm;
    small_net n;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    st = small_net_join(&n, NULL, NULL, 0.1);
    if (st == LS_OK)
        st = shard_gradients(&n, SHARDS_TOP, hook == LS_DDP_HOOK_NONE, &g);
    if (st == LS_OK)
        st = ls_ddp_create(comm, n.model, &options, &n.ddp);
    if (st == LS_OK)
        st = compare_with_definition(&n, SHARDS_TOP, hook, &g);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return st;
}

static void gradients_are_the_tree_over_shards(void **state)
{
    (void)state;
    for (ls_ddp_hook hook = LS_DDP_HOOK_NONE; hook <= LS_DDP_HOOK_BF16; hook++)
        if (hook == LS_DDP_HOOK_NONE || !is_stream_device())
            assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = body_definition, .arg = &hook}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(small_buckets_and_means_over_shards_keep_the_bits),
        cmocka_unit_test(hooks_round_at_the_same_places_on_any_number_of_ranks),
        cmocka_unit_test(a_step_in_one_call_has_the_bits_of_several),
        cmocka_unit_test(synchronized_batch_norms_have_the_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(partitions_of_any_shape_have_the_bits_of_one_rank),
        cmocka_unit_test(fewer_shards_than_ranks_have_the_bits_of_one_rank),
        cmocka_unit_test(synchronized_batch_norms_have_the_same_bits_in_any_partition),
        cmocka_unit_test(ranks_without_shards_do_not_change_the_sign_of_zero),
        cmocka_unit_test(other_backends_exchange_the_pieces_of_any_partition),
        cmocka_unit_test(backends_give_the_same_bits),
        cmocka_unit_test(gradients_are_the_tree_over_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
