/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - see control.h. Tests that run on the simulated device use it. */
#include "tensor/sim/control.h"

#include "base/module.h"

#include <dlfcn.h>

const sim_control *sim_control_table(void)
{
    void *module = NULL;
    const sim_control *table;

    if (module_open("sim", &module) != LS_OK)
        return NULL;
    table = dlsym(module, SIM_CONTROL);
    if (table == NULL)
        (void)ls_fail(LS_EINTERNAL, "liblockstep_sim.so has no %s", SIM_CONTROL);
    return table;
}
