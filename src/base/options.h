/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - accepts options structs of callers that were compiled with an older or a newer
 * header.
 *
 * Every options struct begins with `size_t size`, its size in the caller's header. Fields are only
 * added at the end, and 0 means a field's default.
 */
#ifndef LS_BASE_OPTIONS_H
#define LS_BASE_OPTIONS_H

#include "base/status.h"

/* Copies the caller's struct `given` to `out`, which has `bytes` bytes. Fields that the caller's
 * header lacks become 0; NULL gives 0 in all. `out`'s own size becomes `bytes`. LS_EINVAL names the
 * struct when its size is not set, or when the caller has set a field that this library lacks;
 * `out` is then unchanged. The two must not overlap. */
LS_MUST_USE ls_status options_copy(const char *name, const void *given, size_t bytes, void *out);

/* options_copy() for structs of one type. */
#define OPTIONS_COPY(type, given, out)                                                             \
    options_copy(#type, (const type *)(given), sizeof(type), (type *)(out))

#endif
