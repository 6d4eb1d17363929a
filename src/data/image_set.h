/* SPDX-License-Identifier: Apache-2.0 */
/* image_set.h - makes a data set of a count, labels, and images that can be opened (image_ops). */
#ifndef LS_DATA_IMAGE_SET_H
#define LS_DATA_IMAGE_SET_H

#include "data/dataset.h"

/* Ends the opening of a set, whose `images`, `count`, `classes` and `dims` are set: *out, without
 * augmentation, or closes it when `st` is a failure. */
LS_MUST_USE ls_status image_set_finish(ls_dataset *d, ls_status st, ls_dataset **out);

#endif
