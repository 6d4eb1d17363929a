/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_device.c - opening the CUDA device, its memory and its errors, over host memory. */
#include "tensor/cuda/cuda_testing.h"

#include "base/module.h"

#include <lockstep/autograd.h>
#include <lockstep/nn_ops.h>
#include <lockstep/ops.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", ls_last_error(), text);
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value == NULL ? unsetenv(name) : setenv(name, value, 1), 0);
}

static ls_status open_named(const char *name, ls_device **out)
{
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options), .name = name},
                          out);
}

/* Neither opening nor the check in a child process succeeds; both have this text. */
static void assert_refused(const char *name, ls_status status, const char *text)
{
    ls_device *device = NULL;

    assert_status(status, open_named(name, &device));
    assert_error(text);
    assert_status(status, device_check(&(ls_device_options){.name = name}));
    assert_error(text);
    assert_error("available here: cpu (the default)");
}

/* --- opening --- */

static void the_error_names_why_no_card_can_be_used(void **state)
{
    gpu_host *gpu = cudahost_reset();

    LS_UNUSED(state);
    gpu->versions.driver = 0;
    assert_refused("cudahost", LS_EUNSUPPORTED,
                   "no CUDA device: no driver (libcuda.so.1 not found); install NVIDIA's driver");
    gpu->versions.driver = 12020;
    assert_refused("cudahost", LS_EUNSUPPORTED,
                   "the driver supports CUDA 12.2, this build of Lockstep needs CUDA 13.0");
    gpu = cudahost_reset();
    gpu->n_devices = 0;
    assert_refused("cudahost", LS_EUNSUPPORTED, "the driver sees no card; see nvidia-smi");
    gpu = cudahost_reset();
    gpu->versions.dnn = 90800;
    assert_refused("cudahost", LS_EUNSUPPORTED,
                   "cuDNN 9.8 is installed, this build of Lockstep needs 9.19 or a newer 9.x");
    gpu->versions.dnn = 100000;
    assert_refused("cudahost", LS_EUNSUPPORTED, "cuDNN 10.0 is installed");
    gpu->versions.dnn = 92100;
    gpu->versions.dnn_runtime = 12090;
    assert_refused("cudahost", LS_EUNSUPPORTED,
                   "the cuDNN 9.21 that is installed is for CUDA 12, this build of Lockstep for "
                   "CUDA 13");
    gpu = cudahost_reset();
    gpu->major = 6;
    gpu->minor = 1;
    assert_refused("cudahost", LS_EUNSUPPORTED,
                   "(host memory) is an sm_61, this build of Lockstep needs at least sm_80");
    (void)cudahost_reset();
}

static void the_rank_on_the_machine_chooses_the_card(void **state)
{
    ls_device_options shared = {.size = sizeof(shared), .name = "cudahost", .share_gpu = 1};
    ls_device *device;

    LS_UNUSED(state);
    (void)cudahost_reset();
    set("LOCAL_RANK", "1");
    device = open_cudahost("cudahost");
    assert_string_equal(device->accel->name, "cudahost:1");
    assert_status(LS_OK, ls_device_close(device));
    device = open_cudahost("cudahost:0");
    assert_string_equal(device->accel->name, "cudahost:0");
    assert_status(LS_OK, ls_device_close(device));
    set("LOCAL_RANK", "3");
    set("CUDA_VISIBLE_DEVICES", "4,5");
    assert_refused("cudahost", LS_EINVAL,
                   "LOCAL_RANK 3, but 2 CUDA devices are visible (CUDA_VISIBLE_DEVICES: 4,5): "
                   "start at most 2 ranks on this machine; or use --share-gpu");
    assert_status(LS_OK, device_check(&shared));
    assert_status(LS_OK, ls_device_open(&shared, &device));
    assert_string_equal(device->accel->name, "cudahost:1");
    assert_status(LS_OK, ls_device_close(device));
    set("CUDA_VISIBLE_DEVICES", NULL);
    set("LOCAL_RANK", NULL);
    assert_refused("cudahost:2", LS_EINVAL,
                   "device cudahost:2: 2 CUDA devices are visible, numbered from 0");
}

