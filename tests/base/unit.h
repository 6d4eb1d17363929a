/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - cmocka with the headers that it needs, and the checks that all tests use. */
#ifndef TESTS_BASE_UNIT_H
#define TESTS_BASE_UNIT_H

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <string.h>

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        const ls_status got_status = (expr);                                                       \
        if (got_status != LS_OK)                                                                   \
            fail_msg("%s: %d: %s", #expr, (int)got_status, ls_last_error());                       \
    } while (0)

#define assert_status(expr, wanted) assert_int_equal((int)(expr), (int)(wanted))

/* The last error text contains `part`. */
#define assert_last_error(part)                                                                    \
    do {                                                                                           \
        if (strstr(ls_last_error(), part) == NULL)                                                 \
            fail_msg("\"%s\" does not contain \"%s\"", ls_last_error(), part);                     \
    } while (0)

/* How often `part` is in the text. */
static inline int count_parts(const char *text, const char *part)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

/* Sets a locale with a decimal comma; prints a message and returns 0 when none is installed. */
static inline int use_comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "es_ES.UTF-8"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        if (setlocale(LC_ALL, names[i]) != NULL)
            return 1;
    }
    print_message("no locale with a decimal comma is installed\n");
    return 0;
}

#endif
