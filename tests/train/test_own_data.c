/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_own_data.c - tests runs over a program's own data with buckets by length: which samples each
 * rank trains on, exact resuming, and another number of ranks in the middle of an epoch.
 */
#include "base/unit.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"
#include "train/small_folder.h"

#include <lockstep/train.h>

#include <signal.h>
#include <stdbool.h>

enum { SAMPLES = 213, TEST_SAMPLES = 31, BATCH = 5, EPOCHS = 2, MOST_BATCHES = 256, WEIGHTS = 15 };

typedef struct job {
    ls_train_flags flags;
    ls_comm *comm;
    int64_t stop_at; /* raises SIGTERM before this step; 0: never */
    int no_buckets;
    const char *field; /* of ls_run_bucket_by_length() */
    int64_t broken;    /* the sample whose read fails; -1: none */
} job;

/* A batch that a rank has trained on. */
typedef struct visit {
    int64_t epoch;
    int64_t rows;
    int64_t longest;
    size_t samples[BATCH];
} visit;

typedef struct result {
    ls_status status;
    char error[512];
    int n;
    visit visits[MOST_BATCHES];
    float weights[WEIGHTS];
    int64_t n_tested; /* rows of the last evaluation on this rank */
    double nll;
    ls_run_state state;
} result;

static result *results; /* of each rank, shared */

/* --- the data --- */

static int64_t length_of(size_t sample)
{
    return (int64_t)(sample * 37 % 90);
}

static ls_status tell_length(void *arg, size_t index, int64_t *lengths)
{
    LS_UNUSED(arg);
    lengths[0] = length_of(index);
    return LS_OK;
}

/* The class is that of the point, which depends on the sample and, a little, on the epoch. */
static ls_status read_sample(void *arg, const ls_sample_request *r, void *const *values)
{
    const job *j = arg;
    float *point = values[0];

    for (int i = 0; i < 4; i++)
        point[i] = (float)((r->index * 13 + (size_t)i * 5) % 7) - 3 + (float)(r->seed % 8) / 64;
    *(int64_t *)values[1] = (int64_t)(r->index * 13 % 7 % 3);
    for (int64_t i = 0; i < r->lengths[0]; i++)
        ((int32_t *)values[2])[i] = (int32_t)r->index;
    if ((int64_t)r->index == j->broken)
        return ls_train_refuse("a test");
    return LS_OK;
}

static ls_status open_set(const job *j, size_t count, ls_dataset **out)
{
    static const ls_field fields[] = {
        {.name = "point", .type = LS_F32, .n_dims = 1, .dims = {4}},
        {.name = "class", .type = LS_I64},
        {.name = "tokens", .type = LS_I32, .n_dims = 1, .dims = {-1}, .padding = -1},
    };
    const ls_dataset_callbacks callbacks = {.size = sizeof(callbacks),
                                            .count = count,
                                            .fields = fields,
                                            .n_fields = LS_COUNT_OF(fields),
                                            .lengths = tell_length,
                                            .read = read_sample,
                                            .arg = (void *)(uintptr_t)j};

    return ls_dataset_create(&callbacks, out);
}

/* --- the program --- */

typedef struct program {
    const job *job;
    ls_layer *fc;
    result *result;
} program;

static ls_status test_batch(void *arg, ls_run *run, const ls_batch *batch)
{
    program *p = arg;
    ls_tensor *logits = ls_forward(ls_run_tape(run), p->fc, batch->x);

    p->result->n_tested += batch->rows;
    ls_run_add(run, "nll", ls_cross_entropy(ls_run_tape(run), logits, batch->y),
               (double)batch->rows);
    return LS_OK;
}

static ls_status start(ls_run *run, program *p)
{
    const job *j = p->job;
    ls_dataset *set;

    p->fc = ls_nn_linear(ls_run_model(run), "fc", 4, 3, 0);
    LS_TRY(open_set(j, SAMPLES, &set));
    LS_TRY(ls_run_train_on_take(run, set));
    LS_TRY(open_set(j, TEST_SAMPLES, &set));
    LS_TRY(ls_run_test_on_take(run, set));
    if (!j->no_buckets)
        LS_TRY(ls_run_bucket_by_length(run, j->field));
    if (j->comm != NULL)
        LS_TRY(ls_run_distribute(run, j->comm, NULL));
    LS_TRY(ls_run_declare(run, "nll"));
    LS_TRY(ls_run_evaluate_with(run, test_batch, p, "nll", 1));
    return ls_run_start(run, NULL, NULL);
}

static ls_status store_visit(result *r, const ls_batch *batch)
{
    const int64_t *lengths = ls_batch_host_lengths(batch, "tokens");
    visit *v = &r->visits[r->n++];

    if (lengths == NULL || r->n == MOST_BATCHES)
        return LS_EINVAL;
    *v = (visit){.epoch = r->state.epoch, .rows = batch->rows};
    for (int64_t i = 0; i < batch->rows; i++) {
        v->samples[i] = batch->indices[i];
        v->longest = lengths[i] > v->longest ? lengths[i] : v->longest;
    }
    return v->longest == ls_tensor_dim(ls_batch_field(batch, "tokens"), 1) ? LS_OK : LS_EINVAL;
}

