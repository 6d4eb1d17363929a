/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset_own.c - data sets of a program: arrays in memory, and callbacks that read samples. All
 * lengths are known and checked when the set is made; later code relies on it.
 */
#include "base/alloc.h"
#include "base/options.h"
#include "data/dataset.h"
#include "data/fields.h"

#include <string.h>

typedef struct own_dataset {
    ls_dataset common; /* first, so that the two can be cast into each other */
    ls_field *fields;
    int64_t *lengths;
    ls_dataset_callbacks callbacks;
    const void *arrays[LS_MAX_FIELDS];
    size_t sample_bytes[LS_MAX_FIELDS]; /* of each array */
} own_dataset;

static ls_status create(const dataset_ops *ops, const ls_field *fields, int n, size_t count,
                        own_dataset **out)
{
    own_dataset *d;
    ls_status st;

    LS_TRY(LS_NEW(&d, 1, "for a data set"));
    st = fields_copy(fields, n, &d->fields);
    if (st != LS_OK) {
        ls_free(d);
        return st;
    }
    d->common.ops = ops;
    d->common.count = count;
    d->common.fields = d->fields;
    d->common.n_fields = n;
    d->common.n_lengths = fields_count_lengths(fields, n);
    *out = d;
    return LS_OK;
}

static void free_dataset(own_dataset *d)
{
    fields_free(d->fields, d->common.n_fields);
    ls_free(d->lengths);
    ls_free(d);
}

/* --- arrays --- */

static ls_status read_arrays(const ls_dataset *self, const sample_call *call, sample_reader *r,
                             void *const *values)
{
    const own_dataset *d = (const own_dataset *)self;

    LS_UNUSED(r);
    for (int i = 0; i < self->n_fields; i++) {
        const size_t bytes = d->sample_bytes[i];

        memcpy(values[i], (const char *)d->arrays[i] + call->index * bytes, bytes);
    }
    return LS_OK;
}

static void close_arrays(ls_dataset *self)
{
    free_dataset((own_dataset *)self);
}

static const dataset_ops array_ops = {.read = read_arrays, .close = close_arrays};

/* The fields have been checked: the size of a sample does not overflow. */
static ls_status add_array(own_dataset *d, int i, const void *data)
{
    const ls_field *f = &d->fields[i];
    size_t bytes = ls_dtype_size(f->type);
    size_t all;

    for (int k = 0; k < f->n_dims; k++)
        bytes *= (size_t)f->dims[k];
    LS_TRY(
        ls_context(ls_mul_size(bytes, d->common.count, &all), "data set: field \"%s\"", f->name));
    if (data == NULL && all > 0)
        return ls_fail(LS_EINVAL, "data set: the array of field \"%s\" is NULL", f->name);
    // An element of an array without bytes is never read, but memcpy() needs an address.
    d->arrays[i] = data != NULL ? data : d;
    d->sample_bytes[i] = bytes;
    return LS_OK;
}

static ls_status check_arrays(const ls_array *arrays, int n)
{
    if (n < 1 || n > LS_MAX_FIELDS)
        return ls_fail(LS_EINVAL, "data set: %d arrays; 1 to %d are supported", n, LS_MAX_FIELDS);
    for (int i = 0; i < n; i++) {
        if (arrays[i].field.n_dims <= LS_MAX_DIMS - 1 && field_count_lengths(&arrays[i].field) > 0)
            return ls_fail(LS_EINVAL,
                           "data set: array %d has a dimension below 0; samples that differ in "
                           "size need ls_dataset_create()",
                           i);
    }
    return LS_OK;
}

ls_status ls_dataset_from_arrays(const ls_array *arrays, int n, size_t count, ls_dataset **out)
{
    ls_field fields[LS_MAX_FIELDS];
    own_dataset *d;
    ls_status st = LS_OK;

    LS_TRY(LS_GIVEN(arrays));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(check_arrays(arrays, n));
    for (int i = 0; i < n; i++)
        fields[i] = arrays[i].field;
    LS_TRY(create(&array_ops, fields, n, count, &d));
    d->common.is_in_memory = true;
    for (int i = 0; i < n && st == LS_OK; i++)
        st = add_array(d, i, arrays[i].data);
    if (st != LS_OK) {
        free_dataset(d);
        return st;
    }
    *out = &d->common;
    return LS_OK;
}

/* --- callbacks --- */

/* What a callback returned, with the text that it left. */
static ls_status check_callback(ls_status st, const char *what, size_t index)
{
    if (st == LS_OK)
        return LS_OK;
    if (ls_last_error()[0] == '\0')
        ls_fail(st, "%s", ls_status_text(st));
    return ls_context(st, "data set: %s of sample %zu", what, index);
}

