/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fields.c - see fields.h. No sample of checked fields has a size that overflows. dataset_own.c
 * calls it.
 */
#include "data/fields.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <string.h>

#define MAX_NAME 63
/* The most bytes of a field in a sample, so that sums over fields do not overflow. */
#define MAX_FIELD_BYTES ((size_t)1 << 40)

int field_count_lengths(const ls_field *f)
{
    int n = 0;

    for (int i = 0; i < f->n_dims; i++)
        n += f->dims[i] < 0;
    return n;
}

int fields_count_lengths(const ls_field *fields, int n)
{
    int n_lengths = 0;

    for (int i = 0; i < n; i++)
        n_lengths += field_count_lengths(&fields[i]);
    return n_lengths;
}

/* --- checks --- */

/* The bytes of a field in a sample. A dimension of 0 counts as 1, as padding may lengthen it. */
static ls_status check_bytes(const ls_field *f, const int64_t *lengths)
{
    size_t bytes = ls_dtype_size(f->type);
    int length = 0;

    for (int i = 0; i < f->n_dims; i++) {
        const int64_t dim = f->dims[i] < 0 ? lengths[length++] : f->dims[i];

        if (dim < 0)
            return ls_fail(LS_EINVAL, "dimension %d is %lld, below 0", i, (long long)dim);
        if (ls_mul_size(bytes, dim > 0 ? (size_t)dim : 1, &bytes) != LS_OK ||
            bytes > MAX_FIELD_BYTES)
            return ls_fail(LS_EINVAL, "a sample exceeds 2^40 bytes at dimension %d, which is %lld",
                           i, (long long)dim);
    }
    return LS_OK;
}

static ls_status check_field(const ls_field *f)
{
    const int64_t ones[LS_MAX_DIMS - 1] = {1, 1, 1, 1, 1};
    double element;

    if (ls_dtype_size(f->type) == 0)
        return ls_fail(LS_EINVAL, "%d is not an ls_dtype", (int)f->type);
    if (f->n_dims < 0 || f->n_dims > LS_MAX_DIMS - 1)
        return ls_fail(LS_EINVAL, "%d dimensions; 0 to %d are supported", f->n_dims,
                       LS_MAX_DIMS - 1);
    for (int i = 0; i < f->n_dims; i++) {
        if (f->dims[i] < -1)
            return ls_fail(LS_EINVAL, "dimension %d is %lld; give -1 for a length", i,
                           (long long)f->dims[i]);
    }
    LS_TRY(check_bytes(f, ones));
    return ls_context(tensor_encode(f->padding, f->type, &element), "padding");
}

static ls_status check_name(const ls_field *fields, int at)
{
    const char *name = fields[at].name;
    const size_t length = name != NULL ? strlen(name) : 0;

    if (length == 0 || length > MAX_NAME)
        return ls_fail(LS_EINVAL, "data set: the name of field %d has %zu bytes, not 1 to %d", at,
                       length, MAX_NAME);
    for (int i = 0; i < at; i++) {
        if (text_equal(fields[i].name, name))
            return ls_fail(LS_EINVAL, "data set: two fields have the name \"%s\"", name);
    }
    return LS_OK;
}

static ls_status check_fields(const ls_field *fields, int n)
{
    if (fields == NULL || n < 1 || n > LS_MAX_FIELDS)
        return ls_fail(LS_EINVAL, "data set: %d fields; 1 to %d are supported",
                       fields == NULL ? 0 : n, LS_MAX_FIELDS);
    for (int i = 0; i < n; i++) {
        LS_TRY(check_name(fields, i));
        LS_TRY(ls_context(check_field(&fields[i]), "data set: field \"%s\"", fields[i].name));
    }
    return LS_OK;
}

ls_status fields_check_lengths(const ls_field *fields, int n, size_t index, const int64_t *lengths)
{
    for (int i = 0; i < n; i++) {
        LS_TRY(ls_context(check_bytes(&fields[i], lengths), "data set: field \"%s\" of sample %zu",
                          fields[i].name, index));
        lengths += field_count_lengths(&fields[i]);
    }
    return LS_OK;
}

/* --- copies --- */

ls_status fields_copy(const ls_field *fields, int n, ls_field **out)
{
    ls_field *copy;

    LS_TRY(check_fields(fields, n));
    LS_TRY(LS_NEW(&copy, (size_t)n, "for %d fields of a data set", n));
    for (int i = 0; i < n; i++) {
        copy[i] = fields[i];
        copy[i].name = ls_strdup(fields[i].name);
        if (copy[i].name == NULL) {
            fields_free(copy, i);
            return ls_fail(LS_ENOMEM, "no memory for %d fields of a data set", n);
        }
    }
    *out = copy;
    return LS_OK;
}

void fields_free(ls_field *fields, int n)
{
    for (int i = 0; fields != NULL && i < n; i++) {
        char *name = (char *)(uintptr_t)fields[i].name; // made by fields_copy()

        ls_free(name);
    }
    ls_free(fields);
}

int fields_find(const ls_field *fields, int n, const char *name)
{
    text_buf names = {0};

    for (int i = 0; i < n; i++) {
        if (text_equal(fields[i].name, name))
            return i;
    }
    for (int i = 0; i < n; i++)
        text_append(&names, "%s%s", i == 0 ? "" : ", ", fields[i].name);
    ls_fail(LS_EINVAL, "the data has no field \"%s\"; its fields are %s", name, text_str(&names));
    text_free(&names);
    return -1;
}
