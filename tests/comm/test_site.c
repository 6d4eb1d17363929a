/* SPDX-License-Identifier: Apache-2.0 */
/* test_site.c - call sites inside a shared library and outside of it. */
#include "base/unit.h"
#include "comm/site_module.h"

static void a_site_inside_the_library_is_the_public_function(void **state)
{
    LS_UNUSED(state);
    assert_string_equal(site_of_public_function(), "site_of_public_function");
}

static void a_site_inside_the_library_is_never_an_address(void **state)
{
    LS_UNUSED(state);
    assert_string_equal(site_of_hidden_function(), "Lockstep");
}

static void a_site_in_the_program_has_an_offset(void **state)
{
    LS_UNUSED(state);
    assert_non_null(
        strstr(site_of((const void *)(uintptr_t)&a_site_in_the_program_has_an_offset), "+0x"));
    assert_non_null(strstr(site_of((const void *)(uintptr_t)1), "?+0x1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_site_inside_the_library_is_the_public_function),
        cmocka_unit_test(a_site_inside_the_library_is_never_an_address),
        cmocka_unit_test(a_site_in_the_program_has_an_offset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
