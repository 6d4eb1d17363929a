/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.c - what every data set answers by itself. */
#include "data/dataset.h"

void ls_dataset_close(ls_dataset *d)
{
    if (d != NULL)
        d->ops->close(d);
}

size_t ls_dataset_count(const ls_dataset *d)
{
    return d->count;
}

int ls_dataset_classes(const ls_dataset *d)
{
    return d->classes;
}

const int64_t *ls_dataset_sample_dims(const ls_dataset *d)
{
    return d->dims;
}
