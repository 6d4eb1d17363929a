/* SPDX-License-Identifier: Apache-2.0 */
/* control.h - the table by which tests control the simulated device (tensor/sim/sim.h). */
#ifndef TESTS_TENSOR_SIM_CONTROL_H
#define TESTS_TENSOR_SIM_CONTROL_H

#include "tensor/sim/sim.h"

/* Loads the module at first use; NULL, with the reason in ls_last_error(), when it cannot. */
const sim_control *sim_control_table(void);

#endif
