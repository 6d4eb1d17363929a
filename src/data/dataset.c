/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.c - the public calls that are the same for all data sets: count, fields and lengths. The
 * loader and programs call it.
 */
#include "data/dataset.h"

#include "base/rng.h"
#include "data/fields.h"

uint64_t dataset_draw_seed(uint64_t epoch_seed, size_t at, bool is_batch)
{
    return ls_hash3(epoch_seed, at, is_batch);
}

void dataset_count_loader(const ls_dataset *d, int change)
{
    ls_dataset *counted = (ls_dataset *)(uintptr_t)d;

    (void)atomic_fetch_add_explicit(&counted->n_loaders, change, memory_order_relaxed);
}

void ls_dataset_close(ls_dataset *d)
{
    if (d != NULL)
        d->ops->close(d);
}

size_t ls_dataset_count(const ls_dataset *d)
{
    return d == NULL ? 0 : d->count;
}

const ls_field *ls_dataset_fields(const ls_dataset *d, int *n)
{
    if (n != NULL)
        *n = d == NULL ? 0 : d->n_fields;
    return d == NULL || n == NULL ? NULL : d->fields;
}

int dataset_first_length(const ls_dataset *d, int field)
{
    if (field_count_lengths(&d->fields[field]) == 0)
        return -1;
    return fields_count_lengths(d->fields, field);
}

void dataset_lengths_of(const ls_dataset *d, size_t index, int64_t *out)
{
    for (int i = 0; i < d->n_lengths; i++)
        out[i] = d->lengths[(size_t)i * d->count + index];
}

static int find_first_with_length(const ls_dataset *d)
{
    for (int i = 0; i < d->n_fields; i++) {
        if (field_count_lengths(&d->fields[i]) > 0)
            return i;
    }
    ls_fail(LS_EINVAL, "all fields of the data set have a fixed size");
    return -1;
}

ls_status ls_dataset_lengths(const ls_dataset *d, const char *name, const int64_t **out)
{
    int field;
    int at;

    LS_TRY(LS_GIVEN(d));
    LS_TRY(LS_GIVEN(out));
    field = name == NULL ? find_first_with_length(d) : fields_find(d->fields, d->n_fields, name);
    if (field < 0)
        return LS_EINVAL;
    at = dataset_first_length(d, field);
    if (at < 0)
        return ls_fail(LS_EINVAL, "field \"%s\" has a fixed size", name);
    *out = d->lengths + (size_t)at * d->count;
    return LS_OK;
}
