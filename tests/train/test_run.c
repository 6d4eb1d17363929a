/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process: learning, stopping, saving and resuming. Several ranks are tests/ddp's and the examples' business.
 */
#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "base/file.h"
#include "base/alloc.h"
#include "base/json.h"
#include "train/small_set.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WEIGHTS = SMALL_CLASSES * SMALL_SIDE * SMALL_SIDE };

static char dir[64];

typedef struct result {
    ls_status status;
    ls_run_state state;
    float weights[WEIGHTS];
} result;

static ls_tensor *forward(void *layer, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, layer, ls_flatten(tape, x));
}

static ls_train_flags standard_flags(void)
{
    return (ls_train_flags){.epochs = 3,
                            .batch_size = 16,
                            .lr = 0.2,
                            .momentum = 0.9,
                            .data = dir,
                            .device = "cpu_ref",
                            .schedule = "cosine"};
}

static const char *path_in(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* Trains a linear classifier; raises SIGTERM before step `stop_at` (0: never). */
static ls_status train(ls_run *run, int64_t stop_at, result *r)
{
    ls_dataset *set;
    ls_batch batch;
    ls_layer *fc = ls_nn_linear(ls_run_model(run), "fc", SMALL_SIDE * SMALL_SIDE, SMALL_CLASSES, 0);
    int n;

    LS_TRY(ls_dataset_open_mnist(dir, "train", &set));
    LS_TRY(ls_run_train_on_take(run, set));
    LS_TRY(ls_dataset_open_mnist(dir, "t10k", &set));
    LS_TRY(ls_run_test_on_take(run, set));
    LS_TRY(ls_run_start(run, forward, fc));
    while (ls_run_next(run, &batch)) {
        ls_run_get_state(run, &r->state);
        if (stop_at > 0 && r->state.step + 1 == stop_at)
            raise(SIGTERM);
        ls_run_step(run, ls_cross_entropy(ls_run_tape(run), forward(fc, ls_run_tape(run), batch.x),
                                          batch.y));
    }
    ls_run_get_state(run, &r->state);
    return ls_tensor_read(ls_model_parameters(ls_run_model(run), &n)[0].tensor, r->weights,
                          WEIGHTS);
}

static result run_with(const ls_train_flags *flags, int64_t stop_at)
{
    result r;
    ls_run *run = NULL;

    memset(&r, 0, sizeof(r));
    r.status = ls_run_open(flags, &run);
    if (r.status == LS_OK)
        r.status = train(run, stop_at, &r);
    r.status = ls_run_close(run, r.status);
    return r;
}

static void a_linear_classifier_learns_the_small_set(void **state)
{
    const ls_train_flags flags = standard_flags();
    const result r = run_with(&flags, 0);

    (void)state;
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 3 * ((SMALL_TRAIN + 15) / 16));
    assert_true(r.state.accuracy > 0.95);
}

static void the_same_seed_gives_the_same_bits(void **state)
{
    const ls_train_flags flags = standard_flags();
    const result a = run_with(&flags, 0);
    const result b = run_with(&flags, 0);

    (void)state;
    assert_int_equal(a.status, LS_OK);
    assert_memory_equal(a.weights, b.weights, sizeof(a.weights));
}

/* Stopped by a signal in the middle of an epoch, then resumed: as if nothing had happened. */
static void resuming_gives_the_bits_of_an_undisturbed_run(void **state)
{
    ls_train_flags flags = standard_flags();
    const result whole = run_with(&flags, 0);

    (void)state;
    for (int64_t stop_at = 1; stop_at <= 31; stop_at += 10) {
        flags = standard_flags();
        flags.save = path_in("w.safetensors");
        result part = run_with(&flags, stop_at);
        assert_int_equal(part.status, LS_OK);
        assert_int_equal(part.state.step, stop_at);
        assert_true(part.state.stopping);
        flags.resume = "";
        part = run_with(&flags, 0);
        assert_int_equal(part.status, LS_OK);
        assert_int_equal(part.state.step, whole.state.step);
        assert_memory_equal(whole.weights, part.weights, sizeof(whole.weights));
    }
}

static void saved_weights_start_another_run(void **state)
{
    ls_train_flags flags = standard_flags();
    result first;
    result second;

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

static void the_step_limit_stops_a_run(void **state)
{
    ls_train_flags flags = standard_flags();
    result r;

    (void)state;
    flags.steps = 7;
    r = run_with(&flags, 0);
    assert_int_equal(r.status, LS_OK);
    assert_int_equal(r.state.step, 7);
}

static void metrics_are_json_lines_with_all_members(void **state)
{
    ls_train_flags flags = standard_flags();
    char *text;
    size_t bytes;
    int n_lines = 0;
    int n_accuracies = 0;

    (void)state;
    flags.metrics = path_in("m.jsonl");
    assert_int_equal(run_with(&flags, 0).status, LS_OK);
    assert_int_equal(file_read(flags.metrics, 1 << 20, &text, &bytes), LS_OK);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_value *v;
        assert_int_equal(json_parse(line, (size_t)(end - line), "metrics", &v), LS_OK);
        assert_true(json_as_int(json_get(v, "epoch"), -1) >= 0);
        assert_true(json_as_int(json_get(v, "step"), -1) > 0);
        assert_true(json_as_real(json_get(v, "loss"), -1) >= 0);
        assert_true(json_as_real(json_get(v, "lr"), -1) >= 0);
        assert_true(json_as_real(json_get(v, "samples_per_s"), -1) > 0);
        n_accuracies += json_get(v, "accuracy") != NULL;
        n_lines++;
        json_free(v);
    }
    assert_int_equal(n_accuracies, 3);
    assert_int_equal(n_lines, 3 + 3 * ((SMALL_TRAIN + 15) / 16) / 20);
    ls_free(text);
}

static void a_checkpoint_of_another_model_is_refused_whole(void **state)
{
    ls_train_flags flags = standard_flags();
    const ls_named other = {.name = "fc.weight", .bytes = dir, .n_bytes = 8};
    result r;

    (void)state;
    assert_int_equal(ls_checkpoint_save(path_in("other.safetensors"), &other, 1, NULL, 0), LS_OK);
    flags.init = path_in("other.safetensors");
    r = run_with(&flags, 0);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(ls_last_error(), "fc.weight"));
    assert_non_null(strstr(ls_last_error(), "fc.bias"));
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

static int make_set(void **state)
{
    (void)state;
    small_set_make(dir, sizeof(dir));
    return 0;
}

static int remove_set(void **state)
{
    (void)state;
    small_set_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_classifier_learns_the_small_set),
        cmocka_unit_test(the_same_seed_gives_the_same_bits),
        cmocka_unit_test(resuming_gives_the_bits_of_an_undisturbed_run),
        cmocka_unit_test(saved_weights_start_another_run),
        cmocka_unit_test(the_step_limit_stops_a_run),
        cmocka_unit_test(metrics_are_json_lines_with_all_members),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused_whole),
        cmocka_unit_test(resuming_needs_something_to_resume),
    };
    return cmocka_run_group_tests(tests, make_set, remove_set);
}
