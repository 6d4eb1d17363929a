/* SPDX-License-Identifier: Apache-2.0 */
/* testing.c - see testing.h. */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "tensor/doubles.h"

#include <math.h>

void check_status(ls_status want, ls_status got, const char *file, int line)
{
    if (want == got)
        return;
    print_error("wanted \"%s\", got \"%s\": %s\n", ls_status_text(want), ls_status_text(got),
                ls_last_error());
    _fail(file, line);
}

ls_device *open_test_device(const char *name)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = name};
    ls_device *device = NULL;

    assert_status(LS_OK, ls_device_open(&opt, &device));
    return device;
}

ls_device *open_reference(void)
{
    return open_test_device(test_device_name());
}

ls_tensor *tensor_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                     const double *values)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(device, type, n_dims, dims, &t));
    assert_status(LS_OK, doubles_write(t, values));
    return t;
}

/* Memory for the elements of `t`. */
static double *values_for(const ls_tensor *t)
{
    double *values = ls_calloc(ls_tensor_count(t) + 1, sizeof(*values));

    assert_non_null(values);
    return values;
}

ls_tensor *random_tensor(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                         uint64_t seed)
{
    ls_tensor *t = NULL;
    double *values;
    ls_rng rng;

    ls_rng_seed(&rng, seed);
    assert_status(LS_OK, ls_tensor_create(device, type, n_dims, dims, &t));
    values = values_for(t);
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        values[i] = 2 * ls_rng_double(&rng) - 1;
    assert_status(LS_OK, doubles_write(t, values));
    ls_free(values);
    return t;
}

ls_tensor *unplaced_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, tensor_shape(device, type, n_dims, dims, &t));
    return t;
}

double *elements_of(const ls_tensor *t)
{
    double *values = values_for(t);

    assert_status(LS_OK, doubles_read(t, values));
    return values;
}

void *copy_of(const ls_tensor *t)
{
    void *copy = ls_calloc(ls_tensor_count(t) + 1, ls_dtype_size(ls_tensor_dtype(t)));

    assert_non_null(copy);
    assert_status(LS_OK, ls_tensor_read(t, copy, ls_tensor_count(t)));
    return copy;
}

double element_of(const ls_tensor *t, size_t i)
{
    double value = 0;

    assert_status(LS_OK, doubles_read_one(t, i, &value));
    return value;
}

void assert_elements(const ls_tensor *t, const double *want, double tolerance)
{
    double *got = elements_of(t);

    for (size_t i = 0; i < ls_tensor_count(t); i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i])))
            continue;
        if (!(fabs(got[i] - want[i]) <= tolerance))
            fail_msg("element %zu is %.17g, not %.17g", i, got[i], want[i]);
    }
    ls_free(got);
}

void destroy_all(ls_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++)
        ls_tensor_destroy(tensors[i]);
}