static ls_status read_callback(const ls_dataset *self, const sample_call *call, sample_reader *r,
                               void *const *values)
{
    const ls_dataset_callbacks *own = &((const own_dataset *)self)->callbacks;
    const ls_sample_request request = {
        .index = call->index,
        .epoch = call->epoch,
        .seed = dataset_draw_seed(call->seed, call->draw, false),
        .lengths = call->lengths,
    };

    LS_UNUSED(r);
    ls_error_restore("");
    return check_callback(own->read(own->arg, &request, values), "read", call->index);
}

static ls_status collate_callback(const ls_dataset *self, const ls_host_batch *batch)
{
    const ls_dataset_callbacks *own = &((const own_dataset *)self)->callbacks;

    ls_error_restore("");
    return check_callback(own->collate(own->arg, batch), "collate of the batch", batch->indices[0]);
}

static void close_callbacks(ls_dataset *self)
{
    own_dataset *d = (own_dataset *)self;

    if (d->callbacks.close != NULL)
        d->callbacks.close(d->callbacks.arg);
    free_dataset(d);
}

static const dataset_ops callback_ops = {.read = read_callback, .close = close_callbacks};
static const dataset_ops collating_ops = {
    .read = read_callback, .collate = collate_callback, .close = close_callbacks};

static ls_status ask_lengths(const own_dataset *d, size_t index, int64_t *lengths)
{
    const ls_dataset_callbacks *own = &d->callbacks;

    for (int i = 0; i < d->common.n_lengths; i++)
        lengths[i] = -1;
    ls_error_restore("");
    LS_TRY(check_callback(own->lengths(own->arg, index, lengths), "lengths", index));
    return fields_check_lengths(d->fields, d->common.n_fields, index, lengths);
}

static ls_status read_lengths(own_dataset *d)
{
    int64_t lengths[DATASET_MAX_LENGTHS];
    const size_t n = (size_t)d->common.n_lengths;
    const size_t count = d->common.count;

    if (n == 0)
        return LS_OK;
    d->lengths = ls_realloc(NULL, count, n * sizeof(*d->lengths));
    if (d->lengths == NULL)
        return ls_fail(LS_ENOMEM, "data set: no memory for the lengths of %zu samples", count);
    d->common.lengths = d->lengths;
    for (size_t i = 0; i < count; i++) {
        LS_TRY(ask_lengths(d, i, lengths));
        for (size_t k = 0; k < n; k++)
            d->lengths[k * count + i] = lengths[k];
    }
    return LS_OK;
}

static ls_status check_callbacks(const ls_dataset_callbacks *own)
{
    if (own->read == NULL)
        return ls_fail(LS_EINVAL, "data set: the read callback is NULL");
    if (own->fields == NULL || own->n_fields < 1 || own->n_fields > LS_MAX_FIELDS)
        return ls_fail(LS_EINVAL, "data set: %d fields; 1 to %d are supported",
                       own->fields == NULL ? 0 : own->n_fields, LS_MAX_FIELDS);
    return LS_OK;
}

/* On failure `own->close` has not been called. */
static ls_status create_from(const ls_dataset_callbacks *own, ls_dataset **out)
{
    own_dataset *d;
    ls_status st = LS_OK;

    LS_TRY(check_callbacks(own));
    LS_TRY(create(own->collate != NULL ? &collating_ops : &callback_ops, own->fields, own->n_fields,
                  own->count, &d));
    d->callbacks = *own;
    if (d->common.n_lengths > 0 && own->lengths == NULL)
        st = ls_fail(LS_EINVAL, "data set: a field has a -1, but the lengths callback is NULL");
    if (st == LS_OK)
        st = read_lengths(d);
    if (st != LS_OK) {
        free_dataset(d);
        return st;
    }
    *out = &d->common;
    return LS_OK;
}

ls_status ls_dataset_create(const ls_dataset_callbacks *callbacks, ls_dataset **out)
{
    ls_dataset_callbacks own;
    char why[LS_ERROR_BYTES];
    ls_status st;

    LS_TRY(LS_GIVEN(callbacks));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_context(OPTIONS_COPY(ls_dataset_callbacks, callbacks, &own), "data set"));
    st = create_from(&own, out);
    if (st == LS_OK || own.close == NULL)
        return st;
    ls_error_save(why);
    own.close(own.arg);
    ls_error_restore(why);
    return st;
}