static void auto_takes_a_card_where_one_can_be_used(void **state)
{
    gpu_host *gpu = cudahost_reset();
    char folder[] = "/tmp/lockstep-auto-XXXXXX";
    char link[300];
    ls_device *device;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    assert_true(snprintf(link, sizeof(link), "%s/liblockstep_cuda.so", folder) > 0);
    assert_int_equal(symlink(cudahost_path(), link), 0);
    set("LOCKSTEP_MODULE_DIR", folder);
    device = open_cudahost("auto");
    assert_string_equal(ls_device_name(device), "cudahost");
    assert_status(LS_OK, ls_device_close(device));
    gpu->versions.driver = 0;
    device = open_cudahost("auto");
    assert_null(device->accel);
    assert_status(LS_OK, ls_device_close(device));
    (void)cudahost_reset();
    set("LOCAL_RANK", "2"); // a mistake is no reason for the processor
    assert_status(LS_EINVAL, open_named("auto", &device));
    set("LOCAL_RANK", NULL);
    set("LOCKSTEP_MODULE_DIR", NULL);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void settings_are_in_the_fingerprint(void **state)
{
    ls_device *device;

    LS_UNUSED(state);
    (void)cudahost_reset();
    set("LOCKSTEP_TF32", "none");
    set("LOCKSTEP_DETERMINISTIC", "1");
    device = open_cudahost("cudahost");
    assert_non_null(strstr(ls_device_fingerprint(device), "tf32 none deterministic"));
    assert_status(LS_OK, ls_device_close(device));
    set("LOCKSTEP_TF32", "some");
    assert_status(LS_EINVAL, open_named("cudahost", &device));
    assert_error("LOCKSTEP_TF32: \"some\" is not one of none|convolutions|all");
    set("LOCKSTEP_TF32", NULL);
    set("LOCKSTEP_DETERMINISTIC", NULL);
}

/* Of this machine, whatever it has: the module loads without a driver. */
static void the_real_module_opens_a_card_or_says_why_not(void **state)
{
    LS_UNUSED(state);
    if (module_find("cuda") != LS_OK)
        skip();
    if (device_check(&(ls_device_options){.name = "cuda"}) == LS_OK)
        return;
    assert_error("no CUDA device");
    assert_error("available here: cpu (the default)");
}

/* --- memory --- */

static void a_tensor_of_the_device_is_written_and_read(void **state)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    const float values[3] = {1, -2, 3};
    float got[3] = {0};
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_string_equal(ls_device_fingerprint(device),
                        "cudahost:0 host memory sm_90 cuda 13.0 driver 13.0 cudnn 9.19 "
                        "tf32 convolutions");
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, (int64_t[]){3}, &t));
    assert_status(LS_OK, ls_tensor_write(t, values, 3));
    assert_status(LS_OK, ls_tensor_read(t, got, 3));
    assert_memory_equal(got, values, sizeof(values));
    assert_ptr_equal(accel_of(tensor_elements(t)), device->accel);
    assert_null(accel_of(got));
    ls_tensor_destroy(t);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(gpu->used_bytes, 0);
    assert_int_equal(gpu->n_streams, 0);
    assert_int_equal(gpu->n_events, 0);
    assert_int_equal(gpu->n_pinned, 0);
}

static ls_tensor *bytes_of(ls_device *device, int64_t n)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(device, LS_I8, 1, &n, &t));
    return t;
}

static void the_error_of_a_full_card_names_what_holds_its_memory(void **state)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    const size_t of_device = gpu->used_bytes;
    const int64_t n = 512 << 10;
    ls_tensor *parameter;
    ls_tensor *value = unplaced_of(device, LS_I8, 1, (int64_t[]){256 << 10});
    ls_tensor *none = NULL;
    void *library;

    LS_UNUSED(state);
    gpu->total_bytes = (size_t)1 << 20;
    ls_tensor_destroy(bytes_of(device, 640 << 10)); // the pool keeps the block
    parameter = bytes_of(device, n);                // and frees it for this one
    assert_status(LS_OK, tensor_place(value, NULL, 0));
    library = accel_alloc(device->accel, (128 << 10) - of_device);
    assert_non_null(library);
    assert_status(LS_ENOMEM, ls_tensor_create(device, LS_I8, 1, &n, &none));
    assert_error("out of memory on cudahost:0: 512 KiB more needed, 128 KiB of 1 MiB free; "
                 "in use: 512 KiB by parameters, gradients and optimizer state, 256 KiB by "
                 "activations, 128 KiB by libraries, communication and other processes. Lower "
                 "--batch-size");
    accel_free(device->accel, library);
    ls_tensor_destroy(value);
    none = bytes_of(device, n / 2); // nothing is lost
    ls_tensor_destroy(none);
    ls_tensor_destroy(parameter);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(gpu->used_bytes, 0);
}

static void memory_beside_tensors_may_take_what_the_pool_keeps(void **state)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    void *block = NULL;

    LS_UNUSED(state);
    gpu->total_bytes = (size_t)1 << 20;
    ls_tensor_destroy(bytes_of(device, 640 << 10));
    assert_status(LS_OK, device_alloc(device, 768 << 10, &block));
    accel_free(device->accel, block);
    assert_status(LS_ENOMEM, device_alloc(device, 2 << 20, &block));
    assert_error("out of memory on cudahost:0: 2 MiB more needed");
    assert_status(LS_OK, ls_device_close(device));
}

