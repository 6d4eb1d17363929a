/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - brings a caller's options struct to the size that this library knows. Every public
 * function with options calls it first.
 */
#include "base/options.h"

#include <string.h>

/* No options struct grows by more; a larger size means that the caller has not set it. */
#define MOST_UNKNOWN_BYTES 4096

static ls_status check_unknown(const char *name, const unsigned char *given, size_t given_bytes,
                               size_t bytes)
{
    for (size_t i = bytes; i < given_bytes; i++) {
        if (given[i] != 0)
            return ls_fail(LS_EINVAL,
                           "%s: a field behind its first %zu bytes is set, which this library "
                           "(%s) does not have: the program was built against a newer header",
                           name, bytes, ls_version());
    }
    return LS_OK;
}

ls_status options_copy(const char *name, const void *given, size_t bytes, void *out)
{
    size_t given_bytes = bytes;

    if (given != NULL) {
        memcpy(&given_bytes, given, sizeof(given_bytes));
        if (given_bytes < sizeof(given_bytes) || given_bytes > bytes + MOST_UNKNOWN_BYTES)
            return ls_fail(LS_EINVAL, "%s.size is %zu: it must be sizeof(%s)", name, given_bytes,
                           name);
        LS_TRY(check_unknown(name, given, given_bytes, bytes));
    }
    memset(out, 0, bytes);
    if (given != NULL)
        memcpy(out, given, given_bytes < bytes ? given_bytes : bytes);
    memcpy(out, &bytes, sizeof(bytes));
    return LS_OK;
}
