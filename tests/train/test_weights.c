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

static void weights_of_a_wrapped_model_load_without_its_prefix(void **state)
{
    enum { N = SMALL_CLASSES * SMALL_SIDE * SMALL_SIDE };
    float weight[N];
    float bias[SMALL_CLASSES] = {0};
    const int64_t dims[2] = {SMALL_CLASSES, SMALL_SIDE * SMALL_SIDE};
    ls_train_flags flags = small_flags(small_dir);
    ls_device *device;
    ls_named items[2] = {{.name = "module.fc.weight"}, {.name = "module.fc.bias"}};
    small_result r;

    (void)state;
    for (int i = 0; i < N; i++)
        weight[i] = (float)i;
    assert_int_equal(ls_device_open(NULL, &device), LS_OK);
    assert_int_equal(ls_tensor_wrap(device, LS_F32, 2, dims, weight, &items[0].tensor), LS_OK);
    assert_int_equal(ls_tensor_wrap(device, LS_F32, 1, dims, bias, &items[1].tensor), LS_OK);
    assert_int_equal(ls_checkpoint_save(path_in("ddp.safetensors"), items, 2, NULL, 0), LS_OK);
    ls_tensor_destroy(items[0].tensor);
    ls_tensor_destroy(items[1].tensor);
    ls_device_close(device);
    flags.init = path_in("ddp.safetensors");
    flags.epochs = 0;
    r = run_with(&flags);
    assert_int_equal(r.status, LS_OK);
    assert_memory_equal(r.weights, weight, sizeof(weight));
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
        cmocka_unit_test(skip_mismatched_loads_matching_weights),
        cmocka_unit_test(weights_of_16_bits_are_saved_and_loaded),
    };
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
