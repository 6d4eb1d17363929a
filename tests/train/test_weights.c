/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights.c - tests loading weights of other networks and types, and of wrapped models. */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static char output[8192]; /* of a captured run */

static small_result run_with(const ls_train_flags *flags)
{
    return small_run(&(small_job){.flags = *flags});
}

static void a_checkpoint_of_another_network_is_refused(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_job job = {.flags = flags, .other_classes = 9};
    small_result r;

    (void)state;
    job.flags.save = path_in("other.safetensors");
    assert_int_equal(small_run(&job).status, LS_OK);
    flags.init = path_in("other.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "fc.weight is (9, 64) float32 in the file"));
    assert_non_null(strstr(r.error, "fc.bias"));
    flags.init = NULL;
    flags.resume = path_in("other.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "model.fc.weight"));
    assert_non_null(strstr(r.error, "optimizer.fc.bias"));
}

enum { N = SMALL_CLASSES * SMALL_SIDE * SMALL_SIDE };

/* A file with the weights 0, 1, 2, ... of fc, as float32 or float64. */
static void save_named(const char *path, const char *weight_name, const char *bias_name,
                       ls_dtype type)
{
    const int64_t dims[2] = {SMALL_CLASSES, SMALL_SIDE * SMALL_SIDE};
    ls_named items[2] = {{.name = weight_name}, {.name = bias_name}};
    float single[N];
    double real[N];
    ls_device *device;

    for (int i = 0; i < N; i++)
        real[i] = single[i] = (float)i;
    assert_ok(ls_device_open(NULL, &device));
    for (int i = 0; i < 2; i++)
        assert_ok(ls_tensor_wrap(device, type, 2 - i, dims,
                                 type == LS_F32 ? (void *)single : (void *)real, &items[i].tensor));
    assert_ok(ls_checkpoint_save(path, items, 2, NULL, 0));
    ls_tensor_destroy(items[0].tensor);
    ls_tensor_destroy(items[1].tensor);
    assert_ok(ls_device_close(device));
}

static void assert_loads(const char *path)
{
    static small_result r;
    ls_train_flags flags = small_flags(small_dir);

    flags.init = path;
    flags.epochs = 0;
    r = run_with(&flags);
    if (r.status != LS_OK)
        fail_msg("%s", r.error);
    for (int i = 0; i < N; i++)
        assert_true(r.weights[i] == (float)i);
}

static void weights_of_a_wrapped_model_load_without_its_prefix(void **state)
{
    static const char *const names[][2] = {
        {"fc.weight", "fc.bias"},
        {"module.fc.weight", "module.fc.bias"},
        {"_orig_mod.fc.weight", "_orig_mod.fc.bias"},
        {"module._orig_mod.fc.weight", "module._orig_mod.fc.bias"},
        {"_orig_mod.module.fc.weight", "_orig_mod.module.fc.bias"},
        {"model.fc.weight", "model.fc.bias"},
        {"network.model.fc.weight", "network.model.fc.bias"},
        {"fc._orig_mod.weight", "fc._orig_mod.bias"},
        {"model.fc.module.weight", "model.fc.module.bias"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        save_named(path_in("ddp.safetensors"), names[i][0], names[i][1], LS_F32);
        assert_loads(path_in("ddp.safetensors"));
    }
}

static void names_with_different_prefixes_are_refused(void **state)
{
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    save_named(path_in("two.safetensors"), "model.fc.weight", "ema.fc.bias", LS_F32);
    flags.init = path_in("two.safetensors");
    r = run_with(&flags);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "fc.weight (4, 64) float32 is missing"));
    assert_non_null(strstr(r.error, "ema.fc.bias (4) float32 is unexpected"));
}

static void longer_and_shorter_names_are_refused(void **state)
{
    static const char *const names[] = {"fc.weight.scale", "fc"};
    ls_train_flags flags = small_flags(small_dir);
    small_result r;

    (void)state;
    flags.init = path_in("other_names.safetensors");
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        save_named(flags.init, names[i], "fc.bias", LS_F32);
        r = run_with(&flags);
        assert_int_equal(r.status, LS_EFORMAT);
        assert_non_null(strstr(r.error, "fc.weight (4, 64) float32 is missing"));
    }
}

