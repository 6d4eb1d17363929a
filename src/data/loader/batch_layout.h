/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_layout.h - the columns of a batch, which are the fields of a data set and their lengths,
 * and the memory that a batch of given sizes needs. The loader and device_batches.c use it.
 */
#ifndef LS_DATA_LOADER_BATCH_LAYOUT_H
#define LS_DATA_LOADER_BATCH_LAYOUT_H

#include "data/dataset.h"

#define BATCH_MAX_COLUMNS (2 * LS_MAX_FIELDS)

/* A field, or the first length of a field as int64. */
typedef struct batch_column {
    ls_dtype type;                 /* of the memory that threads write: LS_U8 for pixels as bytes */
    int n_dims;                    /* of a sample */
    int64_t dims[LS_MAX_DIMS - 1]; /* -1: a length */
    int first_length;              /* of the set: the column's first -1 or number; -1: none */
    size_t element_bytes;
    bool is_zero_padded;
    _Alignas(8) unsigned char padding[8]; /* one element, of any type */
} batch_column;

typedef struct batch_layout {
    const ls_dataset *set;
    bool has_pixels; /* column 0 has bytes, which the device normalizes */
    int n_columns;   /* the fields, then the lengths */
    batch_column columns[BATCH_MAX_COLUMNS];
    int lengths_of[LS_MAX_FIELDS];        /* the column with the lengths of the field; -1: none */
    int64_t longest[DATASET_MAX_LENGTHS]; /* of each length of the set, in all samples */
} batch_layout;

/* The sizes of a batch; longest: of each length of the set. */
typedef struct batch_shape {
    size_t rows;
    const int64_t *longest;
} batch_shape;

/* `as_bytes`: images are sent as bytes. LS_EINVAL names the field that a batch of `rows` rows with
 * the longest samples of the set could not hold. */
LS_MUST_USE ls_status batch_layout_make(const ls_dataset *set, bool as_bytes, size_t rows,
                                        batch_layout *out);

/* (rows, dims...) of a column; the number of its dimensions is c->n_dims + 1. */
void batch_column_dims(const batch_column *c, const batch_shape *shape, int64_t *out);

/* The dimensions of a sample with these lengths in a column. */
void batch_sample_dims(const batch_column *c, const int64_t *lengths, int64_t *out);

/* Bytes of one row; it does not overflow in a layout that was made. */
size_t batch_row_bytes(const batch_column *c, const int64_t *longest);

/* Whether samples differ in size. */
static inline bool batch_layout_varies(const batch_layout *l)
{
    return l->set->n_lengths > 0;
}

#endif
