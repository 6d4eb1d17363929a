/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - options structs of callers that were built against an older or a newer header.
 *
 * Every options struct begins with `size_t size`, its size in the caller's header. Fields are only
 * ever added at the end, and 0 means a field's default.
 */
#ifndef LS_BASE_OPTIONS_H
#define LS_BASE_OPTIONS_H

#include "base/status.h"

/*
 * Copies the caller's struct `given` to `out`, which has `bytes` bytes. Fields that the caller's
 * header does not have are 0; NULL gives 0 in all. `out`'s own size is `bytes` afterwards.
 * LS_EINVAL names the struct when its size is not set, or when the caller has set a field that this
 * library does not have; `out` is then as it was. The two do not overlap.
 */
LS_MUST_USE ls_status options_copy(const char *name, const void *given, size_t bytes, void *out);

/* options_copy() to *out, a struct of the same type as *given. */
#define OPTIONS_COPY(type, given, out)                                                             \
    options_copy(#type, (const type *)(given), sizeof(type), (type *)(out))

#endif
