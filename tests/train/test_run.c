/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run.c - tests learning, stopping and resuming in one process. test_run_ranks.c tests several
 * ranks.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/alloc.h"
#include "base/report/json.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SMALL_EPOCH = (SMALL_TRAIN + 15) / 16 }; /* steps */

static ls_train_flags standard_flags(void)
{
    return small_flags(small_dir);
}

static small_result run_with(const ls_train_flags *flags, int64_t stop_at)
{
    return small_run(&(small_job){.flags = *flags, .stop_at = stop_at});
}

static void a_linear_classifier_learns_the_small_set(void **state)
{
    const ls_train_flags flags = standard_flags();
    const small_result r = run_with(&flags, 0);

    (void)state;
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 3 * ((SMALL_TRAIN + 15) / 16));
    assert_true(r.state.accuracy > 0.95);
}

static void the_same_seed_gives_the_same_bits(void **state)
{
    const ls_train_flags flags = standard_flags();
    const small_result a = run_with(&flags, 0);
    const small_result b = run_with(&flags, 0);

    (void)state;
    assert_int_equal(a.status, LS_OK);
    assert_memory_equal(a.weights, b.weights, sizeof(a.weights));
}

/* Stopped by a signal in the middle of an epoch, then resumed: as if nothing had happened. */
static void resuming_gives_the_bits_of_an_uninterrupted_run(void **state)
{
    ls_train_flags flags = standard_flags();
    const small_result whole = run_with(&flags, 0);

    (void)state;
    for (int64_t stop_at = 1; stop_at <= 31; stop_at += 10) {
        flags = standard_flags();
        flags.save = path_in("w.safetensors");
        small_result part = run_with(&flags, stop_at);
        assert_int_equal(part.status, LS_OK);
        assert_int_equal(part.state.step, stop_at);
        assert_true(part.state.stopping);
        flags.resume = "";
        for (int again = 0; again < 2; again++) { // the second one finds nothing left to do
            part = run_with(&flags, 0);
            assert_int_equal(part.status, LS_OK);
            assert_int_equal(part.state.step, whole.state.step);
            assert_memory_equal(whole.weights, part.weights, sizeof(whole.weights));
            assert_true(part.state.accuracy == whole.state.accuracy);
            assert_true(part.state.best_accuracy == whole.state.best_accuracy);
        }
    }
}

static void saved_weights_start_another_run(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result first;
    small_result second;

    (void)state;
    flags.save = path_in("init.safetensors");
    first = run_with(&flags, 0);
    flags.save = NULL;
    flags.init = path_in("init.safetensors");
    flags.epochs = 0;
    second = run_with(&flags, 0);
    assert_int_equal(second.status, LS_OK);
    assert_memory_equal(first.weights, second.weights, sizeof(first.weights));
}

/* The default schedule first; the cosine of all epochs must not end where the run stops. */
static void a_run_that_stopped_at_its_steps_resumes_with_the_same_bits(void **state)
{
    static const char *const schedules[] = {NULL, "constant", "cosine", "step"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        ls_train_flags flags = standard_flags();
        small_result whole;

        flags.schedule = schedules[i];
        whole = run_with(&flags, 0);
        flags.save = path_in("steps.safetensors");
        flags.steps = 7 + 10 * i;
        assert_int_equal(run_with(&flags, 0).state.step, flags.steps);
        flags.steps = 0;
        flags.resume = "";
        assert_memory_equal(run_with(&flags, 0).weights, whole.weights, sizeof(whole.weights));
    }
}

static void too_many_steps_are_refused(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.epochs = INT64_C(1000000000000000);
    r = run_with(&flags, 0);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--epochs 1000000000000000: with 15 steps per epoch"));
    flags = standard_flags();
    flags.start_epoch = INT64_MAX / 2;
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--start-epoch"));
    flags = standard_flags();
    flags.schedule = "step";
    flags.lr_step_size = INT64_MAX / 3;
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--lr-step-size"));
}

static void an_empty_set_is_refused(void **state)
{
    static const char *const splits[] = {"train", "t10k"};
    static const char *const words[] = {"the training set in ", "the test set in "};
    char other[64];
    ls_train_flags flags;

    (void)state;
    for (int i = 0; i < 2; i++) {
        small_result r;

        small_set_make(other, sizeof(other));
        small_set_resize(other, splits[i], 0);
        flags = small_flags(other);
        r = run_with(&flags, 0);
        assert_int_equal(r.status, LS_EINVAL);
        assert_non_null(strstr(r.error, words[i]));
        assert_non_null(strstr(r.error, other));
        assert_non_null(strstr(r.error, "has no samples"));
        small_set_remove(other);
    }
}

