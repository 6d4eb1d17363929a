/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split.c - parses NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK by the rules of nccl-tests, for
 * measure.c. Pure.
 */
#include "cli/bench/case.h"

#include "base/status.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* "7", "0x7" or "0b111", in base 16 without a prefix too where `base` says so. */
static bool read_number(const char *text, int base, int *out)
{
    char *end;
    long value;

    text += strspn(text, " ");
    if (base == 0 && strncasecmp(text, "0b", 2) == 0) {
        base = 2;
        text += 2;
    }
    value = strtol(text, &end, base);
    *out = (int)value;
    return end != text && *end == '\0' && value >= 0 && value <= INT32_MAX;
}

/* Behind the operator, by its word or its sign; NULL: another one. */
static const char *behind(const char *text, const char *word, char sign)
{
    if (*text == sign)
        return text + 1;
    return strncasecmp(text, word, strlen(word)) == 0 ? text + strlen(word) : NULL;
}

ls_status bench_split_color(const char *split, const char *mask, int rank, int *out)
{
    const char *number;
    int value;

    if (mask != NULL) {
        if (!read_number(mask, 16, &value))
            return ls_fail(LS_EINVAL,
                           "NCCL_TESTS_SPLIT_MASK: \"%.40s\" is not a hexadecimal number", mask);
        *out = rank & value;
        return LS_OK;
    }
    if ((number = behind(split, "AND", '&')) != NULL && read_number(number, 0, &value))
        *out = rank & value;
    else if ((number = behind(split, "OR", '|')) != NULL && read_number(number, 0, &value))
        *out = rank | value;
    else if ((number = behind(split, "MOD", '%')) != NULL && read_number(number, 0, &value) &&
             value)
        *out = rank % value;
    else if ((number = behind(split, "DIV", '/')) != NULL && read_number(number, 0, &value) &&
             value)
        *out = rank / value;
    else
        return ls_fail(LS_EINVAL,
                       "NCCL_TESTS_SPLIT: \"%.40s\" is not AND, OR, MOD or DIV with a number",
                       split);
    return LS_OK;
}
