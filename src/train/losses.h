/* SPDX-License-Identifier: Apache-2.0 */
/*
 * losses.h - the losses of training batches, and other values of a program, added up. A host
 * device's loss is read at once. On a stream device reading would wait for the device in every
 * step: there the losses are copied into page-locked memory in the order of the operators, and read
 * together at the next report.
 */
#ifndef LS_TRAIN_LOSSES_H
#define LS_TRAIN_LOSSES_H

#include "base/compute/accel.h"
#include "tensor/device.h"

#define LOSSES_MOST 256 /* values between two reads */

/* Zeroed before the first use. */
typedef struct losses {
    accel *accel;        /* NULL before the first loss, and on a host device */
    accel_event *copied; /* after the last copy */
    double *values;      /* page-locked: LOSSES_MOST elements of float64 or float32 */
    ls_dtype types[LOSSES_MOST];
    double weights[LOSSES_MOST];
    double *sums[LOSSES_MOST]; /* each value is added to these two */
    double *totals[LOSSES_MOST];
    int n; /* copies that have not been added to a sum */
} losses;

/* Adds value * weight to *sum and weight to *total, which must live until it is collected: at once,
 * or with losses_collect(). NULL, the loss of a forward that has failed, adds nothing. Blocks on a
 * stream device only when LOSSES_MOST values are pending. */
LS_MUST_USE ls_status losses_add(losses *l, const ls_tensor *value, double weight, double *sum,
                                 double *total);

/* Adds the pending values, in their order; blocks until the device has computed them. */
LS_MUST_USE ls_status losses_collect(losses *l);

/* Waits for pending copies and frees the memory. */
void losses_close(losses *l);

#endif
