/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards.c - trains with shards on several numbers of ranks and compares the bits of
 * parameters, gradients and buffers with those of one rank, and one step with the definition of the
 * tree. The network has a batch norm, a dropout and a layer that some shards do not use.
 */
#include "ddp/small_net.h"

#include "base/compute/half.h"
#include "base/rng.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"
#include "tensor/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 7, HIDDEN = 37, OUT = 3, STEPS = 4, SHARDS_TOP = 13 };
enum { FIRST, NORM, SECOND, EXTRA, LAST_NORM }; /* layers */

static bool is_stream_device(void)
{
    return strcmp(test_device_name(), "cpu_ref") != 0;
}

static ls_status net_open(small_net *n)
{
    LS_TRY(small_net_open(n, test_device_name(), 100));
    n->layers[FIRST] = ls_nn_linear(n->model, "first", IN, HIDDEN, 0);
    n->layers[NORM] = ls_nn_batch_norm2d(n->model, "norm", HIDDEN, NULL);
    n->layers[SECOND] = ls_nn_linear(n->model, "second", HIDDEN, OUT, 0);
    n->layers[EXTRA] = ls_nn_linear(n->model, "extra", HIDDEN, OUT, 0);
    n->layers[LAST_NORM] = ls_nn_batch_norm2d(n->model, "last", OUT, NULL);
    return ls_model_status(n->model);
}

/* Shards have different numbers of rows; in odd steps one has none. */
static int rows_of(int step, int shard)
{
    return step % 2 == 1 && shard == 1 ? 0 : 2 + (shard * 3 + step) % 5;
}

/* How the hidden layer is computed. */
typedef struct hidden_args {
    small_net *net;
    int step;
} hidden_args;

static void hidden(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg)
{
    const hidden_args *a = arg;
    int n_buffers;
    ls_tensor *h =
        ls_forward(tape, a->net->layers[NORM], ls_forward(tape, a->net->layers[FIRST], inputs[0]));

    if (a->step > 0) // all shards of a step see the same running mean
        h = ls_mul(tape, h, ls_model_buffers(a->net->model, &n_buffers)[0].tensor);
    outputs[0] = ls_dropout(tape, ls_relu(tape, h), 0.3);
}

static ls_tensor *loss_on(small_net *n, ls_tape *tape, int step, int shard, ls_tensor *x,
                          ls_tensor *y)
{
    hidden_args args = {n, step};
    ls_tensor *h;
    ls_tensor *out;

    ls_tape_set_training(tape, 1);
    ls_tape_set_random(tape, ls_hash3(5, (uint64_t)shard, 0), step);
    if (step == 3)
        ls_tape_checkpoint(tape, hidden, &args, sizeof(args), &x, 1, &h, 1);
    else
        hidden(tape, &x, &h, &args);
    out = ls_forward(tape, n->layers[SECOND], h);
    if ((shard + step) % 3 == 0 && step != 2)
        out = ls_add(tape, out, ls_forward(tape, n->layers[EXTRA], h));
    out = ls_forward(tape, n->layers[LAST_NORM], out);
    return ls_cross_entropy(tape, out, y);
}

static ls_status rows_at(small_net *n, int step, int shard, ls_tensor **x, ls_tensor **y)
{
    return small_net_rows(n, step, shard * 100, (int64_t[]){0, IN}, 2, rows_of(step, shard), 1, OUT,
                          x, y);
}

static ls_status loss_of(small_net *n, int step, int shard, ls_tensor **x, ls_tensor **y,
                         ls_tensor **loss)
{
    LS_TRY(rows_at(n, step, shard, x, y));
    *loss = loss_on(n, n->tape, step, shard, *x, *y);
    return ls_tape_status(n->tape);
}

typedef struct job {
    int shards;
    ls_ddp_options options; /* `shards` is set */
    uint64_t *hashes;       /* shared: of each step */
    const char *backend;    /* "LOCKSTEP_BACKEND=..."; NULL: native */
    bool are_known;         /* hashes are of an earlier run */
    bool is_plain;          /* no shards: as many ranks instead */
    bool is_one_call;       /* ls_ddp_step_shards() */
} job;

static ls_status shard_through(small_net *n, int step, int shard, bool is_last, ls_ddp_step *result)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_status st = loss_of(n, step, shard, &x, &y, &loss);

    if (st == LS_OK && is_last)
        st = ls_ddp_backward(n->ddp, n->tape, loss, rows_of(step, shard), result);
    else if (st == LS_OK)
        st = ls_ddp_accumulate(n->ddp, n->tape, loss, rows_of(step, shard));
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

/* A step of ls_ddp_step_shards(). */
typedef struct shard_step {
    small_net *net;
    int step;
    ls_tensor *x[SHARDS_TOP];
    ls_tensor *y[SHARDS_TOP];
} shard_step;

static ls_status compute_shard(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    shard_step *s = arg;

    LS_TRY(rows_at(s->net, s->step, shard, &s->x[shard], &s->y[shard]));
    *loss = loss_on(s->net, tape, s->step, shard, s->x[shard], s->y[shard]);
    *rows = rows_of(s->step, shard);
    return LS_OK;
}

