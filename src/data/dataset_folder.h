/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_folder.h - what is known of an image folder beyond its public face. */
#ifndef LS_DATA_DATASET_FOLDER_H
#define LS_DATA_DATASET_FOLDER_H

#include "data/dataset.h"

/* The file of sample `index`. `self` is of ls_dataset_open_folder(), as below. */
void folder_dataset_path(const ls_dataset *self, size_t index, char *buf, size_t n);

size_t folder_dataset_others(const ls_dataset *self); /* files with other names than images have */

#endif
