/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_memory.c - see batch_memory.h. The loader and device_batches.c call it, in the thread of
 * the device.
 */
#include "data/loader/batch_memory.h"

#include <string.h>

static ls_status fit_column(ls_tensor **t, ls_device *device, const batch_column *c,
                            const batch_shape *shape, bool *changed)
{
    int64_t dims[LS_MAX_DIMS];
    const int n_dims = c->n_dims + 1;

    batch_column_dims(c, shape, dims);
    if (*t == NULL)
        LS_TRY(tensor_shape(device, c->type, n_dims, dims, t));
    else if ((*t)->storage != NULL && memcmp((*t)->dims, dims, (size_t)n_dims * sizeof(*dims)) == 0)
        return LS_OK;
    *changed = true;
    return tensor_resize(*t, dims);
}

ls_status batch_memory_fit(batch_memory *m, ls_device *device, const batch_layout *l,
                           const batch_shape *shape, bool *changed)
{
    *changed = false;
    for (int i = 0; i < l->n_columns; i++)
        LS_TRY(fit_column(&m->tensors[i], device, &l->columns[i], shape, changed));
    return LS_OK;
}

ls_status batch_memory_open(batch_memory *m, const batch_layout *l, void **values)
{
    batch_memory_written(m, l);
    for (int i = 0; i < l->n_columns; i++)
        LS_TRY(tensor_plain(m->tensors[i], &values[i]));
    return LS_OK;
}

void batch_memory_written(batch_memory *m, const batch_layout *l)
{
    for (int i = 0; i < l->n_columns; i++)
        tensor_written(m->tensors[i], "the next batch");
}

void batch_memory_free(batch_memory *m)
{
    for (int i = 0; i < BATCH_MAX_COLUMNS; i++)
        ls_tensor_destroy(m->tensors[i]);
    *m = (batch_memory){0};
}