static ls_status train(ls_run *run, program *p)
{
    result *r = p->result;
    ls_batch batch;

    LS_TRY(start(run, p));
    while (ls_run_next(run, &batch)) {
        ls_run_get_state(run, &r->state);
        r->n_tested = 0;
        if (batch.rows > 0)
            LS_TRY(store_visit(r, &batch));
        if (p->job->stop_at > 0 && r->state.step + 1 == p->job->stop_at)
            raise(SIGTERM);
        ls_run_step(run, ls_cross_entropy(ls_run_tape(run),
                                          ls_forward(ls_run_tape(run), p->fc, batch.x), batch.y));
    }
    ls_run_get_state(run, &r->state);
    r->nll = ls_run_value(run, "nll", 1);
    LS_TRY(ls_tensor_read(ls_layer_tensor(p->fc, "weight"), r->weights, 12));
    return ls_tensor_read(ls_layer_tensor(p->fc, "bias"), r->weights + 12, 3);
}

/* Adds to what the result has: the visits of a resumed run follow those before. */
static void run_here(const job *j, result *r)
{
    program p = {.job = j, .result = r};
    ls_run *run = NULL;

    r->status = ls_run_open(&j->flags, &run);
    if (r->status == LS_OK)
        r->status = train(run, &p);
    r->status = ls_run_close(run, r->status);
    if (r->status != LS_OK)
        strncpy(r->error, ls_last_error(), sizeof(r->error) - 1);
}

static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    job j = *(const job *)arg;

    LS_TRY(ls_test_init(self, &j.comm));
    run_here(&j, &results[self->rank]);
    ls_comm_destroy(j.comm);
    return LS_OK;
}

/* On n ranks; n == 0: in this process. */
static void run_on(int n, job *j)
{
    if (n == 0)
        run_here(j, &results[0]);
    else
        assert_true(ls_test_ranks(&(ls_test_job){.n = n, .body = rank_body, .arg = j}, NULL));
    for (int i = 0; i < n || i == 0; i++) {
        if (results[i].status != LS_OK)
            fail_msg("rank %d: %s", i, results[i].error);
    }
}

static job make_job(void)
{
    return (job){.flags = {.device = test_device_name(),
                           .epochs = EPOCHS,
                           .batch_size = BATCH,
                           .lr = 0.05,
                           .seed = 5,
                           .workers = 2},
                 .broken = -1};
}

static void clear_results(void)
{
    memset(results, 0, LS_TEST_RANKS_MAX * sizeof(*results));
}

/* How often ranks 0 ... n - 1 have trained on each sample in this epoch. */
static void add_visits(int n, int64_t epoch, int counts[SAMPLES])
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < results[i].n; k++) {
            const visit *v = &results[i].visits[k];

            for (int64_t row = 0; row < v->rows && v->epoch == epoch; row++)
                counts[v->samples[row]]++;
        }
    }
}

/* --- tests --- */

/* 213 samples on n ranks are padded to a multiple of n. */
static void ranks_train_on_each_sample_in_as_many_batches_of_similar_length(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    for (int n = 0; n <= 3; n++) {
        const int ranks = n > 0 ? n : 1;
        int64_t padded = 0;
        int64_t own = 0;

        clear_results();
        run_on(n, &j);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            int counts[SAMPLES] = {0};
            int sum = 0;

            add_visits(ranks, epoch, counts);
            for (int i = 0; i < SAMPLES; i++) {
                assert_true(counts[i] == 1 || counts[i] == 2);
                sum += counts[i];
                own += length_of((size_t)i);
            }
            assert_int_equal(sum, (SAMPLES + ranks - 1) / ranks * ranks);
        }
        for (int i = 0; i < ranks; i++) {
            assert_int_equal(results[i].n, results[0].n);
            assert_memory_equal(results[i].weights, results[0].weights, sizeof(results[0].weights));
            for (int k = 0; k < results[i].n; k++)
                padded += results[i].visits[k].longest * results[i].visits[k].rows;
        }
        assert_true(padded < own * 12 / 10); // without buckets two thirds more
    }
}

static void evaluations_with_buckets_equal_those_without(void **state)
{
    job j = make_job();
    double nll;

    LS_UNUSED(state);
    j.flags.lr = 1e-30; // so that the order of training does not matter
    j.flags.epochs = 1;
    clear_results();
    run_on(0, &j);
    nll = results[0].nll;
    assert_int_equal(results[0].n_tested, TEST_SAMPLES);
    j.no_buckets = 1;
    for (int n = 0; n <= 3; n++) {
        int64_t n_tested = 0;

        clear_results();
        run_on(n, &j);
        for (int i = 0; i < n || i == 0; i++)
            n_tested += results[i].n_tested;
        assert_int_equal(n_tested, TEST_SAMPLES);
        assert_true(results[0].nll - nll < 1e-6 && nll - results[0].nll < 1e-6);
    }
}