static void weights_of_float64_are_converted(void **state)
{
    (void)state;
    save_named(path_in("double.safetensors"), "fc.weight", "fc.bias", LS_F64);
    assert_loads(path_in("double.safetensors"));
}

static void skip_mismatched_loads_matching_weights(void **state)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = 1, .other_classes = 7};
    small_result r;

    (void)state;
    job.flags.save = path_in("seven.safetensors");
    job.flags.steps = 3;
    assert_int_equal(small_run(&job).status, LS_OK);
    job.other_classes = 0;
    job.flags.save = NULL;
    job.flags.init = path_in("seven.safetensors");
    r = small_run(&job);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "float32 here; --skip-mismatched loads the others"));
    job.flags.skip_mismatched = 1;
    r = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_int_equal(r.status, LS_OK);
    assert_non_null(strstr(output, "--skip-mismatched: 6 of 8 tensors loaded\n"));
    assert_non_null(strstr(output, "  2 with another shape or type: fc.weight is (7, "));
    assert_non_null(strstr(output, ", fc.bias is (7) float32 in the file and (4) float32 here\n"));
    assert_null(strstr(output, "missing in the file"));
    job.batch_norm = 0;
    job.flat_batch_norm = 1; // the name of one layer, other shapes
    r = small_run_captured(&job, STDOUT_FILENO, output, sizeof(output));
    assert_int_equal(r.status, LS_OK);
    assert_non_null(strstr(output, "--skip-mismatched: 1 of 7 tensors loaded\n"));
    assert_non_null(strstr(output, "  1 unexpected in the file: conv.weight\n"));
    job.flat_batch_norm = 0;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EFORMAT);
    assert_non_null(strstr(r.error, "no tensor of the file matches the model"));
    job.flags.init = NULL;
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--skip-mismatched needs --init"));
}

static void weights_of_16_bits_are_saved_and_loaded(void **state)
{
    static const char *const types[] = {"fp16", "bf16"};
    static small_result whole; // static: frames are bounded
    static small_result r;
    small_job job = {.flags = small_flags(small_dir)};
    off_t bytes;

    (void)state;
    job.flags.save = path_in("half.safetensors");
    whole = small_run(&job);
    bytes = size_of(path_in("half.safetensors"));
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        const float bound = i == 0 ? 0x1p-11F : 0x1p-8F;

        job.flags.save_dtype = types[i];
        job.stop_at = 7;
        assert_int_equal(small_run(&job).status, LS_OK);
        job.stop_at = 0;
        job.flags.resume = ""; // the state has kept all bits
        r = small_run(&job);
        assert_memory_equal(r.weights, whole.weights, sizeof(whole.weights));
        assert_in_range(size_of(path_in("half.safetensors")), bytes / 2, bytes * 3 / 4);
        job.flags.resume = NULL;
        job.flags.save = NULL;
        job.flags.evaluate = 1;
        job.flags.init = path_in("half.safetensors");
        r = small_run(&job);
        job.flags.save = job.flags.init;
        job.flags.init = NULL;
        job.flags.evaluate = 0;
        assert_int_equal(r.status, LS_OK);
        for (int k = 0; k < SMALL_WEIGHTS; k++)
            assert_true(fabsf(r.weights[k] - whole.weights[k]) <=
                        bound * fabsf(whole.weights[k]) + 1e-7F);
    }
    job.flags.save_dtype = "int8";
    r = small_run(&job);
    assert_int_equal(r.status, LS_EINVAL);
    assert_non_null(strstr(r.error, "--save-dtype int8: choose one of fp32, fp16, bf16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_of_another_network_is_refused),
        cmocka_unit_test(weights_of_a_wrapped_model_load_without_its_prefix),
        cmocka_unit_test(names_with_different_prefixes_are_refused),
        cmocka_unit_test(longer_and_shorter_names_are_refused),
        cmocka_unit_test(weights_of_float64_are_converted),
        cmocka_unit_test(skip_mismatched_loads_matching_weights),
        cmocka_unit_test(weights_of_16_bits_are_saved_and_loaded),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
