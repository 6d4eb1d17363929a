/* SPDX-License-Identifier: Apache-2.0 */
/* convert.h - writes a data set in another format, as test images without a download. */
#ifndef LS_DATA_CONVERT_H
#define LS_DATA_CONVERT_H

#include <lockstep/data.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct convert_options {
    int side;         /* height and width of the written images; 0: no resize */
    size_t per_class; /* only the first so many images of each class; 0: all */
    int jpeg_quality; /* folders: 1 to 100; 0: PNG */
} convert_options;

/* Writes DIR/CLASS/NUMBER.png (or .jpg); grey images stay grey. Creates DIR, which must not exist.
 * *n_written: how many images. */
LS_MUST_USE ls_status convert_to_folder(const ls_dataset *d, const convert_options *opt,
                                        const char *dir, size_t *n_written);

/* Writes a split of CIFAR-10's binary version, or of CIFAR-100's for more than 10 classes (coarse
 * labels are 0), at 32 x 32 into the existing folder `dir`. Existing files are replaced. */
LS_MUST_USE ls_status convert_to_cifar(const ls_dataset *d, const convert_options *opt,
                                       const char *dir, bool is_train, size_t *n_written);

#endif
