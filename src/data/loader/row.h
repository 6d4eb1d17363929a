/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row.h - reads a sample into a row of a batch: its fields, padded to the sizes of the batch. The
 * loader's threads call it.
 */
#ifndef LS_DATA_LOADER_ROW_H
#define LS_DATA_LOADER_ROW_H

#include "data/loader/batch_layout.h"
#include "data/sample.h"

/* Readers and memory of one thread. Zero-initialise. */
typedef struct row_reader {
    sample_reader sample;
    byte_buffer scratch; /* samples whose rows are not contiguous in a batch */
} row_reader;

/* The memory of a batch. */
typedef struct batch_rows {
    void **values;     /* of each column */
    size_t *row_bytes; /* of each column */
    int64_t *longest;  /* of each length */
} batch_rows;

LS_MUST_USE ls_status row_read(const batch_layout *l, const batch_rows *to, size_t row,
                               sample_call *call, row_reader *r);

void row_reader_free(row_reader *r);

#endif