/* 230 rows in batches of 229: the last batch has one. */
static void a_batch_of_one_row_fails_a_batch_norm_unless_it_is_dropped(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .flat_batch_norm = 1};
    small_result r;

    (void)state;
    job.flags.batch_size = SMALL_TRAIN - 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "one value per channel"));
    assert_non_null(strstr(r.error, "--drop-last"));
    job.flags.drop_last = 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 3);
    job.flags.batch_size = SMALL_TRAIN + 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--drop-last drops the only batch"));
}

/* --- how to learn --- */

static void check_rates(const small_result *r, const double *of_epoch)
{
    assert_int_equal(r->status, LS_OK);
    for (int i = 0; i < r->state.step; i++)
        assert_true(r->lr[i] == of_epoch[i / SMALL_EPOCH]);
}

static void steps_and_milestones_are_counted_in_epochs(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.schedule = "step";
    flags.lr = 0.5;
    flags.lr_step_size = 1;
    flags.lr_gamma = 0.5;
    r = run_with(&flags, 0);
    check_rates(&r, (double[]){0.5, 0.25, 0.125});
    flags.schedule = "multi-step";
    flags.lr_milestones = "2, 1";
    r = run_with(&flags, 0);
    check_rates(&r, (double[]){0.5, 0.25, 0.125});
    flags.lr_milestones = "2";
    r = run_with(&flags, 0);
    check_rates(&r, (double[]){0.5, 0.5, 0.25});
    flags.start_epoch = 1; // as if the first one had been
    r = run_with(&flags, 0);
    assert_int_equal(r.state.step, 3 * SMALL_EPOCH);
    assert_true(r.lr[SMALL_EPOCH] == 0.5 && r.lr[2 * SMALL_EPOCH] == 0.25);
}

static void a_warmup_precedes_the_schedule(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.lr_warmup_epochs = 1;
    flags.lr_warmup_factor = 0.1;
    flags.lr_min = 0.01;
    r = run_with(&flags, 0);
    assert_true(r.lr[0] > 0.0199 && r.lr[0] < 0.0201);
    for (int i = 1; i <= SMALL_EPOCH; i++)
        assert_true(r.lr[i] > r.lr[i - 1]);
    assert_true(r.lr[SMALL_EPOCH] == 0.2); // the first step of the cosine
    for (int i = SMALL_EPOCH + 1; i < 3 * SMALL_EPOCH; i++)
        assert_true(r.lr[i] < r.lr[i - 1] && r.lr[i] >= 0.01);
}

static void schedule_steps_are_the_length_of_a_cosine(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.schedule_steps = 10;
    flags.lr_min = 0.01;
    flags.steps = 20;
    r = run_with(&flags, 0);
    assert_int_equal(r.state.step, 20);
    for (int i = 1; i <= 10; i++)
        assert_true(r.lr[i] < r.lr[i - 1]);
    for (int i = 10; i < 20; i++)
        assert_true(r.lr[i] == 0.01);
    flags.schedule = "step";
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--schedule-steps needs --schedule cosine"));
}

static void every_optimizer_learns_and_resumes(void **state)
{
    static const char *const names[] = {"sgd", "adam", "adamw"};
    ls_train_flags flags;

    (void)state;
    for (int i = 0; i < 3; i++) {
        flags = standard_flags();
        flags.optimizer = names[i];
        flags.lr = i == 0 ? 0.2 : 0.01;
        flags.nesterov = i == 0;
        flags.weight_decay = 1e-3;
        flags.clip_grad_norm = 1;
        flags.label_smoothing = 0.1;
        const small_result whole = run_with(&flags, 0);
        assert_int_equal(whole.status, LS_OK);
        assert_true(whole.state.accuracy > 0.95);
        flags.save = path_in("opt.safetensors");
        assert_int_equal(run_with(&flags, 22).state.step, 22);
        flags.resume = "";
        assert_memory_equal(run_with(&flags, 0).weights, whole.weights, sizeof(whole.weights));
    }
}

