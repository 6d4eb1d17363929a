/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_layout.c - derives the columns of a batch from the fields of a data set. No batch of a
 * layout has a size that overflows. loader.c makes one for each loader.
 */
#include "data/loader/batch_layout.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <string.h>

/* The most bytes of a field in a batch, so that sums over fields do not overflow. */
#define MAX_COLUMN_BYTES ((size_t)1 << 48)

static ls_status add_field(batch_layout *l, int field)
{
    const ls_field *f = &l->set->fields[field];
    batch_column *c = &l->columns[l->n_columns++];
    const unsigned char zeros[sizeof(c->padding)] = {0};
    double element = 0; // aligned for any type

    *c = (batch_column){.type = f->type,
                        .n_dims = f->n_dims,
                        .first_length = dataset_first_length(l->set, field),
                        .element_bytes = ls_dtype_size(f->type)};
    memcpy(c->dims, f->dims, sizeof(c->dims));
    LS_TRY(ls_context(tensor_encode(f->padding, f->type, &element), "padding of field \"%s\"",
                      f->name));
    memcpy(c->padding, &element, sizeof(element));
    c->is_zero_padded = memcmp(c->padding, zeros, sizeof(zeros)) == 0;
    return LS_OK;
}

static void add_lengths(batch_layout *l, int field)
{
    l->lengths_of[field] = -1;
    if (l->columns[field].first_length < 0)
        return;
    l->lengths_of[field] = l->n_columns;
    l->columns[l->n_columns++] = (batch_column){.type = LS_I64,
                                                .first_length = l->columns[field].first_length,
                                                .element_bytes = sizeof(int64_t)};
}

void batch_sample_dims(const batch_column *c, const int64_t *lengths, int64_t *out)
{
    int length = c->first_length;

    for (int i = 0; i < c->n_dims; i++)
        out[i] = c->dims[i] < 0 ? lengths[length++] : c->dims[i];
}

void batch_column_dims(const batch_column *c, const batch_shape *shape, int64_t *out)
{
    out[0] = (int64_t)shape->rows;
    batch_sample_dims(c, shape->longest, out + 1);
}

size_t batch_row_bytes(const batch_column *c, const int64_t *longest)
{
    int64_t dims[LS_MAX_DIMS - 1];
    size_t bytes = c->element_bytes;

    batch_sample_dims(c, longest, dims);
    for (int i = 0; i < c->n_dims; i++)
        bytes *= (size_t)dims[i];
    return bytes;
}

/* A dimension of 0 counts as 1, so that no batch with other sizes overflows either. */
static ls_status check_column(const batch_layout *l, int field, size_t rows)
{
    const batch_column *c = &l->columns[field];
    int64_t dims[LS_MAX_DIMS - 1];
    size_t bytes = c->element_bytes;
    bool fits = ls_mul_size(bytes, rows, &bytes) == LS_OK;

    batch_sample_dims(c, l->longest, dims);
    for (int i = 0; i < c->n_dims; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): they are set
        fits = fits && ls_mul_size(bytes, dims[i] > 0 ? (size_t)dims[i] : 1, &bytes) == LS_OK;
    if (fits && bytes <= MAX_COLUMN_BYTES)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "field \"%s\": a batch of %zu rows with the longest samples exceeds 2^48 bytes",
                   l->set->fields[field].name, rows);
}

static void find_longest(batch_layout *l)
{
    const ls_dataset *d = l->set;

    for (int k = 0; k < d->n_lengths; k++) {
        for (size_t i = 0; i < d->count; i++) {
            const int64_t length = d->lengths[(size_t)k * d->count + i];

            if (length > l->longest[k])
                l->longest[k] = length;
        }
    }
}

ls_status batch_layout_make(const ls_dataset *set, bool as_bytes, size_t rows, batch_layout *out)
{
    *out = (batch_layout){.set = set, .has_pixels = as_bytes && set->images != NULL};
    for (int i = 0; i < set->n_fields; i++)
        LS_TRY(add_field(out, i));
    for (int i = 0; i < set->n_fields; i++)
        add_lengths(out, i);
    if (out->has_pixels) {
        out->columns[0].type = LS_U8;
        out->columns[0].element_bytes = 1;
    }
    find_longest(out);
    for (int i = 0; i < set->n_fields; i++)
        LS_TRY(check_column(out, i, rows));
    return LS_OK;
}
