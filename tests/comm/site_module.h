/* SPDX-License-Identifier: Apache-2.0 */
/* site_module.h - what the shared library of test_site.c exports. The texts live until the next
 * call. */
#ifndef TESTS_COMM_SITE_MODULE_H
#define TESTS_COMM_SITE_MODULE_H

#include <stdint.h>

#define SITE_EXPORT __attribute__((visibility("default")))

SITE_EXPORT const char *site_of(const void *address);
SITE_EXPORT const char *site_of_public_function(void);
SITE_EXPORT const char *site_of_hidden_function(void);

#endif