static void clipping_bounds_what_a_step_changes(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result before;
    small_result after;
    double sum = 0;

    (void)state;
    flags.momentum = 0;
    flags.epochs = 0;
    before = run_with(&flags, 0);
    flags.epochs = 1;
    flags.steps = 1;
    flags.lr = 1;
    flags.clip_grad_norm = 1e-3;
    after = run_with(&flags, 0);
    for (int i = 0; i < SMALL_WEIGHTS; i++)
        sum += pow((double)after.weights[i] - (double)before.weights[i], 2);
    assert_true(sqrt(sum) > 1e-4 && sqrt(sum) < 1.01e-3);
}

static void steps_limits_a_run(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.steps = 7;
    r = run_with(&flags, 0);
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 7);
}

static void resuming_needs_something_to_resume(void **state)
{
    ls_train_flags flags = standard_flags();

    (void)state;
    flags.resume = "";
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    flags.resume = path_in("absent.safetensors");
    assert_int_equal(run_with(&flags, 0).status, LS_ENOTFOUND);
    assert_non_null(strstr(ls_last_error(), "absent"));
}

/* --- accumulation --- */

/* The largest difference of two runs' weights, of which the largest is about 1. */
static double distance(const small_result *a, const small_result *b)
{
    double most = 0;

    for (int i = 0; i < SMALL_WEIGHTS; i++)
        most = fmax(most, fabs((double)a->weights[i] - (double)b->weights[i]));
    return most;
}

/* 230 rows in batches of 6: a step has 4 of them, the last one of an epoch 3: 6, 6 and 2 rows. */
static void accumulated_batches_are_one_larger_batch(void **state)
{
    static const char *const optimizers[] = {"sgd", "adam"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ls_train_flags flags = standard_flags();
        small_result large;
        small_result parts;

        flags.optimizer = optimizers[i];
        flags.lr = i == 0 ? 0.2 : 0.01;
        flags.clip_grad_norm = 0.5;
        flags.batch_size = 24;
        large = run_with(&flags, 0);
        flags.batch_size = 6;
        flags.accumulate = 4;
        parts = run_with(&flags, 0);
        assert_int_equal(parts.status, LS_OK);
        assert_int_equal(large.state.step, 3 * 10);
        assert_int_equal(parts.state.step, 3 * 10);
        assert_memory_equal(parts.lr, large.lr, sizeof(large.lr));
        assert_true(fabs(parts.state.loss - large.state.loss) < 1e-6);
        assert_true(parts.state.top1 == large.state.top1);
        assert_true(distance(&parts, &large) < 1e-5);
        flags.accumulate = 1;
        parts = run_with(&flags, 0);
        assert_true(distance(&parts, &large) > 1e-2);
    }
}

/* A signal comes between the batches of a step, and so does the end of --steps. */
/* Weights in proportion to the rows are the mean over the rows; the last batches are fewer and one
 * is shorter. */
static void accumulated_batches_are_weighed(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result rows;
    small_result weighed;

    (void)state;
    job.flags.accumulate = 7;
    rows = small_run(&job);
    assert_int_equal(rows.status, LS_OK);
    job.weight = 3;
    weighed = small_run(&job);
    assert_int_equal(weighed.status, LS_OK);
    assert_true(weighed.state.step == rows.state.step);
    for (size_t i = 0; i < sizeof(rows.weights) / sizeof(rows.weights[0]); i++)
        assert_true(fabsf(weighed.weights[i] - rows.weights[i]) < 1e-5F);
}

static void a_run_that_accumulates_stops_and_resumes_between_steps(void **state)
{
    ls_train_flags flags = standard_flags();
    small_job job = {.dropout = 0.3};
    small_result whole;
    small_result part;

    (void)state;
    flags.batch_size = 6;
    flags.accumulate = 4;
    job.flags = flags;
    whole = small_run(&job);
    job.flags.save = path_in("acc.safetensors");
    job.stop_at = 13;
    part = small_run(&job);
    assert_int_equal(part.state.step, 13);
    job.stop_at = 0;
    job.flags.resume = "";
    job.flags.steps = 17;
    part = small_run(&job);
    assert_int_equal(part.state.step, 17);
    job.flags.steps = 0;
    part = small_run(&job);
    assert_int_equal(part.status, LS_OK);
    assert_int_equal(part.state.step, 30);
    assert_memory_equal(part.weights, whole.weights, sizeof(whole.weights));
}

