/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.h - arrays of unsigned bytes in idx files, gzipped or plain.
 *
 * data/formats/: one file for each format of data sets, called through <lockstep/data.h>.
 */
#ifndef LS_DATA_FORMATS_IDX_H
#define LS_DATA_FORMATS_IDX_H

#include "base/status.h"

#define IDX_MAX_DIMS 4

typedef struct idx_array {
    int n_dims;
    int64_t dims[IDX_MAX_DIMS];
    uint8_t *data; /* all elements, row-major; freed with ls_free() */
    size_t bytes;
} idx_array;

/* Reads a file with min_dims to max_dims dimensions. Memory grows with the content that was read,
 * not with what the header claims. */
LS_MUST_USE ls_status idx_read(const char *path, int min_dims, int max_dims, idx_array *out);

#endif
