/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.h - writes a data set in another format, so that there are real images without a download.
 */
#ifndef LS_DATA_CONVERT_H
#define LS_DATA_CONVERT_H

#include <lockstep/data.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct convert_options {
    int side; /* images become so high and wide, by Pillow's bilinear resize; 0: stay as they are */
    size_t per_class; /* takes the first so many of each class; 0: all */
    int jpeg_quality; /* folders: 1 to 100; 0: PNG */
} convert_options;

/* Writes DIR/CLASS/NUMBER.png (or .jpg); grey images stay grey. DIR is made, and must not have been there. *n_written images. */
LS_MUST_USE ls_status convert_to_folder(const ls_dataset *d, const convert_options *opt,
                                        const char *dir, size_t *n_written);

/* Writes a split of CIFAR-10's binary version, or of CIFAR-100's where there are more than 10 classes (coarse labels are 0), at 32 x 32
 * into the folder `dir`, which is there. Existing files are replaced. */
LS_MUST_USE ls_status convert_to_cifar(const ls_dataset *d, const convert_options *opt,
                                       const char *dir, bool is_train, size_t *n_written);

#endif