/* Every --print-freq steps a line, with the mean of all batches since the last one. */
static void accumulation_leaves_no_rows_out_of_an_epoch(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    flags.batch_size = 6;
    flags.accumulate = 7; // 38 full batches and a short one: 5 steps and 4 batches
    flags.epochs = 1;
    r = run_with(&flags, 0);
    assert_int_equal(r.state.step, 6);
    flags.drop_last = 1; // 38 batches: 5 steps and 3 batches
    r = run_with(&flags, 0);
    assert_int_equal(r.state.step, 6);
    flags.accumulate = 100;
    r = run_with(&flags, 0);
    assert_int_equal(r.state.step, 1);
    flags.accumulate = -1;
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--accumulate -1"));
}

/* --- restarts --- */

static void set_job(const char *job, const char *generation, const char *restarts)
{
    const char *const names[] = {"LOCKSTEP_JOB", "LOCKSTEP_GENERATION",
                                 "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"};
    const char *const values[] = {generation != NULL ? job : NULL, generation, restarts, job};

    for (int i = 0; i < 4; i++)
        if (values[i] == NULL || unsetenv(names[i]) != 0 || setenv(names[i], values[i], 1) != 0)
            unsetenv(names[i]);
}

static small_result run_restarted(const ls_train_flags *flags, const char *job,
                                  const char *generation, const char *restarts)
{
    small_result r;

    set_job(job, generation, restarts);
    r = run_with(flags, 0);
    set_job(NULL, NULL, NULL);
    return r;
}

static int64_t stop_at(const ls_train_flags *flags, int64_t step)
{
    const small_result r = run_with(flags, step);

    assert_int_equal(r.status, LS_OK);
    return r.state.step;
}

/* Neither flags that say otherwise nor an older file matter to a job that has saved something. */
static void a_restarted_job_continues_from_its_saved_state(void **state)
{
    ls_train_flags flags = standard_flags();
    const small_result whole = run_with(&flags, 0);
    const char *const launchers[][3] = {{"1", "4", NULL}, {NULL, NULL, "1"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        small_result r;

        flags = standard_flags();
        flags.save = path_in("other.safetensors");
        (void)stop_at(&flags, 3);
        flags.save = path_in("job.safetensors");
        set_job("0123456789abcdef", launchers[i][0], i == 0 ? NULL : "0");
        assert_int_equal(stop_at(&flags, 19), 19);
        flags.resume = path_in("other.safetensors");
        r = run_restarted(&flags, "0123456789abcdef", launchers[i][1], launchers[i][2]);
        assert_int_equal(r.status, LS_OK);
        assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
        assert_true(r.lr[18] == 0 && r.lr[19] == whole.lr[19]);
    }
}

/* The files of another job are no progress of this one. */
static void a_restarted_job_without_a_state_starts_from_its_flags(void **state)
{
    ls_train_flags flags = standard_flags();
    const small_result whole = run_with(&flags, 0);
    small_result r;

    (void)state;
    flags.save = path_in("two.safetensors");
    set_job("0123456789abcdef", "1", NULL);
    assert_int_equal(stop_at(&flags, 19), 19);
    r = run_restarted(&flags, "fedcba9876543210", "2", NULL);
    assert_int_equal(r.status, LS_OK);
    assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
    assert_true(r.lr[0] == whole.lr[0]);
    flags.save = NULL;
    flags.resume = path_in("two.earlier.safetensors");
    r = run_with(&flags, 0);
    assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
    assert_true(r.lr[18] == 0 && r.lr[19] == whole.lr[19]);
}

static void resume_auto_continues_a_saved_run(void **state)
{
    ls_train_flags flags = standard_flags();
    const small_result whole = run_with(&flags, 0);
    static small_result r; // large

    (void)state;
    flags.resume = "auto";
    assert_int_equal(run_with(&flags, 0).status, LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "--resume needs a file, its own or that of --save"));
    flags.save = path_in("auto.safetensors");
    r = run_with(&flags, 19);
    assert_int_equal(r.status, LS_OK);
    assert_true(r.lr[0] == whole.lr[0]);
    r = run_with(&flags, 0);
    assert_int_equal(r.status, LS_OK);
    assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
    assert_true(r.lr[18] == 0 && r.lr[19] == whole.lr[19]);
}

static int64_t saved_step(const char *path)
{
    ls_checkpoint *file;
    int64_t step;

    if (ls_checkpoint_open(path, &file) != LS_OK)
        return -1;
    step = atoll(ls_checkpoint_meta(file, "step"));
    ls_checkpoint_close(file);
    return step;
}

