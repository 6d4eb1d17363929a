/* SPDX-License-Identifier: Apache-2.0 */
/* planning.h - what programs need that make plans of cuDNN without a card (dnn_plan.c). */
#ifndef TESTS_TENSOR_CUDA_PLANNING_H
#define TESTS_TENSOR_CUDA_PLANNING_H

#include "tensor/devices/cuda/dnn/dnn_plan.h"

/* As the device's limit. */
#define WORKSPACE_BYTES ((size_t)256 << 20)

/* A planner for the card of this number: 80, 90, 100. Profiles have the figures that their vendor
 * and its library print for an A100, an H100 and, from public figures, a B200. */
LS_MUST_USE ls_status open_profile(int sm, dnn_planner **out);

#endif
