/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.c - see row.h. A sample is read where it stays if its elements are contiguous in the batch:
 * in fields of a fixed size and those that only the first dimension makes longer. Others are read
 * into memory of the thread and copied. Every byte of a row is written.
 */
#include "data/loader/row.h"

#include <string.h>

/* A sample's field and its place in the batch. */
typedef struct field_row {
    const batch_column *column;
    int64_t own[LS_MAX_DIMS - 1];
    int64_t padded[LS_MAX_DIMS - 1];
    char *row;
    size_t row_bytes;
    size_t own_bytes;
    bool is_contiguous;
} field_row;

static void *row_at(const batch_rows *to, int column, size_t row)
{
    return (char *)to->values[column] + row * to->row_bytes[column];
}

static void pad(const batch_column *c, char *dst, size_t bytes)
{
    if (c->is_zero_padded) {
        memset(dst, 0, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i += c->element_bytes)
        memcpy(dst + i, c->padding, c->element_bytes);
}

static field_row place_field(const batch_column *c, const batch_rows *to, int field, size_t row,
                             const int64_t *lengths)
{
    field_row f = {.column = c,
                   .row = row_at(to, field, row),
                   .row_bytes = to->row_bytes[field],
                   .own_bytes = c->element_bytes,
                   .is_contiguous = true};

    batch_sample_dims(c, lengths, f.own);
    batch_sample_dims(c, to->longest, f.padded);
    for (int i = 0; i < c->n_dims; i++) {
        f.own_bytes *= (size_t)f.own[i];
        f.is_contiguous = f.is_contiguous && (i == 0 || f.own[i] == f.padded[i]);
    }
    return f;
}

/* Copies the elements from dimension `dim` on; returns the end of what was read of src. */
// NOLINTNEXTLINE(misc-no-recursion): as deep as there are dimensions
static const char *copy_block(const field_row *f, int dim, const char *src, char *dst,
                              size_t dst_bytes)
{
    const size_t step = dst_bytes / (size_t)f->padded[dim];

    if (dim + 1 == f->column->n_dims) {
        const size_t bytes = (size_t)f->own[dim] * f->column->element_bytes;

        memcpy(dst, src, bytes);
        return src + bytes;
    }
    for (int64_t i = 0; i < f->own[dim]; i++)
        src = copy_block(f, dim + 1, src, dst + (size_t)i * step, step);
    return src;
}

static void finish_field(const field_row *f, const void *read)
{
    if (f->is_contiguous) {
        pad(f->column, f->row + f->own_bytes, f->row_bytes - f->own_bytes);
        return;
    }
    pad(f->column, f->row, f->row_bytes);
    if (f->own_bytes > 0)
        copy_block(f, 0, read, f->row, f->row_bytes);
}

static size_t scratch_bytes(const field_row *f)
{
    return f->is_contiguous ? 0 : (f->own_bytes + 63) / 64 * 64;
}

static ls_status read_padded(const batch_layout *l, const batch_rows *to, size_t row,
                             sample_call *call, row_reader *r)
{
    int64_t lengths[DATASET_MAX_LENGTHS];
    field_row fields[LS_MAX_FIELDS];
    void *values[LS_MAX_FIELDS];
    const int n = l->set->n_fields;
    size_t bytes = 0;

    dataset_lengths_of(l->set, call->index, lengths);
    for (int i = 0; i < n; i++) {
        fields[i] = place_field(&l->columns[i], to, i, row, lengths);
        bytes += scratch_bytes(&fields[i]);
    }
    LS_TRY(byte_buffer_reserve(&r->scratch, bytes));
    bytes = 0;
    for (int i = 0; i < n; i++) {
        values[i] = fields[i].is_contiguous ? fields[i].row : (char *)r->scratch.data + bytes;
        bytes += scratch_bytes(&fields[i]);
    }
    call->lengths = lengths;
    LS_TRY(l->set->ops->read(l->set, call, &r->sample, values));
    for (int i = 0; i < n; i++)
        finish_field(&fields[i], values[i]);
    return LS_OK;
}

ls_status row_read(const batch_layout *l, const batch_rows *to, size_t row, sample_call *call,
                   row_reader *r)
{
    void *values[LS_MAX_FIELDS];

    call->as_bytes = l->has_pixels;
    if (batch_layout_varies(l))
        return read_padded(l, to, row, call, r);
    for (int i = 0; i < l->set->n_fields; i++)
        values[i] = row_at(to, i, row);
    return l->set->ops->read(l->set, call, &r->sample, values);
}

void row_reader_free(row_reader *r)
{
    sample_reader_free(&r->sample);
    byte_buffer_free(&r->scratch);
}