static void a_state_that_no_run_goes_on_from_is_not_overwritten(void **state)
{
    ls_train_flags flags = standard_flags();
    char save[128];

    (void)state;
    snprintf(save, sizeof(save), "%s", path_in("k.safetensors"));
    flags.save = save;
    (void)stop_at(&flags, 22);
    assert_int_equal(saved_step(path_in("k.earlier.resume.safetensors")), -1);
    (void)stop_at(&flags, 7);
    assert_int_equal(saved_step(path_in("k.resume.safetensors")), 7);
    assert_int_equal(saved_step(path_in("k.earlier.resume.safetensors")), 22);
    assert_int_equal(access(path_in("k.earlier.safetensors"), F_OK), 0);
    assert_int_equal(access(path_in("k.earlier.best.safetensors"), F_OK), 0);
    (void)stop_at(&flags, 5);
    assert_int_equal(saved_step(path_in("k.resume.safetensors")), 5);
    assert_int_equal(saved_step(path_in("k.earlier.resume.safetensors")), 22);
    assert_int_equal(saved_step(path_in("k.earlier2.resume.safetensors")), 7);
    flags.resume = path_in("k.earlier.safetensors");
    (void)stop_at(&flags, 23);
    assert_int_equal(saved_step(path_in("k.resume.safetensors")), 23);
    assert_int_equal(saved_step(path_in("k.earlier.resume.safetensors")), 22);
    assert_int_equal(saved_step(path_in("k.earlier3.resume.safetensors")), 5);
    flags.resume = "";
    (void)stop_at(&flags, 24);
    assert_int_equal(saved_step(path_in("k.resume.safetensors")), 24);
    assert_int_equal(access(path_in("k.earlier4.safetensors"), F_OK), -1);
}

static void a_run_without_a_learning_rate_is_refused(void **state)
{
    small_job job = {.flags = small_flags(small_dir)};
    small_result r;

    (void)state;
    job.flags.lr = 0;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--lr is 0 or not given"));
    job.flags.evaluate = 1;
    r = small_run(&job);
    assert_int_equal(r.status, LS_OK);
}

/* --- --profile --- */

typedef struct profile_counts {
    int operators[3]; /* forward, backward, optimizer */
    int steps;
    int64_t first_step;
    int64_t last_step;
    int with_layers;
} profile_counts;

static int phase_index(const char *name)
{
    return strcmp(name, "forward") == 0 ? 0 : strcmp(name, "backward") == 0 ? 1 : 2;
}

static void count_operator(const json_value *args, profile_counts *out)
{
    const int64_t step = json_as_int(json_get(args, "step"), -1);

    out->operators[phase_index(json_as_string(json_get(args, "phase"), ""))]++;
    out->with_layers += json_get(args, "layer") != NULL;
    assert_true(json_as_real(json_get(args, "flops"), -1) >= 0);
    assert_true(json_as_real(json_get(args, "bytes"), -1) > 0);
    assert_true(step > 0);
    if (out->first_step == 0)
        out->first_step = step;
    assert_true(step >= out->last_step);
    out->last_step = step;
}

static profile_counts read_profile(const char *path)
{
    profile_counts out = {.steps = 0};
    json_value *root;
    const json_value *facts;
    char *text = text_of(path);

    assert_non_null(text);
    assert_int_equal(json_parse(text, strlen(text), "profile", &root), LS_OK);
    for (size_t i = 0; i < json_size(json_get(root, "traceEvents")); i++) {
        const json_value *e = json_at(json_get(root, "traceEvents"), i);
        const char *category = json_as_string(json_get(e, "cat"), "");

        assert_true(json_as_real(json_get(e, "ts"), 0) >= 0);
        if (strcmp(category, "operator") == 0)
            count_operator(json_get(e, "args"), &out);
        out.steps += strcmp(category, "step") == 0;
    }
    facts = json_get(root, "otherData");
    assert_true(json_as_real(json_get(facts, "ceiling_gflops_per_s"), 0) > 0);
    assert_true(json_as_real(json_get(facts, "ceiling_gb_per_s"), 0) > 0);
    assert_int_equal(json_as_int(json_get(facts, "operators_missing"), -1), 0);
    json_free(root);
    ls_free(text);
    return out;
}