static void a_resumed_run_has_the_bits_of_an_uninterrupted_one(void **state)
{
    static result whole[2];
    job j = make_job();

    LS_UNUSED(state);
    for (int n = 0; n <= 2; n += 2) {
        const int ranks = n > 0 ? n : 1;

        j.flags.save = NULL;
        j.flags.resume = NULL;
        j.stop_at = 0;
        clear_results();
        run_on(n, &j);
        memcpy(whole, results, (size_t)ranks * sizeof(*whole));
        clear_results();
        j.flags.save = path_in("buckets.safetensors");
        j.stop_at = 9;
        run_on(n, &j);
        assert_true(results[0].state.stopping);
        j.stop_at = 0;
        j.flags.resume = "";
        run_on(n, &j);
        for (int i = 0; i < ranks; i++) {
            assert_int_equal(results[i].n, whole[i].n);
            assert_memory_equal(results[i].visits, whole[i].visits, sizeof(whole[i].visits));
            assert_memory_equal(results[i].weights, whole[i].weights, sizeof(whole[i].weights));
            assert_true(results[i].nll == whole[i].nll);
        }
    }
}

/* The rest of the epoch keeps the buckets that it has begun with. */
static void another_number_of_ranks_trains_on_the_rest_of_the_epoch(void **state)
{
    static const int numbers[][3] = {{2, 3, 1}, {3, 1, 2}, {1, 2, 3}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(numbers); i++) {
        int counts[SAMPLES] = {0};
        int sum = 0;
        job j = make_job();

        j.flags.save = path_in("rest.safetensors");
        j.flags.epochs = 1;
        for (int k = 0; k < 3; k++) {
            j.stop_at = k == 2 ? 0 : 4 * (k + 1);
            j.flags.resume = k == 0 ? NULL : "";
            clear_results();
            run_on(numbers[i][k], &j);
            add_visits(numbers[i][k], 0, counts);
        }
        for (int s = 0; s < SAMPLES; s++) {
            assert_true(counts[s] >= 1);
            sum += counts[s];
        }
        assert_true(sum < SAMPLES + numbers[i][2]); // the last ranks repeat some
    }
}

static void buckets_need_data_sets_and_a_length(void **state)
{
    job j = make_job();
    ls_run *run = NULL;

    LS_UNUSED(state);
    clear_results();
    assert_ok(ls_run_open(&j.flags, &run));
    assert_status(ls_run_bucket_by_length(run, NULL), LS_EINVAL);
    assert_last_error("after the data sets are given");
    assert_ok(ls_run_close(run, LS_OK));
    j.field = "point";
    run_here(&j, &results[0]);
    assert_string_equal(results[0].error,
                        "buckets of the training set: field \"point\" has a fixed size");
    j.field = "words";
    run_here(&j, &results[0]);
    assert_non_null(strstr(results[0].error, "its fields are point, class, tokens"));
}

static void other_buckets_within_an_epoch_are_refused(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    clear_results();
    j.flags.save = path_in("other.safetensors");
    j.stop_at = 3;
    run_on(0, &j);
    j.stop_at = 0;
    j.flags.resume = "";
    j.no_buckets = 1;
    run_here(&j, &results[0]);
    assert_status(results[0].status, LS_EINVAL);
    assert_non_null(strstr(results[0].error, "buckets by length yes, not no"));
}

static void a_failed_read_ends_the_run_with_the_sample(void **state)
{
    job j = make_job();

    LS_UNUSED(state);
    clear_results();
    j.broken = 77;
    run_here(&j, &results[0]);
    assert_status(results[0].status, LS_EINVAL);
    assert_string_equal(results[0].error, "data set: read of sample 77: a test");
}

static int make_all(void **state)
{
    results = ls_test_shared(LS_TEST_RANKS_MAX * sizeof(*results));
    return results == NULL ? -1 : small_dir_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_train_on_each_sample_in_as_many_batches_of_similar_length),
        cmocka_unit_test(evaluations_with_buckets_equal_those_without),
        cmocka_unit_test(a_resumed_run_has_the_bits_of_an_uninterrupted_one),
        cmocka_unit_test(another_number_of_ranks_trains_on_the_rest_of_the_epoch),
        cmocka_unit_test(buckets_need_data_sets_and_a_length),
        cmocka_unit_test(other_buckets_within_an_epoch_are_refused),
        cmocka_unit_test(a_failed_read_ends_the_run_with_the_sample),
    };

    return cmocka_run_group_tests(tests, make_all, small_dir_remove);
}
