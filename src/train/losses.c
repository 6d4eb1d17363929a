/* SPDX-License-Identifier: Apache-2.0 */
/*
 * losses.c - the losses of training batches and other values of a program, for loop.c, values.c,
 * report.c and evaluate.c. The sum is formed on the
 * host, in float64 and in the order of the batches, so it is the same on every kind of device.
 */
#include "train/losses.h"

static ls_status open_losses(losses *l, accel *a)
{
    LS_TRY(accel_event_create(a, false, &l->copied));
    l->values = accel_alloc_host(a, LOSSES_MOST * sizeof(*l->values));
    if (l->values == NULL) {
        accel_event_destroy(l->copied);
        return ls_fail(LS_ENOMEM, "no page-locked memory for the losses of a report");
    }
    l->accel = a;
    return LS_OK;
}

static double element(const void *value, ls_dtype type)
{
    return type == LS_F64 ? *(const double *)value : (double)*(const float *)value;
}

static ls_status add_now(const ls_tensor *value, double weight, double *sum, double *total)
{
    double read = 0;

    LS_TRY(ls_tensor_read(value, &read, 1));
    *sum += element(&read, ls_tensor_dtype(value)) * weight;
    *total += weight;
    return LS_OK;
}

ls_status losses_add(losses *l, const ls_tensor *value, double weight, double *sum, double *total)
{
    ls_tensor plain;
    accel *a;
    void *from;

    if (value == NULL)
        return LS_OK;
    a = value->device->accel;
    if (a == NULL)
        return add_now(value, weight, sum, total);
    if (l->accel == NULL)
        LS_TRY(open_losses(l, a));
    if (l->n == LOSSES_MOST)
        LS_TRY(losses_collect(l));
    plain = *value; // a scalar has no layout of the device's own
    LS_TRY(tensor_plain(&plain, &from));
    LS_TRY(accel_copy(accel_queue(a, ACCEL_COMPUTE), &l->values[l->n], from,
                      ls_dtype_size(value->dtype), ACCEL_TO_HOST));
    LS_TRY(accel_event_record(l->copied, accel_queue(a, ACCEL_COMPUTE)));
    l->types[l->n] = value->dtype;
    l->weights[l->n] = weight;
    l->sums[l->n] = sum;
    l->totals[l->n++] = total;
    return LS_OK;
}

ls_status losses_collect(losses *l)
{
    if (l->n == 0)
        return LS_OK;
    LS_TRY(accel_event_wait(l->copied, "train: losses since the last report"));
    for (int i = 0; i < l->n; i++) {
        *l->sums[i] += element(&l->values[i], l->types[i]) * l->weights[i];
        *l->totals[i] += l->weights[i];
    }
    l->n = 0;
    return LS_OK;
}

void losses_close(losses *l)
{
    if (l->accel == NULL)
        return;
    // After a failure the accelerator writes no more; its text was reported where it happened.
    if (accel_synchronize(l->accel, "train: losses at the end of the run") != LS_OK)
        l->n = 0;
    accel_event_destroy(l->copied);
    accel_free_host(l->accel, l->values);
    *l = (losses){.accel = NULL};
}
