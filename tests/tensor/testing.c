/* SPDX-License-Identifier: Apache-2.0 */
/* testing.c - see testing.h. */
#include "tensor/testing.h"

#include "base/rng.h"

#include <math.h>

void check_status(ls_status want, ls_status got, const char *file, int line)
{
    if (want == got)
        return;
    print_error("wanted \"%s\", got \"%s\": %s\n", ls_status_text(want), ls_status_text(got),
                ls_last_error());
    _fail(file, line);
}

ls_device *open_reference(void)
{
    ls_device *device = NULL;

    assert_status(LS_OK, ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                                             .name = "cpu_ref"},
                                        &device));
    return device;
}

static void set_element(ls_tensor *t, size_t i, double value)
{
    void *data = ls_tensor_data(t);

    assert_non_null(data);
    if (ls_tensor_dtype(t) == LS_F64)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

ls_tensor *tensor_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                     const double *values)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, ls_tensor_create(device, type, n_dims, dims, &t));
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        set_element(t, i, values[i]);
    return t;
}

ls_tensor *random_tensor(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims,
                         uint64_t seed)
{
    ls_tensor *t = NULL;
    ls_rng rng;

    ls_rng_seed(&rng, seed);
    assert_status(LS_OK, ls_tensor_create(device, type, n_dims, dims, &t));
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        set_element(t, i, 2 * ls_rng_double(&rng) - 1);
    return t;
}

ls_tensor *unplaced_of(ls_device *device, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = NULL;

    assert_status(LS_OK, tensor_shape(device, type, n_dims, dims, &t));
    return t;
}

double element_of(const ls_tensor *t, size_t i)
{
    const void *data = ls_tensor_data_const(t);

    assert_non_null(data);
    return ls_tensor_dtype(t) == LS_F64 ? ((const double *)data)[i]
                                        : (double)((const float *)data)[i];
}

void assert_elements(const ls_tensor *t, const double *want, double tolerance)
{
    for (size_t i = 0; i < ls_tensor_count(t); i++) {
        const double got = element_of(t, i);

        if (got == want[i] || (isnan(got) && isnan(want[i])))
            continue;
        if (!(fabs(got - want[i]) <= tolerance))
            fail_msg("element %zu is %.17g, not %.17g", i, got, want[i]);
    }
}

void destroy_all(ls_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++)
        ls_tensor_destroy(tensors[i]);
}