static ls_status step_shards(small_net *n, int step, ls_shard_fn fn, ls_ddp_step *result)
{
    shard_step s = {.net = n, .step = step};
    ls_status st = ls_ddp_step_shards(n->ddp, fn, &s, result);

    for (int i = 0; i < SHARDS_TOP; i++) {
        ls_tensor_destroy(s.x[i]);
        ls_tensor_destroy(s.y[i]);
    }
    return st;
}

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

static ls_status train(small_net *n, ls_comm *comm, const job *j)
{
    double total;
    int first;
    int count;

    LS_TRY(ls_shard_range(j->shards, ls_comm_rank(comm), ls_comm_size(comm), &first, &count));
    for (int step = 0; step < STEPS; step++) {
        ls_ddp_step result = {.weight = 0};
        uint64_t hash;

        total = 0;
        for (int s = 0; s < j->shards; s++)
            total += rows_of(step, s);
        LS_TRY(ls_ddp_sync_buffers(n->ddp));
        if (j->is_one_call)
            LS_TRY(step_shards(n, step, compute_shard, &result));
        for (int s = first; s < first + count && !j->is_one_call; s++)
            LS_TRY(shard_through(n, step, s, s == first + count - 1, &result));
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
    LS_TRY(net_open(&n));
    st = small_net_join(&n, comm, &j->options, 0.1);
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

        LS_TRY(loss_of(n, 0, s, &x, &y, &loss));
        ls_model_zero_grad(n->model);
        LS_TRY(ls_backward(n->tape, loss, are_sums ? rows_of(0, s) : 1));
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
        *rows = rows_of(0, first);
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
        rows += rows_of(0, s);
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
    LS_TRY(net_open(&n));
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

/* --- misuse --- */

static ls_status refused(ls_comm *comm, small_net *n, ls_ddp_options options, ls_status expected,
                         const char *part)
{
    options.size = sizeof(options);
    LS_CHECK(ls_ddp_create(comm, n->model, &options, &n->ddp) == expected);
    LS_CHECK(strstr(ls_last_error(), part) != NULL);
    return LS_OK;
}

static ls_status body_options(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    small_net n;
    int first;
    int count;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n));
    LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 1}, LS_EINVAL, "1 shards on 2 ranks"));
    if (is_stream_device())
        LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 4, .hook = LS_DDP_HOOK_BF16},
                       LS_EUNSUPPORTED, "--compress"));
    LS_TRY(refused(comm, &n,
                   (ls_ddp_options){.shards = 2, .sync_batch_norm = 1, .batch_norm_group = comm},
                   LS_EUNSUPPORTED, "batch_norm_group"));
    LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 4, .no_buffer_broadcast = 1},
                   LS_EUNSUPPORTED, "no_buffer_broadcast"));
    LS_CHECK(ls_shard_range(5, 2, 3, &first, &count) == LS_OK && first == 4 && count == 1);
    LS_CHECK(ls_shard_range(2, 0, 3, &first, &count) == LS_EINVAL);
    LS_CHECK(ls_shard_range(2, 2, 2, &first, &count) == LS_EINVAL);
    LS_CHECK(ls_shard_range(2, 0, 2, NULL, &count) == LS_EINVAL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void options_that_depend_on_the_ranks_are_refused(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_options}));
}

/* What rank 0 of 1 does wrong in a step of 3 shards. */
enum { NO_SYNC, TOO_FEW, TOO_MANY };

static ls_status misuse(small_net *n, int what)
{
    ls_ddp_step result;

    if (what != NO_SYNC)
        LS_TRY(ls_ddp_sync_buffers(n->ddp));
    LS_TRY(shard_through(n, 0, 0, false, NULL));
    if (what == TOO_MANY)
        LS_TRY(shard_through(n, 0, 1, false, NULL));
    return shard_through(n, 0, 2, what == TOO_FEW, &result);
}

static ls_status body_misuse(const ls_test_rank *self, void *arg)
{
    static const char *const parts[] = {
        "ls_ddp_sync_buffers", "has computed 1 of its shards 0 to 2", "shard 2 is the last one"};
    const ls_ddp_options options = {.size = sizeof(options), .shards = 3};
    const int what = *(const int *)arg;
    ls_comm *comm;
    small_net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_CHECK(misuse(&n, what) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), parts[what]) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void calls_out_of_turn_fail(void **state)
{
    (void)state;
    for (int what = NO_SYNC; what <= TOO_MANY; what++)
        assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = body_misuse, .arg = &what}));
}

/* --- failures --- */

static ls_status body_loss(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .shards = 8};
    ls_ddp_step result;
    ls_comm *comm;
    small_net n;
    int first;
    int count;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_TRY(ls_shard_range(8, self->rank, self->size, &first, &count));
    LS_TRY(ls_barrier(comm, NULL)); // all have joined
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    for (int s = first; s < first + count - 1; s++)
        LS_TRY(shard_through(&n, 0, s, false, NULL));
    if (self->rank == 1)
        ls_comm_abort(comm, "the test ends rank 1");
    else
        LS_CHECK(shard_through(&n, 0, first + count - 1, true, &result) != LS_OK);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void loss_of_a_rank_ends_the_exchange(void **state)
{
    (void)state;
    if (is_stream_device())
        skip();
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_loss}));
}