static void a_lost_card_is_the_error_of_every_tensor(void **state)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *t = bytes_of(device, 16);
    ls_tensor *none = NULL;
    int8_t got[16];

    LS_UNUSED(state);
    gpu->lose_at = 1;
    assert_status(LS_ESYSTEM, ls_tensor_read(t, got, 16));
    assert_error("cudahost:0 (host memory, PCI 10000000:00:00.0) can no longer be used");
    assert_status(LS_ESYSTEM, ls_tensor_create(device, LS_I8, 1, (int64_t[]){999}, &none));
    assert_error("can no longer be used");
    ls_tensor_destroy(t);
    assert_status(LS_OK, ls_device_close(device));
    (void)cudahost_reset();
}

static void usage_counts_launches_and_the_memory_of_the_card(void **state)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *x = NULL;
    ls_tensor *y;
    device_usage before;
    device_usage after;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, (int64_t[]){100}, &x));
    y = unplaced_of(device, LS_F32, 1, (int64_t[]){100});
    assert_status(LS_OK, device_get_usage(device, &before));
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    gpu->busy_percent = 87;
    assert_status(LS_OK, device_get_usage(device, &after));
    assert_int_equal(after.n_launches, before.n_launches + 1);
    assert_int_equal(after.used_bytes, gpu->used_bytes);
    assert_int_equal(after.total_bytes, gpu->total_bytes);
    assert_int_equal(after.busy_percent, 87);
    destroy_all((ls_tensor *[]){x, y}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

/* Neither double sums nor anything else of the gradient's size. */
static void the_gradient_of_an_equal_shape_needs_only_its_own_memory(void **state)
{
    const int64_t dims[2] = {512, 512};
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *dy = random_tensor(device, LS_F32, 2, dims, 3);
    ls_tensor *a = random_tensor(device, LS_F32, 2, dims, 5);
    ls_tensor *db = unplaced_of(device, LS_F32, 2, dims);
    const size_t before = gpu->used_bytes;

    LS_UNUSED(state);
    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_REDUCE,
                                                       .attrs = {.binary = BINARY_MUL, .scale = 1},
                                                       .n_in = 3,
                                                       .n_out = 1,
                                                       .in = {dy, NULL, a},
                                                       .out = {db}}));
    assert_true(gpu->used_bytes - before <= 2 * tensor_bytes(db));
    for (size_t i = 0; i < 512; i++)
        assert_true(element_of(db, i) ==
                    (double)((float)element_of(dy, i) * (float)element_of(a, i)));
    destroy_all((ls_tensor *[]){dy, a, db}, 3);
    assert_status(LS_OK, ls_device_close(device));
}

/* Backward finds in the result where the ReLU has cut, so the result must not change before. */
static void a_result_that_backward_reads_must_not_be_overwritten(void **state)
{
    const int64_t dims[] = {4, 8, 3, 3};
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *x = random_tensor(device, LS_F32, 4, dims, 1);
    ls_tensor *c[4];
    ls_tape *tape;
    ls_tensor *y;
    ls_tensor *loss;

    LS_UNUSED(state);
    for (int i = 0; i < 4; i++)
        c[i] = random_tensor(device, LS_F32, 1, &dims[1], (uint64_t)i + 2);
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_require_grad(c[0]));
    y = ls_bn_relu(tape, x, c[0], c[1], c[2], c[3], NULL);
    loss = ls_sum(tape, y, NULL, 0, 0);
    assert_status(LS_OK, ls_tape_status(tape));
    assert_status(LS_OK, ls_tensor_fill(y, 1));
    assert_status(LS_EINVAL, ls_backward(tape, loss, 1));
    assert_error("was overwritten after forward by ls_tensor_write()");
    ls_tape_destroy(tape);
    destroy_all(c, 4);
    ls_tensor_destroy(x);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_names_why_no_card_can_be_used),
        cmocka_unit_test(the_rank_on_the_machine_chooses_the_card),
        cmocka_unit_test(auto_takes_a_card_where_one_can_be_used),
        cmocka_unit_test(settings_are_in_the_fingerprint),
        cmocka_unit_test(the_real_module_opens_a_card_or_says_why_not),
        cmocka_unit_test(a_tensor_of_the_device_is_written_and_read),
        cmocka_unit_test(the_error_of_a_full_card_names_what_holds_its_memory),
        cmocka_unit_test(the_gradient_of_an_equal_shape_needs_only_its_own_memory),
        cmocka_unit_test(a_result_that_backward_reads_must_not_be_overwritten),
        cmocka_unit_test(usage_counts_launches_and_the_memory_of_the_card),
        cmocka_unit_test(memory_beside_tensors_may_take_what_the_pool_keeps),
        cmocka_unit_test(a_lost_card_is_the_error_of_every_tensor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
