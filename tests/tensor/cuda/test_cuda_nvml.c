/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_nvml.c - how busy a card is, with and without NVIDIA's management library. */
#include "tensor/devices/cuda/runtime/gpu.h"

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_card_that_is_not_found_has_no_number(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(gpu_busy_percent("ffff:ff:ff.f"), -1);
}

static void the_number_of_the_card_is_found_by_its_bus(void **state)
{
    LS_UNUSED(state);
    if (getenv("BUSY_NVML") == NULL)
        skip();
    assert_int_equal(gpu_busy_percent("0000:04:00.0"), 87);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_that_is_not_found_has_no_number),
        cmocka_unit_test(the_number_of_the_card_is_found_by_its_bus),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
