/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_device.c - opening the CUDA device, its memory and its errors, over host memory. */
#include "tensor/cuda/cuda_testing.h"

#include <string.h>

static void a_tensor_of_the_device_is_written_and_read(void **state)
{
    gpu_host *gpu = reset_gpu_host();
    ls_device *device = open_cudahost("cudahost");
    const float values[3] = {1, -2, 3};
    float got[3] = {0};
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    assert_string_equal(ls_device_fingerprint(device),
                        "cudahost:0 host memory sm_90 cuda 13.0 driver 13.0 cudnn 9.19");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_of_the_device_is_written_and_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