/* What is wrong with a step of 4 shards on 2 ranks: of shard 1, which rank 0 has. */
enum { IN_TURN, WITHOUT_A_NORM, WITHOUT_DATA, WITH_A_WRONG_SHAPE, BELOW_0_ROWS, TWICE };

static ls_status compute_without_a_norm(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                        int64_t *rows)
{
    shard_step *s = arg;

    if (shard != 1)
        return compute_shard(arg, shard, tape, loss, rows);
    LS_TRY(rows_at(s->net, s->step, shard, &s->x[shard], &s->y[shard]));
    *loss =
        ls_cross_entropy(tape, ls_forward(tape, s->net->layers[FIRST], s->x[shard]), s->y[shard]);
    *rows = rows_of(s->step, shard);
    return LS_OK;
}

static ls_status compute_without_data(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                      int64_t *rows)
{
    if (shard == 1)
        return ls_set_error(LS_EIO, "the data of shard 1 are gone");
    return compute_shard(arg, shard, tape, loss, rows);
}

static ls_status compute_wrong_shape(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                     int64_t *rows)
{
    shard_step *s = arg;

    LS_TRY(compute_shard(arg, shard, tape, loss, rows));
    if (shard == 1)
        *loss = ls_forward(tape, s->net->layers[SECOND], s->x[shard]);
    return LS_OK;
}

static ls_status compute_below_0_rows(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                      int64_t *rows)
{
    LS_TRY(compute_shard(arg, shard, tape, loss, rows));
    *rows = shard == 1 ? -1 : *rows;
    return LS_OK;
}

static ls_status wrong_step(small_net *n, int first, int what, ls_ddp_step *result)
{
    static const ls_shard_fn fns[] = {
        [WITHOUT_A_NORM] = compute_without_a_norm,
        [WITHOUT_DATA] = compute_without_data,
        [WITH_A_WRONG_SHAPE] = compute_wrong_shape,
        [BELOW_0_ROWS] = compute_below_0_rows,
    };

    if (what == IN_TURN)
        return shard_through(n, 0, first, false, NULL);
    if (what != TWICE)
        return step_shards(n, 0, fns[what], result);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return step_shards(n, 0, compute_shard, result);
}

static ls_status body_wrong_step(const ls_test_rank *self, void *arg)
{
    static const struct {
        ls_status of_rank_0;
        const char *part;
    } expected[] = {
        [IN_TURN] = {LS_EUNSUPPORTED, "ls_ddp_step_shards()"},
        [WITHOUT_A_NORM] = {LS_EINVAL, "have computed different batch norms"},
        [WITHOUT_DATA] = {LS_EIO, "the data of shard 1 are gone"},
        [WITH_A_WRONG_SHAPE] = {LS_EINVAL, "linear"},
        [BELOW_0_ROWS] = {LS_EINVAL, "rows is -1"},
        [TWICE] = {LS_EINVAL, "after ls_ddp_begin()"},
    };
    const ls_ddp_options options = {.size = sizeof(options), .shards = 4, .sync_batch_norm = 1};
    const int what = *(const int *)arg;
    ls_ddp_step result;
    ls_comm *comm;
    small_net n;
    ls_status st;
    int first;
    int count;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_TRY(ls_shard_range(4, self->rank, self->size, &first, &count));
    LS_TRY(ls_barrier(comm, NULL));  // all have joined
    st = ls_ddp_sync_buffers(n.ddp); // the other rank may be ahead, and have aborted
    if (st == LS_OK)
        st = wrong_step(&n, first, what, &result);
    if (what == IN_TURN || (what != TWICE && self->rank == 0)) // else the other's may come first
        LS_CHECK(st == expected[what].of_rank_0);
    LS_CHECK(st != LS_OK && strstr(ls_last_error(), expected[what].part) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_wrong_shard_ends_the_step_of_all(void **state)
{
    (void)state;
    for (int what = IN_TURN; what <= TWICE; what++)
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_wrong_step, .arg = &what}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(small_buckets_and_means_over_shards_keep_the_bits),
        cmocka_unit_test(hooks_round_at_the_same_places_on_any_number_of_ranks),
        cmocka_unit_test(a_step_in_one_call_has_the_bits_of_several),
        cmocka_unit_test(synchronized_batch_norms_have_the_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(backends_give_the_same_bits),
        cmocka_unit_test(gradients_are_the_tree_over_shards),
        cmocka_unit_test(options_that_depend_on_the_ranks_are_refused),
        cmocka_unit_test(calls_out_of_turn_fail),
        cmocka_unit_test(loss_of_a_rank_ends_the_exchange),
        cmocka_unit_test(a_wrong_shard_ends_the_step_of_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