/* A linear layer on images: reshape, linear, cross-entropy, and twice that backward. */
static void a_profile_has_the_operators_of_its_steps_and_changes_no_bits(void **state)
{
    ls_train_flags flags = standard_flags();
    small_result plain;
    small_result profiled;
    profile_counts p;

    (void)state;
    flags.steps = 4;
    plain = run_with(&flags, 0);
    flags.profile = "3:1000"; // ends with the run
    flags.profile_file = path_in("p");
    profiled = run_with(&flags, 0);
    assert_int_equal(profiled.status, LS_OK);
    assert_memory_equal(plain.weights, profiled.weights, sizeof(plain.weights));
    p = read_profile(path_in("p.rank0.json"));
    assert_int_equal(p.first_step, 3);
    assert_int_equal(p.last_step, 4);
    assert_int_equal(p.steps, 2);
    for (int i = 0; i < 3; i++)
        assert_true(p.operators[i] >= 2 && p.operators[i] % 2 == 0);
    assert_true(p.with_layers >= 4); // forward and backward of the layer
}

static void a_run_that_ends_before_its_profile_writes_none(void **state)
{
    ls_train_flags flags = standard_flags();

    (void)state;
    flags.steps = 2;
    flags.profile = "3:4";
    flags.profile_file = path_in("none");
    assert_int_equal(run_with(&flags, 0).status, LS_OK);
    assert_int_equal(size_of(path_in("none.rank0.json")), -1);
}

static void steps_that_are_no_range_are_refused(void **state)
{
    static const struct {
        const char *steps;
        const char *error;
    } wrong[] = {{"5", "give the first and the last step"},
                 {"0:3", "not a whole number from 1"},
                 {"4:3", "the last step comes before the first one"},
                 {"1:x", "not a whole number"},
                 {"", "give the first and the last step"}};
    ls_train_flags flags = standard_flags();
    small_result r;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        flags.profile = wrong[i].steps;
        r = run_with(&flags, 0);
        assert_int_equal(r.status, LS_EINVAL);
        assert_non_null(strstr(r.error, wrong[i].error));
    }
    flags.profile = "1:2";
    flags.profile_file = "/does/not/exist/p";
    r = run_with(&flags, 0);
    assert_true(r.status != LS_OK && strstr(r.error, "--profile: ") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_classifier_learns_the_small_set),
        cmocka_unit_test(the_same_seed_gives_the_same_bits),
        cmocka_unit_test(resuming_gives_the_bits_of_an_uninterrupted_run),
        cmocka_unit_test(saved_weights_start_another_run),
        cmocka_unit_test(a_run_that_stopped_at_its_steps_resumes_with_the_same_bits),
        cmocka_unit_test(too_many_steps_are_refused),
        cmocka_unit_test(an_empty_set_is_refused),
        cmocka_unit_test(a_batch_of_one_row_fails_a_batch_norm_unless_it_is_dropped),
        cmocka_unit_test(schedule_steps_are_the_length_of_a_cosine),
        cmocka_unit_test(steps_and_milestones_are_counted_in_epochs),
        cmocka_unit_test(a_warmup_precedes_the_schedule),
        cmocka_unit_test(every_optimizer_learns_and_resumes),
        cmocka_unit_test(clipping_bounds_what_a_step_changes),
        cmocka_unit_test(steps_limits_a_run),
        cmocka_unit_test(resuming_needs_something_to_resume),
        cmocka_unit_test(a_run_without_a_learning_rate_is_refused),
        cmocka_unit_test(accumulated_batches_are_one_larger_batch),
        cmocka_unit_test(accumulated_batches_are_weighed),
        cmocka_unit_test(a_run_that_accumulates_stops_and_resumes_between_steps),
        cmocka_unit_test(accumulation_leaves_no_rows_out_of_an_epoch),
        cmocka_unit_test(a_restarted_job_continues_from_its_saved_state),
        cmocka_unit_test(a_restarted_job_without_a_state_starts_from_its_flags),
        cmocka_unit_test(resume_auto_continues_a_saved_run),
        cmocka_unit_test(a_state_that_no_run_goes_on_from_is_not_overwritten),
        cmocka_unit_test(a_profile_has_the_operators_of_its_steps_and_changes_no_bits),
        cmocka_unit_test(a_run_that_ends_before_its_profile_writes_none),
        cmocka_unit_test(steps_that_are_no_range_are_refused),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
