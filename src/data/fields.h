/* SPDX-License-Identifier: Apache-2.0 */
/* fields.h - checks the fields that a program gives for its own data, and copies them. */
#ifndef LS_DATA_FIELDS_H
#define LS_DATA_FIELDS_H

#include <lockstep/data.h>

#include "base/status.h"

/* *out: a copy with names of its own, for fields_free(). LS_EINVAL names the invalid field. */
LS_MUST_USE ls_status fields_copy(const ls_field *fields, int n, ls_field **out);
void fields_free(ls_field *fields, int n);

/* Dimensions that are -1, of one field and of all. */
int field_count_lengths(const ls_field *f);
int fields_count_lengths(const ls_field *fields, int n);

/* Checks the lengths of sample `index`: at least 0, and no field too large for memory. LS_EINVAL
 * names field and sample. */
LS_MUST_USE ls_status fields_check_lengths(const ls_field *fields, int n, size_t index,
                                           const int64_t *lengths);

/* The field with this name; -1, with an error text that lists the names: there is none. */
int fields_find(const ls_field *fields, int n, const char *name);

#endif
