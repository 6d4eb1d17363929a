/* SPDX-License-Identifier: Apache-2.0 */
/*
 * widen.h - runs an operator on BF16 or F16 tensors of a host device with a float32 kernel: widens
 * the inputs, runs the kernel, rounds the outputs. So every host device has every operator in mixed
 * precision, and the values of cpu_ref define those of all devices. device.c calls it.
 */
#ifndef LS_TENSOR_WIDEN_H
#define LS_TENSOR_WIDEN_H

#include "tensor/device.h"

/* Whether a tensor of the call has 16-bit floats. */
bool widen_needed(const op_call *call);

/* Runs the call by `run`, which runs operators that need no widening. Each step keeps the layout
 * that the device gives its results. */
LS_MUST_USE ls_status widen_run(ls_device *device, const op_call *call, device_run_fn run);

#endif
