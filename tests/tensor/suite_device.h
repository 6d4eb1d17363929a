/* SPDX-License-Identifier: Apache-2.0 */
/* suite_device.h - the device of suites that run on several: "cpu_ref", or that of LS_TEST_DEVICE,
 * which ctest sets for NAME_on_sim. */
#ifndef TESTS_TENSOR_SUITE_DEVICE_H
#define TESTS_TENSOR_SUITE_DEVICE_H

#include <stdlib.h>

static inline const char *test_device_name(void)
{
    const char *name = getenv("LS_TEST_DEVICE"); // NOLINT(concurrency-mt-unsafe): never set

    return name == NULL ? "cpu_ref" : name;
}

#endif
