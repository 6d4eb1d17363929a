/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broken.h - which broken samples of a data set a warning has named. The loader warns; a run shares
 * the names between its ranks.
 */
#ifndef LS_DATA_BROKEN_H
#define LS_DATA_BROKEN_H

#include <lockstep/data.h>

enum { DATASET_NAMED_SAMPLES = 20, DATASET_NAMED = DATASET_NAMED_SAMPLES + 1 };

typedef enum broken_naming {
    BROKEN_KNOWN, /* no warning */
    BROKEN_NAME,  /* a warning names the sample */
    BROKEN_COUNT  /* a warning says that further ones are only counted */
} broken_naming;

/* Which warning a broken sample gets: one for each of the first, then one for all others. Any
 * number of threads at once. */
broken_naming dataset_name_broken(const ls_dataset *d, size_t index);
/* What warnings have named, for another process that reads the same set, which takes it over. */
void dataset_get_named(const ls_dataset *d, int64_t out[DATASET_NAMED]);
void dataset_add_named(const ls_dataset *d, const int64_t named[DATASET_NAMED]);

#endif
